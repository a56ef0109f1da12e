// Gradients that somebody waits for, such as those that are reduced over several processes, are given in parts, as they get ready. Others are
// computed in parts where what was saved for one makes room for the next.
#include <algorithm>
#include <numeric>

#include "passes/passes.h"
#include "passes/segments.h"

namespace broach {

static double bytes_of_output(const Graph& g, size_t i) {  // at the sizes' hints
  const Value& v = g.outputs()[i];
  double n = static_cast<double>(size_of(v.dtype()));
  for (const SymInt& e : v.shape()) n *= static_cast<double>(g.symbols()->hint(e));
  return n;
}

std::vector<size_t> parts_by_readiness(const Graph& g, size_t most) {
  const size_t count = g.outputs().size();
  std::vector<size_t> order(count), parts(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return g.outputs()[i].node->id; });
  double all = 0, given = 0;
  for (size_t i : order) all += bytes_of_output(g, i);
  for (size_t i : order) {
    // A part ends behind the output with which it has its share.
    parts[i] = all > 0 ? std::min(static_cast<size_t>(given / all * static_cast<double>(most)), most - 1) : 0;
    given += bytes_of_output(g, i);
  }
  return parts;
}

// By node: the first part that gives an output which comes behind it in the graph, or is it.
static std::vector<size_t> parts_in_order(const Graph& g, const Parts& parts) {
  std::vector<size_t> level(g.nodes().size(), *std::ranges::max_element(parts.gives));
  for (size_t i = 0; i < parts.gives.size(); ++i) {
    size_t& own = level[g.outputs()[i].node->id];
    own = std::min(own, parts.gives[i]);
  }
  for (size_t n = level.size(); n-- > 1;) level[n - 1] = std::min(level[n - 1], level[n]);
  return level;
}

// By node: the part that computes it.
static std::vector<size_t> parts_of_nodes(const Graph& g, const Parts& parts) {
  if (parts.reads.empty()) return parts_in_order(g, parts);
  const size_t last = *std::ranges::max_element(parts.gives);
  std::vector<size_t> level(g.nodes().size(), last), readable(g.nodes().size(), last);
  for (size_t i = 0; i < g.inputs().size(); ++i) readable[g.inputs()[i].node->id] = parts.reads[i];
  for (const Node& n : g.nodes()) {
    size_t by = last;
    for (const Value& v : n.inputs) by = std::min(by, readable[v.node->id]);
    level[n.id] = n.op == Op::input ? 0 : by;
    if (is_view(n.op) || is_elementwise(n.op)) readable[n.id] = by;  // may be computed anew where it is read
  }
  auto compute_by = [&](const Node& n, size_t part) { level[n.id] = std::min(level[n.id], part); };
  for (size_t i = 0; i < parts.gives.size(); ++i) compute_by(*g.outputs()[i].node, parts.gives[i]);
  for (auto n = g.nodes().rbegin(); n != g.nodes().rend(); ++n)
    for (const Value& v : n->inputs) compute_by(*v.node, level[n->id]);
  return level;
}

Parts parts_for_memory(const Module& m, int asked) {
  constexpr int64_t kWorth = int64_t{8} << 20, kMost = 5;  // a part is a launch, and values between two are stored
  constexpr double kLeast = 1.0 / 8;                       // no more can be saved than the gradients' bytes: as a part of what is there
  if (m.stages.back().runs != Stage::Runs::for_gradients) return {};
  const Graph& g = *m.stages.back().graph;
  double gradients = 0;
  for (size_t i = 0; i < g.outputs().size(); ++i) gradients += bytes_of_output(g, i);
  const bool pays = gradients >= kLeast * static_cast<double>(m.saved_bytes);
  const int64_t parts = asked > 0 ? asked : pays ? std::min(m.saved_bytes / kWorth, kMost) : 1;
  if (parts < 2) return {};
  return {parts_by_readiness(g, static_cast<size_t>(parts)), {}};
}

std::vector<size_t> last_readers(const Graph& g, const Parts& parts) {
  const std::vector<size_t> level = parts_of_nodes(g, parts);
  const std::vector<bool> anew = computed_anew(g);
  std::vector<size_t> last(g.nodes().size()), out;
  for (const Value& v : g.outputs())
    if (v.node->op == Op::input) last[v.node->id] = *std::ranges::max_element(parts.gives);  // copied by one of them
  for (auto n = g.nodes().rbegin(); n != g.nodes().rend(); ++n) {
    const size_t by = anew[n->id] ? std::max(level[n->id], last[n->id]) : level[n->id];
    for (const Value& v : n->inputs) last[v.node->id] = std::max(last[v.node->id], by);
  }
  for (const Value& v : g.inputs()) out.push_back(last[v.node->id]);
  return out;
}

std::vector<Stage> hand_over(Module& m, const Stage& stage, const PassContext& c) {
  if (c.parts.gives.empty()) return {};
  return segments(m, stage, parts_of_nodes(*stage.graph, c.parts));
}

}  // namespace broach
