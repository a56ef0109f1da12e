// Writes at positions that tensors name. Each is a scatter primitive, or, where there are few positions in a small tensor, a
// comparison of each position of the written dimension with each index, which fuses with what comes before and after.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/strides.h"
#include "ops/formula.h"
#include "ops/indexing.h"

namespace broach {

namespace {

using Result = std::optional<std::vector<Value>>;

enum class Update : uint8_t { replace, add, mul, min, max };

std::optional<Update> update_named(const std::string& name) {
  static const std::pair<const char*, Update> names[] = {{"add", Update::add},  {"sum", Update::add},  {"multiply", Update::mul},
                                                         {"prod", Update::mul}, {"amin", Update::min}, {"amax", Update::max}};
  for (auto [n, u] : names)
    if (name == n) return u;
  return std::nullopt;
}

// A write of the elements of `source` at `index` along `dim`, in row-major order. Both have x's rank and broadcast to
// `shape`, which is x's but along `dim`, or smaller.
struct Write {
  Value x;
  int64_t dim;
  Value index, source;
  Shape shape;
  Update update = Update::replace;

  const SymInt& count() const { return shape[static_cast<size_t>(dim)]; }
  const SymInt& limit() const { return x.shape()[static_cast<size_t>(dim)]; }
};

bool accumulates(Update u) { return u == Update::add || u == Update::mul; }

// ---- by comparing ----

// Such a write goes over the whole tensor: worth it where that is small, or where all of it is about to be written anyway.
bool worth_rewriting(OpCall& c, Value x) {
  if (x.node->op == Op::reshape) x = x.node->inputs[0];
  bool filled = x.node->op == Op::scalar || (x.node->op == Op::expand && x.node->inputs[0].type().numel() == SymInt(1));
  return filled || c.b.symbols().hint(x.type().numel()) <= 1 << 16;
}

bool compares_well(OpCall& c, const Write& w) {
  if (!few(w.count()) || !worth_rewriting(c, w.x)) return false;
  for (size_t d = 0; d < w.shape.size(); ++d)
    if (d != static_cast<size_t>(w.dim) && w.shape[d] != w.x.shape()[d]) return false;
  // Sums of low precision are rounded once; those of truth values have no primitive of two operands.
  return !accumulates(w.update) || (w.x.dtype() != DType::b1 && !(is_low_precision(w.x.dtype()) && w.count() != SymInt(1)));
}

Value part(GraphBuilder& b, const Value& v, int64_t dim, int64_t j) {
  return v.shape()[static_cast<size_t>(dim)] == SymInt(1) ? v : narrow(b, v, dim, j, 1);
}

Value written_by_comparing(GraphBuilder& b, const Write& w) {
  static constexpr Op ops[] = {Op::add, Op::add, Op::mul, Op::min, Op::max};
  // Reading the positions at the index makes one outside an error.
  Value index = take(b, positions(b, w.limit()), b.cast(w.index, DType::i64), 0);
  Value r = w.x, at = along(b, positions(b, w.limit()), w.dim, w.x.rank());
  for (int64_t j = 0; j < w.count().constant(); ++j) {
    Value s = part(b, w.source, w.dim, j), next = w.update == Update::replace ? s : b.binary(ops[static_cast<size_t>(w.update)], r, s);
    r = b.where(b.binary(Op::eq, at, part(b, index, w.dim, j)), next, r);
  }
  return r;
}

// ---- by the primitive ----

// A repeated constant gets memory for one element rather than for all.
Value repeatable(GraphBuilder& b, Value v) {
  while (v.node->op == Op::expand || v.node->op == Op::reshape) v = v.node->inputs[0];
  if (v.node->op != Op::scalar) return {};
  return b.emit(Op::copy, {v}, {{Attr::index, int64_t{0}}});
}

Value spread(GraphBuilder& b, Value v, const Shape& shape) {
  if (Value one = repeatable(b, v)) v = one;
  return broadcast_to(b, v, shape);
}

Value written_by_scatter(GraphBuilder& b, const Write& w) {
  static constexpr Op ops[] = {Op::scatter, Op::scatter_add, Op::scatter_mul, Op::scatter_min, Op::scatter_max};
  const DType type = w.x.dtype(), wide = accumulates(w.update) ? compute_dtype(type) : type;
  Value x = b.cast(w.x, wide), source = spread(b, b.cast(w.source, wide), w.shape);
  Value r = b.emit(ops[static_cast<size_t>(w.update)], {x, broadcast_to(b, w.index, w.shape), source}, {{Attr::dim, w.dim}});
  return b.cast(r, type);
}

// ---- sums of whole rows ----

// Of few rows each is a sum over all positions, which fuses with what comes before.
Value summed_by_comparing(GraphBuilder& b, const Value& source, const Value& index, const SymInt& rows) {
  const SymInt count = source.shape()[0], width = source.shape()[1];
  const Shape all{rows, count, width};
  const Value row = b.expand(along(b, b.cast(positions(b, rows), index.dtype()), 0, 3), all);
  const Value here = b.binary(Op::eq, b.expand(along(b, index, 1, 3), all), row);
  return b.reduce(Op::reduce_sum, b.where(here, b.expand(b.reshape(source, {1, count, width}), all), b.full(all, 0.0, source.dtype())),
                  {1});
}

}  // namespace

Value sum_of_rows(GraphBuilder& b, const Value& source, const Value& index, const SymInt& rows) {
  const DType type = source.dtype();
  if (few(rows)) return b.cast(summed_by_comparing(b, b.cast(source, compute_dtype(type)), index, rows), type);
  return b.cast(b.emit(Op::sum_rows, {source, index}, {{Attr::shape, Shape{rows, source.shape()[1]}}}), type);
}

namespace {

bool is_zeros(Value v) {
  while (is_window(v.node->op)) v = v.node->inputs[0];
  if (v.node->op != Op::scalar) return false;
  const double number = as_double(v.node->get<Scalar>(Attr::value));
  return number == 0 && !std::signbit(number);  // -0.0 stays where nothing is added
}

// Zeros to which rows are added, as the gradient of a selection is.
std::optional<Value> written_as_rows(GraphBuilder& b, const Write& w) {
  constexpr double kMostSteps = 1 << 28;  // of a target that looks for each row among all positions
  const Symbols& symbols = b.symbols();
  if (w.update != Update::add || !is_floating(w.x.dtype()) || !is_zeros(w.x) ||
      static_cast<double>(symbols.hint(w.count())) * static_cast<double>(symbols.hint(w.limit())) > kMostSteps)
    return std::nullopt;
  SymInt width(1);
  for (size_t d = 0; d < w.shape.size(); ++d) {
    if (d == static_cast<size_t>(w.dim)) continue;
    if (w.index.shape()[d] != SymInt(1) || w.shape[d] != w.x.shape()[d]) return std::nullopt;
    if (d < static_cast<size_t>(w.dim) && w.shape[d] != SymInt(1)) return std::nullopt;
    width = width * w.shape[d];
  }
  Value index = b.reshape(b.cast(w.index, DType::i64), {w.count()});
  if (few(w.limit())) index = take(b, positions(b, w.limit()), index, 0);                            // makes one outside an error
  else index = b.where(with_number(b, Op::lt, index, int64_t{0}), size_value(b, w.limit()), index);  // -1 would be no place
  const Value source = b.reshape(broadcast_to(b, w.source, w.shape), {w.count(), width});
  return b.reshape(sum_of_rows(b, source, index, w.limit()), w.x.shape());
}

Value written(OpCall& c, const Write& w) {
  if (compares_well(c, w)) return written_by_comparing(c.b, w);
  if (const auto rows = written_as_rows(c.b, w)) return *rows;
  return written_by_scatter(c.b, w);
}

Result write(OpCall& c, const Write& w) {
  if (w.source.dtype() != w.x.dtype()) return std::nullopt;
  return as_result(c, c.b.reshape(written(c, w), Shape(c.tensor(0).shape())));
}

// ---- means, and reductions without the old value ----

Scalar neutral(Update u, DType t) {
  switch (u) {
    case Update::mul: return int64_t{1};
    case Update::min: return highest(t);
    case Update::max: return lowest(t);
    default: return int64_t{0};
  }
}

// The sum over how many elements went into it; integers are rounded down.
Value mean_of(OpCall& c, Write w, bool include_self) {
  GraphBuilder& b = c.b;
  const DType type = w.x.dtype(), wide = compute_dtype(type);
  w.x = b.cast(w.x, wide);
  w.source = b.cast(w.source, wide);
  Write ones = w;
  ones.x = b.full(w.x.shape(), int64_t{include_self}, wide);
  ones.source = b.reshape(b.constant(int64_t{1}, wide), Shape(w.shape.size(), SymInt(1)));
  Value count = b.binary(Op::max, written(c, ones), b.constant(int64_t{1}, wide));
  return b.cast(b.binary(is_floating(type) ? Op::div : Op::floor_div, written(c, w), count), type);
}

// `name` is what scatter_reduce and index_reduce call the reduction.
Result reduce_into(OpCall& c, Write w, const std::string& name, bool include_self) {
  const bool mean = name == "mean";
  auto update = mean ? Update::add : update_named(name);
  if (!update || w.source.dtype() != w.x.dtype() || (mean && w.x.dtype() == DType::b1)) return std::nullopt;
  w.update = *update;
  if (!include_self) {
    Write cleared = w;
    cleared.update = Update::replace;
    cleared.source = c.b.reshape(c.b.constant(neutral(*update, w.x.dtype()), w.x.dtype()), Shape(w.shape.size(), SymInt(1)));
    w.x = written(c, cleared);
  }
  return as_result(c, c.b.reshape(mean ? mean_of(c, w, include_self) : written(c, w), Shape(c.tensor(0).shape())));
}

// ---- index_*: x, dim, a vector of indices, what to write ----

Shape with_size(Shape shape, int64_t dim, SymInt size) {
  shape.at(static_cast<size_t>(dim)) = std::move(size);
  return shape;
}

std::optional<Write> index_write(OpCall& c, bool wraps) {
  GraphBuilder& b = c.b;
  Value x = at_least_1d(b, c.tensor(0)), i = at_least_1d(b, c.tensor(2));
  if (!is_index(i) || i.rank() != 1) return std::nullopt;
  const int64_t dim = c.dim(1, x.rank());
  Shape shape = with_size(x.shape(), dim, i.shape()[0]);
  if (wraps) i = wrapped_index(b, i, x.shape()[static_cast<size_t>(dim)]);
  return Write{x, dim, along(b, i, dim, x.rank()), {}, shape};
}

Result index_fill(OpCall& c) {
  auto w = index_write(c, true);
  if (!w) return std::nullopt;
  Value v;
  if (c.is_tensor(3)) v = operand(c, 3, w->x.dtype());
  else if (is_complex(c.scalar(3))) return std::nullopt;
  else v = c.b.constant(c.scalar(3), w->x.dtype());
  w->source = c.b.reshape(v, Shape(w->x.shape().size(), SymInt(1)));
  return write(c, *w);
}

// With the source at argument 3.
std::optional<Write> index_from(OpCall& c) {
  auto w = index_write(c, false);
  Value source = at_least_1d(c.b, c.tensor(3));
  if (!w || source.rank() != w->x.rank()) return std::nullopt;
  w->source = with_sizes(c.b, source, w->shape);
  return w;
}

Result index_copy(OpCall& c) {
  auto w = index_from(c);
  return w ? write(c, *w) : std::nullopt;
}

Result index_add(OpCall& c) {
  auto w = index_from(c);
  const Scalar alpha = c.is_none(4) ? Scalar(int64_t{1}) : c.scalar(4);
  if (!w || is_complex(alpha)) return std::nullopt;
  w->update = Update::add;
  if (as_double(alpha) != 1) w->source = with_number(c.b, Op::mul, w->source, alpha);
  return write(c, *w);
}

Result index_reduce(OpCall& c) {
  auto w = index_from(c);
  return w ? reduce_into(c, *w, c.text(4), c.is_none(5) || c.flag(5)) : std::nullopt;
}

// ---- scatter and its kin: x, dim, an index of x's rank, a tensor or a number to write ----

std::optional<Write> scatter_write(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = at_least_1d(b, c.tensor(0)), i = at_least_1d(b, c.tensor(2));
  if (!is_index(i) || i.rank() != x.rank()) return std::nullopt;
  Write w{x, c.dim(1, x.rank()), i, {}, i.shape()};
  // Sizes that equal x's are spelled as x's.
  for (size_t d = 0; d < w.shape.size(); ++d)
    if (d != static_cast<size_t>(w.dim) && w.shape[d] != x.shape()[d] && b.symbols().equal(w.shape[d], x.shape()[d]))
      w.shape[d] = x.shape()[d];
  w.index = with_sizes(b, i, w.shape);
  if (auto source = c.maybe_tensor(3); source && !c.is_number(3)) {
    const Value given = at_least_1d(b, *source);
    if (given.rank() != x.rank()) return std::nullopt;
    // The source may be larger than the index.
    for (size_t d = 0; d < w.shape.size(); ++d)
      if (b.symbols().ask(given.shape()[d], Relation::lt, w.shape[d])) unsupported("an index of ", w.shape[d], " for ", given.shape()[d]);
    w.source = b.slice(given, Shape(w.shape.size(), SymInt(0)), std::vector<int64_t>(w.shape.size(), 1), w.shape);
  } else {
    const Scalar number = c.scalar(3);
    if (is_complex(number)) return std::nullopt;
    w.source = b.reshape(b.constant(number, x.dtype()), Shape(w.shape.size(), SymInt(1)));
  }
  return w;
}

Result scatter(OpCall& c, Update update) {
  auto w = scatter_write(c);
  if (!w) return std::nullopt;
  w->update = update;
  return write(c, *w);
}

Result scatter_named(OpCall& c) {
  auto w = scatter_write(c);
  return w ? reduce_into(c, *w, c.text(4), c.is_none(5) || c.flag(5)) : std::nullopt;
}

// ---- index_put ----

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

// x with the elements at `given` replaced by `values` or increased by them.
Result put_at(OpCall& c, Value x, const std::vector<std::optional<Value>>& given, Value values, bool accumulate) {
  GraphBuilder& b = c.b;
  auto m = merged_index(b, x, given);
  if (!m || values.dtype() != x.dtype()) return std::nullopt;
  // The sizes of x[given], to which the values broadcast, and then with those of the index as one.
  Shape shape = m->merged, flat = m->merged;
  shape.erase(shape.begin() + m->at);
  shape.insert(shape.begin() + m->at, m->index.shape().begin(), m->index.shape().end());
  flat[static_cast<size_t>(m->at)] = m->index.type().numel();
  if (values.shape().size() > shape.size()) return std::nullopt;
  const bool one = values.type().numel() == SymInt(1);
  Value source = one ? b.reshape(values, Shape(flat.size(), SymInt(1))) : b.reshape(broadcast_to(b, values, shape), flat);
  Value index = along(b, b.reshape(m->index, {m->index.type().numel()}), m->at, static_cast<int>(flat.size()));
  Write w{b.reshape(b.permute(x, m->order), m->merged), m->at, index, source, flat, accumulate ? Update::add : Update::replace};
  Shape permuted;
  std::vector<int64_t> back(m->order.size());
  for (size_t d = 0; d < m->order.size(); ++d) {
    permuted.push_back(x.shape()[static_cast<size_t>(m->order[d])]);
    back[static_cast<size_t>(m->order[d])] = static_cast<int64_t>(d);
  }
  return as_result(c, b.permute(b.reshape(written(c, w), permuted), back));
}

Result index_put(OpCall& c) {
  Value x = c.tensor(0), values = c.tensor(2);
  auto given = c.tensors(1);
  auto set = [](const std::optional<Value>& v) { return v.has_value(); };
  auto it = std::find_if(given.begin(), given.end(), set);
  if (it == given.end() || values.dtype() != x.dtype()) return std::nullopt;
  const bool alone = std::count_if(given.begin(), given.end(), set) == 1;
  if (alone && (*it)->dtype() == DType::b1)
    return (*it)->rank() ? put_mask(c, x, **it, it - given.begin(), values, c.flag(3)) : std::nullopt;
  return put_at(c, x, given, values, c.flag(3));
}

// Indices out of range are those of the border; where the mask is false nothing is added.
Result masked_index_put(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0), mask = c.tensor(1), values = c.tensor(3);
  auto given = c.tensors(2);
  for (size_t d = 0; d < given.size(); ++d) {
    if (!given[d]) continue;
    if (!is_index(*given[d])) return std::nullopt;
    Value n = size_value(b, x.shape().at(d)), i = b.cast(*given[d], DType::i64);
    given[d] = b.binary(Op::min, b.binary(Op::max, i, b.unary(Op::neg, n)), b.binary(Op::sub, n, b.constant(int64_t{1}, DType::i64)));
  }
  return put_at(c, x, given, b.where(mask, values, b.constant(int64_t{0}, values.dtype())), true);
}

// The flattened tensor, written at flat positions.
Result put(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0), i = c.tensor(1), source = c.tensor(2);
  if (!is_index(i)) return std::nullopt;
  const SymInt n = x.type().numel(), count = i.type().numel();
  Value index = wrapped_index(b, b.reshape(i, {count}), n), values = reshape_guarded(b, source, {count});
  if (!values) return std::nullopt;
  return write(c, {b.reshape(x, {n}), 0, index, values, {count}, c.flag(3) ? Update::add : Update::replace});
}

// ---- what places elements where an earlier call took them from ----

// Zeros of `shape` with `values` added, or put, at `index`: positions in the last `dims` dimensions taken as one.
Result into_planes(OpCall& c, const Shape& shape, size_t dims, Value index, Value values, Update update) {
  GraphBuilder& b = c.b;
  if (index.shape() != values.shape() || !is_index(index)) return std::nullopt;
  const auto split = [&](const Shape& s) { return std::span(s).first(s.size() - dims); };
  const SymInt planes = product(split(shape)), size = product(std::span(shape).subspan(shape.size() - dims));
  const SymInt count = product(std::span(values.shape()).subspan(values.shape().size() - dims));
  if (product(split(values.shape())) != planes) return std::nullopt;
  Write w{b.full({planes, size}, int64_t{0}, values.dtype()),
          1,
          b.reshape(index, {planes, count}),
          b.reshape(values, {planes, count}),
          {planes, count},
          update};
  return as_result(c, b.reshape(written(c, w), shape));
}

Lowering max_unpool(size_t dims) {
  return [dims](OpCall& c) -> Result {
    Value x = c.tensor(0);
    Shape shape = x.shape(), size = c.ints(2);
    if (size.size() != dims || shape.size() <= dims) return std::nullopt;
    std::copy(size.begin(), size.end(), shape.end() - static_cast<int64_t>(dims));
    return into_planes(c, shape, dims, c.tensor(1), x, Update::replace);
  };
}

Result embedding_backward(OpCall& c) {
  GraphBuilder& b = c.b;
  Value grad = c.tensor(0), i = c.tensor(1);
  const SymInt rows = c.integer(2), count = i.type().numel(), width = grad.shape().back();
  if (!is_index(i) || !is_floating(grad.dtype())) return std::nullopt;
  const DType wide = compute_dtype(grad.dtype());
  Value source = reshape_guarded(b, grad, {count, width});  // whose count may be a constant now, where a guard says so
  Value index = reshape_guarded(b, i, {source.shape()[0]});
  if (c.flag(4)) {
    // Each row by how often it was used.
    Write uses{b.full({rows}, int64_t{0}, wide), 0, index, b.reshape(b.constant(int64_t{1}, wide), {1}), {count}, Update::add};
    source = b.binary(Op::div, b.cast(source, wide), unsqueeze(b, take(b, written(c, uses), index, 0), 1));
  }
  // Nothing is added for the index that stands for padding, which -1 does where none is given.
  const Value none = b.constant(int64_t{-1}, index.dtype());
  if (c.integer(3) != SymInt(-1)) index = b.where(b.binary(Op::eq, index, b.cast(size_value(b, c.integer(3)), index.dtype())), none, index);
  return as_result(c, b.cast(sum_of_rows(b, source, index, rows), grad.dtype()));
}

// ---- positions counted by a mask ----

// How many of the mask's elements up to and with each are true, in row-major order.
Value running_count(GraphBuilder& b, const Value& mask) {
  return b.emit(Op::scan_sum, {b.cast(b.reshape(mask, {mask.type().numel()}), DType::i64)}, {{Attr::dim, int64_t{0}}});
}

// The source's elements one after another where the mask is true.
Result masked_scatter(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0), mask = c.tensor(1), source = c.tensor(2);
  if (mask.dtype() != DType::b1 || source.dtype() != x.dtype() || b.symbols().equal(source.type().numel(), 0)) return std::nullopt;
  const Shape shape = b.broadcast(x.shape(), mask.shape());
  mask = broadcast_to(b, mask, shape);
  Value one = b.constant(int64_t{1}, DType::i64), at = b.reshape(b.binary(Op::sub, running_count(b, mask), one), shape);
  Value taken = take(b, b.reshape(source, {source.type().numel()}), b.where(mask, at, b.constant(int64_t{0}, DType::i64)), 0);
  return as_result(c, b.where(mask, taken, broadcast_to(b, x, shape)));
}

// Rows of coordinates of the elements that are not zero; as many rows as asked for, the rest filled.
Result nonzero_static(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
  const int64_t rows = c.constant(1), fill = c.is_none(2) ? -1 : c.constant(2);
  if (x.rank() == 0) return std::nullopt;
  const SymInt n = x.type().numel();
  Value mask = b.reshape(b.cast(x, DType::b1), {n}), limit = b.constant(rows, DType::i64);
  Value row = b.binary(Op::sub, running_count(b, mask), b.constant(int64_t{1}, DType::i64));
  // One row too many takes what is not wanted.
  row = b.where(mask, b.binary(Op::min, row, limit), limit);
  std::vector<Value> columns;
  for (int64_t d = 0; d < x.rank(); ++d)
    columns.push_back(b.reshape(b.expand(along(b, positions(b, x.shape()[static_cast<size_t>(d)]), d, x.rank()), x.shape()), {n, 1}));
  Value source = concat(b, columns, 1);
  Write w{b.full({rows + 1, x.rank()}, fill, DType::i64), 0, unsqueeze(b, row, 1), source, {n, x.rank()}};
  return as_result(c, narrow(b, written(c, w), 0, 0, rows));
}

}  // namespace

void add_scatter_ops(OpTable& t) {
  add_real(t, "index_fill.int_Scalar index_fill.int_Tensor", index_fill);
  add_real(t, "index_copy", index_copy);
  add_real(t, "index_add", index_add);
  add_real(t, "index_reduce", index_reduce);
  add_real(t, "scatter.src scatter.value", [](OpCall& c) { return scatter(c, Update::replace); });
  add_real(t, "scatter_add", [](OpCall& c) { return scatter(c, Update::add); });
  add_real(t, "scatter.reduce scatter.value_reduce scatter_reduce.two", scatter_named);
  add_real(t, "index_put _unsafe_index_put _index_put_impl", index_put);
  add_real(t, "_unsafe_masked_index_put_accumulate", masked_index_put);
  add_real(t, "put", put);
  add_real(t, "max_unpool2d", max_unpool(2));
  add_real(t, "max_unpool3d", max_unpool(3));
  add_real(t, "embedding_dense_backward", embedding_backward);
  add_real(t, "masked_scatter", masked_scatter);
  add_real(t, "nonzero_static", nonzero_static);
}

}  // namespace broach
