// Reads and writes at positions that tensors name. Reads become `take`; there is no primitive for writes, so only those of
// few positions are expressed here, by comparing each position of the written dimension with each index.
#include <algorithm>

#include "ops/build.h"

namespace broach {

namespace {

using Result = std::optional<std::vector<Value>>;

bool is_index(const Value& v) { return v.dtype() == DType::i64 || v.dtype() == DType::i32; }

Value at_least_1d(GraphBuilder& b, Value v) { return v.rank() ? v : b.reshape(v, {SymInt(1)}); }

// Indices from -n to n - 1 as positions; what lies below stays negative, an error of the `take` that reads it.
Value wrapped(GraphBuilder& b, Value index, const SymInt& n) {
  index = b.cast(index, DType::i64);
  return b.where(with_number(b, Op::lt, index, int64_t{0}), b.binary(Op::add, index, size_value(b, n)), index);
}

// ---- reads ----

struct Coordinate {
  Value index;
  SymInt size;
  bool in_range = false;  // by its form
};

// The position in row-major order; -1 if one coordinate is out of range, which the sum could hide.
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

// Moves `dims` of x together, to the front if others lie between them, and merges them; gives where they are.
Value merged(GraphBuilder& b, Value x, const std::vector<int64_t>& dims, int64_t& at) {
  at = dims[0];
  if (dims.back() - dims[0] + 1 != static_cast<int64_t>(dims.size())) {
    std::vector<int64_t> order = dims;
    for (int64_t d = 0; d < x.rank(); ++d)
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
    x = b.permute(x, order);
    at = 0;
  }
  auto first = x.shape().begin() + at, last = first + static_cast<int64_t>(dims.size());
  Shape shape(x.shape().begin(), first);
  shape.push_back(product(Shape(first, last)));
  shape.insert(shape.end(), last, x.shape().end());
  return b.reshape(x, shape);
}

// x[i, :, j, ..]: masks have no lowering, the size of their result is data.
Result index_by(OpCall& c, const std::vector<std::optional<Value>>& given) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
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
    coordinates.push_back({wrapped(b, broadcast_to(b, *given[static_cast<size_t>(d)], shape), n), n});
  }
  int64_t at = 0;
  Value rows = merged(b, x, dims, at);
  return as_result(c, take(b, rows, dims.size() == 1 ? coordinates[0].index : linear_index(b, coordinates), at));
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
    return as_result(c, take(b, flat, wrapped(b, at, flat.shape()[0]), 0));
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
  return as_result(c, gather(b, broadcast_to(b, x, xs), dim, wrapped(b, broadcast_to(b, i, is), n)));
}

// ---- membership ----

bool few(const SymInt& n) { return n.is_constant() && n.constant() <= 8; }

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
  if (x.dtype() != t.dtype() || !few(t.type().numel())) return std::nullopt;
  Value r = one_of(c.b, x, c.b.reshape(t, {t.type().numel()}));
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

// ---- writes to few positions ----

// The index itself; reading the positions at it makes one outside 0 .. n - 1 an error.
Value checked(GraphBuilder& b, Value index, const SymInt& n) { return take(b, positions(b, n), index, 0); }

// Such a write goes over the whole tensor: worth it where that is small, or where all of it is about to be written anyway.
bool worth_rewriting(OpCall& c, Value x) {
  if (x.node->op == Op::reshape) x = x.node->inputs[0];
  bool filled = x.node->op == Op::scalar || (x.node->op == Op::expand && x.node->inputs[0].type().numel() == SymInt(1));
  return filled || c.b.symbols().hint(x.type().numel()) <= 1 << 16;
}

enum class Update : uint8_t { replace, add, mul, min, max };

std::optional<Update> update_named(const std::string& name) {
  static const std::pair<const char*, Update> names[] = {{"add", Update::add},   {"sum", Update::add},  {"multiply", Update::mul},
                                                         {"prod", Update::mul},  {"amin", Update::min}, {"amax", Update::max}};
  for (auto [n, u] : names)
    if (name == n) return u;
  return std::nullopt;
}

// A write of slices j = 0 .. count - 1 of `source` to the positions of `dim` that equal `index(j)`, in this order.
struct Write {
  Value x;
  int64_t dim;
  int64_t count;
  std::function<Value(int64_t)> index, source;  // broadcast against x
  Update update = Update::replace;
};

Result write(OpCall& c, const Write& w) {
  GraphBuilder& b = c.b;
  DType type = w.x.dtype();
  bool sums = w.update == Update::add || w.update == Update::mul;
  // Eager rounds sums of low precision at each step in one of its kernels and once in another.
  if (sums && (type == DType::b1 || (is_low_precision(type) && w.count > 1))) return std::nullopt;
  static constexpr Op ops[] = {Op::add, Op::add, Op::mul, Op::min, Op::max};
  Value r = w.x, at = along(b, positions(b, w.x.shape()[static_cast<size_t>(w.dim)]), w.dim, w.x.rank());
  for (int64_t j = 0; j < w.count; ++j) {
    Value s = w.source(j);
    if (s.dtype() != type) return std::nullopt;
    Value next = w.update == Update::replace ? s : b.binary(ops[static_cast<size_t>(w.update)], r, s);
    r = b.where(b.binary(Op::eq, at, w.index(j)), next, r);
  }
  return as_result(c, b.reshape(r, Shape(c.tensor(0).shape())));
}

// The j-th of a vector of indices, the j-th slice of a tensor.
std::function<Value(int64_t)> elements(GraphBuilder& b, Value v) {
  return [&b, v](int64_t j) { return b.reshape(narrow(b, v, 0, j, 1), {}); };
}
std::function<Value(int64_t)> slices(GraphBuilder& b, Value v, int64_t dim) {
  return [&b, v, dim](int64_t j) { return narrow(b, v, dim, j, 1); };
}
std::function<Value(int64_t)> always(Value v) {
  return [v](int64_t) { return v; };
}

Shape with_size(Shape shape, int64_t dim, SymInt size) {
  shape.at(static_cast<size_t>(dim)) = std::move(size);
  return shape;
}

// index_fill, index_copy, index_add, index_reduce: x, dim, a vector of indices, what to write.
std::optional<Write> index_write(OpCall& c, bool wraps) {
  GraphBuilder& b = c.b;
  Value x = at_least_1d(b, c.tensor(0)), i = at_least_1d(b, c.tensor(2));
  if (!is_index(i) || i.rank() != 1 || !few(i.shape()[0]) || !worth_rewriting(c, x)) return std::nullopt;
  int64_t dim = c.dim(1, x.rank());
  const SymInt& n = x.shape()[static_cast<size_t>(dim)];
  i = checked(b, wraps ? wrapped(b, i, n) : b.cast(i, DType::i64), n);
  return Write{x, dim, i.shape()[0].constant(), elements(b, i), {}};
}

Result index_fill(OpCall& c) {
  auto w = index_write(c, true);
  if (!w) return std::nullopt;
  if (auto v = c.maybe_tensor(3)) w->source = always(c.b.reshape(c.b.cast(*v, w->x.dtype()), {}));
  else w->source = always(c.b.constant(c.scalar(3), w->x.dtype()));
  return write(c, *w);
}

Result index_from(OpCall& c, Update update, Scalar alpha = int64_t{1}) {
  GraphBuilder& b = c.b;
  auto w = index_write(c, false);
  Value source = at_least_1d(b, c.tensor(3));
  bool scaled = is_complex(alpha) || as_double(alpha) != 1;
  if (!w || source.rank() != w->x.rank() || (scaled && (is_complex(alpha) || is_low_precision(source.dtype())))) return std::nullopt;
  w->update = update;
  source = with_sizes(b, source, with_size(w->x.shape(), w->dim, w->count));
  if (scaled) source = with_number(b, Op::mul, source, alpha);
  w->source = slices(b, source, w->dim);
  return write(c, *w);
}

Result index_reduce(OpCall& c) {
  auto update = update_named(c.text(4));
  return update && (c.is_none(5) || c.flag(5)) ? index_from(c, *update) : std::nullopt;
}

// scatter and its kin: x, dim, an index of x's rank, a tensor or a number to write.
Result scatter(OpCall& c, Update update) {
  GraphBuilder& b = c.b;
  Value x = at_least_1d(b, c.tensor(0)), i = at_least_1d(b, c.tensor(2));
  if (!is_index(i) || i.rank() != x.rank() || !worth_rewriting(c, x)) return std::nullopt;
  int64_t dim = c.dim(1, x.rank());
  size_t d = static_cast<size_t>(dim);
  if (!few(i.shape()[d])) return std::nullopt;
  for (size_t k = 0; k < x.shape().size(); ++k)
    if (k != d && !b.symbols().equal(i.shape()[k], x.shape()[k])) return std::nullopt;
  Shape shape = with_size(x.shape(), dim, i.shape()[d]);
  Value at = checked(b, b.cast(with_sizes(b, i, shape), DType::i64), x.shape()[d]);
  Write w{x, dim, shape[d].constant(), slices(b, at, dim), {}, update};
  if (auto source = c.maybe_tensor(3)) {
    if (at_least_1d(b, *source).rank() != x.rank()) return std::nullopt;
    // The source may be larger than the index.
    for (int64_t k = 0; k < x.rank(); ++k) source = narrow(b, at_least_1d(b, *source), k, 0, shape[static_cast<size_t>(k)]);
    w.source = slices(b, *source, dim);
  } else {
    w.source = always(b.constant(c.scalar(3), x.dtype()));
  }
  return write(c, w);
}

Result scatter_named(OpCall& c) {
  auto update = update_named(c.text(4));
  return update && (c.is_none(5) || c.flag(5)) ? scatter(c, *update) : std::nullopt;
}

// x[:, mask, ..] = values: a choice, as long as the values do not depend on how many positions the mask has.
Result put_mask(OpCall& c, Value x, Value mask, int64_t dim, Value values, bool accumulate) {
  GraphBuilder& b = c.b;
  size_t first = static_cast<size_t>(dim), masked = mask.shape().size(), after = x.shape().size() - first - masked;
  Shape shape = values.shape(), place(x.shape().size(), SymInt(1));
  if (shape.size() > after) {
    auto at = shape.end() - static_cast<int64_t>(after) - 1;
    if (*at != SymInt(1)) return std::nullopt;
    shape.insert(at, masked - 1, SymInt(1));
  }
  if (shape.size() > x.shape().size() || (accumulate && x.dtype() == DType::b1)) return std::nullopt;
  std::copy_n(x.shape().begin() + dim, masked, place.begin() + dim);
  mask = b.reshape(with_sizes(b, mask, Shape(place.begin() + dim, place.begin() + dim + static_cast<int64_t>(masked))), place);
  values = broadcast_to(b, b.reshape(values, shape), x.shape());
  return as_result(c, b.where(mask, accumulate ? b.binary(Op::add, x, values) : values, x));
}

// x[:, i, ..] = values with a single index.
Result index_put(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0), values = c.tensor(2);
  auto given = c.tensors(1);
  auto set = [](const std::optional<Value>& v) { return v.has_value(); };
  auto it = std::find_if(given.begin(), given.end(), set);
  if (std::count_if(given.begin(), given.end(), set) != 1 || values.dtype() != x.dtype()) return std::nullopt;
  int64_t dim = it - given.begin();
  Value i = **it;
  if (i.dtype() == DType::b1) return i.rank() ? put_mask(c, x, i, dim, values, c.flag(3)) : std::nullopt;
  if (!is_index(i) || i.rank() > 1 || !few(i.type().numel()) || !worth_rewriting(c, x)) return std::nullopt;
  SymInt n = x.shape()[static_cast<size_t>(dim)], k = i.type().numel();
  Shape shape = with_size(x.shape(), dim, k), target = shape;
  if (i.rank() == 0) target.erase(target.begin() + dim);
  if (values.shape().size() > target.size()) return std::nullopt;
  Value source = b.reshape(broadcast_to(b, values, target), shape), at = checked(b, wrapped(b, at_least_1d(b, i), n), n);
  return write(c, {x, dim, k.constant(), elements(b, at), slices(b, source, dim), c.flag(3) ? Update::add : Update::replace});
}

Result one_hot(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
  int64_t classes = c.is_none(1) ? -1 : c.constant(1);
  if (classes <= 0 || x.dtype() != DType::i64) return std::nullopt;
  Value at = unsqueeze(b, checked(b, x, classes), x.rank());
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
    return as_result(c, take(c.b, c.b.reshape(x, {n}), wrapped(c.b, i, n), 0));
  });
  add_moving(t, "take_along_dim", take_along_dim);
  add_moving(t, "embedding", [](OpCall& c) -> Result {
    return is_index(c.tensor(1)) ? as_result(c, take(c.b, c.tensor(0), c.tensor(1), 0)) : std::nullopt;
  });

  add_real(t, "isin.Tensor_Tensor", isin);
  add_real(t, "isin.Tensor_Scalar", isin_number);
  add_real(t, "one_hot", one_hot);

  add_moving(t, "index_fill.int_Scalar index_fill.int_Tensor", index_fill);
  add_moving(t, "index_copy", [](OpCall& c) { return index_from(c, Update::replace); });
  add_real(t, "index_add", [](OpCall& c) { return index_from(c, Update::add, c.is_none(4) ? Scalar(int64_t{1}) : c.scalar(4)); });
  add_real(t, "index_reduce", index_reduce);
  add_moving(t, "scatter.src scatter.value", [](OpCall& c) { return scatter(c, Update::replace); });
  add_real(t, "scatter_add", [](OpCall& c) { return scatter(c, Update::add); });
  add_real(t, "scatter.reduce scatter.value_reduce scatter_reduce.two", scatter_named);
  add_moving(t, "index_put _unsafe_index_put", index_put);
}

}  // namespace broach
