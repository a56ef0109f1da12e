#include "input_history.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <unordered_set>
#include <utility>

#include "differentiable.h"
#include "leaf_gradients.h"
#include "nodes.h"

namespace broach {

namespace ag = torch::autograd;

namespace {

class Identity : public ag::Node {
 public:
  using ag::Node::Node;
  std::string name() const override { return "BroachInput"; }
  ag::variable_list apply(ag::variable_list&& gradients) override {
    has_lost_ = has_lost_ || next_edges().empty() || !next_edge(0).is_valid();
    return std::move(gradients);
  }
  // Whether gradients came that did not go on to the history for which it stands.
  bool has_lost() const { return has_lost_; }

 private:
  std::atomic<bool> has_lost_ = false;
};

}  // namespace

NodePointer new_identity(ag::edge_list next) { return new_node<Identity>(std::move(next)); }

void require_gradients(at::Tensor& stand_in, bool is_leaf) {
  if (is_leaf) stand_in.set_requires_grad(true);
  else ag::set_history(stand_in, new_node<Identity>(ag::edge_list()));
}

InputWithHistory::InputWithHistory(at::Tensor given) : given_(std::move(given)), inside_(given_.detach()) {
  node_ = new_node<Identity>(ag::edge_list{ag::impl::gradient_edge(given_)});
  ag::set_history(inside_, node_);
  node_->next_edges()[0] = {};
}

void InputWithHistory::connect() { node_->next_edges()[0] = ag::impl::gradient_edge(given_); }

bool InputWithHistory::is_changed() const {
  const auto storage = [](const at::Tensor& t) { return t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr; };
  return inside_.grad_fn() != node_ || has_hooks(*node_) || static_cast<const Identity&>(*node_).has_lost() ||
         inside_.unsafeGetTensorImpl()->grad().defined() || storage(inside_) != storage(given_) || inside_.sizes() != given_.sizes() ||
         inside_.strides() != given_.strides() || inside_.storage_offset() != given_.storage_offset();
}

bool is_hooked(const at::Tensor& t) {
  if (!t.defined() || !t.requires_grad()) return false;
  return have_code(ag::impl::hooks(t)) || t.retains_grad() || has_hooks(*ag::impl::gradient_edge(t).function);
}

bool has_lost_history(const at::Tensor& t) {
  if (!t.defined() || !ag::impl::get_view_autograd_meta(t) || !t.requires_grad()) return false;
  try {
    return t.grad_fn(), false;
  } catch (const c10::Error&) {
    return true;
  }
}

bool end_walks(at::TensorList inputs, std::vector<at::Tensor>* leaves) {
  constexpr size_t kMostVisited = size_t{1} << 20;
  std::unordered_set<const ag::Node*> ends, met;
  std::vector<ag::Node*> stack;
  for (const at::Tensor& t : inputs) {
    if (!t.defined() || !t.requires_grad()) continue;
    ag::Node* n = ag::impl::gradient_edge(t).function.get();
    if (!ends.insert(n).second && !t.is_leaf()) return false;
    if (t.is_leaf()) continue;
    if (has_hooks(*n)) return false;
    stack.push_back(n);
  }
  while (!stack.empty()) {
    ag::Node* n = stack.back();
    stack.pop_back();
    if (auto* leaf = dynamic_cast<ag::AccumulateGrad*>(n); leaf && leaves) leaves->push_back(leaf->variable);
    for (const ag::Edge& e : n->next_edges()) {
      if (!e.function || !met.insert(e.function.get()).second) continue;
      if (ends.contains(e.function.get()) || met.size() > kMostVisited) return false;
      stack.push_back(e.function.get());
    }
  }
  return true;
}

at::Tensor InputWithHistory::outside(const at::Tensor& result) const {
  if (!result.defined() || result.is_same(inside_)) return result.defined() ? given_ : result;
  // Of it, and not of another input in the same memory, nor by way of a function whose gradient is the program's.
  const auto* meta = ag::impl::get_view_autograd_meta(result);
  const bool window = meta && meta->has_bw_view() && meta->get_backward_view().base_.is_same(inside_) &&
                      meta->get_creation_meta() != ag::CreationMeta::IN_CUSTOM_FUNCTION && !result.is_conj() &&
                      result.scalar_type() == given_.scalar_type() && !result.is_neg();
  return window && result.grad_fn() ? given_.as_strided(result.sizes(), result.strides(), result.storage_offset()) : result;
}

}  // namespace broach
