#include "function.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <tuple>

#include "capture.h"
#include "compat.h"
#include "products.h"
#include "support/error.h"
#include "support/log.h"
#include "symbolic.h"

namespace broach {

Function::Modes Function::Modes::now() {
  Modes m;
  m.grad = c10::GradMode::is_enabled();
  m.inference = c10::InferenceMode::is_enabled();
  m.deterministic = at::globalContext().deterministicAlgorithms();
  m.contractions = contraction_rules();
  m.autocast = at::autocast::is_autocast_enabled(c10::kCPU);
  if (m.autocast) m.autocast_dtype = at::autocast::get_autocast_dtype(c10::kCPU);
  return m;
}

namespace {

// The caller's options under the settings of now.
ProgramOptions options_under(ProgramOptions options, const Function::Modes& modes) {
  const bool pinned = options.settings.contractions.deterministic;
  options.settings.contractions = modes.contractions;
  options.settings.contractions.deterministic |= pinned;
  options.settings.host_contraction = aten_contraction;
  return options;
}

}  // namespace

static bool needs_gradients(const at::Tensor& t) { return t.defined() && t.requires_grad(); }

constexpr const char* kNeedsGradients = "gradients are needed: the program runs eagerly until training is compiled";

Function::Function(Eager eager, std::vector<bool> constant_inputs, ProgramOptions options, size_t limit, OnFailure on_failure)
    : eager_(std::move(eager)), constant_inputs_(std::move(constant_inputs)), options_(std::move(options)), limit_(limit), on_failure_(on_failure), entries_(std::make_shared<const Entries>()) {}

Function::Results Function::operator()(const CallInputs& call) {
  ++calls_;
  Modes modes = Modes::now();
  if (modes.grad && std::any_of(call.tensors.begin(), call.tensors.end(), needs_gradients))
    return run_eager(call, kNeedsGradients);
  if (modes.grad && eager_with_grad_) return run_eager(call, kNeedsGradients);
  if (Capture::current()) return run_eager(call, "called while another program is captured: its operations are part of that one");
  auto entries = entries_.load(std::memory_order_acquire);
  if (auto results = run_compiled(*entries, call, modes)) return std::move(*results);
  if (hopeless_) return run_eager(call, "");
  return capture_and_compile(call, modes);
}

Function::Results Function::run_eager(const CallInputs& call, const std::string& why) {
  note_eager(why);
  std::vector<c10::SymFloat> floats(call.floats.begin(), call.floats.end());
  return eager_(call.tensors, c10::fromIntArrayRefSlow(call.ints), floats);
}

Function::Results Function::give_up(const CallInputs& call, const std::string& why) {
  {
    std::lock_guard lock(stats_mutex_);
    stats_.capture_failure = why;
  }
  return run_eager(call, why);
}

void Function::note_eager(const std::string& why) {
  std::lock_guard lock(stats_mutex_);
  ++stats_.eager_calls;
  auto& reasons = stats_.eager_reasons;
  if (why.empty() || std::find(reasons.begin(), reasons.end(), why) != reasons.end()) return;
  reasons.push_back(why);
  log_info("runs eagerly: ", why);
}

void Function::set_line(std::string line) {
  if (Capture* c = Capture::current()) c->set_line(std::move(line));
}

void Function::reject_capture(std::string why) {
  if (Capture* c = Capture::current()) c->reject(std::move(why));
}

bool Function::is_capturing() { return Capture::current() != nullptr; }

bool Function::is_capturing_symbols() {
  Capture* c = Capture::current();
  return c && c->is_symbolic();
}

std::optional<Function::Results> Function::run_compiled(const Entries& entries, const CallInputs& call, const Modes& modes) {
  Binding binding;
  std::array<std::vector<Scalar>, 2> read;  // on the host, by programs that took another way: without and with stand-ins
  size_t first = last_.load(std::memory_order_relaxed);
  for (size_t k = 0; k < entries.size(); ++k) {
    size_t at = first >= entries.size() ? k : k == 0 ? first : k <= first ? k - 1 : k;  // the last one used first
    const Entry& e = entries[at];
    std::vector<Scalar>& observed = read[e.stand_ins];
    if (!(e.modes == modes) || !e.program->agrees(observed) || !e.program->accepts(call, binding, nullptr)) continue;
    auto tensors = e.program->run(call.tensors, binding, observed);
    if (!tensors) {
      ++other_ways_;
      continue;
    }
    ++compiled_calls_;
    if (at != first) last_.store(at, std::memory_order_relaxed);
    Results r{std::move(*tensors), {}, {}, e.form};
    for (const SymInt& i : e.int_results) r.ints.push_back(i.eval(binding.values.sizes));
    size_t first_number = r.tensors.size() - static_cast<size_t>(std::count_if(e.float_results.begin(), e.float_results.end(), [](const FloatResult& f) { return f.deferred; }));
    for (size_t next = first_number; const FloatResult& f : e.float_results)
      r.floats.emplace_back(f.deferred ? r.tensors[next++].item<double>() : f.id < 0 ? f.constant : binding.values.floats[static_cast<size_t>(f.id)]);
    r.tensors.resize(first_number);
    return r;
  }
  return std::nullopt;
}

void Function::note_recompilation(const Entries& entries, const CallInputs& call, const Modes& modes) {
  if (entries.empty()) return;
  std::string why = "a value that the program computes and reads on the host is another one, or a size that depends on data does not fit";
  if (std::none_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.modes == modes; })) why = "the grad, autocast, precision or other mode differs";
  Binding binding;
  for (const Entry& e : entries)
    if (e.modes == modes) e.program->accepts(call, binding, &why);
  std::lock_guard guard(stats_mutex_);
  stats_.recompilations.push_back(why);
  log_info("recompiles: ", why);
}

// ---- which sizes become symbols ----

namespace {

CallSizes sizes_of(const CallInputs& call) {
  CallSizes out;
  for (const at::Tensor& t : call.tensors) {
    bool plain = t.defined() && t.layout() == c10::kStrided;
    out.sizes.push_back(plain ? t.sizes().vec() : std::vector<int64_t>());
    out.strides.push_back(plain ? t.strides().vec() : std::vector<int64_t>());
  }
  out.ints = call.ints.vec();
  out.floats = call.floats.vec();
  return out;
}

std::vector<c10::ScalarType> dtypes_of(at::TensorList inputs) {
  std::vector<c10::ScalarType> out;
  for (const at::Tensor& t : inputs) out.push_back(t.defined() ? t.scalar_type() : c10::ScalarType::Undefined);
  return out;
}

std::vector<SymInt> plain(c10::ArrayRef<c10::SymInt> ints) {
  std::vector<SymInt> out;
  for (const c10::SymInt& i : ints) out.push_back(integer_of(i));
  return out;
}

}  // namespace

SymbolicSizes Function::symbols_for(const CallInputs& call, const Modes& modes) {
  Seen now{modes, dtypes_of(call.tensors), sizes_of(call)};
  std::vector<CallSizes> calls;
  for (const Seen& s : seen_)
    if (s.modes == now.modes && s.dtypes == now.dtypes && s.sizes.has_form_of(now.sizes) && !(specialise_numbers_ && !s.sizes.has_numbers_of(now.sizes))) calls.push_back(s.sizes);
  calls.push_back(now.sizes);
  seen_.push_back(std::move(now));
  if (options_.dynamic == PipelineOptions::Dynamic::never || specialise_) return generalize({calls.back()}, {});
  std::vector<uint64_t> symbolic = options_.symbolic_dims;
  if (options_.dynamic == PipelineOptions::Dynamic::always) symbolic.assign(call.tensors.size() + 1, ~uint64_t{0});
  for (size_t i = 0; i < std::min(symbolic.size(), constant_inputs_.size()); ++i)
    if (constant_inputs_[i]) symbolic[i] = 0;
  if (specialise_numbers_ && symbolic.size() > call.tensors.size()) symbolic[call.tensors.size()] = 0;
  return generalize(calls, symbolic);
}

// ---- recording ----

Function::Recorded Function::record(const CallInputs& call, const SymbolicSizes* sizes) {
  Recorded out;
  out.capture = std::make_unique<Capture>(call.tensors.vec(), sizes, options_.branches > 0, stand_ins_ == StandIns::given);
  Capture& capture = *out.capture;
  std::vector<c10::SymInt> given;
  if (sizes)
    for (const SymInt& e : out.ints = sizes->ints) given.push_back(program_integer(e, sizes->symbols));
  else
    for (int64_t i : call.ints) given.push_back(i), out.ints.push_back(i);
  std::vector<c10::SymFloat> floats;
  for (size_t k = 0; k < call.floats.size(); ++k) {
    double value = call.floats[k];
    bool constant = !sizes || !sizes->floats[k];
    out.floats.push_back(constant ? std::optional(value) : std::nullopt);
    floats.push_back(constant ? c10::SymFloat(value) : program_float(sizes->symbols->floats.given(k, value), sizes->symbols));
  }
  try {
    capture.run([&] { out.results = eager_(capture.inputs(), given, floats); });
    // Stand-ins know it, what they stand for does not.
    if (sizes && at::GradMode::is_enabled() && std::any_of(out.results.tensors.begin(), out.results.tensors.end(), needs_gradients)) unsupported(kNeedsGradients);
  } catch (...) {
    if (sizes) capture.roll_back();
    throw;
  }
  std::vector<HostFloats::Id> numbers;
  for (c10::SymFloat& f : out.results.floats) {
    auto id = float_of(f);
    bool deferred = id && capture.trace().symbols->floats.is_deferred(*id);
    if (deferred) numbers.push_back(*id);
    if (id) f = capture.trace().symbols->floats.hint(*id);
    out.float_results.push_back({id.value_or(-1), f.expect_float(), deferred});
  }
  capture.finish(out.results.tensors, numbers);
  out.int_results = plain(out.results.ints);
  for (SymInt& e : out.int_results) e = capture.trace().symbols->resolved(e);
  for (size_t i = 0; i < out.int_results.size(); ++i) out.results.ints[i] = capture.trace().symbols->hint(out.int_results[i]);
  out.failure = capture.failure();
  return out;
}

// Nothing if the program does not bear symbols: it is then as if it had not run.
std::optional<Function::Recorded> Function::record_symbolic(const CallInputs& call, const SymbolicSizes& sizes) {
  try {
    Recorded out = record(call, &sizes);
    if (!out.capture->has_escaped()) return out;
    log_info("sizes stay numbers: the program keeps a tensor that it computed");
    out.capture->roll_back();
  } catch (const std::exception& e) {
    log_info("sizes stay numbers: ", e.what());
  }
  return std::nullopt;
}

Function::Results Function::capture_and_compile(const CallInputs& call, const Modes& modes) {
  std::unique_lock lock(compile_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return run_eager(call, "another thread is compiling");
  auto entries = entries_.load();
  if (auto results = run_compiled(*entries, call, modes)) return std::move(*results);
  if (entries->size() >= limit_) return give_up(call, cat("more than ", limit_, " versions would be needed"));
  auto branches = std::count_if(entries->begin(), entries->end(), [](const Entry& e) { return e.program->is_one_way(); });
  if (branches && branches >= options_.branches) return give_up(call, cat("data leads to more than ", options_.branches, " ways through the program"));
  note_recompilation(*entries, call, modes);
  auto start = std::chrono::steady_clock::now();
  auto seconds = [&] {
    auto now = std::chrono::steady_clock::now();
    double s = std::chrono::duration<double>(now - start).count();
    start = now;
    return s;
  };
  std::optional<Recorded> recorded;
  bool repeat = true;
  const auto bears = std::tuple(stand_ins_, specialise_numbers_, specialise_);
  if (stand_ins_ == StandIns::unused && std::any_of(entries->begin(), entries->end(), [](const Entry& e) { return e.program->reads_numbers(); })) stand_ins_ = StandIns::given;
  while (std::exchange(repeat, false)) {
    SymbolicSizes sizes = symbols_for(call, modes);
    if (sizes.empty() && stand_ins_ != StandIns::given) break;
    recorded = record_symbolic(call, sizes);
    if (recorded) break;
    bool has_numbers = !specialise_numbers_ && (std::any_of(sizes.ints.begin(), sizes.ints.end(), [](const SymInt& e) { return !e.is_constant(); }) || std::find(sizes.floats.begin(), sizes.floats.end(), true) != sizes.floats.end());
    // Next without stand-ins for values, then without symbols for numbers: what a program is given besides tensors is a count of
    // layers as often as a size.
    repeat = stand_ins_ == StandIns::given || has_numbers;
    if (stand_ins_ == StandIns::given) stand_ins_ = StandIns::refused;
    else if (has_numbers) specialise_numbers_ = true;
    else specialise_ = true;
  }
  bool symbolic = recorded.has_value();
  try {
    if (!recorded) recorded = record(call, nullptr);
  } catch (...) {
    std::tie(stand_ins_, specialise_numbers_, specialise_) = bears;  // an error of the program's says nothing of these
    throw;
  }
  double captured = seconds();
  if (modes.grad && std::any_of(recorded->results.tensors.begin(), recorded->results.tensors.end(), needs_gradients)) {
    eager_with_grad_ = true;
    std::tie(stand_ins_, specialise_numbers_, specialise_) = bears;
    note_eager(kNeedsGradients);
    return std::move(recorded->results);
  }
  std::string why = recorded->failure;
  if (why.empty()) {
    try {
      const Capture& capture = *recorded->capture;
      auto program = std::make_shared<const CompiledProgram>(capture.trace(), recorded->ints, recorded->floats, capture.lifted(), constant_inputs_, options_under(options_, modes));
      auto next = std::make_shared<Entries>(*entries);
      next->push_back({modes, recorded->int_results, recorded->float_results, recorded->results.form, std::move(program), symbolic && stand_ins_ == StandIns::given});
      entries_.store(std::move(next), std::memory_order_release);
    } catch (const Error& e) {
      why = e.what();
    }
  }
  if (symbolic && !why.empty()) {
    log_info("sizes stay numbers: ", why);
    // The next call captures numbers.
    if (stand_ins_ == StandIns::given) stand_ins_ = StandIns::refused;
    else specialise_ = true;
    return std::move(recorded->results);
  }
  if (stand_ins_ == StandIns::unused && recorded->capture->wants_stand_ins()) {
    stand_ins_ = StandIns::given;  // the next call captures what is known only as it runs
    why.clear();
  }
  std::lock_guard guard(stats_mutex_);
  stats_.capture_failure = why;
  stats_.capture_seconds.push_back(captured);
  stats_.compile_seconds.push_back(seconds());
  if (!why.empty()) {
    if (on_failure_ == OnFailure::raise) unsupported(why);
    ++stats_.eager_calls;
    stats_.eager_reasons.push_back(why);
    if (recorded->capture->is_rejected()) log_info("not captured: ", why);
    else log_warning("runs eagerly: ", why);
    hopeless_ = true;
  }
  return std::move(recorded->results);
}

FunctionStats Function::stats() const {
  std::lock_guard lock(stats_mutex_);
  FunctionStats s = stats_;
  s.calls = calls_;
  s.compiled_calls = compiled_calls_;
  s.other_ways = other_ways_;
  return s;
}

std::vector<std::shared_ptr<const CompiledProgram>> Function::programs() const {
  std::vector<std::shared_ptr<const CompiledProgram>> out;
  for (const Entry& e : *entries_.load()) out.push_back(e.program);
  return out;
}

void Function::reset() {
  std::lock_guard lock(compile_mutex_);
  entries_.store(std::make_shared<const Entries>());
  seen_.clear();
  specialise_ = specialise_numbers_ = false;
  stand_ins_ = StandIns::unused;
  hopeless_ = false;
  eager_with_grad_ = false;
}

}  // namespace broach
