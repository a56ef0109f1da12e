// Calls of libtorch's that become part of a target's recording.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "runtime/executable.h"

namespace broach {

// Memory of torch's allocator that only its owner takes from: what is given back is not used for anything else.
class MemoryPool {
 public:
  virtual ~MemoryPool() = default;
  // Until `leave`, this thread takes its memory here.
  virtual void enter() = 0;
  virtual void leave() noexcept = 0;
};

// How to make one for a device, which is the current one. Torch offers that to Python only; without, no call is recorded.
using MakeMemoryPool = std::function<std::unique_ptr<MemoryPool>(c10::Device)>;
void set_memory_pools(MakeMemoryPool make);

std::unique_ptr<RecordedCalls> make_recorded_calls(Device device);
// Whether this thread is within RecordedCalls::run.
bool is_recording_calls();

// Whether a call may be recorded: one whose kernels are known to depend on nothing but what it is given. `given`: its results are copied
// out of the recording.
bool is_recordable(const ExternStep& step, const Schedule& schedule, bool given);

}  // namespace broach
