#include "runner.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "allocator.h"
#include "compat.h"
#include "cuda.h"
#include "externs.h"
#include "recorded_calls.h"

namespace broach {

namespace {

class AtenThreads : public Threads {
 public:
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) const override {
    at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) { body(begin, end); });
  }
};

const AtenThreads kThreads;

// `current`: the CUDA device that is the current one.
at::Tensor new_tensor(const Type& type, const Shape& strides, std::span<const int64_t> symbols, std::optional<c10::Device> current) {
  auto sizes = evaluate(type.shape, symbols), steps = evaluate(strides, symbols);
  if (type.device.kind == DeviceKind::cpu)
    return at::Tensor(at::detail::empty_strided_generic(sizes, steps, &result_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                        scalar_type(type.dtype)));
  if (current && *current == device_of(type.device)) {  // without the dispatcher, which is felt where there are hundreds
    const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
    return at::Tensor(at::detail::empty_strided_generic(sizes, steps, &cuda_allocator(), keys, scalar_type(type.dtype)));
  }
  return at::empty_strided(sizes, steps, at::TensorOptions().dtype(scalar_type(type.dtype)).device(device_of(type.device)));
}

}  // namespace

Runner::Runner(std::shared_ptr<const Executable> executable, std::vector<size_t> takes, std::vector<size_t> gives,
               const std::vector<int>& written, bool steady)
    : executable_(std::move(executable)), takes_(std::move(takes)), gives_(std::move(gives)), input_buffers_(takes_.size(), -1) {
  const auto& buffers = executable_->schedule().buffers;
  for (size_t b = 0; b < buffers.size(); ++b)
    if (buffers[b].kind == Buffer::Kind::input && buffers[b].version == 0)
      input_buffers_[static_cast<size_t>(buffers[b].index)] = static_cast<int>(b);
  for (const Buffer& b : buffers)
    if (!device_ && is_accelerator(b.type.device)) device_ = device_of(b.type.device);
  is_steady_ = steady && device_ && executable_->is_recorded();
  const ExecutableStats& stats = executable_->stats();
  calls_aten_ = device_ || stats.contractions > 0 || !stats.externs.empty();
  for (size_t i = 0; i < takes_.size(); ++i) {
    if (input_buffers_[i] < 0) continue;
    touched_.emplace_back(static_cast<uint32_t>(takes_[i]), static_cast<uint32_t>(input_buffers_[i]));
    if (std::find(written.begin(), written.end(), static_cast<int>(takes_[i])) != written.end()) written_.push_back(touched_.back());
  }
}

bool Runner::reads_unpacked(size_t taken, const WeightPacks& packs) const {
  const auto at = std::find(takes_.begin(), takes_.end(), taken);
  if (at == takes_.end()) return true;  // another stage may
  const auto input = static_cast<int>(at - takes_.begin());
  const int buffer = input_buffers_[static_cast<size_t>(input)];
  int64_t reads = 0, packed = 0;
  for (const Step& s : executable_->schedule().steps) reads += std::count(s.reads.begin(), s.reads.end(), buffer);
  for (const auto& p : executable_->packables()) packed += p.input == input && packs[static_cast<size_t>(p.contraction)].data;
  const auto& outputs = executable_->schedule().output_buffers;
  return reads != packed || std::find(outputs.begin(), outputs.end(), buffer) != outputs.end();
}

void Runner::run(const RunInputs& values, const std::vector<int64_t>& symbols, const WeightPacks* packs,
                 std::vector<at::Tensor>& made) const {
  const Schedule& schedule = executable_->schedule();
  const c10::OptionalDeviceGuard on(device_);
  std::optional<SteadyMemory> memory;
  if (is_steady_) memory.emplace(*device_);
  ExternState host;
  bool externs = !executable_->stats().externs.empty();
  if (externs) host.tensors.resize(schedule.buffers.size());  // otherwise nobody asks for them
  Frame frame;
  frame.executable = executable_.get();
  frame.symbols = symbols;
  frame.data.assign(schedule.buffers.size(), nullptr);
  frame.threads = &kThreads;
  const std::optional<DeviceUse> use = device_ ? device_use(*device_) : std::nullopt;
  if (use) frame.devices = {&*use, 1};
  frame.host = &host;
  frame.release = release_extern_result;
  frame.record_calls = make_recorded_calls;
  frame.packs = packs;
  for (auto [value, buffer] : touched_) {
    frame.data[buffer] = const_cast<void*>(values.addresses[value]);
    if (externs) host.tensors[buffer] = *values.tensors[value];
  }
  for (auto [value, buffer] : written_) frame.data[buffer] = values.tensors[value]->mutable_data_ptr();
  for (size_t i = 0; i < gives_.size(); ++i) {
    auto b = static_cast<size_t>(schedule.output_buffers[i]);
    const Buffer& buffer = schedule.buffers[b];
    if (buffer.kind != Buffer::Kind::output) continue;
    at::Tensor& output = made[gives_[i]];
    output = new_tensor(buffer.type, buffer.strides, frame.symbols, use ? device_ : std::nullopt);
    frame.data[b] = output.data_ptr();
    if (externs) host.tensors[b] = output;
  }
  if (calls_aten_) {
    at::AutoDispatchBelowADInplaceOrView guard;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    executable_->run(frame);
  } else {
    executable_->run(frame);
  }
  if (externs)  // which made some of them
    for (size_t i = 0; i < gives_.size(); ++i)
      if (auto b = static_cast<size_t>(schedule.output_buffers[i]); schedule.buffers[b].kind != Buffer::Kind::input)
        made[gives_[i]] = host.tensors[b];
}

}  // namespace broach
