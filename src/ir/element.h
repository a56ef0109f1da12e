// The C++ types of elements, by their rows: how one is stored, and in what it is computed.
#pragma once

#include <array>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "ir/type.h"
#include "support/small_float.h"

namespace broach {

template <class T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static T widen(T v) { return v; }
  static T narrow(T v) { return v; }
};
struct Bool {
  using Stored = uint8_t;
  using Computed = bool;
  static bool widen(uint8_t v) { return v != 0; }
  static uint8_t narrow(bool v) { return v; }
};
template <class Part>
struct Pair {
  using Stored = std::array<typename Part::Stored, 2>;
  using Computed = std::complex<typename Part::Computed>;
  static Computed widen(Stored v) { return {Part::widen(v[0]), Part::widen(v[1])}; }
  static Stored narrow(Computed v) { return {Part::narrow(v.real()), Part::narrow(v.imag())}; }
};

template <int64_t bytes>
using IntegerOf =
    std::conditional_t<bytes == 1, int8_t, std::conditional_t<bytes == 2, int16_t, std::conditional_t<bytes == 4, int32_t, int64_t>>>;

template <DType t>
constexpr auto element_of() {
  constexpr TypeRow r = row(t);
  if constexpr (t == DType::b1) return Bool();
  else if constexpr (is_integral(t) && is_unsigned(t)) return Plain<std::make_unsigned_t<IntegerOf<r.bytes>>>();
  else if constexpr (is_integral(t)) return Plain<IntegerOf<r.bytes>>();
  else if constexpr (is_low_precision(t)) return SmallFloat<r.exponent_bits, r.digits, r.has_infinity>();
  else if constexpr (is_floating(t)) return Plain<std::conditional_t<r.bytes == 4, float, double>>();
  else if constexpr (r.computed != t) return Pair<SmallFloat<r.exponent_bits, r.digits>>();
  else return Plain<std::complex<std::conditional_t<r.bytes == 8, float, double>>>();
}

// f(element type), as in with_element(dtype, [&](auto element) { using E = decltype(element); ... }).
template <class F>
auto with_element(DType t, const F& f) -> decltype(f(Bool())) {
  switch (t) {
#define TYPE(name, ...) \
  case DType::name: return f(element_of<DType::name>());
#include "ir/types.def"
#undef TYPE
    default: unknown_type(static_cast<int>(t));
  }
}

}  // namespace broach
