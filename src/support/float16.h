// The two 16-bit floating-point formats as bits, converted to and from f32; to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace broach {

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

inline uint16_t f32_to_bf16(float f) {
  auto bits = std::bit_cast<uint32_t>(f);
  if (std::isnan(f)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
  float sign = h & 0x8000 ? -1.0f : 1.0f;
  int exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return std::copysign(mantissa ? NAN : INFINITY, sign);
  return sign * (exponent ? std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25) : std::ldexp(static_cast<float>(mantissa), -24));
}

inline uint16_t f32_to_f16(float f) {
  auto sign = static_cast<uint16_t>(std::signbit(f) ? 0x8000 : 0);
  if (std::isnan(f)) return sign | 0x7e00;
  float a = std::fabs(f);
  if (a >= 65520.0f) return sign | 0x7c00;  // halfway to the next power of two, and above
  int exponent = a < 0x1p-14f ? -14 : std::ilogb(a);
  // In units of the last place; 1024 of them and more carry into the exponent field by themselves.
  auto units = static_cast<int>(std::nearbyint(std::ldexp(a, 10 - exponent)));
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + units));
}

}  // namespace broach
