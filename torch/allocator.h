// Memory of results on the host.
#pragma once

#include <c10/core/Allocator.h>

namespace broach {

// What at::empty takes there, but for results of 32 MB and more, which the C library maps anew each time and the system fills with zeros
// page by page: these ask for huge pages, where the system has them. (Touched for the first time, memory is written three times as fast;
// measured: 131 MB in 20 ms instead of 55.) It is given back when the storage is freed, and reported to torch's profilers. An allocator
// of the user's own (c10::SetCPUAllocator) is used for all.
c10::Allocator& result_allocator();

}  // namespace broach
