// What is computed of positions and numbers alone, the weights of an interpolation or a triangle's mask, lies on no device. Where memory is to
// hold it, because it is computed once or is repeated for many, that would be the host's, and so would be who reads it there.
#include <vector>

#include "passes/emission.h"
#include "passes/passes.h"

namespace broach {

namespace {

enum class Made : uint8_t { of_numbers, of_positions, elsewhere };

// By node.
std::vector<Made> find_made(const Graph& graph) {
  std::vector<Made> out;
  for (const Node& n : graph.nodes()) {
    const OpKind k = kind_of(n.op);
    Made made = n.op == Op::iota ? Made::of_positions : Made::of_numbers;
    if (n.op == Op::input || n.op == Op::zero || k == OpKind::heavy || k == OpKind::routine || k == OpKind::external)
      made = Made::elsewhere;
    for (const Value& v : n.inputs) made = std::max(made, out[v.node->id]);
    out.push_back(made);
  }
  return out;
}

}  // namespace

Graph place_positions(const Graph& graph, const PassContext&) {
  const std::vector<Made> made = find_made(graph);
  // A view of what is placed stays one, so that nothing is stored repeated.
  auto place = [&](auto& self, GraphBuilder& b, const Value& v, const Value& now, const Device& device) -> Value {
    const Node& n = *v.node;
    if (made[n.id] != Made::of_positions || kind_of(n.op) == OpKind::source) return now;
    if (moves_only(n.op)) return b.emit(n.op, {self(self, b, n.inputs[0], now.node->inputs[0], device)}, n.attrs);
    return b.emit(Op::place, {now}, named(device));
  };
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    const Device device = n.results[0].device;
    // Calls are given what they were given: some want sizes on the host.
    if (device == Device{} || n.op == Op::extern_call) return std::nullopt;
    std::vector<Value> operands;
    for (size_t i = 0; i < in.size(); ++i) operands.push_back(place(place, b, n.inputs[i], in[i], device));
    if (std::ranges::equal(operands, in)) return std::nullopt;
    return b.emit_all(n.op, std::move(operands), n.attrs);
  });
}

}  // namespace broach
