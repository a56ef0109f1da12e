// What depends on constant inputs only (weights in eval mode) is computed once, not on every call.
#include <algorithm>
#include <set>

#include "passes/constancy.h"
#include "passes/emission.h"
#include "passes/passes.h"

namespace broach {

namespace {

// The values that are constant, computed, and read by something that is not constant. A view that only moves elements is left to its
// reader, so that nothing is stored repeated.
struct Border {
  Border(const Graph& graph, Constancy& is_constant) : is_frozen(graph.nodes().size()) {
    for (const Node& n : graph.nodes())
      if (n.op != Op::input && !is_constant(n))
        for (const Value& v : n.inputs) add(v, is_constant);
    for (const Value& v : graph.outputs()) add(v, is_constant);
    for (auto n = graph.nodes().rbegin(); n != graph.nodes().rend(); ++n)
      if (is_frozen[n->id])
        for (const Value& v : n->inputs) is_frozen[v.node->id] = true;
  }

  std::vector<Value> values;
  std::vector<bool> is_frozen;  // by node: what these are computed from, and they themselves

 private:
  void add(Value v, Constancy& is_constant) {
    while (moves_only(v.node->op)) v = v.node->inputs[0];
    if (kind_of(v.node->op) == OpKind::source || !is_constant(*v.node)) return;
    if (known_.emplace(v.node, v.index).second) values.push_back(v);
    is_frozen[v.node->id] = true;
  }

  std::set<std::pair<const Node*, uint32_t>> known_;
};

}  // namespace

std::vector<Stage> freeze(Module& m, const Stage& stage, const PassContext& c) {
  if (!c.freeze) return {};
  const Graph& graph = *stage.graph;
  std::vector<bool> constant;
  for (size_t slot : stage.takes) constant.push_back(slot < c.constant.size() && c.constant[slot]);
  Constancy is_constant(constant);
  const Border border(graph, is_constant);
  if (border.values.empty()) return {};
  Stage once{Stage::Runs::once, nullptr, {}, {}}, in_call = stage;
  Emission first(graph), second(graph);
  for (size_t i = 0; i < stage.takes.size(); ++i) {
    const Value& v = graph.inputs()[i];
    second.input(v, graph.strides(v));
    if (!border.is_frozen[v.node->id]) continue;
    first.input(v, graph.strides(v));
    once.takes.push_back(stage.takes[i]);
  }
  for (const Value& v : border.values) {
    second.input(v, contiguous_strides(v.shape()));
    once.gives.push_back(m.new_slot(v.type(), contiguous_strides(v.shape())));
    in_call.takes.push_back(once.gives.back());
  }
  for (const Node& n : graph.nodes()) {
    if (n.op == Op::input) continue;
    if (border.is_frozen[n.id]) first.emit(n);
    if (is_constant(n) && !moves_only(n.op) && kind_of(n.op) != OpKind::source) continue;
    // What only feeds frozen values is never read here, and is dropped by the next pass that rebuilds the graph.
    if (std::ranges::all_of(n.inputs, [&](const Value& v) { return second.has(v); })) second.emit(n);
  }
  m.set_graph(once, first.b.finish(first.of(border.values)));
  m.set_graph(in_call, rewrite(second.b.finish(second.of(graph.outputs()), graph.requests()),
                               [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; }));
  return {std::move(once), std::move(in_call)};
}

}  // namespace broach
