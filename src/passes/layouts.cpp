#include "passes/layouts.h"

#include <utility>

#include "ir/strides.h"
#include "passes/epilogues.h"
#include "passes/passes.h"

namespace broach {

namespace {

bool is_joined(Op op) { return op == Op::cat || op == Op::pad; }

class Chooser {
 public:
  explicit Chooser(const Graph& graph)
      : graph_(graph), epilogues_(epilogues_of(graph)), outputs_(stored_outputs(graph)), placements_(graph.placements()) {}

  Graph run() {
    share_outputs();
    for (const Node& n : graph_.nodes()) {
      std::vector<Shape> strides;
      for (size_t i = 0; i < n.results.size(); ++i) strides.push_back(requested(n, i));
      placements_[n.id].strides = std::move(strides);
    }
    std::vector<OutputRequest> requests = graph_.requests();
    for (size_t i = 0; i < requests.size(); ++i) {
      const Value& v = graph_.outputs()[i];
      if (std::exchange(requests[i].free, false) && placements_[v.node->id].in < 0)
        requests[i].strides = placements_[v.node->id].strides[v.index];
    }
    return graph_.with(std::move(placements_), std::move(requests));
  }

 private:
  // An output that is a product with its dimensions regrouped: the product is written where the output lies.
  void share_outputs() {
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const Node& n = *graph_.outputs()[i].node;
      auto own = outputs_.find({n.id, 0});
      if (n.op != Op::reshape || own == outputs_.end() || graph_.requests()[i].into_input >= 0) continue;
      const Node& base = *n.inputs[0].node;
      auto product = epilogues_.stored_as.find(base.id);
      if (product == epilogues_.stored_as.end() || product->second->op != Op::dot || outputs_.contains({base.id, 0})) continue;
      if (!(graph_.requests()[i].strides == contiguous_strides(n.results[0].shape))) continue;
      outputs_.erase(own);
      outputs_[{base.id, 0}] = static_cast<int>(i);
      placements_[n.id].in = static_cast<int>(base.id);
    }
  }

  Shape requested(const Node& n, size_t i) const {
    auto it = outputs_.find({n.id, static_cast<uint32_t>(i)});
    if (it == outputs_.end()) return chosen(n, i);
    const OutputRequest& r = graph_.requests()[static_cast<size_t>(it->second)];
    if (graph_.outputs()[static_cast<size_t>(it->second)].node != &n) return contiguous_strides(n.results[i].shape);
    if (r.free && graph_.placement(n).in < 0) return chosen(n, i);
    return r.into_input >= 0 ? graph_.strides(graph_.inputs()[static_cast<size_t>(r.into_input)]) : r.strides;
  }

  Shape chosen(const Node& n, size_t i) const {
    const Shape& shape = n.results[i].shape;
    const Placement& p = graph_.placement(n);
    if (n.op == Op::input) return graph_.strides({&n, 0});
    if (p.in >= 0 && n.op != Op::reshape) return graph_.strides({&graph_.nodes()[static_cast<size_t>(p.in)], 0});
    if (n.op == Op::extern_call) {
      const auto& strides = n.call().result_strides;
      return i < strides.size() && strides[i].size() == shape.size() ? strides[i] : contiguous_strides(shape);
    }
    // Heads beside each other, as the projection that follows reads them.
    if ((n.op == Op::attention && i == 0) || n.op == Op::attention_gradient) return strides_in_order(shape, {0, 2, 1, 3});
    if (!p.strides.empty() && is_channels_last(shape, p.strides[i])) return p.strides[i];
    auto it = epilogues_.stored_as.find(n.id);
    if (it != epilogues_.stored_as.end() && it->second != &n) return placements_[it->second->id].strides[0];
    return lies_as_operands(n, shape) ? channels_last_strides(shape) : contiguous_strides(shape);
  }

  bool is_channels_last_value(const Value& v) const { return is_channels_last(v.shape(), placements_[v.node->id].strides[v.index]); }

  // Whether what it is computed from has its channels last.
  bool lies_as_operands(const Node& n, const Shape& shape) const {
    if (is_elementwise(n.op)) {
      for (const Value& v : n.inputs)
        if (v.shape() == shape && is_channels_last_value(v)) return true;
      return false;
    }
    if (is_joined(n.op)) return is_channels_last_value(n.inputs[0]);
    if (!is_view(n.op)) return false;
    // As a window this keeps the operand's order; stored, it is contiguous, which the users of the layout must not confuse.
    auto w = window_of_view(n, {nullptr, 0, placements_[n.inputs[0].node->id].strides[n.inputs[0].index]});
    return w && is_channels_last(shape, w->strides);
  }

  const Graph& graph_;
  const Epilogues epilogues_;
  OutputValues outputs_;
  std::vector<Placement> placements_;
};

}  // namespace

OutputValues stored_outputs(const Graph& graph) {
  OutputValues out;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Value& v = graph.outputs()[i];
    const int in = graph.placement(*v.node).in;
    if (v.node->op == Op::extern_call) continue;
    out[v.node->op == Op::reshape && in >= 0 ? std::pair(static_cast<uint32_t>(in), 0u) : std::pair(v.node->id, v.index)] =
        static_cast<int>(i);
  }
  return out;
}

Graph choose_layouts(const Graph& graph, const PassContext&) { return Chooser(graph).run(); }

}  // namespace broach
