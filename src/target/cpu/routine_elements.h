// Element types of routines: how they are stored, in what they are computed, and their order as unsigned integers.
#pragma once

#include <bit>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>

#include "ir/type.h"
#include "support/float16.h"

namespace broach::cpu {

template <class T>
struct Element {
  using Stored = T;
  using Computed = T;
  static T widen(T v) { return v; }
  static T narrow(T v) { return v; }
};
struct BoolElement {
  using Stored = uint8_t;
  using Computed = bool;
  static bool widen(uint8_t v) { return v != 0; }
  static uint8_t narrow(bool v) { return v; }
};
struct F16Element {
  using Stored = uint16_t;
  using Computed = float;
  static float widen(uint16_t v) { return f16_to_f32(v); }
  static uint16_t narrow(float v) { return f32_to_f16(v); }
};
struct BF16Element {
  using Stored = uint16_t;
  using Computed = float;
  static float widen(uint16_t v) { return bf16_to_f32(v); }
  static uint16_t narrow(float v) { return f32_to_bf16(v); }
};

// f(element type) for real types; a default value of its result for others.
template <class F>
auto with_real_element(DType t, const F& f) -> decltype(f(BoolElement())) {
  switch (t) {
    case DType::b1: return f(BoolElement());
    case DType::u8: return f(Element<uint8_t>());
    case DType::i8: return f(Element<int8_t>());
    case DType::i16: return f(Element<int16_t>());
    case DType::i32: return f(Element<int32_t>());
    case DType::i64: return f(Element<int64_t>());
    case DType::f16: return f(F16Element());
    case DType::bf16: return f(BF16Element());
    case DType::f32: return f(Element<float>());
    case DType::f64: return f(Element<double>());
    default: return {};
  }
}

template <class T>
constexpr bool is_floating_v = std::is_floating_point_v<T>;

template <class T>
bool is_nan(T x) {
  if constexpr (is_floating_v<T>) return std::isnan(x);
  else return false;
}

// A number whose order among others is the value's: NaN above all, both zeros equal.
template <class E>
auto order_key(typename E::Stored stored) {
  using T = typename E::Computed;
  const T v = E::widen(stored);
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<uint32_t>(v);
  } else if constexpr (is_floating_v<T>) {
    using K = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    constexpr K sign = K{1} << (8 * sizeof(K) - 1);
    if (std::isnan(v)) return std::numeric_limits<K>::max();
    const K bits = std::bit_cast<K>(v == 0 ? T{0} : v);
    return bits & sign ? static_cast<K>(~bits) : static_cast<K>(bits | sign);
  } else {
    using K = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    constexpr K lowest = std::is_signed_v<T> ? K{1} << (8 * sizeof(K) - 1) : K{0};
    using Wide = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
    if constexpr (std::is_signed_v<T>) return static_cast<K>(static_cast<K>(static_cast<Wide>(v)) ^ lowest);
    else return static_cast<K>(v);
  }
}

template <class E>
using KeyOf = decltype(order_key<E>(typename E::Stored{}));

}  // namespace broach::cpu
