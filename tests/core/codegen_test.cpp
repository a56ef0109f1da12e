// Compiled kernels against the reference interpreter, on random graphs.
#include <cstring>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "passes/passes.h"
#include "random_graph.h"
#include "run_compiled.h"

namespace broach {

namespace {

using testing::Options;

// What a program that embeds the core does: memory for inputs and outputs, and a call.
// `offset`: bytes from an address of 64 at which results lie.
std::vector<HostTensor> run_compiled(const Graph& source, const std::vector<HostTensor>& inputs, const ScheduleOptions& options, size_t offset = 0) {
  auto graph = std::make_shared<const Graph>(rewrite(source, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; }));
  std::vector<Shape> strides;
  for (const Value& v : graph->inputs()) strides.push_back(contiguous_strides(v.shape()));
  std::vector<OutputRequest> requests;
  for (const Value& v : graph->outputs()) requests.push_back({contiguous_strides(v.shape()), -1});
  Executable executable(make_schedule(graph, strides, requests, options), *cpu_target(), {}, nullptr);
  Frame frame;
  SerialThreads threads;
  frame.threads = &threads;
  const Schedule& s = executable.schedule();
  frame.data.assign(s.buffers.size(), nullptr);
  auto in = inputs;
  for (size_t b = 0; b < s.buffers.size(); ++b)
    if (s.buffers[b].kind == Buffer::Kind::input) frame.data[b] = in[static_cast<size_t>(s.buffers[b].index)].bytes.data();
  std::vector<HostTensor> out;
  std::vector<std::byte*> memory;
  for (const Value& v : graph->outputs()) {
    auto bytes = static_cast<size_t>(v.type().numel().constant() * size_of(v.dtype()));
    out.push_back({v.type(), std::vector<std::byte>(bytes + 128, std::byte{0xAB})});
    auto address = reinterpret_cast<uintptr_t>(out.back().bytes.data());
    memory.push_back(out.back().bytes.data() + (64 - address % 64) % 64 + offset);
  }
  for (size_t i = 0; i < out.size(); ++i) frame.data[static_cast<size_t>(s.output_buffers[i])] = memory[i];
  executable.run(frame);
  for (size_t i = 0; i < out.size(); ++i) {
    size_t bytes = out[i].bytes.size() - 128;
    std::memmove(out[i].bytes.data(), memory[i], bytes);
    out[i].bytes.resize(bytes);
  }
  return out;
}

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

// Results this large are written past the caches where their rows are aligned, and as any other where they are not.
TEST_CASE("large results") {
  const int64_t rows = 4100;
  for (int64_t columns : {1040, 1041}) {
    GraphBuilder b;
    Value x = b.input({DType::f32, {SymInt(rows), SymInt(columns)}});
    Value most = b.reduce(Op::reduce_max, x, {1}, true);
    Graph g = b.finish({b.unary(Op::neg, x), b.binary(Op::sub, x, b.expand(most, x.shape()))});
    auto count = static_cast<size_t>(rows * columns);
    std::vector<float> in(count), negated(count), less(count);
    for (size_t i = 0; i < count; ++i) in[i] = static_cast<float>(i * 7919 % 104729);
    for (size_t r = 0; r < count; r += static_cast<size_t>(columns)) {
      float largest = *std::max_element(&in[r], &in[r] + columns);
      for (size_t i = r; i < r + static_cast<size_t>(columns); ++i) negated[i] = -in[i], less[i] = in[i] - largest;
    }
    HostTensor given{x.type(), std::vector<std::byte>(count * 4)};
    std::memcpy(given.bytes.data(), in.data(), count * 4);
    for (size_t offset : {size_t{0}, size_t{16}}) {
      auto actual = run_compiled(g, {given}, {}, offset);
      CHECK(std::memcmp(actual[0].bytes.data(), negated.data(), count * 4) == 0);
      CHECK(std::memcmp(actual[1].bytes.data(), less.data(), count * 4) == 0);
    }
  }
}

// Integers, so that the order of summation cannot matter.
TEST_CASE("large reductions are cut into parts") {
  struct Case {
    std::vector<int64_t> shape, dims;
    int reductions;  // after the pass
  };
  for (const Case& c : {Case{{262147}, {0}, 3}, {{1 << 18}, {0}, 2}, {{4099, 70}, {0}, 3}, {{2, 2560, 3, 70}, {1, 3}, 2}, {{1024, 256}, {1}, 1}, {{100, 1000}, {0}, 1}})
    for (Op op : {Op::reduce_sum, Op::reduce_max, Op::reduce_min, Op::reduce_argmax}) {
      if (op == Op::reduce_argmax && c.dims.size() > 1) continue;
      GraphBuilder b;
      Value x = b.input({DType::i64, Shape(c.shape.begin(), c.shape.end())});
      Graph g = b.finish({b.reduce(op, x, c.dims)});
      Graph split = split_reductions(g);
      auto is_reduction = [](const Node& n) { return is_reduce(n.op); };
      CHECK(std::count_if(split.nodes().begin(), split.nodes().end(), is_reduction) == (op == Op::reduce_argmax ? 1 : c.reductions));
      auto inputs = testing::random_inputs(g, 3);
      auto expected = interpret(g, inputs);
      CHECK(run_compiled(split, inputs, {})[0].bytes == expected[0].bytes);
      CHECK(run_compiled(g, inputs, {})[0].bytes == expected[0].bytes);
    }
}

}  // namespace broach
