// Floating-point formats below 32 bits, as bits, converted to and from f32; to nearest, ties to even.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace broach {

// Without infinity, what is beyond the largest number becomes that, and NaN is all ones.
template <int exponent_bits, int digits, bool has_infinity = true>
struct SmallFloat {
  using Stored = std::conditional_t<exponent_bits + digits == 7, uint8_t, uint16_t>;
  using Computed = float;

  static float widen(Stored h) {
    if constexpr (exponent_bits == 8) return std::bit_cast<float>(static_cast<uint32_t>(h) << kShift);
    const uint32_t magnitude = h & kMagnitude, sign = static_cast<uint32_t>(h & kSign) << (31 - exponent_bits - digits);
    if (magnitude > kBeyond) return std::bit_cast<float>(sign | 0x7fc00000u);
    if (has_infinity && magnitude == kBeyond) return std::bit_cast<float>(sign | 0x7f800000u);
    const bool denormal = magnitude >> digits == 0;
    const float f = denormal ? static_cast<float>(magnitude) * kUnit : std::bit_cast<float>((magnitude << kShift) + kRebias);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(f) | sign);
  }

  static Stored narrow(float f) {
    const auto bits = std::bit_cast<uint32_t>(f), a = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> 31) << (exponent_bits + digits);
    if (std::isnan(f)) return static_cast<Stored>(sign | (exponent_bits == 8 ? (a >> kShift) | 0x40 : kNan));
    // To whole units of the last place: of a denormal by a sum whose last place has that unit.
    const uint32_t rounded = a < kSmallestNormal
                                 ? std::bit_cast<uint32_t>(std::bit_cast<float>(a) + kUnitSum) - std::bit_cast<uint32_t>(kUnitSum)
                                 : (a - kRebias + ((1u << (kShift - 1)) - 1) + ((a >> kShift) & 1)) >> kShift;
    return static_cast<Stored>(sign | std::min(rounded, kBeyond));
  }

  static constexpr uint32_t kSign = 1u << (exponent_bits + digits), kMagnitude = kSign - 1;
  static constexpr uint32_t kBeyond = has_infinity ? ((1u << exponent_bits) - 1) << digits : kMagnitude - 1;  // infinity, or the largest
  static constexpr uint32_t kNan = digits > 3 ? kBeyond | 1u << (digits - 1) : kMagnitude;
  static constexpr int kShift = 23 - digits, kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;  // what the exponent of f32 has more
  static constexpr uint32_t kSmallestNormal = exponent_bits == 8 ? 0 : kRebias + (1u << 23);
  // A denormal's last place; and a number whose last place that is.
  static constexpr float kUnit = std::bit_cast<float>(static_cast<uint32_t>(exponent_bits == 8 ? 1 : 128 - kBias - digits) << 23);
  static constexpr float kUnitSum = std::bit_cast<float>(static_cast<uint32_t>(exponent_bits == 8 ? 1 : 151 - kBias - digits) << 23);
};

using Float16 = SmallFloat<5, 10>;
using BFloat16 = SmallFloat<8, 7>;

}  // namespace broach
