// Odd functions by a short polynomial for each of 32 intervals, whose coefficients a vpermi2ps fetches for 16 lanes: half the
// multiplications that one polynomial for the whole domain takes, and no division.
//
// Intervals are wider the further from zero: those of which x + 3/4 unit has the same exponent and the same first three bits of
// the mantissa. Up to x = 11.25 units these bits and the exponent's last two tell them apart.
#pragma once

#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/IR/IRBuilder.h>

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace broach::cpu {

struct Piecewise {
  static constexpr unsigned kIntervals = 32;
  using Table = std::array<float, kIntervals>;

  float shift;                      // 3/4 of a unit, which is a power of two
  float limit;                      // from here on, at most 11.25 units, the function is what it is here
  std::vector<Table> coefficients;  // of (x - center)^k; the lower half of the last is the upper half of the center

  // Where an interval's numbers lie in the tables: in the last five bits of this for any x in it.
  uint32_t place(float x) const { return std::bit_cast<uint32_t>(x + shift) >> kPlaceShift; }
  static constexpr unsigned kPlaceShift = 20;
};

// f is odd, and rounds to f(limit) from `limit` on.
Piecewise fit_odd(llvm::function_ref<double(double)> f, float shift, float limit, unsigned degree);

const Piecewise& piecewise_erf();
const Piecewise& piecewise_tanh();
const Piecewise& piecewise_normal();  // Phi(x) - 1/2, Phi being the normal distribution
const Piecewise& coarse_tanh();       // relative error 1.7e-4

// Of 16 lanes, with AVX-512. NaN stays NaN, and zeros keep their sign.
llvm::Value* emit_piecewise(llvm::IRBuilderBase& b, llvm::Value* x, const Piecewise& pieces);

}  // namespace broach::cpu
