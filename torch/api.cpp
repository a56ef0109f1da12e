// The public C++ API over Function: a module's tensors become inputs of the program, behind the caller's.
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>
#include <iomanip>
#include <map>
#include <mutex>
#include <ostream>

#include "broach/broach.h"
#include "function.h"
#include "modules.h"
#include "rerun.h"
#include "support/error.h"
#include "support/log.h"
#include "support/published.h"
#include "target/target.h"
#include "verify.h"
#include "ways_out.h"

namespace broach {

namespace {

// oneDNN lies beside this library where it was installed with it, or where the build found it.
void find_onednn() {
  static const bool once = [] {
    if (std::getenv("BROACH_ONEDNN_LIBRARY")) return true;
    std::vector<std::filesystem::path> places;
    Dl_info self;
    if (dladdr(reinterpret_cast<const void*>(&find_onednn), &self) && self.dli_fname)
      places.push_back(std::filesystem::path(self.dli_fname).parent_path() / "libdnnl.so.3");
#ifdef BROACH_ONEDNN_BUILT_WITH
    places.push_back(BROACH_ONEDNN_BUILT_WITH);
#endif
    std::error_code ignored;
    for (const auto& p : places)
      if (std::filesystem::exists(p, ignored)) {
        set_library_path("onednn", p.string());
        break;
      }
    return true;
  }();
  (void)once;
}

constexpr int kUndefined = -1;

// Lists every tensor once: `positions` says for each of `given` where it is in `distinct`.
void add_distinct(const at::Tensor& t, std::vector<at::Tensor>& distinct, std::vector<int>& positions) {
  if (!t.defined()) return positions.push_back(kUndefined);
  auto it = std::find_if(distinct.begin(), distinct.end(), [&](const at::Tensor& d) { return d.is_same(t); });
  positions.push_back(static_cast<int>(it - distinct.begin()));
  if (it == distinct.end()) distinct.push_back(t);
}

// A module as it was when it was last read.
struct ModuleView {
  ModuleTree tree;
  std::vector<at::Tensor> distinct;  // its tensors, each once
  std::vector<int> positions;        // of the tree's tensors in `distinct`
};

std::shared_ptr<const ModuleView> view_of(const Modules& modules) {
  auto view = std::make_shared<ModuleView>();
  view->tree = read_modules(modules);
  std::unordered_map<const c10::TensorImpl*, int> seen;
  for (const at::Tensor& t : view->tree.tensors) {
    if (!t.defined()) {
      view->positions.push_back(kUndefined);
      continue;
    }
    auto [it, fresh] = seen.emplace(t.unsafeGetTensorImpl(), static_cast<int>(view->distinct.size()));
    if (fresh) view->distinct.push_back(t);
    view->positions.push_back(it->second);
  }
  return view;
}

// How a program is called, but for its tensors' elements and sizes.
struct CallForm {
  void* program;               // which the types of the arguments follow from
  std::vector<int> arguments;  // position of each tensor among the distinct ones of a call
  std::string rest;            // constants, counts, what is absent
  friend bool operator==(const CallForm&, const CallForm&) = default;
};

// One way in which the program is called: which arguments are one tensor, and the modules' structure and training flags.
struct Variant {
  CallForm form;
  std::shared_ptr<const ModuleView> view;
  std::unique_ptr<Function> function;
  std::shared_ptr<const ProgramAgain> again;

  bool fits(const CallForm& call, const ModuleView* now) const {
    if (!(form == call)) return false;
    return view.get() == now || (view->tree.modules == now->tree.modules && view->tree.training == now->tree.training &&
                                 view->tree.dictionaries == now->tree.dictionaries && view->positions == now->positions);
  }
};

class EagerAgain : public ProgramAgain {
 public:
  // `owner`: of a program that need not live longer.
  EagerAgain(Function::Eager eager, std::shared_ptr<const ModuleView> view, std::weak_ptr<const void> owner)
      : eager_(std::move(eager)), view_(std::move(view)), owner_(std::move(owner)) {}
  std::vector<at::Tensor> run(at::TensorList inputs, at::IntArrayRef ints, at::ArrayRef<double> floats) const override {
    const auto owner = owner_.lock();
    if (!owner)
      throw Error(
          "broach: the program has to be run again for gradients, but the compiled object is gone, and what the program refers to may be so "
          "too: keep it until the gradients are computed");
    if (view_ && !view_->tree.current())
      throw Error(
          "broach: the program has to be run again for gradients, but its modules, or whether they train, have changed since the call");
    return eager_(inputs, as_sym_ints(ints), std::vector<c10::SymFloat>(floats.begin(), floats.end())).tensors;
  }

 private:
  Function::Eager eager_;
  std::shared_ptr<const ModuleView> view_;  // null: it has no modules
  std::weak_ptr<const void> owner_;
};

// How what a program gives is made of its results, among which each tensor is once.
struct ResultForm {
  std::string rest;
  std::vector<size_t> places;  // by tensor
  friend bool operator==(const ResultForm&, const ResultForm&) = default;
};
const ResultForm& form_of(const Function::Results& r) { return *static_cast<const ResultForm*>(r.form.get()); }

Function::Results results_of(detail::Values v) {
  auto form = std::make_shared<ResultForm>();
  form->rest = std::move(v.form);
  std::vector<at::Tensor> distinct;
  for (at::Tensor& t : v.tensors) {
    const auto known = std::find_if(distinct.begin(), distinct.end(), [&](const at::Tensor& d) { return t.defined() && d.is_same(t); });
    form->places.push_back(static_cast<size_t>(known - distinct.begin()));
    if (known == distinct.end()) distinct.push_back(std::move(t));
  }
  return {std::move(distinct), std::move(v.ints), std::move(v.floats), std::move(form)};
}
detail::Values values_of(Function::Results r) {
  const ResultForm& form = form_of(r);
  detail::Values out{{}, std::move(r.ints), std::move(r.floats), form.rest};
  for (size_t p : form.places) out.tensors.push_back(r.tensors[p]);
  return out;
}

}  // namespace

void detail::check_not_rebound(const Values& before, const Values& now) {
  // Those of symbols are compared as they are: to ask for their values would be a guard.
  auto same_int = [](const c10::SymInt& a, const c10::SymInt& b) {
    const auto x = a.maybe_as_int(), y = b.maybe_as_int();
    if (x && y) return *x == *y;
    return a.is_heap_allocated() && b.is_heap_allocated() && a.toSymNodeImplUnowned() == b.toSymNodeImplUnowned();
  };
  auto same_float = [](const c10::SymFloat& a, const c10::SymFloat& b) {
    if (a.is_symbolic() || b.is_symbolic())
      return a.is_symbolic() && b.is_symbolic() && a.toSymNodeImplUnowned() == b.toSymNodeImplUnowned();
    return std::bit_cast<int64_t>(a.as_float_unchecked()) == std::bit_cast<int64_t>(b.as_float_unchecked());
  };
  auto same = [](const auto& a, const auto& b, auto equal) { return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal); };
  check(
      before.form == now.form && same(before.tensors, now.tensors, [](const auto& a, const auto& b) { return a.is_same(b); }) &&
          same(before.ints, now.ints, same_int) && same(before.floats, now.floats, same_float),
      "broach: the program makes an argument given by reference another tensor, number or list, which a compiled call could not do: return "
      "it, or write to the tensor's elements");
}

class Compiled::State {
 public:
  State(Modules modules, bool function, std::shared_ptr<void> target, const Options& options)
      : modules_(std::move(modules)), is_function_(function), target_(std::move(target)), options_(options) {
    find_onednn();
    for (const auto& m : modules_) check(m.get(), "broach::compile: an empty module holder or pointer");
    if (!modules_.empty()) view_.publish(view_of(modules_));
    if (std::string why = why_not_replayed(view_.load().get()); !why.empty() && !options_.falls_back())
      throw Error("broach::compile: " + why);
  }

  detail::Values call(Program program, detail::Values given) {
    std::shared_ptr<const ModuleView> view = current_view();
    std::vector<at::Tensor> distinct;
    distinct.reserve((view ? view->distinct.size() : 0) + given.tensors.size());
    if (view) distinct = view->distinct;
    size_t own = distinct.size();
    CallForm form{reinterpret_cast<void*>(program), {}, std::move(given.form)};
    form.arguments.reserve(given.tensors.size());
    for (const at::Tensor& t : given.tensors) add_distinct(t, distinct, form.arguments);
    std::shared_ptr<const Variant> variant = variant_for(program, form, view);
    if (!variant) return given.form = std::move(form.rest), program(target_.get(), given);
    std::vector<int64_t> ints;
    std::vector<double> floats;
    for (const c10::SymInt& i : given.ints) ints.push_back(i.guard_int(__FILE__, __LINE__));
    for (const c10::SymFloat& f : given.floats) floats.push_back(f.guard_float(__FILE__, __LINE__));
    CallInputs inputs{distinct, ints, floats, &variant->again};
    try {
      if (verified_ < options_.verifies())
        if (auto results = verified(*variant, inputs, own, program)) return std::move(*results);
      return values_of((*variant->function)(inputs));
    } catch (const Unsupported& e) {
      const std::string way = way_out(e.what());
      throw Error(cat("broach: the program cannot be compiled: ", e.what(), way.empty() ? "." : way,
                      " Options().fallback(true) runs such programs eagerly."));
    } catch (const IndexError& e) {
      C10_THROW_ERROR(IndexError, e.what());  // as eager's operations throw it; what the program throws passes
    }
  }

  Explanation explain() const {
    Explanation out;
    std::lock_guard lock(mutex_);
    out.calls = out.eager_calls = eager_calls_;
    out.verified_calls = verified_;
    out.eager_reasons = eager_reasons_;
    std::vector<KeptWeight> kept;  // variants share some
    for (const auto& v : variants_) add(*v->function, out, kept);
    out.kept = grouped(kept);
    for (const KeptWeights& k : out.kept) out.packed_bytes += k.bytes;
    return out;
  }

  void reset() {
    std::lock_guard lock(mutex_);
    last_.publish(nullptr);
    variants_.clear();
    if (!modules_.empty()) view_.publish(view_of(modules_));
  }

 private:
  std::string why_not_replayed(const ModuleView* view) const {
    if (options_.is_pure()) return "";
    constexpr const char* rest =
        " runs host code of its own, which a compiled program does not run again: what it computes there would stay as the first call found it. If it depends "
        "on nothing but its arguments, tensors and training flags, say so by Options().pure(), and name the modules that a function calls by broach::uses(); "
        "Options().fallback(true) runs it eagerly.";
    if (is_function_) return cat("the function", rest);
    std::string foreign = first_foreign_module(view->tree);
    return foreign.empty() ? "" : cat("the module ", foreign, rest);
  }

  std::shared_ptr<const ModuleView> current_view() {
    if (modules_.empty()) return nullptr;
    auto view = view_.load();
    if (view->tree.current()) return view;
    view = view_of(modules_);
    std::lock_guard lock(mutex_);
    view_.publish(view);
    return view;
  }

  // Null if the program has to run eagerly.
  std::shared_ptr<const Variant> variant_for(Program program, const CallForm& form, const std::shared_ptr<const ModuleView>& view) {
    auto last = last_.load();
    if (last && last->fits(form, view.get())) return last;
    std::lock_guard lock(mutex_);
    auto it = std::find_if(variants_.begin(), variants_.end(), [&](const auto& v) { return v->fits(form, view.get()); });
    if (it == variants_.end()) {
      if (std::string why = why_not_replayed(view.get()); !why.empty()) {
        if (!options_.falls_back()) throw Error("broach: " + why);
        return note_eager(why, false);
      }
      if (variants_.size() >= kMostVariants)
        return note_eager(cat("more than ", kMostVariants, " states of the modules, or constants among the arguments, were met"), true);
      variants_.push_back(new_variant(program, form, view));
      it = variants_.end() - 1;
    }
    last_.publish(*it);
    return *it;
  }

  std::shared_ptr<const Variant> new_variant(Program program, const CallForm& form, const std::shared_ptr<const ModuleView>& view) const {
    auto v = std::make_shared<Variant>();
    v->form = form;
    v->view = view;
    ProgramOptions o;
    o.settings.strict = options_.is_strict();
    o.freeze = options_.freezes();
    o.eager_random = !options_.draws_by_counter();
    o.memory_budget = options_.memory_budget();
    o.settings.threads = options_.threads();
    o.settings.contractions.deterministic = options_.is_deterministic();
    o.branches = kMostBranches;
    auto eager = [target = target_, program, form](at::TensorList distinct, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats) {
      detail::Values given{{}, ints.vec(), floats.vec(), form.rest};
      for (int p : form.arguments) given.tensors.push_back(p == kUndefined ? at::Tensor() : distinct[static_cast<size_t>(p)]);
      return results_of(program(target.get(), given));
    };
    std::vector<bool> constant(view ? view->distinct.size() : 0, true);
    bool own_code = is_function_ || !first_foreign_module(view->tree).empty();  // libtorch's layers keep nothing
    Function::Rules rules{options_.falls_back() ? Function::OnFailure::run_eagerly : Function::OnFailure::raise,
                          /*unwatched_state=*/own_code, /*warns=*/true};
    // A module that is shared lives as long as what refers to it.
    const bool is_shared = !is_function_ && target_.use_count() > 0;
    v->again = std::make_shared<const EagerAgain>(eager, view, is_shared ? std::shared_ptr<const void>(target_) : alive_);
    v->function = std::make_unique<Function>(eager, constant, o, kMostPrograms, rules);
    return v;
  }

  // The option `verify`. Nothing if no compiled version stands for the call; one call at a time.
  std::optional<detail::Values> verified(const Variant& variant, const CallInputs& inputs, size_t own, Program program) {
    std::lock_guard lock(verify_mutex_);
    std::vector<at::Tensor> held;
    for (const auto& p : variant.function->programs()) held.insert(held.end(), p->lifted().begin(), p->lifted().end());
    Trial trial(inputs.tensors.vec(), own, held);
    auto got = variant.function->run_compiled({trial.inputs(), inputs.ints, inputs.floats});
    if (!got) return std::nullopt;
    trial.rewind();
    detail::Values again{{}, {inputs.ints.begin(), inputs.ints.end()}, {inputs.floats.begin(), inputs.floats.end()}, variant.form.rest};
    for (int p : variant.form.arguments) again.tensors.push_back(p == kUndefined ? at::Tensor() : inputs.tensors[static_cast<size_t>(p)]);
    Function::Results want = results_of(program(target_.get(), again));
    ++verified_;
    std::string why = trial.difference(want, *got);
    if (why.empty() && !(form_of(want) == form_of(*got))) why = "a constant, or which tensors are one, in the result";
    if (!why.empty()) {
      why = cat("a compiled call differs from eager: ", why);
      log_warning("runs eagerly: ", why);
      variant.function->stop(why);
    }
    return values_of(std::move(want));
  }

  std::shared_ptr<const Variant> note_eager(const std::string& why, bool warn) {
    ++eager_calls_;
    if (std::find(eager_reasons_.begin(), eager_reasons_.end(), why) == eager_reasons_.end()) {
      eager_reasons_.push_back(why);
      if (warn) log_warning("runs eagerly: ", why);
      else log_info("runs eagerly: ", why);  // asked for by fallback()
    }
    return nullptr;
  }

  static void add(const Function& function, Explanation& out, std::vector<KeptWeight>& kept) {
    auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    FunctionStats f = function.stats();
    out.calls += f.calls;
    out.compiled_calls += f.compiled_calls;
    out.eager_calls += f.eager_calls;
    append(out.recompilations, f.recompilations);
    append(out.eager_reasons, f.eager_reasons);
    append(out.fixed_sizes, f.fixed_sizes);
    for (const Attempt& a : f.attempts) {
      out.attempts.push_back(a.str());
      out.capture_seconds += a.capture_seconds;
      out.compile_seconds += a.compile_seconds;
    }
    for (const auto& program : function.programs()) {
      ++out.programs;
      try {
        add(program->stats(), out, kept);
      } catch (const Error& e) {  // of a library that is asked which implementation it would take
        out.picks.push_back(cat("unknown: ", e.what()));
      }
    }
  }

  static void add(const ProgramStats& p, Explanation& out, std::vector<KeptWeight>& kept) {
    out.kernels += p.code.kernels;
    out.distinct_kernels += p.code.distinct_kernels;
    out.contractions += p.code.contractions;
    out.routines += p.code.routines;
    for (const auto& [schema, n] : p.code.externs) out.externs[schema] += n;
    out.picks.insert(out.picks.end(), p.picks.begin(), p.picks.end());
    out.guards.insert(out.guards.end(), p.guards.begin(), p.guards.end());
    kept.insert(kept.end(), p.kept.begin(), p.kept.end());
    out.arena_bytes = std::max(out.arena_bytes, p.arena_bytes);
    out.saved_bytes = std::max(out.saved_bytes, p.saved_bytes);
    out.reruns += p.reruns;
  }

  static constexpr size_t kMostVariants = 64, kMostPrograms = 32;
  static constexpr int kMostBranches = 16;
  Modules modules_;
  bool is_function_;
  std::shared_ptr<void> target_;
  Options options_;
  Published<std::shared_ptr<const ModuleView>> view_;  // replaced under mutex_, as is the next
  Published<std::shared_ptr<const Variant>> last_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const Variant>> variants_;
  std::mutex verify_mutex_;
  std::atomic<int64_t> verified_{0};
  int64_t eager_calls_ = 0;
  std::vector<std::string> eager_reasons_;
  std::shared_ptr<const void> alive_ = std::make_shared<char>();
};

Compiled::Compiled(Modules modules, bool function, std::shared_ptr<void> target, const Options& options)
    : state_(std::make_shared<State>(std::move(modules), function, std::move(target), options)) {}
Compiled::State& Compiled::state() const {
  check(state_ != nullptr, "broach: a compiled program is used that was moved from");
  return *state_;
}
detail::Values Compiled::run(Program program, detail::Values arguments) const { return state().call(program, std::move(arguments)); }
Explanation Compiled::explain() const { return state().explain(); }
void Compiled::reset() { state().reset(); }

// What is kept beside the weights, and what it brings in each call.
template <class Row>
static void add_rows(const std::vector<KeptWeights>& kept, int64_t bytes, const Row& row) {
  auto mib = [](int64_t b) { return static_cast<double>(b) / (1 << 20); };
  double with = 0, without = 0;
  for (const KeptWeights& k : kept) with += k.seconds, without += k.seconds_unpacked;
  if (without > 0) row("packed weights", mib(bytes), " MiB, ", 1e3 * with, " ms for ", 1e3 * without, " ms without");
  else row("packed weights", mib(bytes), " MiB");
  for (const KeptWeights& k : kept) {
    if (k.seconds_unpacked > 0)
      row("  " + k.what, mib(k.bytes), " MiB, ", k.count, "x, ", 1e3 * k.seconds, " ms for ", 1e3 * k.seconds_unpacked, " ms without");
    else row("  " + k.what, mib(k.bytes), " MiB, ", k.count, "x, ", k.why);
  }
}

std::string Explanation::str() const {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  auto row = [&](const std::string& name, const auto&... value) {
    out << std::left << std::setw(16) << name;
    ((out << value), ...) << '\n';
  };
  const int64_t recorded = std::max<int64_t>(0, calls - compiled_calls - eager_calls);  // a capture that came to nothing may count twice
  row("calls", calls, " (", recorded, " recorded, ", compiled_calls, " compiled, ", eager_calls, " eager)");
  if (verified_calls) row("verified", verified_calls, " calls");
  row("programs", programs);
  row("kernels", kernels, " (", distinct_kernels, " distinct)");
  row("contractions", contractions);
  row("routines", routines);
  row("capture", 1e3 * capture_seconds, " ms");
  row("compile", 1e3 * compile_seconds, " ms");
  add_rows(kept, packed_bytes, row);
  row("arena", static_cast<double>(arena_bytes) / (1 << 20), " MiB");
  if (saved_bytes) row("saved for gradients", static_cast<double>(saved_bytes) / (1 << 20), " MiB");
  if (reruns) row("run again", reruns, "x, for gradients");
  for (const auto& [schema, n] : externs) row("extern", schema, " (", n, "x)");
  std::map<std::string, int> counted;
  for (const auto& p : picks) ++counted[p];
  for (const auto& [pick, n] : counted) row("pick", pick, " (", n, "x)");
  for (const auto& attempt : attempts) row("captured with", attempt);
  for (const auto& why : recompilations) row("recompiled", why);
  for (const auto& size : fixed_sizes) row("fixed size", size, way_out(size));
  for (const auto& why : eager_reasons) row("runs eagerly", why);
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const Explanation& e) { return out << e.str(); }

}  // namespace broach
