// Running sums and extrema, sorts, selections and searches: one routine each, with what eager does around it.
#include <algorithm>
#include <limits>

#include "ops/build.h"

namespace broach {

namespace {

using Result = std::optional<std::vector<Value>>;

AttrValue flag(bool b) { return int64_t{b}; }

Value zero_position(GraphBuilder& b, const Shape& shape) { return b.full(shape, int64_t{0}, DType::i64); }

// ---- scans ----

// The elements become the result's type before they are added up or multiplied.
Lowering running(Op op) {
  return [op](OpCall& c) -> Result {
    Value x = c.b.cast(c.tensor(0), c.result().dtype);
    if (x.rank() == 0) return as_result(c, x);
    return as_result(c, c.b.emit(op, {x}, {{Attr::dim, c.dim(1, x.rank())}}));
  };
}

Lowering running_extremum(Op op) {
  return [op](OpCall& c) -> Result {
    Value x = c.tensor(0);
    if (x.rank() == 0) return {{x, zero_position(c.b, {})}};
    return c.b.emit_all(op, {x}, {{Attr::dim, c.dim(1, x.rank())}});
  };
}

// ---- sorts ----

// Eager sorts long vectors of integers by their digits, which keeps equal elements in order though nobody asked for it.
bool sorted_by_digits(OpCall& c, const Value& x, bool descending) {
  return x.rank() == 1 && !descending && is_integral(x.dtype()) && !c.b.symbols().ask(x.shape()[0], Relation::lt, 32768);
}

Result sort(OpCall& c, bool stable, size_t dim, size_t descending) {
  Value x = c.tensor(0);
  if (x.rank() == 0) return {{x, zero_position(c.b, {})}};
  const bool down = c.flag(descending);
  return c.b.emit_all(
      Op::sort, {x},
      {{Attr::dim, c.dim(dim, x.rank())}, {Attr::descending, flag(down)}, {Attr::stable, flag(stable || sorted_by_digits(c, x, down))}});
}

Result topk(OpCall& c) {
  Value x = c.tensor(0);
  SymInt k = c.integer(1);
  if (x.rank() == 0) {
    if (c.b.symbols().specialize(k) != 1) return std::nullopt;
    return {{x, zero_position(c.b, {})}};
  }
  const int64_t dim = c.is_none(2) ? x.rank() - 1 : c.dim(2, x.rank());
  if (!c.b.symbols().ask(0, Relation::le, k) || !c.b.symbols().ask(k, Relation::le, x.shape()[static_cast<size_t>(dim)]))
    return std::nullopt;
  return c.b.emit_all(Op::topk, {x},
                      {{Attr::dim, dim}, {Attr::k, k}, {Attr::descending, flag(c.flag(3))}, {Attr::sorted, flag(c.flag(4))}});
}

// ---- selections ----

// A selection from each line along dimension `dim`, which stays with size 1 if `keep`. Lines without elements are an error.
Result select(OpCall& c, Op op, int64_t dim, bool keep, Attrs attrs) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
  if (x.rank() == 0) return {{x, zero_position(b, {})}};
  if (b.symbols().equal(x.shape().at(static_cast<size_t>(dim)), 0)) return std::nullopt;
  attrs[Attr::dim] = dim;
  auto r = b.emit_all(op, {x}, std::move(attrs));
  if (keep)
    for (Value& v : r) v = unsqueeze(b, v, dim);
  return r;
}

Result kthvalue(OpCall& c) {
  Value x = c.tensor(0);
  const int64_t dim = c.dim(2, x.rank()), k = c.constant(1);
  const SymInt size = x.rank() ? x.shape()[static_cast<size_t>(dim)] : SymInt(1);
  if (k < 1 || !c.b.symbols().ask(k, Relation::le, size)) return std::nullopt;
  return select(c, Op::kth, dim, c.flag(3), {{Attr::k, SymInt(k - 1)}});
}

Lowering median_along(bool skip_nan) {
  return [=](OpCall& c) { return select(c, Op::median, c.dim(1, c.tensor(0).rank()), c.flag(2), {{Attr::skip_nan, flag(skip_nan)}}); };
}

Lowering median_of_all(bool skip_nan) {
  return [=](OpCall& c) -> Result {
    Value x = c.tensor(0);
    if (c.b.symbols().equal(x.type().numel(), 0)) return std::nullopt;
    Value flat = c.b.reshape(x, {x.type().numel()});
    return as_result(c, c.b.emit(Op::median, {flat}, {{Attr::dim, int64_t{0}}, {Attr::skip_nan, flag(skip_nan)}}));
  };
}

// ---- searches ----

// Positions of `values` among the last dimension of `sorted`, which has as many lines or only one.
Result search(OpCall& c, Value sorted, Value values, bool right) {
  GraphBuilder& b = c.b;
  if (!values || sorted.dtype() != values.dtype() || sorted.rank() == 0 || (sorted.rank() > 1 && sorted.rank() != values.rank()))
    return std::nullopt;
  if (sorted.rank() > 1) {
    Shape sizes = values.shape();
    sizes.back() = sorted.shape().back();
    sorted = with_sizes(b, sorted, sizes);
  }
  return as_result(c, b.cast(b.emit(Op::search, {sorted, values}, {{Attr::right, flag(right)}}), c.result().dtype));
}

// The sequence as `sorter` orders it.
Value ordered(GraphBuilder& b, Value sequence, Value sorter) {
  if (sequence.rank() == 1) return take(b, sequence, sorter, 0);
  const SymInt n = sequence.shape().back(), lines = product(std::span(sequence.shape()).first(sequence.shape().size() - 1));
  Value first = b.binary(Op::mul, along(b, positions(b, lines), 0, 2), size_value(b, n));
  Value at = b.binary(Op::add, b.reshape(sorter, {lines, n}), first);
  return b.reshape(take(b, b.reshape(sequence, {lines * n}), b.reshape(at, {lines * n}), 0), sequence.shape());
}

// What is looked for: a tensor, or a number, which is of the sequence's type unless that is of a lesser kind; then none.
Value looked_for(OpCall& c, size_t i, Value sequence) {
  if (c.is_tensor(i)) return c.tensor(i);
  const Scalar number = c.scalar(i);
  const bool is_lesser = std::holds_alternative<double>(number) ? !is_floating(sequence.dtype()) : sequence.dtype() == DType::b1;
  return is_lesser ? Value{} : c.b.constant(number, sequence.dtype());
}

Result searchsorted(OpCall& c) {
  Value sequence = c.tensor(0), values = looked_for(c, 1, sequence);
  if (auto sorter = c.maybe_tensor(5)) {
    if (sorter->rank() != sequence.rank() || sequence.rank() == 0) return std::nullopt;
    sequence = ordered(c.b, sequence, with_sizes(c.b, *sorter, sequence.shape()));
  }
  return search(c, sequence, values, c.is_none(4) ? c.flag(3) : c.text(4) == "right");
}

Result bucketize(OpCall& c) {
  Value boundaries = c.tensor(1), values = looked_for(c, 0, boundaries);
  return boundaries.rank() == 1 ? search(c, boundaries, values, c.flag(3)) : std::nullopt;
}

}  // namespace

void add_ordering_ops(OpTable& t) {
  add_real(t, "cumsum", running(Op::scan_sum));
  add_real(t, "cumprod", running(Op::scan_prod));
  add_real(t, "logcumsumexp", running(Op::scan_logsumexp));
  add_real(t, "cummax", running_extremum(Op::scan_max));
  add_real(t, "cummin", running_extremum(Op::scan_min));
  add_real(t, "sort", [](OpCall& c) { return sort(c, false, 1, 2); });
  add_real(t, "sort.stable", [](OpCall& c) { return sort(c, c.flag(1), 2, 3); });
  add_real(t, "topk", topk);
  add_real(t, "kthvalue", kthvalue);
  add_real(t, "median", median_of_all(false));
  add_real(t, "nanmedian", median_of_all(true));
  add_real(t, "median.dim", median_along(false));
  add_real(t, "nanmedian.dim", median_along(true));
  add_real(t, "mode", [](OpCall& c) { return select(c, Op::mode, c.dim(1, c.tensor(0).rank()), c.flag(2), {}); });
  add_real(t, "searchsorted.Tensor searchsorted.Scalar", searchsorted);
  add_real(t, "bucketize.Tensor bucketize.Scalar", bucketize);
}

}  // namespace broach
