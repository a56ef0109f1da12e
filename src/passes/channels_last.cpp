// What a contraction that wants channels last reads and adds should lie so too.
#include <algorithm>

#include "ir/strides.h"
#include "passes/epilogues.h"
#include "passes/passes.h"

namespace broach {

namespace {

std::vector<bool> find_wishes(const Graph& graph, const Capabilities& capabilities) {
  const Epilogues epilogues = epilogues_of(graph);
  std::vector<bool> out(graph.nodes().size());
  auto wish = [&](const Value& v) { out[v.node->id] = out[v.node->id] || v.rank() >= 3; };
  auto wants = [&](const Node& n) {  // null: no such thing
    const ContractionAbility* can = kind_of(n.op) == OpKind::heavy ? capabilities.contraction(n.op, n.results[0].dtype) : nullptr;
    return can && can->channels_last ? can : nullptr;
  };
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& n = graph.nodes()[i];
    if (const ContractionAbility* can = wants(n)) {
      const bool gives_weight = n.op == Op::conv_weight_gradient;
      wish(n.inputs[0]);
      if (gives_weight) wish(n.inputs[1]);
      out[i] = out[i] || !gives_weight || can->lays_weights;
    }
    if (auto it = epilogues.stored_as.find(n.id); it != epilogues.stored_as.end() && wants(*it->second)) out[i] = true;
    if (out[i] && (is_elementwise(n.op) || n.op == Op::cat || n.op == Op::pad))
      for (const Value& v : n.inputs) wish(v);
  }
  return out;
}

// What an elementwise operation gives lies as its operands do.
bool lies_as_operands(const Node& n, const std::vector<bool>& channels_last) {
  return is_elementwise(n.op) &&
         std::ranges::any_of(n.inputs, [&](const Value& v) { return channels_last[v.node->id] && v.shape() == n.results[0].shape; });
}

Shape wished(const Shape& shape) { return shape.size() >= 3 ? channels_last_strides(shape) : contiguous_strides(shape); }

}  // namespace

std::vector<bool> lie_channels_last(const Graph& graph, const Capabilities& capabilities) {
  std::vector<bool> out = find_wishes(graph, capabilities);
  for (const Node& n : graph.nodes()) out[n.id] = out[n.id] || lies_as_operands(n, out);
  return out;
}

Graph lay_channels_last(const Graph& graph, const PassContext& c) {
  const std::vector<bool> wishes = find_wishes(graph, *c.capabilities);
  std::vector<Placement> placements = graph.placements();
  for (const Node& n : graph.nodes())
    if (wishes[n.id] && n.op != Op::input && n.op != Op::dot) {
      placements[n.id].strides.clear();
      for (const Type& t : n.results) placements[n.id].strides.push_back(wished(t.shape));
    }
  return graph.with(std::move(placements));
}

}  // namespace broach
