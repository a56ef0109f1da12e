#include "allocator.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <cstdlib>

namespace broach {

namespace {

// glibc's DEFAULT_MMAP_THRESHOLD_MAX: smaller blocks are used again once they have been freed.
constexpr size_t kLarge = size_t{32} << 20;
constexpr size_t kHugePage = size_t{2} << 20;

class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    c10::Allocator& usual = *c10::GetCPUAllocator();
    void* data = nullptr;
    if (n < kLarge || &usual != c10::GetDefaultCPUAllocator() || posix_memalign(&data, kHugePage, n) != 0) return usual.allocate(n);
    madvise(data, n, MADV_HUGEPAGE);  // where it fails, pages are small
    c10::profiledCPUMemoryReporter().New(data, n);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }

 private:
  static void release(void* data) {
    c10::profiledCPUMemoryReporter().Delete(data);
    std::free(data);
  }
};

}  // namespace

c10::Allocator& result_allocator() {
  static auto* const allocator = new ResultAllocator;  // tensors may outlive whatever is destroyed at the end
  return *allocator;
}

}  // namespace broach
