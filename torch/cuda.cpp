#include "cuda.h"

#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "compat.h"
#include "recorded_calls.h"
#include "support/error.h"
#include "support/log.h"

namespace broach {

namespace {

// What torch's allocator has of the current device; 0 for one that does not tell.
int64_t reserved_bytes() {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(&cuda_allocator());
  if (!allocator) return 0;
  const auto device = c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice().index();
  return allocator->getDeviceStats(device).reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

class CachingMemory : public Memory {
 public:
  // Of the current device, for its current stream.
  Piece take(int64_t bytes, void*) override {
    return {static_cast<std::byte*>(cuda_allocator().raw_allocate(static_cast<size_t>(bytes))), bytes};
  }
  // A large one would lie between values that are to keep their places, and divide what a larger one needs. It lies elsewhere, where what
  // torch gets from the device for it is little beside what there is.
  Piece take_lasting(int64_t bytes, void* queue) override {
    constexpr int64_t kSmall = int64_t{1} << 20, kSegment = int64_t{20} << 20;
    if (bytes > kSmall && reserved_bytes() >= 40 * kSegment) try {
        const OutOfSteadyMemory out;
        return take(bytes, queue);
      } catch (const c10::OutOfMemoryError& e) {  // there may be room among those values
        log_debug(e.what_without_backtrace());
      }
    return take(bytes, queue);
  }
  void give(Piece piece, void*) override { cuda_allocator().raw_deallocate(piece.data); }
};

// Versions of torch whose streams do not say their handle have it in a class of libc10_cuda's that is nothing but the stream.
[[maybe_unused]] void* handle_by_symbol(const c10::Stream& stream) {
  using Handle = void* (*)(const c10::Stream*);
  static const auto handle = [] {
    void* library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<Handle>(dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv")) : nullptr;
  }();
  if (!handle) unsupported("cuda: this version of torch does not say which stream is the current one");
  return handle(&stream);
}

template <class Stream>
void* handle_of(const Stream& stream) {
  if (stream.id() == 0) return nullptr;  // the default stream
  if constexpr (requires { stream.native_handle(); }) return stream.native_handle();
  else return handle_by_symbol(stream);
}

}  // namespace

// c10 knows the one that torch brings; one that the user has put in its place shows in what is made.
c10::Allocator& cuda_allocator() {
  static c10::Allocator* const found = [] {
    const at::Tensor made = at::empty({0}, at::TensorOptions().device(c10::kCUDA));
    const bool is_real = !made.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python) && made.storage().device().is_cuda();
    c10::Allocator* own = is_real ? made.storage().allocator() : nullptr;
    return own ? own : c10::GetAllocator(c10::kCUDA);
  }();
  return *found;
}

std::optional<DeviceUse> device_use(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  static CachingMemory memory;
  return DeviceUse{device_of(device), handle_of(c10::impl::getDeviceGuardImpl(device.type())->getStream(device)), &memory};
}

}  // namespace broach
