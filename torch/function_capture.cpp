// A call that no compiled version stands for: the attempts to capture it, one after another as the table in attempts.cpp says, and the
// compilation of what was recorded.
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "capture.h"
#include "function.h"
#include "gradients.h"
#include "input_history.h"
#include "kept_settings.h"
#include "products.h"
#include "support/bug.h"
#include "support/error.h"
#include "support/log.h"
#include "symbolic.h"
#include "tensors.h"
#include "ways_out.h"

namespace broach {

namespace {

// The caller's options under the settings of now.
ProgramOptions options_under(ProgramOptions options, const Function::Modes& modes) {
  const bool pinned = options.settings.contractions.deterministic;
  options.settings.contractions = modes.contractions;
  options.settings.contractions.deterministic |= pinned;
  options.settings.host_contraction = aten_contraction;
  return options;
}

constexpr const char* kOfHooked = "the program computes that of a tensor with a hook";

// Compiling takes up to a millisecond an operation: beyond this many a first call would take many seconds, where compiling the body of
// a loop takes none.
Verdict judge_size(const Trace& trace) {
  constexpr size_t kMostOperations = 20'000;
  if (trace.ops.size() <= kMostOperations) return {};
  return {Outcome::unsupported,
          {cat("the program records ", trace.ops.size(), " operations, more than the ", kMostOperations,
               " that compiling pays for: compile a part of it, such as the body of its loop"),
           Fallback::nothing}};
}

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

// What the program is given in symbols.
With symbols_in(const SymbolicSizes& sizes, const Plan& plan) {
  auto symbolic = [](const SymInt& e) { return !e.is_constant(); };
  With out = sizes.empty() ? kPlain : kSizes;
  if (plan.has(kStandIns)) out |= kStandIns;
  if (plan.has(kNumbers) && (std::any_of(sizes.ints.begin(), sizes.ints.end(), symbolic) ||
                             std::find(sizes.floats.begin(), sizes.floats.end(), true) != sizes.floats.end()))
    out |= kNumbers;
  return out;
}

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Function::Results Function::capture_and_compile(const CallInputs& call, const Modes& modes) {
  std::unique_lock lock(compile_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return run_eager(call, "another thread is compiling", false);
  const Entries entries = *entries_.read();
  if (auto results = run_compiled(entries, call, modes)) return std::move(*results);
  if (std::string why = why_uncaptured(call, entries); !why.empty()) return run_eager(call, why);
  note_recompilation(entries, call, modes);
  seen_.push_back({modes, dtypes_of(call.tensors), sizes_of(call)});
  Plan plan = plan_;  // an error of the program's says nothing of it
  if (std::any_of(entries.begin(), entries.end(), [](const Entry& e) { return e.program->reads_numbers(); }))
    plan.follow(Outcome::wants_stand_ins, kPlain);
  for (;;) {
    Recorded recorded = attempt(call, modes, plan);
    const Outcome outcome = recorded.attempt.verdict.outcome;
    const Next* next = plan.follow(outcome, recorded.attempt.with);
    if (next) recorded.attempt.then = next->because;
    else if (is_undone(outcome)) recorded.must_run_eagerly = true;
    refuses_stand_ins_ = refuses_stand_ins_ || (next && (next->drops & kStandIns));
    log_->add(recorded.attempt);
    if (next && next->at_once) continue;
    if (outcome != Outcome::needs_gradients) plan_ = plan;  // as little as an error does
    settle(modes, recorded, next != nullptr);
    if (recorded.must_run_eagerly) return run_eager(call, "");
    return std::move(recorded.results);
  }
}

// ---- one attempt ----

Function::Recorded Function::attempt(const CallInputs& call, const Modes& modes, const Plan& plan) {
  const SymbolicSizes sizes = symbols_for(plan);
  Recorded out;
  Attempt& attempt = out.attempt;
  attempt.with = symbols_in(sizes, plan);
  const bool symbolic = attempt.with != kPlain;
  if (plan.has(kApart)) attempt.with |= kApart;
  try {
    Stopwatch watch(attempt.capture_seconds);
    record(call, symbolic ? &sizes : nullptr, out);
    if (out.capture->has_labels()) has_labels_ = true;
    // What stood for the program's tensors, or all that the run has made, is held by their history.
    if ((symbolic || out.capture->is_replaced()) && out.has_history) out.results.tensors.clear();
    if (symbolic && out.capture->has_escaped()) {
      out.capture->roll_back();
      attempt.verdict = {Outcome::refuses_symbols, "the program keeps a tensor that it computed"};
      return out;
    }
    // What stands for a tensor may have told the program something else than the tensor would have.
    if (symbolic && out.capture->verdict().outcome == Outcome::unsupported) {
      out.capture->roll_back();
      attempt.verdict = {Outcome::refuses_symbols, out.capture->verdict().reason};
      return out;
    }
  } catch (const Bug&) {
    throw;
  } catch (const std::exception& e) {  // whatever the program throws: where it does not bear symbols, it is as if it had not run
    attempt.verdict.outcome = symbolic ? Outcome::refuses_symbols : Outcome::error;
    if (symbolic) return attempt.verdict.reason = e.what(), std::move(out);
    log_->add(attempt);
    throw;
  }
  if (symbolic) note_fixed_sizes(*out.capture);
  if (out.must_run_eagerly) return out;
  attempt.verdict = judge(call, modes, out);
  if (attempt.verdict.is_good()) attempt.verdict = compile(modes, out);
  const bool trains = attempt.verdict.outcome == Outcome::needs_gradients;  // what it wrote must get a history, too
  const Differentiable& differentiable = out.capture->differentiable();
  const bool had_history = out.has_history || !differentiable.lets_need.empty() || !differentiable.used_up.empty();
  if (symbolic && (had_history || out.has_windows || trains)) run_again(call, out);
  else if (out.capture->is_replaced() && (out.has_history || !attempt.verdict.is_good())) out.must_run_eagerly = !run_in_place(call, out);
  return out;
}

// What stands for the program's tensors has a history, and views, of which the tensors themselves know nothing: compiled code gives those
// that do.
void Function::run_again(const CallInputs& call, Recorded& recorded) {
  if (run_in_place(call, recorded)) return;
  recorded.program = nullptr;
  Attempt& attempt = recorded.attempt;
  const bool lacks = attempt.verdict.outcome == Outcome::wants_stand_ins && !(attempt.with & kStandIns);
  attempt.verdict.outcome = lacks ? Outcome::lacks_stand_ins : Outcome::refuses_symbols;
}

// The compiled program, in the place of the run that was recorded. False if there is none for the call; nothing has happened then.
bool Function::run_in_place(const CallInputs& call, Recorded& recorded) {
  recorded.capture->roll_back();
  Verdict& verdict = recorded.attempt.verdict;
  Binding binding;
  std::vector<Scalar> observed;
  if (!verdict.is_good() || !recorded.program->accepts(call, binding, &verdict.reason.text)) return false;
  auto results = recorded.program->run(call, binding, observed);
  if (results) recorded.results.tensors = std::move(*results);
  return results.has_value();
}

// As the calls that were captured show, of which the last is the one under way.
SymbolicSizes Function::symbols_for(const Plan& plan) const {
  const Seen& now = seen_.back();
  if (options_.dynamic == PipelineOptions::Dynamic::never || !plan.has(kSizes) || host_state_.is_unclear())
    return generalize({now.sizes}, {});
  std::vector<CallSizes> calls;
  for (const Seen& s : seen_)
    if (s.modes == now.modes && s.dtypes == now.dtypes && s.sizes.has_form_of(now.sizes) &&
        (plan.has(kNumbers) || s.sizes.has_numbers_of(now.sizes)))
      calls.push_back(s.sizes);
  const size_t tensors = now.dtypes.size();
  std::vector<uint64_t> symbolic = options_.symbolic_dims;
  if (options_.dynamic == PipelineOptions::Dynamic::always) symbolic.assign(tensors + 1, ~uint64_t{0});
  for (size_t i = 0; i < std::min(symbolic.size(), constant_inputs_.size()); ++i)
    if (constant_inputs_[i]) symbolic[i] = 0;
  if (!plan.has(kNumbers) && symbolic.size() > tensors) symbolic[tensors] = 0;
  return generalize(calls, symbolic);
}

// Whether one of these lies in the memory of another of those.
static bool share_memory(at::TensorList these, at::TensorList those) {
  auto storage = [](const at::Tensor& t) { return t.defined() && t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr; };
  return std::ranges::any_of(these, [&](const at::Tensor& a) {
    return storage(a) && std::ranges::any_of(those, [&](const at::Tensor& b) { return !a.is_same(b) && storage(a) == storage(b); });
  });
}

// Those that tensors have as a run begins.
class GradientsBefore {
 public:
  explicit GradientsBefore(at::TensorList tensors) {
    for (const at::Tensor& t : tensors)
      if (t.defined() && t.is_leaf()) had_.push_back({t, t.grad(), t.grad().defined() ? version_of(t.grad()) : 0});
  }
  bool have_changed(const Capture& capture) const {
    return std::ranges::any_of(had_, [&](const Had& h) {
      const bool is_written = h.gradient.defined() && version_of(h.gradient) != h.version && capture.has_met(h.gradient);
      return is_written || is_exchanged(h, capture);
    });
  }
  // Their elements are the capture's to put back.
  void put_back(const Capture& capture) const {
    for (const Had& h : had_)
      if (is_exchanged(h, capture)) h.tensor.unsafeGetTensorImpl()->mutable_grad() = h.gradient;
  }

 private:
  struct Had {
    at::Tensor tensor, gradient;
    int64_t version;  // of the gradient
  };
  // By the program: other threads may give gradients to the same tensors meanwhile.
  static bool is_exchanged(const Had& h, const Capture& capture) {
    const at::Tensor& now = h.tensor.unsafeGetTensorImpl()->grad();
    return !now.is_same(h.gradient) && (!now.defined() || capture.has_met(now));
  }
  std::vector<Had> had_;
};

// Of a run on what stood for inputs: whether the caller's own must be changed likewise, or what the program gives may be of those that
// stood for them. `gave`: gradients to tensors that it was given.
static std::optional<Verdict> why_taken_back(const Capture& capture, const std::vector<InputWithHistory>& with_history, bool gave) {
  auto needs = [](const char* why) { return Verdict{Outcome::needs_gradients, {cat("gradients are needed: ", why), Fallback::eager}}; };
  if (capture.has_run_backward() && std::ranges::any_of(with_history, is_hooked, &InputWithHistory::given)) return needs(kOfHooked);
  if (std::ranges::any_of(with_history, &InputWithHistory::is_changed)) return needs("a tensor that has a history is changed");
  if (gave) return needs("it gives some to a tensor that it is given");
  const bool is_rejected = capture.verdict().outcome == Outcome::rejected || capture.is_taken_back();
  return !with_history.empty() && is_rejected ? std::optional(capture.verdict()) : std::nullopt;
}

void Function::record(const CallInputs& call, const SymbolicSizes* sizes, Recorded& out) const {
  std::vector<at::Tensor> tensors = call.tensors.vec(), behind;
  std::vector<InputWithHistory> with_history;
  const bool apart = at::GradMode::is_enabled() && (sizes || (out.attempt.with & kApart) || !end_walks(call.tensors, &behind));
  for (at::Tensor& t : tensors)
    if (apart && t.defined() && t.requires_grad() && !t.is_leaf()) t = with_history.emplace_back(t).inside();
  out.capture = std::make_unique<Capture>(tensors, sizes, options_.branches > 0, (out.attempt.with & kStandIns) != 0);
  Capture& capture = *out.capture;
  if (options_.whole) capture.refuse_reads_of_the_program();
  if (rules_.unwatched_state) capture.watch_host_code(constant_inputs_);
  if (!with_history.empty()) capture.keep_for_roll_back();
  std::vector<c10::SymInt> given;
  std::vector<c10::SymFloat> floats;
  give_numbers(call, sizes, out, given, floats);
  const GradientsBefore gradients(call.tensors), gradients_behind(behind);
  const bool grad = at::GradMode::is_enabled();
  const Modes modes = Modes::now();
  const KeptSettings settings;
  try {
    capture.run([&] {
      out.results = eager_(capture.inputs(), given, floats);
      if (rules_.unwatched_state && !(Modes::now() == modes))
        reject_capture({Outcome::unsupported, {"the program sets a mode of its thread for its caller", Fallback::eager}});
      if (sizes && at::GradMode::is_enabled() != grad) unsupported("it enables or disables gradients for its caller");
      if (sizes) capture.must_not_give_gradients();
      // What stands for a tensor has its own, also where only a part of the program runs under enable_grad.
      out.has_history = (at::GradMode::is_enabled() || sizes) && need_gradients(out.results.tensors);
      out.has_history = out.has_history && !capture.has_released(out.results.tensors);
      if (out.has_history && at::GradMode::is_enabled()) capture.differentiate(out.results.tensors);
    });
    // The error that was to end the program was caught there.
    if (sizes && capture.is_abandoned()) unsupported(capture.verdict().reason.text);
    if (sizes) describe_results(out);  // among them may be a number that has no value of 64 bits
  } catch (...) {
    const bool is_own = !capture.is_replaced() && with_history.empty();  // the run on the caller's tensors
    if (sizes || !is_own) capture.roll_back(), gradients.put_back(capture), settings.put_back();
    if (sizes || is_own) throw;
    out.attempt.verdict.outcome = Outcome::error;  // which the program raises once more, in a run of its own
    if (capture.is_abandoned()) out.attempt.verdict = capture.verdict();
    out.must_run_eagerly = true;
    return;
  }
  if (sizes) {
    out.has_windows = share_memory(out.results.tensors, call.tensors) || share_memory(out.results.tensors, capture.lifted()) ||
                      share_memory(out.results.tensors, out.results.tensors);
    return;
  }
  out.reaches_behind = gradients_behind.have_changed(capture);
  const bool gave = capture.is_replaced() && gradients.have_changed(capture);
  if (auto verdict = why_taken_back(capture, with_history, gave)) {
    capture.roll_back();
    gradients.put_back(capture);
    settings.put_back();
    out.attempt.verdict = std::move(*verdict);
    out.must_run_eagerly = true;
    return;
  }
  describe_results(out);
  take_outside(call, with_history, out);
}

// The program's numbers, in symbols where `sizes` say so.
void Function::give_numbers(const CallInputs& call, const SymbolicSizes* sizes, Recorded& out, std::vector<c10::SymInt>& ints,
                            std::vector<c10::SymFloat>& floats) {
  if (sizes)
    for (const SymInt& e : out.ints = sizes->ints) ints.push_back(program_integer(e, sizes->symbols));
  else
    for (int64_t i : call.ints) ints.push_back(i), out.ints.push_back(i);
  for (size_t k = 0; k < call.floats.size(); ++k) {
    double value = call.floats[k];
    bool constant = !sizes || !sizes->floats[k];
    out.floats.push_back(constant ? std::optional(value) : std::nullopt);
    floats.push_back(constant ? c10::SymFloat(value) : program_float(sizes->symbols->floats.given(k, value), sizes->symbols));
  }
}

// Results of a run on what stood for inputs as they are for the caller.
void Function::take_outside(const CallInputs& call, std::vector<InputWithHistory>& with_history, Recorded& out) {
  auto is_given = [&](const at::Tensor& t) { return std::ranges::any_of(call.tensors, [&](const at::Tensor& g) { return g.is_same(t); }); };
  for (InputWithHistory& input : with_history) {
    input.connect();
    for (at::Tensor& t : out.results.tensors) {
      if (is_given(t)) continue;
      const at::Tensor inside = std::exchange(t, input.outside(t));
      // Compiled code makes it of the caller's tensor, with the history that it is to have.
      if (!inside.is_same(t) && !t.is_same(input.given()) && out.capture->verdict().is_good()) out.capture->replace_results();
    }
  }
}

// In numbers for the caller, in symbols for the program that is compiled.
void Function::describe_results(Recorded& out) const {
  Capture& capture = *out.capture;
  const Symbols& symbols = *capture.trace().symbols;
  std::vector<HostFloats::Id> numbers;
  for (c10::SymFloat& f : out.results.floats) {
    auto id = float_of(f);
    bool deferred = id && symbols.floats.is_deferred(*id);
    if (deferred) numbers.push_back(*id);
    if (id) f = symbols.floats.hint(*id);
    out.float_results.push_back({id.value_or(-1), f.expect_float(), deferred});
  }
  capture.finish(out.results.tensors, numbers);
  for (c10::SymInt& i : out.results.ints) {
    out.int_results.push_back(symbols.resolved(integer_of(i)));
    i = symbols.hint(out.int_results.back());
  }
}

// Whether what was recorded stands for the program.
Verdict Function::judge(const CallInputs& call, const Modes& modes, const Recorded& recorded) {
  const Capture& capture = *recorded.capture;
  if (capture.verdict().outcome == Outcome::unclear) return host_state_.disturbed(capture.verdict().reason.text);
  if (!capture.verdict().is_good()) return capture.verdict();
  if (recorded.reaches_behind)
    return {Outcome::needs_gradients, {"gradients are needed: the program asks for some of what a tensor was made of", Fallback::eager}};
  if (capture.has_run_backward() && (std::ranges::any_of(capture.given(), is_hooked) || std::ranges::any_of(capture.lifted(), is_hooked)))
    return {Outcome::needs_gradients, {cat("gradients are needed: ", kOfHooked), Fallback::eager}};
  if (modes.grad && !recorded.has_history && trains(capture)) return {Outcome::needs_gradients, kNeedsGradients};
  if (Verdict size = judge_size(capture.trace()); !size.is_good()) return size;
  if (std::string gradient = capture.kept_gradient(recorded.results.tensors); !gradient.empty())
    return {Outcome::needs_gradients, {cat("gradients are needed: the program keeps ", gradient), Fallback::eager}};
  if (!rules_.unwatched_state) return {};
  if (std::string exchanged = capture.exchanged(); !exchanged.empty())
    return {Outcome::unsupported, {cat("the program gives other memory to a tensor, ", exchanged, ", by set_data()"), Fallback::eager}};
  // What autograd saves of a program that gives results with a history is kept, too.
  const bool tells_kept = !capture.is_symbolic() && !recorded.has_history;
  const std::string held = tells_kept ? capture.held_argument(recorded.results.tensors, constant_inputs_) : "";
  if (!held.empty()) return host_state_.disturbed(cat("the program, or another thread meanwhile, keeps ", held));
  const std::string kept = tells_kept ? capture.kept(recorded.results.tensors) : "";
  return host_state_.judge(capture, kept, sizes_of(call));
}

Verdict Function::compile(const Modes& modes, Recorded& recorded) const {
  const Capture& capture = *recorded.capture;
  Stopwatch watch(recorded.attempt.compile_seconds);
  try {
    recorded.program = std::make_shared<const CompiledProgram>(
        capture.trace(), recorded.ints, recorded.floats, capture.lifted(), capture.facts(), constant_inputs_,
        options_under(options_, modes), capture.differentiable(), capture.traced_gradients(), recorded.results.replaced);
    return {};
  } catch (const Unsupported& e) {
    return {Outcome::unsupported, e.what()};
  } catch (const Bug&) {
    throw;
  } catch (const std::exception& e) {  // eager has given the answer
    report_bug("the compilation of a program", e.what(), "the program runs eagerly instead");
    return {Outcome::bug, e.what()};
  }
}

// ---- what follows ----

// `goes_on`: another call will be captured otherwise.
void Function::settle(const Modes& modes, Recorded& recorded, bool goes_on) {
  const Verdict& verdict = recorded.attempt.verdict;
  switch (verdict.outcome) {
    case Outcome::compiled: return add_version(modes, recorded);
    case Outcome::error: return;
    case Outcome::unclear: return note_eager(verdict.reason.text, false);
    case Outcome::needs_gradients: closed_ = Closed::with_gradients; return note_eager(verdict.reason.text);
    default:
      if (!goes_on) give_up(verdict);
  }
}

void Function::add_version(const Modes& modes, Recorded& recorded) {
  Entries next = *entries_.read();
  next.push_back({modes, recorded.int_results, recorded.float_results, recorded.results.form, std::move(recorded.program),
                  (recorded.attempt.with & kStandIns) != 0});
  entries_.publish(std::move(next));
  profit_.note_capture(compiled_calls_);
}

void Function::give_up(const Verdict& verdict) {
  const std::string& why = verdict.reason.text;
  std::lock_guard lock(stats_mutex_);
  failure_ = verdict.reason;
  if (rules_.on_failure == OnFailure::raise) unsupported(why);
  ++stats_.eager_calls;
  stats_.eager_reasons.push_back(why);
  if (verdict.is_of_front()) log_info("not captured: ", why);
  else log_warning("runs eagerly: ", why, rules_.warns ? way_out(why) : "");
  closed_ = Closed::yes;
}

// ---- which calls are captured ----

std::string Function::why_uncaptured(const CallInputs& call, const Entries& entries) {
  auto paths = std::count_if(entries.begin(), entries.end(), [](const Entry& e) { return e.program->is_one_way(); });
  std::string why;
  if (entries.size() >= limit_) why = cat("more than ", limit_, " versions would be needed");
  else if (!paths) why = profit_.why_not(call, constant_inputs_, compiled_calls_);
  else if (paths >= options_.branches) why = cat("data leads to more than ", options_.branches, " ways through the program");
  if (why.empty()) return why;
  std::lock_guard lock(stats_mutex_);
  if (paths) return failure_ = why, why;  // without: the versions that there are stay, and what fits none of them runs eagerly
  std::string fixed;
  for (const std::string& s : stats_.fixed_sizes) fixed += (fixed.empty() ? " (" : "; ") + s;
  return cat(why, fixed, fixed.empty() ? "" : ")");
}

std::string Function::Profit::why_not(const CallInputs& call, const std::vector<bool>& constant, int64_t compiled_calls) {
  constexpr int kMostInARow = 4, kOftenEnough = 3;
  constexpr size_t kMostRemembered = 2048;  // in either table
  if (compiled_calls != compiled_calls_before_) captures_in_a_row_ = 0;
  if (captures_in_a_row_ < kMostInARow) return "";
  if (met_.size() >= kMostRemembered) met_before_ = std::exchange(met_, {});
  const size_t hash = hash_of(call, constant);
  auto [known, is_new] = met_.try_emplace(hash, 0);
  if (auto before = is_new ? met_before_.find(hash) : met_before_.end(); before != met_before_.end()) known->second = before->second;
  if (++known->second >= kOftenEnough) return "";
  return cat("the last ", kMostInARow, " compiled versions were not used again: inputs that come less than ", kOftenEnough,
             " times are not captured any more");
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

}  // namespace broach
