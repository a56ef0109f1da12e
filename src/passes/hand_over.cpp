// Gradients that somebody waits for, such as those that are reduced over several processes, are given in parts, as they get ready.
#include <algorithm>
#include <numeric>

#include "passes/passes.h"
#include "passes/segments.h"

namespace broach {

std::vector<size_t> parts_by_readiness(const Graph& g, size_t most) {
  const size_t count = g.outputs().size();
  std::vector<size_t> order(count), parts(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return g.outputs()[i].node->id; });
  auto bytes = [&](size_t i) {
    const Value& v = g.outputs()[i];
    double n = static_cast<double>(size_of(v.dtype()));
    for (const SymInt& e : v.shape()) n *= static_cast<double>(g.symbols()->hint(e));
    return n;
  };
  double all = 0, given = 0;
  for (size_t i : order) all += bytes(i);
  for (size_t i : order) {
    // A part ends behind the output with which it has its share.
    parts[i] = all > 0 ? std::min(static_cast<size_t>(given / all * static_cast<double>(most)), most - 1) : 0;
    given += bytes(i);
  }
  return parts;
}

std::vector<Stage> hand_over(Module& m, const Stage& stage, const PassContext& c) {
  const Graph& g = *stage.graph;
  if (c.parts.gives.empty()) return {};
  const size_t last = *std::ranges::max_element(c.parts.gives);
  std::vector<size_t> level(g.nodes().size(), last), readable(g.nodes().size(), last);
  for (size_t i = 0; i < g.inputs().size(); ++i) readable[g.inputs()[i].node->id] = c.parts.reads[i];
  for (const Node& n : g.nodes()) {
    size_t by = last;
    for (const Value& v : n.inputs) by = std::min(by, readable[v.node->id]);
    level[n.id] = n.op == Op::input ? 0 : by;
    if (is_view(n.op) || is_elementwise(n.op)) readable[n.id] = by;  // may be computed anew where it is read
  }
  auto compute_by = [&](const Node& n, size_t part) { level[n.id] = std::min(level[n.id], part); };
  for (size_t i = 0; i < c.parts.gives.size(); ++i) compute_by(*g.outputs()[i].node, c.parts.gives[i]);
  for (auto n = g.nodes().rbegin(); n != g.nodes().rend(); ++n)
    for (const Value& v : n->inputs) compute_by(*v.node, level[n->id]);
  return segments(m, stage, std::move(level));
}

}  // namespace broach
