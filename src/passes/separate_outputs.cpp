#include <algorithm>
#include <set>

#include "passes/passes.h"

namespace broach {

namespace {

// By output: whether its value can be given to the caller where it is computed.
std::vector<bool> own_outputs(const Graph& graph) {
  std::set<std::pair<const Node*, uint32_t>> taken;
  std::vector<bool> own;
  // What may be written in place lies in its input; who else wants it gets a copy.
  for (size_t i = 0; i < graph.outputs().size(); ++i)
    if (const Value& v = graph.outputs()[i];
        graph.requests()[i].into_input >= 0 && (kind_of(v.node->op) == OpKind::routine || v.node->op == Op::cat))
      taken.insert({v.node, v.index});
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Value& v = graph.outputs()[i];
    const OutputRequest& r = graph.requests()[i];
    const OpKind k = kind_of(v.node->op);
    // An extern's result can be handed out as it is if it lies as the caller expects.
    const bool fits = k != OpKind::external ||
                      (v.index < v.node->call().result_strides.size() && (r.free || v.node->call().result_strides[v.index] == r.strides));
    own.push_back(k != OpKind::source && fits && r.into_input < 0 && taken.insert({v.node, v.index}).second);
  }
  return own;
}

}  // namespace

Graph separate_outputs(const Graph& graph, const PassContext&) {
  const std::vector<bool> own = own_outputs(graph);
  if (std::find(own.begin(), own.end(), false) == own.end()) return graph;
  GraphBuilder b(graph);
  std::vector<std::vector<Value>> now(graph.nodes().size());
  for (const Node& n : graph.nodes()) {
    b.set_line_index(n.line);
    std::vector<Value> inputs;
    for (const Value& v : n.inputs) inputs.push_back(now[v.node->id].at(v.index));
    now[n.id] =
        n.op == Op::input ? std::vector{b.input(n.results[0], graph.strides({&n, 0}))} : b.emit_all(n.op, std::move(inputs), n.attrs);
  }
  std::vector<Value> outputs;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    Value v = now[graph.outputs()[i].node->id][graph.outputs()[i].index];
    if (graph.requests()[i].into_input >= 0 && v.node->op == Op::input) v = b.emit(Op::copy, {v}, {{Attr::index, -1 - index}});
    outputs.push_back(own[i] ? v : b.emit(Op::copy, {v}, {{Attr::index, index}}));
  }
  return b.finish(std::move(outputs), graph.requests());
}

}  // namespace broach
