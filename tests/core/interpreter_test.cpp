// The reference interpreter against values computed by hand: every primitive, and its special values.
#include "target/reference/interpreter.h"

#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "random_graph.h"
#include "support/error.h"
#include "support/small_float.h"

using namespace broach;
using broach::testing::first_difference;

namespace {

using Numbers = std::vector<double>;
using Sizes = std::vector<int64_t>;
constexpr double inf = HUGE_VAL;
const double nan_ = std::nan("");

HostTensor tensor(DType t, const Sizes& sizes, const Numbers& values) {
  HostTensor x = zeros(t, sizes);
  REQUIRE(x.numel() == static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) x.set(static_cast<int64_t>(i), values[i]);
  return x;
}
HostTensor vector_of(DType t, const Numbers& values) { return tensor(t, {static_cast<int64_t>(values.size())}, values); }
HostTensor integers(DType t, const std::vector<int64_t>& values) {
  HostTensor x = zeros(t, Sizes{static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) x.set(static_cast<int64_t>(i), values[i]);
  return x;
}

HostTensor apply(Op op, const std::vector<HostTensor>& operands, Attrs attrs = {}) {
  GraphBuilder b;
  std::vector<Value> inputs;
  for (const HostTensor& t : operands) inputs.push_back(b.input(t.type));
  Graph g = b.finish({b.emit(op, inputs, std::move(attrs))});
  g.verify();
  return interpret(g, operands).at(0);
}
std::string error_of(Op op, const std::vector<HostTensor>& operands, Attrs attrs = {}) {
  try {
    apply(op, operands, std::move(attrs));
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

Numbers numbers(const HostTensor& t) {
  Numbers out;
  for (int64_t i = 0; i < t.numel(); ++i) out.push_back(as_double(t.at(i)));
  return out;
}
std::vector<int64_t> ints(const HostTensor& t) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < t.numel(); ++i) out.push_back(as_int(t.at(i)));
  return out;
}
// Equality in which the sign of zero counts and NaN equals NaN.
bool same(double a, double b) { return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)); }
bool same(const Numbers& a, const Numbers& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) { return same(x, y); });
}

#define CHECK_NUMBERS(actual, ...)                              \
  do {                                                          \
    HostTensor got = actual;                                    \
    Numbers want = __VA_ARGS__;                                 \
    std::string text;                                           \
    for (double x : numbers(got)) text += str(Scalar(x)) + " "; \
    INFO("got ", text);                                         \
    CHECK(same(numbers(got), want));                            \
  } while (false)

}  // namespace

TEST_CASE("interpreter: unary operations on floating-point numbers, by value") {
  struct Row {
    Op op;
    double x, want;
  };
  const double pi = M_PI;
  // Values from tables, to 15 digits.
  const std::vector<Row> rows = {{Op::neg, 1.5, -1.5},
                                 {Op::abs, -1.5, 1.5},
                                 {Op::sign, -3, -1},
                                 {Op::floor, -1.5, -2},
                                 {Op::ceil, -1.5, -1},
                                 {Op::trunc, -1.7, -1},
                                 {Op::round, 2.5, 2},
                                 {Op::round, 3.5, 4},
                                 {Op::round, -0.5, -0.0},
                                 {Op::sqrt, 2.25, 1.5},
                                 {Op::rsqrt, 4, 0.5},
                                 {Op::reciprocal, -4, -0.25},
                                 {Op::exp, 1, 2.718281828459045},
                                 {Op::exp2, -3, 0.125},
                                 {Op::expm1, 1e-10, 1.00000000005e-10},
                                 {Op::log, 10, 2.302585092994046},
                                 {Op::log2, 0.125, -3},
                                 {Op::log10, 1000, 3},
                                 {Op::log1p, 1e-10, 9.9999999995e-11},
                                 {Op::sin, pi / 6, 0.5},
                                 {Op::cos, pi / 3, 0.5},
                                 {Op::tan, pi / 4, 1},
                                 {Op::asin, 0.5, pi / 6},
                                 {Op::acos, 0.5, pi / 3},
                                 {Op::atan, 1, pi / 4},
                                 {Op::sinh, 1, 1.1752011936438014},
                                 {Op::cosh, 1, 1.5430806348152437},
                                 {Op::tanh, 0.5, 0.46211715726000975},
                                 {Op::asinh, 1.1752011936438014, 1},
                                 {Op::acosh, 1.5430806348152437, 1},
                                 {Op::atanh, 0.46211715726000975, 0.5},
                                 {Op::erf, 0.5, 0.5204998778130465},
                                 {Op::erfc, 3, 2.209049699858544e-5},
                                 {Op::erfinv, 0.5204998778130465, 0.5},
                                 {Op::erfinv, -0.8427007929497149, -1},
                                 {Op::erfinv, 1e-9, 8.862269254527581e-10},
                                 {Op::lgamma, 10, 12.801827480081469},
                                 {Op::digamma, 1, -0.5772156649015329},
                                 {Op::digamma, -0.5, 0.03648997397857652},
                                 {Op::digamma, 20, 2.970523992242149},
                                 {Op::sigmoid, 2, 0.8807970779778823},
                                 {Op::relu, 2, 2},
                                 {Op::relu, -2, 0},
                                 {Op::gelu_erf, 1, 0.8413447460685429},
                                 {Op::gelu_erf, -2, -0.0455002638963584144},
                                 {Op::gelu_tanh, 1, 0.8411919906082768},
                                 {Op::gelu_erf_derivative, 1, 1.0833154705876864},
                                 {Op::gelu_erf_derivative, -2, -0.0852318010781969},
                                 {Op::gelu_tanh_derivative, 1, 1.0829640838457826},
                                 {Op::silu, 2, 1.7615941559557646},
                                 {Op::hardsigmoid, 1.5, 0.75}};
  std::set<Op> covered;
  for (const Row& r : rows) {
    covered.insert(r.op);
    for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      INFO(std::string(name_of(r.op)));
      INFO(std::string(name_of(t)));
      double x = numbers(vector_of(t, {r.x}))[0];
      double got = numbers(apply(r.op, {vector_of(t, {r.x})}))[0];
      double precision = t == DType::f64 ? 1e-15 : t == DType::f32 ? 6e-8 : t == DType::f16 ? 5e-4 : 4e-3;
      // The rounding of x itself moves the result too.
      double tolerance = std::max(4 * precision * std::fabs(r.want), 4 * std::fabs(x - r.x) + (t == DType::f64 ? 0 : 1e-7));
      CHECK(std::fabs(got - r.want) <= tolerance);
      if (r.want == 0) CHECK(std::signbit(got) == std::signbit(r.want));
    }
  }
  for (int op = 0; op < static_cast<int>(Op::extern_call); ++op)
    if (auto o = static_cast<Op>(op); kind_of(o) == OpKind::unary && o != Op::bit_not && o != Op::copy && o != Op::place) {
      INFO(std::string(name_of(o)));
      CHECK(covered.contains(o));
    }
}

TEST_CASE("interpreter: erfinv keeps its precision in the tail") {
  for (double y : {1e-3, 0.3, 0.9, 2.0, 4.0, 5.8}) {
    double x = std::erf(y), slope = std::exp(y * y);  // of the inverse: what the rounding of x is multiplied by
    CHECK(numbers(apply(Op::erfinv, {vector_of(DType::f64, {x})}))[0] == doctest::Approx(y).epsilon(1e-15 + 2e-16 * slope / y));
  }
}

TEST_CASE("interpreter: f32 results are the exact ones, rounded") {
  HostTensor x = vector_of(DType::f32, {0.1, 1.7, 13.3, 88.5});
  for (int64_t i = 0; i < 4; ++i)
    CHECK(numbers(apply(Op::exp, {x}))[static_cast<size_t>(i)] == static_cast<float>(std::exp(as_double(x.at(i)))));
}

TEST_CASE("interpreter: special values of unary operations") {
  auto f = [](Op op, const Numbers& x) { return apply(op, {vector_of(DType::f32, x)}); };
  CHECK_NUMBERS(f(Op::relu, {nan_, -0.0, -inf, inf}), {nan_, -0.0, 0, inf});
  CHECK_NUMBERS(f(Op::sign, {nan_, -0.0, -inf, 0.5}), {0, 0, -1, 1});
  CHECK_NUMBERS(f(Op::sqrt, {-1, -0.0, inf}), {nan_, -0.0, inf});
  CHECK_NUMBERS(f(Op::rsqrt, {0, -0.0, inf, -1}), {inf, -inf, 0, nan_});
  CHECK_NUMBERS(f(Op::reciprocal, {0, -0.0, -inf}), {inf, -inf, -0.0});
  CHECK_NUMBERS(f(Op::exp, {89, -200, -inf}), {inf, 0, 0});
  CHECK_NUMBERS(f(Op::log, {0, -1, inf}), {-inf, nan_, inf});
  CHECK_NUMBERS(f(Op::sigmoid, {-inf, inf, nan_, 0}), {0, 1, nan_, 0.5});
  CHECK_NUMBERS(f(Op::silu, {-200, inf}), {-0.0, inf});
  CHECK_NUMBERS(f(Op::tanh, {-inf, inf, -0.0}), {-1, 1, -0.0});
  CHECK_NUMBERS(f(Op::erfinv, {1, -1, 1.5, 0}), {inf, -inf, nan_, 0});
  CHECK_NUMBERS(f(Op::digamma, {0, -0.0, -3, inf}), {-inf, inf, nan_, inf});
  CHECK_NUMBERS(f(Op::lgamma, {0, -1, inf}), {inf, inf, inf});
  CHECK_NUMBERS(f(Op::round, {0.5, 1.5, -2.5, 8388609}), {0, 2, -2, 8388609});
  CHECK(ints(f(Op::is_nan, {nan_, inf, 0})) == std::vector<int64_t>{1, 0, 0});
  CHECK(ints(apply(Op::is_nan, {integers(DType::i32, {0, 5})})) == std::vector<int64_t>{0, 0});
  CHECK_NUMBERS(apply(Op::copy, {vector_of(DType::bf16, {1, nan_})}, {{Attr::index, int64_t{3}}}), {1, nan_});
}

TEST_CASE("interpreter: integers wrap") {
  auto i32 = [](std::vector<int64_t> v) { return integers(DType::i32, v); };
  const int64_t low = std::numeric_limits<int32_t>::min(), high = std::numeric_limits<int32_t>::max();
  CHECK(ints(apply(Op::add, {i32({high, 1}), i32({1, 2})})) == std::vector<int64_t>{low, 3});
  CHECK(ints(apply(Op::sub, {i32({low}), i32({1})})) == std::vector<int64_t>{high});
  CHECK(ints(apply(Op::mul, {i32({1 << 20}), i32({1 << 20})})) == std::vector<int64_t>{0});
  CHECK(ints(apply(Op::neg, {i32({low, 5})})) == std::vector<int64_t>{low, -5});
  CHECK(ints(apply(Op::abs, {i32({low, -5})})) == std::vector<int64_t>{low, 5});
  CHECK(ints(apply(Op::neg, {integers(DType::u8, {1, 0})})) == std::vector<int64_t>{255, 0});
  CHECK(ints(apply(Op::mul, {integers(DType::i16, {-300}), integers(DType::i16, {300})})) == std::vector<int64_t>{-24464});
  CHECK(ints(apply(Op::div, {i32({low}), i32({-1})})) == std::vector<int64_t>{low});
  CHECK(ints(apply(Op::mod, {i32({low}), i32({-1})})) == std::vector<int64_t>{0});
  const int64_t low64 = std::numeric_limits<int64_t>::min();
  CHECK(ints(apply(Op::floor_div, {integers(DType::i64, {low64}), integers(DType::i64, {-1})})) == std::vector<int64_t>{low64});
  CHECK(ints(apply(Op::add, {integers(DType::i64, {low64}), integers(DType::i64, {-1})})) ==
        std::vector<int64_t>{std::numeric_limits<int64_t>::max()});
}

TEST_CASE("interpreter: integer division, remainders, powers, shifts, bits") {
  auto f = [](Op op, std::vector<int64_t> a, std::vector<int64_t> b, DType t = DType::i32) {
    return ints(apply(op, {integers(t, a), integers(t, b)}));
  };
  using V = std::vector<int64_t>;
  const V a = {7, -7, 7, -7, 6}, b = {2, 2, -2, -2, 3};
  CHECK(f(Op::div, a, b) == V{3, -3, -3, 3, 2});
  CHECK(f(Op::floor_div, a, b) == V{3, -4, -4, 3, 2});
  CHECK(f(Op::mod, a, b) == V{1, 1, -1, -1, 0});
  CHECK(f(Op::fmod, a, b) == V{1, -1, 1, -1, 0});
  CHECK(f(Op::floor_div, {200}, {7}, DType::u8) == V{28});
  CHECK(f(Op::mod, {200}, {7}, DType::u8) == V{4});
  CHECK(f(Op::pow, {3, 2, 0, -2, 1, -1, -1, 5, 2}, {4, 31, 0, 3, -5, -3, -2, -1, 40}) == V{81, -2147483648, 1, -8, 1, -1, 1, 0, 0});
  CHECK(f(Op::shl, {1, 1, 1, -1, 1}, {4, 31, 32, 1, -1}) == V{16, -2147483648, 0, -2, 0});
  CHECK(f(Op::shr, {16, -16, -16, 16, -1, 5}, {2, 2, 40, 32, -3, -1}) == V{4, -4, -1, 0, -1, 0});
  CHECK(f(Op::shr, {200, 200, 200}, {1, 8, 7}, DType::u8) == V{100, 0, 1});
  CHECK(f(Op::shl, {200, 1}, {1, 8}, DType::u8) == V{144, 0});
  CHECK(f(Op::shl, {1, 3}, {64, 63}, DType::i64) == V{0, std::numeric_limits<int64_t>::min()});
  CHECK(f(Op::shr, {-5, 5}, {64, 64}, DType::i64) == V{-1, 0});
  CHECK(f(Op::bit_and, {12, -1}, {10, 5}) == V{8, 5});
  CHECK(f(Op::bit_or, {12, -8}, {10, 1}) == V{14, -7});
  CHECK(f(Op::bit_xor, {12, -1}, {10, 5}) == V{6, -6});
  CHECK(f(Op::min, {3, -4}, {2, 4}) == V{2, -4});
  CHECK(f(Op::max, {3, -4}, {2, 4}) == V{3, 4});
  CHECK(ints(apply(Op::bit_not, {integers(DType::i32, {0, 5})})) == V{-1, -6});
  CHECK(ints(apply(Op::bit_not, {integers(DType::u8, {0, 5})})) == V{255, 250});
  CHECK(ints(apply(Op::sign, {integers(DType::i8, {-5, 0, 9})})) == V{-1, 0, 1});
  CHECK(ints(apply(Op::relu, {integers(DType::i8, {-5, 0, 9})})) == V{0, 0, 9});
  for (Op op : {Op::div, Op::floor_div, Op::mod, Op::fmod})
    CHECK(error_of(op, {integers(DType::i32, {1}), integers(DType::i32, {0})}) ==
          std::string("%2 (") + name_of(op) + "): " + name_of(op) + ": integer division by zero");
}

TEST_CASE("interpreter: b1") {
  auto f = [](Op op) { return ints(apply(op, {integers(DType::b1, {0, 0, 1, 1}), integers(DType::b1, {0, 1, 0, 1})})); };
  using V = std::vector<int64_t>;
  for (Op op : {Op::add, Op::max, Op::bit_or}) CHECK(f(op) == V{0, 1, 1, 1});
  for (Op op : {Op::mul, Op::min, Op::bit_and}) CHECK(f(op) == V{0, 0, 0, 1});
  for (Op op : {Op::bit_xor, Op::ne}) CHECK(f(op) == V{0, 1, 1, 0});
  CHECK(f(Op::lt) == V{0, 1, 0, 0});
  CHECK(ints(apply(Op::bit_not, {integers(DType::b1, {0, 1})})) == V{1, 0});
  CHECK(error_of(Op::sub, {integers(DType::b1, {0}), integers(DType::b1, {0})}) == "%2 (sub): not defined for b1: sub");
  CHECK(error_of(Op::sqrt, {integers(DType::i32, {4})}) == "%1 (sqrt): not defined for integers: sqrt");
}

TEST_CASE("interpreter: binary operations on floating-point numbers") {
  auto f = [](Op op, const Numbers& a, const Numbers& b, DType t = DType::f32) { return apply(op, {vector_of(t, a), vector_of(t, b)}); };
  CHECK_NUMBERS(f(Op::add, {1, 16777216, inf}, {2, 1, -inf}), {3, 16777216, nan_});
  CHECK_NUMBERS(f(Op::sub, {1, 0}, {2, 0}), {-1, 0});
  CHECK_NUMBERS(f(Op::mul, {3, 0, -0.0}, {2, inf, 5}), {6, nan_, -0.0});
  CHECK_NUMBERS(f(Op::div, {1, -1, 0, 7}, {0, 0, 0, 2}), {inf, -inf, nan_, 3.5});
  CHECK_NUMBERS(f(Op::floor_div, {7, -7, 7, -7, 1, -1, 0, 5}, {2, 2, -2, -2, 0, inf, -3, inf}), {3, -4, -4, 3, inf, -1, -0.0, 0});
  CHECK_NUMBERS(f(Op::mod, {7, -7, 7, -7, 1, -6}, {2, 2, -2, -2, 0, 3}), {1, 1, -1, -1, nan_, -0.0});
  CHECK_NUMBERS(f(Op::fmod, {7, -7, 7, -7, 1, inf}, {2, 2, -2, -2, 0, 3}), {1, -1, 1, -1, nan_, nan_});
  CHECK_NUMBERS(f(Op::pow, {2, 0, -8, nan_, 4}, {10, 0, 1.0 / 3, 0, -0.5}), {1024, 1, nan_, 1, 0.5});
  CHECK_NUMBERS(f(Op::hypot, {3, inf}, {4, nan_}), {5, inf});
  CHECK_NUMBERS(f(Op::atan2, {0, -0.0, 0}, {1, 1, -0.0}), {0, -0.0, static_cast<float>(M_PI)});
  CHECK_NUMBERS(f(Op::copysign, {3, -3, 0}, {-0.0, 1, -1}), {-3, 3, -0.0});
  CHECK_NUMBERS(f(Op::nextafter, {1, 1, 0}, {2, 0, -1}), {1 + 0x1p-23, 1 - 0x1p-24, -0x1p-149});
  CHECK_NUMBERS(f(Op::nextafter, {1, 1, 0, 2, nan_, -1}, {2, 0, -1, 2, 0, -2}, DType::bf16),
                {1 + 0x1p-7, 1 - 0x1p-8, -0x1p-133, 2, nan_, -1 - 0x1p-7});
  CHECK_NUMBERS(f(Op::nextafter, {65504, 1}, {inf, 2}, DType::f16), {inf, 1 + 0x1p-10});
  CHECK_NUMBERS(f(Op::min, {1, nan_, 1, nan_, -inf}, {2, 1, nan_, nan_, 0}), {1, nan_, nan_, nan_, -inf});
  CHECK_NUMBERS(f(Op::max, {1, nan_, 1, nan_, inf}, {2, 1, nan_, nan_, 0}), {2, nan_, nan_, nan_, inf});
  CHECK(error_of(Op::bit_and, {vector_of(DType::f32, {1}), vector_of(DType::f32, {1})})
            .starts_with("%2 (bit_and): not defined for floating"));
}

TEST_CASE("interpreter: comparisons and where") {
  auto f = [](Op op) { return ints(apply(op, {vector_of(DType::f32, {1, 2, 2, nan_, 0}), vector_of(DType::f32, {2, 1, 2, nan_, -0.0})})); };
  using V = std::vector<int64_t>;
  CHECK(f(Op::eq) == V{0, 0, 1, 0, 1});
  CHECK(f(Op::ne) == V{1, 1, 0, 1, 0});
  CHECK(f(Op::lt) == V{1, 0, 0, 0, 0});
  CHECK(f(Op::le) == V{1, 0, 1, 0, 1});
  CHECK(f(Op::gt) == V{0, 1, 0, 0, 0});
  CHECK(f(Op::ge) == V{0, 1, 1, 0, 1});
  // 2^53 and 2^53 + 1 differ as integers, not as f64.
  CHECK(ints(apply(Op::lt, {integers(DType::i64, {int64_t{1} << 53}), integers(DType::i64, {(int64_t{1} << 53) + 1})})) == V{1});
  CHECK_NUMBERS(apply(Op::where, {integers(DType::b1, {1, 0}), vector_of(DType::f16, {1, 2}), vector_of(DType::f16, {3, nan_})}),
                {1, nan_});
}

TEST_CASE("interpreter: a product and a sum rounded at once") {
  // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, of which f32 keeps the first two; less these, it is 0 or 2^-24.
  const double x = 1 + 0x1p-12, square = 1 + 0x1p-11;
  CHECK_NUMBERS(
      apply(Op::fma, {vector_of(DType::f32, {x, inf, 2}), vector_of(DType::f32, {x, 1, nan_}), vector_of(DType::f32, {-square, -inf, 1})}),
      {0x1p-24, nan_, nan_});
  const HostTensor a = vector_of(DType::f64, {1 + 0x1p-30}), less = vector_of(DType::f64, {-(1 + 0x1p-29)});
  CHECK_NUMBERS(apply(Op::fma, {a, a, less}), {0x1p-60});
}

TEST_CASE("interpreter: casts") {
  auto f = [](const HostTensor& x, DType to) { return apply(Op::cast, {x}, {{Attr::dtype, to}}); };
  using V = std::vector<int64_t>;
  const int64_t low32 = std::numeric_limits<int32_t>::min(), low64 = std::numeric_limits<int64_t>::min();
  HostTensor x = vector_of(DType::f32, {1.9, -1.9, nan_, 3e9, -3e9, 1e20, 300});
  CHECK(ints(f(x, DType::i32)) == V{1, -1, low32, low32, low32, low32, 300});
  CHECK(ints(f(x, DType::i64)) == V{1, -1, low64, 3000000000, -3000000000, low64, 300});
  CHECK(ints(f(x, DType::i8)) == V{1, -1, 0, 0, 0, 0, 44});
  CHECK(ints(f(x, DType::u8)) == V{1, 255, 0, 0, 0, 0, 44});
  CHECK(ints(f(x, DType::b1)) == V{1, 1, 1, 1, 1, 1, 1});
  CHECK(ints(f(vector_of(DType::f64, {3000000001.0}), DType::u8)) == V{1});
  CHECK(ints(f(vector_of(DType::f32, {0, -0.0, 1e-40}), DType::b1)) == V{0, 0, 1});
  CHECK(ints(f(vector_of(DType::f64, {-2147483648.0, 2147483647.0, 2147483648.0, -2147483648.5}), DType::i32)) ==
        V{low32, 2147483647, low32, low32});
  CHECK(ints(f(integers(DType::i32, {300, -1, 256}), DType::u8)) == V{44, 255, 0});
  CHECK(ints(f(integers(DType::i32, {0, 256, -1}), DType::b1)) == V{0, 1, 1});
  CHECK_NUMBERS(f(integers(DType::b1, {0, 1}), DType::f32), {0, 1});
  CHECK_NUMBERS(f(integers(DType::i64, {16777217, 1}), DType::f32), {16777216, 1});
  CHECK_NUMBERS(f(vector_of(DType::f64, {0.1, 1e300}), DType::f32), {static_cast<double>(0.1f), inf});
  // To 16 bits through f32, as PyTorch does: the first is just above half way and is pulled onto it.
  CHECK_NUMBERS(f(vector_of(DType::f64, {1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11 + 0x1p-20, 65519, 65520}), DType::f16),
                {1, 1 + 0x1p-10, 65504, inf});
  CHECK_NUMBERS(f(vector_of(DType::f32, {1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-20, 3e-45, nan_}), DType::bf16), {1, 1 + 0x1p-7, 0, nan_});
}

TEST_CASE("interpreter: bitcast") {
  auto f = [](const HostTensor& x, DType to) { return apply(Op::bitcast, {x}, {{Attr::dtype, to}}); };
  CHECK(ints(f(vector_of(DType::f32, {1, -0.0}), DType::i32)) == std::vector<int64_t>{0x3f800000, std::numeric_limits<int32_t>::min()});
  CHECK(ints(f(vector_of(DType::bf16, {1}), DType::i16)) == std::vector<int64_t>{0x3f80});
  CHECK(error_of(Op::bitcast, {vector_of(DType::f32, {1})}, {{Attr::dtype, DType::i64}}).find("differ in size") != std::string::npos);
}

template <class Format>
void check_rounding(uint32_t largest) {
  using Stored = typename Format::Stored;
  for (uint32_t h = 0; h < Format::kSign * 2; ++h) {
    const auto bits = static_cast<Stored>(h), next = static_cast<Stored>(bits + 1);
    if (!std::isnan(Format::widen(bits))) REQUIRE(Format::narrow(Format::widen(bits)) == bits);
    if ((bits & Format::kMagnitude) >= largest) continue;
    // Half way to the next number: to the even one of the two; a hair more or less: to the nearer.
    const float here = Format::widen(bits), there = Format::widen(next);
    const auto middle = static_cast<float>((static_cast<double>(here) + there) / 2);
    REQUIRE(Format::narrow(middle) == (bits & 1 ? next : bits));
    REQUIRE(Format::narrow(std::nextafter(middle, there)) == next);
    REQUIRE(Format::narrow(std::nextafter(middle, here)) == bits);
  }
  CHECK(std::isnan(Format::widen(Format::narrow(NAN))));
  CHECK(std::isnan(Format::widen(Format::narrow(std::bit_cast<float>(0x7f800001)))));
}

TEST_CASE("interpreter: small formats round to nearest, ties to even") {
  using E5M2 = SmallFloat<5, 2>;
  using E4M3 = SmallFloat<4, 3, false>;
  check_rounding<Float16>(0x7bff);
  check_rounding<BFloat16>(0x7f7f);
  check_rounding<E5M2>(0x7b);
  check_rounding<E4M3>(0x7e);
  CHECK(Float16::narrow(65520.0f) == 0x7c00);
  CHECK(Float16::narrow(65519.0f) == 0x7bff);
  // Beyond its largest number one has infinity, the other nothing.
  CHECK(E5M2::narrow(61440.0f) == 0x7c);
  CHECK(E5M2::narrow(-INFINITY) == 0xfc);
  CHECK(E4M3::narrow(-1e9f) == 0xfe);
  CHECK(E4M3::widen(E4M3::narrow(INFINITY)) == 448);
  CHECK(largest(DType::f8_e4m3fn) == 448);
  CHECK(largest(DType::f8_e5m2) == 57344);
  CHECK(largest(DType::f16) == 65504);
  CHECK(largest(DType::f32) == double{std::numeric_limits<float>::max()});
  CHECK(largest(DType::f64) == std::numeric_limits<double>::max());
  CHECK(largest(DType::bf16) == std::ldexp(255.0, 120));
}

TEST_CASE("interpreter: bf16 and f16 round after every primitive") {
  HostTensor x = vector_of(DType::bf16, {256}), one = vector_of(DType::bf16, {1});
  GraphBuilder b;
  Value v = b.input(x.type), w = b.input(one.type);
  Graph g = b.finish({b.binary(Op::sub, b.binary(Op::add, v, w), v)});
  CHECK_NUMBERS(interpret(g, std::vector{x, one})[0], {0});
}

TEST_CASE("interpreter: complex numbers") {
  using C = std::complex<double>;
  auto make = [](DType t, std::vector<C> v) {
    HostTensor x = zeros(t, Sizes{static_cast<int64_t>(v.size())});
    for (size_t i = 0; i < v.size(); ++i) x.set(static_cast<int64_t>(i), v[i]);
    return x;
  };
  for (DType t : {DType::c32, DType::c64, DType::c128}) {
    INFO(std::string(name_of(t)));
    HostTensor a = make(t, {C(3, 4)}), b = make(t, {C(1, -2)});
    auto one = [](const HostTensor& x) { return std::get<C>(x.at(0)); };
    CHECK(one(apply(Op::add, {a, b})) == C(4, 2));
    CHECK(one(apply(Op::sub, {a, b})) == C(2, 6));
    CHECK(one(apply(Op::mul, {a, b})) == C(11, -2));
    CHECK(one(apply(Op::div, {a, b})) == one(make(t, {C(-1, 2)})));
    CHECK(one(apply(Op::neg, {a})) == C(-3, -4));
    CHECK(one(apply(Op::abs, {a})) == C(5, 0));
    CHECK(std::abs(one(apply(Op::exp, {make(t, {C(0, M_PI)})})) - C(-1, 0)) < 2e-3);
    CHECK(ints(apply(Op::eq, {a, a})) == std::vector<int64_t>{1});
    CHECK(ints(apply(Op::ne, {a, b})) == std::vector<int64_t>{1});
    CHECK_NUMBERS(apply(Op::cast, {a}, {{Attr::dtype, DType::f32}}), {3});
    CHECK(one(apply(Op::cast, {vector_of(DType::f32, {2})}, {{Attr::dtype, t}})) == C(2, 0));
    CHECK(ints(apply(Op::cast, {make(t, {C(0, 1), C(0, 0)})}, {{Attr::dtype, DType::b1}})) == std::vector<int64_t>{1, 0});
    CHECK(one(apply(Op::where, {integers(DType::b1, {0}), a, b})) == C(1, -2));
    CHECK(one(apply(Op::reduce_sum, {make(t, {C(1, 2), C(3, 5)})}, {{Attr::dims, Sizes{0}}})) == C(4, 7));
    CHECK(one(apply(Op::slice, {make(t, {C(1, 2), C(3, 5)})},
                    {{Attr::starts, Shape{1}}, {Attr::steps, Sizes{1}}, {Attr::shape, Shape{1}}})) == C(3, 5));
    CHECK(error_of(Op::lt, {a, b}).find("complex") != std::string::npos);
    CHECK(error_of(Op::floor, {a}).find("complex") != std::string::npos);
  }
}

TEST_CASE("interpreter: sources") {
  CHECK_NUMBERS(apply(Op::scalar, {}, {{Attr::value, Scalar(0.1)}, {Attr::dtype, DType::f32}}), {static_cast<double>(0.1f)});
  CHECK(ints(apply(Op::scalar, {}, {{Attr::value, Scalar(int64_t{300})}, {Attr::dtype, DType::u8}})) == std::vector<int64_t>{44});
  CHECK_NUMBERS(apply(Op::iota, {}, {{Attr::shape, Shape{2, 3}}, {Attr::dim, int64_t{1}}, {Attr::dtype, DType::f32}}), {0, 1, 2, 0, 1, 2});
  CHECK_NUMBERS(apply(Op::iota, {}, {{Attr::shape, Shape{2, 3}}, {Attr::dim, int64_t{0}}, {Attr::dtype, DType::i32}}), {0, 0, 0, 1, 1, 1});
}

TEST_CASE("interpreter: shape movement") {
  HostTensor x = tensor(DType::f32, {2, 3}, {0, 1, 2, 3, 4, 5});
  CHECK_NUMBERS(apply(Op::reshape, {x}, {{Attr::shape, Shape{3, 2}}}), {0, 1, 2, 3, 4, 5});
  CHECK_NUMBERS(apply(Op::permute, {x}, {{Attr::dims, Sizes{1, 0}}}), {0, 3, 1, 4, 2, 5});
  HostTensor y = tensor(DType::f32, {2, 1, 3}, {0, 1, 2, 3, 4, 5});
  CHECK_NUMBERS(apply(Op::permute, {y}, {{Attr::dims, Sizes{2, 0, 1}}}), {0, 3, 1, 4, 2, 5});
  CHECK_NUMBERS(apply(Op::expand, {y}, {{Attr::shape, Shape{2, 2, 3}}}), {0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5});
  auto slice = [&](Shape starts, Sizes steps, Shape shape) {
    return Attrs{{Attr::starts, starts}, {Attr::steps, steps}, {Attr::shape, shape}};
  };
  CHECK_NUMBERS(apply(Op::slice, {x}, slice({0, 1}, {1, 1}, {2, 2})), {1, 2, 4, 5});
  CHECK_NUMBERS(apply(Op::slice, {x}, slice({1, 2}, {-1, -2}, {2, 2})), {5, 3, 2, 0});
  CHECK_NUMBERS(apply(Op::slice, {x}, slice({0, 3}, {1, 1}, {2, 0})), {});
  CHECK(error_of(Op::slice, {x}, slice({0, 1}, {1, 2}, {2, 2})) == "%1 (slice): elements 1 to 3 of dimension 1, whose size is 3");
  auto pad = [&](Shape low, Shape high, Scalar value) { return Attrs{{Attr::low, low}, {Attr::high, high}, {Attr::value, value}}; };
  CHECK_NUMBERS(apply(Op::pad, {x}, pad({0, 1}, {1, 0}, 9.5)), {9.5, 0, 1, 2, 9.5, 3, 4, 5, 9.5, 9.5, 9.5, 9.5});
  CHECK_NUMBERS(apply(Op::pad, {x}, pad({0, -1}, {0, 1}, 7.0)), {1, 2, 7, 4, 5, 7});
  HostTensor z = tensor(DType::f32, {2, 1}, {10, 11});
  CHECK_NUMBERS(apply(Op::cat, {x, z, z}, {{Attr::dim, int64_t{1}}}), {0, 1, 2, 10, 10, 3, 4, 5, 11, 11});
  CHECK_NUMBERS(apply(Op::cat, {tensor(DType::f32, {0, 3}, {}), x}, {{Attr::dim, int64_t{0}}}), {0, 1, 2, 3, 4, 5});
  // Bits that are no number move unchanged.
  HostTensor odd = integers(DType::i32, {0x7f800001, 5});
  odd.type.dtype = DType::f32;
  HostTensor moved = apply(Op::slice, {odd}, slice({1}, {-1}, {2}));
  CHECK(std::equal(moved.bytes.begin() + 4, moved.bytes.end(), odd.bytes.begin()));
}

TEST_CASE("interpreter: take") {
  HostTensor x = tensor(DType::f32, {2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  HostTensor index = tensor(DType::i64, {2, 1}, {2, 0});
  HostTensor y = apply(Op::take, {x, index}, {{Attr::dim, int64_t{1}}});
  CHECK(y.sizes() == Sizes{2, 2, 1, 2});
  CHECK_NUMBERS(y, {4, 5, 0, 1, 10, 11, 6, 7});
  CHECK_NUMBERS(apply(Op::take, {x, tensor(DType::i32, {}, {1})}, {{Attr::dim, int64_t{0}}}), {6, 7, 8, 9, 10, 11});
  CHECK(error_of(Op::take, {x, tensor(DType::i64, {1}, {3})}, {{Attr::dim, int64_t{1}}}) ==
        "%2 (take): index 3 is outside dimension 1, whose size is 3");
  CHECK(error_of(Op::take, {x, tensor(DType::i64, {1}, {-1})}, {{Attr::dim, int64_t{1}}}) ==
        "%2 (take): index -1 is outside dimension 1, whose size is 3");
}

TEST_CASE("interpreter: reductions") {
  auto f = [](Op op, const HostTensor& x, Sizes dims) { return apply(op, {x}, {{Attr::dims, dims}}); };
  HostTensor x = tensor(DType::f32, {2, 3}, {1, 5, 3, 4, 2, 6});
  CHECK_NUMBERS(f(Op::reduce_sum, x, {1}), {9, 12});
  CHECK_NUMBERS(f(Op::reduce_sum, x, {0}), {5, 7, 9});
  CHECK_NUMBERS(f(Op::reduce_sum, x, {0, 1}), {21});
  CHECK_NUMBERS(f(Op::reduce_prod, x, {1}), {15, 48});
  CHECK_NUMBERS(f(Op::reduce_min, x, {1}), {1, 2});
  CHECK_NUMBERS(f(Op::reduce_max, x, {0}), {4, 5, 6});
  CHECK(ints(f(Op::reduce_argmax, x, {1})) == Sizes{1, 2});
  CHECK(ints(f(Op::reduce_argmin, x, {0})) == Sizes{0, 1, 0});
  CHECK(ints(f(Op::reduce_argmax, x, {0, 1})) == Sizes{5});
  CHECK(ints(f(Op::reduce_argmax, x, {})) == Sizes{0, 0, 0, 0, 0, 0});
  HostTensor deep = tensor(DType::f32, {2, 2, 2}, {1, 2, 9, 4, 5, 6, 7, 8});
  CHECK(ints(f(Op::reduce_argmax, deep, {0, 2})) == Sizes{3, 0});  // positions among 2 x 2: (1, 1) and (0, 0)
  CHECK_NUMBERS(f(Op::reduce_sum, deep, {0, 2}), {14, 28});

  HostTensor special = tensor(DType::f32, {3, 3}, {1, nan_, nan_, 2, 2, 1, -inf, inf, 1});
  CHECK_NUMBERS(f(Op::reduce_max, special, {1}), {nan_, 2, inf});
  CHECK_NUMBERS(f(Op::reduce_min, special, {1}), {nan_, 1, -inf});
  CHECK(ints(f(Op::reduce_argmax, special, {1})) == Sizes{1, 0, 1});
  CHECK(ints(f(Op::reduce_argmin, special, {1})) == Sizes{1, 2, 0});
  CHECK_NUMBERS(f(Op::reduce_sum, special, {1}), {nan_, 5, nan_});

  CHECK_NUMBERS(f(Op::reduce_sum, tensor(DType::f32, {0, 2}, {}), {0}), {0, 0});
  CHECK_NUMBERS(f(Op::reduce_prod, tensor(DType::f32, {0, 2}, {}), {0}), {1, 1});
  CHECK_NUMBERS(f(Op::reduce_max, tensor(DType::f32, {0, 2}, {}), {1}), {});
  CHECK(error_of(Op::reduce_max, {tensor(DType::f32, {0, 2}, {})}, {{Attr::dims, Sizes{0}}}) ==
        "%1 (reduce_max): not defined for no elements");
  CHECK(error_of(Op::reduce_argmin, {tensor(DType::f32, {0, 2}, {})}, {{Attr::dims, Sizes{0}}}) ==
        "%1 (reduce_argmin): not defined for no elements");

  HostTensor bools = tensor(DType::b1, {2, 2}, {0, 1, 1, 1});
  CHECK(ints(f(Op::reduce_min, bools, {1})) == Sizes{0, 1});
  CHECK(ints(f(Op::reduce_max, bools, {1})) == Sizes{1, 1});
  CHECK(ints(f(Op::reduce_min, tensor(DType::b1, {0}, {}), {0})) == Sizes{1});
  CHECK(ints(f(Op::reduce_max, tensor(DType::b1, {0}, {}), {0})) == Sizes{0});

  CHECK(ints(f(Op::reduce_sum, integers(DType::i8, {100, 100}), {0})) == Sizes{-56});
  CHECK(ints(f(Op::reduce_prod, integers(DType::u8, {16, 17}), {0})) == Sizes{16});
  // In a wider type: f32 would stay at 2^24, bf16 at 256.
  CHECK_NUMBERS(f(Op::reduce_sum, vector_of(DType::f32, {16777216, 1, 1, 1, 1}), {0}), {16777220});
  CHECK_NUMBERS(f(Op::reduce_sum, vector_of(DType::bf16, Numbers(300, 1)), {0}), {300});
  CHECK_NUMBERS(f(Op::reduce_sum, vector_of(DType::f64, {1e16, 1, 1}), {0}), {1e16 + 2});
}

TEST_CASE("interpreter: dot") {
  auto f = [](const HostTensor& a, const HostTensor& b, int64_t batch) { return apply(Op::dot, {a, b}, {{Attr::batch, batch}}); };
  HostTensor a = tensor(DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6}), b = tensor(DType::f32, {3, 2}, {1, 0, 2, 1, 0, 3});
  CHECK_NUMBERS(f(a, b, 0), {5, 11, 14, 23});
  CHECK_NUMBERS(f(tensor(DType::f32, {3}, {1, 2, 3}), b, 0), {5, 11});
  HostTensor c = tensor(DType::f32, {2, 1, 2, 1}, {1, 2, 3, 4}), d = tensor(DType::f32, {2, 1, 2}, {1, 10, 100, 1000});
  CHECK_NUMBERS(f(c, d, 1), {1, 10, 2, 20, 300, 3000, 400, 4000});
  CHECK_NUMBERS(f(tensor(DType::f32, {1, 0}, {}), tensor(DType::f32, {0, 2}, {}), 0), {0, 0});
  CHECK(ints(f(tensor(DType::i8, {1, 2}, {100, 100}), tensor(DType::i8, {2, 1}, {1, 1}), 0)) == Sizes{-56});
  CHECK_NUMBERS(f(tensor(DType::bf16, {1, 3}, {256, 1, 1}), tensor(DType::bf16, {3, 1}, {1, 1, 1}), 0), {258});
}

TEST_CASE("interpreter: conv") {
  auto attrs = [](Sizes stride, Shape padding, Sizes dilation, bool transposed = false, int64_t groups = 1, int64_t extra = 0) {
    return Attrs{{Attr::stride, stride},
                 {Attr::padding, padding},
                 {Attr::dilation, dilation},
                 {Attr::transposed, int64_t{transposed}},
                 {Attr::output_padding, Shape(stride.size(), extra)},
                 {Attr::groups, groups}};
  };
  HostTensor x = tensor(DType::f32, {1, 1, 5}, {1, 2, 3, 4, 5}), w = tensor(DType::f32, {1, 1, 3}, {1, 10, 100});
  CHECK_NUMBERS(apply(Op::conv, {x, w}, attrs({1}, {0}, {1})), {321, 432, 543});
  CHECK_NUMBERS(apply(Op::conv, {x, w}, attrs({2}, {1}, {1})), {210, 432, 54});
  CHECK_NUMBERS(apply(Op::conv, {x, w}, attrs({1}, {0}, {2})), {531});
  CHECK_NUMBERS(apply(Op::conv, {x, w, vector_of(DType::f32, {0.5})}, attrs({1}, {0}, {1})), {321.5, 432.5, 543.5});
  // Two groups: each output channel sees its own input channels.
  HostTensor x2 = tensor(DType::f32, {1, 4, 1}, {1, 2, 3, 4}), w2 = tensor(DType::f32, {2, 2, 1}, {1, 10, 100, 1000});
  CHECK_NUMBERS(apply(Op::conv, {x2, w2}, attrs({1}, {0}, {1}, false, 2)), {21, 4300});
  // Two dimensions: the kernel is not flipped.
  HostTensor image = tensor(DType::f32, {1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), k = tensor(DType::f32, {1, 1, 2, 2}, {1, 10, 100, 1000});
  CHECK_NUMBERS(apply(Op::conv, {image, k}, attrs({1, 1}, {0, 0}, {1, 1})), {5421, 6532});
  // Transposed: each input element adds a scaled kernel to the output.
  HostTensor y = tensor(DType::f32, {1, 1, 2}, {1, 2});
  CHECK_NUMBERS(apply(Op::conv, {y, w}, attrs({1}, {0}, {1}, true)), {1, 12, 120, 200});
  CHECK_NUMBERS(apply(Op::conv, {y, w}, attrs({2}, {0}, {1}, true)), {1, 10, 102, 20, 200});
  CHECK_NUMBERS(apply(Op::conv, {y, w}, attrs({2}, {1}, {1}, true, 1, 1)), {10, 102, 20, 200});
  CHECK_NUMBERS(apply(Op::conv, {y, w}, attrs({1}, {0}, {2}, true)), {1, 2, 10, 20, 100, 200});
  HostTensor y2 = tensor(DType::f32, {1, 2, 1}, {1, 2}), w3 = tensor(DType::f32, {2, 2, 1}, {1, 10, 100, 1000});
  CHECK_NUMBERS(apply(Op::conv, {y2, w3}, attrs({1}, {0}, {1}, true)), {201, 2010});
  CHECK_NUMBERS(apply(Op::conv, {y2, w3}, attrs({1}, {0}, {1}, true, 2)), {1, 10, 200, 2000});
}

TEST_CASE("interpreter: gradients of a convolution's weight") {
  auto gradient = [](const HostTensor& x, const HostTensor& y, Shape shape, int64_t stride, int64_t padding, int64_t groups) {
    return apply(Op::conv_weight_gradient, {x, y},
                 {{Attr::stride, Sizes{stride}},
                  {Attr::padding, Shape{padding}},
                  {Attr::dilation, Sizes{1}},
                  {Attr::groups, groups},
                  {Attr::shape, std::move(shape)}});
  };
  HostTensor x = tensor(DType::f32, {1, 1, 5}, {1, 2, 3, 4, 5}), y = tensor(DType::f32, {1, 1, 3}, {1, 10, 100});
  CHECK_NUMBERS(gradient(x, y, {1, 1, 3}, 1, 0, 1), {321, 432, 543});
  CHECK_NUMBERS(gradient(x, y, {1, 1, 3}, 2, 1, 1), {420, 531, 42});
  HostTensor x2 = tensor(DType::f32, {1, 4, 1}, {1, 2, 3, 4}), y2 = tensor(DType::f32, {1, 2, 1}, {1, 10});
  CHECK_NUMBERS(gradient(x2, y2, {2, 2, 1}, 1, 0, 2), {1, 2, 30, 40});
}

TEST_CASE("interpreter: symbols come from the call, from inputs and from extern results") {
  Graph g = Graph::parse(
      "symbol s0(hint=2, min=0, input=0, dim=1)\n"
      "symbol s1(hint=1, min=0)\n"
      "%0 = input(index=0) : f32[2, s0]\n"
      "%1 = extern_call(%0, call=\"mine::positive\"($0)) : f32[s1]\n"
      "%2 = size(expr=s0 + 10*s1) : i64[]\n"
      "return %2, %1\n");
  auto positive = [](const Node& n, std::span<const HostTensor> in) {
    CHECK(n.call().schema == "mine::positive");
    Numbers kept;
    for (double x : numbers(in[0]))
      if (x > 0) kept.push_back(x);
    return std::vector{vector_of(DType::f32, kept)};
  };
  std::vector<HostTensor> in{tensor(DType::f32, {2, 3}, {1, -1, 2, -2, 3, 4})};
  auto out = interpret(g, in, {}, positive);
  CHECK_NUMBERS(out[0], {43});
  CHECK_NUMBERS(out[1], {1, 2, 3, 4});
  CHECK_THROWS_WITH_AS(interpret(g, in, std::vector<int64_t>{4}, positive), "%0 (input): is f32[2, 3], expected f32[2, s0]", Error);
  CHECK_THROWS_WITH_AS(interpret(g, in), "%1 (extern_call): no handler for mine::positive", Error);
  CHECK_THROWS_WITH_AS(interpret(g, {}), "the graph has 1 inputs, 0 are given", Error);
  auto wrong = [](const Node&, std::span<const HostTensor>) { return std::vector{vector_of(DType::f64, {1})}; };
  CHECK_THROWS_WITH_AS(interpret(g, in, {}, wrong), "%1 (extern_call): mine::positive gave f64[1], expected f32[s1]", Error);
}

TEST_CASE("interpreter: random graphs run, and results are finite where inputs are") {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    testing::Options options;
    options.symbolic = seed % 2;
    options.contractions = seed % 3 == 0;
    options.routines = seed % 5 == 0;
    Graph g = testing::random_graph(seed, options);
    CAPTURE(g.str());
    auto inputs = testing::random_inputs(g, seed);
    std::vector<HostTensor> results;
    REQUIRE_NOTHROW(results = interpret(g, inputs));
    CHECK(g.symbols()->guards().empty());
    for (const HostTensor& t : results)
      for (double x : numbers(t)) REQUIRE(std::isfinite(x));
    // The same at other sizes.
    std::vector<int64_t> sizes;
    for (const SymbolInfo& s : g.symbols()->infos()) sizes.push_back(s.hint + 1);
    auto other = testing::random_inputs(g, seed, sizes);
    CHECK_NOTHROW(interpret(g, other, sizes));
    CHECK(first_difference(results[0], results[0]) == "");
  }
}
