#include "target/cpu/scalar_emitter.h"

#include <llvm/IR/Intrinsics.h>

#include <cstring>

#include "support/error.h"

namespace broach::cpu {

using Kind = KernelExpr::Kind;
using llvm::Type;
using V = llvm::Value*;

namespace {

// A function has the name of its primitive.
std::optional<MathFn> math_fn(Op op) {
  if (!is_function(op)) return std::nullopt;
  const auto* known = std::ranges::find(kMathFns, std::string_view(name_of(op)), &MathFnInfo::name);
  return known == std::end(kMathFns) ? std::nullopt : std::optional(known->fn);
}

SmallFormat format_of(DType t) { return {row(t).exponent_bits, row(t).digits, row(t).has_infinity}; }

V complex_bits(llvm::IRBuilderBase& b, const Scalar& s, DType t) {
  auto z = is_complex(s) ? std::get<std::complex<double>>(s) : std::complex<double>(as_double(s));
  Type* part = t == DType::c128 ? b.getDoubleTy() : t == DType::c64 ? b.getFloatTy() : b.getHalfTy();
  auto bits = [&](double x) { return llvm::cast<llvm::ConstantFP>(llvm::ConstantFP::get(part, x))->getValueAPF().bitcastToAPInt(); };
  return llvm::ConstantInt::get(b.getContext(), bits(z.imag()).concat(bits(z.real())));
}

}  // namespace

Type* ScalarEmitter::scalar_type(DType t) {
  if (t == DType::opaque) unsupported("cpu: an element type that only the host's library knows");
  if (t == DType::b1) return b_.getInt1Ty();
  // Carried as they are: complex numbers, which arithmetic takes apart before, and types that nothing is computed in.
  if (!is_floating(t) || is_stored_only(t)) return b_.getIntNTy(static_cast<unsigned>(8 * size_of(t)));
  return compute_dtype(t) == DType::f64 ? b_.getDoubleTy() : b_.getFloatTy();
}

Type* ScalarEmitter::memory_type(DType t) {
  if (t == DType::f16) return b_.getHalfTy();
  return t == DType::b1 || is_low_precision(t) ? b_.getIntNTy(static_cast<unsigned>(8 * size_of(t))) : scalar_type(t);
}

V ScalarEmitter::iota() {
  std::vector<llvm::Constant*> lanes;
  for (unsigned i = 0; i < lanes_; ++i) lanes.push_back(b_.getInt64(i));
  return llvm::ConstantVector::get(lanes);
}

void ScalarEmitter::even_out(V& a, V& b) {
  if (is_vector(a) && !is_vector(b)) b = splat(b);
  if (is_vector(b) && !is_vector(a)) a = splat(a);
}

V ScalarEmitter::to_compute(V v, DType t) {
  if (t == DType::b1) return b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
  if (t == DType::bf16) return emit_bf16_to_f32(b_, v);
  if (t == DType::f16) return emit_f16_to_f32(b_, v);
  return v;
}

V ScalarEmitter::to_memory(V v, DType t) {
  if (t == DType::b1) return b_.CreateZExt(v, is_vector(v) ? vector_of(b_.getInt8Ty()) : b_.getInt8Ty());
  if (t == DType::bf16) return emit_f32_to_bf16(b_, v, features_);
  if (t == DType::f16) return emit_f32_to_f16(b_, v);
  return v;
}

// To nearest even in the upper half of the bits, which is all that bf16 has of them; NaN stays what it is.
V ScalarEmitter::round_to(V v, DType t) {
  if (t != DType::bf16) return to_compute(to_memory(v, t), t);
  Type* bits = is_vector(v) ? static_cast<Type*>(vector_of(b_.getInt32Ty())) : b_.getInt32Ty();
  auto number = [&](uint64_t n) { return llvm::ConstantInt::get(bits, n); };
  const V i = b_.CreateBitCast(v, bits), odd = b_.CreateAnd(b_.CreateLShr(i, number(16)), number(1));
  const V nearest = b_.CreateAnd(b_.CreateAdd(b_.CreateAdd(i, number(0x7fff)), odd), number(0xffff0000));
  return b_.CreateSelect(b_.CreateFCmpUNO(v, v), v, b_.CreateBitCast(nearest, v->getType()));
}

V ScalarEmitter::constant(const Scalar& s, DType t) {
  if (t == DType::b1) return b_.getInt1(as_double(s) != 0);
  if (is_integral(t)) return llvm::ConstantInt::get(scalar_type(t), static_cast<uint64_t>(as_int(s)), true);
  if (is_complex(t)) return complex_bits(b_, s, t);
  if (is_stored_only(t)) return cast(llvm::ConstantFP::get(b_.getFloatTy(), as_double(s)), DType::f32, t);
  return llvm::ConstantFP::get(scalar_type(t), rounded(as_double(s), t));
}

V ScalarEmitter::operation(const KernelExpr& e, const std::vector<V>& a, DType from) {
  DType operand = e.kind == Kind::op && e.op == Op::where ? e.dtype : from;
  bool is_float = is_floating(operand);
  if (e.op == Op::cast) return cast(a[0], from, e.dtype);
  if (e.op == Op::bitcast) return bitcast(a[0], from, e.dtype);
  if (e.op == Op::where) return b_.CreateSelect(a[0], a[1], a[2]);
  if (e.op == Op::copy) return a[0];
  if (kind_of(e.op) == OpKind::compare) return compare(e.op, a, operand);
  V v = is_float ? float_op(e.op, a) : int_op(e.op, a, operand);
  check(v != nullptr, "cpu: no code for ", name_of(e.op), " on ", name_of(operand));
  return v;
}

// Which of two zeros is the larger one nobody says, and ordering them takes as many instructions as all the rest.
static V without_zero_order(V extreme) {
  if (auto* call = llvm::dyn_cast<llvm::Instruction>(extreme)) call->setHasNoSignedZeros(true);
  return extreme;
}

V ScalarEmitter::float_op(Op op, const std::vector<V>& a) {
  if (auto f = math_fn(op)) return math(*f, a);
  V x = a[0], y = a.size() > 1 ? a[1] : nullptr;
  Type* t = x->getType();
  using namespace llvm;
  switch (op) {
    case Op::neg: return b_.CreateFNeg(x);
    case Op::abs: return b_.CreateUnaryIntrinsic(Intrinsic::fabs, x);
    case Op::sign: return sign(x);
    case Op::floor: return b_.CreateUnaryIntrinsic(Intrinsic::floor, x);
    case Op::ceil: return b_.CreateUnaryIntrinsic(Intrinsic::ceil, x);
    case Op::trunc: return b_.CreateUnaryIntrinsic(Intrinsic::trunc, x);
    case Op::round: return b_.CreateUnaryIntrinsic(Intrinsic::rint, x);
    case Op::sqrt: return b_.CreateUnaryIntrinsic(Intrinsic::sqrt, x);
    case Op::reciprocal: return b_.CreateFDiv(fp(t, 1), x);
    case Op::relu: return b_.CreateSelect(b_.CreateFCmpOLT(x, fp(t, 0)), fp(t, 0), x);
    case Op::gelu_erf: return gelu_erf(x);
    case Op::gelu_tanh: return gelu_tanh(x);
    case Op::gelu_erf_derivative: return gelu_erf_derivative(x);
    case Op::gelu_tanh_derivative: return gelu_tanh_derivative(x);
    case Op::hardsigmoid: {
      V low = fp(t, -3), high = fp(t, 3), inner = b_.CreateFDiv(b_.CreateFAdd(x, high), fp(t, 6));
      return b_.CreateSelect(b_.CreateFCmpOLT(x, low), fp(t, 0), b_.CreateSelect(b_.CreateFCmpOGT(x, high), fp(t, 1), inner));
    }
    case Op::silu: return b_.CreateFMul(x, math(MathFn::sigmoid, {x}));
    case Op::add: return b_.CreateFAdd(x, y);
    case Op::sub: return b_.CreateFSub(x, y);
    case Op::mul: return b_.CreateFMul(x, y);
    case Op::div: return b_.CreateFDiv(x, y);
    case Op::fma: return features_.fma ? b_.CreateIntrinsic(Intrinsic::fma, {t}, {x, y, a[2]}) : b_.CreateFAdd(b_.CreateFMul(x, y), a[2]);
    case Op::floor_div: return float_floor_div(x, y);
    case Op::mod: return float_mod(x, y);
    case Op::fmod: return b_.CreateFRem(x, y);
    case Op::nextafter: return next_after(x, y);
    case Op::copysign: return b_.CreateBinaryIntrinsic(Intrinsic::copysign, x, y);
    case Op::min: return without_zero_order(b_.CreateBinaryIntrinsic(Intrinsic::minimum, x, y));
    case Op::max: return without_zero_order(b_.CreateBinaryIntrinsic(Intrinsic::maximum, x, y));
    default: return nullptr;
  }
}

// One step of the bits towards y; a step away from zero adds to the magnitude.
V ScalarEmitter::next_after(V x, V y) {
  Type* t = x->getType();
  Type* bits_t = t->getScalarType()->isFloatTy() ? static_cast<Type*>(b_.getInt32Ty()) : b_.getInt64Ty();
  if (is_vector(x)) bits_t = vector_of(bits_t);
  V one = llvm::ConstantInt::get(bits_t, 1), bits = b_.CreateBitCast(x, bits_t), zero = fp(t, 0);
  V outwards = b_.CreateICmpEQ(b_.CreateFCmpOGT(y, x), b_.CreateFCmpOGT(x, zero));
  V moved = b_.CreateBitCast(b_.CreateSelect(outwards, b_.CreateAdd(bits, one), b_.CreateSub(bits, one)), t);
  V smallest = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, b_.CreateBitCast(one, t), y);
  V result = b_.CreateSelect(b_.CreateFCmpOEQ(x, zero), smallest, moved);
  result = b_.CreateSelect(b_.CreateFCmpOEQ(x, y), y, result);
  return b_.CreateSelect(b_.CreateFCmpUNO(x, y), b_.CreateFAdd(x, y), result);
}

V ScalarEmitter::sign(V x) {
  V zero = llvm::Constant::getNullValue(x->getType());
  V up = b_.CreateSelect(b_.CreateFCmpOGT(x, zero), fp(x->getType(), 1), zero);
  return b_.CreateSelect(b_.CreateFCmpOLT(x, zero), fp(x->getType(), -1), up);
}

V ScalarEmitter::gelu_erf(V x) { return b_.CreateFMul(x, normal(x)); }

V ScalarEmitter::gelu_tanh(V x) {
  Type* t = x->getType();
  return b_.CreateFMul(b_.CreateFMul(x, fp(t, 0.5)), b_.CreateFAdd(fp(t, 1), tanh_of_gelu(x, b_.CreateFMul(x, x))));
}

V ScalarEmitter::tanh_of_gelu(V x, V square) {
  Type* t = x->getType();
  V cube = b_.CreateFMul(square, x);
  return math(MathFn::tanh, {b_.CreateFMul(fp(t, 0.79788456080286535588), b_.CreateFAdd(x, b_.CreateFMul(fp(t, 0.044715), cube)))});
}

V ScalarEmitter::normal(V x) {
  if (V quick = emit_normal(b_, x, features_)) return quick;
  Type* t = x->getType();
  return b_.CreateFMul(fp(t, 0.5), b_.CreateFAdd(fp(t, 1), math(MathFn::erf, {b_.CreateFMul(x, fp(t, 0.70710678118654752440))})));
}

V ScalarEmitter::gelu_erf_derivative(V x) {
  Type* t = x->getType();
  V bell = math(MathFn::exp, {b_.CreateFMul(b_.CreateFMul(x, x), fp(t, -0.5))});
  return b_.CreateFAdd(normal(x), b_.CreateFMul(x, b_.CreateFMul(bell, fp(t, 0.39894228040143267794))));
}

V ScalarEmitter::gelu_tanh_derivative(V x) {
  Type* t = x->getType();
  V one = fp(t, 1), half = fp(t, 0.5), square = b_.CreateFMul(x, x), tanh = tanh_of_gelu(x, square);
  V inner = b_.CreateFMul(fp(t, 0.79788456080286535588), b_.CreateFAdd(one, b_.CreateFMul(square, fp(t, 3 * 0.044715))));
  V rest = b_.CreateFMul(b_.CreateFMul(b_.CreateFMul(x, half), b_.CreateFSub(one, b_.CreateFMul(tanh, tanh))), inner);
  return b_.CreateFAdd(b_.CreateFMul(b_.CreateFAdd(tanh, one), half), rest);
}

// As c10::div_floor_floating: exact through fmod, with the sign of a zero quotient.
V ScalarEmitter::float_floor_div(V x, V y) {
  Type* t = x->getType();
  V zero = fp(t, 0), rest = b_.CreateFRem(x, y);
  V quotient = b_.CreateFDiv(b_.CreateFSub(x, rest), y);
  V crosses = b_.CreateAnd(b_.CreateFCmpUNE(rest, zero), b_.CreateICmpNE(b_.CreateFCmpOLT(y, zero), b_.CreateFCmpOLT(rest, zero)));
  quotient = b_.CreateSelect(crosses, b_.CreateFSub(quotient, fp(t, 1)), quotient);
  V floored = b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, quotient);
  V nearest = b_.CreateSelect(b_.CreateFCmpOGT(b_.CreateFSub(quotient, floored), fp(t, 0.5)), b_.CreateFAdd(floored, fp(t, 1)), floored);
  V ratio = b_.CreateFDiv(x, y);
  V result = b_.CreateSelect(b_.CreateFCmpUNE(quotient, zero), nearest, b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, zero, ratio));
  return b_.CreateSelect(b_.CreateFCmpOEQ(y, zero), ratio, result);
}

V ScalarEmitter::float_mod(V x, V y) {
  V zero = fp(x->getType(), 0), rest = b_.CreateFRem(x, y);
  V crosses = b_.CreateAnd(b_.CreateFCmpUNE(rest, zero), b_.CreateICmpNE(b_.CreateFCmpOLT(y, zero), b_.CreateFCmpOLT(rest, zero)));
  return b_.CreateSelect(crosses, b_.CreateFAdd(rest, y), rest);
}

V ScalarEmitter::int_op(Op op, const std::vector<V>& a, DType t) {
  V x = a[0], y = a.size() > 1 ? a[1] : nullptr;
  bool u = is_unsigned(t);
  V zero = llvm::Constant::getNullValue(x->getType());
  V one = llvm::ConstantInt::get(x->getType(), 1);
  using llvm::Intrinsic::smax;
  switch (op) {
    case Op::neg: return b_.CreateNeg(x);
    case Op::abs: return u ? x : b_.CreateSelect(b_.CreateICmpSLT(x, zero), b_.CreateNeg(x), x);
    case Op::sign: {
      V up = b_.CreateSelect(u ? b_.CreateICmpNE(x, zero) : b_.CreateICmpSGT(x, zero), one, zero);
      return u ? up : b_.CreateSelect(b_.CreateICmpSLT(x, zero), llvm::Constant::getAllOnesValue(x->getType()), up);
    }
    case Op::floor:
    case Op::ceil:
    case Op::trunc:
    case Op::round: return x;
    case Op::relu: return u ? x : b_.CreateBinaryIntrinsic(smax, x, zero);
    case Op::bit_not: return b_.CreateNot(x);
    case Op::add: return t == DType::b1 ? b_.CreateOr(x, y) : b_.CreateAdd(x, y);
    case Op::sub: return t == DType::b1 ? b_.CreateXor(x, y) : b_.CreateSub(x, y);
    case Op::mul: return t == DType::b1 ? b_.CreateAnd(x, y) : b_.CreateMul(x, y);
    case Op::div:
    case Op::floor_div:
    case Op::mod:
    case Op::fmod: return divide(op, x, y, u);
    case Op::min: return b_.CreateSelect(u ? b_.CreateICmpULT(x, y) : b_.CreateICmpSLT(x, y), x, y);
    case Op::max: return b_.CreateSelect(u ? b_.CreateICmpUGT(x, y) : b_.CreateICmpSGT(x, y), x, y);
    case Op::bit_and: return b_.CreateAnd(x, y);
    case Op::bit_or: return b_.CreateOr(x, y);
    case Op::bit_xor: return b_.CreateXor(x, y);
    case Op::shl:
    case Op::shr: return shift(op, x, y, u);
    case Op::pow: return t == DType::b1 ? b_.CreateOr(x, b_.CreateNot(y)) : int_pow(x, y, u);
    default: return nullptr;
  }
}

// A divisor of zero is the host's to refuse; here it must only not trap, nor may the lowest number by -1.
V ScalarEmitter::divide(Op op, V x, V y, bool u) {
  V zero = llvm::Constant::getNullValue(x->getType()), one = llvm::ConstantInt::get(x->getType(), 1);
  y = b_.CreateSelect(b_.CreateICmpEQ(y, zero), one, y);
  bool remainder = op == Op::mod || op == Op::fmod;
  if (u) return remainder ? b_.CreateURem(x, y) : b_.CreateUDiv(x, y);
  V negated = b_.CreateICmpEQ(y, llvm::Constant::getAllOnesValue(y->getType()));
  V safe = b_.CreateSelect(negated, one, y);
  V q = b_.CreateSelect(negated, b_.CreateNeg(x), b_.CreateSDiv(x, safe));
  V r = b_.CreateSub(x, b_.CreateMul(q, y));
  if (op == Op::div) return q;
  if (op == Op::fmod) return r;
  V crosses = b_.CreateAnd(b_.CreateICmpNE(r, zero), b_.CreateICmpNE(b_.CreateICmpSLT(r, zero), b_.CreateICmpSLT(y, zero)));
  return op == Op::mod ? b_.CreateSelect(crosses, b_.CreateAdd(r, y), r) : b_.CreateSelect(crosses, b_.CreateSub(q, one), q);
}

// A shift by the width or more gives 0, or the sign for a right shift of a signed type; a negative one counts as such.
V ScalarEmitter::shift(Op op, V x, V y, bool u) {
  Type* t = x->getType();
  auto width = t->getScalarSizeInBits();
  V zero = llvm::Constant::getNullValue(t);
  V too_far = b_.CreateICmpUGE(y, llvm::ConstantInt::get(t, width));
  V in_range = b_.CreateSelect(too_far, zero, y);
  if (op == Op::shl) return b_.CreateSelect(too_far, zero, b_.CreateShl(x, in_range));
  if (u) return b_.CreateSelect(too_far, zero, b_.CreateLShr(x, in_range));
  return b_.CreateAShr(x, b_.CreateSelect(too_far, llvm::ConstantInt::get(t, width - 1), y));
}

// By squaring, 64 steps at most; a negative exponent gives what 1/x rounds to.
V ScalarEmitter::int_pow(V x, V y, bool u) {
  Type* t = x->getType();
  V zero = llvm::Constant::getNullValue(t), one = llvm::ConstantInt::get(t, 1), minus = llvm::Constant::getAllOnesValue(t);
  V result = one, base = x, e = y;
  for (unsigned bit = 0; bit < t->getScalarSizeInBits(); ++bit) {
    V odd = b_.CreateICmpNE(b_.CreateAnd(e, one), zero);
    result = b_.CreateSelect(odd, b_.CreateMul(result, base), result);
    base = b_.CreateMul(base, base);
    e = b_.CreateLShr(e, one);
  }
  if (u) return result;
  V odd = b_.CreateICmpNE(b_.CreateAnd(y, one), zero);
  V of_minus_one = b_.CreateSelect(odd, minus, one);
  V inverse = b_.CreateSelect(b_.CreateICmpEQ(x, one), one, b_.CreateSelect(b_.CreateICmpEQ(x, minus), of_minus_one, zero));
  return b_.CreateSelect(b_.CreateICmpSLT(y, zero), inverse, result);
}

V ScalarEmitter::compare(Op op, const std::vector<V>& a, DType t) {
  using P = llvm::CmpInst::Predicate;
  if (op == Op::is_nan) return is_floating(t) ? b_.CreateFCmpUNO(a[0], a[0]) : splat_like(b_.getInt1(false), a[0]);
  auto pick = [&](P f, P s, P u) {
    return is_floating(t) ? b_.CreateFCmp(f, a[0], a[1]) : b_.CreateICmp(is_unsigned(t) ? u : s, a[0], a[1]);
  };
  switch (op) {
    case Op::eq: return pick(P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ);
    case Op::ne: return pick(P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE);
    case Op::lt: return pick(P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT);
    case Op::le: return pick(P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE);
    case Op::gt: return pick(P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT);
    default: return pick(P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE);
  }
}

V ScalarEmitter::cast(V v, DType from, DType to) {
  if (from == to) return v;
  if (is_stored_only(from)) return cast(emit_f8_to_f32(b_, v, format_of(from)), DType::f32, to);
  if (is_stored_only(to)) {  // rounded at each step: a unit of so few digits is large
    V wide = is_low_precision(from) ? round_to(v, from) : cast(v, from, DType::f32);
    return emit_f32_to_f8(b_, wide, format_of(to));
  }
  if (is_low_precision(from) && to == DType::f32) return v;
  if (is_low_precision(to) && (from == DType::f32 || is_low_precision(from))) return v;  // rounded behind, or when stored
  Type* t = scalar_type(to);
  if (is_vector(v)) t = vector_of(t);
  bool from_float = is_floating(from), to_float = is_floating(to);
  if (to == DType::b1) {
    V zero = llvm::Constant::getNullValue(v->getType());
    return from_float ? b_.CreateFCmpUNE(v, zero) : b_.CreateICmpNE(v, zero);
  }
  if (from_float && to_float) return b_.CreateFPCast(v, t);
  if (to_float) return is_unsigned(from) ? b_.CreateUIToFP(v, t) : b_.CreateSIToFP(v, t);
  if (from_float) return float_to_int(v, to, t);
  return b_.CreateIntCast(v, t, !is_unsigned(from));
}

// What x86's conversions give: out of range is the lowest number of the width converted through.
V ScalarEmitter::float_to_int(V v, DType to, Type* t) {
  Type* wide = to == DType::i64 || to == DType::u8 ? b_.getInt64Ty() : b_.getInt32Ty();
  Type* wide_t = is_vector(v) ? vector_of(wide) : wide;
  double limit = wide == b_.getInt64Ty() ? 9223372036854775808.0 : 2147483648.0;
  V in_range = b_.CreateAnd(b_.CreateFCmpOGE(v, fp(v->getType(), -limit)), b_.CreateFCmpOLT(v, fp(v->getType(), limit)));
  V converted = b_.CreateFPToSI(b_.CreateSelect(in_range, v, fp(v->getType(), 0)), wide_t);
  V lowest = llvm::ConstantInt::get(wide_t, llvm::APInt::getSignedMinValue(wide->getIntegerBitWidth()));
  return b_.CreateIntCast(b_.CreateSelect(in_range, converted, lowest), t, true);
}

V ScalarEmitter::bitcast(V v, DType from, DType to) {
  V raw = to_memory(v, from);
  Type* t = memory_type(to);
  return to_compute(b_.CreateBitCast(raw, is_vector(raw) ? vector_of(t) : t), to);
}

}  // namespace broach::cpu
