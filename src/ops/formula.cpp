#include "ops/formula.h"

#include <cmath>
#include <limits>

namespace broach {

Expr Expr::number(double n) const { return {*b_, b_->constant(stored(n, dtype()), dtype(), value_.type().device)}; }

Value broadcast(GraphBuilder& g, Op op, Value a, Value b) {
  Shape shape = g.broadcast(a.shape(), b.shape());
  return g.emit(op, {broadcast_to(g, a, shape), broadcast_to(g, b, shape)});
}

static Value broadcast(GraphBuilder& g, Op op, Value a, Value b, Value c) {
  const Shape shape = g.broadcast(a.shape(), g.broadcast(b.shape(), c.shape()));
  return g.emit(op, {broadcast_to(g, a, shape), broadcast_to(g, b, shape), broadcast_to(g, c, shape)});
}

Expr apply(Op op, const Expr& x) { return {x.builder(), x.builder().unary(op, x.value())}; }

Expr apply(Op op, const Expr& a, const Expr& b) {
  if (!a.b_) return apply(op, b.number(a.number_), b);
  if (!b.b_) return apply(op, a, a.number(b.number_));
  return {*a.b_, broadcast(*a.b_, op, a.value_, b.value_)};
}

Expr select(const Expr& condition, const Expr& a, const Expr& b) {
  if (!a.b_) return select(condition, b.number(a.number_), b);
  if (!b.b_) return select(condition, a, a.number(b.number_));
  return {*a.b_, broadcast(*a.b_, Op::where, condition.value_, a.value_, b.value_)};
}

Expr multiply_add(const Expr& a, const Expr& b, const Expr& c) {
  if (!a.b_) return multiply_add(b.number(a.number_), b, c);
  if (!c.b_) return multiply_add(a, b, a.number(c.number_));
  if (!is_floating(a.dtype())) return a * b + c;
  return {*a.b_, broadcast(*a.b_, Op::fma, a.value_, b.value_, c.value_)};
}

Expr rounded(const Expr& x) {
  if (!is_low_precision(x.dtype())) return x;
  auto as = [&x](Value v, DType t) { return x.builder().emit(Op::bitcast, {v}, {{Attr::dtype, t}}); };
  return {x.builder(), as(as(x.value(), DType::i16), x.dtype())};
}

namespace {

int64_t stored_int(int64_t v, DType t) {
  const int unused = 64 - 8 * static_cast<int>(size_of(t));
  const uint64_t high = static_cast<uint64_t>(v) << unused;
  return is_unsigned(t) ? static_cast<int64_t>(high >> unused) : static_cast<int64_t>(high) >> unused;
}

}  // namespace

Scalar stored(const Scalar& s, DType t) {
  if (is_floating(t)) return rounded(as_double(s), t);
  if (is_integral(t)) return stored_int(as_int(s), t);
  return s;
}

Value number_operand(OpCall& c, size_t i, DType t) {
  SymInt n = c.integer(i);
  if (n.is_constant()) return c.b.constant(stored(c.scalar(i), t), t, c.result().device);
  return size_number(c.b, n, t);
}

Value operand(OpCall& c, size_t i, DType t) {
  if (!c.is_tensor(i)) return number_operand(c, i, t);
  Value v = c.tensor(i);
  if (c.is_run_time_number(i) && is_floating(v.dtype()) && !is_floating(t) && !is_complex(t)) v = c.number_f64(i);  // f32 may not hold it
  // Eager converts integers, and on a CPU tensors without dimensions, to the result's low precision type before it computes in f32; but no
  // numbers, of which one may be another in each call.
  DType r = c.result().dtype;
  const bool on_cpu = c.result().device.kind == DeviceKind::cpu;
  const bool is_rounded = is_integral(v.dtype()) ? v.rank() > 0 : v.rank() == 0 && is_floating(v.dtype()) && on_cpu;
  if (is_rounded && !c.is_number(i) && is_low_precision(r) && t == compute_dtype(r)) v = c.b.cast(v, r);
  return c.b.cast(v, t);
}

Results in_result_type(OpCall& c, const Expr& x) { return {{x.to(c.result().dtype).value()}}; }

void add_formula(OpTable& t, std::string_view names, std::vector<size_t> positions, Formula f, bool integers) {
  add_real(t, names, [positions = std::move(positions), f = std::move(f), integers](OpCall& c) -> Results {
    if (!is_floating(c.result().dtype) && !(integers && is_integral(c.result().dtype))) return std::nullopt;
    DType type = compute_dtype(c.result().dtype);
    std::vector<Expr> x;
    for (size_t i : positions) x.emplace_back(c.b, operand(c, i, type));
    return in_result_type(c, f(c, x));
  });
}

}  // namespace broach
