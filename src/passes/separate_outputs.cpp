#include <set>

#include "passes/updates.h"

namespace broach {

Graph separate_outputs(const Graph& graph, const std::vector<OutputRequest>& requests) {
  GraphBuilder b(graph);
  std::vector<std::vector<Value>> now(graph.nodes().size());
  for (const Node& n : graph.nodes()) {
    b.set_line_index(n.line);
    std::vector<Value> inputs;
    for (const Value& v : n.inputs) inputs.push_back(now[v.node->id].at(v.index));
    now[n.id] = n.op == Op::input ? std::vector{b.input(n.results[0])} : b.emit_all(n.op, std::move(inputs), n.attrs);
  }
  std::vector<Value> outputs;
  std::set<std::pair<const Node*, uint32_t>> taken;
  // What may be written in place lies in its input; who else wants it gets a copy.
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Node& n = *graph.outputs()[i].node;
    if (requests[i].into_input >= 0 && (kind_of(n.op) == OpKind::routine || n.op == Op::cat))
      taken.insert({now[n.id][graph.outputs()[i].index].node, graph.outputs()[i].index});
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    Value v = now[graph.outputs()[i].node->id][graph.outputs()[i].index];
    OpKind k = kind_of(v.node->op);
    // An extern's result can be handed out as it is if it lies as the caller expects.
    bool fits = k != OpKind::external ||
                (v.index < v.node->call().result_strides.size() && v.node->call().result_strides[v.index] == requests[i].strides);
    if (requests[i].into_input >= 0 && v.node->op == Op::input) v = b.emit(Op::copy, {v}, {{Attr::index, -1 - static_cast<int64_t>(i)}});
    bool own = k != OpKind::source && fits && requests[i].into_input < 0 && taken.insert({v.node, v.index}).second;
    outputs.push_back(own ? v : b.emit(Op::copy, {v}, {{Attr::index, static_cast<int64_t>(i)}}));
  }
  return b.finish(std::move(outputs));
}

}  // namespace broach
