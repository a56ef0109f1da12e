// What each elementwise primitive computes for one element: a line each.
//
// Real functions are evaluated in f64 and rounded once to the element's computing type (f32 for f16, bf16 and f32), so an
// f32 result is the exact one, rounded. Integers wrap. An integer division by zero is an error, as in PyTorch on the CPU.
#pragma once

#include <array>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ir/element.h"
#include "ir/graph.h"
#include "support/error.h"

namespace broach::reference {

template <class E>
typename E::Computed load(const std::byte* data, int64_t i) {
  typename E::Stored v;
  std::memcpy(&v, data + i * static_cast<int64_t>(sizeof v), sizeof v);
  return E::widen(v);
}
template <class E>
void store(std::byte* data, int64_t i, typename E::Computed value) {
  typename E::Stored v = E::narrow(value);
  std::memcpy(data + i * static_cast<int64_t>(sizeof v), &v, sizeof v);
}

template <class T>
constexpr bool is_complex_v = false;
template <class T>
constexpr bool is_complex_v<std::complex<T>> = true;
template <class T>
constexpr bool is_bool_v = std::is_same_v<T, bool>;
template <class T>
constexpr bool is_integer_v = std::is_integral_v<T> && !is_bool_v<T>;

[[noreturn]] inline void undefined(Op op, const char* type) { fail("not defined for ", type, ": ", name_of(op)); }

// ---- one operand ----

double real_unary(Op op, double x);
std::complex<double> complex_unary(Op op, std::complex<double> x);

template <class I>
I wrap(uint64_t v) {
  return static_cast<I>(v);
}

template <class I>
I integer_unary(Op op, I x) {
  switch (op) {
    case Op::neg: return wrap<I>(-static_cast<uint64_t>(x));
    case Op::abs: return x < 0 ? wrap<I>(-static_cast<uint64_t>(x)) : x;
    case Op::sign: return static_cast<I>((x > 0) - (x < 0));
    case Op::relu: return x < 0 ? I{0} : x;
    case Op::bit_not: return static_cast<I>(~x);
    case Op::floor:
    case Op::ceil:
    case Op::trunc:
    case Op::round: return x;
    default: undefined(op, "integers");
  }
}

inline bool bool_unary(Op op, bool x) {
  switch (op) {
    case Op::bit_not: return !x;
    case Op::abs:
    case Op::sign:
    case Op::relu:
    case Op::floor:
    case Op::ceil:
    case Op::trunc:
    case Op::round: return x;
    default: undefined(op, "b1");
  }
}

template <class T>
T unary(Op op, T x) {
  if (op == Op::copy || op == Op::place) return x;
  if constexpr (is_bool_v<T>) return bool_unary(op, x);
  else if constexpr (is_integer_v<T>) return integer_unary(op, x);
  else if constexpr (is_complex_v<T>) return static_cast<T>(complex_unary(op, static_cast<std::complex<double>>(x)));
  else return static_cast<T>(real_unary(op, static_cast<double>(x)));
}

template <class T>
bool is_nan(T x) {
  if constexpr (is_complex_v<T>) return std::isnan(x.real()) || std::isnan(x.imag());
  else if constexpr (std::is_floating_point_v<T>) return std::isnan(x);
  else return false;
}

// ---- two operands ----

// As c10::div_floor_floating computes it, in the same type, for the same roundings.
template <class R>
R floor_div(R a, R b) {
  if (b == 0) return a / b;
  R m = std::fmod(a, b), q = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) q -= 1;
  if (q == 0) return std::copysign(R{0}, a / b);
  R down = std::floor(q);
  return q - down > R{0.5} ? down + 1 : down;
}
template <class R>
R floor_mod(R a, R b) {
  R m = std::fmod(a, b);
  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}

template <class R>
R real_binary(Op op, R a, R b) {
  switch (op) {
    case Op::add: return a + b;
    case Op::sub: return a - b;
    case Op::mul: return a * b;
    case Op::div: return a / b;
    case Op::floor_div: return floor_div(a, b);
    case Op::mod: return floor_mod(a, b);
    case Op::fmod: return std::fmod(a, b);
    case Op::pow: return static_cast<R>(std::pow(double{a}, double{b}));
    case Op::atan2: return static_cast<R>(std::atan2(double{a}, double{b}));
    case Op::hypot: return static_cast<R>(std::hypot(double{a}, double{b}));
    case Op::copysign: return std::copysign(a, b);
    case Op::nextafter: return std::nextafter(a, b);
    case Op::min: return std::isnan(a) ? a : std::isnan(b) ? b : b < a ? b : a;
    case Op::max: return std::isnan(a) ? a : std::isnan(b) ? b : b > a ? b : a;
    default: undefined(op, "floating-point numbers");
  }
}

template <class I>
I integer_pow(I a, I n) {
  if (n < 0) return a == 1 ? I{1} : a != static_cast<I>(-1) ? I{0} : n % 2 ? a : I{1};
  uint64_t p = 1, base = static_cast<uint64_t>(a);
  for (auto e = static_cast<uint64_t>(n); e; e >>= 1, base *= base)
    if (e & 1) p *= base;
  return wrap<I>(p);
}
template <class I>
I divisor(Op op, I b) {
  check(b != 0, name_of(op), ": integer division by zero");
  return b;
}

template <class I>
I integer_binary(Op op, I a, I b) {
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  const bool minus_one = std::is_signed_v<I> && b == static_cast<I>(-1);  // the lowest number by -1 wraps
  const bool too_far = b < 0 || ub >= 8 * sizeof(I);
  auto remainder = [&] { return minus_one ? I{0} : static_cast<I>(a % divisor(op, b)); };
  auto other_sign = [&] { return remainder() != 0 && (remainder() < 0) != (b < 0); };
  auto quotient = [&] { return minus_one ? wrap<I>(-ua) : static_cast<I>(a / divisor(op, b)); };
  switch (op) {
    case Op::add: return wrap<I>(ua + ub);
    case Op::sub: return wrap<I>(ua - ub);
    case Op::mul: return wrap<I>(ua * ub);
    case Op::div: return quotient();
    case Op::floor_div: return static_cast<I>(quotient() - other_sign());
    case Op::mod: return static_cast<I>(remainder() + (other_sign() ? b : I{0}));
    case Op::fmod: return remainder();
    case Op::pow: return integer_pow(a, b);
    case Op::min: return b < a ? b : a;
    case Op::max: return b > a ? b : a;
    case Op::bit_and: return static_cast<I>(a & b);
    case Op::bit_or: return static_cast<I>(a | b);
    case Op::bit_xor: return static_cast<I>(a ^ b);
    case Op::shl: return too_far ? I{0} : wrap<I>(ua << ub);
    case Op::shr: return static_cast<I>(static_cast<int64_t>(a) >> (too_far ? 63 : static_cast<int>(b)));
    default: undefined(op, "integers");
  }
}

inline bool bool_binary(Op op, bool a, bool b) {
  switch (op) {
    case Op::add:
    case Op::max:
    case Op::bit_or: return a || b;
    case Op::mul:
    case Op::min:
    case Op::bit_and: return a && b;
    case Op::bit_xor: return a != b;
    default: undefined(op, "b1");
  }
}

template <class C>
C complex_binary(Op op, C a, C b) {
  switch (op) {
    case Op::add: return a + b;
    case Op::sub: return a - b;
    case Op::mul: return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
    case Op::div: return static_cast<C>(static_cast<std::complex<double>>(a) / static_cast<std::complex<double>>(b));
    case Op::pow: return static_cast<C>(std::pow(static_cast<std::complex<double>>(a), static_cast<std::complex<double>>(b)));
    default: undefined(op, "complex numbers");
  }
}

template <class T>
T binary(Op op, T a, T b) {
  if constexpr (is_bool_v<T>) return bool_binary(op, a, b);
  else if constexpr (is_integer_v<T>) return integer_binary(op, a, b);
  else if constexpr (is_complex_v<T>) return complex_binary(op, a, b);
  else return real_binary(op, a, b);
}

// The neighbour of `a` towards `b` in a 16-bit floating-point format.
template <class E>
uint16_t next_16(uint16_t a, uint16_t b) {
  const float x = E::widen(a), y = E::widen(b);
  if (std::isnan(x) || std::isnan(y)) return E::narrow(NAN);
  if (x == y) return b;
  if (x == 0) return static_cast<uint16_t>((b & 0x8000) | 1);
  return static_cast<uint16_t>((x > 0) == (y > x) ? a + 1 : a - 1);
}

template <class E>
typename E::Computed binary_of(Op op, typename E::Computed a, typename E::Computed b) {
  if constexpr (std::is_same_v<E, Float16> || std::is_same_v<E, BFloat16>)
    if (op == Op::nextafter) return E::widen(next_16<E>(E::narrow(a), E::narrow(b)));
  return binary(op, a, b);
}

template <class T>
bool compare(Op op, T a, T b) {
  if (op == Op::eq) return a == b;
  if (op == Op::ne) return a != b;
  if constexpr (is_complex_v<T>) {
    undefined(op, "complex numbers");
  } else {
    switch (op) {
      case Op::lt: return a < b;
      case Op::le: return a <= b;
      case Op::gt: return a > b;
      default: return a >= b;
    }
  }
}

// ---- conversion ----

// As x86 truncates: what does not fit, NaN included, gives the lowest number.
template <class I>
I truncated(double x) {
  constexpr I lowest = std::numeric_limits<I>::min();
  const double t = std::trunc(x);
  return t > static_cast<double>(lowest) && t < -static_cast<double>(lowest) ? static_cast<I>(t) : lowest;
}

template <class To, class From>
To convert(From x) {
  if constexpr (is_complex_v<To> && is_complex_v<From>) return static_cast<To>(x);
  else if constexpr (is_complex_v<To>) return To(convert<typename To::value_type>(x), 0);
  else if constexpr (is_bool_v<To>) return x != From(0);
  else if constexpr (is_complex_v<From>) return convert<To>(x.real());
  else if constexpr (!std::is_floating_point_v<From> || std::is_floating_point_v<To>) return static_cast<To>(x);
  else if constexpr (std::is_same_v<To, int64_t> || std::is_same_v<To, uint8_t>) return static_cast<To>(truncated<int64_t>(x));
  else return static_cast<To>(truncated<int32_t>(x));
}

template <class To>
To convert(const Scalar& s) {
  return std::visit([](auto v) { return convert<To>(v); }, s);
}

}  // namespace broach::reference
