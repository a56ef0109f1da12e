// Inline f32 code works on vectors of 4, 8 or 16 lanes; other lengths are cut and padded to these, so that a lane's result
// does not depend on the vector around it. Polynomials are Sollya fpminimax or remez fits with coefficients rounded to f32
// one by one; each names its function, interval and relative error.
#include "target/cpu/vector_math.h"

#include <dlfcn.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/TargetParser/Host.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "support/error.h"
#include "target/cpu/piecewise.h"

// libgcc's conversions, which LLVM calls for half on a target without F16C.
extern "C" {
void __extendhfsf2();
void __truncsfhf2();
}

namespace broach::cpu {
namespace {

using llvm::ArrayRef;
using llvm::FixedVectorType;
using llvm::IRBuilderBase;
using llvm::SmallVector;
using llvm::Type;
using llvm::Value;
namespace Intrinsic = llvm::Intrinsic;

// ---- Scalar functions that neither libmvec nor libm has ----

// Giles, "Approximating the erfinv function" (GPU Computing Gems 2, 2010), the single-precision polynomial of table 5; further
// out than that holds, erfc(y) ~ exp(-y^2) / (y sqrt(pi)) solved for y by iteration.
double erfinv_estimate(double a) {
  static constexpr double kCentral[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                                        -0.00125372503, -0.00417768164, 0.246640727,    1.50140941};
  static constexpr double kTail[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                                     -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
  const double w = -std::log((1 - a) * (1 + a));
  const bool central = w < 5;
  const double t = central ? w - 2.5 : std::sqrt(w) - 3;
  double y = 0;
  for (double c : central ? kCentral : kTail) y = y * t + c;
  if (w < 16) return y * a;
  y = std::sqrt(w);
  for (int step = 0; step < 3; ++step) y = std::sqrt(-std::log((1 - a) * std::sqrt(std::numbers::pi) * y));
  return y;
}

// An estimate and Newton steps, as ATen's calc_erfinv. The residual of a large |x| comes from erfc, since 1 - |x| is exact.
double erfinv(double x, int steps) {
  const double a = std::fabs(x);
  if (!(a < 1)) return a == 1 ? std::copysign(HUGE_VAL, x) : std::numeric_limits<double>::quiet_NaN();
  double y = erfinv_estimate(a);
  for (int step = 0; step < steps; ++step) {
    const double excess = a < 0.5 ? std::erf(y) - a : (1 - a) - std::erfc(y);
    y -= excess * std::exp(y * y) * (std::sqrt(std::numbers::pi) / 2);
  }
  return std::copysign(y, x);
}

// psi(x) ~ ln x - 1/2x - sum over k of B_2k / (2k x^2k), to k = 7: Abramowitz and Stegun 6.3.18.
double digamma_asymptotic(double x) {
  static constexpr double kTerms[] = {-1.0 / 12, 691.0 / 32760, -1.0 / 132, 1.0 / 240, -1.0 / 252, 1.0 / 120, -1.0 / 12};
  const double z = 1 / (x * x);
  double sum = 0;
  for (double c : kTerms) sum = (sum + c) * z;
  return std::log(x) - 0.5 / x + sum;
}

// Reflection to x > 0 and recurrence to x >= 10, as ATen's calc_digamma: A&S 6.3.7 and 6.3.5; -inf at +0, +inf at -0. The
// tangent has period 1 in x, and the distance to the nearest integer is exact.
double digamma(double x) {
  if (x == 0) return std::copysign(HUGE_VAL, -x);
  if (x < 0 && x == std::floor(x)) return std::numeric_limits<double>::quiet_NaN();
  if (x < 0) return digamma(1 - x) - std::numbers::pi / std::tan(std::numbers::pi * (x - std::nearbyint(x)));
  double below = 0;
  for (; x < 10; x += 1) below += 1 / x;
  return digamma_asymptotic(x) - below;
}

extern "C" {
double broach_erfinv(double x) { return erfinv(x, 3); }
float broach_erfinvf(float x) { return static_cast<float>(erfinv(x, 1)); }
double broach_digamma(double x) { return digamma(x); }
float broach_digammaf(float x) { return static_cast<float>(digamma(x)); }
// lgamma proper writes the global signgam, which threads would race on.
double broach_lgamma(double x) {
  int sign;
  return lgamma_r(x, &sign);
}
float broach_lgammaf(float x) {
  int sign;
  return lgammaf_r(x, &sign);
}
}

// ---- Symbols ----

bool is_own(MathFn fn) { return fn == MathFn::erfinv || fn == MathFn::lgamma || fn == MathFn::digamma; }

std::string scalar_symbol(MathFn fn, bool f32) { return cat(is_own(fn) ? "broach_" : "", info(fn).name, f32 ? "f" : ""); }

struct VectorIsa {
  char letter;  // in the x86 vector function ABI: b for SSE, d for AVX2, e for AVX-512
  unsigned bits;
  bool (*allowed)(const Features&);
};
constexpr VectorIsa kIsas[] = {
    {'b', 128, [](const Features&) { return true; }},
    {'d', 256, [](const Features& f) { return f.avx2; }},
    {'e', 512, [](const Features& f) { return f.avx512; }},
};

// For example _ZGVeN16vv_powf. N: not masked.
std::string vector_symbol(MathFn fn, bool f32, const VectorIsa& isa) {
  return cat("_ZGV", isa.letter, 'N', isa.bits / (f32 ? 32 : 64), std::string(info(fn).arity, 'v'), '_', info(fn).name, f32 ? "f" : "");
}

}  // namespace

MathLibrary::MathLibrary() {
  void* const libmvec = dlopen("libmvec.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const libm = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
  const auto add = [&](void* library, const std::string& symbol) {
    if (void* address = library ? dlsym(library, symbol.c_str()) : nullptr) addresses_[symbol] = address;
  };
  for (const MathFnInfo& row : kMathFns)
    for (bool f32 : {false, true}) {
      for (const VectorIsa& isa : kIsas) add(libmvec, vector_symbol(row.fn, f32, isa));
      if (!is_own(row.fn)) add(libm, scalar_symbol(row.fn, f32));
    }
  const auto own = [&](const char* symbol, auto* function) { addresses_[symbol] = reinterpret_cast<void*>(function); };
  own("broach_erfinv", broach_erfinv), own("broach_erfinvf", broach_erfinvf);
  own("broach_digamma", broach_digamma), own("broach_digammaf", broach_digammaf);
  own("broach_lgamma", broach_lgamma), own("broach_lgammaf", broach_lgammaf);
  own("__extendhfsf2", __extendhfsf2), own("__truncsfhf2", __truncsfhf2);
}

const MathLibrary& MathLibrary::instance() {
  static const MathLibrary library;
  return library;
}

std::vector<std::pair<std::string, void*>> math_symbols() {
  std::vector<std::pair<std::string, void*>> symbols;
  for (const auto& entry : MathLibrary::instance().addresses()) symbols.emplace_back(entry.getKey(), entry.getValue());
  return symbols;
}

Features features_from(const llvm::StringMap<bool>& target_features) {
  const auto on = [&](const char* name) { return target_features.lookup(name); };
  return {.fma = on("fma"),
          .avx2 = on("avx2"),
          .avx512 = on("avx512f") && on("avx512vl") && on("avx512dq"),
          .bf16 = on("avx512bf16") && on("avx512dq")};
}

Features host_features() { return features_from(llvm::sys::getHostCPUFeatures()); }

namespace {

// ---- Lanes in and out of vectors of other lengths ----

unsigned lanes_of(const Value* v) {
  const auto* type = llvm::dyn_cast<FixedVectorType>(v->getType());
  return type ? type->getNumElements() : 1;
}

Type* with_lanes(Type* type, unsigned lanes) {
  return lanes == 1 ? type->getScalarType() : FixedVectorType::get(type->getScalarType(), lanes);
}

SmallVector<int, 16> consecutive(int start, unsigned count) {
  SmallVector<int, 16> mask(count);
  std::iota(mask.begin(), mask.end(), start);
  return mask;
}

// Lanes start .. start + count; a scalar if count is 1.
Value* slice(IRBuilderBase& b, Value* v, unsigned start, unsigned count) {
  if (count == lanes_of(v)) return v;
  if (count == 1) return b.CreateExtractElement(v, start);
  return b.CreateShuffleVector(v, consecutive(start, count));
}

// To `count` lanes by repeating the first, which adds no NaN and no rare case that was not there.
Value* pad(IRBuilderBase& b, Value* v, unsigned count) {
  const unsigned lanes = lanes_of(v);
  if (lanes == count) return v;
  if (lanes == 1) return b.CreateVectorSplat(count, v);
  SmallVector<int, 16> mask(count, 0);
  std::iota(mask.begin(), mask.begin() + lanes, 0);
  return b.CreateShuffleVector(v, mask);
}

// `whole` with the lanes from `start` on replaced by `part`'s.
Value* insert(IRBuilderBase& b, Value* whole, Value* part, unsigned start) {
  const unsigned lanes = lanes_of(whole), count = lanes_of(part);
  if (count == lanes) return part;
  if (count == 1) return b.CreateInsertElement(whole, part, start);
  SmallVector<int, 16> blend = consecutive(0, lanes);
  std::iota(blend.begin() + start, blend.begin() + start + count, static_cast<int>(lanes));
  return b.CreateShuffleVector(whole, pad(b, part, lanes), blend);
}

using Emit = llvm::function_ref<Value*(ArrayRef<Value*>)>;

// Calls `emit` on pieces of the arguments, each as long as `piece_of(lanes left)` says, and joins the results.
Value* in_pieces(IRBuilderBase& b, ArrayRef<Value*> args, llvm::function_ref<unsigned(unsigned)> piece_of, Emit emit) {
  const unsigned lanes = lanes_of(args[0]);
  Value* whole = llvm::PoisonValue::get(args[0]->getType());
  for (unsigned start = 0, count; start < lanes; start += count) {
    count = piece_of(lanes - start);
    SmallVector<Value*, 2> piece;
    for (Value* arg : args) piece.push_back(slice(b, arg, start, count));
    whole = insert(b, whole, emit(piece), start);
  }
  return whole;
}

// ---- Calls ----

// The name of the longest vector function, and its length; length 1 is libm's or ours. Fewer lanes call it as well, for others differ from
// it in last bits, and a value that is computed twice has to be one number.
std::pair<std::string, unsigned> longest_call(MathFn fn, bool f32, const Features& features) {
  std::pair<std::string, unsigned> best{scalar_symbol(fn, f32), 1};
  for (const VectorIsa& isa : kIsas) {
    const unsigned length = isa.bits / (f32 ? 32 : 64);
    std::string symbol = vector_symbol(fn, f32, isa);
    if (isa.allowed(features) && MathLibrary::instance().has(symbol)) best = {std::move(symbol), length};
  }
  return best;
}

Value* emit_one_call(IRBuilderBase& b, const std::string& symbol, ArrayRef<Value*> args) {
  Type* type = args[0]->getType();
  SmallVector<Type*, 2> parameters(args.size(), type);
  auto* signature = llvm::FunctionType::get(type, parameters, false);
  llvm::FunctionCallee callee = b.GetInsertBlock()->getModule()->getOrInsertFunction(symbol, signature);
  auto* function = llvm::cast<llvm::Function>(callee.getCallee());
  function->setDoesNotAccessMemory();  // kernels never read errno
  function->setDoesNotThrow();
  function->setWillReturn();
  return b.CreateCall(callee, args);
}

Value* emit_call(IRBuilderBase& b, MathFn fn, ArrayRef<Value*> args, const Features& features) {
  const bool f32 = args[0]->getType()->getScalarType()->isFloatTy();
  const auto [symbol, length] = longest_call(fn, f32, features);
  return in_pieces(
      b, args, [length](unsigned left) { return std::min(left, length); },
      [&](ArrayRef<Value*> some) {
        SmallVector<Value*, 2> whole;
        for (Value* arg : some) whole.push_back(pad(b, arg, length));
        return slice(b, emit_one_call(b, symbol, whole), 0, lanes_of(some[0]));
      });
}

// `usual`, or where `rare` is true what `otherwise` emits: a branch that kernels hardly ever take.
Value* unless(IRBuilderBase& b, Value* rare, Value* usual, llvm::function_ref<Value*()> otherwise) {
  llvm::BasicBlock* const here = b.GetInsertBlock();
  llvm::LLVMContext& context = b.getContext();
  const bool open = b.GetInsertPoint() == here->end();
  auto* join = open ? llvm::BasicBlock::Create(context, "", here->getParent()) : here->splitBasicBlock(b.GetInsertPoint());
  if (!open) here->getTerminator()->eraseFromParent();
  auto* aside = llvm::BasicBlock::Create(context, "", here->getParent(), join);
  b.SetInsertPoint(here);
  b.CreateCondBr(rare, aside, join, llvm::MDBuilder(context).createBranchWeights(1, 10000));
  b.SetInsertPoint(aside);
  Value* other = otherwise();
  aside = b.GetInsertBlock();
  b.CreateBr(join);
  b.SetInsertPoint(join, join->begin());
  llvm::PHINode* chosen = b.CreatePHI(usual->getType(), 2);
  chosen->addIncoming(usual, here);
  chosen->addIncoming(other, aside);
  return chosen;
}

// ---- Inline f32 ----

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kRoundToInteger = 0x1.8p23f;  // adding it leaves the rounded sum in the low mantissa bits
constexpr float kLog2e = 0x1.715476p0f;

// Lowest coefficient first.
// expm1(r)/r on |r| <= 0.347 (half of ln 2), relative error 1.4e-8; the leading 1 is exact.
constexpr float kExpm1[] = {1, 0x1.fffffep-2f, 0x1.5554bp-3f, 0x1.555718p-5f, 0x1.1227b8p-7f, 0x1.6b7182p-10f};
// 2^r on |r| <= 1/2, relative error 3.7e-9.
constexpr float kExp2[] = {1, 0x1.62e43p-1f, 0x1.ebfbd8p-3f, 0x1.c6af74p-5f, 0x1.3b3098p-7f, 0x1.5f0ccap-10f, 0x1.3fabfep-13f};
// sin(r)/r and cos(r) in r^2 on |r| <= 0.787 (pi/4), relative errors 4.3e-9 and 1.2e-10; sine's leading 1 is left out.
constexpr float kSin[] = {-0x1.555544p-3f, 0x1.1106e2p-7f, -0x1.992aaep-13f};
constexpr float kCos[] = {1, -0.5, 0x1.55554ap-5f, -0x1.6c0c26p-10f, 0x1.99e71cp-16f};
// -ln(erfc(x))/x on [0, 3.95] = kErfLeading + this, where its error makes one of at most 3.6e-8 in erf.
constexpr float kErfLeading = 0x1.20dd76p0f;
constexpr float kErf[] = {-0x1.0b826p-26f, 0x1.45f296p-1f,  0x1.a5216ep-4f,   -0x1.3c9a26p-6f,
                          0x1.b666b4p-13f, 0x1.477202p-10f, -0x1.8e6f86p-12f, 0x1.543496p-15f};
// pi/2 in parts. With fma the first product, subtracted, is exact; without, 9-bit parts keep products with n < 2^14 exact.
constexpr float kQuarterTurnFma[] = {0x1.921fb6p0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f};
constexpr float kQuarterTurn[] = {0x1.92p0f, 0x1.fbp-12f, 0x1.51p-22f, 0x1.0bp-34f, 0x1.184698p-44f};
constexpr float kLn2Fma[] = {0x1.62e43p-1f, -0x1.05c61p-29f};
constexpr float kLn2[] = {0x1.63p-1f, -0x1.bd0106p-13f};  // n times the first is exact
constexpr float kTrigLimit = 10000;

// (ln(1 + f) - f) / f^2 on [-1/4, 1/2], relative error of the logarithm 2.8e-8.
constexpr float kLnTail[] = {-0x1.000014p-1f, 0x1.5555e6p-2f, -0x1.ffdde2p-3f, 0x1.992194p-3f,
                             -0x1.58846ep-3f, 0x1.32da44p-3f, -0x1.ee5f16p-4f, 0x1.bbbec4p-5f};
// log_B(1 + f) on [-1/4, 1/2] = leading * f + f * tail(f), the tail's first coefficient being what `leading` lacks; and
// log_B(2) as a part that an exponent multiplies exactly plus the rest. Relative error 4.8e-9.
struct LogBase {
  float leading;
  float tail[10];
  float two, two_rest;
};
constexpr LogBase kBinary{0x1.715476p0f,
                          {0x1.c62db8p-27f, -0x1.715476p-1f, 0x1.ec714p-2f, -0x1.715548p-2f, 0x1.274ee4p-2f, -0x1.ebbb5cp-3f,
                           0x1.ac043ap-3f, -0x1.863718p-3f, 0x1.36b34p-3f, -0x1.0b21bcp-4f},
                          1,
                          0};
constexpr LogBase kDecimal{0x1.bcb7b2p-2f,
                           {-0x1.98d5dep-27f, -0x1.bcb7b2p-3f, 0x1.287ad8p-3f, -0x1.bcb80ap-4f, 0x1.63954cp-4f, -0x1.281b86p-4f,
                            0x1.01d2b6p-4f, -0x1.d53972p-5f, 0x1.738e26p-5f, -0x1.3d6124p-6f},
                           0x1.344p-2f,
                           0x1.3509f8p-18f};

// Emits arithmetic on vectors of 4, 8 or 16 floats.
class Lanes {
 public:
  Lanes(IRBuilderBase& b, const Features& features, unsigned lanes)
      : b_(b), features_(features), lanes_(lanes), float_(with_lanes(b.getFloatTy(), lanes)), int_(with_lanes(b.getInt32Ty(), lanes)) {}

  Value* exp(Value* x);
  Value* exp2(Value* x);
  Value* expm1(Value* x);
  Value* sigmoid(Value* x);
  Value* tanh(Value* x);
  Value* erf(Value* x);
  Value* log(Value* x);
  Value* log(Value* x, const LogBase& base);
  Value* log1p(Value* x);
  Value* sin(Value* x);
  Value* cos(Value* x);
  Value* normal(Value* x) { return add(emit_piecewise(b_, x, piecewise_normal()), c(0.5)); }
  Value* rsqrt(Value* x) { return b_.CreateFDiv(c(1), unary(Intrinsic::sqrt, x)); }

 private:
  // x = n ln 2 + r with |r| <= ln(2)/2; `shifted` is n + 127 in the low bits of a float's mantissa.
  struct Reduced {
    Value *shifted, *n, *r;
  };
  // x = m * 2^e with m in [3/4, 3/2).
  struct Split {
    Value *m, *e;
  };

  Value* c(float v) { return llvm::ConstantFP::get(float_, v); }
  Value* ci(uint32_t v) { return llvm::ConstantInt::get(int_, v); }
  Value* add(Value* x, Value* y) { return b_.CreateFAdd(x, y); }
  Value* sub(Value* x, Value* y) { return b_.CreateFSub(x, y); }
  Value* mul(Value* x, Value* y) { return b_.CreateFMul(x, y); }
  Value* neg(Value* x) { return b_.CreateFNeg(x); }
  Value* bits(Value* x) { return b_.CreateBitCast(x, int_); }
  Value* floats(Value* x) { return b_.CreateBitCast(x, float_); }
  Value* unary(Intrinsic::ID id, Value* x) { return b_.CreateUnaryIntrinsic(id, x); }
  Value* abs(Value* x) { return unary(Intrinsic::fabs, x); }
  Value* with_sign(Value* x, Value* sign) { return b_.CreateBinaryIntrinsic(Intrinsic::copysign, x, sign); }
  // These keep a NaN, and each is one vminps or vmaxps.
  Value* at_most(Value* x, float bound) { return b_.CreateSelect(b_.CreateFCmpOGT(x, c(bound)), c(bound), x); }
  Value* at_least(Value* x, float bound) { return b_.CreateSelect(b_.CreateFCmpOLT(x, c(bound)), c(bound), x); }

  Value* fma(Value* x, Value* y, Value* z);
  Value* horner(Value* x, ArrayRef<float> coefficients);
  Value* subtract_multiple(Value* x, Value* n, ArrayRef<float> parts);
  Value* avx512(std::array<Intrinsic::ID, 3> by_length, ArrayRef<Value*> args, bool rounds);
  Value* scale(Value* x, Value* n);
  Value* quotient(Value* x, float n, Value* y);
  Value* to_exponent(Value* shifted) { return floats(b_.CreateShl(bits(shifted), 23)); }
  Reduced reduce_ln2(Value* x, unsigned parts);
  Value* expm1_reduced(Value* r);
  Value* expm1_negative(Value* x);
  Split split(Value* x);
  Split split_bits(Value* x);
  Value* log_special(Value* x, Value* result);
  Value* mend_log(Value* x, Value* result) { return features_.avx512 ? result : log_special(x, result); }
  Value* log_of_parts(Value* f, Value* e, const LogBase& base);
  Value* ln_of_parts(Value* f, Value* e);
  Value* power_of_minus(Value* e);
  Value* sin_of_turned(Value* x, int quarters);
  Value* unless_large(MathFn fn, Value* x, Value* result);

  IRBuilderBase& b_;
  const Features& features_;
  unsigned lanes_;
  Type *float_, *int_;
};

Value* Lanes::fma(Value* x, Value* y, Value* z) {
  if (!features_.fma) return add(mul(x, y), z);
  return b_.CreateIntrinsic(Intrinsic::fma, {float_}, {x, y, z});
}

Value* Lanes::horner(Value* x, ArrayRef<float> coefficients) {
  Value* sum = c(coefficients.back());
  for (float next : llvm::reverse(coefficients.drop_back())) sum = fma(sum, x, c(next));
  return sum;
}

// x - n * (sum of parts), parts from largest to smallest: Cody and Waite's reduction.
Value* Lanes::subtract_multiple(Value* x, Value* n, ArrayRef<float> parts) {
  for (float part : parts) x = fma(n, c(-part), x);
  return x;
}

// An AVX-512 instruction without masking; `rounds`: its 512-bit form takes a rounding mode.
Value* Lanes::avx512(std::array<Intrinsic::ID, 3> by_length, ArrayRef<Value*> args, bool rounds) {
  SmallVector<Value*, 6> all(args.begin(), args.end());
  all.push_back(llvm::Constant::getNullValue(float_));
  all.push_back(lanes_ == 16 ? b_.getInt16(0xffff) : b_.getInt8(0xff));
  if (lanes_ == 16 && rounds) all.push_back(b_.getInt32(4));  // _MM_FROUND_CUR_DIRECTION
  return b_.CreateIntrinsic(by_length[std::countr_zero(lanes_) - 2], {}, all);
}

// x * 2^n for an integral n in [-150, 128], rounded once. Without vscalefps in two steps, as 2^n may be no normal number.
Value* Lanes::scale(Value* x, Value* n) {
  if (features_.avx512)
    return avx512(
        {Intrinsic::x86_avx512_mask_scalef_ps_128, Intrinsic::x86_avx512_mask_scalef_ps_256, Intrinsic::x86_avx512_mask_scalef_ps_512},
        {x, n}, true);
  // Not by fptosi, which makes poison of a NaN.
  Value* whole = b_.CreateSub(bits(add(n, c(kRoundToInteger))), ci(std::bit_cast<uint32_t>(kRoundToInteger)));
  Value* half = b_.CreateAShr(whole, 1);
  const auto power = [&](Value* k) { return floats(b_.CreateShl(b_.CreateAdd(k, ci(127)), 23)); };
  return mul(mul(x, power(half)), power(b_.CreateSub(whole, half)));
}

// x / (n + y) for n + y in [1, 2] and |x| <= 1. Correcting the product with vrcp14ps costs less than vdivps; the correction sees
// what n + y loses by rounding, since x - n q is exact.
Value* Lanes::quotient(Value* x, float n, Value* y) {
  Value* sum = add(y, c(n));
  if (!features_.fma) return b_.CreateFDiv(x, sum);
  Value* inverse =
      features_.avx512
          ? avx512({Intrinsic::x86_avx512_rcp14_ps_128, Intrinsic::x86_avx512_rcp14_ps_256, Intrinsic::x86_avx512_rcp14_ps_512}, {sum},
                   false)
          : b_.CreateFDiv(c(1), sum);
  Value* q = mul(x, inverse);
  Value* rest = n == 1 ? sub(x, q) : fma(q, c(-n), x);
  return fma(fma(neg(q), y, rest), inverse, q);
}

Lanes::Reduced Lanes::reduce_ln2(Value* x, unsigned parts) {
  Value* round = c(kRoundToInteger + 127);
  Value* shifted = fma(x, c(kLog2e), round);
  Value* n = sub(shifted, round);
  const ArrayRef<float> ln2 = features_.fma ? ArrayRef(kLn2Fma).take_front(parts) : ArrayRef(kLn2);
  return {shifted, n, subtract_multiple(x, n, ln2)};
}

Value* Lanes::expm1_reduced(Value* r) { return fma(mul(r, r), horner(r, ArrayRef(kExpm1).drop_front()), r); }

// exp(104) overflows and exp(-104) rounds to 0, so that clamping there loses nothing and keeps n in range.
Value* Lanes::exp(Value* x) {
  const Reduced parts = reduce_ln2(at_least(at_most(x, 89), -104), 2);
  return scale(fma(horner(parts.r, kExpm1), parts.r, c(1)), parts.n);
}

Value* Lanes::exp2(Value* x) {
  x = at_least(at_most(x, 129), -151);
  Value* n = sub(add(x, c(kRoundToInteger)), c(kRoundToInteger));
  return scale(horner(sub(x, n), kExp2), n);
}

// expm1(x) = 2^n (expm1(r) + 1) - 1 = 2^n expm1(r) + (2^n - 1), for x in [-20, 0], where one part of ln 2 is enough and the
// bracket is exact.
Value* Lanes::expm1_negative(Value* x) {
  const Reduced parts = reduce_ln2(x, 1);
  Value* power = to_exponent(parts.shifted);
  return fma(power, expm1_reduced(parts.r), sub(power, c(1)));
}

// As expm1_negative, at half the scale so that 2^128 is no obstacle. A tiny x is its own expm1, with its sign and all bits.
Value* Lanes::expm1(Value* x) {
  const Reduced parts = reduce_ln2(at_least(at_most(x, 89), -20), 2);
  Value* power = to_exponent(sub(parts.shifted, c(1)));
  Value* half = fma(power, expm1_reduced(parts.r), sub(power, c(0.5)));
  return b_.CreateSelect(b_.CreateFCmpOLT(abs(x), c(0x1p-25f)), x, add(half, half));
}

// With e = exp(-|x|): 1/(1 + e), or e/(1 + e) for x < 0.
Value* Lanes::sigmoid(Value* x) {
  const Reduced parts = reduce_ln2(at_least(neg(abs(x)), -104), 2);
  Value* e = scale(fma(horner(parts.r, kExpm1), parts.r, c(1)), parts.n);
  return quotient(b_.CreateSelect(b_.CreateFCmpOLT(x, c(0)), e, c(1)), 1, e);
}

// tanh|x| = -t / (2 + t) with t = expm1(-2|x|); it rounds to 1 from |x| = 9.01 on.
Value* Lanes::tanh(Value* x) {
  if (features_.avx512) return emit_piecewise(b_, x, piecewise_tanh());
  Value* t = expm1_negative(at_least(mul(abs(x), c(-2)), -20));
  return with_sign(quotient(t, 2, t), x);
}

// erf|x| = -expm1(ln erfc|x|), of which |x| times a polynomial is the logarithm; it rounds to 1 from |x| = 3.92 on.
Value* Lanes::erf(Value* x) {
  if (features_.avx512) return emit_piecewise(b_, x, piecewise_erf());
  Value* a = at_most(abs(x), 3.95f);
  Value* logarithm = fma(a, c(-kErfLeading), neg(mul(a, horner(a, kErf))));
  return with_sign(expm1_negative(logarithm), x);
}

// vgetmantps with interval [3/4, 3/2) and NaN for negative numbers but not for -0; vgetexpps gives -inf at 0 and inf at inf.
Lanes::Split Lanes::split(Value* x) {
  if (!features_.avx512) return split_bits(x);
  const auto exponent = [&](Value* v) {
    return avx512(
        {Intrinsic::x86_avx512_mask_getexp_ps_128, Intrinsic::x86_avx512_mask_getexp_ps_256, Intrinsic::x86_avx512_mask_getexp_ps_512}, {v},
        true);
  };
  Value* m = avx512(
      {Intrinsic::x86_avx512_mask_getmant_ps_128, Intrinsic::x86_avx512_mask_getmant_ps_256, Intrinsic::x86_avx512_mask_getmant_ps_512},
      {x, b_.getInt32(0b1111)}, true);
  return {m, sub(exponent(x), exponent(m))};
}

// For positive finite x; log_special mends the rest.
Lanes::Split Lanes::split_bits(Value* x) {
  Value* denormal = b_.CreateFCmpOLT(x, c(0x1p-126f));
  Value* i = bits(b_.CreateSelect(denormal, mul(x, c(0x1p23f)), x));
  Value* k = b_.CreateAShr(b_.CreateSub(i, ci(std::bit_cast<uint32_t>(0.75f))), 23);
  Value* e = add(b_.CreateSIToFP(k, float_), b_.CreateSelect(denormal, c(-23), c(0)));
  return {floats(b_.CreateSub(i, b_.CreateShl(k, 23))), e};
}

Value* Lanes::log_special(Value* x, Value* result) {
  result = b_.CreateSelect(b_.CreateFCmpOLT(x, c(kInfinity)), result, x);
  result = b_.CreateSelect(b_.CreateFCmpOLT(x, c(0)), c(kNan), result);
  return b_.CreateSelect(b_.CreateFCmpOEQ(x, c(0)), c(-kInfinity), result);
}

// log_B((1 + f) 2^e). What rounding takes from the leading product goes into the small terms, added last: the sum of product
// and exponent is often no larger than its terms.
Value* Lanes::log_of_parts(Value* f, Value* e, const LogBase& base) {
  Value* product = mul(f, c(base.leading));
  Value* small = fma(f, horner(f, base.tail), fma(f, c(base.leading), neg(product)));
  if (base.two_rest == 0) return add(fma(e, c(base.two), product), small);
  // Powers of the base are no powers of 2: what their sum loses, too, so that they have whole logarithms. The product with e is exact,
  // and of an infinite one nothing is lost.
  Value *whole = mul(e, c(base.two)), *total = add(whole, product), *lost = sub(product, sub(total, whole));
  lost = b_.CreateSelect(b_.CreateFCmpORD(lost, lost), lost, c(0));
  return add(total, add(fma(e, c(base.two_rest), small), lost));
}

// The same for ln, where the product is f. With fma a rounded ln 2 is good enough, its error being 0.05 units of e ln 2.
Value* Lanes::ln_of_parts(Value* f, Value* e) {
  Value* sum = fma(mul(f, f), horner(f, kLnTail), f);
  if (features_.fma) return fma(e, c(kLn2Fma[0]), sum);
  return fma(e, c(kLn2[0]), fma(e, c(kLn2[1]), sum));
}

Value* Lanes::log(Value* x) {
  const Split parts = split(x);
  return mend_log(x, ln_of_parts(sub(parts.m, c(1)), parts.e));
}

Value* Lanes::log(Value* x, const LogBase& base) {
  const Split parts = split(x);
  return mend_log(x, log_of_parts(sub(parts.m, c(1)), parts.e, base));
}

// 4 * 2^-e for e in [-24, 128], the 4 because 2^-127 and 2^-128 are no normal numbers.
Value* Lanes::power_of_minus(Value* e) { return to_exponent(sub(c(kRoundToInteger + 129), e)); }

// With 1 + x = m 2^e rounded, f = (1 + x) 2^-e - 1 is taken from x itself, so that the rounding of 1 + x only moves the
// split. A tiny x is its own log1p, with its sign and all bits.
Value* Lanes::log1p(Value* x) {
  Value* u = add(x, c(1));
  const Split parts = split(u);
  Value* power = power_of_minus(parts.e);
  Value* f = fma(mul(x, c(0.25)), power, sub(mul(power, c(0.25)), c(1)));
  Value* result = log_special(u, ln_of_parts(f, parts.e));
  return b_.CreateSelect(b_.CreateFCmpOLT(abs(x), c(0x1p-25f)), x, result);
}

// sin(|x| + quarters * pi/2) = +-sin(r) or +-cos(r) with |x| = n pi/2 + r and |r| <= pi/4. n + quarters is in the low bits of
// `shifted`: odd picks the cosine, 2 and 3 modulo 4 the minus.
Value* Lanes::sin_of_turned(Value* x, int quarters) {
  Value* round = c(kRoundToInteger + quarters);
  Value* shifted = fma(x, c(2 * std::numbers::inv_pi_v<float>), round);
  const ArrayRef<float> parts = features_.fma ? ArrayRef(kQuarterTurnFma) : ArrayRef(kQuarterTurn);
  Value* r = subtract_multiple(x, sub(shifted, round), parts);
  Value* square = mul(r, r);
  Value* sine = fma(mul(r, square), horner(square, kSin), r);
  Value* odd = b_.CreateICmpNE(b_.CreateAnd(bits(shifted), ci(1)), ci(0));
  Value* magnitude = b_.CreateSelect(odd, horner(square, kCos), sine);
  return floats(b_.CreateXor(bits(magnitude), b_.CreateShl(b_.CreateAnd(bits(shifted), ci(2)), 30)));
}

Value* Lanes::sin(Value* x) {
  Value* sign = b_.CreateAnd(bits(x), ci(0x80000000));
  return unless_large(MathFn::sin, x, floats(b_.CreateXor(bits(sin_of_turned(abs(x), 0)), sign)));
}

Value* Lanes::cos(Value* x) { return unless_large(MathFn::cos, x, sin_of_turned(abs(x), 1)); }

// `result`, or the library's where any lane of x is too large for three parts of pi.
Value* Lanes::unless_large(MathFn fn, Value* x, Value* result) {
  Value* large = b_.CreateOrReduce(b_.CreateFCmpOGT(abs(x), c(kTrigLimit)));
  return unless(b_, large, result, [&] { return emit_call(b_, fn, {x}, features_); });
}

Value* emit_inline(Lanes& lanes, MathFn fn, Value* x) {
  switch (fn) {
    case MathFn::exp: return lanes.exp(x);
    case MathFn::exp2: return lanes.exp2(x);
    case MathFn::expm1: return lanes.expm1(x);
    case MathFn::log: return lanes.log(x);
    case MathFn::log2: return lanes.log(x, kBinary);
    case MathFn::log10: return lanes.log(x, kDecimal);
    case MathFn::log1p: return lanes.log1p(x);
    case MathFn::sin: return lanes.sin(x);
    case MathFn::cos: return lanes.cos(x);
    case MathFn::tanh: return lanes.tanh(x);
    case MathFn::erf: return lanes.erf(x);
    case MathFn::sigmoid: return lanes.sigmoid(x);
    case MathFn::rsqrt: return lanes.rsqrt(x);
    default: fail(info(fn).name, " of f32 has no inline form");
  }
}

// Cuts and pads to what Lanes works on, `least` lanes at least.
Value* in_lanes(IRBuilderBase& b, Value* x, const Features& features, unsigned least, llvm::function_ref<Value*(Lanes&, Value*)> emit) {
  const auto piece = [](unsigned left) { return std::min(left, 16U); };
  return in_pieces(b, {x}, piece, [&](ArrayRef<Value*> some) {
    const unsigned count = lanes_of(some[0]), native = std::max(least, std::bit_ceil(count));
    Lanes lanes(b, features, native);
    return slice(b, emit(lanes, pad(b, some[0], native)), 0, count);
  });
}

Value* emit_f32(IRBuilderBase& b, MathFn fn, Value* x, const Features& features) {
  const bool piecewise = features.avx512 && (fn == MathFn::tanh || fn == MathFn::erf);
  return in_lanes(b, x, features, piecewise ? 16 : 4, [&](Lanes& lanes, Value* v) { return emit_inline(lanes, fn, v); });
}

// With e = exp(-|x|): 1/(1 + e), times e for x < 0.
Value* emit_sigmoid_f64(IRBuilderBase& b, Value* x, const Features& features) {
  Value* one = llvm::ConstantFP::get(x->getType(), 1);
  Value* e = emit_call(b, MathFn::exp, {b.CreateFNeg(b.CreateUnaryIntrinsic(Intrinsic::fabs, x))}, features);
  Value* y = b.CreateFDiv(one, b.CreateFAdd(one, e));
  return b.CreateSelect(b.CreateFCmpOLT(x, llvm::Constant::getNullValue(x->getType())), b.CreateFMul(e, y), y);
}

Value* emit_f64(IRBuilderBase& b, MathFn fn, ArrayRef<Value*> args, const Features& features) {
  Type* type = args[0]->getType();
  if (fn == MathFn::sigmoid) return emit_sigmoid_f64(b, args[0], features);
  if (fn == MathFn::rsqrt) return b.CreateFDiv(llvm::ConstantFP::get(type, 1), b.CreateUnaryIntrinsic(Intrinsic::sqrt, args[0]));
  return emit_call(b, fn, args, features);
}

}  // namespace

Value* emit_math(IRBuilderBase& b, MathFn fn, ArrayRef<Value*> args, const Features& features) {
  const IRBuilderBase::FastMathFlagGuard guard(b);
  b.clearFastMathFlags();
  check(args.size() == static_cast<size_t>(info(fn).arity), info(fn).name, " takes ", info(fn).arity, " arguments, not ", args.size());
  Type* element = args[0]->getType()->getScalarType();
  check(element->isFloatTy() || element->isDoubleTy(), info(fn).name, " is emitted for f32 and f64 only");
  if (element->isDoubleTy()) return emit_f64(b, fn, args, features);
  return info(fn).inline_f32 ? emit_f32(b, fn, args[0], features) : emit_call(b, fn, args, features);
}

Value* emit_normal(IRBuilderBase& b, Value* x, const Features& features) {
  if (!features.avx512 || !x->getType()->getScalarType()->isFloatTy()) return nullptr;
  const IRBuilderBase::FastMathFlagGuard guard(b);
  b.clearFastMathFlags();
  return in_lanes(b, x, features, 16, [](Lanes& lanes, Value* v) { return lanes.normal(v); });
}

Value* emit_bf16_to_f32(IRBuilderBase& b, Value* x) {
  Type* wide = x->getType()->getWithNewType(b.getInt32Ty());
  return b.CreateBitCast(b.CreateShl(b.CreateZExt(x, wide), 16), wide->getWithNewType(b.getFloatTy()));
}

namespace {

// Adding 0x7fff plus the lowest kept bit carries into the upper half exactly when round-to-nearest-even goes up.
Value* round_to_bf16(IRBuilderBase& b, Value* x) {
  Type* wide = x->getType()->getWithNewType(b.getInt32Ty());
  Type* narrow = x->getType()->getWithNewType(b.getInt16Ty());
  const auto constant = [&](Type* type, uint64_t v) { return llvm::ConstantInt::get(type, v); };
  Value* bits = b.CreateBitCast(x, wide);
  Value* odd = b.CreateAnd(b.CreateLShr(bits, 16), constant(wide, 1));
  Value* rounded = b.CreateLShr(b.CreateAdd(bits, b.CreateAdd(odd, constant(wide, 0x7fff))), 16);
  return b.CreateTrunc(b.CreateSelect(b.CreateFCmpUNO(x, x), constant(wide, 0x7fc0), rounded), narrow);
}

}  // namespace

Value* emit_f32_to_bf16(IRBuilderBase& b, Value* x, const Features& features) {
  if (!features.bf16 || lanes_of(x) % 16 != 0) return round_to_bf16(b, x);
  constexpr uint32_t kNanOrDenormal = 0x01 | 0x80 | 0x20;
  Value* rare = llvm::Constant::getNullValue(with_lanes(b.getInt1Ty(), 16));
  Value* converted = llvm::PoisonValue::get(with_lanes(b.getInt16Ty(), lanes_of(x)));
  for (unsigned start = 0; start < lanes_of(x); start += 16) {
    Value* piece = slice(b, x, start, 16);
    rare = b.CreateOr(rare, b.CreateIntrinsic(Intrinsic::x86_avx512_fpclass_ps_512, {}, {piece, b.getInt32(kNanOrDenormal)}));
    Value* bf16 = b.CreateIntrinsic(Intrinsic::x86_avx512bf16_cvtneps2bf16_512, {}, {piece});
    converted = insert(b, converted, b.CreateBitCast(bf16, with_lanes(b.getInt16Ty(), 16)), start);
  }
  return unless(b, b.CreateOrReduce(rare), converted, [&] { return round_to_bf16(b, x); });
}

Value* emit_f16_to_f32(IRBuilderBase& b, Value* x) { return b.CreateFPExt(x, x->getType()->getWithNewType(b.getFloatTy())); }

Value* emit_f32_to_f16(IRBuilderBase& b, Value* x) { return b.CreateFPTrunc(x, x->getType()->getWithNewType(b.getHalfTy())); }

// By way of f16, whose exponent of 5 bits takes each format's.
Value* emit_f8_to_f32(IRBuilderBase& b, Value* x, SmallFormat format) {
  check(format.exponent_bits <= 5 && (format.exponent_bits == 5) == format.has_infinity, "cpu: no conversion of this format of 8 bits");
  Type* wide = x->getType()->getWithNewType(b.getInt16Ty());
  const auto constant = [&](uint64_t v) { return llvm::ConstantInt::get(wide, v); };
  Value* bits = b.CreateZExt(x, wide);
  Value* magnitude = b.CreateAnd(bits, constant(0x7f));
  Value* half =
      b.CreateOr(b.CreateShl(b.CreateAnd(bits, constant(0x80)), 8), b.CreateShl(magnitude, static_cast<uint64_t>(10 - format.digits)));
  Value* f = emit_f16_to_f32(b, b.CreateBitCast(half, wide->getWithNewType(b.getHalfTy())));
  if (format.has_infinity) return f;
  Value* scaled = b.CreateFMul(f, llvm::ConstantFP::get(f->getType(), 1 << (15 - ((1 << (format.exponent_bits - 1)) - 1))));
  return b.CreateSelect(b.CreateICmpEQ(magnitude, constant(0x7f)), llvm::ConstantFP::getNaN(f->getType()), scaled);
}

Value* emit_f32_to_f8(IRBuilderBase& b, Value* x, SmallFormat format) {
  const IRBuilderBase::FastMathFlagGuard guard(b);
  b.clearFastMathFlags();
  Type* wide = x->getType()->getWithNewType(b.getInt32Ty());
  const auto constant = [&](int64_t v) { return llvm::ConstantInt::get(wide, static_cast<uint64_t>(v)); };
  const int bias = (1 << (format.exponent_bits - 1)) - 1, shift = 23 - format.digits;
  const int64_t rebias = int64_t{127 - bias} << 23, unit_sum = int64_t{151 - bias - format.digits} << 23;
  const int64_t beyond = format.has_infinity ? ((int64_t{1} << format.exponent_bits) - 1) << format.digits : 0x7e;
  Value* bits = b.CreateBitCast(x, wide);
  Value* a = b.CreateAnd(bits, constant(0x7fffffff));
  Value* sum = b.CreateFAdd(b.CreateBitCast(a, x->getType()), b.CreateBitCast(constant(unit_sum), x->getType()));
  Value* denormal = b.CreateSub(b.CreateBitCast(sum, wide), constant(unit_sum));
  Value* odd = b.CreateAnd(b.CreateLShr(a, static_cast<uint64_t>(shift)), constant(1));
  Value* normal = b.CreateAdd(b.CreateAdd(a, constant((int64_t{1} << (shift - 1)) - 1 - rebias)), odd);
  normal = b.CreateLShr(normal, static_cast<uint64_t>(shift));
  Value* rounded = b.CreateSelect(b.CreateICmpULT(a, constant(rebias + (int64_t{1} << 23))), denormal, normal);
  rounded = b.CreateBinaryIntrinsic(Intrinsic::umin, rounded, constant(beyond));
  rounded = b.CreateSelect(b.CreateICmpUGT(a, constant(0x7f800000)), constant(0x7f), rounded);
  rounded = b.CreateOr(rounded, b.CreateAnd(b.CreateLShr(bits, 24), constant(0x80)));
  return b.CreateTrunc(rounded, x->getType()->getWithNewType(b.getInt8Ty()));
}

}  // namespace broach::cpu
