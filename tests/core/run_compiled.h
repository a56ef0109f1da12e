// Runs a graph on the CPU target.
#pragma once

#include "runtime/executable.h"
#include "target/reference/interpreter.h"

namespace broach::testing {

// What a program that embeds the core does: memory for inputs and outputs, and a call.
inline std::vector<HostTensor> run_compiled(const Graph& source, const std::vector<HostTensor>& inputs, const ScheduleOptions& options = {},
                                            const Threads& threads = SerialThreads()) {
  auto graph = std::make_shared<const Graph>(rewrite(source, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; }));
  std::vector<Shape> strides;
  for (const Value& v : graph->inputs()) strides.push_back(contiguous_strides(v.shape()));
  std::vector<OutputRequest> requests;
  for (const Value& v : graph->outputs()) requests.push_back({contiguous_strides(v.shape()), -1});
  Executable executable(make_schedule(graph, strides, requests, options), *cpu_target(), {}, nullptr);
  Frame frame;
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

}  // namespace broach::testing
