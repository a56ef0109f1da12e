#include "host_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>

namespace host_device {

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
thread_local c10::DeviceIndex current = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device before = getDevice();
    current = d.index();
    return before;
  }
  c10::Device getDevice() const override { return {kType, current}; }
  void setDevice(c10::Device d) const override { current = d.index(); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = d.index(); }
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    c10::DataPtr p = c10::GetCPUAllocator()->allocate(n);
    return {p.get(), p.release_context(), p.get_deleter(), {kType, current}};
  }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};
Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory);

struct Random : at::CPUGeneratorImpl {
  explicit Random(c10::DeviceIndex i) : at::CPUGeneratorImpl(7) { device_ = {kType, i}; }
};

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override {
    static const std::array all{at::make_generator<Random>(0), at::make_generator<Random>(1)};
    return all.at(static_cast<size_t>(i < 0 ? current : i));
  }
};
Hooks hooks;
const bool kHooked = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                         std::optional<c10::Device> d, std::optional<bool>) {
  c10::OptionalDeviceGuard on(d && d->has_index() ? d : std::nullopt);
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &memory, keys, type.value_or(c10::kFloat));
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> d, std::optional<bool> pinned, std::optional<c10::MemoryFormat>) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  return empty_strided(sizes, strides, type, layout, d, pinned);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(to.sizes() == from.sizes(), "the device for tests resizes nothing");
  return copy_from(from, to, false);
}

at::Tensor& uniform(at::Tensor& t, double from, double to, std::optional<at::Generator>) {
  auto* generator = hooks.getDefaultGenerator(t.device().index()).get<Random>();
  for (int64_t i = 0; i < t.numel(); ++i)
    t.mutable_data_ptr<float>()[i] = static_cast<float>(from + (to - from) * (generator->random() >> 8) * 0x1p-24);
  return t;
}

at::Tensor as_strided(const at::Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, sizes, strides, offset);
}

void by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("uniform_", &uniform);
  m.impl("as_strided", &as_strided);
  m.impl("view", [](const at::Tensor& t, c10::IntArrayRef sizes) { return at::native::view(t, sizes); });
}

}  // namespace

at::Device device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

void set_current(int index) { current = static_cast<c10::DeviceIndex>(index); }

void set_seed(int index, uint64_t seed) {
  at::Generator generator = hooks.getDefaultGenerator(static_cast<c10::DeviceIndex>(index));
  generator.set_current_seed(seed);
}

at::Tensor on_cpu(const at::Tensor& t) {
  return at::from_blob(const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(), at::TensorOptions().dtype(t.scalar_type()));
}

}  // namespace host_device
