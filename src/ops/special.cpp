// Special functions that are sums of others: the polygamma family.
#include <array>
#include <cmath>
#include <numbers>

#include "ops/formula.h"

namespace broach {

namespace {

using Operands = std::span<const Expr>;

Expr power(const Expr& x, int64_t n) {
  Expr r = x;
  for (int64_t i = 1; i < n; ++i) r = r * x;
  return r;
}

// The Hurwitz zeta function sum_k (q + k)^-s for integers s >= 2 and q > 0, by Euler and Maclaurin (Cephes, zeta.c): nine terms
// of the sum, then the series in the derivatives of x^-s.
Expr hurwitz(int64_t s, const Expr& q) {
  // (2i)! / B_2i
  constexpr std::array<double, 12> kFactors = {12.0,
                                               -720.0,
                                               30240.0,
                                               -1209600.0,
                                               47900160.0,
                                               -1.8924375803183791606e9,
                                               7.47242496e10,
                                               -2.950130727918164224e12,
                                               1.1646782814350067249e14,
                                               -4.5979787224074726105e15,
                                               1.8152105401943546773e17,
                                               -7.1661652561756670113e18};
  Expr sum = 1.0 / power(q, s), at = q;
  for (int i = 0; i < 9; ++i) {
    at = at + 1.0;
    sum = sum + 1.0 / power(at, s);
  }
  Expr term = 1.0 / power(at, s);
  sum = sum + term * at / static_cast<double>(s - 1) - term * 0.5;
  double factor = 1;
  int64_t k = 0;
  int terms = q.dtype() == DType::f64 ? 12 : 6;
  for (int i = 0; i < terms; ++i) {
    factor *= static_cast<double>(s + k);
    term = term / at;
    sum = sum + term * (factor / kFactors[static_cast<size_t>(i)]);
    factor *= static_cast<double>(s + k + 1);
    term = term / at;
    k += 2;
  }
  return sum;
}

// The n-th derivative of cot(pi x), from c = cot(pi x): a polynomial, since c' = -pi (1 + c^2).
Expr cotangent_derivative(int64_t n, const Expr& c) {
  std::vector<double> p{0, 1};
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> next(p.size() + 1, 0.0);
    for (size_t k = 1; k < p.size(); ++k) {
      double slope = -std::numbers::pi * static_cast<double>(k) * p[k];
      next[k - 1] += slope;
      next[k + 1] += slope;
    }
    p = std::move(next);
  }
  Expr sum = c * p.back() + p[p.size() - 2];
  for (size_t k = p.size() - 2; k-- > 0;) sum = sum * c + p[k];
  return sum;
}

// As eager computes it, whose values near the poles are those of sin(pi x).
Expr trigamma(const Expr& x) {
  Expr low = x < 0.5, y = select(low, 1.0 - x, x), sum = y.number(0.0);
  Expr sine = apply(Op::sin, x * std::numbers::pi), pole = (std::numbers::pi * std::numbers::pi) / (sine * sine);
  sum = 1.0 / (y * y);
  for (int i = 1; i < 6; ++i) {
    y = y + 1.0;
    sum = sum + 1.0 / (y * y);
  }
  y = y + 1.0;
  Expr square = 1.0 / (y * y);
  sum = sum + (1.0 + 1.0 / (2.0 * y) + square * (1.0 / 6 - square * (1.0 / 30 - square * (1.0 / 42)))) / y;
  return select(low, pole - sum, sum);
}

// (-1)^(n + 1) n! zeta(n + 1, x); left of 0 by reflection, at the poles infinity.
Expr polygamma(const Expr& x, int64_t n) {
  if (n == 0) return apply(Op::digamma, x);
  if (n == 1) return trigamma(x);
  Expr left = x <= 0.0, q = select(left, 1.0 - x, x);
  double sign = n % 2 ? 1 : -1, factorial = std::tgamma(static_cast<double>(n + 1));
  Expr right = hurwitz(n + 1, q) * (sign * factorial);
  // The fraction is exact, which keeps the distance from a pole.
  Expr turn = (x - apply(Op::round, x)) * std::numbers::pi, cotangent = apply(Op::cos, turn) / apply(Op::sin, turn);
  Expr reflected = right * -sign - cotangent_derivative(n, cotangent) * std::numbers::pi;
  Expr pole = equal(x, apply(Op::floor, x));
  return select(left, select(pole, x.number(sign * std::numeric_limits<double>::infinity()), reflected), right);
}

Value polygamma_call(OpCall& c) {
  int64_t n = c.constant(0);
  if (n < 0 || n > 12 || !is_floating(c.result().dtype)) return {};
  Expr x{c.b, operand(c, 1, compute_dtype(c.result().dtype))};
  return polygamma(x, n).to(c.result().dtype).value();
}

// The logarithm of the multivariate gamma function: a sum of lgamma at p points.
Expr multivariate_lgamma(OpCall& c, Operands x) {
  int64_t p = c.constant(1);
  double d = static_cast<double>(p);
  Expr sum = x[0].number(d * (d - 1) / 4 * std::log(std::numbers::pi));
  for (int64_t i = 0; i < p; ++i) sum = sum + apply(Op::lgamma, x[0] + (0.5 - 0.5 * d + 0.5 * static_cast<double>(i)));
  return sum;
}

}  // namespace

void add_special_ops(OpTable& t) {
  add_single(t, "polygamma special_polygamma", polygamma_call);
  add_formula(t, "mvlgamma special_multigammaln", {0}, multivariate_lgamma);
}

}  // namespace broach
