// The reference target against the reference interpreter, on random graphs: what schedules and kernels say is what graphs mean.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>

#include "random_graph.h"
#include "run_compiled.h"

namespace broach {

namespace {

using testing::Options;

void compare(uint32_t seed, const Options& how, const ScheduleOptions& options) {
  Graph g = testing::random_graph(seed, how);
  INFO("seed ", seed, "\n", g.str());
  auto inputs = testing::random_inputs(g, seed);
  auto expected = interpret(g, inputs), actual = testing::run_compiled(g, inputs, options, SerialThreads(), 0, "reference");
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
  CHECK_THROWS_AS(testing::run_compiled(g, {values, index}, {}, SerialThreads(), 0, "reference"), IndexError);
}

TEST_CASE("reference target: nothing is read where there is nothing to compute") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {0}, {}});
  Value repeated = b.expand(b.reshape(x, {1, 0}), {3, 0});
  Graph g = b.finish({b.unary(Op::neg, repeated), b.reduce(Op::reduce_sum, repeated, {1})});
  auto results = testing::run_compiled(g, {zeros(DType::f32, std::vector<int64_t>{0})}, {}, SerialThreads(), 0, "reference");
  CHECK(results[0].bytes.empty());
  for (int64_t i = 0; i < 3; ++i) CHECK(as_double(results[1].at(i)) == 0);
}

TEST_CASE("reference target: its memory cannot be read from outside, and what was asked for is done when it is waited for") {
  const Target& target = *reference_target();
  ErrorFlag errors;
  const SerialThreads threads;
  const RunContext run{.device = {DeviceKind::other, 0}, .memory = &target.memory(), .errors = &errors, .threads = &threads};
  const Memory::Piece piece = target.memory().take(64, nullptr);
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  CHECK(write(pipe_ends[1], piece.data, 8) < 0);  // EFAULT: the kernel cannot read it either
  CHECK(errno == EFAULT);
  close(pipe_ends[0]), close(pipe_ends[1]);
  int64_t number = 7, back = 0;
  target.copy(piece.data, &number, sizeof number, false, run);
  number = 8;  // after the call
  target.copy(&back, piece.data, sizeof back, true, run);
  CHECK(back == 7);
  target.memory().give(piece, nullptr);
}

TEST_CASE("reference target: an index outside is reported late") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {4}, {}}), i = b.input({DType::i64, {2}, {}});
  Graph g = b.finish({b.emit(Op::take, {x, i}, {{Attr::dim, int64_t{0}}})});
  Schedule s = testing::scheduled(g);
  const auto& step = std::get<KernelStep>(s.steps.at(0).work);
  auto kernel = reference_target()->compile(std::span(&step.kernel, 1), {})[0];
  float values[4] = {1, 2, 3, 4}, out[2];
  int64_t index[2] = {0, 9};
  std::vector<void*> buffers;
  for (int buffer : step.buffers) {
    const Buffer& m = s.buffers[static_cast<size_t>(buffer)];
    buffers.push_back(m.kind == Buffer::Kind::output ? static_cast<void*>(out) : m.index == 0 ? static_cast<void*>(values) : index);
  }
  ErrorFlag errors;
  const SerialThreads threads;
  const RunContext run{.device = {DeviceKind::other, 0}, .errors = &errors, .threads = &threads, .step = 3};
  kernel->launch(buffers.data(), nullptr, run);
  CHECK(!errors.is_set());
  reference_target()->wait(run);
  CHECK(errors.step() == 3);
}

TEST_CASE("reference target: a contraction stores values from within its epilogue") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {3, 4}, {}}), w = b.input({DType::f32, {4, 5}, {}});
  Value y = b.emit(Op::dot, {x, w}, {{Attr::batch, int64_t{0}}});
  Graph g = b.finish({b.unary(Op::gelu_erf, y), y});
  auto operand = [](int buffer, Shape shape) { return Operand{{DType::f32, shape, {}}, {buffer, 0, contiguous_strides(shape)}}; };
  ContractionStep step{
      operation_of(*y.node),    {operand(0, {3, 4}), operand(1, {4, 5})}, {-1, -1}, {{Op::gelu_erf, {}}}, {}, operand(2, {3, 5}),
      {{0, operand(3, {3, 5})}}};
  std::vector<HostTensor> in = testing::random_inputs(g, 1);
  auto expected = interpret(g, in);
  std::vector<HostTensor> out{zeros(DType::f32, std::vector<int64_t>{3, 5}), zeros(DType::f32, std::vector<int64_t>{3, 5})};
  void* operands[2] = {in[0].bytes.data(), in[1].bytes.data()};
  void* side = out[1].bytes.data();
  ErrorFlag errors;
  const SerialThreads threads;
  const RunContext run{.device = {DeviceKind::other, 0}, .errors = &errors, .threads = &threads};
  const auto contraction = reference_target()->contraction(step, {});
  contraction->run({.operands = operands, .result = out[0].bytes.data(), .side_results = std::span(&side, 1)}, run);
  reference_target()->wait(run);
  for (size_t i = 0; i < 2; ++i) CHECK(testing::first_difference(out[i], expected[i], 1e-6, 1e-6) == "");
}

}  // namespace broach
