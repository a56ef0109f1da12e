// Runs a graph on a target.
#pragma once

#include <cstring>

#include "runtime/executable.h"
#include "scheduled.h"
#include "support/error.h"
#include "target/reference/interpreter.h"

namespace broach::testing {

inline void spend(const std::vector<HostTensor>& inputs, const Schedule& schedule, std::vector<std::byte>& piece, Frame& frame) {
  size_t all = 64;
  for (const HostTensor& t : inputs) all += (t.bytes.size() + 63) / 64 * 64;
  piece.assign(all, std::byte{0xCD});
  frame.spent.data = piece.data() + (64 - reinterpret_cast<uintptr_t>(piece.data()) % 64) % 64;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::byte* const at = frame.spent.data + frame.spent.bytes;
    std::ranges::copy(inputs[i].bytes, at);
    for (size_t b = 0; b < schedule.buffers.size(); ++b)
      if (schedule.buffers[b].kind == Buffer::Kind::input && schedule.buffers[b].index == static_cast<int>(i)) frame.data[b] = at;
    frame.spent.bytes += static_cast<int64_t>((inputs[i].bytes.size() + 63) / 64 * 64);
  }
}

// What a program that embeds the core does: memory for inputs and outputs, and a call. `offset`: bytes from an address of 64
// at which results lie. `piece`: where inputs are put in one piece of memory, which is spent.
inline std::vector<HostTensor> run_compiled(const Graph& source, const std::vector<HostTensor>& inputs, const ScheduleOptions& options = {},
                                            const Threads& threads = SerialThreads(), size_t offset = 0, const std::string& target = "cpu",
                                            std::vector<std::byte>* piece = nullptr) {
  const Targets targets(target);
  Schedule schedule = scheduled(source, options);
  if (targets.host_runs_on() != Device{}) schedule = offload(std::move(schedule), targets.host_runs_on());
  schedule.verify();
  // What is parsed runs as what was printed.
  const std::string text = schedule.str();
  Schedule read = Schedule::parse(text);
  check(read.str() == text, "a schedule reads back as another:\n", text, "\n", read.str());
  Executable executable(std::move(read), targets, {}, nullptr);
  Frame frame;
  frame.threads = &threads;
  const Schedule& s = executable.schedule();
  frame.data.assign(s.buffers.size(), nullptr);
  auto in = inputs;
  for (size_t b = 0; b < s.buffers.size(); ++b)
    if (s.buffers[b].kind == Buffer::Kind::input) frame.data[b] = in[static_cast<size_t>(s.buffers[b].index)].bytes.data();
  if (piece) spend(in, s, *piece, frame);
  std::vector<HostTensor> out;
  std::vector<std::byte*> memory;
  for (const Value& v : source.outputs()) {
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

}  // namespace broach::testing
