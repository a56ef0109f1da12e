// LLVM IR for the transcendental functions of kernels, on scalars and fixed vectors of f32 and f64.
//
// A function of f32 that kernels meet often is emitted inline: a few branch-free vector instructions around a minimax
// polynomial. The rest calls glibc's vector library, libmvec, where it has the function for the type, always of the widest vector so that
// a value has the same bits wherever it is computed, and libm lane by lane where it does not. NaN, infinities, signed zeros and denormals
// come out as from glibc; `kMathFns` gives the error bounds, which tests/core/vector_math_test.cpp asserts.
//
// What a kernel must keep to:
// - No "min-legal-vector-width" below 512 on the function that holds the code: LLVM would then pass a <16 x float> to libmvec
//   in two ymm registers instead of one zmm. Leaving the attribute out is right.
// - `Features` may claim no more than the function's target features allow.
// - sin and cos of f32, and with `bf16` the conversion to it, end in another basic block than they began: ask the builder for
//   its block again after them.
#pragma once

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/IR/IRBuilder.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace broach::cpu {

enum class MathFn : uint8_t {
  exp,
  exp2,
  expm1,
  log,
  log2,
  log10,
  log1p,
  sin,
  cos,
  tan,
  asin,
  acos,
  atan,
  sinh,
  cosh,
  tanh,
  asinh,
  acosh,
  atanh,
  erf,
  erfc,
  erfinv,
  lgamma,
  digamma,
  sigmoid,
  rsqrt,
  pow,
  atan2,
  hypot,
  cbrt,
};

struct MathFnInfo {
  MathFn fn;
  std::string_view name;  // C's name for it in f64, or ours where C has none
  int arity;
  bool inline_f32;  // f32 is emitted inline, else through a call
  // Most units in the last place that a result may lie from the exact one; inline f32 without fma may lie one further. Of
  // lgamma and digamma, which have roots that are no round numbers, the unit is never below that of 1; digamma of a large
  // negative number is the difference of two terms up to 36.
  double ulp_f32, ulp_f64;
};

// In the order of MathFn. The 4 of functions that call libmvec is what glibc promises.
inline constexpr std::array<MathFnInfo, 30> kMathFns{{
    {MathFn::exp, "exp", 1, true, 1.5, 4},         {MathFn::exp2, "exp2", 1, true, 1.5, 4},
    {MathFn::expm1, "expm1", 1, true, 2.5, 4},     {MathFn::log, "log", 1, true, 1.5, 4},
    {MathFn::log2, "log2", 1, true, 1.5, 4},       {MathFn::log10, "log10", 1, true, 2, 4},
    {MathFn::log1p, "log1p", 1, true, 2.5, 4},     {MathFn::sin, "sin", 1, true, 2, 4},
    {MathFn::cos, "cos", 1, true, 2, 4},           {MathFn::tan, "tan", 1, false, 4, 4},
    {MathFn::asin, "asin", 1, false, 4, 4},        {MathFn::acos, "acos", 1, false, 4, 4},
    {MathFn::atan, "atan", 1, false, 4, 4},        {MathFn::sinh, "sinh", 1, false, 4, 4},
    {MathFn::cosh, "cosh", 1, false, 4, 4},        {MathFn::tanh, "tanh", 1, true, 2.5, 4},
    {MathFn::asinh, "asinh", 1, false, 4, 4},      {MathFn::acosh, "acosh", 1, false, 4, 4},
    {MathFn::atanh, "atanh", 1, false, 4, 4},      {MathFn::erf, "erf", 1, true, 2.5, 4},
    {MathFn::erfc, "erfc", 1, false, 4, 4},        {MathFn::erfinv, "erfinv", 1, false, 1, 4},
    {MathFn::lgamma, "lgamma", 1, false, 4, 4},    {MathFn::digamma, "digamma", 1, false, 1, 64},
    {MathFn::sigmoid, "sigmoid", 1, true, 1.5, 4}, {MathFn::rsqrt, "rsqrt", 1, true, 1.5, 1.5},
    {MathFn::pow, "pow", 2, false, 4, 4},          {MathFn::atan2, "atan2", 2, false, 4, 4},
    {MathFn::hypot, "hypot", 2, false, 4, 4},      {MathFn::cbrt, "cbrt", 1, false, 4, 4},
}};

constexpr const MathFnInfo& info(MathFn fn) { return kMathFns[static_cast<size_t>(fn)]; }

// What the emitted code may use beyond SSE2.
struct Features {
  bool fma = false;     // else a multiply and an add, since llvm.fma without the instruction is a slow library call
  bool avx2 = false;    // libmvec's 256-bit functions
  bool avx512 = false;  // AVX-512 F, VL and DQ: libmvec's 512-bit functions, vgetexp, vgetmant, vscalef, vrcp14
  bool bf16 = false;    // AVX-512 BF16: vcvtneps2bf16
};

Features features_from(const llvm::StringMap<bool>& target_features);  // as llvm::sys::getHostCPUFeatures gives them
Features host_features();

// The functions outside the kernel that emitted code calls: libmvec's, libm's and the project's own. libmvec stays open for
// the life of the process, since kernels hold its addresses.
class MathLibrary {
 public:
  static const MathLibrary& instance();
  bool has(const std::string& symbol) const { return addresses_.contains(symbol); }
  const llvm::StringMap<void*>& addresses() const { return addresses_; }

 private:
  MathLibrary();
  llvm::StringMap<void*> addresses_;
};

// Every external symbol that emit_math and the conversions may reference, for absolute symbols of the JIT.
std::vector<std::pair<std::string, void*>> math_symbols();

// `args`: info(fn).arity values of one type: float, double, or a fixed vector of either of any length. Uses no fast-math
// flag, whatever the builder's default.
llvm::Value* emit_math(llvm::IRBuilderBase&, MathFn, llvm::ArrayRef<llvm::Value*> args, const Features&);

// The normal distribution function of f32, to 6.7e-8; null if the machine has no quick way.
llvm::Value* emit_normal(llvm::IRBuilderBase&, llvm::Value* x, const Features&);

// bf16 travels as i16, f16 as half; scalar or vector. To bf16 rounds to nearest even in integers, keeps denormals and turns
// any NaN into 0x7fc0, bit for bit as c10::BFloat16 does. vcvtneps2bf16 does neither, so that a branch is taken where there is
// a denormal or a NaN among the lanes, of which there may be several times 16.
llvm::Value* emit_bf16_to_f32(llvm::IRBuilderBase&, llvm::Value*);
llvm::Value* emit_f32_to_bf16(llvm::IRBuilderBase&, llvm::Value*, const Features& = {});
llvm::Value* emit_f16_to_f32(llvm::IRBuilderBase&, llvm::Value*);
llvm::Value* emit_f32_to_f16(llvm::IRBuilderBase&, llvm::Value*);
// A format of 8 bits, as support/small_float.h converts it.
struct SmallFormat {
  int exponent_bits, digits;
  bool has_infinity;
};
llvm::Value* emit_f8_to_f32(llvm::IRBuilderBase&, llvm::Value*, SmallFormat);
llvm::Value* emit_f32_to_f8(llvm::IRBuilderBase&, llvm::Value*, SmallFormat);

}  // namespace broach::cpu
