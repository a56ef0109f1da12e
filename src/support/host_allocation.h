// Memory of the host in huge pages, where the system has them: large tensors are read with far fewer misses of the processor's table of pages.
#pragma once

#include <cstddef>

namespace broach {

inline constexpr size_t kHugePage = size_t{2} << 20;

// `bytes` of memory to be given to std::free, aligned to 64 bytes, or to a huge page if there is at least one. Null if there is none left.
void* allocate_host(size_t bytes) noexcept;

}  // namespace broach
