// Elementwise mathematics: unary and binary operations, comparisons, logic, powers, divisions, selections and casts.
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/formula.h"

namespace broach {

namespace {

bool is_on_gpu(const OpCall& c) { return c.result().device.kind == DeviceKind::cuda; }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
  Op op;
  const char* names;
};

// ---- one operand ----

// Integers become the result's floating type.
constexpr Row kFloatUnary[] = {
    {Op::sqrt, "sqrt"},
    {Op::rsqrt, "rsqrt"},
    {Op::reciprocal, "reciprocal"},
    {Op::exp, "exp"},
    {Op::exp2, "exp2 special_exp2"},
    {Op::expm1, "expm1 special_expm1"},
    {Op::log, "log"},
    {Op::log2, "log2"},
    {Op::log10, "log10"},
    {Op::log1p, "log1p special_log1p"},
    {Op::sin, "sin"},
    {Op::cos, "cos"},
    {Op::tan, "tan"},
    {Op::asin, "asin arcsin"},
    {Op::acos, "acos arccos"},
    {Op::atan, "atan arctan"},
    {Op::sinh, "sinh"},
    {Op::cosh, "cosh"},
    {Op::tanh, "tanh"},
    {Op::asinh, "asinh arcsinh"},
    {Op::acosh, "acosh arccosh"},
    {Op::atanh, "atanh arctanh"},
    {Op::erf, "erf special_erf"},
    {Op::erfc, "erfc special_erfc"},
    {Op::erfinv, "erfinv special_erfinv"},
    {Op::lgamma, "lgamma special_gammaln"},
    {Op::digamma, "digamma special_digamma special_psi"},
    {Op::sigmoid, "sigmoid special_expit"},
};

// The operand's type stays; where `identity` holds, the operation does nothing.
struct SameTypeRow {
  Op op;
  const char* names;
  bool (*identity)(DType);
};
bool never(DType) { return false; }
bool unsigned_type(DType t) { return t == DType::b1 || t == DType::u8; }
bool not_floating(DType t) { return !is_floating(t); }
bool boolean(DType t) { return t == DType::b1; }

constexpr SameTypeRow kSameTypeUnary[] = {
    {Op::neg, "neg negative", never},    {Op::abs, "abs absolute", unsigned_type},
    {Op::sign, "sign sgn", boolean},     {Op::floor, "floor", not_floating},
    {Op::ceil, "ceil", not_floating},    {Op::trunc, "trunc fix", not_floating},
    {Op::round, "round", not_floating},  {Op::relu, "relu", never},
    {Op::bit_not, "bitwise_not", never},
};

void add_unary(OpTable& t) {
  for (const auto& [op, names] : kFloatUnary)
    add_single(t, names, [op = op](OpCall& c) { return c.b.unary(op, operand(c, 0, c.result().dtype)); });
  for (const auto& row : kSameTypeUnary)
    add_single(t, row.names, [row](OpCall& c) {
      Value x = c.tensor(0);
      return row.identity(x.dtype()) ? x : c.b.unary(row.op, x);
    });
  add_single(t, "positive conj_physical", [](OpCall& c) { return c.tensor(0); });
  add_single(t, "logical_not", [](OpCall& c) { return c.b.unary(Op::bit_not, c.b.cast(c.tensor(0), DType::b1)); });
}

// Predicates that are the same for all integers.
void add_predicate(OpTable& t, const char* names, bool of_integers, Expr (*test)(Expr)) {
  add_single(t, names, [=](OpCall& c) {
    Value x = c.tensor(0);
    if (!is_floating(x.dtype())) return c.b.full(x.shape(), of_integers, DType::b1, x.type().device);
    return test({c.b, x}).value();
  });
}

// The sign bit of zeros and NaN counts too, so it is read as an integer's.
Expr sign_bit(Expr x) {
  static constexpr DType integers[] = {DType::i16, DType::i32, DType::i64};
  DType bits = integers[size_of(x.dtype()) / 4];
  return Expr{x.builder(), x.builder().emit(Op::bitcast, {x.value()}, {{Attr::dtype, bits}})} < 0.0;
}

void add_predicates(OpTable& t) {
  add_predicate(t, "isnan", false, [](Expr x) { return is_nan(x); });
  add_predicate(t, "isinf", false, [](Expr x) { return equal(abs(x), kInfinity); });
  add_predicate(t, "isposinf", false, [](Expr x) { return equal(x, kInfinity); });
  add_predicate(t, "isneginf", false, [](Expr x) { return equal(x, -kInfinity); });
  add_predicate(t, "isfinite", true, [](Expr x) { return abs(x) < kInfinity; });
  add_single(t, "isreal", [](OpCall& c) { return c.b.full(c.tensor(0).shape(), true, DType::b1, c.tensor(0).type().device); });
  add_single(t, "signbit", [](OpCall& c) {
    Expr x{c.b, c.tensor(0)};
    if (x.dtype() == DType::b1) return c.b.full(x.value().shape(), false, DType::b1, x.value().type().device);
    return (is_floating(x.dtype()) ? sign_bit(x) : x < 0.0).value();
  });
}

// ---- formulas of one operand ----

Value nan_to_num(OpCall& c) {
  Expr x{c.b, c.tensor(0)};
  if (!is_floating(x.dtype())) return x.value();
  double most = largest(x.dtype());
  Expr finite = select(equal(x, kInfinity), c.number_or(2, most), select(equal(x, -kInfinity), c.number_or(3, -most), x));
  return select(is_nan(x), c.number_or(1, 0), finite).value();
}

// eps and 1 - eps, rounded to the result's type as eager rounds them.
std::pair<double, double> logit_bounds(OpCall& c, size_t eps) {
  DType t = c.result().dtype;
  double low = as_double(stored(c.number(eps), t));
  return {low, as_double(stored(1 - low, t))};
}

// Not in compute_dtype: eager rounds the quotient.
Value logit(OpCall& c) {
  Expr p{c.b, operand(c, 0, c.result().dtype)};
  if (!c.is_none(1) && c.number(1) >= 0) {
    auto [low, high] = logit_bounds(c, 1);
    p = select(p < low, p.number(low), select(p > high, p.number(high), p));
  }
  return log(p / (1.0 - p)).value();
}

Expr logit_backward(OpCall& c, std::span<const Expr> x) {
  const Expr &grad = x[0], &p = x[1];
  bool bounded = !c.is_none(2) && c.number(2) >= 0;
  auto [low, high] = bounded ? logit_bounds(c, 2) : std::pair(0.0, 1.0);
  return select((p >= low) & (p <= high), grad / (p * (1.0 - p)), bounded ? 0.0 : std::nan(""));
}

Expr sinc(OpCall&, std::span<const Expr> x) {
  Expr turn = x[0] * std::numbers::pi;
  return select(equal(x[0], 0.0), 1.0, apply(Op::sin, turn) / turn);
}

Expr entropy(OpCall&, std::span<const Expr> x) {
  Expr outside = select(equal(x[0], 0.0), 0.0, x[0].number(-kInfinity));
  return select(is_nan(x[0]), x[0], select(x[0] > 0.0, -x[0] * log(x[0]), outside));
}

Results round_decimals(OpCall& c) {
  Value x = c.tensor(0);
  int64_t decimals = c.is_none(1) ? 0 : c.constant(1);
  if (decimals == 0) return {{is_floating(x.dtype()) ? c.b.unary(Op::round, x) : x}};
  // Low precision rounds the scaled number too, which can move it to the next integer.
  if (!is_floating(x.dtype()) || is_low_precision(x.dtype())) return std::nullopt;
  Expr v{c.b, x};
  double ten = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  Expr r = decimals < 0 ? apply(Op::round, v / ten) * ten : apply(Op::round, v * ten) / ten;
  return {{r.value()}};
}

// A mantissa in [0.5, 1) with x's sign, and the power of two it is multiplied by; zeros, infinities and NaN stay as they are.
Results mantissa_and_exponent(OpCall& c) {
  DType t = compute_dtype(c.tensor(0).dtype());
  bool wide = t == DType::f64;
  if (!is_floating(t) || c.result(1).dtype != DType::i32) return std::nullopt;
  DType integer = wide ? DType::i64 : DType::i32;
  int64_t digits = wide ? 52 : 23, bias = wide ? 1022 : 126, mask = wide ? 0x7ff : 0xff;
  auto bits = [&](const Expr& x, DType to) { return Expr{c.b, c.b.emit(Op::bitcast, {x.value()}, {{Attr::dtype, to}})}; };
  auto number = [&](int64_t n) { return Expr{c.b, c.b.constant(n, integer)}; };
  Expr x{c.b, c.b.cast(c.tensor(0), t)}, plain = unequal(x, 0.0) & (abs(x) < kInfinity);
  // Subnormal numbers are scaled first.
  Expr tiny = abs(x) < (wide ? std::numeric_limits<double>::min() : double{std::numeric_limits<float>::min()});
  Expr scaled = bits(select(tiny, x * std::ldexp(1.0, 64), x), integer);
  Expr exponent = (apply(Op::shr, scaled, number(digits)) & number(mask)) - select(tiny, number(bias + 64), number(bias));
  Expr mantissa = bits((scaled & number(~(mask << digits))) | number(bias << digits), t);
  return {{select(plain, mantissa, x).to(c.result(0).dtype).value(), select(plain, exponent, number(0)).to(DType::i32).value()}};
}

// Scale and inverse are rounded to f32, and so is what they give of the whole number, of f64 too. NaN counts as the lowest one.
Results fake_quantize(OpCall& c) {
  const float scale = static_cast<float>(c.number(1));
  const auto zero = static_cast<double>(c.constant(2)), low = static_cast<double>(c.constant(3)), high = static_cast<double>(c.constant(4));
  if (high - low > double{1 << 24}) return std::nullopt;  // more than f32 holds
  Expr x{c.b, c.b.cast(c.tensor(0), compute_dtype(c.result().dtype))}, q = apply(Op::round, x * double{1 / scale}) + zero;
  Expr kept = (select(is_nan(q), low, min(max(q, low), high)) - zero).to(DType::f32) * double{scale};
  return {{kept.to(c.result().dtype).value(), ((q >= low) & (q <= high)).value()}};
}

// On a GPU eager rounds each of its three results to low precision.
Expr tanh_backward(OpCall& c, std::span<const Expr> x) {
  const DType t = c.result().dtype;
  if (!is_on_gpu(c) || !is_low_precision(t)) return x[0] * multiply_add(-x[1], x[1], 1.0);
  const Expr y = x[1].to(t);
  return x[0].to(t) * (1.0 - y * y);
}

void add_unary_formulas(OpTable& t) {
  add_real(t, "frexp.Tensor", mantissa_and_exponent);
  add_real(t, "fake_quantize_per_tensor_affine_cachemask", fake_quantize);
  add_single(t, "nan_to_num", nan_to_num);
  add_formula(t, "square", {0}, [](OpCall&, std::span<const Expr> x) { return x[0] * x[0]; }, true);
  add_formula(t, "frac", {0}, [](OpCall&, std::span<const Expr> x) { return x[0] - apply(Op::trunc, x[0]); });
  add_formula(t, "deg2rad", {0}, [](OpCall&, std::span<const Expr> x) { return x[0] * (std::numbers::pi / 180); });
  add_formula(t, "rad2deg", {0}, [](OpCall&, std::span<const Expr> x) { return x[0] * (180 / std::numbers::pi); });
  add_formula(t, "angle", {0}, [](OpCall&, std::span<const Expr> x) {
    return select(is_nan(x[0]), x[0], select(x[0] < 0.0, x[0].number(std::numbers::pi), 0.0));
  });
  add_single(t, "logit special_logit", logit);
  add_formula(t, "logit_backward", {0, 1}, logit_backward);
  add_formula(t, "sinc special_sinc", {0}, sinc);
  add_formula(t, "special_entr", {0}, entropy);
  add_real(t, "round.decimals special_round", round_decimals);
  add_formula(t, "sigmoid_backward", {0, 1}, [](OpCall&, std::span<const Expr> x) { return x[0] * (1.0 - x[1]) * x[1]; });
  add_formula(t, "tanh_backward", {0, 1}, tanh_backward);
}

// ---- arithmetic ----

// The primitive on operands 0 and 1, both in type t.
Value binary(OpCall& c, Op op, DType t) { return broadcast(c.b, op, operand(c, 0, t), operand(c, 1, t)); }

// Eager multiplies and divides low precision by a number, or by a tensor without dimensions of another type, in f32.
DType arithmetic_dtype(OpCall& c) {
  DType t = c.result().dtype;
  for (size_t i : {0, 1})
    if (!c.is_tensor(i) || (c.tensor(i).rank() == 0 && c.tensor(i).dtype() != t)) return compute_dtype(t);
  return t;
}

// On booleans addition is `or` and multiplication is `and`.
Value arithmetic(GraphBuilder& b, Op op, Value x, Value y) {
  if (x.dtype() == DType::b1 && op == Op::add) op = Op::bit_or;
  if (x.dtype() == DType::b1 && op == Op::mul) op = Op::bit_and;
  return broadcast(b, op, x, y);
}

Scalar negated(const Scalar& s) {
  if (std::holds_alternative<double>(s)) return -as_double(s);
  return -as_int(s);
}

// left op right * alpha, where alpha is argument 2. Eager rounds numbers to the result's type (on a GPU to that which it computes in) but
// not the product, and adds -alpha times the operand that it subtracts.
Results scaled(OpCall& c, Op op, size_t left, size_t right) {
  DType t = c.result().dtype;
  bool known = !c.is_tensor(2);
  if (c.is_none(2) || (known && as_double(c.scalar(2)) == 1)) return {{arithmetic(c.b, op, operand(c, left, t), operand(c, right, t))}};
  auto wide = [&](size_t i) { return c.b.cast(operand(c, i, t), compute_dtype(t)); };
  const DType held = is_on_gpu(c) ? compute_dtype(t) : t;
  Value alpha =
      known ? c.b.constant(stored(op == Op::sub ? negated(c.scalar(2)) : c.scalar(2), held), held, c.result().device) : operand(c, 2, held);
  if (!known && op == Op::sub) alpha = c.b.unary(Op::neg, alpha);
  Value x = wide(left), y = wide(right), factor = c.b.cast(alpha, compute_dtype(t));
  if (is_floating(x.dtype())) return in_result_type(c, multiply_add({c.b, y}, {c.b, factor}, {c.b, x}));
  return in_result_type(c, {c.b, arithmetic(c.b, Op::add, x, arithmetic(c.b, Op::mul, y, factor))});
}

// A number, or a tensor without dimensions, as it is.
Value unrounded(OpCall& c, size_t i, DType t) { return c.is_tensor(i) ? c.b.cast(c.tensor(i), t) : number_operand(c, i, t); }

// On a CPU eager takes a single element on the right as it is, and rounds one on the left.
Results product(OpCall& c, Op op) {
  DType t = arithmetic_dtype(c);
  const bool is_single = !c.is_tensor(1) || c.tensor(1).rank() == 0;
  Value left = c.is_tensor(0) || is_on_gpu(c) ? operand(c, 0, t) : c.b.cast(number_operand(c, 0, c.result().dtype), t);
  return in_result_type(c, {c.b, arithmetic(c.b, op, left, is_single ? unrounded(c, 1, t) : operand(c, 1, t))});
}

// On a GPU eager multiplies by the inverse of a divisor that the host knows: computed in f64, rounded to the type of the computation.
Results quotient(OpCall& c) {
  const bool on_host = !c.is_tensor(1) || (c.tensor(1).rank() == 0 && c.tensor(1).type().device.kind == DeviceKind::cpu);
  if (!is_on_gpu(c) || !on_host) return product(c, Op::div);
  const DType t = compute_dtype(c.result().dtype);
  const Value divisor = c.is_tensor(1) ? c.number_f64(1) : operand(c, 1, DType::f64);
  const bool is_known = divisor.node->op == Op::scalar;
  const Value inverse = is_known ? c.b.constant(stored(1 / as_double(divisor.node->get<Scalar>(Attr::value)), t), t, c.result().device)
                                 : c.b.cast(c.b.unary(Op::reciprocal, divisor), t);
  return in_result_type(c, {c.b, broadcast(c.b, Op::mul, operand(c, 0, t), inverse)});
}

void add_arithmetic(OpTable& t) {
  add_real(t, "add.Tensor add.Scalar", [](OpCall& c) { return scaled(c, Op::add, 0, 1); });
  add_real(t, "sub.Tensor sub.Scalar subtract.Tensor subtract.Scalar", [](OpCall& c) { return scaled(c, Op::sub, 0, 1); });
  add_real(t, "rsub.Tensor rsub.Scalar", [](OpCall& c) { return scaled(c, Op::sub, 1, 0); });
  add_real(t, "mul.Tensor mul.Scalar multiply.Tensor multiply.Scalar", [](OpCall& c) { return product(c, Op::mul); });
  add_real(t, "div.Tensor div.Scalar divide.Tensor divide.Scalar true_divide.Tensor true_divide.Scalar", quotient);
}

// ---- division with rounding ----

// Eager raises an error where an integer is divided by zero, so only divisors known not to be zero have a lowering.
bool divides(OpCall& c, size_t i) {
  if (!c.is_tensor(i)) {
    SymInt n = c.integer(i);
    return n.is_constant() ? as_int(c.scalar(i)) != 0 : c.b.symbols().ask(0, Relation::lt, n);
  }
  const Node* n = c.tensor(i).node;
  while (is_view(n->op) && n->op != Op::pad && n->op != Op::cat) n = n->inputs[0].node;
  return n->op == Op::scalar && as_double(n->get<Scalar>(Attr::value)) != 0;
}

// Argument i as a divisor: where it may be zero, the call raises an error, as eager's does (which does not look on a GPU).
Value divisor(OpCall& c, size_t i, DType t) {
  Value y = operand(c, i, t);
  if (!is_integral(t) || is_on_gpu(c) || divides(c, i)) return y;
  // Reading past the end of a vector is what kernels report.
  Value zero = c.b.cast(with_number(c.b, Op::eq, y, int64_t{0}), DType::i64);
  return broadcast(c.b, Op::add, y, c.b.cast(take(c.b, positions(c.b, 1), zero, 0), t));
}

enum class Rounding { none, trunc, floor };

// Eager rounds low precision quotients before it truncates them, and takes the floor of those that it has not rounded.
Results divide(OpCall& c, Rounding rounding) {
  DType t = c.result().dtype;
  if (rounding == Rounding::none) return quotient(c);
  if (t == DType::b1) return std::nullopt;
  Value x = operand(c, 0, t), y = divisor(c, 1, t);
  // Eager rounds a single number no more than it computes, and then not the quotient either.
  if (is_low_precision(t) && (!c.is_tensor(1) || c.tensor(1).rank() == 0)) {
    const Expr wide{c.b, c.b.cast(x, compute_dtype(t))}, by{c.b, unrounded(c, 1, compute_dtype(t))};
    return in_result_type(c, rounding == Rounding::floor ? apply(Op::floor_div, wide, by) : apply(Op::trunc, apply(Op::div, wide, by)));
  }
  if (rounding == Rounding::floor) return {{broadcast(c.b, Op::floor_div, x, y)}};
  Expr q = rounded({c.b, broadcast(c.b, Op::div, x, y)});
  return {{is_floating(t) ? c.b.unary(Op::trunc, q.value()) : q.value()}};
}

Results divide_mode(OpCall& c) {
  if (c.is_none(2)) return divide(c, Rounding::none);
  return divide(c, c.text(2) == "floor" ? Rounding::floor : Rounding::trunc);
}

Results remainder(OpCall& c, bool like_python) {
  DType t = compute_dtype(c.result().dtype);
  if (t == DType::b1) return std::nullopt;
  // A number is rounded to the tensor's type first.
  Expr x = Expr{c.b, operand(c, 0, c.result().dtype)}.to(t), y = Expr{c.b, divisor(c, 1, c.result().dtype)}.to(t);
  if (is_integral(t)) return {{apply(like_python ? Op::mod : Op::fmod, x, y).value()}};
  Expr r = apply(Op::fmod, x, y);
  // Not the primitive `mod`: a remainder of zero keeps the sign of the dividend.
  if (like_python) r = select(unequal(r, 0.0) & unequal((y < 0.0).to(t), (r < 0.0).to(t)), r + y, r);
  return in_result_type(c, r);
}

void add_division(OpTable& t) {
  add_real(t, "div.Tensor_mode div.Scalar_mode divide.Tensor_mode divide.Scalar_mode", divide_mode);
  add_real(t, "floor_divide floor_divide.Scalar", [](OpCall& c) { return divide(c, Rounding::floor); });
  add_real(t, "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor", [](OpCall& c) { return remainder(c, true); });
  add_real(t, "fmod.Tensor fmod.Scalar", [](OpCall& c) { return remainder(c, false); });
}

// ---- powers ----

// The exponents for which eager has its own kernels; they differ from pow at infinities and zeros.
std::optional<Expr> special_power(const Expr& x, double exponent, bool roots) {
  if (exponent == 0) return Expr{x.builder(), x.builder().full(x.value().shape(), 1.0, x.dtype(), x.value().type().device)};
  if (exponent == 1) return x;
  if (exponent == 2) return x * x;
  if (exponent == 3) return x * x * x;
  if (exponent == -2 && is_floating(x.dtype())) return 1.0 / (x * x);
  if (!roots) return std::nullopt;
  if (exponent == 0.5) return apply(Op::sqrt, x);
  if (exponent == -0.5) return apply(Op::rsqrt, x);
  if (exponent == -1) return apply(Op::reciprocal, x);
  return std::nullopt;
}

Results power_to_number(OpCall& c) {
  DType t = c.result().dtype;
  Expr x{c.b, operand(c, 0, compute_dtype(t))};
  const bool roots = is_floating(t) && (t != DType::f16 || is_on_gpu(c));
  if (auto r = special_power(x, c.number(1), roots)) return in_result_type(c, *r);
  return {{binary(c, Op::pow, t)}};
}

Results power(OpCall& c) {
  DType t = c.result().dtype;
  // Which of eager's kernels computes a power by a number depends on the number.
  if (t == DType::b1 || c.is_run_time_number(0) || c.is_run_time_number(1)) return std::nullopt;
  if (!c.is_tensor(1)) return power_to_number(c);
  if (!c.is_tensor(0) && c.number(0) == 1) return {{c.b.full(c.tensor(1).shape(), stored(1.0, t), t, c.result().device)}};
  return {{binary(c, Op::pow, t)}};
}

// ---- other binary operations ----

constexpr Row kBinary[] = {
    {Op::atan2, "atan2 arctan2"},
    {Op::hypot, "hypot"},
    {Op::copysign, "copysign.Tensor copysign.Scalar"},
};

// The neighbour of x towards y, by the bits: what is computed in f32 has neighbours of its own.
Value next_of_16_bits(OpCall& c) {
  const DType t = c.result().dtype;
  const Expr x{c.b, operand(c, 0, t)}, y{c.b, operand(c, 1, t)};
  auto as = [&](const Expr& e, DType to) { return Expr{c.b, c.b.emit(Op::bitcast, {e.value()}, {{Attr::dtype, to}})}; };
  auto bits = [&](int64_t n) { return Expr{c.b, c.b.constant(n, DType::i16, c.result().device)}; };
  const Expr outwards = select(((x > 0.0) & (y > x)) | ((x <= 0.0) & (y <= x)), bits(1), bits(-1));
  const Expr smallest = as(select(y > 0.0, bits(1), bits(-32767)), t);
  const Expr moved = select(equal(x, 0.0), smallest, as(as(x, DType::i16) + outwards, t));
  return select(is_nan(x) | is_nan(y), x + y, select(equal(x, y), y, moved)).value();
}

Expr log_add_exp(const Expr& x, const Expr& y, Op power, double scale) {
  Expr most = max(x, y), rest = log1p(apply(power, -abs(x - y)));
  Expr sum = most + (scale == 1 ? rest : rest * scale);
  return select(equal(x, y) & equal(abs(x), kInfinity), x, sum);
}

// Not in compute_dtype: eager rounds the logarithm.
Value x_log_y(OpCall& c, Op logarithm) {
  DType t = c.result().dtype;
  Expr x{c.b, operand(c, 0, t)}, y{c.b, operand(c, 1, t)};
  return select(is_nan(y), y, select(equal(x, 0.0), 0.0, x * apply(logarithm, y))).value();
}

Value number_maximum(OpCall& c, Op op) {
  Expr x{c.b, operand(c, 0, c.result().dtype)}, y{c.b, operand(c, 1, c.result().dtype)};
  if (x.dtype() == DType::b1) return apply(op == Op::max ? Op::bit_or : Op::bit_and, x, y).value();
  Expr most = apply(op, x, y);
  return (is_floating(x.dtype()) ? select(is_nan(x), y, select(is_nan(y), x, most)) : most).value();
}

Value extremum(OpCall& c, Op op) {
  DType t = c.result().dtype;
  if (t == DType::b1) op = op == Op::max ? Op::bit_or : Op::bit_and;
  return binary(c, op, t);
}

Value heaviside(OpCall& c) {
  DType t = c.result().dtype;
  Value x = operand(c, 0, t), y = operand(c, 1, t), zero = c.b.constant(stored(0.0, t), t);
  Expr step{c.b, c.b.cast(broadcast(c.b, Op::gt, x, zero), t)};
  return select({c.b, broadcast(c.b, Op::eq, x, zero)}, {c.b, y}, step).value();
}

Results is_close(OpCall& c) {
  Promotion p;
  for (size_t i : {0, 1}) p.add(c.tensor(i));
  p.add(Scalar(1.0));
  // Eager compares integers in the default floating type and everything in the operands' type, rounding each step.
  DType t = p.result();
  if (is_low_precision(t)) return std::nullopt;
  Expr x{c.b, operand(c, 0, t)}, y{c.b, operand(c, 1, t)};
  double relative = c.number_or(2, 1e-5), absolute = c.number_or(3, 1e-8);
  Expr close = equal(x, y);
  if (c.flag(4)) close = close | (is_nan(x) & is_nan(y));
  if (relative == 0 && absolute == 0) return {{close.value()}};
  Expr distance = abs(x - y);
  return {{(close | ((distance < kInfinity) & (distance <= absolute + abs(y * relative)))).value()}};
}

void add_binary(OpTable& t) {
  add_single(t, "nextafter", [](OpCall& c) {
    const DType type = c.result().dtype;
    return is_low_precision(type) ? next_of_16_bits(c) : binary(c, Op::nextafter, type);
  });
  for (const auto& [op, names] : kBinary) add_single(t, names, [op = op](OpCall& c) { return binary(c, op, c.result().dtype); });
  add_single(t, "maximum max.other", [](OpCall& c) { return extremum(c, Op::max); });
  add_single(t, "minimum min.other", [](OpCall& c) { return extremum(c, Op::min); });
  add_single(t, "fmax", [](OpCall& c) { return number_maximum(c, Op::max); });
  add_single(t, "fmin", [](OpCall& c) { return number_maximum(c, Op::min); });
  add_real(t, "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar float_power.Tensor_Scalar float_power.Tensor_Tensor float_power.Scalar",
           power);
  add_single(t, "heaviside", heaviside);
  add_single(t, "ldexp.Tensor", [](OpCall& c) {
    DType result = c.result().dtype;
    if (!is_floating(result)) return Value{};
    // Eager's product with a power, which may overflow.
    if (const DType exponent = c.tensor(1).dtype(); is_floating(exponent) || !is_floating(c.tensor(0).dtype())) {
      const DType own = is_floating(exponent) ? exponent : result;
      const Expr power = apply(Op::exp2, Expr{c.b, operand(c, 1, compute_dtype(own))}).to(own).to(compute_dtype(result));
      return c.b.cast((Expr{c.b, operand(c, 0, compute_dtype(result))} * power).value(), result);
    }
    // In steps that are powers of two themselves: 0.1 * 2^130 is a number in f32.
    const DType t = compute_dtype(result);
    const Expr most = Expr{c.b, c.b.constant(t == DType::f64 ? 2100.0 : 280.0, t)},
               asked{c.b, c.b.cast(operand(c, 1, DType::i32), t)};  // as eager's function of C takes it
    const Expr exponent = max(min(asked, most), -most), third = apply(Op::trunc, exponent * (1.0 / 3));
    const Expr step = apply(Op::exp2, third), last = apply(Op::exp2, exponent - third - third);
    return c.b.cast((Expr{c.b, operand(c, 0, t)} * step * step * last).value(), result);
  });
  add_real(t, "isclose", is_close);
  add_formula(t, "logaddexp", {0, 1}, [](OpCall&, std::span<const Expr> x) { return log_add_exp(x[0], x[1], Op::exp, 1); });
  add_formula(t, "logaddexp2", {0, 1},
              [](OpCall&, std::span<const Expr> x) { return log_add_exp(x[0], x[1], Op::exp2, std::numbers::log2e); });
  add_single(t, "xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other special_xlogy special_xlogy.self_scalar special_xlogy.other_scalar",
             [](OpCall& c) { return x_log_y(c, Op::log); });
  add_single(t, "special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar",
             [](OpCall& c) { return x_log_y(c, Op::log1p); });
}

// ---- comparisons and logic ----

constexpr Row kComparisons[] = {
    {Op::eq, "eq.Tensor eq.Scalar"},
    {Op::ne, "ne.Tensor ne.Scalar not_equal.Tensor not_equal.Scalar"},
    {Op::lt, "lt.Tensor lt.Scalar less.Tensor less.Scalar"},
    {Op::le, "le.Tensor le.Scalar less_equal.Tensor less_equal.Scalar"},
    {Op::gt, "gt.Tensor gt.Scalar greater.Tensor greater.Scalar"},
    {Op::ge, "ge.Tensor ge.Scalar greater_equal.Tensor greater_equal.Scalar"},
};

// The type in which operands 0 and 1 are compared; nothing for complex numbers.
std::optional<DType> common_dtype(OpCall& c) {
  Promotion p;
  for (size_t i : {0, 1}) {
    if (c.is_tensor(i)) p.add(c.tensor(i));
    else if (!c.integer(i).is_constant()) p.add(Scalar(int64_t{0}));
    else p.add(c.scalar(i));
  }
  return is_complex(p.result()) ? std::nullopt : std::optional(p.result());
}

Results compare(OpCall& c, Op op) {
  auto t = common_dtype(c);
  if (!t) return std::nullopt;
  return {{binary(c, op, *t)}};
}

constexpr Row kLogical[] = {{Op::bit_and, "logical_and"}, {Op::bit_or, "logical_or"}, {Op::bit_xor, "logical_xor"}};

constexpr Row kBitwise[] = {
    {Op::bit_and, "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor __and__.Tensor __and__.Scalar"},
    {Op::bit_or, "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor __or__.Tensor __or__.Scalar"},
    {Op::bit_xor, "bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor __xor__.Tensor __xor__.Scalar"},
};

// A shift by the width or more, or by a negative number, gives what is left when all bits have gone.
Results shift(OpCall& c, Op op) {
  DType t = c.result().dtype;
  if (!is_integral(t)) return std::nullopt;
  int64_t width = size_of(t) * 8;
  Expr x{c.b, operand(c, 0, t)}, y{c.b, operand(c, 1, t)};
  if (!c.is_tensor(1) && c.number(1) >= 0 && c.number(1) < static_cast<double>(width)) return {{apply(op, x, y).value()}};
  Expr inside = (y >= 0.0) & (y < static_cast<double>(width));
  if (op == Op::shl) return {{select(inside, apply(op, x, select(inside, y, 0.0)), 0.0).value()}};
  Expr far = apply(op, x, select(inside, y, static_cast<double>(width - 1)));
  return {{(t == DType::u8 ? select(inside, far, 0.0) : far).value()}};
}

void add_comparisons(OpTable& t) {
  for (const auto& [op, names] : kComparisons) add_real(t, names, [op = op](OpCall& c) { return compare(c, op); });
  for (const auto& [op, names] : kLogical) add_single(t, names, [op = op](OpCall& c) { return binary(c, op, DType::b1); });
  for (const auto& [op, names] : kBitwise) add_single(t, names, [op = op](OpCall& c) { return binary(c, op, c.result().dtype); });
  add_real(
      t, "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor __lshift__.Tensor __lshift__.Scalar",
      [](OpCall& c) { return shift(c, Op::shl); });
  add_real(
      t,
      "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor __rshift__.Tensor __rshift__.Scalar",
      [](OpCall& c) { return shift(c, Op::shr); });
}

// ---- three operands ----

Value where(OpCall& c) {
  DType t = c.result().dtype;
  Expr condition{c.b, operand(c, 0, DType::b1)};
  return select(condition, {c.b, operand(c, 1, t)}, {c.b, operand(c, 2, t)}).value();
}

// A number among the data that the elements' type may not hold is an error of eager's.
Value masked_fill(OpCall& c) {
  const bool is_among_data = c.is_tensor(2) && !c.is_number(2);
  if (is_among_data && c.tensor(2).dtype() != c.tensor(0).dtype()) return {};
  Expr mask{c.b, operand(c, 1, DType::b1)}, x{c.b, c.tensor(0)};
  return select(mask, {c.b, operand(c, 2, x.dtype())}, x).value();
}

// min(max(x, low), high), where low and high are arguments; positions past the last mean no bound.
Value clamp(OpCall& c, size_t low, size_t high) {
  DType t = c.result().dtype;
  Value x = operand(c, 0, t);
  if (!c.is_none(low)) x = broadcast(c.b, Op::max, x, operand(c, low, t));
  if (!c.is_none(high)) x = broadcast(c.b, Op::min, x, operand(c, high, t));
  return x;
}

// Eager's kernel for one number on a GPU passes over one that is NaN.
Value clamp_to_numbers(OpCall& c) {
  const Value clamped = clamp(c, 1, 2);
  const size_t bound = c.is_none(1) ? 2 : 1;
  const DType t = c.result().dtype;
  if (!is_on_gpu(c) || !is_floating(t) || !c.is_none(3 - bound) || c.is_none(bound)) return clamped;
  if (!c.is_run_time_number(bound)) return std::isnan(c.number(bound)) ? operand(c, 0, t) : clamped;
  return select(is_nan({c.b, operand(c, bound, t)}), {c.b, operand(c, 0, t)}, {c.b, clamped}).value();
}

// Two forms, so that the weights 0 and 1 both give an end exactly.
Expr lerp(OpCall& c, std::span<const Expr> x) {
  const Expr &start = x[0], &end = x[1], &weight = x[2];
  Expr span = end - start;
  auto low = [&] { return multiply_add(weight, span, start); };
  auto high = [&] { return multiply_add(weight - 1.0, span, end); };
  if (!c.is_tensor(2)) return std::abs(c.number(2)) < 0.5 ? low() : high();
  return select(abs(weight) < 0.5, low(), high());
}

// The number times the first, or on a GPU times both.
Expr add_product(OpCall& c, std::span<const Expr> x, Op op) {
  const bool scales = !c.is_none(3) && (c.is_tensor(3) || as_double(c.scalar(3)) != 1);
  auto number = [&] { return Expr{c.b, operand(c, 3, x[1].dtype())}; };
  if (scales && is_on_gpu(c)) return multiply_add(number(), apply(op, x[1], x[2]), x[0]);
  const Expr first = scales ? number() * x[1] : x[1];
  return op == Op::mul ? multiply_add(first, x[2], x[0]) : x[0] + apply(op, first, x[2]);
}

void add_ternary(OpTable& t) {
  constexpr size_t none = 99;
  add_single(t, "where.self where.Scalar where.ScalarOther where.ScalarSelf", where);
  add_single(t, "masked_fill.Scalar masked_fill.Tensor", masked_fill);
  add_single(t, "clamp clip", clamp_to_numbers);
  add_single(t, "clamp.Tensor clip.Tensor hardtanh", [](OpCall& c) { return clamp(c, 1, 2); });
  add_single(t, "clamp_min clamp_min.Tensor", [](OpCall& c) { return clamp(c, 1, none); });
  add_single(t, "clamp_max clamp_max.Tensor", [](OpCall& c) { return clamp(c, none, 1); });
  add_formula(t, "lerp.Scalar lerp.Tensor", {0, 1, 2}, lerp);
  add_formula(t, "addcmul", {0, 1, 2}, [](OpCall& c, std::span<const Expr> x) { return add_product(c, x, Op::mul); }, true);
  add_formula(t, "addcdiv", {0, 1, 2}, [](OpCall& c, std::span<const Expr> x) { return add_product(c, x, Op::div); });
}

// ---- casts ----

// A copy to another device is no cast, and stays with the host.
Value converted(OpCall& c, Value x) {
  const bool is_real = !is_complex(x.dtype()) && !is_complex(c.result().dtype);
  return is_real && x.type().device.kind == c.result().device.kind ? c.b.cast(x, c.result().dtype) : Value{};
}

void add_casts(OpTable& t) {
  add_single_moving(
      t,
      "_to_copy to.device to.dtype to.other to.dtype_layout type_as _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half "
      "_cast_Int _cast_Long _cast_Short _autocast_to_full_precision _autocast_to_reduced_precision",
      [](OpCall& c) { return converted(c, c.tensor(0)); });
  add_single_moving(t, "copy", [](OpCall& c) {
    Value v = converted(c, c.tensor(1));
    return v ? broadcast_to(c.b, v, c.tensor(0).shape()) : v;
  });
}

}  // namespace

void add_pointwise_ops(OpTable& t) {
  add_unary(t);
  add_predicates(t);
  add_unary_formulas(t);
  add_arithmetic(t);
  add_division(t);
  add_binary(t);
  add_comparisons(t);
  add_ternary(t);
  add_casts(t);
  add_activation_ops(t);
  add_loss_ops(t);
  add_foreach_ops(t);
  add_special_ops(t);
  add_bessel_ops(t);
}

}  // namespace broach
