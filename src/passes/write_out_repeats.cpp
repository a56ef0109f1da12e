#include "passes/passes.h"

namespace broach {

namespace {

// Whether elements of what it shows are repeated.
bool is_repeated(const Value& v) {
  const Node* n = v.node;
  for (; is_view(n->op) && n->op != Op::cat && n->op != Op::pad; n = n->inputs[0].node)
    if (n->op == Op::expand) return true;
  return false;
}

}  // namespace

// What a call of the host's library is to be given without gaps, and repeats elements, the library would copy in a launch of its own; a
// kernel may compute something else besides.
Graph write_out_repeats(const Graph& graph, const PassContext&) {
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    if (n.op != Op::extern_call) return std::nullopt;
    std::vector<Value> operands(in.begin(), in.end());
    bool is_changed = false;
    for (int64_t i : n.call().contiguous) {
      Value& v = operands[static_cast<size_t>(i)];
      if (!is_repeated(v)) continue;
      v = b.emit(Op::copy, {v}, {{Attr::index, int64_t{0}}});
      is_changed = true;
    }
    if (!is_changed) return std::nullopt;
    return b.emit_all(n.op, std::move(operands), n.attrs);
  });
}

}  // namespace broach
