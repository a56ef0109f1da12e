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

// Behind `batch` dimensions.
bool is_one_row(const Shape& x, int64_t batch) {
  return std::all_of(x.begin() + batch, x.end() - 1, [](const SymInt& n) { return n == SymInt(1); });
}

}  // namespace

Graph sum_one_row(const Graph& graph, const PassContext& c) {
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    const Type& result = n.results[0];
    const int64_t batch = n.op == Op::dot ? n.integer(Attr::batch) : 0;
    if (n.op != Op::dot || !is_floating(result.dtype) || !is_one_row(in[0].shape(), batch)) return std::nullopt;
    Shape row(in[0].shape().begin(), in[0].shape().begin() + batch);
    row.push_back(in[0].shape().back());
    Value weight;
    if (in[1].shape().back() == SymInt(1)) {
      weight = b.reshape(in[1], row);
    } else {
      const ContractionAbility* can = c.capabilities->contraction(Op::dot, result.dtype);
      if (!can || !can->sums_one_row || batch != 0 || in[1].rank() != 2 || !is_read_along(graph, n.inputs[1], 0)) return std::nullopt;
      weight = b.permute(in[1], {1, 0});
    }
    const DType t = result.dtype == DType::f64 ? DType::f64 : DType::f32;
    const Value terms = b.binary(Op::mul, b.cast(b.reshape(in[0], row), t), b.cast(weight, t));
    const int64_t last = static_cast<int64_t>(terms.rank()) - 1;
    return {{b.reshape(b.cast(b.reduce(Op::reduce_sum, terms, {last}), result.dtype), result.shape)}};
  });
}

}  // namespace broach
