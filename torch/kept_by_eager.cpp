#include "kept_by_eager.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "nodes.h"

namespace broach {

namespace ag = torch::autograd;

std::optional<std::vector<at::Tensor>> (*saved_tensors)(ag::Node&) = nullptr;

namespace {

bool meet(const std::vector<bool>& a, const std::vector<bool>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] && b[i]) return true;
  return false;
}

std::vector<bool> either(const std::vector<bool>& a, std::vector<bool> b) {
  for (size_t i = 0; i < a.size(); ++i) b[i] = b[i] || a[i];
  return b;
}

class UsedUp : public ag::Error {
 public:
  explicit UsedUp(std::string name) : Error(ag::ERR_BACKWARD_TWICE), name_(std::move(name)) {}
  std::string name() const override { return name_; }

 private:
  const std::string name_;
};

}  // namespace

// Its edges are what the engine goes by where it is asked for the gradients of some tensors alone.
void give_used_up_history(const at::Tensor& t, const UsedUpHistory& history, const RunInputs& inputs) {
  ag::edge_list edges;
  for (size_t i : history.inputs)
    if (inputs.tensors[i]->defined()) edges.push_back(ag::impl::gradient_edge(*inputs.tensors[i]));
  NodePointer node = new_node<UsedUp>(history.node);
  node->set_next_edges(std::move(edges));
  ag::set_history(t, node);
}

KeptByEager kept_by_eager(const ag::edge_list& roots, ReachedFrom reached, PlaceOf place_of) {
  std::map<ag::Node*, std::vector<bool>> tangents;
  for (size_t t = 0; t < roots.size(); ++t) {
    std::unordered_set<ag::Node*> met{roots[t].function.get()};
    for (std::vector<ag::Node*> stack{met.begin(), met.end()}; !stack.empty();) {
      ag::Node* n = stack.back();
      stack.pop_back();
      if (!reached(*n)) continue;
      tangents.try_emplace(n, roots.size()).first->second[t] = true;
      for (const ag::Edge& e : n->next_edges())
        if (e.function && met.insert(e.function.get()).second) stack.push_back(e.function.get());
    }
  }
  std::map<std::pair<std::vector<bool>, std::vector<bool>>, std::set<size_t>> groups;
  for (auto& [node, of] : tangents) {
    const auto saved = saved_tensors(*node);
    if (!saved || saved->empty()) continue;
    std::set<size_t>& places = groups[{of, *reached(*node)}];
    for (const at::Tensor& t : *saved)
      if (const auto place = t.defined() ? place_of(t) : std::nullopt) places.insert(*place);
  }
  std::vector<std::vector<bool>> leads_to(roots.size());
  for (const auto& [group, places] : groups)
    for (size_t t = 0; t < roots.size(); ++t)
      if (group.first[t]) leads_to[t] = either(leads_to[t], group.second);
  KeptByEager out{.is_known = true};
  std::set<size_t> all;
  for (const auto& [group, places] : groups) {
    std::vector<bool> on_all_ways;
    for (size_t t = 0; t < roots.size(); ++t) on_all_ways.push_back(group.first[t] && group.second == leads_to[t]);
    out.groups.push_back({group.first, group.second, {places.begin(), places.end()}, std::move(on_all_ways)});
    all.insert(places.begin(), places.end());
  }
  out.places.assign(all.begin(), all.end());
  return out;
}

void KeptOfCall::begin(c10::function_ref<const at::Tensor&(size_t)> at) {
  may_be_written_.reserve(kept_.places.size());
  for (size_t place : kept_.places) {
    const at::Tensor& t = at(place);
    if (!t.defined() || t.is_inference()) continue;
    const auto& counter = t.unsafeGetTensorImpl()->version_counter();
    may_be_written_.push_back({place, counter, counter.current_version()});
  }
}

void KeptOfCall::use(const std::vector<bool>& given, const std::vector<bool>& wanted, bool keeps_graph) {
  const bool all = std::ranges::find(wanted, false) == wanted.end();
  auto goes_through = [&](const KeptByEager::Group& g) { return meet(g.tangents, given) && (all || meet(g.gradients, wanted)); };
  std::lock_guard lock(mutex_);
  const int run = ag::get_current_graph_task_id();
  for (size_t g = 0; g < kept_.groups.size(); ++g)
    TORCH_CHECK(freed_by_[g] == kNone || freed_by_[g] == run || !goes_through(kept_.groups[g]), ag::ERR_BACKWARD_TWICE);
  for (const Written& w : may_be_written_) {
    const uint32_t now = w.counter.current_version();
    if (now == w.version) continue;
    auto has_it = [&](const KeptByEager::Group& g) { return std::ranges::find(g.places, w.place) != g.places.end() && goes_through(g); };
    TORCH_CHECK(
        std::ranges::none_of(kept_.groups, has_it),
        "one of the variables needed for gradient computation has been modified by an inplace operation: an argument or a result of "
        "a compiled program is at version ",
        now, "; expected version ", w.version, " instead.");
  }
  for (size_t g = 0; g < kept_.groups.size() && !keeps_graph; ++g)
    if (goes_through(kept_.groups[g])) freed_by_[g] = run;
}

bool KeptOfCall::is_spent(size_t tangent) {
  std::lock_guard lock(mutex_);
  bool is_all_freed = true;
  for (size_t g = 0; g < kept_.groups.size(); ++g) {
    const bool is_freed = freed_by_[g] != kNone;
    if (is_freed && kept_.groups[g].is_on_all_ways[tangent]) return true;
    is_all_freed = is_all_freed && (is_freed || !kept_.groups[g].tangents[tangent]);
  }
  return is_all_freed;
}

}  // namespace broach
