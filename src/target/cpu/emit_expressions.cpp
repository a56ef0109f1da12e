#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Intrinsics.h>

#include "support/error.h"
#include "target/cpu/coarse_math.h"
#include "target/cpu/kernel_emitter.h"

namespace broach::cpu {

using Kind = KernelExpr::Kind;
using llvm::Type;

// The value of an index at the current point; the vector axis stands for lane 0, or for all lanes where `lanes` is set.
llvm::Value* KernelEmitter::integer(const SymInt& e, bool lanes) {
  V sum = i64(e.constant_part());
  for (const Term& t : e.terms()) {
    V p = i64(t.coefficient);
    for (const Atom& a : t.factors) {
      V f = atom(a, lanes);
      even_out(p, f);
      p = b_.CreateMul(p, f);
    }
    even_out(sum, p);
    sum = b_.CreateAdd(sum, p);
  }
  return sum;
}

llvm::Value* KernelEmitter::atom(const Atom& a, bool lanes) {
  if (a.kind == AtomKind::symbol) {
    if (a.symbol < kFirstAxis) return symbols_.at(a.symbol);
    V at = point_.at(a.symbol);
    if (!lanes || a.symbol != plan_.vector().id) return at;
    return b_.CreateAdd(splat(at), iota());
  }
  V x = integer(a.args->first, lanes), y = integer(a.args->second, lanes);
  even_out(x, y);
  switch (a.kind) {
    case AtomKind::floordiv:
    case AtomKind::mod: return divided(a, x, y);
    case AtomKind::min: return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
    default: return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
  }
}

// Rounded down. A position of which whole multiples of a symbol were left out may be negative: (i - 1) mod s0 for (s0*s1 - 1 + i) mod s0.
llvm::Value* KernelEmitter::divided(const Atom& a, V x, V y) {
  const bool quotient = a.kind == AtomKind::floordiv;
  if (proven_non_negative(a.args->first, ranges_)) return quotient ? b_.CreateUDiv(x, y) : b_.CreateURem(x, y);
  V rest = b_.CreateSRem(x, y), zero = llvm::Constant::getNullValue(rest->getType());
  V below = b_.CreateICmpSLT(rest, zero);
  if (!quotient) return b_.CreateAdd(rest, b_.CreateSelect(below, y, zero));
  return b_.CreateAdd(b_.CreateSDiv(x, y), b_.CreateSExt(below, rest->getType()));
}

llvm::Value* KernelEmitter::position(const SymInt& e) {
  if (!varies(e)) return integer(e, false);
  if (auto s = stride(e, plan_.vector().id)) return b_.CreateAdd(splat(integer(e, false)), b_.CreateMul(splat(integer(*s, false)), iota()));
  return integer(e, true);
}

llvm::Value* KernelEmitter::element(int buffer, V index) {
  return b_.CreateGEP(memory_type(k_.buffers[static_cast<size_t>(buffer)]), buffers_[static_cast<size_t>(buffer)], index);
}

// Lanes that exist and that the expression's predicate lets through; null for all.
llvm::Value* KernelEmitter::mask_of(const KernelExpr& e) {
  V mask = mask_;
  if (e.predicate < 0) return mask;
  if (known(e.predicate) == true) return mask;
  V p = value(e.predicate);
  if (!mask || !is_vector(p)) return mask && !is_vector(p) ? b_.CreateAnd(mask, splat(p)) : p;
  return b_.CreateAnd(mask, p);
}

// Lanes that LLVM is given in one masked access. Without AVX-512 it takes (19.1) a mask of two registers, one of which is known to let
// nothing through, for one that lets through all of it, and reads beyond the tensor.
unsigned KernelEmitter::masked_lanes(Type* element) const {
  constexpr unsigned kRegister = 256;  // bits
  const auto bits = static_cast<unsigned>(element->getPrimitiveSizeInBits().getFixedValue());
  return features_.avx512 ? lanes_ : std::min(lanes_, kRegister / bits);
}

llvm::Value* KernelEmitter::masked_load(Type* type, V p, llvm::Align align, V mask) {
  const unsigned piece = masked_lanes(type);
  auto* part = llvm::FixedVectorType::get(type, piece);
  llvm::SmallVector<V, 4> parts;
  for (unsigned at = 0; at < lanes_; at += piece)
    parts.push_back(b_.CreateMaskedLoad(part, b_.CreateConstGEP1_64(type, p, at), align, lanes_of(mask, at, piece),
                                        llvm::Constant::getNullValue(part)));
  return llvm::concatenateVectors(b_, parts);
}

void KernelEmitter::masked_store(V v, V p, llvm::Align align, V mask) {
  Type* type = v->getType()->getScalarType();
  const unsigned piece = masked_lanes(type);
  for (unsigned at = 0; at < lanes_; at += piece)
    b_.CreateMaskedStore(lanes_of(v, at, piece), b_.CreateConstGEP1_64(type, p, at), align, lanes_of(mask, at, piece));
}

llvm::Value* KernelEmitter::lanes_of(V v, unsigned first, unsigned count) {
  if (count == lanes_) return v;
  return b_.CreateShuffleVector(v, llvm::createSequentialMask(first, count, 0));
}

// Lanes at known distances of a type that no machine gathers or scatters: LLVM would compute all addresses and take them apart.
bool KernelEmitter::is_apart(const Access& a, const std::optional<SymInt>& step) const {
  return step && step->is_constant() && size_of(k_.buffers[static_cast<size_t>(a.buffer)]) < 4;
}

llvm::Value* KernelEmitter::lane_address(Type* type, V first, unsigned lane, const SymInt& step) {
  return b_.CreateConstGEP1_64(type, first, static_cast<uint64_t>(lane * step.constant()));
}

llvm::Value* KernelEmitter::load(const KernelExpr& e) {
  const Access& a = e.access;
  DType stored = k_.buffers[static_cast<size_t>(a.buffer)];
  Type* type = memory_type(stored);
  auto align = llvm::Align(static_cast<uint64_t>(size_of(stored)));
  if (e.predicate >= 0 && known(e.predicate) == false) return to_compute(llvm::Constant::getNullValue(type), stored);
  V dynamic = nullptr;
  for (const auto& [expr, s] : a.dynamic) {
    V d = value(expr), scale = integer(s, false);
    even_out(d, scale);
    V part = b_.CreateMul(d, scale);
    if (dynamic) even_out(dynamic, part);
    dynamic = dynamic ? b_.CreateAdd(dynamic, part) : part;
  }
  auto step = stride(a.index, plan_.vector().id);
  bool uniform_dynamic = !dynamic || !is_vector(dynamic);
  auto address = [&] {
    V i = integer(a.index, false);
    return element(a.buffer, dynamic ? b_.CreateAdd(i, dynamic) : i);
  };
  if (uniform_dynamic && step && *step == SymInt(0)) return to_compute(load_scalar(type, address(), e, align), stored);
  V mask = mask_of(e);
  if (mask && !is_vector(mask)) mask = splat(mask);
  V nothing = llvm::Constant::getNullValue(vector_of(type));
  if (uniform_dynamic && step && *step == SymInt(1)) {
    V p = address();
    return to_compute(mask ? masked_load(type, p, align, mask) : b_.CreateAlignedLoad(vector_of(type), p, align), stored);
  }
  if (!mask && !dynamic && is_apart(a, step)) {
    V p = address(), lanes = nothing;
    for (unsigned l = 0; l < lanes_; ++l)
      lanes = b_.CreateInsertElement(lanes, b_.CreateAlignedLoad(type, lane_address(type, p, l, *step), align), l);
    return to_compute(lanes, stored);
  }
  V index = position(a.index);
  if (dynamic) {
    even_out(index, dynamic);
    index = b_.CreateAdd(index, dynamic);
  }
  V elements = element(a.buffer, splat(index)), all = llvm::Constant::getAllOnesValue(vector_of(b_.getInt1Ty()));
  // Without AVX-512 a gather under a mask becomes a branch for each lane, which takes long to compile.
  if (mask && !features_.avx512 && plan_.has_many_masks) elements = b_.CreateSelect(mask, elements, splat(zero_)), mask = nullptr;
  V gathered = b_.CreateMaskedGather(vector_of(type), elements, align, mask ? mask : all, nothing);
  return to_compute(gathered, stored);
}

llvm::Value* KernelEmitter::load_scalar(Type* type, V p, const KernelExpr& e, llvm::Align align) {
  if (e.predicate < 0) return b_.CreateAlignedLoad(type, p, align);
  V condition = value(e.predicate);
  if (is_vector(condition)) condition = b_.CreateOrReduce(mask_ ? b_.CreateAnd(mask_, condition) : condition);
  return b_.CreateAlignedLoad(type, b_.CreateSelect(condition, p, zero_), align);
}

// At the current point, v as it is to lie in memory.
void KernelEmitter::store(const KernelStore& s, V v) {
  auto align = llvm::Align(static_cast<uint64_t>(size_of(k_.buffers[static_cast<size_t>(s.access.buffer)])));
  auto step = stride(s.access.index, plan_.vector().id);
  if (step && *step == SymInt(0) && !(plan_.vector().extent == SymInt(1)) && !is_vector(v)) {
    b_.CreateAlignedStore(v, element(s.access.buffer, integer(s.access.index, false)), align);
    return;
  }
  v = splat(v);
  V all = llvm::Constant::getAllOnesValue(vector_of(b_.getInt1Ty()));
  if ((step && *step == SymInt(1)) || plan_.vector().extent == SymInt(1)) {
    V p = element(s.access.buffer, integer(s.access.index, false));
    bool stream = streaming_ && !mask_ && plan_.streams[static_cast<size_t>(&s - k_.stores.data())];
    if (mask_) masked_store(v, p, align, mask_);
    else if (stream)
      b_.CreateAlignedStore(v, p, llvm::Align(align.value() * lanes_))
          ->setMetadata(llvm::LLVMContext::MD_nontemporal, llvm::MDNode::get(context_, llvm::ConstantAsMetadata::get(b_.getInt32(1))));
    else b_.CreateAlignedStore(v, p, align);
    return;
  }
  if (!mask_ && is_apart(s.access, step)) {
    V p = element(s.access.buffer, integer(s.access.index, false));
    for (unsigned l = 0; l < lanes_; ++l)
      b_.CreateAlignedStore(b_.CreateExtractElement(v, l), lane_address(v->getType()->getScalarType(), p, l, *step), align);
    return;
  }
  b_.CreateMaskedScatter(v, element(s.access.buffer, splat(position(s.access.index))), align, mask_ ? mask_ : all);
}

// ---- expressions ----
llvm::Value* KernelEmitter::value(int e) {
  if (auto it = values_.find(e); it != values_.end()) return it->second;
  V v = compute(e);
  values_[e] = v;
  return v;
}

bool KernelEmitter::is_constant(int e, int64_t number) const {
  return plan_.expr(e).kind == Kind::constant && as_int(plan_.expr(e).value) == number;
}

// x << 32 and (x & 0xffffffff) | (y << 32) of i64 vectors, as complex numbers are packed: the lower and the upper half of the lanes.
// Nothing for other expressions. From the extensions that the formula has, LLVM 19's x86 backend makes nodes that it cannot
// select, and ends the process.
std::optional<std::pair<llvm::Value*, llvm::Value*>> KernelEmitter::halves(const KernelExpr& e) {
  if (e.dtype != DType::i64) return std::nullopt;
  auto is = [&](const KernelExpr& x, Op op, int64_t number) { return x.kind == Kind::op && x.op == op && is_constant(x.args[1], number); };
  auto low = [&](int x) { return b_.CreateTrunc(splat(value(x)), vector_of(b_.getInt32Ty())); };
  auto widened = [&](int x) {
    return plan_.expr(x).kind == Kind::op && plan_.expr(x).op == Op::cast && plan_.expr(plan_.expr(x).args[0]).dtype == DType::i32;
  };
  if (is(e, Op::shl, 32) && widened(e.args[0]))
    return std::pair{static_cast<V>(llvm::Constant::getNullValue(vector_of(b_.getInt32Ty()))), low(e.args[0])};
  if (e.op != Op::bit_or) return std::nullopt;
  const KernelExpr &x = plan_.expr(e.args[0]), &y = plan_.expr(e.args[1]);
  if (!is(x, Op::bit_and, 0xffffffff) || !is(y, Op::shl, 32)) return std::nullopt;
  return std::pair{low(x.args[0]), low(y.args[0])};
}

llvm::Value* KernelEmitter::interleaved(V low, V high) {
  std::vector<int> order;
  for (unsigned i = 0; i < lanes_; ++i) order.insert(order.end(), {static_cast<int>(i), static_cast<int>(lanes_ + i)});
  return b_.CreateBitCast(b_.CreateShuffleVector(low, high, order), vector_of(b_.getInt64Ty()));
}

llvm::Value* KernelEmitter::compute(int at) {
  const KernelExpr& e = plan_.expr(at);
  switch (e.kind) {
    case Kind::constant: return constant(e.value, e.dtype);
    case Kind::parameter: return parameters_.at(static_cast<size_t>(as_int(e.value)));
    case Kind::position: return position(e.access.index);
    case Kind::load: return plan_.turned.contains(at) ? turned(at) : load(e);
    case Kind::bounds: return bounds(e);
    case Kind::reduction: fail("cpu: a reduction is used before it is computed");
    default: break;
  }
  if (const auto holds = known(at)) return b_.getInt1(*holds);
  if (const auto taken = e.op == Op::where ? known(e.args[0]) : std::nullopt) return value(e.args[*taken ? 1 : 2]);
  auto cached = plan_.cached.find(at);
  if (cached != plan_.cached.end() && filled_.contains(at)) return scratch(cached->second, e.dtype, nullptr);
  std::vector<V> args;
  bool any_vector = false;
  for (int a : e.args) {
    args.push_back(value(a));
    any_vector |= is_vector(args.back());
  }
  V v = divided_by_one(at, args);
  if (any_vector)
    for (V& a : args) a = splat(a);
  DType from = e.args.empty() ? e.dtype : plan_.expr(e.args.back()).dtype;
  const llvm::IRBuilderBase::FastMathFlagGuard guard(b_);
  if (is_function(e.op) && !k_.strict) b_.setFastMathFlags(contracting());
  const auto pair = any_vector ? halves(e) : std::nullopt;
  if (pair) v = interleaved(pair->first, pair->second);
  else if (!v && plan_.coarse[static_cast<size_t>(at)]) v = emit_coarse(b_, e.op, args[0], features_);
  if (!v) v = operation(e, args, from);
  if (plan_.rounds[static_cast<size_t>(at)]) v = round_to(v, e.dtype);
  if (cached != plan_.cached.end()) scratch(cached->second, e.dtype, splat(v));
  return v;
}

// What a condition is in all of the current piece.
std::optional<bool> KernelEmitter::known(int e) const {
  return plan_.cuts.empty() ? std::nullopt : plan_.known[piece_][static_cast<size_t>(e)];
}

// A softmax's quotient, by what is the same for a whole vector; else nothing.
llvm::Value* KernelEmitter::divided_by_one(int at, const std::vector<V>& args) {
  if (!plan_.weights[static_cast<size_t>(at)] || !is_vector(args[0]) || is_vector(args[1]) || !features_.fma || k_.strict) return nullptr;
  return times_inverse(args[0], args[1], plan_.coarse[static_cast<size_t>(at)]);
}

// x / y for x <= 1 and one y >= 1: to two units of the last place, or as a quotient is rounded but for a few cases.
llvm::Value* KernelEmitter::times_inverse(V x, V y, bool coarse) {
  V inverse = splat(b_.CreateFDiv(fp(y->getType(), 1), y)), product = b_.CreateFMul(x, inverse);
  if (coarse) return product;
  auto fma = [&](V p, V q, V r) { return b_.CreateIntrinsic(llvm::Intrinsic::fma, {x->getType()}, {p, q, r}); };
  return fma(fma(b_.CreateFNeg(product), splat(y), x), inverse, product);
}

// A whole vector always fits: a row has room beyond its end.
llvm::Value* KernelEmitter::scratch_address(int64_t row, const SymInt& length, V position, DType t) {
  V start = b_.CreateMul(i64(row * 8), b_.CreateAdd(integer(length, false), i64(64)));
  return b_.CreateGEP(scalar_type(t), b_.CreateGEP(b_.getInt8Ty(), fn_->getArg(4), start), position);
}

// The element at the current point of row `row` of the scratch memory: stores v, or loads.
llvm::Value* KernelEmitter::scratch(int64_t row, DType t, V v) {
  V p = scratch_address(row, plan_.vector().extent, point_.at(plan_.vector().id), t);
  if (!v) return b_.CreateAlignedLoad(vector_of(scalar_type(t)), p, llvm::Align(4));
  return b_.CreateAlignedStore(v, p, llvm::Align(4));
}

llvm::Value* KernelEmitter::bounds(const KernelExpr& e) {
  V i = value(e.args[0]), limit = integer(e.limit, false);
  even_out(i, limit);
  V bad = b_.CreateICmpUGE(i, limit);
  V mask = mask_of(e);
  V counted = bad;
  if (mask) {
    even_out(counted, mask);
    counted = b_.CreateAnd(counted, mask);
  }
  V any = is_vector(counted) ? b_.CreateOrReduce(counted) : counted;
  b_.CreateStore(b_.CreateOr(b_.CreateLoad(b_.getInt32Ty(), error_), b_.CreateZExt(any, b_.getInt32Ty())), error_);
  return b_.CreateSelect(bad, llvm::Constant::getNullValue(i->getType()), i);
}

}  // namespace broach::cpu
