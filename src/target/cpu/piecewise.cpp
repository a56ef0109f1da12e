#include "target/cpu/piecewise.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace broach::cpu {
namespace {

using Series = std::vector<double>;  // coefficients, lowest first

// The polynomial that agrees with f at the Chebyshev points of [low, high], in powers of x - center.
Series interpolate(llvm::function_ref<double(double)> f, double low, double high, double center, unsigned degree) {
  Series nodes, differences;
  for (unsigned i = 0; i <= degree; ++i) {
    const double x = (low + high) / 2 + (high - low) / 2 * std::cos(std::numbers::pi * (i + 0.5) / (degree + 1));
    nodes.push_back(x - center);
    differences.push_back(f(x));
  }
  for (unsigned order = 1; order <= degree; ++order)
    for (unsigned i = degree; i >= order; --i) differences[i] = (differences[i] - differences[i - 1]) / (nodes[i] - nodes[i - order]);
  // From Newton's form, the inside first.
  Series series(degree + 1, 0);
  for (unsigned i = degree + 1; i-- > 0;) {
    for (unsigned k = degree; k > 0; --k) series[k] = series[k - 1] - nodes[i] * series[k];
    series[0] = differences[i] - nodes[i] * series[0];
  }
  return series;
}

constexpr uint32_t kUpper = 0xffff0000;

// The float nearest to x whose lower half is this.
float with_lower_half(double x, uint32_t half) {
  const uint32_t bits = (std::bit_cast<uint32_t>(static_cast<float>(x)) & kUpper) | half;
  float best = std::bit_cast<float>(bits);
  for (uint32_t neighbour : {bits - ~kUpper - 1, bits + ~kUpper + 1})
    if (const auto y = std::bit_cast<float>(neighbour); std::fabs(y - x) < std::fabs(best - x)) best = y;
  return best;
}

struct Interval {
  double low, high;
};

double evaluate(const Series& series, double x) {
  double sum = 0;
  for (size_t k = series.size(); k-- > 0;) sum = sum * x + series[k];
  return sum;
}

// Of the centers in the middle half, which have 16 bits, the one at which the polynomial is nearest to a float: its value
// there is a coefficient, whose rounding would be most of the error.
uint32_t find_center(llvm::function_ref<double(double)> f, const Interval& in) {
  const Series series = interpolate(f, in.low, in.high, 0, 4);
  const auto bits = [](double x) { return std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16; };
  uint32_t best = 0;
  double least = HUGE_VAL;
  for (uint32_t c = bits(in.low * 0.75 + in.high * 0.25); c <= bits(in.low * 0.25 + in.high * 0.75); ++c) {
    const double y = evaluate(series, std::bit_cast<float>(c << 16)), error = std::fabs(static_cast<float>(y) - y);
    if (error < least) least = error, best = c;
  }
  return best;
}

// Eighths of octaves of x + shift, from 3/4 to 12 units.
std::array<Interval, Piecewise::kIntervals> intervals(double shift) {
  std::array<Interval, Piecewise::kIntervals> all;
  for (unsigned i = 0; i < all.size(); ++i) {
    const auto start = [&](unsigned eighth) { return std::ldexp(1 + eighth % 8 / 8.0, static_cast<int>(eighth / 8) - 1) * shift / 0.75 - shift; };
    all[i] = {start(i + 4), start(i + 5)};
  }
  return all;
}

}  // namespace

Piecewise fit_odd(llvm::function_ref<double(double)> f, float shift, float limit) {
  Piecewise p{shift, limit, {}, {}};
  for (auto [low, high] : intervals(shift)) {
    const uint32_t place = p.place(static_cast<float>((low + high) / 2)) % Piecewise::kIntervals;
    // In the lowest interval x^1 times a polynomial, whose error is relative down to zero.
    const unsigned power = low == 0;
    const uint32_t center_bits = power ? 0 : find_center(f, {low, high});
    const double center = std::bit_cast<float>(center_bits << 16);
    const auto fit = [&](llvm::function_ref<double(double)> g, unsigned degree) {
      Series series = interpolate([&](double x) { return power ? g(x) / x : g(x); }, low, high, center, degree - power);
      series.insert(series.begin(), power, 0);
      return series;
    };
    const Series series = fit(f, 4);
    p.fourth[place] = with_lower_half(series[4], center_bits);
    const double lost = series[4] - p.fourth[place];
    const Series regained = fit([&](double x) { return lost * std::pow(x - center, 4); }, 3);
    for (unsigned k = 0; k < 4; ++k) p.coefficients[k][place] = static_cast<float>(series[k] + regained[k]);
  }
  return p;
}

const Piecewise& piecewise_erf() {
  static const Piecewise pieces = fit_odd([](double x) { return std::erf(x); }, 0.375F, 3.95F);
  return pieces;
}

const Piecewise& piecewise_tanh() {
  static const Piecewise pieces = fit_odd([](double x) { return std::tanh(x); }, 0.75F, 9.1F);
  return pieces;
}

const Piecewise& piecewise_normal() {
  static const Piecewise pieces = fit_odd([](double x) { return std::erf(x / std::numbers::sqrt2) / 2; }, 0.375F, 5.6F);
  return pieces;
}

}  // namespace broach::cpu
