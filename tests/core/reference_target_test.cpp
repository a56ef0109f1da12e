// The reference target against the reference interpreter, on random graphs: what schedules and kernels say is what graphs mean.
#include <doctest/doctest.h>

#include "random_graph.h"
#include "run_compiled.h"

namespace broach {

namespace {

using testing::Options;

void compare(uint32_t seed, const Options& how, const ScheduleOptions& options) {
  Graph g = testing::random_graph(seed, how);
  INFO("seed ", seed, "\n", g.str());
  auto inputs = testing::random_inputs(g, seed);
  auto expected = interpret(g, inputs), actual = testing::run_compiled(g, inputs, options, SerialThreads(), 0, reference_target());
  REQUIRE(actual.size() == expected.size());
  // Sums are split over steps of a schedule, and taken in other orders.
  const double tolerance = how.low_precision ? 2e-2 : 2e-5;
  for (size_t i = 0; i < actual.size(); ++i) CHECK(testing::first_difference(actual[i], expected[i], tolerance, tolerance) == "");
}

constexpr uint32_t kGraphs = 60;

}  // namespace

TEST_CASE("reference target: fused") {
  for (uint32_t seed = 0; seed < kGraphs; ++seed) compare(seed, {.low_precision = false, .max_elements = 512}, {});
}

TEST_CASE("reference target: one kernel an operation") {
  for (uint32_t seed = 0; seed < kGraphs; ++seed)
    compare(seed, {.low_precision = false, .max_elements = 512}, {.strict = false, .fuse = false});
}

TEST_CASE("reference target: contractions and what follows them, and routines") {
  for (uint32_t seed = 0; seed < kGraphs; ++seed)
    compare(seed, {.low_precision = false, .contractions = true, .routines = true, .max_elements = 512}, {});
}

TEST_CASE("reference target: low precision, rounded after every operation") {
  for (uint32_t seed = 0; seed < kGraphs; ++seed)
    compare(seed, {.contractions = true, .max_elements = 512}, {.strict = true, .fuse = true});
}

TEST_CASE("reference target: an index outside is told, and nothing is read there") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {4}, {}}), i = b.input({DType::i64, {2}, {}});
  Graph g = b.finish({b.emit(Op::take, {b.unary(Op::neg, x), i}, {{Attr::dim, int64_t{0}}})});
  HostTensor values = zeros(DType::f32, std::vector<int64_t>{4}), index = zeros(DType::i64, std::vector<int64_t>{2});
  index.set(0, int64_t{1000000});
  CHECK_THROWS_AS(testing::run_compiled(g, {values, index}, {}, SerialThreads(), 0, reference_target()), IndexError);
}

TEST_CASE("reference target: nothing is read where there is nothing to compute") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {0}, {}});
  Value repeated = b.expand(b.reshape(x, {1, 0}), {3, 0});
  Graph g = b.finish({b.unary(Op::neg, repeated), b.reduce(Op::reduce_sum, repeated, {1})});
  auto results = testing::run_compiled(g, {zeros(DType::f32, std::vector<int64_t>{0})}, {}, SerialThreads(), 0, reference_target());
  CHECK(results[0].bytes.empty());
  for (int64_t i = 0; i < 3; ++i) CHECK(as_double(results[1].at(i)) == 0);
}

}  // namespace broach
