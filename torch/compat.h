// The one place that knows what differs between versions of torch (2.11 to 2.15).
#pragma once

#include <ATen/Context.h>
#include <ATen/Tensor.h>
#include <ATen/ops/_lazy_clone.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COWDeleter.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/headeronly/version.h>

#include "ir/type.h"
#include "target/target.h"

namespace broach {

// What may be capture's dispatch key: below autograd, autocast and Python, above the choice of a backend, without a fallback of
// torch's own in these versions. It is included by thread-local state for the time of a capture, never set on tensors (from 2.15 on
// it means "FakeTensor" there). No other key lies there that torch leaves free.
constexpr c10::DispatchKey kCaptureKeys[] = {c10::DispatchKey::Fake};
// Included together with it, above autograd and autocast: where composite operations arrive before they are taken apart.
// Only torch's own tests use these.
constexpr c10::DispatchKey kCompositeKeys[] = {c10::DispatchKey::TESTING_ONLY_GenericMode, c10::DispatchKey::TESTING_ONLY_GenericWrapper};
// Up to 2.12 a matrix product of stacks asks for its sizes as plain numbers.
constexpr bool kMatmulFixesSizes = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13;
// The slot of the thread-local state that carries a capture to the autograd engine's threads.
const c10::DebugInfoKind kCaptureSlot = c10::DebugInfoKind::TEST_INFO_2;

// A mark on a storage that any mutable access takes away: a function that torch calls before such an access, once (2.13), or
// the state "copy on write" with a single holder, which gives that up without a copy.
template <class Storage>
inline bool is_marked(const Storage& s) {
  bool copied_on_write = s.data_ptr().get_deleter() == &c10::impl::cow::cow_deleter;
  if constexpr (requires { s.has_materializer(); }) return s.has_materializer() && !copied_on_write;  // which has such a function too
  else return copied_on_write;
}

// Marks the tensor's storage, which has none.
template <class Tensor>
void mark(const Tensor& t) {
  auto* s = t.storage().unsafeGetStorageImpl();
  if constexpr (requires { s->set_materializer(nullptr); }) s->set_materializer([](c10::StorageImpl*) {});
  else at::_lazy_clone(t.detach());
}

// Of `count` references to a tensor or a storage, those that are not its Python object's.
template <class Impl>
size_t references(const Impl& impl, size_t count) {
  if constexpr (requires { impl.pyobj_slot()->load_pyobj(); }) return count - (impl.pyobj_slot()->load_pyobj() ? 1 : 0);
  else return count;
}

// Opaque too are floats of 8 bits where this version converts to them in another way (what is too large may become NaN).
inline DType dtype_of(c10::ScalarType t) {
  static const bool converts_alike = c10::Float8_e4m3fn(1e4f).x == 0x7e;
  const DType known = dtype_of_number(static_cast<int8_t>(t));
  return is_stored_only(known) && !converts_alike ? DType::opaque : known;
}
inline c10::ScalarType scalar_type(DType t) { return static_cast<c10::ScalarType>(static_cast<int8_t>(t)); }

inline Device device_of(c10::Device d) {
  auto kind = static_cast<DeviceKind>(d.type());
  bool known = kind == DeviceKind::cpu || kind == DeviceKind::cuda || kind == DeviceKind::xpu || kind == DeviceKind::meta ||
               kind == DeviceKind::privateuse1;
  return {known ? kind : DeviceKind::other, d.is_cpu() ? int8_t{-1} : static_cast<int8_t>(d.index())};
}
// Whether it is one of torch's besides the CPU: a target may have another for itself.
inline bool is_accelerator(Device d) { return d.kind != DeviceKind::cpu && d.kind != DeviceKind::other; }
// Of a device of torch's.
inline c10::Device device_of(Device d) { return {static_cast<c10::DeviceType>(d.kind), d.index}; }

inline Shape shape_of(c10::IntArrayRef s) { return Shape(s.begin(), s.end()); }

// torch.set_float32_matmul_precision, the fp32_precision and other flags of torch.backends.mkldnn, or of cuDNN and cuBLAS, and
// torch.use_deterministic_algorithms, as eager reads them for products and convolutions on such a device.
inline ContractionRules contraction_rules(DeviceKind kind = DeviceKind::cpu) {
  const auto& c = at::globalContext();
  const bool cuda = kind == DeviceKind::cuda;
  auto math = [&](at::Float32Op op) {
    switch (c.float32Precision(cuda ? at::Float32Backend::CUDA : at::Float32Backend::MKLDNN, op)) {
      case at::Float32Precision::TF32: return ContractionRules::Math::tf32;
      case at::Float32Precision::BF16: return ContractionRules::Math::bf16;
      default: return ContractionRules::Math::exact;
    }
  };
  return {math(at::Float32Op::MATMUL), math(at::Float32Op::CONV), cuda ? c.userEnabledCuDNN() : c.userEnabledMkldnn(),
          c.deterministicAlgorithms() || (cuda ? c.deterministicCuDNN() : c.deterministicMkldnn()), cuda && c.benchmarkCuDNN()};
}

}  // namespace broach
