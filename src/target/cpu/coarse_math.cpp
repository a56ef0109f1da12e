#include "target/cpu/coarse_math.h"

#include <llvm/IR/IntrinsicsX86.h>

#include "target/cpu/piecewise.h"

namespace broach::cpu {

namespace {

using llvm::ArrayRef;
using llvm::Value;
namespace Intrinsic = llvm::Intrinsic;

constexpr float kLog2e = 0x1.715476p0f;
// 2^f on [0, 1), relative errors 2.6e-6 and 7.5e-5. Lowest coefficient first, here and below.
constexpr float kExp2Fine[] = {0x1.00002cp0f, 0x1.62d166p-1f, 0x1.ee7988p-3f, 0x1.aa13fap-5f, 0x1.bb7cc6p-7f};
constexpr float kExp2[] = {0x1.fff632p-1f, 0x1.64444ap-1f, 0x1.cefc5cp-3f, 0x1.3f9694p-4f};
// log2(Phi(-x)), Phi being the normal distribution, on [0, 6]: its error makes a relative one of 3.7e-4 in Phi. Beyond, it
// goes on falling.
constexpr float kLogPhi[] = {-0x1.0022dap0f, -0x1.24f76p0f, -0x1.e421fap-2f, -0x1.5ee282p-5f, 0x1.24c99p-8f, -0x1.a6f578p-13f};

class Coarse {
 public:
  explicit Coarse(llvm::IRBuilderBase& b) : b_(b), type_(llvm::FixedVectorType::get(b.getFloatTy(), 16)) {}

  Value* exp(Value* x) { return exp2(mul(x, c(kLog2e)), kExp2Fine); }

  Value* sigmoid(Value* x) { return reciprocal(add(exp2(mul(x, c(-kLog2e)), kExp2), c(1))); }

  Value* tanh(Value* x) { return emit_piecewise(b_, x, coarse_tanh()); }

  // x Phi(x), from the small one of Phi(x) and Phi(-x).
  Value* gelu_erf(Value* x) {
    Value* tail = exp2(horner(abs(x), kLogPhi), kExp2);
    return mul(x, b_.CreateSelect(b_.CreateFCmpOGT(x, c(0)), b_.CreateFSub(c(1), tail), tail));
  }

  // (1 + tanh(u)) / 2 is sigmoid(2u).
  Value* gelu_tanh(Value* x) {
    constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
    return mul(x, sigmoid(mul(x, fma(mul(x, x), c(kTwiceRoot * 0.044715f), c(kTwiceRoot)))));
  }

  Value* silu(Value* x) { return mul(x, sigmoid(x)); }

 private:
  Value* c(float v) { return llvm::ConstantFP::get(type_, v); }
  Value* add(Value* x, Value* y) { return b_.CreateFAdd(x, y); }
  Value* mul(Value* x, Value* y) { return b_.CreateFMul(x, y); }
  Value* abs(Value* x) { return b_.CreateUnaryIntrinsic(Intrinsic::fabs, x); }
  Value* fma(Value* x, Value* y, Value* z) { return b_.CreateIntrinsic(Intrinsic::fma, {type_}, {x, y, z}); }

  Value* horner(Value* x, ArrayRef<float> coefficients) {
    Value* sum = c(coefficients.back());
    for (float next : llvm::reverse(coefficients.drop_back())) sum = fma(sum, x, c(next));
    return sum;
  }

  Value* masked(Intrinsic::ID id, ArrayRef<Value*> args, bool rounds) {
    llvm::SmallVector<Value*, 6> all(args.begin(), args.end());
    all.push_back(llvm::Constant::getNullValue(type_));
    all.push_back(b_.getInt16(0xffff));
    if (rounds) all.push_back(b_.getInt32(4));  // _MM_FROUND_CUR_DIRECTION
    return b_.CreateIntrinsic(id, {}, all);
  }

  // vreduceps takes off the floor, and vscalefps puts it back as a power of two: with infinities, overflow and underflow as
  // they should be.
  Value* exp2(Value* x, ArrayRef<float> polynomial) {
    Value* fraction = masked(Intrinsic::x86_avx512_mask_reduce_ps_512, {x, b_.getInt32(0x9)}, true);
    return masked(Intrinsic::x86_avx512_mask_scalef_ps_512, {horner(fraction, polynomial), x}, true);
  }

  Value* reciprocal(Value* x) { return masked(Intrinsic::x86_avx512_rcp14_ps_512, {x}, false); }

  llvm::IRBuilderBase& b_;
  llvm::Type* type_;
};

}  // namespace

namespace {

constexpr std::pair<Op, Value* (Coarse::*)(Value*)> kCoarse[] = {
    {Op::exp, &Coarse::exp},           {Op::sigmoid, &Coarse::sigmoid},     {Op::tanh, &Coarse::tanh},
    {Op::gelu_erf, &Coarse::gelu_erf}, {Op::gelu_tanh, &Coarse::gelu_tanh}, {Op::silu, &Coarse::silu},
};

const auto* find_coarse(Op op) {
  const auto* row = std::ranges::find(kCoarse, op, [](const auto& r) { return r.first; });
  return row == std::end(kCoarse) ? nullptr : row;
}

}  // namespace

bool has_coarse(Op op) { return find_coarse(op) != nullptr; }

Value* emit_coarse(llvm::IRBuilderBase& b, Op op, Value* x, const Features& features) {
  auto* type = llvm::dyn_cast<llvm::FixedVectorType>(x->getType());
  if (!features.avx512 || !type || type->getNumElements() != 16 || !type->getElementType()->isFloatTy()) return nullptr;
  const llvm::IRBuilderBase::FastMathFlagGuard guard(b);
  b.clearFastMathFlags();
  Coarse coarse(b);
  const auto* row = find_coarse(op);
  return row ? (coarse.*row->second)(x) : nullptr;
}

}  // namespace broach::cpu
