#include "function.h"

#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <array>

#include "capture.h"
#include "compat.h"
#include "input_history.h"
#include "products.h"
#include "support/error.h"
#include "support/log.h"
#include "ways_out.h"

namespace broach {

Function::Modes Function::Modes::now() {
  Modes m;
  m.grad = c10::GradMode::is_enabled();
  m.inference = c10::InferenceMode::is_enabled();
  m.deterministic = at::globalContext().deterministicAlgorithms();
  m.default_type = c10::get_default_dtype_as_scalartype();
  m.contractions = contraction_rules();
  m.autocast = Autocast::now();
  return m;
}

// torch.autograd.graph.saved_tensors_hooks, save_on_cpu, checkpoints.
static bool saves_through_hooks() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

constexpr const char* kForwardMode = "forward-mode differentiation is under way";

Function::Function(Eager eager, std::vector<bool> constant_inputs, ProgramOptions options, size_t limit, Rules rules,
                   std::shared_ptr<AttemptLog> log)
    : eager_(std::move(eager)),
      constant_inputs_(std::move(constant_inputs)),
      options_(std::move(options)),
      limit_(limit),
      rules_(rules),
      log_(std::move(log)) {}

Function::Results Function::operator()(const CallInputs& call, const Modes& modes) {
  ++calls_;
  if (Capture::current()) return run_eager(call, "called while another program is captured: its operations are part of that one", false);
  for (const at::Tensor& t : call.tensors)
    if (!is_plain(t)) return run_eager(call, why_not_compiled(t));
  for (const at::Tensor& t : call.tensors)
    if (modes.grad && has_lost_history(t)) return run_eager(call, "a view's history is lost, as its memory was written", false);
  if (torch::autograd::ForwardADLevel::try_get_by_idx(0)) return run_eager(call, kForwardMode);
  const Closed closed = closed_;
  if (modes.grad && closed == Closed::with_gradients) return run_eager(call, "");
  if (modes.grad && saves_through_hooks()) return run_eager(call, "what is saved for gradients goes through hooks", false);
  if (is_profiled()) return run_eager(call, "a profiler looks at parts of the program by their labels (record_function)", false);
  if (auto results = run_compiled(*entries_.read(), call, modes)) return std::move(*results);
  if (closed == Closed::yes) return run_eager(call, "");
  return capture_and_compile(call, modes);
}

Function::Results Function::run_eager(const CallInputs& call, const std::string& why, bool lasts) {
  note_eager(why, lasts);
  std::vector<c10::SymFloat> floats(call.floats.begin(), call.floats.end());
  return eager_(call.tensors, as_sym_ints(call.ints), floats);
}

// The program itself raises eager's error, with what eager has done by then.
Function::Results Function::run_failed(const CallInputs& call, const FailedRun& failed) {
  Results results = run_eager(call, "");
  std::string why = cat("a compiled run fails where eager does not: ", failed.what());
  std::lock_guard lock(stats_mutex_);
  if (std::find(stats_.eager_reasons.begin(), stats_.eager_reasons.end(), why) != stats_.eager_reasons.end()) return results;
  log_warning(why);
  stats_.eager_reasons.push_back(std::move(why));
  return results;
}

std::optional<Function::Results> Function::run_compiled(const CallInputs& call) {
  Modes modes = Modes::now();
  const Closed closed = closed_;
  if (closed == Closed::yes || is_profiled() || Capture::current() ||
      (modes.grad && (closed == Closed::with_gradients || saves_through_hooks())))
    return std::nullopt;
  auto results = run_compiled(*entries_.read(), call, modes);
  if (results) ++calls_;
  return results;
}

void Function::stop(const std::string& why) {
  std::lock_guard lock(compile_mutex_);
  closed_ = Closed::yes;
  entries_.publish({});
  std::lock_guard guard(stats_mutex_);
  failure_ = why;
  stats_.eager_reasons.push_back(why);
}

bool Function::is_profiled() const { return has_labels_.load(std::memory_order_relaxed) && at::hasCallbacks(); }

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

void Function::reject_capture(Verdict why) {
  if (Capture* c = Capture::current()) c->reject(std::move(why));
}

bool Function::abandon_capture(Verdict why) {
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
      binding.integers = e.int_results;
      tensors = e.program->run(call, binding, observed);
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

FunctionStats Function::stats() const {
  std::lock_guard lock(stats_mutex_);
  FunctionStats s = stats_;
  s.calls = calls_;
  s.compiled_calls = compiled_calls_;
  s.other_ways = other_ways_;
  s.attempts = log_->list();
  return s;
}

Reason Function::failure() const {
  std::lock_guard lock(stats_mutex_);
  return failure_;
}

std::vector<std::shared_ptr<const CompiledProgram>> Function::programs() const {
  std::vector<std::shared_ptr<const CompiledProgram>> out;
  const auto entries = entries_.read();
  for (const Entry& e : *entries) out.push_back(e.program);
  return out;
}

void Function::reset() {
  std::lock_guard lock(compile_mutex_);
  entries_.publish({});
  seen_.clear();
  plan_ = {};
  host_state_ = {};
  profit_ = {};
  closed_ = Closed::no;
  log_->clear();
  std::lock_guard guard(stats_mutex_);
  failure_ = {};
}

}  // namespace broach
