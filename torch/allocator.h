// Memory of results on the host.
#pragma once

#include <c10/core/Allocator.h>

#include "target/memory.h"

namespace broach {

// What at::empty takes there, but for results of 32 MB and more, which the C library maps anew each time and the system fills with zeros
// page by page: these ask for huge pages, where the system has them. (Touched for the first time, memory is written three times as fast;
// measured: 131 MB in 20 ms instead of 55.) It is given back when the storage is freed, and reported to torch's profilers. An allocator
// of the user's own (c10::SetCPUAllocator) is used for all.
c10::Allocator& result_allocator();

// For what programs with gradients make, which takes the same memory in every step: it is kept from one to the next, as fresh pages cost
// up to a tenth of a step. As many stay as the last steps needed (Region), and none behind a program that is gone: the next step of another
// takes fresh ones, once. An allocator of the user's own is used for all.
c10::Allocator& step_allocator();

// Somebody who runs such a program.
class StepMemoryUser {
 public:
  StepMemoryUser() = default;
  ~StepMemoryUser();
  StepMemoryUser(const StepMemoryUser&) = delete;
  StepMemoryUser& operator=(const StepMemoryUser&) = delete;
  void begin_run() const;
};

// The host's memory of intermediates, as torch's profilers are told of it: null where none is at work.
Memory* reported_host_memory();

// What is kept for nobody.
size_t idle_step_memory();
void trim_step_memory();

}  // namespace broach
