#include "trace/selections.h"

#include <algorithm>
#include <ranges>

namespace broach {

namespace {

// By node: whether all that it is made of is so, itself included.
template <class Is>
std::vector<bool> all_of(const Graph& g, Is is) {
  std::vector<bool> out(g.nodes().size());
  for (const Node& n : g.nodes()) out[n.id] = is(n) && std::ranges::all_of(n.inputs, [&](const Value& v) { return out[v.node->id]; });
  return out;
}

// What fails as the selection does: of rows one element each.
Value check_of(GraphBuilder& b, const Value& v) {
  if (v.node->op != Op::take) return v;
  const Value& x = v.node->inputs[0];
  const auto dim = static_cast<size_t>(v.node->integer(Attr::dim));
  Shape shape = x.shape();
  for (size_t d = 0; d < shape.size(); ++d)
    if (d != dim && shape[d].is_constant() && shape[d] != SymInt(0)) shape[d] = SymInt(1);
  const std::vector<int64_t> steps(shape.size(), 1);
  return b.emit(Op::take, {b.slice(x, Shape(shape.size(), SymInt(0)), steps, shape), v.node->inputs[1]}, v.node->attrs);
}

}  // namespace

void keep_what_may_fail(GraphBuilder& b, std::vector<Value>& outputs, size_t late, const std::function<bool(const Value&)>& is_left_out) {
  const Graph& g = b.graph();
  const std::vector<bool> is_fixed = all_of(g, [](const Node& n) { return n.op != Op::input && n.op != Op::extern_call; });
  const std::vector<bool> is_early =
      all_of(g, [&](const Node& n) { return n.op != Op::input || static_cast<size_t>(n.integer(Attr::index)) < late; });
  // Read at all, and as a whole: who reads a part may do so through what is computed element by element, or row by row.
  std::vector<bool> is_read(g.nodes().size()), is_whole(g.nodes().size());
  for (const Value& v : outputs) is_read[v.node->id] = is_whole[v.node->id] = true;
  std::vector<Value> may_fail;
  for (const Node& n : std::views::reverse(g.nodes())) {
    const bool is_one_piece = n.op == Op::extern_call || kind_of(n.op) == OpKind::routine;  // all of it, or nothing
    const bool is_checked = is_one_piece ? is_read[n.id] : is_whole[n.id];
    if (checks_index(n.op) && !is_checked && is_early[n.id] && !is_fixed[n.inputs[1].node->id] && !is_left_out({&n, 0})) {
      may_fail.push_back({&n, 0});
      if (n.op == Op::take) is_read[n.inputs[0].node->id] = is_read[n.inputs[1].node->id] = is_whole[n.inputs[1].node->id] = true;
      else is_read[n.id] = is_whole[n.id] = true;
    }
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      const size_t read = n.inputs[i].node->id;
      const bool in_part = i == 0 && (n.op == Op::slice || n.op == Op::take || n.op == Op::pick);
      if (is_read[n.id]) is_read[read] = true;
      if ((is_whole[n.id] && !in_part) || (is_read[n.id] && is_one_piece)) is_whole[read] = true;
    }
  }
  for (const Value& v : may_fail) outputs.push_back(check_of(b, v));
}

}  // namespace broach
