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

// How to make one for a device, which is the current one. `lends`: where there is no other memory left, everybody may have its free parts.
// Torch offers that to Python only; without, no call is recorded.
using MakeMemoryPool = std::function<std::unique_ptr<MemoryPool>(c10::Device, bool lends)>;
void set_memory_pools(MakeMemoryPool make);

// As long as it lives, this thread takes its memory on a device from a pool of Broach's programs. Where their values lie depends on nobody
// else there, so those of programs that repeat come to lie where they were, and a recording serves them. Without a pool, or while another
// thread is in it, memory is taken as ever.
class SteadyMemory {
 public:
  explicit SteadyMemory(c10::Device device);
  ~SteadyMemory();
  SteadyMemory(const SteadyMemory&) = delete;
  SteadyMemory& operator=(const SteadyMemory&) = delete;

 private:
  struct Pool;
  static Pool& pool_of(c10::Device device);
  Pool* entered_ = nullptr;
};

// As long as it lives, this thread takes memory as ever, though it is within SteadyMemory.
class OutOfSteadyMemory {
 public:
  OutOfSteadyMemory();
  ~OutOfSteadyMemory();
  OutOfSteadyMemory(const OutOfSteadyMemory&) = delete;
  OutOfSteadyMemory& operator=(const OutOfSteadyMemory&) = delete;

 private:
  MemoryPool* pool_;
};

// Recordings that are launched into one queue take their memory from one pool: what lies there is over when the next one runs.
// `made_bytes`: see ReplayedSteps.
std::unique_ptr<RecordedCalls> make_recorded_calls(Device device, void* queue, int64_t made_bytes);
// Whether this thread is within RecordedCalls::run.
bool is_recording_calls();

// Whether a call may be recorded: one whose kernels are known to depend on nothing but what it is given. `given`: its results are copied
// out of the recording.
bool is_recordable(const ExternStep& step, const Schedule& schedule, bool given);
// Whether a call makes so many launches that it alone is worth a recording: layers of many steps.
bool launches_many(const ExternCall& call);

}  // namespace broach
