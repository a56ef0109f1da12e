#include "recorded_calls.h"

#include <ATen/Context.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string_view>

#include "compat.h"
#include "cuda.h"
#include "externs.h"
#include "support/error.h"
#include "support/log.h"
#include "trace/mutations.h"

namespace broach {

namespace {

MakeMemoryPool& pools() {
  static MakeMemoryPool make;
  return make;
}

thread_local bool is_recording = false;
thread_local MemoryPool* steady = nullptr;  // in which this thread is

// Torch ends the process where a pool is destroyed while any thread takes memory from another. So one that is no longer needed goes when
// none of ours is entered, and until then waits; nobody waits for another thread, which may want Python's lock.
class PoolsInUse {
 public:
  static PoolsInUse& get() {
    static auto* in_use = new PoolsInUse;  // pools may outlive whatever is destroyed at the end
    return *in_use;
  }

  // False while some are being destroyed.
  bool enter(MemoryPool& pool) {
    int count = count_.load();
    do
      if (count < 0) return false;
    while (!count_.compare_exchange_weak(count, count + 1));
    try {
      pool.enter();
    } catch (...) {
      --count_;
      throw;
    }
    return true;
  }
  void leave(MemoryPool& pool) noexcept {
    pool.leave();
    --count_;
  }
  void drop(std::unique_ptr<MemoryPool> pool) {
    std::vector<std::unique_ptr<MemoryPool>> dropped;
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(pool));
      int none = 0;
      if (!count_.compare_exchange_strong(none, -1)) return;
      dropped.swap(waiting_);
    }
    dropped.clear();
    count_ = 0;
  }

 private:
  std::atomic<int> count_{0};  // -1: some are being destroyed
  std::mutex mutex_;
  std::vector<std::unique_ptr<MemoryPool>> waiting_;
};

class InPool {
 public:
  explicit InPool(MemoryPool& pool) : pool_(pool) {
    if (!PoolsInUse::get().enter(pool_)) fail("pools of memory are being destroyed");
    is_recording = true;
  }
  ~InPool() {
    is_recording = false;
    PoolsInUse::get().leave(pool_);
  }
  InPool(const InPool&) = delete;
  InPool& operator=(const InPool&) = delete;

 private:
  MemoryPool& pool_;
};

// Pools of recordings. One is shared by those of a queue, which run in turn, but for recordings that are being made at the same time.
class SharedPools {
 public:
  struct Pool {
    explicit Pool(std::unique_ptr<MemoryPool> own) : memory(std::move(own)) {}
    ~Pool() { PoolsInUse::get().drop(std::move(memory)); }
    std::unique_ptr<MemoryPool> memory;
    bool is_recording = true, has_room = false;
  };

  static SharedPools& get() {
    static auto* shared = new SharedPools;
    return *shared;
  }

  // For a recording that begins. Null: there are no pools.
  std::shared_ptr<Pool> begin(c10::Device device, void* queue) {
    if (auto known = find(device, queue)) return known;
    auto memory = pools()(device, false);  // may wait for Python's lock
    if (!memory) return nullptr;
    auto made = std::make_shared<Pool>(std::move(memory));
    const std::lock_guard lock(mutex_);
    pools_[{device.index(), queue}].push_back(made);
    return made;
  }
  void end(Pool& pool) {
    const std::lock_guard lock(mutex_);
    pool.is_recording = false;
  }

 private:
  std::shared_ptr<Pool> find(c10::Device device, void* queue) {
    std::vector<std::shared_ptr<Pool>> seen;  // is gone after the lock is, as the last one to hold a pool may wait for Python's
    const std::lock_guard lock(mutex_);
    auto& known = pools_[{device.index(), queue}];
    std::erase_if(known, [](const std::weak_ptr<Pool>& p) { return p.expired(); });
    for (const std::weak_ptr<Pool>& p : known) {
      auto pool = seen.emplace_back(p.lock());
      if (pool && !std::exchange(pool->is_recording, true)) return pool;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, void*>, std::vector<std::weak_ptr<Pool>>> pools_;
};

class AtenRecordedCalls : public RecordedCalls {
 public:
  AtenRecordedCalls(c10::Device device, std::shared_ptr<SharedPools::Pool> pool, int64_t made_bytes)
      : device_(device), made_bytes_(made_bytes), pool_(std::move(pool)) {}
  ~AtenRecordedCalls() override {
    const OutOfSteadyMemory out;
    kept_.clear();
    finish();
    pool_ = nullptr;
  }

  void finish() override {
    if (std::exchange(is_finished_, true)) return;
    SharedPools::get().end(*pool_);
  }

  void run(void* queue, const std::function<void()>& call) override {
    // A stream that torch has not made is known to it by its address.
    const c10::Stream stream(c10::Stream::UNSAFE, device_, static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(queue)));
    const c10::StreamGuard on(stream);
    const OutOfSteadyMemory out;
    const InPool in(*pool_->memory);
    try {
      make_room();
      call();
    } catch (const c10::Error& e) {  // it waits, or draws, or there is no memory for it
      fail("a call of libtorch's cannot be recorded: ", e.what_without_backtrace());
    }
  }

  void keep(Frame& frame, int buffer) override {
    at::Tensor& given = static_cast<ExternState*>(frame.host)->tensors[static_cast<size_t>(buffer)];
    if (given.defined()) kept_.emplace_back(buffer, given);
  }

  // As few launches as there are types of elements.
  void give(Frame& frame) const override {
    std::map<std::pair<c10::DeviceType, c10::ScalarType>, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> copies;
    for (const auto& [buffer, from] : kept_) {
      at::Tensor to = at::empty_strided(from.sizes(), from.strides(), from.options());
      frame.data[static_cast<size_t>(buffer)] = to.data_ptr();
      auto& [to_all, from_all] = copies[{from.device().type(), from.scalar_type()}];
      to_all.push_back(to), from_all.push_back(from);
      static_cast<ExternState*>(frame.host)->tensors[static_cast<size_t>(buffer)] = std::move(to);
    }
    for (auto& [kind, tensors] : copies) at::_foreach_copy_(tensors.first, tensors.second);
  }

 private:
  // Torch gets 20 MiB for a piece of less than ten. Where a program's are much smaller, less will do.
  void make_room() const {
    constexpr size_t kLeast = size_t{10} << 20;
    const auto bytes = static_cast<size_t>(made_bytes_);
    if (bytes == 0 || 2 * bytes > kLeast || std::exchange(pool_->has_room, true)) return;
    cuda_allocator().raw_deallocate(cuda_allocator().raw_allocate(kLeast));
  }

  c10::Device device_;
  int64_t made_bytes_;
  std::shared_ptr<SharedPools::Pool> pool_;
  bool is_finished_ = false;
  std::vector<std::pair<int, at::Tensor>> kept_;  // freed before the pool is
};

// Beside those of kManyLaunches; and convolutions are further down, as not all of their kernels will do.
constexpr std::string_view kRecordable[] = {
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::cudnn_batch_norm",
    "aten::cudnn_batch_norm_backward",
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
    "aten::max_pool2d_with_indices",
    "aten::max_pool2d_with_indices_backward",
    "aten::avg_pool2d",
    "aten::avg_pool2d_backward",
    "aten::_adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool2d_backward",
    "aten::upsample_nearest2d",
    "aten::upsample_nearest2d_backward",
    "aten::upsample_bilinear2d",
    "aten::cat",
    "aten::embedding",
    "aten::embedding_dense_backward",
    "aten::index_select",
    "aten::index.Tensor",
    "aten::index_put",
    "aten::_index_put_impl",
    "aten::gather",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::scatter_add",
    "aten::index_add",
    "aten::sort",
    "aten::sort.stable",
    "aten::topk",
    "aten::cumsum",
    "aten::cumprod",
    "aten::_embedding_bag",
    "aten::_embedding_bag_backward",
    "aten::_grouped_mm",
    "aten::empty_like",
    "aten::zeros_like",
    "aten::ones_like",
    "aten::full_like",
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::new_zeros",
    "aten::new_ones",
    "aten::new_full",
    "aten::scalar_tensor",
    "aten::tril_indices",
    "aten::triu_indices",
    "aten::arange",
    "aten::arange.start",
    "aten::arange.start_step",
};

constexpr std::string_view kManyLaunches[] = {
    "aten::lstm.input",
    "aten::gru.input",
    "aten::_cudnn_rnn",
    "aten::_cudnn_rnn_backward",
    "aten::_native_multi_head_attention",
    "aten::_transformer_encoder_layer_fwd",
};

// cuDNN's. Others are made of products of cuBLAS's, whose memory outlives the recording and is found again by its queue.
bool is_library_convolution(const ExternCall& call, std::span<const Operand> operands) {
  if (call.schema != "aten::convolution" && call.schema != "aten::convolution_backward") return false;
  const auto& context = at::globalContext();
  if (!context.hasCuDNN() || !context.userEnabledCuDNN()) return false;
  return std::ranges::all_of(operands, [](const Operand& o) {
    const bool is_float = o.type.dtype == DType::f32 || o.type.dtype == DType::f16 || o.type.dtype == DType::bf16;
    return is_float && o.type.rank() <= 4;
  });
}

// Whether it draws random numbers for its dropout.
bool may_drop_out(const ExternCall& call) {
  const c10::FunctionSchema& schema = find_operation(call.schema).schema();
  bool may = false;
  for (size_t i = 0; i < call.args.size(); ++i) {
    const std::string& name = schema.arguments().at(i).name();
    const auto* number = std::get_if<Scalar>(&call.args[i].value);
    const auto* integer = std::get_if<SymInt>(&call.args[i].value);
    const bool is_zero = (number && as_double(*number) == 0) || (integer && *integer == SymInt(0));
    if (name == "train" && is_zero) return false;
    if (name == "dropout_p" || name == "dropout") may = !is_zero;
  }
  return may;
}

// Read on the host, or known to nobody here.
bool is_opaque(const ExternArg& a) {
  return std::holds_alternative<ExternArg::InputNumber>(a.value) || std::holds_alternative<ExternArg::Opaque>(a.value);
}

}  // namespace

OutOfSteadyMemory::OutOfSteadyMemory() : pool_(std::exchange(steady, nullptr)) {
  if (pool_) PoolsInUse::get().leave(*pool_);
}

OutOfSteadyMemory::~OutOfSteadyMemory() {
  if (!pool_) return;
  try {
    if (PoolsInUse::get().enter(*pool_)) steady = pool_;
  } catch (const Error& e) {  // the rest of the run takes memory as ever
    log_debug(e.what());
  }
}

bool is_recording_calls() { return is_recording; }

void set_memory_pools(MakeMemoryPool make) { pools() = std::move(make); }

std::unique_ptr<RecordedCalls> make_recorded_calls(Device device, void* queue, int64_t made_bytes) {
  const c10::Device d = device_of(device);
  if (!pools() || !d.is_cuda()) return nullptr;
  auto pool = SharedPools::get().begin(d, queue);
  return pool ? std::make_unique<AtenRecordedCalls>(d, std::move(pool), made_bytes) : nullptr;
}

struct SteadyMemory::Pool {
  std::mutex mutex;
  std::unique_ptr<MemoryPool> pool;
  bool is_refused = false;
};

SteadyMemory::Pool& SteadyMemory::pool_of(c10::Device device) {
  static std::mutex mutex;
  static auto* pools = new std::map<c10::DeviceIndex, Pool>;  // never freed: the device's library may be gone before
  const std::lock_guard lock(mutex);
  return (*pools)[device.index()];
}

// Never waits for another thread, which may wait for Python's lock that this one holds.
SteadyMemory::SteadyMemory(c10::Device device) {
  if (steady || !pools() || !device.is_cuda()) return;
  Pool& p = pool_of(device);
  if (!p.mutex.try_lock()) return;
  try {
    if (!p.pool && !p.is_refused) p.pool = pools()(device, true);
    if (p.pool && PoolsInUse::get().enter(*p.pool)) steady = p.pool.get();
  } catch (const Error& e) {
    log_debug(e.what());
    p.is_refused = true, p.pool = nullptr;
  }
  if (steady) entered_ = &p;
  else p.mutex.unlock();
}

SteadyMemory::~SteadyMemory() {
  if (!entered_) return;
  if (steady) PoolsInUse::get().leave(*steady);
  steady = nullptr;
  entered_->mutex.unlock();
}

bool launches_many(const ExternCall& call) { return std::ranges::find(kManyLaunches, call.schema) != std::end(kManyLaunches); }

bool is_recordable(const ExternStep& step, const Schedule& schedule, bool given) {
  const ExternCall& call = step.operation.call();
  // Bytes whose copy takes less than launching the call does, and that are there twice.
  const int64_t most_given = int64_t{launches_many(call) ? 64 : 4} << 20;
  bool is_out = false;
  const auto names = functional_names(call.schema, &is_out);  // what writes its operand is given a copy of it
  const std::string_view name = names.empty() || is_out ? std::string_view(call.schema) : names[0];
  const bool is_listed = std::ranges::find(kRecordable, name) != std::end(kRecordable) || launches_many(call);
  if (!pools() || (!is_listed && !is_library_convolution(call, step.operands))) return false;
  auto is_elsewhere = [](const Operand& o) { return o.type.device.kind != DeviceKind::cuda; };
  auto is_mask = [](const Operand& o) { return o.type.dtype == DType::b1 || o.type.dtype == DType::u8; };
  if (std::ranges::any_of(step.operands, is_elsewhere) || std::ranges::any_of(call.args, is_opaque)) return false;
  // What a mask selects is counted on the host.
  if (name.find("index") != name.npos && std::ranges::any_of(step.operands, is_mask)) return false;
  if (may_drop_out(call)) return false;
  int64_t bytes = 0;
  for (int b : step.results) {
    if (b < 0 || !given) continue;
    const Buffer& buffer = schedule.buffers[static_cast<size_t>(b)];
    bytes += buffer.elements.is_constant() ? buffer.elements.constant() * size_of(buffer.type.dtype) : most_given + 1;
  }
  return bytes <= most_given;
}

}  // namespace broach
