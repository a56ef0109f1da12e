// What becomes of exceptions in a lowering: one type says "not handled", any other is a bug.
#include "support/bug.h"

#include <doctest/doctest.h>

#include "ops/lower.h"
#include "passes/passes.h"

using namespace broach;

namespace {

std::optional<int> lowered(const std::function<int()>& f) {
  return where_handled("aten::some", [&] { return std::optional<int>(f()); });
}

}  // namespace

TEST_CASE("bug: what a lowering does not handle is none") {
  take_bugs();
  CHECK(lowered([] { return 3; }) == 3);
  CHECK(!lowered([]() -> int { unsupported("not for this"); }));
  CHECK(take_bugs().empty());
}

TEST_CASE("bug: any other exception of a lowering is one") {
  auto bad_access = []() -> int { return std::get<int>(std::variant<float, int>(1.0f)); };
  auto bad_check = []() -> int { fail("sizes differ"); };
  auto bad_index = []() -> int { return std::vector<int>().at(1); };
  for (const std::function<int()>& f :
       {std::function<int()>(bad_access), std::function<int()>(bad_check), std::function<int()>(bad_index)}) {
    if (verifies()) CHECK_THROWS_AS(lowered(f), Bug);
    else CHECK(!lowered(f));  // and a warning, once
    auto bugs = take_bugs();
    REQUIRE(bugs.size() == 1);
    CHECK(bugs[0].starts_with("aten::some: "));
    if (!verifies()) CHECK((!lowered(f) && take_bugs().empty()));
  }
}

TEST_CASE("bug: a name that is no pass") {
  GraphBuilder b;
  Graph g = b.finish({b.input({DType::f32, {2}, {}})});
  Module m(std::make_shared<const Graph>(std::move(g)));
  CHECK_THROWS_WITH_AS(run_passes(passes(), m, {}, {"simplify", "simplfy"}, nullptr, nullptr),
                       doctest::Contains("'simplfy' is no graph pass that can be left out; those are simplify, match_activations, "),
                       Error);
  CHECK_THROWS_AS(run_passes(passes(), m, {}, {"split_data_sizes"}, nullptr, nullptr), Error);
}
