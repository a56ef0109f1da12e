#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <set>

#include "compat.h"
#include "gradients.h"
#include "input_history.h"

namespace broach {

namespace ag = torch::autograd;

namespace {

// Takes a gradient off the engine's walk, which so ends there; once.
struct Taken {
  at::Tensor gradient;
  bool is_over = false;
};
class EndOfWalk : public ag::FunctionPreHook {
 public:
  EndOfWalk(size_t at, std::shared_ptr<Taken> taken) : at_(at), taken_(std::move(taken)) {}
  ag::variable_list operator()(const ag::variable_list& gradients) override {
    ag::variable_list out = gradients;
    if (!taken_->is_over) taken_->gradient = std::move(out[at_]);
    return out;
  }

 private:
  size_t at_;
  std::shared_ptr<Taken> taken_;
};

// The nodes of leaves in a graph of a run's own, in whose place others stand for the time of a walk: what hangs on a leaf is told by the
// engine's run that asks for its gradient, not by the walk within.
class LeavesApart {
 public:
  void add(const at::Tensor& leaf) {
    ag::Edge own = ag::impl::gradient_edge(leaf);
    ag::Node* known = own.function.get();
    if (!known || apart_.contains(known)) return;
    NodePointer node = new_identity({own});
    node->add_input_metadata(leaf);
    node->next_edges()[0] = {};
    apart_.emplace(known, std::pair(std::move(own), std::move(node)));
  }
  ag::Edge edge_of(const at::Tensor& leaf) const { return {apart_.at(ag::impl::gradient_edge(leaf).function.get()).second, 0}; }
  void replace_from(const ag::edge_list& roots) {
    std::set<ag::Node*> met;
    std::vector<ag::Node*> stack;
    for (const ag::Edge& root : roots) stack.push_back(root.function.get());
    while (!stack.empty()) {
      ag::Node* n = stack.back();
      stack.pop_back();
      if (!n || !met.insert(n).second) continue;
      for (ag::Edge& e : n->next_edges()) {
        if (auto leaf = apart_.find(e.function.get()); leaf != apart_.end()) e.function = leaf->second.second;
        else stack.push_back(e.function.get());
      }
      // The node of what was done to a view in place holds that one's own, and insists that both lead to the same.
      if (auto* written = dynamic_cast<ag::CopySlices*>(n)) stack.push_back(written->fn.get());
    }
  }
  // Gradients of the gradients go on to the leaves.
  void connect() {
    for (auto& [node, leaf] : apart_) leaf.second->next_edges()[0] = leaf.first;
  }

 private:
  std::map<ag::Node*, std::pair<ag::Edge, NodePointer>> apart_;  // by a leaf's own node
};

// Leaves, which may have been frozen since the call, or unfrozen.
class NeedsAsTheyWere {
 public:
  NeedsAsTheyWere() = default;
  ~NeedsAsTheyWere() {
    for (const at::Tensor& t : changed_)
      if (t.is_leaf()) t.requires_grad_(!t.requires_grad());  // none any more if the program has written it
  }
  NeedsAsTheyWere(const NeedsAsTheyWere&) = delete;
  NeedsAsTheyWere& operator=(const NeedsAsTheyWere&) = delete;
  void put_back(const at::Tensor& t, bool needed) {
    if (!t.defined() || !t.is_leaf() || t.requires_grad() == needed) return;
    t.requires_grad_(needed);
    changed_.push_back(t);
  }

 private:
  std::vector<at::Tensor> changed_;
};

}  // namespace

// As eager's, a gradient is undefined unless a result that it depends on has one.
std::vector<bool> Backward::reached(const std::vector<at::Tensor>& tangents, std::vector<bool> wanted) const {
  for (size_t g = 0; g < wanted.size(); ++g) {
    bool is_reached = false;
    for (size_t t = 0; t < tangents.size(); ++t) is_reached = is_reached || (tangents[t].defined() && differentiable_.reaches[t][g]);
    wanted[g] = wanted[g] && is_reached;
  }
  return wanted;
}

std::vector<at::Tensor> Backward::run_eagerly(const ProgramAgain& program, const CallInputs& call, const std::vector<bool>& needed,
                                              const FoundByCall* found, const std::vector<at::Tensor>& tangents, std::vector<bool> wanted,
                                              const std::vector<size_t>& ends) const {
  ++reruns_;
  NeedsAsTheyWere needs;
  for (size_t i = 0; i < call.tensors.size(); ++i) needs.put_back(call.tensors[i], needed[i]);
  for (size_t i = 0; i < lifted_.size(); ++i) needs.put_back(lifted_[i], lifted_needed_[i]);
  std::vector<at::Tensor> inputs = call.tensors.vec(), seeds;
  std::vector<InputWithHistory> with_history;
  for (at::Tensor& t : inputs)
    if (t.defined() && t.requires_grad() && !t.is_leaf()) t = with_history.emplace_back(t).inside();
  const bool create_graph = c10::GradMode::is_enabled();
  const std::vector<at::Tensor> results = rerun_.run(program, {inputs, call.ints, call.floats}, lifted_, found);
  auto edge_of = [&](size_t t) {
    const size_t own = differentiable_.results[t], given = differentiable_.has_history.size() - differentiable_.bases.size();
    const size_t r = own < given ? own : differentiable_.bases[own - given];
    TORCH_CHECK(r < results.size() && results[r].defined() && results[r].requires_grad() && (r == own || results[r].is_view()),
                "broach: run again, the program does not give the same results");
    return ag::impl::gradient_edge(r == own ? results[r] : at::Tensor(results[r]._base()));
  };
  ag::edge_list roots, leaves, all;
  for (size_t t = 0; t < tangents.size(); ++t) {
    all.push_back(edge_of(t));
    if (!tangents[t].defined()) continue;
    roots.push_back(all.back());
    seeds.push_back(tangents[t]);
  }
  std::vector<size_t> asked;  // gradients
  LeavesApart apart;
  for (size_t g = 0; g < wanted.size(); ++g) {
    const size_t i = differentiable_.inputs[g];
    const at::Tensor& t = i < inputs.size() ? inputs[i] : lifted_[i - inputs.size()];
    if (t.is_leaf()) apart.add(t);
    if (!wanted[g]) continue;
    asked.push_back(g);
    leaves.push_back(t.is_leaf() ? apart.edge_of(t) : ag::impl::gradient_edge(t));
  }
  apart.replace_from(all);
  std::vector<std::shared_ptr<Taken>> taken;
  for (size_t end : ends) {
    leaves.push_back(edge_of(end));  // so that the engine goes there
    taken.push_back(std::make_shared<Taken>());
    leaves.back().function->add_tensor_pre_hook(std::make_unique<EndOfWalk>(leaves.back().input_nr, taken.back()));
  }
  std::vector<at::Tensor> out(wanted.size());
  if (!leaves.empty()) {
    auto gradients = ag::Engine::get_default_engine().execute(roots, seeds, /*keep_graph=*/true, create_graph,
                                                              /*accumulate_grad=*/false, leaves);
    for (size_t k = 0; k < asked.size(); ++k) out[asked[k]] = std::move(gradients[k]);
  }
  apart.connect();
  for (InputWithHistory& input : with_history) input.connect();
  for (const auto& t : taken) {
    out.push_back(std::move(t->gradient));
    t->is_over = true;  // the graph may be walked again, for gradients of these gradients
  }
  return out;
}

}  // namespace broach
