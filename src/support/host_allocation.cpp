#include "support/host_allocation.h"

#include <sys/mman.h>

#include <cstdlib>

namespace broach {

void* allocate_host(size_t bytes) noexcept {
  void* data = nullptr;
  if (posix_memalign(&data, bytes < kHugePage ? 64 : kHugePage, bytes) != 0) return nullptr;
  if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // where it fails, pages are small
  return data;
}

}  // namespace broach
