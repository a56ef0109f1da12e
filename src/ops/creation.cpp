// Tensors made of numbers, and copies.
#include <cmath>

#include "ops/formula.h"

namespace broach {

namespace {

// Argument `layout` is absent or strided, and the result is a tensor that primitives can make.
bool is_dense(OpCall& c, size_t layout) {
  DeviceKind device = c.result().device.kind;
  return (c.is_none(layout) || c.constant(layout) == 0) && (device == DeviceKind::cpu || device == DeviceKind::cuda);
}

Value filled(OpCall& c, const Shape& shape, double number) {
  const Type& t = c.result();
  return c.b.full(shape, stored(number, t.dtype), t.dtype, t.device);
}

// A fraction that changes from call to call may be none that an integer can be: eager's own call says so.
Value filled_with_argument(OpCall& c, const Shape& shape, size_t i) {
  if (c.is_run_time_number(i) && is_floating(c.tensor(i).dtype()) && is_integral(c.result().dtype)) return {};
  return c.b.expand(operand(c, i, c.result().dtype), shape);
}

// Entries whose sizes are argument `size` (or those of tensor 0, where it is a tensor).
void add_full(OpTable& t, const char* names, size_t size, size_t layout, double number) {
  add_single_moving(t, names, [=](OpCall& c) {
    if (!is_dense(c, layout)) return Value{};
    return filled(c, c.is_tensor(size) ? c.tensor(size).shape() : c.ints(size), number);
  });
}

// Memory that eager leaves unset may hold any value; zero is as good as another.
void add_constants(OpTable& t) {
  add_full(t, "zeros empty.memory_format _efficientzerotensor zeros_like empty_like", 0, 2, 0);
  add_full(t, "empty_strided empty_permuted", 0, 3, 0);
  add_full(t, "new_zeros new_empty", 1, 3, 0);
  add_full(t, "new_empty_strided", 1, 4, 0);
  add_full(t, "ones ones_like", 0, 2, 1);
  add_full(t, "new_ones", 1, 3, 1);
  add_single_moving(t, "full", [](OpCall& c) { return is_dense(c, 3) ? filled_with_argument(c, c.ints(0), 1) : Value{}; });
  add_single_moving(t, "full_like", [](OpCall& c) { return is_dense(c, 3) ? filled_with_argument(c, c.tensor(0).shape(), 1) : Value{}; });
  add_single_moving(t, "new_full", [](OpCall& c) { return is_dense(c, 4) ? filled_with_argument(c, c.ints(1), 2) : Value{}; });
  add_single_moving(t, "scalar_tensor", [](OpCall& c) { return is_dense(c, 2) ? filled_with_argument(c, {}, 0) : Value{}; });
  add_single_moving(t, "fill.Scalar fill.Tensor", [](OpCall& c) { return filled_with_argument(c, c.tensor(0).shape(), 1); });
  add_single_moving(t, "zero", [](OpCall& c) { return filled(c, c.tensor(0).shape(), 0); });
}

// ---- sequences ----

// Where the bounds and the step of a sequence are among the arguments; those not given are 0 and 1.
struct Sequence {
  int start;
  int end;
  int step;
  size_t layout;
};

bool is_integer(OpCall& c, int i) {
  if (i < 0) return true;
  auto at = static_cast<size_t>(i);
  return !c.integer(at).is_constant() || !std::holds_alternative<double>(c.scalar(at));
}

// start + i * step in t, which is wide enough to be exact where eager's computation is.
Value stepped(OpCall& c, const SymInt& n, DType t, Value start, Value step) {
  Expr i{c.b, positions(c.b, n, t)};
  return (Expr{c.b, start} + i * Expr{c.b, step}).to(c.result().dtype).value();
}

Value integer_range(OpCall& c, const Sequence& s) {
  SymInt start = s.start < 0 ? SymInt(0) : c.integer(static_cast<size_t>(s.start)), end = c.integer(static_cast<size_t>(s.end));
  int64_t step = s.step < 0 || c.is_none(static_cast<size_t>(s.step)) ? 1 : c.constant(static_cast<size_t>(s.step));
  SymInt length = step > 0 ? end - start : start - end;
  // Eager raises an error for a range that runs backwards.
  if (step == 0 || !c.b.symbols().ask(0, Relation::le, length)) return {};
  SymInt n = ceildiv(length, std::abs(step));
  if (start == SymInt(0) && step == 1) return c.b.cast(positions(c.b, n), c.result().dtype);
  return stepped(c, n, DType::i64, size_value(c.b, start), c.b.constant(step, DType::i64));
}

Value floating_range(OpCall& c, const Sequence& s) {
  auto at = [&](int i, double otherwise) { return i < 0 ? otherwise : c.number_or(static_cast<size_t>(i), otherwise); };
  double start = at(s.start, 0), end = at(s.end, 0), step = at(s.step, 1);
  double n = std::ceil((end - start) / step);
  if (!is_floating(c.result().dtype) || !(n >= 0 && n < 9e15)) return {};
  // Low precision steps in f32 on the CPU, the others in f64.
  DType t = is_low_precision(c.result().dtype) ? DType::f32 : DType::f64;
  return stepped(c, static_cast<int64_t>(n), t, c.b.constant(stored(start, t), t), c.b.constant(stored(step, t), t));
}

void add_range(OpTable& t, const char* name, Sequence s) {
  add_single_moving(t, name, [s](OpCall& c) {
    if (!is_dense(c, s.layout)) return Value{};
    bool integers =
        is_integer(c, s.start) && is_integer(c, s.end) && (s.step < 0 || c.is_none(static_cast<size_t>(s.step)) || is_integer(c, s.step));
    return integers && !is_low_precision(c.result().dtype) ? integer_range(c, s) : floating_range(c, s);
  });
}

// The type in which points between two numbers are computed.
DType spacing_dtype(DType t) { return is_integral(t) ? DType::f64 : compute_dtype(t); }

// An end of the interval: argument i, a number or a tensor without dimensions, as an element of the result would be.
Expr interval_end(OpCall& c, size_t i) {
  DType t = c.result().dtype, wide = spacing_dtype(t);
  if (c.is_tensor(i)) return {c.b, c.b.cast(c.b.cast(c.tensor(i), t), wide)};
  return {c.b, c.b.constant(stored(c.number(i), t), wide)};
}

// The first half counts from the start, the second from the end, as eager does. In a low precision eager rounds each product, which no
// kernel does.
Value evenly_spaced(OpCall& c, size_t layout) {
  DType t = spacing_dtype(c.result().dtype);
  int64_t steps = c.constant(2);
  if (!is_dense(c, layout) || c.result().dtype == DType::b1 || is_low_precision(c.result().dtype)) return {};
  Expr start = interval_end(c, 0), end = interval_end(c, 1);
  if (steps == 1) return c.b.expand(start.value(), {SymInt(1)});
  Expr i{c.b, positions(c.b, steps, t)};
  Expr step = (end - start) / static_cast<double>(steps - 1);
  return select(i < static_cast<double>(steps / 2), start + i * step, end - (static_cast<double>(steps - 1) - i) * step).value();
}

Value log_spaced(OpCall& c) {
  Value exponent = is_floating(c.result().dtype) ? evenly_spaced(c, 5) : Value{};
  if (!exponent) return {};
  Expr base = Expr{c.b, exponent}.number(c.number_or(3, 10));
  return c.b.cast(apply(Op::pow, base, {c.b, exponent}).value(), c.result().dtype);
}

// ---- matrices ----

Value iota(OpCall& c, const SymInt& n, int64_t dim) { return along(c.b, positions(c.b, n), dim, 2); }

Value eye(OpCall& c, const SymInt& rows, const SymInt& columns) {
  return c.b.cast(broadcast(c.b, Op::eq, iota(c, rows, 0), iota(c, columns, 1)), c.result().dtype);
}

// The elements with column - row `op` the diagonal; zero elsewhere.
Value triangle(OpCall& c, Op op) {
  Value x = c.tensor(0);
  const Shape& shape = x.shape();
  Value diagonal = size_value(c.b, c.integer_or(1, 0)), column = iota(c, shape.back(), 1);
  Value keep = broadcast(c.b, op, column, c.b.binary(Op::add, iota(c, shape[shape.size() - 2], 0), diagonal));
  return select({c.b, keep}, {c.b, x}, {c.b, filled(c, {}, 0)}).value();
}

void add_sequences(OpTable& t) {
  add_range(t, "arange", {-1, 0, -1, 2});
  add_range(t, "arange.start", {0, 1, -1, 3});
  add_range(t, "arange.start_step", {0, 1, 2, 4});
  add_single(t, "linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor", [](OpCall& c) {
    Value v = evenly_spaced(c, 4);
    return v ? c.b.cast(v, c.result().dtype) : v;
  });
  add_single(t, "logspace logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor", log_spaced);
  add_single_moving(t, "eye", [](OpCall& c) { return is_dense(c, 2) ? eye(c, c.integer(0), c.integer(0)) : Value{}; });
  add_single_moving(t, "eye.m", [](OpCall& c) { return is_dense(c, 3) ? eye(c, c.integer(0), c.integer(1)) : Value{}; });
  add_single_moving(t, "tril", [](OpCall& c) { return triangle(c, Op::le); });
  add_single_moving(t, "triu", [](OpCall& c) { return triangle(c, Op::ge); });
}

// ---- copies and composites ----
Results meshgrid(OpCall& c) {
  auto tensors = c.tensors(0);
  std::vector<Value> out;
  Shape shape;
  for (const auto& x : tensors) shape.push_back(x->type().numel());
  bool swap = !c.is_none(1) && c.text(1) == "xy" && tensors.size() > 1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Value grid = c.b.reshape(*tensors[i], {tensors[i]->type().numel()});
    grid = c.b.expand(along(c.b, grid, static_cast<int64_t>(i), static_cast<int>(shape.size())), shape);
    out.push_back(swap ? transpose(c.b, grid, 0, 1) : grid);
  }
  return out;
}

void add_copies(OpTable& t) {
  auto same = [](OpCall& c) -> Results { return {{c.tensor(0)}}; };
  t.add("clone detach alias lift lift_fresh lift_fresh_copy _lazy_clone alias_copy detach_copy", same);
  t.add("meshgrid meshgrid.indexing", meshgrid);
}

}  // namespace

void add_creation_ops(OpTable& t) {
  add_constants(t);
  add_sequences(t);
  add_copies(t);
}

}  // namespace broach
