// Reads at positions that tensors name: they become `take`.
#include "ops/indexing.h"
#include "ops/formula.h"

#include <algorithm>

namespace broach {

Value wrapped_index(GraphBuilder& b, Value index, const SymInt& n) {
  index = b.cast(index, DType::i64);
  return b.where(with_number(b, Op::lt, index, int64_t{0}), b.binary(Op::add, index, size_value(b, n)), index);
}

Value linear_index(GraphBuilder& b, const std::vector<Coordinate>& coordinates) {
  Value at, valid;
  for (const Coordinate& c : coordinates) {
    Value i = b.cast(c.index, DType::i64), n = size_value(b, c.size);
    at = at ? b.binary(Op::add, b.binary(Op::mul, at, n), i) : i;
    if (c.in_range) continue;
    Value ok = b.binary(Op::bit_and, with_number(b, Op::ge, i, int64_t{0}), b.binary(Op::lt, i, n));
    valid = valid ? b.binary(Op::bit_and, valid, ok) : ok;
  }
  return valid ? b.where(valid, at, b.constant(int64_t{-1}, DType::i64)) : at;
}

std::optional<MergedIndex> merged_index(GraphBuilder& b, const Value& x, const std::vector<std::optional<Value>>& given) {
  std::vector<int64_t> dims;
  Shape shape;
  for (size_t d = 0; d < given.size(); ++d) {
    if (!given[d]) continue;
    if (!is_index(*given[d])) return std::nullopt;
    dims.push_back(static_cast<int64_t>(d));
    shape = b.broadcast(shape, given[d]->shape());
  }
  if (dims.empty()) return std::nullopt;
  std::vector<Coordinate> coordinates;
  for (int64_t d : dims) {
    const SymInt& n = x.shape().at(static_cast<size_t>(d));
    coordinates.push_back({wrapped_index(b, broadcast_to(b, *given[static_cast<size_t>(d)], shape), n), n});
  }
  MergedIndex m;
  m.index = dims.size() == 1 ? coordinates[0].index : linear_index(b, coordinates);
  // To the front if others lie between them.
  const bool together = dims.back() - dims[0] + 1 == static_cast<int64_t>(dims.size());
  m.at = together ? dims[0] : 0;
  for (int64_t d = 0; d < x.rank(); ++d)
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) m.order.push_back(d);
  m.order.insert(m.order.begin() + m.at, dims.begin(), dims.end());
  SymInt joined(1);
  for (int64_t d : m.order) m.merged.push_back(x.shape()[static_cast<size_t>(d)]);
  const auto first = m.merged.begin() + m.at;
  for (auto it = first; it != first + static_cast<int64_t>(dims.size()); ++it) joined = joined * *it;
  m.merged.erase(first, first + static_cast<int64_t>(dims.size()) - 1);
  m.merged[static_cast<size_t>(m.at)] = joined;
  return m;
}

namespace {

using Result = std::optional<std::vector<Value>>;

// ---- reads ----

// x[i, :, j, ..]: masks have no lowering, the size of their result is data.
Result index_by(OpCall& c, const std::vector<std::optional<Value>>& given) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
  auto m = merged_index(b, x, given);
  if (!m) return std::nullopt;
  return as_result(c, take(b, b.reshape(b.permute(x, m->order), m->merged), m->index, m->at));
}

Result index(OpCall& c) { return index_by(c, c.tensors(1)); }

// self, mask, indices, number: indices are cut to what the tensor has, and the number stands where the mask is not set.
Result masked_index(OpCall& c) {
  GraphBuilder& b = c.b;
  auto given = c.tensors(2);
  for (size_t d = 0; d < given.size(); ++d) {
    if (!given[d]) continue;
    if (!is_index(*given[d])) return std::nullopt;
    SymInt n = c.tensor(0).shape().at(d);
    Value low = b.binary(Op::max, b.cast(*given[d], DType::i64), size_value(b, SymInt(0) - n));
    given[d] = b.binary(Op::min, low, size_value(b, n - 1));
  }
  auto r = b.symbols().ask(c.tensor(0).type().numel(), Relation::ne, 0) ? index_by(c, given) : std::nullopt;
  if (!r) return r;
  Value x = r->at(0);
  return as_result(c, b.where(c.tensor(1), x, b.constant(c.scalar(3), x.dtype())));
}

Result index_select(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0), i = c.tensor(2);
  if (!is_index(i)) return std::nullopt;
  Value r = take(b, at_least_1d(b, x), at_least_1d(b, i), c.dim(1, x.rank()));
  return as_result(c, x.rank() ? r : b.reshape(r, {}));
}

// out[p] = x[p with its coordinate `dim` replaced by index[p]]; both have one rank, not 0.
Value gather(GraphBuilder& b, Value x, int64_t dim, Value index) {
  if (x.rank() == 1) return take(b, x, index, 0);
  std::vector<Coordinate> coordinates;
  for (int64_t d = 0; d < x.rank(); ++d) {
    size_t i = static_cast<size_t>(d);
    if (d == dim) coordinates.push_back({index, x.shape()[i]});
    else coordinates.push_back({along(b, positions(b, index.shape()[i]), d, x.rank()), x.shape()[i], true});
  }
  return take(b, b.reshape(x, {x.type().numel()}), linear_index(b, coordinates), 0);
}

Result gather_op(OpCall& c) {
  Value x = at_least_1d(c.b, c.tensor(0)), i = at_least_1d(c.b, c.tensor(2));
  if (!is_index(i) || x.rank() != i.rank()) return std::nullopt;
  return as_result(c, c.b.reshape(gather(c.b, x, c.dim(1, x.rank()), i), c.tensor(2).shape()));
}

Result take_along_dim(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0), i = c.tensor(1);
  if (!is_index(i)) return std::nullopt;
  if (c.is_none(2)) {
    Value flat = b.reshape(x, {x.type().numel()}), at = b.reshape(i, {i.type().numel()});
    return as_result(c, take(b, flat, wrapped_index(b, at, flat.shape()[0]), 0));
  }
  if (x.rank() != i.rank() || x.rank() == 0) return std::nullopt;
  int64_t dim = c.dim(2, x.rank());
  size_t d = static_cast<size_t>(dim);
  Shape xs = x.shape(), is = i.shape();
  SymInt n = xs[d], k = is[d];
  xs[d] = is[d] = 1;
  xs = is = b.broadcast(xs, is);
  xs[d] = n;
  is[d] = k;
  return as_result(c, gather(b, broadcast_to(b, x, xs), dim, wrapped_index(b, broadcast_to(b, i, is), n)));
}

// ---- membership ----

Value truth(GraphBuilder& b, const Shape& shape, bool value) { return b.full(shape, value, DType::b1); }

Value one_of(GraphBuilder& b, Value x, Value candidates) {
  Value r = truth(b, x.shape(), false);
  for (int64_t j = 0, k = candidates.shape()[0].constant(); j < k; ++j) {
    Value same = b.binary(Op::eq, x, b.reshape(narrow(b, candidates, 0, j, 1), {}));
    r = j ? b.binary(Op::bit_or, r, same) : same;
  }
  return r;
}

Result isin(OpCall& c) {
  Value x = c.tensor(0), t = c.tensor(1);
  if (x.dtype() != t.dtype()) return std::nullopt;
  // Compared with each: beyond some tens eager's sort is faster.
  SymInt n = t.type().numel();
  if (!few(n) && !c.b.symbols().ask(n, Relation::le, 64)) return std::nullopt;
  t = c.b.reshape(t, {n});
  Value r;
  if (few(n)) r = one_of(c.b, x, t);
  else r = c.b.reduce(Op::reduce_max, broadcast(c.b, Op::eq, unsqueeze(c.b, x, x.rank()), t), {x.rank()});
  return as_result(c, c.flag(3) ? c.b.unary(Op::bit_not, r) : r);
}

Result isin_number(OpCall& c) {
  Value x = c.tensor(0);
  Scalar s = c.scalar(1);
  // An integer that the tensor's own type does not hold is eager's to judge.
  bool small = !is_complex(s) && as_double(s) >= 0 && as_double(s) <= 127;
  if (x.dtype() == DType::b1 || is_complex(s) || (is_integral(x.dtype()) && x.dtype() != DType::i64 && !small)) return std::nullopt;
  Promotion p;
  p.add(x);
  p.add(s);
  return as_result(c, with_number(c.b, c.flag(3) ? Op::ne : Op::eq, c.b.cast(x, p.result()), s));
}

Result one_hot(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
  int64_t classes = c.is_none(1) ? -1 : c.constant(1);
  if (classes <= 0 || x.dtype() != DType::i64) return std::nullopt;
  // Reading the positions at the class makes one outside an error.
  Value at = unsqueeze(b, take(b, positions(b, classes), x, 0), x.rank());
  return as_result(c, b.cast(b.binary(Op::eq, at, along(b, positions(b, classes), x.rank(), x.rank() + 1)), DType::i64));
}

}  // namespace

void add_indexing_ops(OpTable& t) {
  add_moving(t, "index.Tensor _unsafe_index.Tensor", index);
  add_moving(t, "_unsafe_masked_index", masked_index);
  add_moving(t, "index_select", index_select);
  add_moving(t, "gather", gather_op);
  add_moving(t, "take", [](OpCall& c) -> Result {
    Value x = c.tensor(0), i = c.tensor(1);
    if (!is_index(i)) return std::nullopt;
    SymInt n = x.type().numel();
    return as_result(c, take(c.b, c.b.reshape(x, {n}), wrapped_index(c.b, i, n), 0));
  });
  add_moving(t, "take_along_dim", take_along_dim);
  add_moving(t, "embedding", [](OpCall& c) -> Result {
    return is_index(c.tensor(1)) ? as_result(c, take(c.b, c.tensor(0), c.tensor(1), 0)) : std::nullopt;
  });

  add_real(t, "isin.Tensor_Tensor", isin);
  add_real(t, "isin.Tensor_Scalar", isin_number);
  add_real(t, "one_hot", one_hot);

  add_scatter_ops(t);
  add_bag_ops(t);
}

}  // namespace broach
