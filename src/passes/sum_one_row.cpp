// A product of one row, as of a language model's next token, reads its weight once: a kernel that sums does so as fast as a library's
// product, begins sooner, and computes what stands before and behind it, and other products of the same row, in the same launch. A product
// of one element is a sum on any target: libraries may add it up in one long chain.
#include "passes/passes.h"

namespace broach {

namespace {

// Whether elements of the value that follow each other along the dimension lie side by side in an input.
bool is_read_along(const Graph& graph, Value v, size_t dim) {
  for (; v.node->op != Op::input; v = v.node->inputs[0]) {
    if (v.node->op == Op::permute) dim = static_cast<size_t>(v.node->ints(Attr::dims)[dim]);
    else if (v.node->op != Op::cast) return false;
  }
  return graph.strides(v)[dim] == SymInt(1);
}

bool is_one_row(const Shape& x) {
  return std::all_of(x.begin(), x.end() - 1, [](const SymInt& n) { return n == SymInt(1); });
}

}  // namespace

Graph sum_one_row(const Graph& graph, const PassContext& c) {
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    if (n.op != Op::dot || n.integer(Attr::batch) != 0 || in[1].shape().size() != 2) return std::nullopt;
    const Type& result = n.results[0];
    const ContractionAbility* can = c.capabilities->contraction(Op::dot, result.dtype);
    if (!is_floating(result.dtype) || !is_one_row(in[0].shape())) return std::nullopt;
    if (!(in[1].shape()[1] == SymInt(1)) && !(can && can->sums_one_row && is_read_along(graph, n.inputs[1], 0))) return std::nullopt;
    const DType t = result.dtype == DType::f64 ? DType::f64 : DType::f32;
    const Value row = b.reshape(in[0], {in[0].shape().back()}), columns = b.permute(in[1], {1, 0});
    const Value terms = b.binary(Op::mul, b.cast(row, t), b.cast(columns, t));
    return {{b.reshape(b.cast(b.reduce(Op::reduce_sum, terms, {1}), result.dtype), result.shape)}};
  });
}

}  // namespace broach
