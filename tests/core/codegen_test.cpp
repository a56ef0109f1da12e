// Compiled kernels against the reference interpreter, on random graphs.
#include <doctest/doctest.h>

#include <cstdlib>

#include "random_graph.h"
#include "run_compiled.h"

namespace broach {

namespace {

using testing::Options;
using testing::run_compiled;

// Without `strict` chains of low precision are not rounded in between, so only wide types can be held to few digits.
void compare(uint32_t seed, const Options& how, const ScheduleOptions& options) {
  double tolerance = how.low_precision ? 2e-2 : 2e-5;
  Graph g = testing::random_graph(seed, how);
  auto inputs = testing::random_inputs(g, seed);
  auto expected = interpret(g, inputs);
  auto actual = run_compiled(g, inputs, options);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    std::string difference = testing::first_difference(actual[i], expected[i], tolerance, tolerance);
    INFO("seed ", seed, " output ", i, "\n", g.str());
    CHECK_MESSAGE(difference.empty(), difference);
  }
}

int count() { return std::getenv("BROACH_TEST_ALL") ? 3000 : 150; }

}  // namespace

TEST_CASE("random graphs, fused") {
  for (int seed = 0; seed < count(); ++seed) compare(static_cast<uint32_t>(seed), {.low_precision = false}, {});
}

TEST_CASE("random graphs, one kernel an operation") {
  for (int seed = 0; seed < count() / 3; ++seed) compare(static_cast<uint32_t>(seed), {.low_precision = false}, {.strict = false, .fuse = false});
}

TEST_CASE("random graphs with routines") {
  for (int seed = 2000; seed < 2000 + count(); ++seed) compare(static_cast<uint32_t>(seed), {.low_precision = false, .routines = true}, {});
}

TEST_CASE("random graphs of low precision, strict") {
  for (int seed = 1000; seed < 1000 + count(); ++seed) compare(static_cast<uint32_t>(seed), {}, {.strict = true, .fuse = true});
}

}  // namespace broach
