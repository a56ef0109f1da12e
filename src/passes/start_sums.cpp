// An embedding whose weight is used elsewhere too, as that of a language model's last product, has the sum of both as its gradient.
#include "passes/passes.h"

namespace broach {

namespace {

bool is_of_floats(const Value& v) { return is_floating(v.dtype()) && !is_stored_only(v.dtype()); }

// What is cast to a wider type, or the value itself.
Value before_widening(const Value& v) {
  const Node& n = *v.node;
  return n.op == Op::cast && is_of_floats(n.inputs[0]) && size_of(n.inputs[0].dtype()) < size_of(v.dtype()) ? n.inputs[0] : v;
}

}  // namespace

Graph start_sums(const Graph& graph, const PassContext& context) {
  const std::vector<int> uses = graph.use_counts();
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    if (n.op != Op::add) return std::nullopt;
    for (size_t i = 0; i < 2; ++i) {
      const Node& old = *n.inputs[i].node;
      if (old.op != Op::sum_rows || uses[old.id] != 1) continue;
      const Value start = before_widening(in[1 - i]), &source = in[i].node->inputs[0], &index = in[i].node->inputs[1];
      if (in[i].node->op != Op::sum_rows || !is_of_floats(start) || !context.capabilities->routines.contains({Op::add_rows, start.dtype()}))
        continue;
      return {{b.emit(Op::add_rows, {start, index, source}, {})}};
    }
    return std::nullopt;
  });
}

}  // namespace broach
