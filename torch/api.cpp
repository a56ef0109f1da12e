// The public C++ API over Function: a module's tensors become inputs of the program, behind the caller's.
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iomanip>
#include <map>
#include <mutex>
#include <ostream>

#include "broach/broach.h"
#include "function.h"
#include "modules.h"
#include "support/error.h"
#include "support/log.h"
#include "target/target.h"

namespace broach {

namespace {

// oneDNN lies beside this library where it was installed with it, or where the build found it.
void find_onednn() {
  static const bool once = [] {
    if (std::getenv("BROACH_ONEDNN_LIBRARY")) return true;
    std::vector<std::filesystem::path> places;
    Dl_info self;
    if (dladdr(reinterpret_cast<const void*>(&find_onednn), &self) && self.dli_fname) places.push_back(std::filesystem::path(self.dli_fname).parent_path() / "libdnnl.so.3");
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

std::shared_ptr<const ModuleView> view_of(const std::shared_ptr<torch::nn::Module>& module) {
  auto view = std::make_shared<ModuleView>();
  view->tree = read_modules(module);
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

// One way in which the program is called: which arguments are one tensor, and the module's structure and training flags.
struct Variant {
  std::vector<int> arguments;  // position of each argument among the distinct tensors of a call
  std::shared_ptr<const ModuleView> view;
  std::unique_ptr<Function> function;

  bool fits(const std::vector<int>& call, const ModuleView* now) const {
    if (arguments != call) return false;
    return view.get() == now || (view->tree.modules == now->tree.modules && view->tree.training == now->tree.training && view->positions == now->positions);
  }
};

constexpr const char* kWayOut =
    " Ways out: express it in tensor operations (torch::where, masks), move it out of the compiled program and pass its result in, or let "
    "Options().fallback(true) run such programs eagerly.";

}  // namespace

class Compiled::State {
 public:
  State(std::shared_ptr<torch::nn::Module> module, Host host, const Options& options) : module_(std::move(module)), host_(std::move(host)), options_(options) {
    find_onednn();
    if (module_) view_ = view_of(module_);
    if (std::string why = why_not_replayed(view_.load().get()); !why.empty() && !options_.falls_back()) throw Error("broach::compile: " + why);
  }

  Tensors call(const Tensors& inputs) {
    std::shared_ptr<const ModuleView> view = current_view();
    std::vector<at::Tensor> distinct;
    distinct.reserve((view ? view->distinct.size() : 0) + inputs.size());
    if (view) distinct = view->distinct;
    std::vector<int> arguments;
    arguments.reserve(inputs.size());
    for (const at::Tensor& t : inputs) add_distinct(t, distinct, arguments);
    std::shared_ptr<const Variant> variant = variant_for(arguments, view);
    if (!variant) return host_(inputs);
    try {
      return (*variant->function)({distinct}).tensors;
    } catch (const Unsupported& e) {
      throw Error(cat("broach: the program cannot be compiled: ", e.what(), ".", kWayOut));
    }
  }

  Explanation explain() const {
    Explanation out;
    std::lock_guard lock(mutex_);
    out.calls = out.eager_calls = eager_calls_;
    out.eager_reasons = eager_reasons_;
    std::map<const void*, int64_t> packed;  // variants share some
    for (const auto& v : variants_) add(*v->function, out, packed);
    for (const auto& [memory, bytes] : packed) out.packed_bytes += bytes;
    return out;
  }

  void reset() {
    std::lock_guard lock(mutex_);
    last_.store(nullptr);
    variants_.clear();
    if (module_) view_.store(view_of(module_));
  }

 private:
  std::string why_not_replayed(const ModuleView* view) const {
    if (options_.is_pure()) return "";
    constexpr const char* rest =
        " runs host code of its own, which a compiled program does not run again: what it computes there would stay as the first call found it. If it depends "
        "on nothing but tensors and training flags, say so by Options().pure(); Options().fallback(true) runs it eagerly.";
    if (!view) return cat("the function", rest);
    std::string foreign = first_foreign_module(view->tree);
    return foreign.empty() ? "" : cat("the module ", foreign, rest);
  }

  std::shared_ptr<const ModuleView> current_view() {
    if (!module_) return nullptr;
    auto view = view_.load(std::memory_order_acquire);
    if (view->tree.current()) return view;
    view = view_of(module_);
    view_.store(view, std::memory_order_release);
    return view;
  }

  // Null if the program has to run eagerly.
  std::shared_ptr<const Variant> variant_for(const std::vector<int>& arguments, const std::shared_ptr<const ModuleView>& view) {
    auto last = last_.load(std::memory_order_acquire);
    if (last && last->fits(arguments, view.get())) return last;
    std::lock_guard lock(mutex_);
    auto it = std::find_if(variants_.begin(), variants_.end(), [&](const auto& v) { return v->fits(arguments, view.get()); });
    if (it == variants_.end()) {
      if (std::string why = why_not_replayed(view.get()); !why.empty()) {
        if (!options_.falls_back()) throw Error("broach: " + why);
        return note_eager(why);
      }
      if (variants_.size() >= kMostVariants) return note_eager(cat("more than ", kMostVariants, " states of the module were met"));
      variants_.push_back(new_variant(arguments, view));
      it = variants_.end() - 1;
    }
    last_.store(*it, std::memory_order_release);
    return *it;
  }

  std::shared_ptr<const Variant> new_variant(const std::vector<int>& arguments, const std::shared_ptr<const ModuleView>& view) const {
    auto v = std::make_shared<Variant>();
    v->arguments = arguments;
    v->view = view;
    ProgramOptions o;
    o.settings.strict = options_.is_strict();
    o.freeze = options_.freezes();
    o.settings.threads = options_.threads();
    o.settings.contractions.deterministic = options_.is_deterministic();
    auto eager = [host = host_, arguments](at::TensorList distinct, c10::SymIntArrayRef, c10::ArrayRef<c10::SymFloat>) -> Function::Results {
      Tensors inputs;
      for (int p : arguments) inputs.push_back(p == kUndefined ? at::Tensor() : distinct[static_cast<size_t>(p)]);
      return {host(inputs), {}, {}, nullptr};
    };
    std::vector<bool> constant(view ? view->distinct.size() : 0, true);
    v->function = std::make_unique<Function>(eager, constant, o, kMostPrograms, options_.falls_back() ? Function::OnFailure::run_eagerly : Function::OnFailure::raise);
    return v;
  }

  std::shared_ptr<const Variant> note_eager(const std::string& why) {
    ++eager_calls_;
    if (std::find(eager_reasons_.begin(), eager_reasons_.end(), why) == eager_reasons_.end()) {
      eager_reasons_.push_back(why);
      log_info("runs eagerly: ", why);  // asked for by fallback()
    }
    return nullptr;
  }

  static void add(const Function& function, Explanation& out, std::map<const void*, int64_t>& packed) {
    auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    FunctionStats f = function.stats();
    out.calls += f.calls;
    out.compiled_calls += f.compiled_calls;
    out.eager_calls += f.eager_calls;
    append(out.recompilations, f.recompilations);
    append(out.eager_reasons, f.eager_reasons);
    for (double s : f.capture_seconds) out.capture_seconds += s;
    for (double s : f.compile_seconds) out.compile_seconds += s;
    for (const auto& program : function.programs()) {
      ProgramStats p = program->stats();
      ++out.programs;
      out.kernels += p.code.kernels;
      out.distinct_kernels += p.code.distinct_kernels;
      out.contractions += p.code.contractions;
      out.routines += p.code.routines;
      for (const auto& [schema, n] : p.code.externs) out.externs[schema] += n;
      append(out.picks, p.picks);
      append(out.guards, p.guards);
      packed.merge(p.packed);
      out.arena_bytes = std::max(out.arena_bytes, p.arena_bytes);
    }
  }

  static constexpr size_t kMostVariants = 64, kMostPrograms = 32;
  std::shared_ptr<torch::nn::Module> module_;  // null for a function
  Host host_;
  Options options_;
  std::atomic<std::shared_ptr<const ModuleView>> view_;
  std::atomic<std::shared_ptr<const Variant>> last_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const Variant>> variants_;
  int64_t eager_calls_ = 0;
  std::vector<std::string> eager_reasons_;
};

Compiled::Compiled(Host host, const Options& options) : Compiled(nullptr, std::move(host), options) {}
Compiled::Compiled(std::shared_ptr<torch::nn::Module> module, Host host, const Options& options) : state_(std::make_shared<State>(std::move(module), std::move(host), options)) {}
Tensors Compiled::operator()(const Tensors& inputs) const { return state_->call(inputs); }
Explanation Compiled::explain() const { return state_->explain(); }
void Compiled::reset() { state_->reset(); }

std::string Explanation::str() const {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  auto row = [&](const std::string& name, const auto&... value) {
    out << std::left << std::setw(16) << name;
    ((out << value), ...) << '\n';
  };
  row("calls", calls, " (", compiled_calls, " compiled, ", eager_calls, " eager)");
  row("programs", programs);
  row("kernels", kernels, " (", distinct_kernels, " distinct)");
  row("contractions", contractions);
  row("routines", routines);
  row("capture", 1e3 * capture_seconds, " ms");
  row("compile", 1e3 * compile_seconds, " ms");
  row("packed weights", static_cast<double>(packed_bytes) / (1 << 20), " MiB");
  row("arena", static_cast<double>(arena_bytes) / (1 << 20), " MiB");
  for (const auto& [schema, n] : externs) row("extern", schema, " (", n, "x)");
  std::map<std::string, int> counted;
  for (const auto& p : picks) ++counted[p];
  for (const auto& [pick, n] : counted) row("pick", pick, " (", n, "x)");
  for (const auto& why : recompilations) row("recompiled", why);
  for (const auto& why : eager_reasons) row("runs eagerly", why);
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const Explanation& e) { return out << e.str(); }

}  // namespace broach
