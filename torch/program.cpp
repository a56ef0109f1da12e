#include "program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <chrono>

#include "compat.h"
#include "externs.h"
#include "passes/passes.h"
#include "support/error.h"
#include "weights.h"

namespace broach {

namespace {

class AtenThreads : public Threads {
 public:
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) const override {
    at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) { body(begin, end); });
  }
};

const AtenThreads kThreads;

class Stopwatch {
 public:
  explicit Stopwatch(ProgramStats& stats) : stats_(stats), start_(std::chrono::steady_clock::now()) {}
  void lap(const char* name) {
    auto now = std::chrono::steady_clock::now();
    stats_.seconds.push_back({name, std::chrono::duration<double>(now - start_).count()});
    start_ = now;
  }
  void skip() { start_ = std::chrono::steady_clock::now(); }

 private:
  ProgramStats& stats_;
  std::chrono::steady_clock::time_point start_;
};

std::vector<int64_t> numbers(const Shape& s) {
  std::vector<int64_t> out;
  for (const SymInt& e : s) out.push_back(e.constant());
  return out;
}

c10::SmallVector<int64_t, 6> evaluate(const Shape& s, std::span<const int64_t> symbols) {
  c10::SmallVector<int64_t, 6> out;
  for (const SymInt& e : s) out.push_back(e.eval(symbols));
  return out;
}

at::Tensor new_tensor(const Type& type, const Shape& strides, std::span<const int64_t> symbols) {
  return at::detail::empty_strided_cpu(evaluate(type.shape, symbols), evaluate(strides, symbols), scalar_type(type.dtype));
}

}  // namespace

CompiledProgram::CompiledProgram(const Trace& trace, std::vector<at::Tensor> lifted, const std::vector<bool>& constant_inputs, const ProgramOptions& options)
    : lifted_(std::move(lifted)), given_(trace.inputs.size() - lifted_.size()) {
  Stopwatch watch(stats_);
  const Target* target = cpu_target();
  if (!target) unsupported("this build has no CPU target (LLVM)");
  program_ = functionalize(trace, {[&](DType t) { return target->has_contractions(t); }, options.lower});
  watch.lap("functionalise");
  auto graph = std::make_shared<const Graph>(run_passes(*program_.graph, options.disabled_passes, &stats_.seconds));
  program_.graph = graph;
  stats_.graph_text = graph->str();
  watch.skip();
  Schedule schedule = make_schedule(graph, program_.input_strides, program_.requests, {options.strict, options.fuse});
  watch.lap("schedule");
  stats_.schedule_text = schedule.str();
  watch.skip();
  executable_ = std::make_shared<const Executable>(std::move(schedule), *target, CompileSettings{options.strict, options.compile_threads, options.progress}, make_extern);
  watch.lap("generate code");
  for (size_t i = 0; i < trace.inputs.size(); ++i) {
    const TraceTensor& t = trace.tensors[static_cast<size_t>(trace.inputs[i])];
    guards_.push_back({scalar_type(t.type.dtype), c10::Device(c10::kCPU), numbers(t.type.shape), numbers(t.strides)});
  }
  const auto& buffers = executable_->schedule().buffers;
  input_buffers_.assign(trace.inputs.size(), -1);
  for (size_t b = 0; b < buffers.size(); ++b)
    if (buffers[b].kind == Buffer::Kind::input) input_buffers_[static_cast<size_t>(buffers[b].index)] = static_cast<int>(b);
  output_buffers_ = executable_->schedule().output_buffers;
  stats_.code = executable_->stats();
  stats_.picks = executable_->picks({});
  stats_.arena_bytes = executable_->memory_plan({}).bytes;
  std::vector<bool> constant = constant_inputs;
  constant.resize(given_, false);
  constant.resize(trace.inputs.size(), true);  // lifted tensors stay the same
  if (options.freeze) weights_ = std::make_unique<Weights>(executable_, constant);
}

CompiledProgram::~CompiledProgram() = default;

bool CompiledProgram::accepts(at::TensorList inputs, std::string* why) const {
  auto differs = [&](size_t i, const auto&... what) {
    if (why) *why = cat("input ", i, what...);
    return false;
  };
  if (inputs.size() != given_) return differs(inputs.size(), ": the number of inputs differs");
  for (size_t i = 0; i < given_; ++i) {
    const at::Tensor& t = inputs[i];
    const InputGuard& g = guards_[i];
    if (!t.defined() || t.layout() != c10::kStrided || t.is_conj() || t.is_neg() || t.unsafeGetTensorImpl()->is_python_dispatch()) return differs(i, " is no plain tensor");
    if (t.scalar_type() != g.dtype) return differs(i, ": element type was ", c10::toString(g.dtype), ", is ", c10::toString(t.scalar_type()));
    if (t.device() != g.device) return differs(i, ": device was ", g.device.str(), ", is ", t.device().str());
    if (t.sizes() != c10::IntArrayRef(g.sizes)) return differs(i, ": sizes were ", c10::IntArrayRef(g.sizes), ", are ", t.sizes());
    if (t.strides() != c10::IntArrayRef(g.strides)) return differs(i, ": strides were ", c10::IntArrayRef(g.strides), ", are ", t.strides());
  }
  for (size_t i = 0; i < lifted_.size(); ++i) {
    const at::Tensor& t = lifted_[i];
    const InputGuard& g = guards_[given_ + i];
    if (t.scalar_type() != g.dtype || t.sizes() != c10::IntArrayRef(g.sizes) || t.strides() != c10::IntArrayRef(g.strides)) return differs(given_ + i, ": a tensor that the program holds changed its type or sizes");
    if (t.requires_grad() && c10::GradMode::is_enabled()) return differs(given_ + i, ": a tensor that the program holds needs gradients now");
  }
  for (int m : program_.mutated_inputs) {
    if (static_cast<size_t>(m) >= given_) continue;
    for (size_t i = 0; i < given_; ++i)
      if (static_cast<int>(i) != m && inputs[i].storage().unsafeGetStorageImpl() == inputs[static_cast<size_t>(m)].storage().unsafeGetStorageImpl())
        return differs(i, " shares memory with input ", m, ", which is written");
  }
  return true;
}

std::vector<at::Tensor> CompiledProgram::run(at::TensorList inputs) const {
  std::vector<at::Tensor> all;
  if (!lifted_.empty()) {
    all.assign(inputs.begin(), inputs.end());
    all.insert(all.end(), lifted_.begin(), lifted_.end());
    inputs = all;
  }
  const Schedule& schedule = executable_->schedule();
  HostState host;
  host.tensors.resize(schedule.buffers.size());
  Frame frame;
  frame.executable = executable_.get();
  frame.data.assign(schedule.buffers.size(), nullptr);
  frame.threads = &kThreads;
  frame.host = &host;
  frame.release = release_extern_result;
  std::shared_ptr<const Weights::Packs> packs = weights_ ? weights_->current(inputs, frame.symbols) : nullptr;
  frame.packs = packs.get();
  bool externs = !stats_.code.externs.empty();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (input_buffers_[i] < 0) continue;
    auto b = static_cast<size_t>(input_buffers_[i]);
    frame.data[b] = const_cast<void*>(inputs[i].const_data_ptr());
    if (externs) host.tensors[b] = inputs[i];
  }
  for (int m : program_.mutated_inputs) frame.data[static_cast<size_t>(input_buffers_[static_cast<size_t>(m)])] = inputs[static_cast<size_t>(m)].mutable_data_ptr();
  for (int b : output_buffers_) {
    const Buffer& buffer = schedule.buffers[static_cast<size_t>(b)];
    if (buffer.kind != Buffer::Kind::output) continue;
    at::Tensor t = new_tensor(buffer.type, buffer.strides, frame.symbols);
    frame.data[static_cast<size_t>(b)] = t.data_ptr();
    host.tensors[static_cast<size_t>(b)] = std::move(t);
  }
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    executable_->run(frame);
  }
  for (int m : program_.mutated_inputs)
    if (!inputs[static_cast<size_t>(m)].is_inference()) inputs[static_cast<size_t>(m)].unsafeGetTensorImpl()->bump_version();
  std::vector<at::Tensor> results;
  results.reserve(program_.results.size());
  for (const ResultSpec& r : program_.results) {
    using K = ResultSpec::Kind;
    if (r.kind == K::none) results.emplace_back();
    else if (r.kind == K::input) results.push_back(inputs[static_cast<size_t>(r.index)]);
    else if (r.kind == K::view_of_input) {
      const at::Tensor& base = inputs[static_cast<size_t>(r.index)];
      results.push_back(base.as_strided(evaluate(r.type.shape, frame.symbols), evaluate(r.strides, frame.symbols), base.storage_offset() + r.offset.eval(frame.symbols)));
    } else {
      const at::Tensor& base = host.tensors[static_cast<size_t>(output_buffers_[static_cast<size_t>(r.index)])];
      results.push_back(r.kind == K::fresh ? base : base.as_strided(evaluate(r.type.shape, frame.symbols), evaluate(r.strides, frame.symbols), r.offset.eval(frame.symbols)));
    }
  }
  return results;
}

ProgramStats CompiledProgram::stats() const {
  ProgramStats s = stats_;
  if (weights_) s.packed_bytes = weights_->bytes();
  for (size_t i = 0; i < given_; ++i)
    s.guards.push_back(cat("input ", i, ": ", c10::toString(guards_[i].dtype), " ", c10::IntArrayRef(guards_[i].sizes), " strides ", c10::IntArrayRef(guards_[i].strides)));
  return s;
}

}  // namespace broach
