// What a captured program's results depend on for autograd, and the recording of eager's own gradients behind the program.
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <unordered_map>

#include "capture.h"
#include "keys.h"
#include "nodes.h"
#include "support/error.h"
#include "symbolic.h"

namespace broach {

namespace {

namespace ag = torch::autograd;
using Reached = std::vector<bool>;  // by leaf

// One of the formulas that torch's build makes of its table of derivatives, one for a copy or a window of a tensor, or an operator's own.
bool is_formula(ag::Node& n) {
  return std::string_view(typeid(n).name()).starts_with("N5torch8autograd9generated") || dynamic_cast<const ag::CopySlices*>(&n) ||
         dynamic_cast<const ag::CopyBackwards*>(&n) || (is_registered_gradient && is_registered_gradient(n));
}

// Autograd's graph from some results back to the tensors whose gradients are asked for.
class Walk {
 public:
  explicit Walk(const std::vector<at::Tensor>& leaves) : count_(leaves.size()) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      edges_.push_back(ag::impl::gradient_edge(leaves[i]));
      leaf_of_.emplace(edges_.back().function.get(), i);
    }
  }

  const ag::edge_list& edges() const { return edges_; }
  // Why it cannot be recorded; empty if it can.
  const std::string& obstacle() const { return obstacle_; }

  // What is reached from a result. Without recursion: a graph is as deep as the program is long.
  const Reached& from(ag::Node* root) {
    std::vector<ag::Node*> stack{root};
    while (!stack.empty() && obstacle_.empty()) {
      ag::Node* n = stack.back();
      auto [it, fresh] = reached_.try_emplace(n, Reached());
      if (fresh && !enter(*n, it->second)) {
        for (const ag::Edge& e : n->next_edges())
          if (e.function && !reached_.contains(e.function.get())) stack.push_back(e.function.get());
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
    if (!n.tensor_pre_hooks().empty() || !n.retains_grad_hooks().empty())
      obstacle_ = cat("a tensor whose gradient ", n.name(), " computes has a hook, or keeps its gradient");
    if (auto leaf = leaf_of_.find(&n); leaf != leaf_of_.end()) return reached[leaf->second] = true;
    if (dynamic_cast<ag::AccumulateGrad*>(&n))
      obstacle_ = "a tensor that needs gradients is made within the program, or kept where it is not looked for";
    else if (!is_formula(n)) obstacle_ = cat("gradients by ", n.name(), ", whose code is not torch's own");
    else if (!n.pre_hooks().empty() || !n.post_hooks().empty()) obstacle_ = cat(n.name(), " has a hook");
    return !obstacle_.empty();
  }

  void leave(ag::Node& n) {
    Reached all(count_, false);
    for (const ag::Edge& e : n.next_edges())
      if (e.function)
        if (const Reached& below = reached_[e.function.get()]; !below.empty())
          for (size_t i = 0; i < count_; ++i) all[i] = all[i] || below[i];
    reached_[&n] = std::move(all);
  }

  size_t count_;
  ag::edge_list edges_;
  std::unordered_map<ag::Node*, size_t> leaf_of_;
  std::unordered_map<ag::Node*, Reached> reached_;
  std::string obstacle_;
};

// The node that accumulates a leaf's gradient reduces it to the sizes that the leaf had as the node was made.
bool accumulates_as_it_is(const at::Tensor& t) {
  const ag::Edge edge = ag::impl::gradient_edge(t);
  return edge.function->input_metadata(edge.input_nr).is_same_shape(t);
}

// Whether a result can be had, with its history, from another result of the call: a view of it, or the same detached.
bool is_window(const at::Tensor& t, const at::Tensor& base) {
  if (!t.defined() || !base.defined() || t.is_same(base) || !base.requires_grad()) return false;
  if (t.scalar_type() != base.scalar_type() || t.is_conj() || t.is_neg() || base.is_conj() || base.is_neg()) return false;
  return t.is_view() ? t.requires_grad() && t._base().is_same(base) : !t.requires_grad();
}

}  // namespace

bool (*is_registered_gradient)(ag::Node&) = nullptr;

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

std::string Capture::find_differentiable(const std::vector<at::Tensor>& results, std::vector<at::Tensor>& leaves) {
  for (size_t i = 0; i < trace_.inputs.size(); ++i) {
    const at::Tensor& t = i < given_.size() ? inputs_[i] : lifted_[i - given_.size()];
    if (!t.defined() || !t.requires_grad()) continue;
    if (i >= given_.size() && !t.is_leaf()) return "the program holds a tensor that has a history of its own";
    if (is_written(trace_.tensors[static_cast<size_t>(trace_.inputs[i])].storage)) return "a tensor that needs gradients is written";
    if (!real_tensor(t) && !accumulates_as_it_is(t)) return "a tensor got other sizes, by .data, while a graph with its gradient is alive";
    differentiable_.inputs.push_back(i);
    leaves.push_back(t);
  }
  for (size_t r = 0; r < results.size(); ++r) {
    const at::Tensor& t = results[r];
    if (!t.defined() || !t.requires_grad()) continue;
    auto is_it = [&](const at::Tensor& other) { return other.is_same(t); };
    if (std::any_of(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(r), is_it)) continue;
    auto shares = [&](const at::Tensor& other) { return other.defined() && storage_of(other) == storage_of(t); };
    // A window of an input is made of it anew, and gets its history from there.
    if (std::any_of(inputs_.begin(), inputs_.end(), shares) || std::any_of(lifted_.begin(), lifted_.end(), shares)) continue;
    if (t.is_leaf()) return "a result is a leaf that the program makes";
    if (std::any_of(results.begin(), results.end(), [&](const at::Tensor& other) { return is_window(t, other); })) continue;
    auto is_beside = [&](const at::Tensor& other) { return shares(other) && !is_it(other) && !is_window(other, t); };
    if (std::any_of(results.begin(), results.end(), is_beside)) return "several results lie in the same memory, none as a view of another";
    differentiable_.results.push_back(r);
  }
  return "";
}

std::string Capture::record_gradients(const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> leaves;
  if (std::string why = find_differentiable(results, leaves); !why.empty()) return why;
  Walk walk(leaves);
  ag::edge_list roots;
  std::vector<at::Tensor> tangents;
  for (size_t r : differentiable_.results) {
    roots.push_back(ag::impl::gradient_edge(results[r]));
    differentiable_.reaches.push_back(walk.from(roots.back().function.get()));
    if (!walk.obstacle().empty()) return walk.obstacle();
    tangents.push_back(add_tangent(results[r]));
  }
  for (const at::Tensor& t : results)  // windows, which may have hooks of their own
    if (t.defined() && t.requires_grad()) walk.from(ag::impl::gradient_edge(t).function.get());
  if (!walk.obstacle().empty()) return walk.obstacle();
  if (roots.empty()) return "";
  first_gradient_op_ = trace_.ops.size();
  const size_t reads = trace_.reads.size(), held = lifted_.size();
  try {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    gradients_ = ag::Engine::get_default_engine().execute(roots, tangents, /*keep_graph=*/true, /*create_graph=*/false,
                                                          /*accumulate_grad=*/false, walk.edges());
  } catch (const c10::Error& e) {
    return cat("eager has no gradients: ", e.what_without_backtrace());
  }
  if (trace_.reads.size() != reads) return "a gradient goes by elements that are read on the host";
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

void Capture::refuse_hooks_on_saved() {
  if (at::GradMode::is_enabled() && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty())
    fail_with({"gradients are needed: what is saved for them goes through hooks", Fallback::eager}, Outcome::needs_gradients);
}

void Capture::differentiate(const std::vector<at::Tensor>& results) {
  if (abandoned_ || !verdict_.is_good()) return;
  std::string why = record_gradients(results);
  if (why.empty()) return;
  differentiable_ = {};
  gradients_.clear();
  tangents_.clear();
  real_tangents_.clear();
  std::lock_guard lock(mutex_);
  fail_with({cat("gradients are needed: ", why), Fallback::eager}, Outcome::needs_gradients);
}

}  // namespace broach
