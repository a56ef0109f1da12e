// Compiled kernels against the reference interpreter, on random graphs.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

#include "random_graph.h"
#include "runtime/executable.h"
#include "target/reference/interpreter.h"

namespace broach {

namespace {

using testing::Options;

// What a program that embeds the core does: memory for inputs and outputs, and a call.
std::vector<HostTensor> run_compiled(const Graph& source, const std::vector<HostTensor>& inputs, const ScheduleOptions& options) {
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
  for (const Value& v : graph->outputs()) {
    auto bytes = static_cast<size_t>(v.type().numel().constant() * size_of(v.dtype()));
    out.push_back({v.type(), std::vector<std::byte>(bytes, std::byte{0xAB})});
  }
  for (size_t i = 0; i < out.size(); ++i) frame.data[static_cast<size_t>(s.output_buffers[i])] = out[i].bytes.data();
  executable.run(frame);
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

TEST_CASE("random graphs of low precision, strict") {
  for (int seed = 1000; seed < 1000 + count(); ++seed) compare(static_cast<uint32_t>(seed), {}, {.strict = true, .fuse = true});
}

}  // namespace broach
