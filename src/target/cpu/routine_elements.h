// Element types of routines: how they are stored, in what they are computed, and their order as unsigned integers.
#pragma once

#include <bit>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>

#include "ir/element.h"

namespace broach::cpu {

// f(element type) for real types that something is computed in; a default value of its result for others.
template <class F>
auto with_real_element(DType t, const F& f) -> decltype(f(Bool())) {
  switch (t) {
#define TYPE(name, ...)                                                              \
  case DType::name:                                                                  \
    if constexpr (is_complex(DType::name) || is_stored_only(DType::name)) return {}; \
    else return f(element_of<DType::name>());
#include "ir/types.def"
#undef TYPE
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
