#include "function.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <tuple>

#include "capture.h"
#include "compat.h"
#include "products.h"
#include "support/bug.h"
#include "support/error.h"
#include "support/log.h"
#include "symbolic.h"
#include "ways_out.h"

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

// Compiling takes up to a millisecond an operation: beyond this many a first call would take many seconds, where compiling the body of
// a loop takes none. (Python's front knows the words "operations, more than".)
static std::string too_large(const Trace& trace) {
  constexpr size_t kMostOperations = 20'000;
  if (trace.ops.size() <= kMostOperations) return "";
  return cat("the program records ", trace.ops.size(), " operations, more than the ", kMostOperations,
             " that compiling pays for: compile a part of it, such as the body of its loop");
}

static bool needs_gradients(const at::Tensor& t) { return t.defined() && t.requires_grad(); }

// Strided tensors of the CPU with nothing special about them: as they are made outside of inference mode, and within.
static std::array<c10::DispatchKeySet, 2> plain_keys() {
  std::array<c10::DispatchKeySet, 2> keys;
  for (bool inference : {false, true}) {
    c10::InferenceMode mode(inference);
    keys[inference] = at::detail::empty_cpu({0}, c10::kFloat).key_set();
  }
  return keys;
}

// Not every version of torch has names of dimensions.
template <class T>
static bool is_named(const T& t) {
  if constexpr (requires { t.has_names(); }) return t.has_names();
  else return false;
}

// No lazy conjugate, sparse or nested tensor, subclass that dispatches, batch of a transformation, or one of another device.
static bool is_plain(const at::Tensor& t) {
  static const auto keys = plain_keys();
  if (!t.defined()) return false;
  return !is_named(t) && (t.key_set() == keys[0] || t.key_set() == keys[1]);
}

constexpr const char* kForwardMode = "forward-mode differentiation is under way";

constexpr const char* kNeedsGradients = "gradients are needed: the program runs eagerly until training is compiled";

Function::Function(Eager eager, std::vector<bool> constant_inputs, ProgramOptions options, size_t limit, Rules rules)
    : eager_(std::move(eager)),
      constant_inputs_(std::move(constant_inputs)),
      options_(std::move(options)),
      limit_(limit),
      rules_(rules),
      entries_(std::make_shared<const Entries>()) {}

Function::Results Function::operator()(const CallInputs& call) {
  ++calls_;
  for (const at::Tensor& t : call.tensors)
    if (!is_plain(t))
      return run_eager(
          call, cat("it is given a tensor of a kind that Broach does not compile yet: ", t.defined() ? t.toString() : "an undefined one"));
  if (torch::autograd::ForwardADLevel::try_get_by_idx(0)) return run_eager(call, kForwardMode);
  Modes modes = Modes::now();
  if (modes.grad && std::any_of(call.tensors.begin(), call.tensors.end(), needs_gradients)) return run_eager(call, kNeedsGradients);
  if (modes.grad && eager_with_grad_) return run_eager(call, kNeedsGradients);
  if (Capture::current()) return run_eager(call, "called while another program is captured: its operations are part of that one", false);
  auto entries = entries_.load(std::memory_order_acquire);
  if (auto results = run_compiled(*entries, call, modes)) return std::move(*results);
  if (hopeless_) return run_eager(call, "");
  return capture_and_compile(call, modes);
}

Function::Results Function::run_eager(const CallInputs& call, const std::string& why, bool lasts) {
  note_eager(why, lasts);
  std::vector<c10::SymFloat> floats(call.floats.begin(), call.floats.end());
  return eager_(call.tensors, c10::fromIntArrayRefSlow(call.ints), floats);
}

// The program itself raises eager's error, with what eager has done by then.
Function::Results Function::run_failed(const CallInputs& call, const FailedRun& failed) {
  Results results = run_eager(call, "");
  std::string why = cat("a compiled run fails where eager does not: ", failed.what());
  log_warning(why);
  std::lock_guard lock(stats_mutex_);
  if (std::find(stats_.eager_reasons.begin(), stats_.eager_reasons.end(), why) == stats_.eager_reasons.end())
    stats_.eager_reasons.push_back(std::move(why));
  return results;
}

Function::Results Function::give_up(const CallInputs& call, const std::string& why) {
  {
    std::lock_guard lock(stats_mutex_);
    stats_.capture_failure = why;
  }
  return run_eager(call, why);
}

std::optional<Function::Results> Function::run_compiled(const CallInputs& call) {
  Modes modes = Modes::now();
  if (hopeless_ || Capture::current() ||
      (modes.grad && (eager_with_grad_ || std::any_of(call.tensors.begin(), call.tensors.end(), needs_gradients))))
    return std::nullopt;
  auto results = run_compiled(*entries_.load(std::memory_order_acquire), call, modes);
  if (results) ++calls_;
  return results;
}

void Function::stop(const std::string& why) {
  std::lock_guard lock(compile_mutex_);
  hopeless_ = true;
  entries_.store(std::make_shared<const Entries>());
  std::lock_guard guard(stats_mutex_);
  stats_.capture_failure = why;
  stats_.eager_reasons.push_back(why);
}

void Function::note_eager(const std::string& why, bool lasts) {
  std::lock_guard lock(stats_mutex_);
  ++stats_.eager_calls;
  auto& reasons = stats_.eager_reasons;
  if (why.empty() || std::find(reasons.begin(), reasons.end(), why) != reasons.end()) return;
  reasons.push_back(why);
  if (rules_.warns && lasts) log_warning("runs eagerly: ", why, way_out(why));
  else log_info("runs eagerly: ", why);
}

void Function::set_line(std::string line) {
  if (Capture* c = Capture::current()) c->set_line(std::move(line));
}

void Function::reject_capture(std::string why) {
  if (Capture* c = Capture::current()) c->reject(std::move(why));
}

bool Function::abandon_capture(std::string why) {
  Capture* c = Capture::current();
  if (c) c->abandon(std::move(why));
  return !c || !c->is_symbolic();
}

bool Function::is_capturing() { return Capture::current() != nullptr; }

bool Function::is_capturing_symbols() {
  Capture* c = Capture::current();
  return c && c->is_symbolic();
}

void Function::evaluate_ints(const Entry& e, const Binding& binding, std::vector<c10::SymInt>& out) {
  for (const SymInt& i : e.int_results) out.push_back(i.eval(binding.values.sizes));
}

std::optional<Function::Results> Function::run_compiled(const Entries& entries, const CallInputs& call, const Modes& modes) {
  Binding binding;
  std::array<std::vector<Scalar>, 2> read;  // on the host, by programs that took another way: without and with stand-ins
  size_t first = last_.load(std::memory_order_relaxed);
  for (size_t k = 0; k < entries.size(); ++k) {
    size_t at = first >= entries.size() ? k : k == 0 ? first : k <= first ? k - 1 : k;  // the last one used first
    const Entry& e = entries[at];
    std::vector<Scalar>& observed = read[e.stand_ins];
    if (!(e.modes == modes) || !e.program->agrees(observed)) continue;
    std::vector<c10::SymInt> ints;
    std::optional<std::vector<at::Tensor>> tensors;
    try {
      if (!e.program->accepts(call, binding, nullptr)) continue;
      if (!e.program->binds_sizes()) evaluate_ints(e, binding, ints);
      tensors = e.program->run(call.tensors, binding, observed);
    } catch (const OutOfRange&) {
      continue;  // Python's integers have no end
    } catch (const FailedRun& failed) {
      return run_failed(call, failed);
    }
    if (!tensors) {
      ++other_ways_;
      continue;
    }
    ++compiled_calls_;
    if (at != first) last_.store(at, std::memory_order_relaxed);
    if (e.program->binds_sizes()) evaluate_ints(e, binding, ints);
    Results r{std::move(*tensors), std::move(ints), {}, e.form};
    size_t first_number = r.tensors.size() - static_cast<size_t>(std::count_if(e.float_results.begin(), e.float_results.end(),
                                                                               [](const FloatResult& f) { return f.deferred; }));
    for (size_t next = first_number; const FloatResult& f : e.float_results)
      r.floats.emplace_back(f.deferred ? r.tensors[next++].item<double>()
                            : f.id < 0 ? f.constant
                                       : binding.values.floats[static_cast<size_t>(f.id)]);
    r.tensors.resize(first_number);
    return r;
  }
  return std::nullopt;
}

void Function::note_recompilation(const Entries& entries, const CallInputs& call, const Modes& modes) {
  if (entries.empty()) return;
  std::string why = "a value that the program computes and reads on the host is another one, or a size that depends on data does not fit";
  if (std::none_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.modes == modes; }))
    why = "the grad, autocast, precision or other mode differs";
  Binding binding;
  for (const Entry& e : entries)
    if (e.modes == modes) try {
        e.program->accepts(call, binding, &why);
      } catch (const OutOfRange& out) {
        why = out.what();
      }
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
    if (s.modes == now.modes && s.dtypes == now.dtypes && s.sizes.has_form_of(now.sizes) &&
        !(specialise_numbers_ && !s.sizes.has_numbers_of(now.sizes)))
      calls.push_back(s.sizes);
  calls.push_back(now.sizes);
  seen_.push_back(std::move(now));
  // A run on stand-ins may have to be repeated, which a program with state of its own would not bear.
  if (options_.dynamic == PipelineOptions::Dynamic::never || specialise_ || unclear_runs_ > 0) return generalize({calls.back()}, {});
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
  if (options_.whole) capture.refuse_reads_of_the_program();
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
    // The error that was to end the program was caught there.
    if (sizes && capture.is_abandoned()) unsupported(capture.failure());
    // Stand-ins know it, what they stand for does not.
    if (sizes && at::GradMode::is_enabled() && std::any_of(out.results.tensors.begin(), out.results.tensors.end(), needs_gradients))
      unsupported(kNeedsGradients);
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
  if (!sizes && rules_.unwatched_state) out.kept = capture.kept(out.results.tensors);
  return out;
}

// Nothing if the program does not bear symbols: it is then as if it had not run.
std::optional<Function::Recorded> Function::record_symbolic(const CallInputs& call, const SymbolicSizes& sizes) {
  try {
    Recorded out = record(call, &sizes);
    if (!out.capture->has_escaped()) return out;
    log_info("sizes stay numbers: the program keeps a tensor that it computed");
    out.capture->roll_back();
  } catch (const Bug&) {
    throw;
  } catch (const std::exception& e) {  // whatever the program throws where it does not bear symbols
    log_info("sizes stay numbers: ", e.what());
  }
  return std::nullopt;
}

// ---- what is not worth capturing, or must not be ----

namespace {

constexpr int kMostInARow = 4, kOftenEnough = 3;
constexpr const char* kUnclear =
    "the program keeps a tensor, or writes to one that it is given or holds: its next run will show whether it does the same each time";

size_t hash_of(const CallInputs& call, const std::vector<bool>& constant) {
  size_t h = 0;
  auto add = [&](auto value) { h = (h ^ std::hash<decltype(value)>()(value)) * 0x9E3779B97F4A7C15; };
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const at::Tensor& t = call.tensors[i];
    if ((i < constant.size() && constant[i]) || !t.defined() || t.layout() != c10::kStrided) continue;
    add(static_cast<int>(t.scalar_type()));
    for (int64_t n : t.sizes()) add(n);
  }
  for (int64_t n : call.ints) add(n);
  for (double d : call.floats) add(d);
  return h;
}

// The results may hide it: a loss that is detached.
bool trains(const Capture& capture) {
  auto any = [](const std::vector<at::Tensor>& list) { return std::any_of(list.begin(), list.end(), needs_gradients); };
  return capture.differentiates() && (any(capture.lifted()) || any(capture.inputs()));
}

}  // namespace

std::string Function::why_unprofitable(const CallInputs& call) {
  if (compiled_calls_ != compiled_calls_before_) captures_in_a_row_ = 0;
  if (captures_in_a_row_ < kMostInARow) return "";
  constexpr size_t kMostRemembered = 4096;
  if (met_.size() >= kMostRemembered) met_.clear();
  if (++met_[hash_of(call, constant_inputs_)] >= kOftenEnough) return "";
  std::lock_guard lock(stats_mutex_);
  std::string fixed;
  for (const std::string& s : stats_.fixed_sizes) fixed += (fixed.empty() ? " (" : "; ") + s;
  return cat("the last ", kMostInARow, " compiled versions were not used again: inputs that come less than ", kOftenEnough,
             " times are not captured any more", fixed, fixed.empty() ? "" : ")");
}

Function::HostState Function::host_state(const Recorded& recorded, const CallInputs& call, std::string& why) {
  const Capture& capture = *recorded.capture;
  constexpr int kMostUnclear = 3;
  auto unclear = [&](int most, const std::string& reason) {
    if (++unclear_runs_ < most) return HostState::unknown;
    why = reason;
    return HostState::found;
  };
  // What it keeps the first time may be a cache that it finds filled from then on.
  if (!recorded.kept.empty())
    return unclear(2, cat("the program keeps ", recorded.kept, ": a replay would leave there what the first run found"));
  if (!writes_alike_ && capture.writes_inputs()) {
    if (trains(capture)) return why = "the program trains: it writes to tensors that it holds and computes gradients", HostState::found;
    Run run{capture.trace().str(), sizes_of(call)};
    for (const at::Tensor& t : capture.lifted()) run.text += cat("\n", static_cast<const void*>(t.unsafeGetTensorImpl()));
    auto before = std::exchange(unconfirmed_, std::move(run));
    if (!before || !(before->sizes == unconfirmed_->sizes))
      return unclear(kMostUnclear,
                     "the program writes to tensors that it is given or holds, and the sizes of its inputs change all the time");
    if (before->text != unconfirmed_->text)
      return why =
                 "the program writes to tensors that it is given or holds, and did so otherwise in two runs: it depends on state of its host code",
             HostState::found;
    writes_alike_ = true;
  }
  unclear_runs_ = 0;
  return HostState::none;
}

void Function::note_fixed_sizes(const Capture& capture) {
  std::lock_guard lock(stats_mutex_);
  for (auto [input, dim] : capture.plain_reads()) {
    auto constants = std::count(constant_inputs_.begin(),
                                constant_inputs_.begin() + std::min<std::ptrdiff_t>(input, std::ssize(constant_inputs_)), true);
    std::string text = cat("input ", input - constants, "'s size ", dim, " was read as a plain number by host code");
    auto& known = stats_.fixed_sizes;
    if (std::find(known.begin(), known.end(), text) != known.end()) continue;
    known.push_back(text);
    log_info("a size stays a number: ", text);
  }
}

Function::Results Function::capture_and_compile(const CallInputs& call, const Modes& modes) {
  std::unique_lock lock(compile_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return run_eager(call, "another thread is compiling", false);
  auto entries = entries_.load();
  if (auto results = run_compiled(*entries, call, modes)) return std::move(*results);
  if (entries->size() >= limit_) return give_up(call, cat("more than ", limit_, " versions would be needed"));
  auto branches = std::count_if(entries->begin(), entries->end(), [](const Entry& e) { return e.program->is_one_way(); });
  if (std::string why = branches ? "" : why_unprofitable(call); !why.empty()) return run_eager(call, why);
  if (branches && branches >= options_.branches)
    return give_up(call, cat("data leads to more than ", options_.branches, " ways through the program"));
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
  if (stand_ins_ == StandIns::unused &&
      std::any_of(entries->begin(), entries->end(), [](const Entry& e) { return e.program->reads_numbers(); }))
    stand_ins_ = StandIns::given;
  while (std::exchange(repeat, false)) {
    SymbolicSizes sizes = symbols_for(call, modes);
    if (sizes.empty() && stand_ins_ != StandIns::given) break;
    recorded = record_symbolic(call, sizes);
    if (recorded) break;
    bool has_numbers =
        !specialise_numbers_ && (std::any_of(sizes.ints.begin(), sizes.ints.end(), [](const SymInt& e) { return !e.is_constant(); }) ||
                                 std::find(sizes.floats.begin(), sizes.floats.end(), true) != sizes.floats.end());
    // Next without stand-ins for values, then without symbols for numbers: what a program is given besides tensors is a count of
    // layers as often as a size.
    repeat = stand_ins_ == StandIns::given || has_numbers;
    if (stand_ins_ == StandIns::given) stand_ins_ = StandIns::refused;
    else if (has_numbers) specialise_numbers_ = true;
    else specialise_ = true;
  }
  bool symbolic = recorded.has_value();
  if (symbolic) note_fixed_sizes(*recorded->capture);
  try {
    if (!recorded) recorded = record(call, nullptr);
  } catch (...) {
    std::tie(stand_ins_, specialise_numbers_, specialise_) = bears;  // an error of the program's says nothing of these
    throw;
  }
  double captured = seconds();
  if (modes.grad &&
      (std::any_of(recorded->results.tensors.begin(), recorded->results.tensors.end(), needs_gradients) || trains(*recorded->capture))) {
    eager_with_grad_ = true;
    std::tie(stand_ins_, specialise_numbers_, specialise_) = bears;
    note_eager(kNeedsGradients);
    return std::move(recorded->results);
  }
  std::string why = recorded->failure;
  if (why.empty()) why = too_large(recorded->capture->trace());
  if (why.empty() && rules_.unwatched_state && host_state(*recorded, call, why) == HostState::unknown) {
    note_eager(kUnclear, false);
    return std::move(recorded->results);
  }
  if (why.empty()) {
    try {
      const Capture& capture = *recorded->capture;
      auto program = std::make_shared<const CompiledProgram>(capture.trace(), recorded->ints, recorded->floats, capture.lifted(),
                                                             capture.facts(), constant_inputs_, options_under(options_, modes));
      auto next = std::make_shared<Entries>(*entries);
      next->push_back({modes, recorded->int_results, recorded->float_results, recorded->results.form, std::move(program),
                       symbolic && stand_ins_ == StandIns::given});
      entries_.store(std::move(next), std::memory_order_release);
      ++captures_in_a_row_;
      compiled_calls_before_ = compiled_calls_;
    } catch (const Unsupported& e) {
      why = e.what();
    } catch (const Bug&) {
      throw;
    } catch (const std::exception& e) {  // eager has given the answer
      report_bug("the compilation of a program", why = e.what(), "the program runs eagerly instead");
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
    if (rules_.on_failure == OnFailure::raise) unsupported(why);
    ++stats_.eager_calls;
    stats_.eager_reasons.push_back(why);
    if (recorded->capture->is_rejected()) log_info("not captured: ", why);
    else log_warning("runs eagerly: ", why, rules_.warns ? way_out(why) : "");
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
  unconfirmed_.reset();
  writes_alike_ = false;
  unclear_runs_ = captures_in_a_row_ = 0;
  met_.clear();
  hopeless_ = false;
  eager_with_grad_ = false;
}

}  // namespace broach
