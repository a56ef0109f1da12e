// Loads that lie side by side along another axis than the vector's. A square of both axes is read along that other axis, a vector for each
// lane, and turned on its way to the stack, where the vectors of its rows then lie.
#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Intrinsics.h>

#include "target/cpu/kernel_emitter.h"

namespace broach::cpu {

// `block`: which rows of the axis across.
void KernelEmitter::emit_turned(V begin, V end, V block) {
  for (int e : plan_.turned) {
    llvm::Type* type = memory_type(k_.buffers[static_cast<size_t>(plan_.expr(e).access.buffer)]);
    if (!squares_.contains(e)) squares_[e] = local(llvm::ArrayType::get(vector_of(type), lanes_), "square");
  }
  const SymInt& extent = k_.axes[*plan_.across].extent;
  const V from = b_.CreateMul(block, i64(KernelPlan::kAcrossBlock));
  const V to = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, integer(extent, false), b_.CreateAdd(from, i64(KernelPlan::kAcrossBlock)));
  const V whole = b_.CreateSub(to, b_.CreateURem(b_.CreateSub(to, from), i64(lanes_)));
  const auto known = extent.maybe_constant();
  vector_loop(begin, end, 1, [&](unsigned) {
    // The last column, in lanes: what is read beyond it is that one once more.
    const V last = mask_ ? b_.CreateSub(b_.CreateSub(end, point_.at(plan_.vector().id)), i64(1)) : nullptr;
    if (!known || *known >= lanes_) loop("across", from, whole, i64(lanes_), [&](V first) { emit_square(first, nullptr, last); });
    if (known && *known % lanes_ == 0) return;
    when(b_.CreateICmpSLT(whole, to), [&] { emit_square(whole, b_.CreateSub(to, whole), last); });
  });
}

// `rows`: fewer than the lanes, from `first` on; null for as many.
void KernelEmitter::emit_square(V first, V rows, V last) {
  const SymbolId across = k_.axes[*plan_.across].id;
  point_[across] = first;
  fresh_values();
  for (int e : plan_.turned) turn(e, rows, last);
  loop("row", i64(0), rows ? rows : i64(lanes_), i64(1), [&](V row) {
    point_[across] = b_.CreateAdd(first, row);
    row_ = row;
    store_vectors(1, false);
  });
}

void KernelEmitter::turn(int load, V rows, V last) {
  const KernelExpr& e = plan_.expr(load);
  const DType stored = k_.buffers[static_cast<size_t>(e.access.buffer)];
  llvm::Type* type = memory_type(stored);
  const llvm::Align align(static_cast<uint64_t>(size_of(stored)));
  const V start = integer(e.access.index, false), step = integer(*stride(e.access.index, plan_.vector().id), false);
  const V there = rows ? b_.CreateICmpULT(iota(), splat(rows)) : nullptr;
  std::vector<V> vectors;
  for (unsigned lane = 0; lane < lanes_; ++lane) {
    const V column = last ? b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, i64(lane), last) : i64(lane);
    const V p = element(e.access.buffer, b_.CreateAdd(start, b_.CreateMul(column, step)));
    vectors.push_back(there ? masked_load(type, p, align, there) : b_.CreateAlignedLoad(vector_of(type), p, align));
  }
  // To interleave the first half of the vectors with the second moves one bit of an element's column to its row; all of them turn the square.
  llvm::SmallVector<int, 16> low, high;
  for (unsigned i = 0; i < lanes_; ++i) {
    const unsigned from = i / 2 + (i % 2) * lanes_;
    low.push_back(static_cast<int>(from)), high.push_back(static_cast<int>(from + lanes_ / 2));
  }
  for (unsigned done = 1; done < lanes_; done *= 2) {
    std::vector<V> next;
    for (unsigned i = 0; i < lanes_ / 2; ++i)
      for (const auto& half : {low, high}) next.push_back(b_.CreateShuffleVector(vectors[i], vectors[i + lanes_ / 2], half));
    vectors = std::move(next);
  }
  for (unsigned row = 0; row < lanes_; ++row)
    b_.CreateAlignedStore(vectors[row], b_.CreateConstGEP1_64(vector_of(type), squares_.at(load), row), align);
}

// At the current point.
llvm::Value* KernelEmitter::turned(int load) {
  const DType stored = k_.buffers[static_cast<size_t>(plan_.expr(load).access.buffer)];
  auto* vector = vector_of(memory_type(stored));
  const llvm::Align align(static_cast<uint64_t>(size_of(stored)));
  return to_compute(b_.CreateAlignedLoad(vector, b_.CreateGEP(vector, squares_.at(load), row_), align), stored);
}

}  // namespace broach::cpu
