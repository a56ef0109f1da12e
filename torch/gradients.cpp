#include "gradients.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/add.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "compat.h"
#include "devices.h"
#include "externs.h"
#include "hooks_aside.h"
#include "leaf_gradients.h"
#include "passes/passes.h"
#include "support/error.h"
#include "tensors.h"

namespace broach {

namespace {

namespace ag = torch::autograd;

// Gradients that are waited for come in so many parts: of each the reduction goes on beside what computes the next.
constexpr size_t kMostParts = 8;

// The runs under way for the gradients of one call, which its nodes take on one after another.
class Runs {
 public:
  void begin(BackwardRun run) {
    std::lock_guard lock(mutex_);
    runs_.insert_or_assign(ag::get_current_graph_task_id(), std::move(run));
  }
  // What is ready next for the engine's run under way; nothing if nobody wants what is left.
  ag::variable_list next() {
    std::lock_guard lock(mutex_);
    auto run = runs_.find(ag::get_current_graph_task_id());
    if (run == runs_.end()) return {};
    ag::variable_list out = run->second.next();
    if (run->second.is_over()) runs_.erase(run);
    return out;
  }

 private:
  std::mutex mutex_;
  std::map<int, BackwardRun> runs_;  // by the engine's graph task
};

// Gives gradients that are ready later than others. Its edges are those of all gradients and, behind them, that to the next such node.
class LaterGradients : public ag::Node {
 public:
  explicit LaterGradients(std::shared_ptr<Runs> runs) : runs_(std::move(runs)) {}
  std::string name() const override { return "BroachBackward"; }
  ag::variable_list apply(ag::variable_list&&) override {
    ag::variable_list out = runs_->next();
    give_to_leaves(*this, out, [](size_t) { return true; });
    out.resize(num_outputs());
    return out;
  }

 private:
  std::shared_ptr<Runs> runs_;
};

// Of sizes, strides and the type of elements: the code for gradients is made for these.
uint64_t layout_of(const at::Tensor& t) {
  uint64_t hash = static_cast<uint64_t>(t.scalar_type()) + (static_cast<uint64_t>(t.device().type()) << 8);
  for (const c10::IntArrayRef numbers : {t.sizes(), t.strides()})
    for (int64_t n : numbers) hash = (hash ^ static_cast<uint64_t>(n)) * 0x9e3779b97f4a7c15ull + 1;
  return hash;
}

// The code for gradients cannot be had, or not be used: the text says why.
class NoCode : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Saved {
  ag::SavedVariable variable;
  at::Tensor own;  // instead of the variable
  uint64_t layout;
  c10::VariableVersion counter = {};  // which the variable has as well, and tells of by an error alone
  uint32_t version = 0;
  bool was_written() const { return counter.enabled() && counter.current_version() != version; }
};

// Some results of one call of a compiled program in autograd's graph.
class CompiledCall : public ag::Node {
 public:
  // `own`: which of the call's tangents are those of its results; there are `tangents` in all.
  CompiledCall(std::shared_ptr<const Backward> backward, std::vector<int64_t> symbols, std::vector<size_t> own, size_t tangents,
               std::shared_ptr<KeptOfCall> kept)
      : backward_(std::move(backward)), symbols_(std::move(symbols)), own_(std::move(own)), tangents_(tangents), kept_(std::move(kept)) {}

  std::string name() const override { return "BroachBackward"; }

  // Tensors that others may write to, which would be noticed.
  void save(const at::Tensor& t, bool is_result) {
    const auto& counter = t.unsafeGetTensorImpl()->version_counter();
    saved_.push_back({ag::SavedVariable(t, is_result), at::Tensor(), layout_of(t), counter, static_cast<uint32_t>(version_of(t))});
  }
  void save_own(at::Tensor t) { saved_.push_back({ag::SavedVariable(), std::move(t), 0}); }

  ag::variable_list apply(ag::variable_list&& given) override {
    const std::string changed = backward_->changed();
    std::lock_guard lock(mutex_);
    ag::variable_list tangents(tangents_);
    use(given);
    for (size_t t = 0; t < given.size(); ++t) {
      at::Tensor& g = given[t];  // the derivative of a sign is a zero without elements, to which nothing can be added
      if (g.defined()) tangents[own_[t]] = g._is_zerotensor() ? at::zeros(g.sizes(), g.options()) : std::move(g);
    }
    came_.assign(tangents.size(), false);
    for (size_t t = 0; t < tangents.size(); ++t) came_[t] = tangents[t].defined();
    const bool in_parts = runs_ != nullptr;
    if (std::ranges::none_of(tangents, &at::Tensor::defined)) return give(backward_->as_run(ag::variable_list(gradients()), in_parts));
    if (const std::string why = why_again(changed, tangents); !why.empty())
      return give(backward_->as_run(run_eagerly(cat("broach: ", why, ": they need the program to be run again"), tangents), in_parts));
    released_ = !ag::get_current_graph_task_keep_graph() && none_remains() && !saves_nothing();
    auto saved = [&](size_t i) {
      TORCH_CHECK(i < saved_.size(), ag::ERR_BACKWARD_TWICE);
      Saved& s = saved_[i];
      if (s.own.defined()) return released_ ? std::move(s.own) : s.own;
      if (knows() && s.was_written()) throw NoCode("a tensor was written since, which eager does not keep");
      at::Tensor t = s.variable.unpack(getptr());
      if (layout_of(t) != s.layout) throw NoCode("a tensor has other sizes, strides or elements than in the call, by its .data");
      if (released_) s.variable = ag::SavedVariable();  // what the caller has let go of is nobody else's then
      return t;
    };
    std::optional<BackwardRun> run;
    try {
      run.emplace(backward_->run(saved, tangents, wanted(), symbols_, in_parts));
    } catch (const NoCode& e) {
      return give(backward_->as_run(run_eagerly(cat("broach: ", e.what(), ": gradients need another run"), tangents), in_parts));
    }
    // Each tangent goes when it has been read. What is saved and nobody reads would keep the memory of the others.
    tangents.clear();
    if (released_) saved_.clear();
    return give(std::move(*run));
  }

  // For the result of a tangent of which others are made on the way, by the program run again: the gradients of these, `ends`. What goes
  // past them comes with what this node gives in the same run of the engine's.
  ag::variable_list run_to(const std::vector<size_t>& ends, size_t tangent, const at::Tensor& value) {
    std::lock_guard lock(mutex_);
    ag::variable_list tangents(tangents_), own(own_.size());
    tangents[tangent] = own[static_cast<size_t>(std::ranges::find(own_, tangent) - own_.begin())] = value;
    use(own);
    ag::variable_list out = run_eagerly(
        "broach: gradients of a result from which another one is made (asked for, kept, or seen by a hook) need the program to be run again",
        tangents, ends);
    const auto past = out.begin() + static_cast<std::ptrdiff_t>(gradients());
    for (auto g = out.begin(); g != past; ++g) {
      if (!g->defined()) continue;
      ag::variable_list& known = past_[ag::get_current_graph_task_id()];
      known.resize(gradients());
      at::Tensor& more = known[static_cast<size_t>(g - out.begin())];
      more = more.defined() ? at::add(more, *g) : *g;
    }
    return {past, out.end()};
  }

  // Whether the engine's run under way asks for a gradient of something that this result depends on.
  bool wants_from(size_t tangent) {
    const std::vector<bool> asked = wanted();
    for (size_t g = 0; g < asked.size(); ++g)
      if (asked[g] && backward_->reaches(tangent, g)) return true;
    return false;
  }

  // A result whose gradient was not asked for may still be differentiated, as far as somebody has it: eager frees what leads to the others.
  void release_variables() override {
    std::lock_guard lock(mutex_);
    const bool is_last = none_remains();
    for (Result& r : results_) r.was_used |= std::exchange(r.is_in_use, false);
    if (!is_last) return;
    if (saves_nothing()) again_.reset();
    if (!may_run_to()) given_.clear();
    if (saves_nothing()) return;
    saved_.clear();
    past_.clear();
    released_ = true;
  }

  // Gradients are given by several nodes, of which this is the first.
  void give_in_parts(std::shared_ptr<Runs> runs) { runs_ = std::move(runs); }

  // `is_base`: nobody is given it, but views of it.
  void add_result(const at::Tensor& t, bool is_base) {
    results_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(t.getIntrusivePtr())});
    if (is_base) results_.back().version = version_of(t);
  }

  // For gradients of gradients, which run the program again. `reached`, by input: what no result depends on comes without its history, which
  // leads back to all calls before where the program keeps a result from call to call.
  void keep(const CallInputs& call, const std::vector<bool>& reached, std::shared_ptr<const FoundByCall> found) {
    if (!call.again) return;
    again_ = *call.again;
    found_ = std::move(found);
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      const at::Tensor& t = call.tensors[i];
      given_.emplace_back(t.defined() && t.grad_fn() && !reached[i] ? t.detach().requires_grad_() : t, version_of(t));
      needed_.push_back(t.defined() && t.requires_grad());
    }
    held_versions_ = backward_->held_versions(given_.size());
    ints_ = call.ints.vec();
    floats_ = call.floats.vec();
  }

 private:
  // What eager keeps, by which its errors go.
  bool knows() const { return backward_->knows_what_eager_keeps(); }

  // What is linear can be had again, as from eager; but for gradients of gradients, which would keep what the call was given.
  bool saves_nothing() const { return !released_ && saved_.empty(); }

  // `given`, by its results: tangents.
  void use(const ag::variable_list& given) {
    const bool keeps_graph = ag::get_current_graph_task_keep_graph();
    if (kept_) {
      std::vector<bool> tangents(tangents_);
      for (size_t t = 0; t < given.size(); ++t) tangents[own_[t]] = given[t].defined();
      kept_->use(tangents, wanted(), keeps_graph);
    }
    if (knows()) return;
    TORCH_CHECK(!released_, ag::ERR_BACKWARD_TWICE);
    for (size_t t = 0; t < given.size() && !saves_nothing(); ++t) {
      if (!given[t].defined()) continue;
      TORCH_CHECK(!results_[t].was_used, ag::ERR_BACKWARD_TWICE);
      results_[t].is_in_use = !keeps_graph;
    }
  }

  size_t gradients() const { return num_outputs() - (runs_ ? 1 : 0); }

  // Why compiled code cannot give gradients for these tangents; empty if it can. `changed`: what code of the program's reads.
  std::string why_again(const std::string& changed, const ag::variable_list& tangents) const {
    if (!changed.empty())
      return cat("gradients are computed by code of the program's, and what it reads has changed since the call (", changed, ")");
    if (backward_->lie_otherwise(tangents, symbols_))
      return "gradients are computed by code that asks how tensors lie in memory, which these do otherwise than those of the recorded call";
    if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return "a mode of torch's sees the operations that compute gradients";
    auto is_other = [](const at::Tensor& t) { return t.defined() && !is_plain(t); };
    if (c10::GradMode::is_enabled() || std::ranges::any_of(tangents, is_other))
      return "gradients of gradients (create_graph=True) and batches of them";
    return "";
  }

  // By gradient: whether this run of the engine's asks for it, here or of a later node.
  std::vector<bool> wanted() {
    const size_t count = gradients();
    std::vector<bool> out(count);
    for (ag::Node* n = this; n; n = n->num_outputs() > count ? n->next_edge(count).function.get() : nullptr)
      for (size_t g = 0; g < count; ++g) out[g] = out[g] || n->task_should_compute_output(g);
    return out;
  }

  ag::variable_list give(BackwardRun run) {
    if (auto past = past_.extract(ag::get_current_graph_task_id())) run.add(std::move(past.mapped()));
    ag::variable_list out = run.next();
    if (runs_ && !run.is_over()) runs_->begin(std::move(run));
    give_to_leaves(*this, out, [this](size_t g) {
      for (size_t t = 0; t < came_.size(); ++t)
        if (came_[t] && backward_->reaches(t, g)) return true;
      return false;
    });
    out.resize(num_outputs());
    return out;
  }

  // Whether no other backward can come.
  bool none_remains() const {
    auto is_spent = [&](size_t r) { return knows() ? !kept_ || kept_->is_spent(own_[r]) : results_[r].was_used || results_[r].is_in_use; };
    for (size_t r = 0; r < results_.size(); ++r)
      if (!is_spent(r) && !results_[r].is_over()) return false;
    return true;
  }

  // Whether the gradient of a result on the way from another may be asked for: what lies between, eager may have kept.
  bool may_run_to() const {
    std::vector<size_t> alive;
    for (size_t r = 0; r < own_.size(); ++r)
      if (!results_[r].is_over()) alive.push_back(own_[r]);
    auto is_alive = [&](size_t t) { return std::ranges::count(alive, t) > 0; };
    return std::ranges::any_of(alive, [&](size_t t) { return std::ranges::any_of(backward_->through(t), is_alive); });
  }

  // `what`: why it is.
  std::vector<at::Tensor> run_eagerly(const std::string& what, const ag::variable_list& tangents, const std::vector<size_t>& ends = {}) {
    TORCH_CHECK(again_, what, ", and it is not at hand. Call it without compiling it where they are needed.");
    const Rerun& rerun = backward_->rerun();
    TORCH_CHECK(rerun.why_not().empty(), what, ", but ", rerun.why_not(), ". Call it without compiling it where they are needed.");
    std::vector<bool> reached = backward_->reached(tangents, wanted());
    if (ends.empty() && std::ranges::none_of(reached, std::identity())) return std::vector<at::Tensor>(gradients());
    TORCH_CHECK(given_.size() == needed_.size(), ag::ERR_BACKWARD_TWICE);  // let go
    for (const Saved& s : saved_)
      if (!s.own.defined() && !(knows() && s.was_written())) s.variable.unpack(getptr());  // eager's error where it was written since
    std::vector<at::Tensor> tensors;
    for (const auto& [t, version] : given_) {
      TORCH_CHECK(version_of(t) == version || rerun.writes(tensors.size()), what,
                  ", but one of the tensors that it was given has been modified by an inplace operation.");
      tensors.push_back(t);
    }
    TORCH_CHECK(backward_->held_versions(given_.size()) == held_versions_, what,
                ", but one of the tensors that it holds has been modified by an inplace operation.");
    return backward_->run_eagerly(*again_, {tensors, ints_, floats_}, needed_, found_.get(), tangents, std::move(reached), ends);
  }

  std::shared_ptr<const Backward> backward_;
  std::shared_ptr<Runs> runs_;  // null: this node gives all gradients
  std::vector<int64_t> symbols_;
  std::vector<size_t> own_;
  size_t tangents_;
  std::vector<bool> came_;            // by tangent: it has a gradient in the run under way
  std::shared_ptr<KeptOfCall> kept_;  // null: eager keeps nothing that others may write or let go
  std::vector<Saved> saved_;
  std::shared_ptr<const ProgramAgain> again_;
  std::shared_ptr<const FoundByCall> found_;
  std::vector<std::pair<at::Tensor, int64_t>> given_;  // with their versions
  std::vector<bool> needed_;                           // gradients, of those
  std::vector<int64_t> held_versions_;
  std::vector<int64_t> ints_;
  std::vector<double> floats_;
  struct Result {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    bool is_in_use = false, was_used = false;  // in the backward under way, if that frees what it uses; in one that has done so
    std::optional<int64_t> version = {};       // of a base: what is written to a view of it later makes it the history of all of them
    bool is_over() const {
      const auto alive = tensor.lock();
      return !alive || (version && version_of(at::Tensor(alive)) == *version);
    }
  };
  std::vector<Result> results_;            // of its own
  std::map<int, ag::variable_list> past_;  // by the engine's graph task: gradients that its results' nodes have found already
  bool released_ = false;
};

// One of several results of a call. Its first edge leads to the call's node, which computes with the gradients of all of them. The others
// lead to the results that autograd meets on the way: where nobody looks at these, nothing is given to them, since the call's node goes
// all the way by itself.
class ResultOfCall : public ag::Node {
 public:
  explicit ResultOfCall(size_t tangent) : tangent_(tangent) {}
  std::string name() const override { return "BroachBackward"; }
  ag::variable_list apply(ag::variable_list&& given) override {
    ag::variable_list out(num_outputs());
    if (!given[0].defined()) return out;
    std::vector<size_t> seen, ends;  // edges, and their results' tangents
    for (size_t k = 1; k < num_outputs(); ++k) {
      if (!behind(k).is_looked_at()) continue;
      seen.push_back(k);
      ends.push_back(behind(k).tangent_);
    }
    if (seen.empty()) return out[0] = std::move(given[0]), out;
    ag::variable_list found = call().run_to(ends, tangent_, given[0]);
    for (size_t k = 0; k < seen.size(); ++k) out[seen[k]] = std::move(found[k]);
    return out;
  }

  // The first hooks that the engine asks for. In a run for some tensors it comes here, and goes on to the call's node, also where these lie
  // behind other results alone. Eager does not, and runs no hooks; but those of a tensor that is asked for itself.
  std::vector<std::unique_ptr<ag::FunctionPreHook>>& tensor_pre_hooks() noexcept override {
    if (is_hooked() && !goes_on())  // until the run is over, be it by an error
      ag::Engine::get_default_engine().queue_callback([aside = std::make_shared<HooksAside>(*this, !is_asked_for())] {});
    return ag::Node::tensor_pre_hooks();
  }

 private:
  CompiledCall& call() const { return static_cast<CompiledCall&>(*next_edge(0).function); }
  ResultOfCall& behind(size_t edge) const { return static_cast<ResultOfCall&>(*next_edge(edge).function); }

  bool is_hooked() noexcept {
    return !ag::Node::tensor_pre_hooks().empty() || !pre_hooks().empty() || !post_hooks().empty() || !retains_grad_hooks().empty();
  }
  // Whether the engine's run under way was asked for its gradient.
  bool is_asked_for() {
    const auto* asked = ag::get_current_graph_task_exec_info();
    return asked && asked->contains(this) && asked->at(this).captures_;
  }
  // Whether `backward(inputs=...)` may have been, which does not say so, but has it keep its gradient.
  bool may_be_input() {
    const auto& asked = *ag::get_current_graph_task_exec_info();
    return !retains_grad_hooks().empty() && asked.contains(this) && asked.at(this).needed_ &&
           std::ranges::none_of(asked, [](const auto& other) { return other.second.captures_ != nullptr; });
  }
  // Whether eager's run would go past this result: not in one for some tensors of which none lies behind it.
  bool goes_on() {
    const auto* asked = ag::get_current_graph_task_exec_info();
    if (!asked || asked->empty() || call().wants_from(tangent_) || may_be_input()) return true;
    for (size_t k = 1; k < num_outputs(); ++k)
      if (behind(k).is_asked_for() || behind(k).may_be_input()) return true;
    return false;
  }
  bool is_looked_at() { return is_asked_for() || (has_hooks(*this) && goes_on()); }

  size_t tangent_;
};

// The edges of the node that gives the first gradients, with one more to the node that gives the next. `parts`: by edge. `like`: on the
// device of the run.
ag::edge_list first_of_parts(ag::edge_list edges, const std::vector<size_t>& parts, const std::shared_ptr<Runs>& runs,
                             const at::Tensor& like) {
  ag::Edge next;
  for (size_t part = std::ranges::max(parts);; --part) {
    ag::edge_list own(edges.size());
    for (size_t g = 0; g < edges.size(); ++g)
      if (parts[g] == part) own[g] = std::move(edges[g]);
    own.push_back(std::move(next));
    if (part == 0) return own;
    NodePointer node = new_node<LaterGradients>(runs);
    node->add_input_metadata(like);  // whose device's queue it runs on; it is given nothing
    node->set_next_edges(std::move(own));
    next = ag::Edge(std::move(node), 0);
  }
}

// The storage from the tensor's first element on, as elements of another type.
at::Tensor with_elements(const at::Tensor& t, c10::ScalarType type) {
  auto bytes = static_cast<int64_t>(t.storage().nbytes()), own = t.storage_offset() * static_cast<int64_t>(t.itemsize());
  auto size = static_cast<int64_t>(c10::elementSize(type)), n = (bytes - own) / size * size / static_cast<int64_t>(t.itemsize());
  return t.as_strided({std::max<int64_t>(n, 0)}, {1}, t.storage_offset()).view(type);  // without elements it may begin behind its end
}

// The window of `base` that a result is.
at::Tensor window(const at::Tensor& base, const ResultSpec& r, std::span<const int64_t> symbols) {
  bool other = scalar_type(r.type.dtype) != base.scalar_type();
  at::Tensor whole = other ? with_elements(base, scalar_type(r.type.dtype)) : base;
  at::Tensor t =
      whole.as_strided(evaluate(r.type.shape, symbols), evaluate(r.strides, symbols), whole.storage_offset() + r.offset.eval(symbols));
  if (r.conj) t = t.conj();
  return r.neg ? t._neg_view() : t;
}

// For autograd no view.
at::Tensor window_below(const at::Tensor& base, const ResultSpec& r, std::span<const int64_t> symbols) {
  at::AutoDispatchBelowADInplaceOrView below;
  return window(base, r, symbols);
}

void mark(const at::Tensor& view, const ShownAs& as) {
  if (as.is_one_of_several && view.is_view())
    ag::impl::get_view_autograd_meta(view)->set_creation_meta(ag::CreationMeta::MULTI_OUTPUT_NODE);
}

at::Tensor view(const at::Tensor& base, const ResultSpec& r, std::span<const int64_t> symbols, const ShownAs& as) {
  at::Tensor t = window(base, r, symbols);
  mark(t, as);
  return t;
}

// As `detach()` gives one, or `.data`.
at::Tensor alias(const at::Tensor& base, const ResultSpec& r, std::span<const int64_t> symbols, const ShownAs& as) {
  at::Tensor t = window_below(base, r, symbols);
  if (!as.is_counted_apart && !base.is_inference() && !t.is_inference()) ag::impl::set_version_counter(t, ag::impl::version_counter(base));
  return t;
}

// The gradient of a result as the stage was compiled for it.
at::Tensor laid_out(const at::Tensor& t, const Type& type, const Shape& strides, std::span<const int64_t> symbols) {
  auto sizes = evaluate(type.shape, symbols), steps = evaluate(strides, symbols);
  if (t.numel() == 0 || t.strides() == c10::IntArrayRef(steps)) return t;
  return at::empty_strided(sizes, steps, t.options()).copy_(t);
}

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<ResultSpec>& specs, MemoryOf memory, const std::vector<bool>& own_history,
                                   std::span<const int64_t> symbols, std::span<const ShownAs> shown) {
  const at::Tensor none;
  std::vector<at::Tensor> out;
  out.reserve(specs.size());
  for (const ResultSpec& r : specs) {
    const size_t at = out.size();
    using K = ResultSpec::Kind;
    const at::Tensor& base = r.kind == K::none ? none : memory(r);
    const bool is_apart = r.kind == K::view_of_fresh && at < own_history.size() && own_history[at];
    const ShownAs as = at < shown.size() ? shown[at] : ShownAs();
    if (r.kind == K::none || r.kind == K::input || r.kind == K::fresh || !base.defined()) out.push_back(base);
    else if (is_apart) out.push_back(window_below(base, r, symbols));
    else out.push_back(as.is_view ? view(base, r, symbols, as) : alias(base, r, symbols, as));
  }
  return out;
}

// ---- runs for gradients ----

BackwardRun::BackwardRun(std::shared_ptr<const BackwardVariant> variant, std::vector<ResultSpec> gradients, std::vector<size_t> parts,
                         std::vector<at::Tensor> values, std::vector<int64_t> symbols)
    : variant_(std::move(variant)),
      gradients_(std::move(gradients)),
      parts_(std::move(parts)),
      values_(std::move(values)),
      given_back_(gradients_.size()),
      symbols_(std::move(symbols)) {
  for (size_t g = 0; g < gradients_.size(); ++g)
    if (gradients_[g].is_of_input()) given_back_[g] = values_[static_cast<size_t>(gradients_[g].index)];
  for (const at::Tensor& t : values_)
    if (!parts_.empty()) versions_.push_back(version_of(t));
  values_.resize(variant_->code.module.slots.size());
}

BackwardRun::BackwardRun(std::vector<at::Tensor> gradients, std::vector<size_t> parts)
    : parts_(std::move(parts)), values_(std::move(gradients)) {}

std::vector<at::Tensor> BackwardRun::next() {
  const size_t all = variant_ ? variant_->runners.size() : 0;
  for (size_t part = next_; part < (parts_.empty() ? all : std::min(next_ + 1, all)); ++part) compute(part);
  std::vector<at::Tensor> out = variant_ ? made() : std::vector<at::Tensor>(values_.size());
  for (size_t g = 0; !variant_ && g < out.size(); ++g)
    if (parts_.empty() || parts_[g] == next_) out[g] = std::move(values_[g]);
  for (size_t g = 0; g < more_.size(); ++g) {
    if (!more_[g].defined() || (!parts_.empty() && parts_[g] != next_)) continue;
    out[g] = out[g].defined() ? at::add(out[g], more_[g]) : std::move(more_[g]);
    more_[g].reset();
  }
  ++next_;
  return out;
}

void BackwardRun::compute(size_t at) {
  const Stage& part = variant_->code.module.stages[at];
  const size_t inputs = variant_->code.module.inputs;
  std::vector<at::Tensor> values(values_.size()), made(values_.size() - inputs);
  for (size_t slot : part.takes) {
    // Whoever got the gradients of the parts before may have written to what is held by reference.
    TORCH_CHECK(slot >= versions_.size() || version_of(values_[slot]) == versions_[slot],
                "one of the variables needed for gradient computation has been modified by an inplace operation: ",
                values_[slot].toString(), " ", values_[slot].sizes(), ", while gradients were given one after another");
    values[slot] = variant_->last_read[slot] == static_cast<ptrdiff_t>(at) ? std::move(values_[slot]) : values_[slot];
  }
  RunInputs run;
  for (const at::Tensor& t : values) run.add(t);
  variant_->runners[at].run(run, symbols_, nullptr, made, values);
  for (size_t slot : part.gives) values_[slot] = std::move(made[slot - inputs]);
}

static bool is_same_window(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
         a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Of gradients that are windows of one tensor that was saved or given.
static void set_apart_from_others_before(const std::vector<ResultSpec>& own, std::vector<at::Tensor>& out, size_t g) {
  for (size_t before = 0; before < g; ++before) {
    if (!own[before].is_of_input() || !out[before].defined() || !out[before].is_alias_of(out[g]) || out[before].is_same(out[g])) continue;
    if (is_same_window(out[before], out[g])) return void(out[g] = out[before]);
    // Of others only those without gaps are taken as they are.
    const auto overlap = at::get_overlap_status(out[before], out[g]);
    if (overlap == at::MemOverlapStatus::Full || overlap == at::MemOverlapStatus::Partial) return void(out[g] = out[g].clone());
  }
}

// Whoever accumulates a gradient that nobody else holds takes its memory. So those that are one window of one memory are one tensor, and
// what a later part gives as well is copied.
void BackwardRun::set_apart(const std::vector<ResultSpec>& own, std::vector<at::Tensor>& out) const {
  std::vector<at::Tensor*> first(variant_->slots.size());
  std::vector<bool> comes_again(variant_->slots.size());
  for (const ResultSpec& later : gradients_)
    if (later.is_made()) comes_again[static_cast<size_t>(later.index)] = true;
  for (size_t g = 0; g < own.size(); ++g) {
    if (own[g].is_of_input() && out[g].defined()) set_apart_from_others_before(own, out, g);
    if (!own[g].is_made() || !out[g].defined()) continue;
    const auto index = static_cast<size_t>(own[g].index);
    if (comes_again[index]) out[g] = out[g].clone();
    else if (!first[index]) first[index] = &out[g];
    else if (is_same_window(*first[index], out[g])) out[g] = *first[index];
  }
}

// The gradients of the part that was computed. What no later part reads is the caller's alone, who may keep the tensor as it is.
std::vector<at::Tensor> BackwardRun::made() {
  std::vector<ResultSpec> own(gradients_.size());
  std::vector<bool> wanted(gradients_.size());
  for (size_t g = 0; g < own.size(); ++g)
    if (parts_.empty() || parts_[g] == next_) own[g] = std::exchange(gradients_[g], {}), wanted[g] = true;
  auto slot_of = [&](const ResultSpec& r) { return *variant_->slots[static_cast<size_t>(r.index)]; };
  auto memory = [&](const ResultSpec& r) -> const at::Tensor& {
    return r.is_of_input() ? given_back_[static_cast<size_t>(&r - own.data())] : values_[slot_of(r)];
  };
  std::vector<at::Tensor> out = tensors_of(own, memory, wanted, symbols_);
  set_apart(own, out);
  for (const ResultSpec& r : own) {
    if (r.is_of_input()) given_back_[static_cast<size_t>(&r - own.data())].reset();
    if (r.is_made() && (parts_.empty() || variant_->last_read[slot_of(r)] <= static_cast<ptrdiff_t>(next_))) values_[slot_of(r)].reset();
  }
  return out;
}

bool BackwardRun::is_over() const {
  if (std::ranges::any_of(more_, [](const at::Tensor& t) { return t.defined(); })) return false;
  if (variant_) return std::ranges::all_of(gradients_, [](const ResultSpec& r) { return r.kind == ResultSpec::Kind::none; });
  return std::ranges::none_of(values_, [](const at::Tensor& t) { return t.defined(); });
}

// ---- compiled calls ----

Backward::Backward(std::shared_ptr<const CompiledTrace> compiled, Differentiable differentiable, Rerun rerun,
                   std::vector<at::Tensor> lifted, Targets targets, PipelineOptions options)
    : compiled_(std::move(compiled)),
      differentiable_(std::move(differentiable)),
      rerun_(std::move(rerun)),
      lifted_(std::move(lifted)),
      targets_(std::move(targets)),
      options_(std::move(options)) {
  for (const at::Tensor& t : lifted_) lifted_needed_.push_back(t.defined() && t.requires_grad());
  for (size_t g = 0; g < differentiable_.inputs.size(); ++g) {
    auto reaches = [g](const std::vector<bool>& of_result) { return of_result[g]; };
    const auto count = std::ranges::count_if(differentiable_.reaches, reaches);
    if (count > 0 && static_cast<size_t>(count) < differentiable_.reaches.size()) reached_by_some_.push_back(g);
  }
  // On the host what was saved goes step by step.
  auto is_apart = [&](size_t slot) { return is_accelerator(compiled_->module.slots[slot].type.device); };
  if (options_.gradient_parts > 0 || std::ranges::any_of(stage().gives, is_apart))
    memory_parts_ = parts_for_memory(compiled_->module, options_.gradient_parts);
  stage_parts_.gives = parts_by_readiness(*stage().graph, kMostParts);
  for (const ResultSpec& r : compiled_->gradients) parts_.push_back(r.is_made() ? stage_parts_.gives[static_cast<size_t>(r.index)] : 0);
  // A leaf may be written as soon as it has its gradient.
  for (size_t slot : stage().takes) {
    auto g = std::ranges::find(differentiable_.inputs, slot) - differentiable_.inputs.begin();
    stage_parts_.reads.push_back(static_cast<size_t>(g) < parts_.size() ? parts_[static_cast<size_t>(g)] : kMostParts);
  }
}

// A node runs what lies behind all of its edges, also where there is no gradient. That is seen where there are hooks, or others' code in a
// history: then results are apart that do not depend on the same tensors.
std::vector<std::vector<size_t>> Backward::nodes(const RunInputs& inputs) const {
  const std::vector<std::vector<bool>>& reaches = differentiable_.reaches;
  auto is_seen = [&](size_t g) {
    const at::Tensor& t = *inputs.tensors[differentiable_.inputs[g]];
    if (!t.is_leaf()) return true;
    // Which alone may hold the node. A view that is older than its base's requires_grad_ has none.
    const ag::Edge edge = ag::impl::gradient_edge(t);
    return edge.function && has_hooks(*edge.function);
  };
  const bool apart = std::ranges::any_of(reached_by_some_, is_seen);
  std::map<std::vector<bool>, std::vector<size_t>> groups;
  for (size_t t = 0; t < reaches.size(); ++t) groups[apart ? reaches[t] : std::vector<bool>()].push_back(t);
  std::vector<std::vector<size_t>> out;
  for (auto& [reached, tangents] : groups) out.push_back(std::move(tangents));
  return out;
}

void Backward::connect(const CallInputs& call, std::vector<at::Tensor>& results, const RunInputs& inputs,
                       const std::vector<at::Tensor>& made, const std::vector<int64_t>& symbols,
                       const std::shared_ptr<const FoundByCall>& found) const {
  make_views(results);
  const auto kept = differentiable_.kept.groups.empty() ? nullptr : std::make_shared<KeptOfCall>(differentiable_.kept);
  ag::edge_list edges(differentiable_.results.size());
  for (const std::vector<size_t>& own : nodes(inputs)) {
    NodePointer node = connect(own, call, results, inputs, made, symbols, found, kept);
    for (size_t k = 0; k < own.size(); ++k) edges[own[k]] = ag::Edge(node, static_cast<uint32_t>(k));
  }
  if (edges.size() > 1) connect_apart(results, edges);
  make_windows(results);
  const size_t held = differentiable_.kept.inputs;
  if (kept) kept->begin([&](size_t place) -> const at::Tensor& { return place < held ? *inputs.tensors[place] : results[place - held]; });
}

// Each of several results gets a node of its own, as in eager, so that each may have hooks, and keep its gradient or be asked for it.
void Backward::connect_apart(std::vector<at::Tensor>& results, const std::vector<ag::Edge>& edges) const {
  std::vector<size_t> order;  // what is met on the way goes first
  for (size_t t = 0; t < edges.size(); ++t) order.push_back(t);
  std::ranges::stable_sort(order, {}, [this](size_t t) { return through(t).size(); });
  std::vector<NodePointer> made(edges.size());
  for (size_t t : order) {
    ag::edge_list next{edges[t]};
    for (size_t behind : through(t)) next.emplace_back(made[behind], 0);
    made[t] = new_node<ResultOfCall>(t);
    made[t]->set_next_edges(std::move(next));
    ag::set_history(results[differentiable_.results[t]], made[t]);
  }
}

NodePointer Backward::connect(const std::vector<size_t>& own, const CallInputs& call, std::vector<at::Tensor>& results,
                              const RunInputs& inputs, const std::vector<at::Tensor>& made, const std::vector<int64_t>& symbols,
                              const std::shared_ptr<const FoundByCall>& found, const std::shared_ptr<KeptOfCall>& kept) const {
  ag::edge_list edges;
  std::vector<bool> reached(inputs.tensors.size());
  bool awaited = false;
  for (size_t g = 0; g < differentiable_.inputs.size(); ++g) {
    const size_t i = differentiable_.inputs[g];
    if (std::ranges::any_of(own, [&](size_t t) { return differentiable_.reaches[t][g]; })) reached[i] = true;
    edges.push_back(reached[i] ? ag::impl::gradient_edge(*inputs.tensors[i]) : ag::Edge());
    if (ag::Node* n = edges.back().function.get()) awaited = awaited || is_awaited(*n);
  }
  NodePointer node = new_node<CompiledCall>(shared_from_this(), symbols, own, differentiable_.results.size(), kept);
  if (awaited) {
    auto runs = std::make_shared<Runs>();
    edges = first_of_parts(std::move(edges), parts_, runs, results[differentiable_.results[own[0]]]);
    static_cast<CompiledCall&>(*node).give_in_parts(std::move(runs));
  }
  node->set_next_edges(std::move(edges));
  auto& compiled = static_cast<CompiledCall&>(*node);
  for (size_t t : own) {
    at::Tensor& result = results[differentiable_.results[t]];
    if (differentiable_.results.size() == 1) ag::set_history(result, node);
    else node->add_input_metadata(result);
    compiled.add_result(result, differentiable_.results[t] >= differentiable_.has_history.size() - differentiable_.bases.size());
  }
  compiled.keep(call, reached, found);
  const size_t given = compiled_->module.inputs;
  for (size_t i = 0; i + compiled_->tangents < stage().takes.size(); ++i) {
    const size_t slot = stage().takes[i];
    if (slot < given) {
      if (compiled_->read_anew[slot]) compiled.save_own(*inputs.tensors[slot]);
      else compiled.save(*inputs.tensors[slot], false);
      continue;
    }
    const at::Tensor& t = made[slot - given];
    auto is_result = [&](const at::Tensor& r) { return r.is_same(t); };
    const bool is_own = t.grad_fn() == node;  // another node's result would hold that one, which may hold this one
    if (std::any_of(results.begin(), results.end(), is_result)) compiled.save(is_own ? t : t.detach(), is_own);
    else compiled.save_own(t);
  }
  return node;
}

// What lies in the memory of another result, as a view of that.
at::Tensor Backward::view_of(const at::Tensor& base, const at::Tensor& t, size_t result) const {
  const bool is_part = base.is_complex() && !t.is_complex();
  at::Tensor out = (is_part ? at::view_as_real(base) : base).as_strided(t.sizes(), t.strides(), t.storage_offset());
  if (!differentiable_.has_history[result]) return out.detach();
  mark(out, differentiable_.shown[result]);
  return out;
}

// Those that get a history of their own.
void Backward::make_views(std::vector<at::Tensor>& results) const {
  for (size_t t = 0; t < differentiable_.view_of.size(); ++t)
    if (const auto base = differentiable_.view_of[t]) {
      const size_t own = differentiable_.results[t];
      results[own] = view_of(results[*base], results[own], own);
    }
}

// Others in the memory of a result that has its history by now get it from there.
void Backward::make_windows(std::vector<at::Tensor>& results) const {
  const std::vector<size_t>& own = differentiable_.results;
  for (size_t i = 0; own.size() < results.size() && i < results.size(); ++i) {
    at::Tensor& t = results[i];
    auto is_base = [&](size_t r) { return t.defined() && !t.is_same(results[r]) && !results[r].is_view() && t.is_alias_of(results[r]); };
    auto base = std::find_if(own.begin(), own.end(), is_base);
    if (base != own.end() && std::find(own.begin(), own.end(), i) == own.end()) t = view_of(results[*base], t, i);
  }
}

bool Backward::lie_otherwise(const std::vector<at::Tensor>& tangents, std::span<const int64_t> symbols) const {
  if (!differentiable_.read_by_code || !differentiable_.read_by_code->goes_by_layout()) return false;
  const size_t first = stage().takes.size() - tangents.size();
  for (size_t t = 0; t < tangents.size(); ++t) {
    const Slot& recorded = compiled_->module.slots[stage().takes[first + t]];
    if (tangents[t].defined() && tangents[t].strides() != c10::IntArrayRef(evaluate(recorded.strides, symbols))) return true;
  }
  return false;
}

BackwardRun Backward::run(c10::function_ref<at::Tensor(size_t)> saved, const std::vector<at::Tensor>& tangents, std::vector<bool> wanted,
                          const std::vector<int64_t>& symbols, bool in_parts) const {
  wanted = reached(tangents, std::move(wanted));
  std::vector<bool> given;
  for (const at::Tensor& t : tangents) given.push_back(t.defined());
  auto code = variant({wanted, given, in_parts});
  if (!code->failure.empty()) throw NoCode(cat("the code for them failed to be compiled (", code->failure, ")"));
  std::vector<ResultSpec> specs = compiled_->gradients;
  for (size_t g = 0; g < specs.size(); ++g)
    if (!wanted[g]) specs[g] = {};
  const size_t first = stage().takes.size() - tangents.size();
  std::vector<at::Tensor> inputs(first);
  auto take = [&](size_t i) {
    if (i < first && !inputs[i].defined()) inputs[i] = saved(i);
  };
  for (size_t i = 0; i < first; ++i)
    if (code->last_read[i] >= 0) take(i);
  for (const ResultSpec& r : specs)
    if (r.is_of_input()) take(static_cast<size_t>(r.index));
  for (size_t t = 0; t < tangents.size(); ++t) {
    const Slot& tangent = compiled_->module.slots[stage().takes[first + t]];
    inputs.push_back(given[t] ? laid_out(tangents[t], tangent.type, tangent.strides, symbols) : at::Tensor());
  }
  return {std::move(code), std::move(specs), in_parts ? parts_ : std::vector<size_t>(), std::move(inputs), symbols};
}

}  // namespace broach
