#include "allocator.h"

#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <cstdlib>

#include "support/host_allocation.h"
#include "target/region.h"

namespace broach {

namespace {

// glibc's DEFAULT_MMAP_THRESHOLD_MAX: smaller blocks are used again once they have been freed.
constexpr size_t kLarge = size_t{32} << 20;

class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    c10::Allocator& usual = *c10::GetCPUAllocator();
    void* data = n < kLarge || &usual != c10::GetDefaultCPUAllocator() ? nullptr : allocate_host(n);
    if (!data) return usual.allocate(n);
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

// As many addresses as the machine has memory.
Region& region() {
  static auto* const region = new Region(static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  return *region;
}

class StepAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    constexpr size_t kSmall = size_t{64} << 10;  // the C library does not map these
    const bool is_usual = c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator();
    std::byte* data = n >= kSmall && is_usual ? region().take(n) : nullptr;
    if (!data) return result_allocator().allocate(n);
    c10::profiledCPUMemoryReporter().New(data, n);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }

 private:
  static void release(void* data) {
    c10::profiledCPUMemoryReporter().Delete(data);
    region().give(static_cast<std::byte*>(data));
  }
};

class ReportedMemory final : public Memory {
 public:
  Piece take(int64_t bytes, void* queue) override {
    const Piece piece = HostMemory::get().take(bytes, queue);
    c10::profiledCPUMemoryReporter().New(piece.data, static_cast<size_t>(piece.bytes));
    return piece;
  }
  void give(Piece piece, void* queue) override {
    c10::profiledCPUMemoryReporter().Delete(piece.data);
    HostMemory::get().give(piece, queue);
  }
};

}  // namespace

c10::Allocator& result_allocator() {
  static auto* const allocator = new ResultAllocator;  // tensors may outlive whatever is destroyed at the end
  return *allocator;
}

c10::Allocator& step_allocator() {
  static auto* const allocator = new StepAllocator;
  return *allocator;
}

Memory* reported_host_memory() {
  static auto* const memory = new ReportedMemory;
  return c10::memoryProfilingEnabled() ? memory : nullptr;
}

StepMemoryUser::~StepMemoryUser() { trim_step_memory(); }

void StepMemoryUser::begin_run() const { region().begin_run(); }

size_t idle_step_memory() { return region().idle_bytes(); }

void trim_step_memory() { region().trim(); }

}  // namespace broach
