#include "leaf_gradients.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "devices.h"
#include "nodes.h"

namespace broach {

namespace {

namespace ag = torch::autograd;

// The engine's own lock for a leaf's gradient.
struct Lock : ag::AccumulateGrad {
  static std::mutex& of(ag::AccumulateGrad& n) { return n.*(&Lock::mutex_); }
};

// The type that a leaf's gradients are to have may be set, and is then another than the leaf's.
template <class Metadata>
bool is_of_type(const at::Tensor& gradient, const Metadata& expected) {
  if constexpr (requires { expected.grad_dtype(); }) return expected.grad_dtype() == gradient.scalar_type();
  else return gradient.dtype() == expected.dtype();
}

// Whether the engine would keep the tensor as it is (torch/csrc/autograd/functions/accumulate_grad.h, case 1.1).
bool may_keep(const at::Tensor& gradient, const ag::AccumulateGrad& accumulates) {
  const at::Tensor& leaf = accumulates.variable;
  const ag::InputMetadata& expected = accumulates.input_metadata(0);
  return leaf.defined() && leaf.is_leaf() && leaf.requires_grad() && is_plain(gradient) && gradient.use_count() == 1 &&
         !gradient.requires_grad() && gradient.layout() == at::kStrided && leaf.layout() == at::kStrided &&
         gradient.scalar_type() == leaf.scalar_type() && is_of_type(gradient, expected) && gradient.device() == leaf.device() &&
         gradient.sizes() == leaf.sizes() && expected.is_same_shape(gradient) && !gradient.is_conj() && !gradient.is_neg() &&
         !expected.is_tensor_subclass() && ag::utils::obeys_layout_contract(gradient, leaf);
}

}  // namespace

bool (*is_empty_hook)(const ag::FunctionPreHook&) = nullptr;

bool have_code(const std::vector<std::unique_ptr<ag::FunctionPreHook>>& hooks) {
  return !std::ranges::all_of(hooks, [](const auto& h) { return is_empty_hook && is_empty_hook(*h); });
}

bool has_hooks(ag::Node& n) {
  return !n.pre_hooks().empty() || have_code(n.tensor_pre_hooks()) || !n.post_hooks().empty() || !n.retains_grad_hooks().empty() ||
         n.tensor_post_acc_grad_hooks();
}

bool is_awaited(ag::Node& accumulates) { return !accumulates.post_hooks().empty() || accumulates.tensor_post_acc_grad_hooks(); }

void give_to_leaves(ag::Node& node, ag::variable_list& gradients, c10::function_ref<bool(size_t)> is_reached) {
  // Leaves get nothing from a node that is called by hand, nor from a run for some tensors only. Anomaly detection and hooks look at what a
  // node returns. Another run, perhaps of another thread's, may come through a graph that is kept.
  const auto* asked = ag::get_current_graph_task_exec_info();
  if (!asked) return;
  const bool gives = asked->empty() && !ag::get_current_graph_task_keep_graph() && !c10::GradMode::is_enabled() &&
                     !ag::AnomalyMode::is_enabled() && node.post_hooks().empty();
  std::vector<at::Device> left;
  std::vector<std::pair<size_t, ag::Edge>> taken;
  for (size_t g = 0; g < gradients.size(); ++g) {
    at::Tensor& gradient = gradients[g];
    ag::Edge& edge = node.next_edges()[g];
    auto* accumulates = gives || !gradient.defined() ? dynamic_cast<ag::AccumulateGrad*>(edge.function.get()) : nullptr;
    if (!accumulates || edge.function.use_count() != 1) continue;
    if (!gradient.defined()) {
      if (has_hooks(*accumulates) && !is_reached(g)) taken.emplace_back(g, std::exchange(edge, {}));
      continue;
    }
    if (has_hooks(*accumulates) || !may_keep(gradient, *accumulates)) continue;
    if (!gradient.is_cpu()) {
      // The engine makes the caller's stream wait for those of the leaves that it gave a gradient itself.
      if (accumulates->stream() != node.stream()) continue;
      if (std::ranges::find(left, gradient.device()) == left.end()) {
        left.push_back(gradient.device());
        continue;
      }
    }
    {
      std::lock_guard lock(Lock::of(*accumulates));
      at::Tensor& own = accumulates->variable.mutable_grad();
      if (own.defined())
        ag::AccumulateGrad::accumulateGrad(accumulates->variable, own, gradient, 1, [&](at::Tensor&& sum) { own = std::move(sum); });
      else own = gradient.is_view() ? gradient.detach() : std::move(gradient);
    }
    gradient.reset();
    taken.emplace_back(g, std::exchange(edge, {}));
  }
  if (taken.empty()) return;
  ag::Engine::get_default_engine().queue_callback([self = node.getptr(), taken = std::move(taken)] {
    for (const auto& [g, edge] : taken) self->next_edges()[g] = edge;
  });
}

}  // namespace broach
