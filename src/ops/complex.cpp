#include "ops/complex.h"

#include <cmath>
#include <numbers>

#include "support/error.h"

namespace broach {

// ---- bits ----

namespace {

DType integer_of(DType t) {
  switch (size_of(t)) {
    case 1: return DType::u8;
    case 2: return DType::i16;
    case 4: return DType::i32;
    default: return DType::i64;
  }
}

Value bitcast(GraphBuilder& b, Value x, DType t) { return x.dtype() == t ? x : b.emit(Op::bitcast, {x}, {{Attr::dtype, t}}); }

// The elements that x's bits are, the lowest first.
std::vector<Value> bit_parts(GraphBuilder& b, Value x, DType t) {
  int64_t size = size_of(t), count = size_of(x.dtype()) / size;
  Value bits = bitcast(b, x, integer_of(x.dtype()));
  std::vector<Value> out;
  for (int64_t i = 0; i < count; ++i) {
    Value part = i ? with_number(b, Op::shr, bits, 8 * size * i) : bits;
    out.push_back(bitcast(b, b.cast(part, integer_of(t)), t));
  }
  return out;
}

Value from_bit_parts(GraphBuilder& b, const std::vector<Value>& parts, DType t) {
  int64_t size = size_of(parts[0].dtype());
  DType wide = integer_of(t);
  Value bits;
  for (size_t i = 0; i < parts.size(); ++i) {
    Value part = b.cast(bitcast(b, parts[i], integer_of(parts[i].dtype())), wide);
    // Bytes widen without a sign.
    if (size > 1 && i + 1 < parts.size()) part = with_number(b, Op::bit_and, part, (int64_t{1} << (8 * size)) - 1);
    if (i) part = with_number(b, Op::shl, part, 8 * size * static_cast<int64_t>(i));
    bits = bits ? b.binary(Op::bit_or, bits, part) : part;
  }
  return bitcast(b, bits, t);
}

Value stacked(GraphBuilder& b, std::vector<Value> parts) {
  for (Value& p : parts) p = unsqueeze(b, p, p.rank());
  return concat(b, parts, parts[0].rank() - 1);
}

// The elements of the last dimension, each as a tensor without it.
std::vector<Value> unstacked(GraphBuilder& b, Value x, int64_t count) {
  std::vector<Value> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(squeeze(b, narrow(b, x, x.rank() - 1, i, 1), x.rank() - 1));
  return out;
}

}  // namespace

bool has_bits(DType t) { return t != DType::opaque && t != DType::b1 && size_of(t) <= 8; }

Value split_bits(GraphBuilder& b, Value x, DType narrow) {
  Shape shape = x.shape();
  shape.back() = shape.back() * SymInt(size_of(x.dtype()) / size_of(narrow));
  return b.reshape(stacked(b, bit_parts(b, x, narrow)), shape);
}

Value join_bits(GraphBuilder& b, Value x, DType wide) {
  int64_t count = size_of(wide) / size_of(x.dtype());
  Shape shape = x.shape();
  shape.back() = floordiv(shape.back(), count);
  shape.push_back(count);
  Value grouped = reshape_guarded(b, x, shape);
  if (!grouped) unsupported(x.type().str(), " has no whole number of elements of ", name_of(wide));
  return from_bit_parts(b, unstacked(b, grouped, count), wide);
}

// ---- pairs ----

Value pairs_of(GraphBuilder& b, Value x) { return stacked(b, bit_parts(b, x, DType::f32)); }
Value complex_of(GraphBuilder& b, Value x) { return from_bit_parts(b, unstacked(b, x, 2), DType::c64); }

Complex parts(GraphBuilder& b, Value x) {
  if (x.dtype() == DType::c64) {
    auto p = bit_parts(b, x, DType::f32);
    return {{b, p[0]}, {b, p[1]}};
  }
  if (is_complex(x.dtype())) unsupported("no formulas for ", x.type().str());
  return {{b, b.cast(x, DType::f32)}, {b, b.full(x.shape(), 0.0, DType::f32)}};
}

Value packed(const Complex& z) {
  GraphBuilder& b = z.re.builder();
  Shape shape = b.broadcast(z.re.value().shape(), z.im.value().shape());
  return from_bit_parts(b, {broadcast_to(b, z.re.value(), shape), broadcast_to(b, z.im.value(), shape)}, DType::c64);
}

// Both only change signs, which NaN has too.
Value conj(GraphBuilder& b, Value x) {
  return bitcast(b, with_number(b, Op::bit_xor, bitcast(b, x, DType::i64), std::numeric_limits<int64_t>::min()), DType::c64);
}
Value neg(GraphBuilder& b, Value x) {
  constexpr int64_t both = std::numeric_limits<int64_t>::min() | int64_t{1} << 31;
  return bitcast(b, with_number(b, Op::bit_xor, bitcast(b, x, DType::i64), both), DType::c64);
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- arithmetic ----

Expr like(const Expr& x, double n) { return {x.builder(), x.builder().full(x.value().shape(), n, x.dtype())}; }

Complex operator+(const Complex& x, const Complex& y) { return {x.re + y.re, x.im + y.im}; }
Complex operator-(const Complex& x, const Complex& y) { return {x.re - y.re, x.im - y.im}; }
Complex operator*(const Complex& x, const Complex& y) { return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re}; }
Complex operator*(const Complex& x, const Expr& k) { return {x.re * k, x.im * k}; }
Complex times_i(const Complex& x) { return {-x.im, x.re}; }
Complex over_i(const Complex& x) { return {x.im, -x.re}; }

// Smith's (Algorithm 116: Complex division, CACM 5(8), 1962), which scales by the larger part of the divisor, and each part alone by a
// divisor of 0, as libtorch does on every device.
Complex operator/(const Complex& x, const Complex& y) {
  const Expr c = abs(y.re), d = abs(y.im), is_real = c >= d, is_zero = equal(c, 0.0) & equal(d, 0.0);
  const Expr most = select(is_real, y.re, y.im), least = select(is_real, y.im, y.re), ratio = least / most;
  const Expr scale = like(c, 1) / (most + least * ratio);
  const Expr re = select(is_real, x.re + x.im * ratio, x.re * ratio + x.im);
  const Expr im = select(is_real, x.im - x.re * ratio, x.im * ratio - x.re);
  return {select(is_zero, x.re / c, re * scale), select(is_zero, x.im / c, im * scale)};
}

Expr magnitude(const Complex& x) { return apply(Op::hypot, x.re, x.im); }
Expr phase(const Complex& x) { return apply(Op::atan2, x.im, x.re); }
Expr not_zero(const Complex& x) { return unequal(x.re, 0.0) | unequal(x.im, 0.0); }
Complex choose(const Expr& condition, const Complex& x, const Complex& y) {
  return {select(condition, x.re, y.re), select(condition, x.im, y.im)};
}

Complex number(const Complex& z, double re, double im = 0) { return {like(z.re, re), like(z.re, im)}; }

// ---- functions ----

Complex reciprocal(const Complex& z) { return number(z, 1) / z; }

Complex polar(const Expr& r, const Expr& angle) { return {r * apply(Op::cos, angle), r * apply(Op::sin, angle)}; }

// An imaginary part of 0 keeps its sign, whatever the real part. An infinite real part decides alone where the imaginary part
// is infinite or NaN (C11, G.6.3.1).
Complex exp(const Complex& z) {
  const Expr e = exp(z.re), turns = abs(z.im) < kInfinity, is_real = equal(z.im, 0.0), is_end = equal(abs(z.re), kInfinity);
  return {select(is_real | (is_end & !turns), e, e * apply(Op::cos, z.im)),
          select(is_real, z.im, select(equal(z.re, -kInfinity) & !turns, 0.0, e * apply(Op::sin, z.im)))};
}

Complex log(const Complex& z) { return {log(magnitude(z)), phase(z)}; }

// Halves are added, whose sum does not overflow; an infinite imaginary part makes both infinite.
Complex sqrt(const Complex& z) {
  Expr root = apply(Op::sqrt, magnitude(z) * 0.5 + abs(z.re) * 0.5), other = select(equal(root, 0.0), 0.0, abs(z.im) / (root * 2.0));
  other = select(equal(abs(z.im), kInfinity), kInfinity, other);
  Expr right = z.re >= 0.0, im = select(right, other, root);
  return {select(right, root, other), apply(Op::copysign, im, z.im)};
}

// An imaginary part of 0 is one, however large the factor of its sine.
Complex sinh(const Complex& z) {
  Expr im = select(equal(z.im, 0.0), z.im, apply(Op::cosh, z.re) * apply(Op::sin, z.im));
  return {apply(Op::sinh, z.re) * apply(Op::cos, z.im), im};
}
Complex cosh(const Complex& z) {
  Expr zero = z.im * apply(Op::copysign, like(z.re, 1), z.re);
  return {apply(Op::cosh, z.re) * apply(Op::cos, z.im), select(equal(z.im, 0.0), zero, apply(Op::sinh, z.re) * apply(Op::sin, z.im))};
}
Complex sin(const Complex& z) { return over_i(sinh(times_i(z))); }
Complex cos(const Complex& z) { return cosh(times_i(z)); }

// With t = tan(im): (tanh(re)(1 + t^2) + i t (1 - tanh(re)^2)) / (1 + tanh(re)^2 t^2), by cos and sin so that t may be infinite.
Complex tanh(const Complex& z) {
  Expr h = tanh(z.re), c = apply(Op::cos, z.im), s = apply(Op::sin, z.im), hs = h * s, square = c * c + hs * hs;
  Expr sech = 1.0 / apply(Op::cosh, z.re);
  return {h / square, s * c * (sech * sech) / square};
}
Complex tan(const Complex& z) { return over_i(tanh(times_i(z))); }

// 1 + z and 1 - z with the sign of an imaginary part of 0, which says on which side of a branch cut z lies.
Complex one_plus(const Complex& z) { return {z.re + 1.0, z.im}; }
Complex one_minus(const Complex& z) { return {1.0 - z.re, -z.im}; }

// Kahan, "Branch cuts for complex elementary functions".
Complex acos(const Complex& z) {
  Complex low = sqrt(one_minus(z)), high = sqrt(one_plus(z));
  return {2.0 * apply(Op::atan2, low.re, high.re), apply(Op::asinh, high.re * low.im - high.im * low.re)};
}
Complex asin(const Complex& z) {
  Complex low = sqrt(one_minus(z)), high = sqrt(one_plus(z));
  return {apply(Op::atan2, z.re, low.re * high.re - low.im * high.im), apply(Op::asinh, low.re * high.im - low.im * high.re)};
}
Complex acosh(const Complex& z) {
  Complex low = sqrt(Complex{z.re - 1.0, z.im}), high = sqrt(one_plus(z));
  return {apply(Op::asinh, low.re * high.re + low.im * high.im), 2.0 * apply(Op::atan2, low.im, high.re)};
}
Complex asinh(const Complex& z) { return over_i(asin(times_i(z))); }
Complex atanh(const Complex& z) {
  // The real part is odd; of a positive one the logarithm loses nothing. Near 1 its argument overflows, and squares of what is far away.
  Expr x = abs(z.re), y = z.im, near = apply(Op::hypot, 1.0 - x, y), far = apply(Op::hypot, 1.0 + x, y);
  Expr re = select(near < 0.5, 0.5 * (log(far) - log(near)), 0.25 * log1p(4.0 * x / near / near));
  re = select(equal(near, kInfinity), 0.0, re);
  return {apply(Op::copysign, re, z.re), 0.5 * (apply(Op::atan2, y, 1.0 + x) + apply(Op::atan2, y, 1.0 - x))};
}
Complex atan(const Complex& z) { return over_i(atanh(times_i(z))); }

// Near 0 the logarithm of the magnitude loses everything, and far from it, near -1 for example, what its square is beyond 1 does. As c10's.
Complex log1p(const Complex& z) {
  const Complex whole = one_plus(z);
  const Expr beyond = z.re * (z.re + 2.0) + z.im * z.im, near = select(equal(beyond, 0.0), z.re, 0.5 * log1p(beyond));
  return {select(magnitude(z) < 0.5, near, log(magnitude(whole))), phase(whole)};
}
// exp(re) cos(im) - 1 = expm1(re) cos(im) - 2 sin(im / 2)^2
Complex expm1(const Complex& z) {
  Expr half = apply(Op::sin, z.im * 0.5);
  return {expm1(z.re) * apply(Op::cos, z.im) - 2.0 * half * half, exp(z.re) * apply(Op::sin, z.im)};
}

Complex sign(const Complex& z) {
  Expr m = magnitude(z);
  return choose(equal(m, 0.0), number(z, 0), {z.re / m, z.im / m});
}

Complex sigmoid(const Complex& z) { return reciprocal(number(z, 1) + exp(Complex{-z.re, -z.im})); }

Complex sinc(const Complex& z) {
  Complex turn = z * like(z.re, std::numbers::pi);
  return choose(not_zero(z), sin(turn) / turn, number(z, 1));
}

Complex power(const Complex& x, const Complex& y) { return exp(log(x) * y); }

using Function = Complex (*)(const Complex&);
struct FunctionRow {
  const char* names;
  Function f;
};
constexpr FunctionRow kFunctions[] = {
    {"exp", exp},
    {"exp2 special_exp2", [](const Complex& z) { return exp(z * like(z.re, std::numbers::ln2)); }},
    {"expm1 special_expm1", expm1},
    {"log", log},
    {"log2", [](const Complex& z) { return log(z) * like(z.re, std::numbers::log2e); }},
    {"log10", [](const Complex& z) { return log(z) * like(z.re, std::numbers::log10e); }},
    {"log1p special_log1p", log1p},
    {"sqrt", sqrt},
    {"rsqrt", [](const Complex& z) { return reciprocal(sqrt(z)); }},
    {"reciprocal", reciprocal},
    {"square", [](const Complex& z) { return z * z; }},
    {"sin", sin},
    {"cos", cos},
    {"tan", tan},
    {"sinh", sinh},
    {"cosh", cosh},
    {"tanh", tanh},
    {"asin arcsin", asin},
    {"acos arccos", acos},
    {"atan arctan", atan},
    {"asinh arcsinh", asinh},
    {"acosh arccosh", acosh},
    {"atanh arctanh", atanh},
    {"sgn", sign},
    {"sigmoid special_expit", sigmoid},
    {"silu", [](const Complex& z) { return z * sigmoid(z); }},
    {"sinc special_sinc", sinc},
};

// ---- calls ----

// The tensor or number at position i.
Complex argument(OpCall& c, size_t i) {
  const Value given = c.is_tensor(i) ? c.tensor(i) : Value{};
  // A number may be another one in each call.
  if (given && !(c.is_number(i) && given.node->op == Op::scalar)) return parts(c.b, given);
  Scalar s = given ? given.node->get<Scalar>(Attr::value) : c.scalar(i);
  std::complex<double> z = is_complex(s) ? std::get<std::complex<double>>(s) : std::complex<double>(as_double(s));
  return {{c.b, c.b.constant(z.real(), DType::f32)}, {c.b, c.b.constant(z.imag(), DType::f32)}};
}

Value result(OpCall& c, const Complex& z) { return c.result().dtype == DType::c64 ? packed(z) : Value{}; }

using ComplexLowering = std::function<Value(OpCall&)>;

// Entries for calls with a complex tensor among operands or results, beside those that the names have for real ones.
void add_one(OpTable& t, std::string_view names, ComplexLowering lowering) {
  t.add_complex(names, [lowering = std::move(lowering)](OpCall& c) -> Results {
    Value v = lowering(c);
    if (!v || v.dtype() != c.result().dtype || v.rank() != c.result().rank()) return std::nullopt;
    return std::vector{v};
  });
}

// x + y * alpha or x - y * alpha.
Complex sum_of(OpCall& c, size_t left, size_t right, bool minus) {
  Complex y = argument(c, right);
  if (!c.is_none(2)) y = y * argument(c, 2);
  return minus ? argument(c, left) - y : argument(c, left) + y;
}

void add_arithmetic(OpTable& t) {
  add_one(t, "add.Tensor add.Scalar", [](OpCall& c) { return result(c, sum_of(c, 0, 1, false)); });
  add_one(t, "sub.Tensor sub.Scalar subtract.Tensor subtract.Scalar", [](OpCall& c) { return result(c, sum_of(c, 0, 1, true)); });
  add_one(t, "rsub.Tensor rsub.Scalar", [](OpCall& c) { return result(c, sum_of(c, 1, 0, true)); });
  add_one(t, "mul.Tensor mul.Scalar multiply.Tensor multiply.Scalar", [](OpCall& c) { return result(c, argument(c, 0) * argument(c, 1)); });
  add_one(t, "div.Tensor div.Scalar divide.Tensor divide.Scalar true_divide.Tensor true_divide.Scalar",
          [](OpCall& c) { return result(c, argument(c, 0) / argument(c, 1)); });
  add_one(t, "addcmul", [](OpCall& c) {
    Complex first = c.is_none(3) ? argument(c, 1) : argument(c, 3) * argument(c, 1);  // in eager's order, which shows where it overflows
    return result(c, argument(c, 0) + first * argument(c, 2));
  });
  add_one(t, "addcdiv", [](OpCall& c) {
    Complex first = c.is_none(3) ? argument(c, 1) : argument(c, 3) * argument(c, 1);
    return result(c, argument(c, 0) + first / argument(c, 2));
  });
  add_one(t, "lerp.Scalar lerp.Tensor", [](OpCall& c) {
    Complex start = argument(c, 0), end = argument(c, 1), weight = argument(c, 2), span = end - start;
    Expr near = magnitude(weight) < 0.5;
    return result(c, choose(near, start + weight * span, end - span * (number(weight, 1) - weight)));
  });
  add_one(t, "ldexp.Tensor", [](OpCall& c) {
    return c.tensor(1).dtype() == DType::c64 ? Value{} : result(c, argument(c, 0) * apply(Op::exp2, parts(c.b, c.tensor(1)).re));
  });
  add_one(t, "linalg_cross", [](OpCall& c) {
    Shape shape = c.b.broadcast(c.tensor(0).shape(), c.tensor(1).shape());
    int64_t dim = c.is_none(2) ? static_cast<int64_t>(shape.size()) - 1 : c.dim(2, static_cast<int>(shape.size()));
    auto component = [&](size_t i, int64_t k) { return parts(c.b, narrow(c.b, broadcast_to(c.b, c.tensor(i), shape), dim, k, 1)); };
    std::vector<Value> out;
    for (int64_t k = 0; k < 3; ++k) {
      int64_t u = (k + 1) % 3, v = (k + 2) % 3;
      out.push_back(packed(component(0, u) * component(1, v) - component(0, v) * component(1, u)));
    }
    return concat(c.b, out, dim);
  });
  add_one(t, "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar float_power.Tensor_Scalar float_power.Tensor_Tensor float_power.Scalar",
          [](OpCall& c) {
            // Those that torch has formulas for (native/cpu/PowKernel.cpp); NaN for others.
            const double exponent = c.is_tensor(1) || is_complex(c.scalar(1)) ? std::nan("") : c.number(1);
            const Complex x = argument(c, 0);
            if (exponent == 0) return result(c, number(x, 1));
            if (exponent == 1) return result(c, x);
            if (exponent == 2) return result(c, x * x);
            if (exponent == 3) return result(c, x * x * x);
            if (exponent == 0.5) return result(c, sqrt(x));
            if (exponent == -0.5) return result(c, reciprocal(sqrt(x)));
            if (exponent == -1) return result(c, reciprocal(x));
            if (exponent == -2) return result(c, reciprocal(x * x));
            return result(c, power(x, argument(c, 1)));
          });
}

void add_functions(OpTable& t) {
  for (const auto& [names, f] : kFunctions) add_one(t, names, [f = f](OpCall& c) { return result(c, f(argument(c, 0))); });
  add_one(t, "neg negative", [](OpCall& c) { return c.result().dtype == DType::c64 ? neg(c.b, c.tensor(0)) : Value{}; });
  add_one(t, "conj_physical _conj_physical", [](OpCall& c) { return c.result().dtype == DType::c64 ? conj(c.b, c.tensor(0)) : Value{}; });
  add_one(t, "positive", [](OpCall& c) { return c.tensor(0); });
  auto real = [&t](const char* names, Expr (*f)(const Complex&)) {
    add_one(t, names, [f](OpCall& c) { return f(argument(c, 0)).to(c.result().dtype).value(); });
  };
  real("abs absolute", magnitude);
  real("angle", phase);
  real("isnan", [](const Complex& z) { return is_nan(z.re) | is_nan(z.im); });
  real("isinf", [](const Complex& z) { return equal(abs(z.re), kInfinity) | equal(abs(z.im), kInfinity); });
  real("isfinite", [](const Complex& z) { return (abs(z.re) < kInfinity) & (abs(z.im) < kInfinity); });
  real("isreal", [](const Complex& z) { return equal(z.im, 0.0); });
  real("logical_not", [](const Complex& z) { return !not_zero(z); });
}

void add_composition(OpTable& t) {
  auto real = [](OpCall& c, size_t i) { return Expr(c.b, c.tensor(i)); };
  auto single = [](OpCall& c) { return c.result().dtype == DType::c64 && c.tensor(0).dtype() == DType::f32; };
  add_one(t, "complex", [=](OpCall& c) { return single(c) ? packed({real(c, 0), real(c, 1)}) : Value{}; });
  add_one(t, "polar", [=](OpCall& c) { return single(c) ? packed(polar(real(c, 0), real(c, 1))) : Value{}; });
  add_one(t, "view_as_real_copy", [](OpCall& c) { return c.tensor(0).dtype() == DType::c64 ? pairs_of(c.b, c.tensor(0)) : Value{}; });
  add_one(t, "view_as_complex_copy", [](OpCall& c) { return c.tensor(0).dtype() == DType::f32 ? complex_of(c.b, c.tensor(0)) : Value{}; });
}

// ---- comparisons and choices ----

// None beside an f64, as which both would be compared.
std::optional<Expr> same(OpCall& c) {
  for (size_t i = 0; i < 2; ++i)
    if (c.is_tensor(i) && !c.is_number(i) && c.tensor(i).dtype() == DType::f64) return std::nullopt;
  const Complex x = argument(c, 0), y = argument(c, 1);
  return equal(x.re, y.re) & equal(x.im, y.im);
}

void add_comparisons(OpTable& t) {
  add_one(t, "eq.Tensor eq.Scalar", [](OpCall& c) {
    const auto is_same = same(c);
    return is_same ? is_same->value() : Value{};
  });
  add_one(t, "ne.Tensor ne.Scalar not_equal.Tensor not_equal.Scalar", [](OpCall& c) {
    const auto is_same = same(c);
    return is_same ? (!*is_same).value() : Value{};
  });
  auto logical = [&t](const char* name, Op op) {
    add_one(t, name, [op](OpCall& c) { return apply(op, not_zero(argument(c, 0)), not_zero(argument(c, 1))).value(); });
  };
  logical("logical_and", Op::bit_and);
  logical("logical_or", Op::bit_or);
  logical("logical_xor", Op::bit_xor);
  add_one(t, "where.self where.Scalar where.ScalarOther where.ScalarSelf", [](OpCall& c) {
    Expr condition(c.b, operand(c, 0, DType::b1));
    return result(c, choose(condition, argument(c, 1), argument(c, 2)));
  });
  add_one(t, "masked_fill.Scalar masked_fill.Tensor", [](OpCall& c) {
    Expr mask(c.b, operand(c, 1, DType::b1));
    return result(c, choose(mask, argument(c, 2), argument(c, 0)));
  });
}

// ---- reductions ----

Complex sum_over(const Complex& z, const Axes& axes) { return {sum(z.re, axes), sum(z.im, axes)}; }
Complex mean_over(const Complex& z, const Axes& axes) { return {mean(z.re, axes), mean(z.im, axes)}; }

using ComplexReduction = Value (*)(OpCall&, const Complex&, const Axes&);
void add_reduction(OpTable& t, std::string_view over_all, std::string_view over_dims, ComplexReduction r) {
  add_one(t, over_all, [r](OpCall& c) { return r(c, argument(c, 0), Axes::all(c.tensor(0).rank())); });
  add_one(t, over_dims, [r](OpCall& c) { return r(c, argument(c, 0), Axes::of(c, 1, 2, c.tensor(0).rank())); });
}

// Deviations from the mean, squared and added over both parts.
void add_variance(OpTable& t, std::string name, bool root, bool with_mean) {
  auto lower = [=](OpCall& c, double correction, const Axes& axes) -> Results {
    Complex z = argument(c, 0), m = mean_over(z, axes.kept()), d = z - m;
    Expr squares = sum(d.re * d.re + d.im * d.im, axes);
    SymInt n = axes.count(z.re);
    Expr divisor = n.is_constant() ? Expr(c.b, c.b.constant(std::max(static_cast<double>(n.constant()) - correction, 0.0), DType::f32))
                                   : max(number(c.b, n, DType::f32) - correction, 0.0);
    Expr v = squares / divisor;
    if (root) v = apply(Op::sqrt, v);
    if (c.result().dtype != DType::f32) return std::nullopt;
    if (!with_mean) return std::vector{v.value()};
    return std::vector{v.value(), packed(mean_over(z, axes))};
  };
  t.add_complex(name, [=](OpCall& c) { return lower(c, c.flag(1), Axes::all(c.tensor(0).rank())); });
  t.add_complex(name + ".dim", [=](OpCall& c) { return lower(c, c.flag(2), Axes::of(c, 1, 3, c.tensor(0).rank())); });
  t.add_complex(name + ".correction", [=](OpCall& c) { return lower(c, c.number_or(2, 1), Axes::of(c, 1, 3, c.tensor(0).rank())); });
}

// The norm of magnitudes.
Value norm(OpCall& c, double p, const Axes& axes) {
  Complex z = argument(c, 0);
  if (std::isnan(p) || c.result().dtype != DType::f32) return {};
  if (p != 2) return p_norm(magnitude(z), p, axes).value();
  if (axes.count(z.re) == SymInt(1)) return sum(magnitude(z), axes).value();
  return apply(Op::sqrt, sum(z.re * z.re + z.im * z.im, axes)).value();
}

void add_reductions(OpTable& t) {
  add_reduction(t, "sum", "sum.dim_IntList", [](OpCall& c, const Complex& z, const Axes& axes) { return result(c, sum_over(z, axes)); });
  add_reduction(t, "mean", "mean.dim", [](OpCall& c, const Complex& z, const Axes& axes) { return result(c, mean_over(z, axes)); });
  add_one(t, "all.dims any.dims", [](OpCall& c) {
    bool all = c.schema == "aten::all.dims", none = !c.is_none(1) && c.ints(1).empty();
    Axes axes = none ? Axes{} : Axes::of(c, 1, 2, c.tensor(0).rank());
    return reduce(all ? Op::reduce_min : Op::reduce_max, not_zero(argument(c, 0)), axes).value();
  });
  add_reduction(t, "any", "any.dim",
                [](OpCall&, const Complex& z, const Axes& axes) { return reduce(Op::reduce_max, not_zero(z), axes).value(); });
  add_reduction(t, "all", "all.dim",
                [](OpCall&, const Complex& z, const Axes& axes) { return reduce(Op::reduce_min, not_zero(z), axes).value(); });
  add_one(t, "count_nonzero count_nonzero.dim_IntList",
          [](OpCall& c) { return sum(not_zero(argument(c, 0)).to(DType::i64), {c.dims(1, c.tensor(0).rank()), false}).value(); });
  for (const char* name : {"var", "std"})
    for (bool with_mean : {false, true}) add_variance(t, std::string(name) + (with_mean ? "_mean" : ""), name[0] == 's', with_mean);
  add_one(t, "norm.Scalar norm.ScalarOpt_dtype", [](OpCall& c) { return norm(c, c.number_or(1, 2), Axes::all(c.tensor(0).rank())); });
  add_one(t, "norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype linalg_vector_norm",
          [](OpCall& c) { return norm(c, c.number_or(1, 2), Axes::of(c, 2, 3, c.tensor(0).rank())); });
  add_one(t, "renorm", [](OpCall& c) {
    Complex z = argument(c, 0);
    Axes others = Axes::all(z.re.value().rank(), true);
    std::erase(others.dims, c.dim(2, z.re.value().rank()));
    Expr length = p_norm(magnitude(z), c.number(1), others);
    return result(c, z * select(length > c.number(3), c.number(3) / (length + 1e-7), 1.0));
  });
  add_one(t, "dist", [](OpCall& c) {
    Expr d = magnitude(argument(c, 0) - argument(c, 1));
    return c.result().dtype == DType::f32 ? p_norm(d, c.number(2), Axes::all(d.value().rank())).value() : Value{};
  });
  add_one(t, "logsumexp", [](OpCall& c) {
    Complex z = argument(c, 0);
    if (c.b.symbols().equal(z.re.value().type().numel(), 0)) return Value{};
    Axes axes = Axes::of(c, 1, 2, z.re.value().rank());
    // Shifted by the largest real part, where it is finite.
    auto top = [&](const Axes& over) {
      Expr m = reduce(Op::reduce_max, z.re, over);
      return select(equal(abs(m), kInfinity), 0.0, m);
    };
    Expr kept = top(axes.kept());
    Complex r = log(sum_over(exp(Complex{z.re - kept, z.im}), axes));
    return result(c, {r.re + top(axes), r.im});
  });
  add_one(t, "trace", [](OpCall& c) {
    Complex z = parts(c.b, diagonal(c.b, c.tensor(0), 0, 0, 1));
    return result(c, sum_over(z, Axes::all(1)));
  });
}

// ---- casts ----

// The real part of a complex number that becomes a real one; nothing for other complex types.
Value converted(OpCall& c) {
  Value x = c.tensor(0);
  DType to = c.result().dtype;
  if (x.type().device.kind != c.result().device.kind || (is_complex(to) && to != DType::c64)) return {};
  if (to == x.dtype()) return x;
  if (to == DType::b1) return not_zero(parts(c.b, x)).value();
  Complex z = parts(c.b, x);
  return to == DType::c64 ? packed(z) : z.re.to(to).value();
}

void add_casts(OpTable& t) {
  add_one(t, "_to_copy to.device to.dtype to.other to.dtype_layout type_as", converted);
  add_one(t, "copy", [](OpCall& c) {
    Value source = c.tensor(1);
    if (source.type().device.kind != c.result().device.kind) return Value{};
    const Complex z = parts(c.b, source);
    const DType to = c.result().dtype;
    const Value v = to == DType::c64 ? packed(z) : is_complex(to) ? Value{} : to == DType::b1 ? not_zero(z).value() : z.re.to(to).value();
    return v ? broadcast_to(c.b, v, c.tensor(0).shape()) : v;
  });
}

// ---- products ----

// (a + bi)(c + di) from products of real matrices.
Complex product(const Complex& x, const Complex& y, const std::function<Expr(const Expr&, const Expr&)>& times) {
  return {times(x.re, y.re) - times(x.im, y.im), times(x.re, y.im) + times(x.im, y.re)};
}

Expr matrix_product(const Expr& x, const Expr& y) { return {x.builder(), matmul(x.builder(), x.value(), y.value())}; }

// beta * input + alpha * x y.
Value plus_product(OpCall& c) {
  Complex p = product(argument(c, 1), argument(c, 2), matrix_product);
  if (!c.is_none(4)) p = p * argument(c, 4);
  bool none = !c.is_none(3) && !is_complex(c.scalar(3)) && c.number(3) == 0;
  if (none) return result(c, p);
  Complex input = argument(c, 0);
  return result(c, (c.is_none(3) ? input : input * argument(c, 3)) + p);
}

void add_products(OpTable& t) {
  add_one(t, "mm bmm mv dot matmul linalg_matmul", [](OpCall& c) {
    if (!c.tensor(0).rank() || !c.tensor(1).rank()) return Value{};
    return result(c, product(argument(c, 0), argument(c, 1), matrix_product));
  });
  add_one(t, "vdot", [](OpCall& c) {
    Complex x = argument(c, 0);
    return result(c, product({x.re, -x.im}, argument(c, 1), matrix_product));
  });
  add_one(t, "addmm baddbmm addmv", plus_product);
  add_one(t, "addr", [](OpCall& c) {
    Complex p = parts(c.b, unsqueeze(c.b, c.tensor(1), 1)) * parts(c.b, unsqueeze(c.b, c.tensor(2), 0));
    if (!c.is_none(4)) p = p * argument(c, 4);
    bool none = !c.is_none(3) && !is_complex(c.scalar(3)) && c.number(3) == 0;
    if (none) return result(c, p);
    return result(c, (c.is_none(3) ? argument(c, 0) : argument(c, 0) * argument(c, 3)) + p);
  });
  add_one(t, "outer ger", [](OpCall& c) {
    Complex x = parts(c.b, unsqueeze(c.b, c.tensor(0), 1)), y = parts(c.b, unsqueeze(c.b, c.tensor(1), 0));
    return result(c, x * y);
  });
}

// ---- sequences ----

// Points from one number to another, the first half counted from the start, the second from the end; nothing for other layouts.
std::optional<Complex> evenly_spaced(OpCall& c, size_t layout) {
  int64_t steps = c.constant(2);
  if (c.result().dtype != DType::c64 || c.result().device.kind != DeviceKind::cpu || (!c.is_none(layout) && c.constant(layout) != 0))
    return std::nullopt;
  Complex start = argument(c, 0), end = argument(c, 1);
  Expr i{c.b, positions(c.b, steps, DType::f32)};
  if (steps < 2) return start + number({i, i}, 0);
  Complex step = (end - start) * like(start.re, 1.0 / static_cast<double>(steps - 1));
  return choose(i < static_cast<double>(steps / 2), start + step * i, end - step * (static_cast<double>(steps - 1) - i));
}

void add_sequences(OpTable& t) {
  add_one(t, "linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor", [](OpCall& c) {
    auto z = evenly_spaced(c, 4);
    return z ? packed(*z) : Value{};
  });
  add_one(t, "logspace logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor", [](OpCall& c) {
    auto z = evenly_spaced(c, 5);
    return z ? packed(power(number(*z, c.number_or(3, 10)), *z)) : Value{};
  });
}

}  // namespace

void add_complex_ops(OpTable& t) {
  add_arithmetic(t);
  add_functions(t);
  add_composition(t);
  add_comparisons(t);
  add_reductions(t);
  add_casts(t);
  add_products(t);
  add_sequences(t);
  add_partwise_ops(t);
}

}  // namespace broach
