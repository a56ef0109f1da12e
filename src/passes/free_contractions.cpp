#include "passes/passes.h"

namespace broach {

namespace {

// The dimensions of `wide` that a reshape to [m, k] joins into m, if that is all it does.
bool joins_rows(const Shape& wide, const Shape& flat) {
  if (flat.size() != 2 || wide.size() < 2 || !(wide.back() == flat.back())) return false;
  return product(std::span(wide).first(wide.size() - 1)) == flat[0];
}

// reshape(x, [m, k]) . w  =  reshape(x . w, [m, n]), with x keeping its own rows.
std::optional<std::vector<Value>> widen(GraphBuilder& b, const Node& n, std::span<const Value> in) {
  if (n.op != Op::dot || n.integer(Attr::batch) != 0 || in[0].node->op != Op::reshape) return std::nullopt;
  Value x = in[0].node->inputs[0];
  if (!joins_rows(x.shape(), in[0].shape())) return std::nullopt;
  return {{b.reshape(b.dot(x, in[1]), n.results[0].shape)}};
}

// An elementwise operation on reshapes of one kind, or on a reshape and something repeated: the reshape comes after it.
// Then a product's epilogue is next to it.
std::optional<std::vector<Value>> lift(GraphBuilder& b, const Node& n, std::span<const Value> in) {
  if (!is_elementwise(n.op)) return std::nullopt;
  const Value* main = nullptr;
  for (const Value& v : in)
    if (v.node->op == Op::reshape && (v.node->inputs[0].node->op == Op::dot || is_elementwise(v.node->inputs[0].node->op)) &&
        joins_rows(v.node->inputs[0].shape(), v.shape()))
      main = &v;
  if (!main) return std::nullopt;
  const Shape& shape = main->node->inputs[0].shape();
  std::vector<Value> operands;
  for (const Value& v : in) {
    if (v.node->op == Op::reshape && v.node->inputs[0].shape() == shape) {
      operands.push_back(v.node->inputs[0]);
    } else if (v.node->op == Op::expand && v.node->inputs[0].shape()[0] == SymInt(1)) {
      operands.push_back(b.expand(b.reshape(v.node->inputs[0], {v.node->inputs[0].shape().back()}), shape));
    } else {
      return std::nullopt;
    }
  }
  return {{b.reshape(b.emit(n.op, std::move(operands), n.attrs), n.results[0].shape)}};
}

std::optional<std::vector<Value>> rule(GraphBuilder& b, const Node& n, std::span<const Value> in) {
  if (auto r = widen(b, n, in)) return r;
  return lift(b, n, in);
}

}  // namespace

Graph free_contractions(const Graph& graph, const PassContext&) { return rewrite(graph, rule); }

}  // namespace broach
