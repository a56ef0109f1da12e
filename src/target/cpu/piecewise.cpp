#include "target/cpu/piecewise.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <cmath>
#include <numbers>

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
uint32_t find_center(llvm::function_ref<double(double)> f, const Interval& in, unsigned degree) {
  const Series series = interpolate(f, in.low, in.high, 0, degree);
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
    const auto start = [&](unsigned eighth) {
      return std::ldexp(1 + eighth % 8 / 8.0, static_cast<int>(eighth / 8) - 1) * shift / 0.75 - shift;
    };
    all[i] = {start(i + 4), start(i + 5)};
  }
  return all;
}

}  // namespace

Piecewise fit_odd(llvm::function_ref<double(double)> f, float shift, float limit, unsigned degree) {
  Piecewise p{shift, limit, std::vector<Piecewise::Table>(degree + 1)};
  for (auto [low, high] : intervals(shift)) {
    const uint32_t place = p.place(static_cast<float>((low + high) / 2)) % Piecewise::kIntervals;
    // In the lowest interval x^1 times a polynomial, whose error is relative down to zero.
    const unsigned power = low == 0;
    const uint32_t center_bits = power ? 0 : find_center(f, {low, high}, degree);
    const double center = std::bit_cast<float>(center_bits << 16);
    const auto fit = [&](llvm::function_ref<double(double)> g, unsigned most) {
      Series series = interpolate([&](double x) { return power ? g(x) / x : g(x); }, low, high, center, most - power);
      series.insert(series.begin(), power, 0);
      return series;
    };
    const Series series = fit(f, degree);
    const float last = with_lower_half(series[degree], center_bits);
    const Series regained = fit([&](double x) { return (series[degree] - last) * std::pow(x - center, degree); }, degree - 1);
    for (unsigned k = 0; k < degree; ++k) p.coefficients[k][place] = static_cast<float>(series[k] + regained[k]);
    p.coefficients[degree][place] = last;
  }
  return p;
}

const Piecewise& piecewise_erf() {
  static const Piecewise pieces = fit_odd([](double x) { return std::erf(x); }, 0.375F, 3.95F, 4);
  return pieces;
}

const Piecewise& piecewise_tanh() {
  static const Piecewise pieces = fit_odd([](double x) { return std::tanh(x); }, 0.75F, 9.1F, 4);
  return pieces;
}

const Piecewise& piecewise_normal() {
  static const Piecewise pieces = fit_odd([](double x) { return std::erf(x / std::numbers::sqrt2) / 2; }, 0.375F, 5.6F, 4);
  return pieces;
}

const Piecewise& coarse_tanh() {
  static const Piecewise pieces = fit_odd([](double x) { return std::tanh(x); }, 0.75F, 9.1F, 2);
  return pieces;
}

llvm::Value* emit_piecewise(llvm::IRBuilderBase& b, llvm::Value* x, const Piecewise& pieces) {
  namespace Intrinsic = llvm::Intrinsic;
  using llvm::Value;
  auto* bits = llvm::FixedVectorType::get(b.getInt32Ty(), 16);
  const auto c = [&](float v) { return llvm::ConstantFP::get(x->getType(), v); };
  Value *magnitude = b.CreateUnaryIntrinsic(Intrinsic::fabs, x), *limit = c(pieces.limit);
  // One vminps, which keeps a NaN.
  Value* a = b.CreateSelect(b.CreateFCmpOGT(magnitude, limit), limit, magnitude);
  Value* place = b.CreateLShr(b.CreateBitCast(b.CreateFAdd(a, c(pieces.shift)), bits), Piecewise::kPlaceShift);
  const auto fetch = [&](const Piecewise::Table& table) {
    const auto half = [&](size_t start) {
      return llvm::ConstantDataVector::get(b.getContext(), llvm::ArrayRef(table).slice(start, table.size() / 2));
    };
    return b.CreateIntrinsic(Intrinsic::x86_avx512_vpermi2var_ps_512, {}, {half(0), place, half(table.size() / 2)});
  };
  Value* sum = fetch(pieces.coefficients.back());
  Value* offset = b.CreateFSub(a, b.CreateBitCast(b.CreateShl(b.CreateBitCast(sum, bits), 16), x->getType()));
  for (const auto& table : llvm::reverse(llvm::ArrayRef(pieces.coefficients).drop_back()))
    sum = b.CreateIntrinsic(Intrinsic::fma, {x->getType()}, {sum, offset, fetch(table)});
  return b.CreateBinaryIntrinsic(Intrinsic::copysign, sum, x);
}

}  // namespace broach::cpu
