#include "target/reference/scalar.h"

#include <numbers>

namespace broach::reference {

namespace {

using std::numbers::pi;

// By reflection below zero, by recurrence up to 10, and by the asymptotic series from there.
double digamma(double x) {
  if (x == 0) return std::copysign(INFINITY, -x);
  if (x < 0) return x == std::trunc(x) ? NAN : digamma(1 - x) - pi / std::tan(pi * (x - std::trunc(x)));
  double shift = 0;
  for (; x < 10; x += 1) shift += 1 / x;
  constexpr double series[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12};
  double z = 1 / (x * x), sum = 0, power = z;
  for (double c : series) sum += c * power, power *= z;
  return std::log(x) - 0.5 / x - sum - shift;
}

// Newton's method on erfc, which keeps its precision in the tail.
double erfinv(double x) {
  if (!(std::fabs(x) < 1)) return std::fabs(x) == 1 ? std::copysign(INFINITY, x) : NAN;
  const double tail = 1 - std::fabs(x), w = -std::log(tail * (1 + std::fabs(x))), a = 4.3307467508 + w / -2;
  double y = std::sqrt(std::fmax(std::sqrt(a * a + w / 0.147) - a, 0));  // Winitzki's approximation, to 2e-3
  if (std::fabs(x) < 0.5) {
    for (int i = 0; i < 4; ++i) y -= (std::erf(y) - std::fabs(x)) * std::sqrt(pi) / 2 * std::exp(y * y);
  } else {
    for (int i = 0; i < 4; ++i) y += (std::erfc(y) - tail) * std::sqrt(pi) / 2 * std::exp(y * y);
  }
  return std::copysign(y, x);
}

}  // namespace

double real_unary(Op op, double x) {
  switch (op) {
    case Op::neg: return -x;
    case Op::abs: return std::fabs(x);
    case Op::sign: return (x > 0) - (x < 0);
    case Op::floor: return std::floor(x);
    case Op::ceil: return std::ceil(x);
    case Op::trunc: return std::trunc(x);
    case Op::round: return std::nearbyint(x);
    case Op::sqrt: return std::sqrt(x);
    case Op::rsqrt: return 1 / std::sqrt(x);
    case Op::reciprocal: return 1 / x;
    case Op::exp: return std::exp(x);
    case Op::exp2: return std::exp2(x);
    case Op::expm1: return std::expm1(x);
    case Op::log: return std::log(x);
    case Op::log2: return std::log2(x);
    case Op::log10: return std::log10(x);
    case Op::log1p: return std::log1p(x);
    case Op::sin: return std::sin(x);
    case Op::cos: return std::cos(x);
    case Op::tan: return std::tan(x);
    case Op::asin: return std::asin(x);
    case Op::acos: return std::acos(x);
    case Op::atan: return std::atan(x);
    case Op::sinh: return std::sinh(x);
    case Op::cosh: return std::cosh(x);
    case Op::tanh: return std::tanh(x);
    case Op::asinh: return std::asinh(x);
    case Op::acosh: return std::acosh(x);
    case Op::atanh: return std::atanh(x);
    case Op::erf: return std::erf(x);
    case Op::erfc: return std::erfc(x);
    case Op::erfinv: return erfinv(x);
    case Op::lgamma: return std::lgamma(x);
    case Op::digamma: return digamma(x);
    case Op::sigmoid: return 1 / (1 + std::exp(-x));
    case Op::relu: return x < 0 ? 0 : x;
    case Op::gelu_erf: return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Op::gelu_tanh: return x / (1 + std::exp(-2 * std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    case Op::gelu_erf_derivative: return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * pi);
    case Op::gelu_tanh_derivative: {
      const double t = std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x);
    }
    case Op::silu: return x / (1 + std::exp(-x));
    case Op::hardsigmoid: return x < -3 ? 0 : x > 3 ? 1 : (x + 3) / 6;
    default: undefined(op, "floating-point numbers");
  }
}

std::complex<double> complex_unary(Op op, std::complex<double> x) {
  switch (op) {
    case Op::neg: return -x;
    case Op::abs: return std::abs(x);
    case Op::sign: return x == 0.0 ? x : x / std::abs(x);
    case Op::sqrt: return std::sqrt(x);
    case Op::rsqrt: return 1.0 / std::sqrt(x);
    case Op::reciprocal: return 1.0 / x;
    case Op::exp: return std::exp(x);
    case Op::log: return std::log(x);
    case Op::sin: return std::sin(x);
    case Op::cos: return std::cos(x);
    case Op::tan: return std::tan(x);
    case Op::sinh: return std::sinh(x);
    case Op::cosh: return std::cosh(x);
    case Op::tanh: return std::tanh(x);
    default: undefined(op, "complex numbers");
  }
}

}  // namespace broach::reference
