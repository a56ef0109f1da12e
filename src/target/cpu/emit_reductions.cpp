#include <limits>

#include "target/cpu/kernel_emitter.h"

namespace broach::cpu {

using llvm::Type;

llvm::Value* KernelEmitter::identity(const KernelExpr& r) {
  DType t = reduced_dtype(r);
  Type* type = scalar_type(t);
  bool is_float = is_floating(t);
  switch (r.op) {
    case Op::reduce_sum: return is_float ? fp(type, 0) : llvm::Constant::getNullValue(type);
    case Op::reduce_prod: return is_float ? fp(type, 1) : llvm::ConstantInt::get(type, 1);
    case Op::reduce_max:
    case Op::reduce_argmax:
      if (is_float) return fp(type, -std::numeric_limits<double>::infinity());
      return is_unsigned(t) ? llvm::Constant::getNullValue(type)
                            : llvm::ConstantInt::get(type, llvm::APInt::getSignedMinValue(type->getIntegerBitWidth()));
    default:
      if (is_float) return fp(type, std::numeric_limits<double>::infinity());
      return is_unsigned(t) ? llvm::Constant::getAllOnesValue(type)
                            : llvm::ConstantInt::get(type, llvm::APInt::getSignedMaxValue(type->getIntegerBitWidth()));
  }
}

llvm::Value* KernelEmitter::combine(int at, V a, V b) {
  const auto& r = plan_.expr(at);
  if (plan_.passes_nan[static_cast<size_t>(at)]) {
    even_out(a, b);
    return b_.CreateSelect(b_.CreateFCmpOGT(a, b), a, b);
  }
  return binary(fold_of(r.op).value(), a, b, r.dtype);
}

llvm::Value* KernelEmitter::binary(Op op, V a, V b, DType t) {
  even_out(a, b);
  return is_floating(t) ? float_op(op, {a, b}) : int_op(op, {a, b}, t);
}

// Whether (b, at q) replaces (a, at p): better, or NaN, or equal and earlier. Position -1 is an empty slot.
llvm::Value* KernelEmitter::replaces(const KernelExpr& r, V a, V p, V b, V q) {
  DType t = reduced_dtype(r);
  V better = compare(r.op == Op::reduce_argmax ? Op::gt : Op::lt, {b, a}, t), equal = compare(Op::eq, {a, b}, t);
  if (is_floating(t)) {
    V a_nan = b_.CreateFCmpUNO(a, a), b_nan = b_.CreateFCmpUNO(b, b);
    better = b_.CreateOr(better, b_.CreateAnd(b_nan, b_.CreateNot(a_nan)));
    equal = b_.CreateOr(equal, b_.CreateAnd(a_nan, b_nan));
    better = b_.CreateAnd(better, b_.CreateNot(a_nan));
  }
  V minus = llvm::Constant::getAllOnesValue(p->getType());
  V take = b_.CreateOr(better, b_.CreateAnd(equal, b_.CreateICmpSLT(q, p)));
  take = b_.CreateOr(take, b_.CreateICmpEQ(p, minus));
  return b_.CreateAnd(take, b_.CreateICmpNE(q, minus));
}

KernelEmitter::Accumulator& KernelEmitter::accumulator(int r, unsigned slot) {
  auto& list = accumulators_[r];
  while (list.size() <= slot) {
    const auto& e = plan_.expr(r);
    Accumulator a{local(vector_of(accumulator_type(e)), "sum")};
    if (is_index_reduction(e.op)) a.position = local(vector_of(b_.getInt64Ty()), "at");
    list.push_back(a);
  }
  return list[slot];
}

bool KernelEmitter::is_sum(int r) const { return plan_.expr(r).op == Op::reduce_sum && is_floating(plan_.expr(r).dtype); }

std::optional<KernelEmitter::SumBlocks> KernelEmitter::blocks_of(const std::vector<int>& stage, unsigned unroll) {
  constexpr int64_t kBlock = 256, kLong = 2 * kBlock;  // of a chain
  if (std::ranges::none_of(stage, [&](int r) { return is_sum(r); })) return std::nullopt;
  std::vector<size_t> axes;  // innermost first
  if (plan_.vector_reduced && !plan_.vector().extent.is_constant()) {
    const int64_t size = kBlock * static_cast<int64_t>(lanes_) * unroll;
    SymInt elements(1);
    for (const KernelAxis& a : k_.axes)
      if (a.reduced) elements = elements * a.extent;
    return SumBlocks{plan_.vector_axis, size, local(b_.getInt64Ty(), "since"), b_.CreateICmpSGE(integer(elements, false), i64(size))};
  }
  if (plan_.vector_reduced) axes.push_back(plan_.vector_axis);
  for (size_t a = k_.axes.size(); a-- > 0;)
    if (k_.axes[a].reduced && a != plan_.vector_axis) axes.push_back(a);
  int64_t inside = 1, chain = 1;
  std::optional<SumBlocks> out;
  for (size_t a : axes) {
    const int64_t step = a == plan_.vector_axis ? static_cast<int64_t>(lanes_) * unroll : 1;
    const int64_t turns = (k_.axes[a].extent.maybe_constant().value_or(kLong) + step - 1) / step;
    if (!out && inside * turns >= kBlock) out = {a, std::max<int64_t>(1, kBlock / std::max<int64_t>(1, inside)) * step};
    inside *= turns, chain *= turns;
  }
  return chain >= kLong ? out : std::nullopt;
}

// A sum and what its rounding added (Kahan 1965), which is nothing where the sum is not finite.
std::pair<llvm::Value*, llvm::Value*> KernelEmitter::add_exactly(V total, V excess, V x) {
  const V y = b_.CreateFSub(x, excess), sum = b_.CreateFAdd(total, y), added = b_.CreateFSub(b_.CreateFSub(sum, total), y);
  const V size = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, added);
  const V is_finite = b_.CreateFCmpOLT(size, llvm::ConstantFP::getInfinity(size->getType()));
  return {sum, b_.CreateSelect(is_finite, added, llvm::Constant::getNullValue(size->getType()))};
}

// The sums of a block that is done begin anew.
void KernelEmitter::add_to_totals(const std::vector<int>& stage, unsigned slots) {
  for (int r : stage)
    for (unsigned s = 0; s < slots && is_sum(r); ++s) {
      Accumulator& a = accumulator(r, s);
      Type* t = a.value->getAllocatedType();
      const auto [total, excess] = add_exactly(b_.CreateLoad(t, a.total), b_.CreateLoad(t, a.excess), b_.CreateLoad(t, a.value));
      b_.CreateStore(total, a.total);
      b_.CreateStore(excess, a.excess);
      b_.CreateStore(splat(identity(plan_.expr(r))), a.value);
    }
}

// With what no block's end has added, which is nothing where each has one.
void KernelEmitter::take_totals(const std::vector<int>& stage, unsigned slots, const SumBlocks& blocks) {
  auto take = [&] {
    for (int r : stage)
      for (unsigned s = 0; s < slots && is_sum(r); ++s) {
        Accumulator& a = accumulator(r, s);
        Type* t = a.value->getAllocatedType();
        const V total = b_.CreateLoad(t, a.total);
        b_.CreateStore(blocks.since ? add_exactly(total, b_.CreateLoad(t, a.excess), b_.CreateLoad(t, a.value)).first : total, a.value);
      }
  };
  if (blocks.since) when(blocks.is_long, take);
  else take();
}

void KernelEmitter::reset(int r, unsigned slot) {
  Accumulator& a = accumulator(r, slot);
  if (sum_blocks_ && is_sum(r)) {
    Type* t = a.value->getAllocatedType();
    if (!a.total) a.total = local(t, "total"), a.excess = local(t, "excess");
    b_.CreateStore(llvm::Constant::getNullValue(t), a.excess);
    b_.CreateStore(splat(identity(plan_.expr(r))), a.total);
  }
  b_.CreateStore(splat(identity(plan_.expr(r))), a.value);
  if (a.position) b_.CreateStore(llvm::Constant::getAllOnesValue(vector_of(b_.getInt64Ty())), a.position);
}

void KernelEmitter::accumulate(int r, unsigned slot) {
  const auto& e = plan_.expr(r);
  Accumulator& a = accumulator(r, slot);
  const auto& product = plan_.expr(e.args[0]);
  if (is_sum(r) && product.op == Op::mul && !is_low_precision(product.dtype) && product.dtype == e.dtype && !mask_ && features_.fma &&
      !k_.strict) {
    // Rounded once, in every kernel that sums it.
    V p = splat(value(product.args[0])), q = splat(value(product.args[1])), sum = b_.CreateLoad(p->getType(), a.value);
    b_.CreateStore(b_.CreateIntrinsic(llvm::Intrinsic::fma, {p->getType()}, {p, q, sum}), a.value);
    return;
  }
  V x = splat(value(e.args[0]));
  V old = b_.CreateLoad(x->getType(), a.value);
  if (a.position) {
    V at = splat(position(e.access.index)), before = b_.CreateLoad(at->getType(), a.position);
    if (mask_) at = b_.CreateSelect(mask_, at, llvm::Constant::getAllOnesValue(at->getType()));
    V take = replaces(e, old, before, x, at);
    b_.CreateStore(b_.CreateSelect(take, x, old), a.value);
    b_.CreateStore(b_.CreateSelect(take, at, before), a.position);
    return;
  }
  if (mask_ && plan_.vector_reduced) x = b_.CreateSelect(mask_, x, splat(identity(e)));
  b_.CreateStore(combine(r, old, x), a.value);
}

// The reduction's value from its accumulators: over the lanes too if the vector axis is reduced.
llvm::Value* KernelEmitter::result(int r, unsigned slots) {
  const auto& e = plan_.expr(r);
  V v = b_.CreateLoad(vector_of(accumulator_type(e)), accumulator(r, 0).value);
  if (accumulator(r, 0).position) return index_result(r, v);
  if (!plan_.vector_reduced) return v;
  for (unsigned s = 1; s < slots; ++s) v = combine(r, v, b_.CreateLoad(v->getType(), accumulator(r, s).value));
  for (unsigned width = lanes_ / 2; width >= 1; width /= 2) {
    std::vector<int> low, high;
    for (unsigned i = 0; i < width; ++i) low.push_back(static_cast<int>(i)), high.push_back(static_cast<int>(i + width));
    V x = b_.CreateShuffleVector(v, low), y = b_.CreateShuffleVector(v, high);
    v = combine(r, x, y);
  }
  return b_.CreateExtractElement(v, uint64_t{0});
}

llvm::Value* KernelEmitter::index_result(int r, V v) {
  const auto& e = plan_.expr(r);
  V at = b_.CreateLoad(vector_of(b_.getInt64Ty()), accumulator(r, 0).position);
  if (!plan_.vector_reduced) return at;
  V best = b_.CreateExtractElement(v, uint64_t{0}), best_at = b_.CreateExtractElement(at, uint64_t{0});
  for (unsigned i = 1; i < lanes_; ++i) {
    V x = b_.CreateExtractElement(v, uint64_t{i}), q = b_.CreateExtractElement(at, uint64_t{i});
    V take = replaces(e, best, best_at, x, q);
    best = b_.CreateSelect(take, x, best);
    best_at = b_.CreateSelect(take, q, best_at);
  }
  return best_at;
}

}  // namespace broach::cpu
