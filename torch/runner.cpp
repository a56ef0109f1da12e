#include "runner.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory_resource>
#include <numeric>

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
  int count() const override { return at::in_parallel_region() ? 1 : at::get_num_threads(); }
};

const AtenThreads kThreads;

}  // namespace

// Outputs, intermediates and spent inputs of a run whose memory comes and goes with it.
class Runner::ByStep final : public MemoryByStep {
 public:
  ByStep(const Runner& runner, ExternState* externs, std::vector<at::Tensor>& made, std::span<at::Tensor> spent)
      : runner_(runner), externs_(externs), made_(made), spent_(spent) {}

  void make(Frame& frame, int buffer) override {
    const auto& outputs = runner_.executable_->schedule().output_buffers;
    const auto i = static_cast<size_t>(std::ranges::find(outputs, buffer) - outputs.begin());
    if (runner_.is_element_[i]) return;
    at::Tensor& output = made_[runner_.gives_[i]] = runner_.new_output(i, frame.symbols, false);
    frame.data[static_cast<size_t>(buffer)] = output.data_ptr();
    if (externs_) externs_->tensors[static_cast<size_t>(buffer)] = output;
  }

  void spend(Frame&, int buffer) override {
    if (spent_.empty()) return;
    const auto input = static_cast<size_t>(runner_.executable_->schedule().buffers[static_cast<size_t>(buffer)].index);
    spent_[runner_.takes_[input]] = at::Tensor();
    if (externs_) externs_->tensors[static_cast<size_t>(buffer)] = at::Tensor();
  }

  std::byte* begin(size_t intermediate, int64_t bytes) override {
    intermediates_.resize(std::max(intermediates_.size(), intermediate + 1));
    intermediates_[intermediate] = runner_.allocator().allocate(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    return static_cast<std::byte*>(intermediates_[intermediate].get());
  }

  void end(size_t intermediate) override {
    if (intermediate < intermediates_.size()) intermediates_[intermediate].clear();
  }

 private:
  const Runner& runner_;
  ExternState* externs_;  // null where there are no calls of libtorch's
  std::vector<at::Tensor>& made_;
  std::span<at::Tensor> spent_;
  std::vector<c10::DataPtr> intermediates_;
};

// On the host.
c10::Allocator& Runner::allocator() const { return steps_ ? step_allocator() : result_allocator(); }

// `is_current`: the current CUDA device is this runner's.
at::Tensor Runner::new_output(size_t output, std::span<const int64_t> symbols, bool is_current) const {
  const Schedule& schedule = executable_->schedule();
  const Buffer& buffer = schedule.buffers[static_cast<size_t>(schedule.output_buffers[output])];
  auto sizes = evaluate(buffer.type.shape, symbols), steps = evaluate(buffer.strides, symbols);
  const at::ScalarType type = scalar_type(buffer.type.dtype);
  if (buffer.type.device.kind == DeviceKind::cpu) {
    const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
    return at::Tensor(at::detail::empty_strided_generic(sizes, steps, &allocator(), keys, type));
  }
  if (is_current && *device_ == device_of(buffer.type.device)) {  // without the dispatcher, which is felt where there are hundreds
    const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
    return at::Tensor(at::detail::empty_strided_generic(sizes, steps, &cuda_allocator(), keys, type));
  }
  return at::empty_strided(sizes, steps, at::TensorOptions().dtype(type).device(device_of(buffer.type.device)));
}

// Those whose sizes are known, each where a piece of its own could begin.
Runner::Together Runner::placed_together(const Schedule& schedule, c10::Device device, const std::vector<int>& blocks) {
  constexpr int64_t kAlignment = 512;  // of what torch's allocator gives out
  Together out;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Buffer& b = schedule.buffers[static_cast<size_t>(schedule.output_buffers[i])];
    const auto elements = b.elements.maybe_constant();
    out.places.emplace_back();
    if (blocks[i] < 0 || b.kind != Buffer::Kind::output || device_of(b.type.device) != device || !elements) continue;
    const auto block = static_cast<size_t>(blocks[i]);
    out.bytes.resize(std::max(out.bytes.size(), block + 1));
    out.places.back() = {block, out.bytes[block]};
    out.bytes[block] += (*elements * size_of(b.type.dtype) + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (std::ranges::count_if(out.places, [](const auto& place) { return place.has_value(); }) < 2) return {};
  return out;
}

at::Tensor Runner::output_within(size_t output, std::span<const c10::Storage> blocks) const {
  const auto [block, offset] = *together_.places[output];
  const Schedule& schedule = executable_->schedule();
  const Buffer& buffer = schedule.buffers[static_cast<size_t>(schedule.output_buffers[output])];
  const auto sizes = evaluate(buffer.type.shape, {}), steps = evaluate(buffer.strides, {});
  const auto type = c10::scalarTypeToTypeMeta(scalar_type(buffer.type.dtype));
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(blocks[block]), c10::DispatchKeySet(c10::DispatchKey::CUDA), type);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, steps, offset / size_of(buffer.type.dtype));
  return t;
}

// The largest piece of a device's memory in which spent values lie and nothing else does.
static SpentInputs piece_of(std::span<const at::Tensor> spent, c10::Device device) {
  auto is_alone = [&](const at::Tensor& t) { return t.defined() && t.use_count() == 1 && t.has_storage() && t.device() == device; };
  std::map<const c10::StorageImpl*, size_t> alone;  // how many tensors that nobody else holds
  for (const at::Tensor& t : spent)
    if (is_alone(t)) ++alone[t.storage().unsafeGetStorageImpl()];
  SpentInputs out;
  for (const at::Tensor& t : spent) {
    if (!is_alone(t)) continue;
    const c10::Storage& storage = t.storage();
    const auto bytes = static_cast<int64_t>(storage.nbytes());
    const bool is_torchs = storage.allocator() == &cuda_allocator() && storage.data_ptr().get_deleter() == cuda_allocator().raw_deleter();
    if (is_torchs && bytes > out.bytes && storage.use_count() == alone[storage.unsafeGetStorageImpl()])
      out = {device_of(device), static_cast<std::byte*>(storage.data_ptr().get()), bytes};
  }
  return out;
}

Runner::Runner(std::shared_ptr<const Executable> executable, std::vector<size_t> takes, std::vector<size_t> gives,
               const std::vector<int>& written, bool steady, const std::vector<int>& blocks)
    : executable_(std::move(executable)), takes_(std::move(takes)), gives_(std::move(gives)), input_buffers_(takes_.size(), -1) {
  const auto& buffers = executable_->schedule().buffers;
  for (size_t b = 0; b < buffers.size(); ++b)
    if (buffers[b].kind == Buffer::Kind::input && buffers[b].version == 0)
      input_buffers_[static_cast<size_t>(buffers[b].index)] = static_cast<int>(b);
  for (const Buffer& b : buffers)
    if (!device_ && is_accelerator(b.type.device)) device_ = device_of(b.type.device);
  is_steady_ = steady && device_ && executable_->is_recorded();
  is_element_.resize(gives_.size());
  for (size_t i = 0; i < blocks.size(); ++i) is_element_[i] = blocks[i] == kElement;
  order_.resize(gives_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (is_steady_) {
    together_ = placed_together(executable_->schedule(), *device_, blocks);
    // Large ones first leave less of torch's segments over.
    std::ranges::stable_sort(order_, std::ranges::greater(), [&](size_t i) {
      const Buffer& b = buffers[static_cast<size_t>(executable_->schedule().output_buffers[i])];
      return b.elements.maybe_constant().value_or(0) * size_of(b.type.dtype);
    });
  }
  if (steady && executable_->works_by_step()) steps_.emplace();
  const ExecutableStats& stats = executable_->stats();
  calls_aten_ = device_ || stats.contractions > 0 || !stats.externs.empty();
  for (size_t i = 0; i < takes_.size(); ++i) {
    if (input_buffers_[i] < 0) continue;
    const size_t value = takes_[i];
    const auto buffer = static_cast<size_t>(input_buffers_[i]);
    Touched* last = touched_.empty() ? nullptr : &touched_.back();
    if (last && value == last->value + last->count && buffer == last->buffer + last->count) ++last->count;
    else touched_.push_back({value, buffer, 1});
    if (std::ranges::find(written, static_cast<int>(value)) != written.end()) written_.emplace_back(value, buffer);
  }
}

bool Runner::reads_unpacked(size_t taken, const WeightPacks& packs) const {
  const auto at = std::find(takes_.begin(), takes_.end(), taken);
  if (at == takes_.end()) return true;  // another stage may
  const auto input = static_cast<int>(at - takes_.begin());
  const int buffer = input_buffers_[static_cast<size_t>(input)];
  int64_t reads = 0, packed = 0;
  for (const Step& s : executable_->schedule().steps) {
    reads += std::count(s.reads.begin(), s.reads.end(), buffer);
    if (const auto* kernel = std::get_if<KernelStep>(&s.work)) reads += std::ranges::count(kernel->numbers, input, &KernelNumber::input);
  }
  for (const auto& p : executable_->packables()) packed += p.input == input && packs[static_cast<size_t>(p.contraction)].data;
  const auto& outputs = executable_->schedule().output_buffers;
  return reads != packed || std::find(outputs.begin(), outputs.end(), buffer) != outputs.end();
}

// What the front provides: torch's queue and memory of its device, and the host's memory while torch's profilers look. Gives how many.
static size_t device_uses(const std::optional<DeviceUse>& own, std::array<DeviceUse, 2>& out) {
  size_t count = 0;
  if (own) out[count++] = *own;
  if (Memory* memory = reported_host_memory()) out[count++] = {{}, nullptr, memory};
  return count;
}

void Runner::run(const RunInputs& values, const std::vector<int64_t>& symbols, const WeightPacks* packs, std::vector<at::Tensor>& made,
                 std::span<at::Tensor> spent, std::span<int64_t> elements) const {
  const Schedule& schedule = executable_->schedule();
  const c10::OptionalDeviceGuard on(is_current_ ? std::nullopt : device_);
  std::optional<SteadyMemory> memory;
  if (is_steady_) memory.emplace(*device_);
  if (steps_) steps_->begin_run();
  ExternState host;
  bool externs = !executable_->stats().externs.empty();
  if (externs) host.tensors.resize(schedule.buffers.size());  // otherwise nobody asks for them
  std::byte room[RunInputs::kMany * sizeof(void*)];
  std::pmr::monotonic_buffer_resource near(room, sizeof room);
  Frame frame{.executable = executable_.get(), .symbols = symbols, .data{schedule.buffers.size(), nullptr, &near}};
  frame.threads = &kThreads;
  const std::optional<DeviceUse> use = device_ ? device_use(*device_) : std::nullopt;
  std::array<DeviceUse, 2> uses;
  frame.devices = {uses.data(), device_uses(use, uses)};
  if (!spent.empty() && use) frame.spent = piece_of(spent, *device_);  // before calls of libtorch's hold what they are given
  frame.host = &host;
  frame.release = release_extern_result;
  frame.record_calls = make_recorded_calls;
  frame.packs = packs;
  for (auto [value, buffer, count] : touched_) {
    std::memcpy(&frame.data[buffer], &values.addresses[value], count * sizeof(void*));
    for (size_t i = 0; externs && i < count; ++i) host.tensors[buffer + i] = *values.tensors[value + i];
  }
  for (auto [value, buffer] : written_) frame.data[buffer] = values.tensors[value]->mutable_data_ptr();
  ByStep by_step(*this, externs ? &host : nullptr, made, spent);
  if (steps_) frame.by_step = &by_step;
  std::vector<c10::Storage> blocks;
  for (size_t i = 0; use && i < together_.bytes.size(); ++i) {
    const auto bytes = static_cast<size_t>(together_.bytes[i]);
    blocks.emplace_back(c10::Storage::use_byte_size_t(), bytes, cuda_allocator().allocate(bytes), &cuda_allocator());
  }
  for (size_t i : order_) {
    auto b = static_cast<size_t>(schedule.output_buffers[i]);
    if (is_element_[i]) frame.data[b] = &elements[gives_[i]];
    if (frame.by_step || is_element_[i] || schedule.buffers[b].kind != Buffer::Kind::output) continue;
    at::Tensor& output = made[gives_[i]];
    const bool is_within = !blocks.empty() && together_.places[i];
    output = is_within ? output_within(i, blocks) : new_output(i, frame.symbols, use.has_value());
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
  for (size_t i = 0; i < gives_.size(); ++i) {
    const auto b = static_cast<size_t>(schedule.output_buffers[i]);
    at::Tensor& output = made[gives_[i]];
    if (externs && host.tensors[b].defined() && schedule.buffers[b].kind != Buffer::Kind::input)
      output = host.tensors[b];  // may be its own
    const bool is_by_step = frame.by_step && schedule.buffers[b].kind == Buffer::Kind::output && !is_element_[i];
    if (is_by_step && !output.defined()) output = new_output(i, frame.symbols, false);  // has no element: no step writes it
  }
}

}  // namespace broach
