// What a captured program's results depend on for autograd, and the recording of eager's own gradients behind the program.
#include <ATen/MemoryOverlap.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "capture.h"
#include "composites.h"
#include "engine_on_this_thread.h"
#include "input_history.h"
#include "kept_by_eager.h"
#include "keys.h"
#include "leaf_gradients.h"
#include "nodes.h"
#include "support/error.h"
#include "symbolic.h"
#include "tensors.h"
#include "trace/regions.h"

namespace broach {

namespace {

namespace ag = torch::autograd;
using Reached = std::vector<bool>;  // by leaf, and behind these by node with code

// One of the formulas that torch's build makes of its table of derivatives, one for a copy or a window of a tensor that is written by such a
// one, what stands for such a one while a program is captured, or an operator's own.
bool is_formula(ag::Node& n) {
  if (const auto* window = dynamic_cast<const ag::CopySlices*>(&n)) return !window->fn || is_formula(*window->fn);
  return std::string_view(typeid(n).name()).starts_with("N5torch8autograd9generated") || dynamic_cast<const ag::CopyBackwards*>(&n) ||
         is_product_gradient(n) || (is_registered_gradient && is_registered_gradient(n));
}

// Autograd's graph from some results back to the tensors whose gradients are asked for.
class Walk {
 public:
  // `is_own`: the program has made the tensor.
  using IsOwn = std::function<bool(const at::Tensor&)>;
  Walk(const std::vector<at::Tensor>& leaves, bool takes_code, IsOwn is_own)
      : count_(leaves.size()), takes_code_(takes_code), is_own_(std::move(is_own)) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      edges_.push_back(ag::impl::gradient_edge(leaves[i]));
      leaf_of_.emplace(edges_.back().function.get(), i);
    }
  }

  const ag::edge_list& edges() const { return edges_; }
  // Why it cannot be recorded; empty if it can.
  const std::string& obstacle() const { return obstacle_; }
  // Nodes that run code of the program's.
  const std::vector<ag::Node*>& with_code() const { return with_code_; }
  // How many results of a node have gradients.
  size_t results_of(const ag::Node* n) const { return results_.at(n).size(); }

  // Of a node on the way. Nothing where the way ends.
  std::optional<Reached> from(ag::Node& n) const {
    const auto known = leaf_of_.contains(&n) ? reached_.end() : reached_.find(&n);
    if (known == reached_.end()) return std::nullopt;
    return Reached(known->second.begin(), known->second.begin() + static_cast<std::ptrdiff_t>(count_));
  }

  // What is reached from a result. Without recursion: a graph is as deep as the program is long.
  const Reached& from(const ag::Edge& edge) {
    ag::Node* root = edge.function.get();
    std::vector<ag::Node*> stack{root};
    results_[root].insert(edge.input_nr);
    while (!stack.empty() && obstacle_.empty()) {
      ag::Node* n = stack.back();
      auto [it, fresh] = reached_.try_emplace(n, Reached());
      if (fresh && !enter(*n, it->second)) {
        for (const ag::Edge& e : n->next_edges()) {
          if (!e.function) continue;
          results_[e.function.get()].insert(e.input_nr);
          if (!reached_.contains(e.function.get())) stack.push_back(e.function.get());
        }
        if (stack.back() != n) continue;
      }
      stack.pop_back();
      if (!leaf_of_.contains(n)) leave(*n);
    }
    return reached_[root];
  }

 private:
  // True for a node where the walk ends.
  bool enter(ag::Node& n, Reached& reached) {
    reached.assign(count_, false);
    const bool is_leaf = leaf_of_.contains(&n);
    if ((have_code(n.tensor_pre_hooks()) && (is_leaf || !takes_code_)) || !n.retains_grad_hooks().empty())
      obstacle_ = cat("a tensor whose gradient ", n.name(), " computes has a hook, or keeps its gradient");
    if (auto leaf = leaf_of_.find(&n); leaf != leaf_of_.end()) return reached[leaf->second] = true;
    if (const auto* leaf = dynamic_cast<ag::AccumulateGrad*>(&n)) {
      // One of the program's own goes with it, as its gradient does.
      if (!is_own_(leaf->variable) || has_hooks(n)) obstacle_ = "a tensor that needs gradients is kept where it is not looked for";
      return true;
    }
    if (takes_code_) look_for_code(n, reached);
    else if (!is_formula(n)) obstacle_ = cat("gradients by ", n.name(), ", whose code is not torch's own");
    else if (!n.pre_hooks().empty() || !n.post_hooks().empty()) obstacle_ = cat(n.name(), " has a hook");
    return !obstacle_.empty();
  }

  void look_for_code(ag::Node& n, Reached& reached) {
    if (is_formula(n) && n.tensor_pre_hooks().empty() && n.pre_hooks().empty() && n.post_hooks().empty()) return;
    reached.resize(count_ + with_code_.size());
    reached.push_back(true);
    with_code_.push_back(&n);
  }

  void leave(ag::Node& n) {
    Reached all = std::move(reached_[&n]);
    for (const ag::Edge& e : n.next_edges())
      if (e.function) {
        const Reached& below = reached_[e.function.get()];
        all.resize(std::max(all.size(), below.size()));
        for (size_t i = 0; i < below.size(); ++i) all[i] = all[i] || below[i];
      }
    reached_[&n] = std::move(all);
  }

  size_t count_;
  bool takes_code_;
  IsOwn is_own_;
  std::vector<ag::Node*> with_code_;
  std::unordered_map<const ag::Node*, std::unordered_set<uint32_t>> results_;  // that have gradients
  ag::edge_list edges_;
  std::unordered_map<ag::Node*, size_t> leaf_of_;
  std::unordered_map<ag::Node*, Reached> reached_;
  std::string obstacle_;
};

// By root: the others that lie on the way from it to the leaves.
std::vector<std::vector<size_t>> roots_behind(const ag::edge_list& roots) {
  std::unordered_map<const ag::Node*, std::vector<size_t>> roots_of;
  for (size_t r = 0; r < roots.size(); ++r) roots_of[roots[r].function.get()].push_back(r);
  std::vector<std::vector<size_t>> out;
  for (const ag::Edge& root : roots) {
    std::set<size_t> behind;
    std::unordered_set<const ag::Node*> met{root.function.get()};
    for (std::vector<ag::Node*> stack{root.function.get()}; roots.size() > 1 && !stack.empty();) {
      ag::Node* n = stack.back();
      stack.pop_back();
      for (const ag::Edge& e : n->next_edges()) {
        if (!e.function) continue;
        if (auto of = roots_of.find(e.function.get()); of != roots_of.end())
          for (size_t r : of->second)
            if (roots[r].input_nr == e.input_nr) behind.insert(r);
        if (met.insert(e.function.get()).second) stack.push_back(e.function.get());
      }
    }
    out.emplace_back(behind.begin(), behind.end());
  }
  return out;
}

// What autograd meets behind some results, up to the leaves: by node, which of its results.
std::set<std::pair<const ag::Node*, uint32_t>> met_behind(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& leaves) {
  std::set<std::pair<const ag::Node*, uint32_t>> met;
  std::unordered_set<const ag::Node*> entered;
  std::vector<ag::Node*> stack;
  auto enter = [&](ag::Node* n) {
    if (entered.insert(n).second) stack.push_back(n);
  };
  for (const at::Tensor& t : leaves) entered.insert(ag::impl::gradient_edge(t).function.get());
  for (const at::Tensor& t : results)
    if (t.defined() && t.requires_grad())
      if (const ag::Edge root = ag::impl::gradient_edge(t); root.function) enter(root.function.get());
  while (!stack.empty()) {
    ag::Node* n = stack.back();
    stack.pop_back();
    for (const ag::Edge& e : n->next_edges())
      if (e.function) met.emplace(e.function.get(), e.input_nr), enter(e.function.get());
  }
  return met;
}

// The node that accumulates a leaf's gradient reduces it to the sizes that the leaf had as the node was made.
bool accumulates_as_it_is(const at::Tensor& t) {
  const ag::Edge edge = ag::impl::gradient_edge(t);
  return edge.function->input_metadata(edge.input_nr).is_same_shape(t);
}

bool is_in(const at::Tensor& t, const std::vector<at::Tensor>& list) {
  return std::ranges::any_of(list, [&](const at::Tensor& other) { return other.is_same(t); });
}

// Whether a result can be had, with its history, from another result of the call: a view of it, also of a complex one's parts, or the same
// detached.
bool is_window(const at::Tensor& t, const at::Tensor& base) {
  if (!t.defined() || !base.defined() || t.is_same(base) || !base.requires_grad()) return false;
  if (t.is_conj() || t.is_neg() || base.is_conj() || base.is_neg()) return false;
  if (!t.is_view()) return t.scalar_type() == base.scalar_type() && !t.requires_grad();
  const bool is_alike = t.scalar_type() == base.scalar_type() || t.scalar_type() == c10::toRealValueType(base.scalar_type());
  return is_alike && t.requires_grad() && t._base().is_same(base);
}

}  // namespace

bool (*is_registered_gradient)(ag::Node&) = nullptr;

ShownAs shown_as(const at::Tensor& t) {
  if (!t.defined() || t.is_inference()) return {};
  if (!t.is_view()) return {t.requires_grad(), t.unsafeGetTensorImpl()->version_counter().unique()};
  return {.is_one_of_several = ag::impl::get_view_autograd_meta(t)->get_creation_meta() == ag::CreationMeta::MULTI_OUTPUT_NODE};
}

bool may_draw(const std::string& schema) {
  const size_t dot = schema.find('.');
  auto op = c10::Dispatcher::singleton().findSchema({schema.substr(0, dot), dot == schema.npos ? "" : schema.substr(dot + 1)});
  return !op || op->hasTag(at::Tag::nondeterministic_seeded);
}

// The memory that a tensor of the program's lies in; -1 for one that the capture has not met.
int32_t Capture::storage_of(const at::Tensor& t) const {
  const at::Tensor* inside = real_tensor(t);
  const at::Tensor& real = inside ? *inside : t;
  if (!real.has_storage()) return -1;
  auto it = storages_.find(real.storage().unsafeGetStorageImpl());
  return it == storages_.end() ? -1 : it->second.id;
}

// The gradient of a result: ones, laid out as the result is. What eager's formulas do does not depend on the elements.
at::Tensor Capture::add_tangent(const at::Tensor& result) {
  const at::Tensor* inside = real_tensor(result);
  const at::Tensor& real = inside ? *inside : result;
  std::lock_guard lock(mutex_);
  const TensorId of = id_of(real);
  const bool dense = real.is_non_overlapping_and_dense();
  at::Tensor t;
  {
    c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
    at::NoGradGuard no_grad;
    t = dense ? at::empty_strided(real.sizes(), real.strides(), real.options()) : at::empty(real.sizes(), real.options());
    t.fill_(1);
  }
  const TensorId id = add_tensor(t);
  tangents_.push_back(id);
  if (!symbolic_) return t;
  const TraceTensor& like = trace_.tensors[static_cast<size_t>(of)];
  TraceTensor& info = trace_.tensors[static_cast<size_t>(id)];
  info.type.shape = like.type.shape;
  info.strides = dense ? like.strides : contiguous_strides(like.type.shape);
  real_tangents_.push_back(t);
  return seen_by_program(t);
}

bool Capture::lies_in_input(const at::Tensor& t) const {
  auto shares = [&](const at::Tensor& other) { return other.defined() && storage_of(other) == storage_of(t); };
  return std::ranges::any_of(inputs_, shares) || std::ranges::any_of(lifted_, shares);
}

// Results in one memory of which none is the others' base, such as the halves of a tensor, are made as views of that, as in eager.
void Capture::find_bases(const std::vector<at::Tensor>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    const at::Tensor& t = results[r];
    if (!t.defined() || !t.requires_grad() || !t.is_view()) continue;
    if (lies_in_input(t)) continue;
    auto shares = [&](const at::Tensor& other) { return other.defined() && storage_of(other) == storage_of(t); };
    const at::Tensor base(t._base());
    auto is_beside = [&](const at::Tensor& other) { return shares(other) && !other.is_same(t) && !is_window(other, t); };
    if (is_in(base, results) || is_in(base, bases_) || !is_window(t, base) || !std::ranges::any_of(results, is_beside)) continue;
    bases_.push_back(base);
    differentiable_.bases.push_back(r);
  }
}

std::string Capture::find_differentiable(const std::vector<at::Tensor>& results, std::vector<at::Tensor>& leaves) {
  for (size_t i = 0; i < trace_.inputs.size(); ++i) {
    const at::Tensor& t = i < given_.size() ? inputs_[i] : lifted_[i - given_.size()];
    if (!t.defined() || !t.requires_grad()) continue;
    if (i >= given_.size() && !t.is_leaf()) return "the program holds a tensor that has a history of its own";
    if (is_written(trace_.tensors[static_cast<size_t>(trace_.inputs[i])].storage)) return "a tensor that needs gradients is written";
    // Eager's results have a node then, from which no gradient gets to the view or its base.
    if (!ag::impl::gradient_edge(t).function) return "a view that was made before its base was to get gradients";
    if (!real_tensor(t) && !accumulates_as_it_is(t)) return "a tensor got other sizes, by .data, while a graph with its gradient is alive";
    differentiable_.inputs.push_back(i);
    leaves.push_back(t);
  }
  // A view that other results are made of passes on what it gets of them to whoever looks at it, so it needs a history of its own.
  const bool any_view = std::ranges::any_of(results, [](const at::Tensor& t) { return t.defined() && t.requires_grad() && t.is_view(); });
  const auto met = any_view ? met_behind(results, leaves) : std::set<std::pair<const ag::Node*, uint32_t>>();
  auto is_met = [&](const at::Tensor& t) {
    const ag::Edge e = ag::impl::gradient_edge(t);
    return met.contains({e.function.get(), e.input_nr});
  };
  for (size_t r = 0; r < results.size(); ++r) {
    const at::Tensor& t = results[r];
    if (!t.defined() || !t.requires_grad()) continue;
    if (is_in(t, {results.begin(), results.begin() + static_cast<std::ptrdiff_t>(r)})) continue;
    auto shares = [&](const at::Tensor& other) { return other.defined() && storage_of(other) == storage_of(t); };
    // A window of an input is made of it anew, and gets its history from there. as_strided's gradient divides among elements in one place.
    auto overlaps = [&](const at::Tensor& other) {
      const at::Tensor* inside = real_tensor(other);
      return shares(other) && at::has_internal_overlap(inside ? *inside : other) != at::MemOverlap::No;
    };
    if (std::ranges::any_of(inputs_, overlaps) || std::ranges::any_of(lifted_, overlaps))
      return "a result is a window of a tensor whose elements may lie in one place";
    auto differs = [&](const at::Tensor& other) {
      return shares(other) && (other.scalar_type() != t.scalar_type() || other.is_conj() != t.is_conj() || other.is_neg() != t.is_neg());
    };
    if (std::ranges::any_of(inputs_, differs) || std::ranges::any_of(lifted_, differs))
      return "a result is a view of a tensor that is given, as numbers of another type";
    const bool is_of_input = lies_in_input(t);
    if (is_of_input && !(t.is_view() && is_met(t))) continue;
    if (t.is_leaf()) return "a result is a leaf that the program makes";
    const auto base = std::ranges::find_if(results, [&](const at::Tensor& other) { return is_window(t, other); });
    const bool is_of_result = !is_of_input && base != results.end();
    if (is_of_result && !is_in(*base, bases_) && !is_met(t)) continue;
    auto is_beside = [&](const at::Tensor& other) { return shares(other) && !other.is_same(t) && !is_window(other, t); };
    if (!is_of_input && !is_of_result && std::ranges::any_of(results, is_beside))
      return "several results lie in the same memory, none as a view of another";
    differentiable_.results.push_back(r);
    differentiable_.view_of.push_back(is_of_result ? std::optional(static_cast<size_t>(base - results.begin())) : std::nullopt);
  }
  return "";
}

namespace {

// Of the tensors that others may write: the inputs, in these memories, and the results, of which `differentiable` have a history of their own.
class Places {
 public:
  using StorageOf = std::function<int32_t(const at::Tensor&)>;
  Places(const std::vector<int32_t>& inputs, const std::vector<at::Tensor>& results, const std::vector<size_t>& differentiable,
         StorageOf storage_of)
      : storage_of_(std::move(storage_of)) {
    for (size_t i = 0; i < inputs.size(); ++i) by_storage_.emplace(inputs[i], i);
    for (size_t r : differentiable) by_storage_.emplace(storage_of_(results[r]), inputs.size() + r);
    for (size_t r = 0; r < results.size(); ++r) {
      if (!results[r].defined()) continue;
      as_they_are_.emplace(results[r].unsafeGetTensorImpl(), inputs.size() + r);
      if (results[r].is_view() || !shown_as(results[r]).is_counted_apart)  // unlike what `.data` gives, whose writes nobody notices
        by_storage_.emplace(storage_of_(results[r]), inputs.size() + r);
    }
    by_storage_.erase(-1);
  }

  std::optional<size_t> operator()(const at::Tensor& t) const {
    if (const auto place = by_storage_.find(storage_of_(t)); place != by_storage_.end()) return place->second;
    const auto place = as_they_are_.find(t.unsafeGetTensorImpl());
    return place == as_they_are_.end() ? std::nullopt : std::optional(place->second);
  }

 private:
  StorageOf storage_of_;
  std::unordered_map<int32_t, size_t> by_storage_;
  std::unordered_map<const c10::TensorImpl*, size_t> as_they_are_;
};

// Why the code that gradients run cannot be recorded. Each piece of it runs whatever gradients are asked for, and once for all of them:
// what it gives need not be proportional to what it is given.
std::string why_not_with_code(const Walk& walk, const std::vector<Reached>& reached, size_t leaves, const ag::edge_list& roots,
                              GradientCode& code) {
  for (ag::Node* n : walk.with_code())
    if (std::string why = code.obstacle(*n, is_formula(*n), walk.results_of(n)); !why.empty()) return why;
  for (const ag::Edge& root : roots)
    if (have_code(root.function->tensor_pre_hooks())) return "a result of the program has a hook";
  for (const Reached& r : reached) {
    const bool all = r.size() == leaves + walk.with_code().size() &&
                     std::all_of(r.begin() + static_cast<std::ptrdiff_t>(leaves), r.end(), std::identity());
    if (!all) return cat(walk.with_code().front()->name(), " runs code for the gradients of some results only");
    if (!std::equal(r.begin(), r.begin() + static_cast<std::ptrdiff_t>(leaves), reached[0].begin()))
      return cat(walk.with_code().front()->name(), " runs code for several results, which depend on different tensors");
  }
  return "";
}

}  // namespace

std::string Capture::run_engine(const std::function<void()>& engine, GradientCode* code) {
  if (!code) {
    try {
      engine();
    } catch (const c10::Error& e) {
      return cat("eager has no gradients: ", e.what_without_backtrace());
    } catch (const std::exception& e) {  // what an operator's formula in Python raises is of a type that only Python's front knows
      const std::string why = e.what();
      if (forget_error) forget_error();
      return cat("eager has no gradients: ", why);
    }
    return "";
  }
  RandomStates random;
  for (c10::Device d : current_) random.add(d);
  random.add(c10::kCPU);
  in_gradients_ = true;
  first_storage_of_gradients_ = static_cast<int32_t>(storages_.size());
  EngineOnThisThread here;
  std::string why = code->run(engine);
  in_gradients_ = false;
  put_back(protected_);
  random.put_back();
  if (why.empty() && !protected_.empty()) why = "the code of a gradient writes to a tensor";
  differentiable_.read_by_code = code->read();
  return why.empty() ? no_gradients_ : why;
}

static std::string why_not_from(const Walk& walk, const Reached& reached) {
  if (!walk.obstacle().empty()) return walk.obstacle();
  // Its caller comes across one of these by it.
  return std::ranges::any_of(reached, std::identity()) ? "" : "a result leads to no tensor but those that the program makes";
}

// Results that are windows of inputs and of other results are made of these anew, with a view's history.
std::string Capture::why_no_windows(const std::vector<at::Tensor>& results, std::vector<at::Tensor> ends) const {
  for (size_t t = 0; t < differentiable_.results.size(); ++t)
    if (const at::Tensor& end = results[differentiable_.results[t]]; !differentiable_.view_of[t] && !lies_in_input(end))
      ends.push_back(end);
  Walk walk(ends, /*takes_code=*/true, [this](const at::Tensor& t) { return has_made(t); });
  for (const at::Tensor& t : results) {
    if (!t.defined() || !t.requires_grad() || is_in(t, ends)) continue;
    const ag::Edge edge = ag::impl::gradient_edge(t);
    if (!edge.function) return "a result is a view that was made under no_grad of a tensor that needs gradients";
    walk.from(edge);
  }
  if (!walk.obstacle().empty()) return walk.obstacle();
  return walk.with_code().empty() ? "" : "a result is a view that has a hook, or that a custom function gives";
}

// Whether what a region is given is written within it or behind it.
static bool writes_given_of_regions(const Trace& trace) {
  std::unordered_set<int32_t> given;
  auto storage = [&](TensorId id) { return trace.tensors[static_cast<size_t>(id)].storage; };
  for (const TraceOp& op : trace.ops) {
    if (std::ranges::any_of(op.mutated, [&](TensorId id) { return given.contains(storage(id)); })) return true;
    if (op.schema == kEnterRegion) for_each_tensor(op.args, [&](TensorId id) { given.insert(storage(id)); });
  }
  return false;
}

std::string Capture::record_gradients(std::vector<at::Tensor> results, GradientCode* code) {
  if (!no_gradients_.empty()) return no_gradients_;
  for (const at::Tensor& t : results) {
    if (!t.defined() || !t.requires_grad()) continue;
    try {
      ag::impl::gradient_edge(t);
    } catch (const c10::Error& e) {  // one of several views whose base was written: what eager forbids is to go on with it
      return cat("eager has no gradients of a result: ", e.what_without_backtrace());
    }
  }
  find_bases(results);
  results.insert(results.end(), bases_.begin(), bases_.end());
  std::vector<at::Tensor> leaves;
  if (std::string why = find_differentiable(results, leaves); !why.empty()) return why;
  if (!end_walks(leaves))
    return no_gradients_as_ = Outcome::wants_apart, "an input has a history that leads to another tensor that needs them";
  Walk walk(leaves, code != nullptr, [this](const at::Tensor& t) { return has_made(t); });
  ag::edge_list roots;
  std::vector<at::Tensor> tangents;
  std::vector<Reached> reached;
  for (size_t r : differentiable_.results) {
    roots.push_back(ag::impl::gradient_edge(results[r]));
    reached.push_back(walk.from(roots.back()));
    if (std::string why = why_not_from(walk, reached.back()); !why.empty()) return why;
    differentiable_.reaches.emplace_back(reached.back().begin(), reached.back().begin() + static_cast<std::ptrdiff_t>(leaves.size()));
    tangents.push_back(add_tangent(results[r]));
  }
  differentiable_.through = roots_behind(roots);
  if (std::string why = why_no_windows(results, leaves); !why.empty()) return why;
  if (walk.with_code().empty()) code = nullptr;
  if (std::string why = code ? why_not_with_code(walk, reached, leaves.size(), roots, *code) : ""; !why.empty()) return why;
  if (roots.empty()) return "";
  const bool any_region = std::ranges::any_of(trace_.ops, [](const TraceOp& op) { return op.schema == kEnterRegion; });
  if (any_region && writes_given_of_regions(trace_)) return "what a checkpoint is given is written behind it, which eager forbids";
  if (saved_tensors && !any_region) {  // within, eager keeps nothing
    std::vector<int32_t> inputs;
    for (TensorId id : trace_.inputs) inputs.push_back(trace_.tensors[static_cast<size_t>(id)].storage);
    const Places places(inputs, results, differentiable_.results, [this](const at::Tensor& t) { return storage_of(t); });
    differentiable_.kept = kept_by_eager(roots, [&](ag::Node& n) { return walk.from(n); }, places);
    differentiable_.kept.inputs = inputs.size();
  }
  trace_.ops.push_back(divider(kBeginGradients));
  first_gradient_op_ = trace_.ops.size();
  const size_t reads = trace_.reads.size(), decided = trace_.symbols->floats.deferred().size(), held = lifted_.size();
  auto engine = [&] {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    gradients_ = ag::Engine::get_default_engine().execute(roots, tangents, /*keep_graph=*/true, /*create_graph=*/false,
                                                          /*accumulate_grad=*/false, walk.edges());
  };
  if (std::string why = run_engine(engine, code); !why.empty()) return why;
  if (trace_.reads.size() != reads || trace_.symbols->floats.deferred().size() != decided)
    return "a gradient goes by elements that are read on the host";
  if (lifted_.size() != held) return "a gradient depends on a tensor that the program has not met";
  for (size_t i = first_gradient_op_; i < trace_.ops.size(); ++i) {
    TraceOp& op = trace_.ops[i];
    if (op.effect && may_draw(op.schema)) return cat("a gradient is computed by ", op.schema, ", which has effects beside its results");
    op.effect = false;  // eager, too, leaves an operation out where nobody asks for what it gives
  }
  return "";
}

// What stands for a gradient is nobody's.
void Capture::drop_gradients() {
  for (const auto* list : {&given_, &lifted_})
    for (const at::Tensor& t : *list)
      if (t.defined() && t.is_leaf() && real_tensor(t.grad())) t.mutable_grad().reset();
}

void Capture::check_gradients(const torch::jit::Stack& stack, size_t first) {
  if (at::GradMode::is_enabled() && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty())
    fail_with({"gradients are needed: what is saved for them goes through hooks", Fallback::eager}, Outcome::needs_gradients);
  if (!regions_.empty()) check_leaves(stack, first);
}

bool Capture::has_made(const at::Tensor& t) const {
  const at::Tensor* inside = real_tensor(t);
  std::lock_guard lock(mutex_);
  auto it = tensors_.find((inside ? *inside : t).unsafeGetTensorImpl());
  return it != tensors_.end() && std::find(trace_.inputs.begin(), trace_.inputs.end(), it->second.id) == trace_.inputs.end();
}

// ---- regions ----

void Capture::begin_region(Region region) {
  std::lock_guard lock(mutex_);
  region.first_tensor = static_cast<TensorId>(trace_.tensors.size());
  region.first_storage = static_cast<int32_t>(storages_.size());
  if (regions_.empty()) {
    std::vector<TensorId> given;
    for (const at::Tensor& t : region.given) {
      const at::Tensor* inside = real_tensor(t);
      given.push_back(id_of(inside ? *inside : t));
    }
    trace_.ops.push_back(divider(kEnterRegion, std::move(given)));
  }
  regions_.push_back(std::move(region));
}

void Capture::end_region() {
  std::lock_guard lock(mutex_);
  regions_.pop_back();
  if (regions_.empty()) trace_.ops.push_back(divider(kLeaveRegion));
}

void Capture::refuse_gradients(std::string why) {
  std::lock_guard lock(mutex_);
  if (no_gradients_.empty()) no_gradients_ = std::move(why);
}

void Capture::must_not_go_by_modes(const char* why) {
  Capture* c = current();
  if (c && !c->regions_.empty() && c->regions_.back().is_reentrant) c->refuse_gradients(why);
}

// Whether the innermost region has made it.
bool Capture::is_of_region(int32_t storage) const {
  if (storage < 0) return true;
  auto has = [&](TensorId input) { return trace_.tensors[static_cast<size_t>(input)].storage == storage; };
  return storage >= regions_.back().first_storage && std::none_of(trace_.inputs.begin(), trace_.inputs.end(), has);
}

// What eager would do once more for gradients, or otherwise.
void Capture::check_region(const std::vector<TensorId>& mutated, bool draws) {
  auto is_outside = [&](TensorId id) { return !is_of_region(trace_.tensors[static_cast<size_t>(id)].storage); };
  if (no_gradients_.empty() && std::any_of(mutated.begin(), mutated.end(), is_outside))
    no_gradients_ = cat("a checkpoint writes to a tensor that is there before, which eager does again for gradients", at_line());
  if (no_gradients_.empty() && draws && !regions_.back().repeats_random)
    no_gradients_ = cat("a checkpoint draws random numbers, and others for gradients", at_line());
}

// A region that autograd enters anew has gradients for what it is given, and for leaves. What else has a history is differentiated there
// and then, which only eager does.
void Capture::check_leaves(const torch::jit::Stack& stack, size_t first) {
  const Region& region = regions_.back();
  auto look = [&](const at::Tensor& t) {
    if (!t.defined() || !t.requires_grad() || t.is_leaf()) return;
    const at::Tensor* inside = real_tensor(t);
    auto known = tensors_.find((inside ? *inside : t).unsafeGetTensorImpl());
    if (known != tensors_.end() && known->second.id >= region.first_tensor) return;
    auto is_it = [&](const at::Tensor& g) { return g.is_same(t); };
    if (std::none_of(region.given.begin(), region.given.end(), is_it) && no_gradients_.empty())
      no_gradients_ = cat("a checkpoint with use_reentrant=True reads a tensor with a history that is none of its arguments", at_line());
  };
  if (!region.is_reentrant) return;
  for (size_t i = first; i < stack.size(); ++i) for_each_tensor_in(stack[i], look);
}

std::string Capture::why_no_result(const at::Tensor& t) const {
  if (!is_of_region(storage_of(t))) return "a checkpoint with use_reentrant=True gives back what it has not made";
  if (!t.requires_grad() && (t.is_floating_point() || t.is_complex()))
    return "a checkpoint with use_reentrant=True gives a tensor that does not depend on what needs gradients";
  return "";
}

// To each node of the graph behind these tensors, one.
static ag::edge_list edges_behind(const std::vector<at::Tensor>& tensors) {
  ag::edge_list out;
  std::unordered_set<const ag::Node*> met;
  auto meet = [&](const ag::Edge& e) {
    if (e.function && met.insert(e.function.get()).second) out.push_back(e);
  };
  for (const at::Tensor& t : tensors)
    if (t.defined() && t.requires_grad()) meet(ag::impl::gradient_edge(t));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto node = out[i].function;  // which `out` may move
    for (const ag::Edge& e : node->next_edges()) meet(e);
  }
  return out;
}

static std::string why_no_code(ag::Node& n, const CodeObstacle& code) {
  return n.retains_grad_hooks().empty() ? code(n, is_formula(n)) : cat("a tensor whose gradient ", n.name(), " computes keeps it");
}

// Of one that the program makes itself the gradient goes with it, and what a transform of torch.func wraps gets none: its gradients are asked
// for.
static std::string why_no_leaf(ag::AccumulateGrad& n, const std::unordered_set<const c10::TensorImpl*>& known, Capture& capture) {
  if (has_hooks(n)) return cat(n.name(), " has a hook");
  if (n.variable.key_set().has(c10::DispatchKey::FuncTorchGradWrapper)) return "";
  return known.contains(n.variable.unsafeGetTensorImpl()) || capture.has_made(n.variable) ? ""
                                                                                          : "it gives some to a tensor that nobody has met";
}

void Capture::will_run_backward(const std::vector<at::Tensor>& outputs, const CodeObstacle& code) {
  std::unique_lock reading(mutex_);
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto* list : {&given_, &inputs_, &lifted_})
    for (const at::Tensor& t : *list) known.insert(t.unsafeGetTensorImpl());
  reading.unlock();
  for (const ag::Edge& e : edges_behind(outputs)) {
    ag::Node& n = *e.function;
    auto* leaf = dynamic_cast<ag::AccumulateGrad*>(&n);
    std::string why = leaf ? why_no_leaf(*leaf, known, *this) : "";
    std::lock_guard lock(mutex_);
    if (!leaf && (!is_formula(n) || has_hooks(n)))  // made by the program itself, if nothing that it reads has a history
      why = gives_histories() ? cat(n.name(), " runs code, and a tensor that the program reads has a history") : why_no_code(n, code);
    if (!why.empty()) return fail_with({cat("gradients are needed: ", why), Fallback::eager}, Outcome::needs_gradients);
  }
  runs_known_backwards_ = true;
}

// Whether the engine would run hooks or other code than torch's formulas on its way through the graph behind a tensor.
static bool leads_to_code(const at::Tensor& t) {
  return std::ranges::any_of(edges_behind({t}), [](const ag::Edge& e) {
    const bool is_torchs = is_formula(*e.function) || dynamic_cast<ag::AccumulateGrad*>(e.function.get());
    return !is_torchs || has_hooks(*e.function);
  });
}

// Whether eager's engine finds that the graph behind a tensor was gone through. It says so before it has done anything; if not, it runs.
static bool is_released(const at::Tensor& t) {
  ag::edge_list leaves;
  for (const ag::Edge& e : edges_behind({t}))
    if (e.function->next_edges().empty()) leaves.push_back(e);
  c10::impl::ExcludeDispatchKeyGuard unseen(capture_keys().both());
  try {
    ag::Engine::get_default_engine().execute({ag::impl::gradient_edge(t)}, {at::ones_like(t.detach())}, /*keep_graph=*/true,
                                             /*create_graph=*/false,
                                             /*accumulate_grad=*/false, leaves);
  } catch (const std::exception& e) {
    return std::string_view(e.what()).find(ag::ERR_BACKWARD_TWICE) != std::string_view::npos;
  }
  return false;
}

// The same where the graph has hooks or code of others', which must not run: whether the formulas in front of it tell.
static bool is_released_before_code(const at::Tensor& t) {
  c10::impl::ExcludeDispatchKeyGuard unseen(capture_keys().both());
  const at::AutoGradMode as_engine(false);
  ag::variable_list gradients{at::ones_like(t.detach())};
  for (ag::Edge at = ag::impl::gradient_edge(t); at.function && is_formula(*at.function) && !has_hooks(*at.function);) {
    if (at.function->num_inputs() != 1) return false;
    try {
      gradients = (*at.function)(std::move(gradients));
    } catch (const std::exception& e) {
      return std::string_view(e.what()).find(ag::ERR_BACKWARD_TWICE) != std::string_view::npos;
    }
    const ag::edge_list& next = at.function->next_edges();
    const auto way = std::ranges::find_if(next, &ag::Edge::is_valid);
    if (std::ranges::count_if(next, &ag::Edge::is_valid) != 1) return false;
    gradients = {gradients[static_cast<size_t>(way - next.begin())]};
    at = ag::Edge(*way);
  }
  return false;
}

// The same where nodes compute in symbols, without running them.
static bool is_released_symbolic(const at::Tensor& t) {
  return std::ranges::any_of(edges_behind({t}), [](const ag::Edge& e) { return !saved_tensors(*e.function); });
}

// The positions of those that a tensor's history leads to.
static std::vector<size_t> inputs_behind(const at::Tensor& t, const std::vector<at::Tensor>& inputs) {
  std::set<std::pair<const ag::Node*, uint32_t>> met;
  for (const ag::Edge& e : edges_behind({t}))
    for (const ag::Edge& next : e.function->next_edges()) met.emplace(next.function.get(), next.input_nr);
  std::vector<size_t> out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    if (const ag::Edge e = ag::impl::gradient_edge(inputs[i]); met.contains({e.function.get(), e.input_nr})) out.push_back(i);
  }
  return out;
}

bool Capture::has_released(const std::vector<at::Tensor>& results) {
  if (!has_run_backward_ || !runs_known_backwards_ || !differentiable_.used_up.empty()) return !differentiable_.used_up.empty();
  auto has_history = [](const at::Tensor& t) { return t.defined() && t.requires_grad() && !t.is_leaf(); };
  auto is_own_leaf = [&](const at::Tensor& t) { return t.defined() && t.requires_grad() && t.is_leaf() && has_made(t); };
  if (std::ranges::any_of(results, is_own_leaf)) return false;  // it may have a gradient
  auto is_used_up = [&](const at::Tensor& t) {
    if (t.is_view()) return false;
    if (symbolic_ && saved_tensors) return is_released_symbolic(t);
    if (real_tensor(t)) return false;
    return leads_to_code(t) ? is_released_before_code(t) : is_released(t);
  };
  if (std::ranges::any_of(results, [&](const at::Tensor& t) { return has_history(t) && !is_used_up(t); })) return false;
  std::vector<at::Tensor> inputs = inputs_;
  inputs.insert(inputs.end(), lifted_.begin(), lifted_.end());
  for (const at::Tensor& t : results)
    differentiable_.used_up.push_back(has_history(t) ? UsedUpHistory{t.grad_fn()->name(), inputs_behind(t, inputs)} : UsedUpHistory());
  return true;
}

bool Capture::gives_histories() const {
  auto has_one = [](const at::Tensor& t) { return t.defined() && t.requires_grad() && !t.is_leaf(); };
  return changes_gradients() || std::ranges::any_of(given_, has_one) || std::ranges::any_of(lifted_, has_one);
}

void Capture::differentiate(const std::vector<at::Tensor>& results, GradientCode* code) {
  if (abandoned_ || !verdict_.is_good() || std::exchange(has_differentiated_, true)) return;
  std::string why = record_gradients(results, code);
  if (why.empty()) return;
  differentiable_ = {};
  gradients_.clear();
  tangents_.clear();
  real_tangents_.clear();
  bases_.clear();
  std::lock_guard lock(mutex_);
  fail_with({cat("gradients are needed: ", why), Fallback::eager}, no_gradients_as_);
}

}  // namespace broach
