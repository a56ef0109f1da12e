// Sums and means of bags of embeddings, where all bags are of one size, as those of a matrix of indices are.
#include "ops/indexing.h"

namespace broach {

namespace {

using Result = std::optional<std::vector<Value>>;

// start + step * i at position i.
struct Sequence {
  SymInt start, step;
};

std::optional<Sequence> sequence(const Value& v, int depth = 0) {
  constexpr int kDeepest = 8;  // of what `arange` makes
  const Node& n = *v.node;
  if (depth > kDeepest) return std::nullopt;
  if (n.op == Op::iota && v.rank() == 1) return Sequence{0, 1};
  if (n.op == Op::size) return Sequence{n.get<SymInt>(Attr::expr), 0};
  if (n.op == Op::scalar) {
    const auto* number = std::get_if<int64_t>(&n.get<Scalar>(Attr::value));
    return number ? std::optional(Sequence{*number, 0}) : std::nullopt;
  }
  if (n.inputs.empty() || !is_index(v)) return std::nullopt;
  const auto x = sequence(n.inputs[0], depth + 1);
  if (!x) return std::nullopt;
  if (n.op == Op::cast) return x;
  // What does not change from position to position may be spread over them.
  if (n.op == Op::reshape || n.op == Op::expand) return x->step == SymInt(0) ? x : std::nullopt;
  const auto y = n.op == Op::add || n.op == Op::mul ? sequence(n.inputs[1], depth + 1) : std::nullopt;
  if (!y) return std::nullopt;
  if (n.op == Op::add) return Sequence{x->start + y->start, x->step + y->step};
  if (x->step == SymInt(0)) return Sequence{x->start * y->start, x->start * y->step};
  return y->step == SymInt(0) ? std::optional(Sequence{x->start * y->start, x->step * y->start}) : std::nullopt;
}

struct Bags {
  SymInt count, size;
  bool mean = false;
};

constexpr int64_t kSum = 0, kMean = 1;

// Nothing where they are of several sizes, or weighed, or leave indices out.
std::optional<Bags> bags(OpCall& c, const Value& indices, const Value& offsets, size_t mode, bool is_weighed, const SymInt& padding) {
  const auto at = sequence(offsets);
  if (!at || !(at->start == SymInt(0)) || is_weighed || !is_index(indices) || indices.rank() != 1 || offsets.rank() != 1)
    return std::nullopt;
  const int64_t how = c.constant(mode);
  if ((how != kSum && how != kMean) || !padding.is_constant() || padding.constant() >= 0) return std::nullopt;
  const SymInt count = offsets.shape()[0];
  if (!c.b.symbols().ask(1, Relation::le, at->step)) return std::nullopt;  // empty ones have no mean
  if (!c.b.symbols().equal(indices.shape()[0], count * at->step)) return std::nullopt;
  return Bags{count, at->step, how == kMean};
}

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx): the bags, the bag of
// each index, the size of each bag, and a result for maxima alone. Of the latter three only gradients take notice.
Result embedding_bag(OpCall& c) {
  GraphBuilder& b = c.b;
  const Value weight = c.tensor(0), indices = c.tensor(1), offsets = c.tensor(2);
  if (c.flag(7) || !is_floating(weight.dtype())) return std::nullopt;
  const auto of = bags(c, indices, offsets, 4, !c.is_none(6), c.integer(8));
  if (!of) return std::nullopt;
  const DType wide = compute_dtype(weight.dtype());
  const Value rows = take(b, weight, b.reshape(indices, {of->count, of->size}), 0);
  Value sum = b.reduce(Op::reduce_sum, b.cast(rows, wide), {1});
  if (of->mean) sum = b.binary(Op::div, sum, b.expand(b.cast(size_value(b, of->size), wide), sum.shape()));
  std::vector<Value> out{b.cast(sum, weight.dtype())};
  for (size_t i = 1; i < 4; ++i) {
    const Type& t = c.result(i);
    if (i != 1 || t.shape.at(0) == SymInt(0)) {
      out.push_back(b.expand(b.cast(size_value(b, of->size), t.dtype), t.shape));
      continue;
    }
    const Value position = positions(b, indices.shape()[0]);
    out.push_back(b.cast(b.binary(Op::floor_div, position, b.expand(size_value(b, of->size), position.shape())), t.dtype));
  }
  return out;
}

// (grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse, per_sample_weights,
// padding_idx)
Result embedding_bag_backward(OpCall& c) {
  GraphBuilder& b = c.b;
  const Value grad = c.tensor(0), indices = c.tensor(1), offsets = c.tensor(2);
  if (c.flag(7) || c.flag(9) || !is_floating(grad.dtype())) return std::nullopt;
  const auto of = bags(c, indices, offsets, 8, !c.is_none(10), c.integer(11));
  if (!of) return std::nullopt;
  const SymInt width = grad.shape()[1];
  Value source = grad;
  if (of->mean) {
    const DType wide = compute_dtype(grad.dtype());
    source = b.cast(b.binary(Op::div, b.cast(grad, wide), b.expand(b.cast(size_value(b, of->size), wide), grad.shape())), grad.dtype());
  }
  source = b.expand(b.reshape(source, {of->count, SymInt(1), width}), {of->count, of->size, width});
  return as_result(c, sum_of_rows(b, b.reshape(source, {indices.shape()[0], width}), indices, c.integer(6)));
}

}  // namespace

void add_bag_ops(OpTable& t) {
  add_real(t, "_embedding_bag _embedding_bag_forward_only", embedding_bag);
  add_real(t, "_embedding_bag_backward", embedding_bag_backward);
}

}  // namespace broach
