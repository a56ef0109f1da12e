// Each pass against text files, one for each function: graphs before and after it, and graphs in which it must do nothing. What it gives must
// also compute the same, by the reference interpreter.
#include "passes/passes.h"

#include <doctest/doctest.h>

#include <sstream>

#include "random_graph.h"
#include "support/error.h"
#include "text_cases.h"

using namespace broach;

namespace {

// A pass that runs again has the file of its first time.
std::filesystem::path file_of(const Pass& pass) {
  std::string name = pass.name;
  return std::filesystem::path(BROACH_TESTS) / "core" / "passes" / cat(name.substr(0, name.find("_again")), ".txt");
}

PassContext context_of(const testing::TextCase& c, const Graph& g) {
  PassContext context{std::vector<bool>(g.inputs().size())};
  std::istringstream numbers(c.constant);
  for (size_t i; numbers >> i;) context.constant.at(i) = true;
  return context;
}

void check_same_results(const Graph& before, const Module& after) {
  std::vector<HostTensor> inputs = broach::testing::random_inputs(before, 7), given = inputs;
  if (after.prologue)
    for (HostTensor& t : interpret(*after.prologue, inputs)) given.push_back(std::move(t));
  auto want = interpret(before, inputs), have = interpret(*after.graph, given);
  REQUIRE(want.size() == have.size());
  for (size_t i = 0; i < want.size(); ++i) CHECK(broach::testing::first_difference(have[i], want[i], 1e-4, 1e-5) == "");
}

bool has_calls(const Graph& g) {
  return std::any_of(g.nodes().begin(), g.nodes().end(), [](const Node& n) { return n.op == Op::extern_call; });
}

void check_pass(const Pass& pass) {
  std::vector<testing::TextCase> cases = testing::read_cases(file_of(pass));
  bool changes = false, does_nothing = false;
  for (testing::TextCase& c : cases) {
    INFO(std::string(pass.name), ": ", c.title);
    auto before = std::make_shared<const Graph>(Graph::parse(c.before));
    Module m{before, nullptr, nullptr};
    CHECK(before->str() == c.before);  // as it is printed
    pass.run(m, context_of(c, *before));
    m.verify();
    if (testing::records()) c.after = m.str();
    CHECK(m.str() == c.after);
    if (!m.segments && !has_calls(*m.graph)) check_same_results(*before, m);
    (m.str() == c.before ? does_nothing : changes) = true;
  }
  if (testing::records()) testing::write_cases(file_of(pass), cases);
  INFO(std::string(pass.name), " has a case that it changes, and one in which it must do nothing");
  CHECK(changes);
  CHECK(does_nothing);
}

}  // namespace

TEST_CASE("passes: every row of the list does what its file says") {
  for (const Pass& pass : passes()) check_pass(pass);
}
