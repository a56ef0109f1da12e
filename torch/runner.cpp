#include "runner.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

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
  if (type.device.kind == DeviceKind::cpu) return at::detail::empty_strided_cpu(sizes, steps, scalar_type(type.dtype));
  if (current && *current == device_of(type.device)) {  // without the dispatcher, which is felt where there are hundreds
    const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
    return at::Tensor(at::detail::empty_strided_generic(sizes, steps, &cuda_allocator(), keys, scalar_type(type.dtype)));
  }
  return at::empty_strided(sizes, steps, at::TensorOptions().dtype(scalar_type(type.dtype)).device(device_of(type.device)));
}

}  // namespace

Runner::Runner(std::shared_ptr<const Executable> executable, size_t inputs)
    : executable_(std::move(executable)), input_buffers_(inputs, -1) {
  const auto& buffers = executable_->schedule().buffers;
  for (size_t b = 0; b < buffers.size(); ++b)
    if (buffers[b].kind == Buffer::Kind::input && buffers[b].version == 0)
      input_buffers_[static_cast<size_t>(buffers[b].index)] = static_cast<int>(b);
  for (const Buffer& b : buffers)
    if (!device_ && is_accelerator(b.type.device)) device_ = device_of(b.type.device);
  const ExecutableStats& stats = executable_->stats();
  calls_aten_ = device_ || stats.contractions > 0 || !stats.externs.empty();
  for (size_t i = 0; i < inputs; ++i)
    if (input_buffers_[i] >= 0) touched_.emplace_back(static_cast<uint32_t>(i), static_cast<uint32_t>(input_buffers_[i]));
}

bool Runner::reads_unpacked(int input, const WeightPacks& packs) const {
  int buffer = input_buffers_[static_cast<size_t>(input)];
  int64_t reads = 0, packed = 0;
  for (const Step& s : executable_->schedule().steps) reads += std::count(s.reads.begin(), s.reads.end(), buffer);
  for (const auto& p : executable_->packables()) packed += p.input == input && packs[static_cast<size_t>(p.contraction)].data;
  const auto& outputs = executable_->schedule().output_buffers;
  return reads != packed || std::find(outputs.begin(), outputs.end(), buffer) != outputs.end();
}

std::vector<at::Tensor> Runner::run(const RunInputs& inputs, const std::vector<int64_t>& symbols, const WeightPacks* packs,
                                    const std::vector<int>& mutated) const {
  const Schedule& schedule = executable_->schedule();
  const c10::OptionalDeviceGuard on(device_);
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
  for (auto [input, buffer] : touched_) {
    frame.data[buffer] = const_cast<void*>(inputs.addresses[input]);
    if (externs) host.tensors[buffer] = *inputs.tensors[input];
  }
  for (int m : mutated)
    frame.data[static_cast<size_t>(input_buffers_[static_cast<size_t>(m)])] = inputs.tensors[static_cast<size_t>(m)]->mutable_data_ptr();
  std::vector<at::Tensor> outputs(schedule.output_buffers.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto b = static_cast<size_t>(schedule.output_buffers[i]);
    const Buffer& buffer = schedule.buffers[b];
    if (buffer.kind != Buffer::Kind::output) continue;
    outputs[i] = new_tensor(buffer.type, buffer.strides, frame.symbols, use ? device_ : std::nullopt);
    frame.data[b] = outputs[i].data_ptr();
    if (externs) host.tensors[b] = outputs[i];
  }
  if (calls_aten_) {
    at::AutoDispatchBelowADInplaceOrView guard;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    executable_->run(frame);
  } else {
    executable_->run(frame);
  }
  if (externs)  // which made some of them
    for (size_t i = 0; i < outputs.size(); ++i)
      if (auto b = static_cast<size_t>(schedule.output_buffers[i]); schedule.buffers[b].kind != Buffer::Kind::input)
        outputs[i] = host.tensors[b];
  return outputs;
}

}  // namespace broach
