#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>

#include "target/cpu/kernel_emitter.h"

namespace broach::cpu {

using llvm::BasicBlock;
using llvm::Type;

namespace {

using Instructions = std::vector<llvm::Instruction*>;

// Pieces of a block that do the same to different vectors change to the first instruction of each, the second of each, and so
// on: a table is fetched once for all of them, and none waits for the results of the one before.
void interleave(const std::vector<Instructions>& pieces) {
  auto same = [](const llvm::Instruction* x, const llvm::Instruction* y) { return x->isSameOperationAs(y); };
  for (const auto& piece : pieces)
    if (piece.empty() || !std::equal(piece.begin(), piece.end(), pieces[0].begin(), pieces[0].end(), same)) return;
  auto* block = pieces[0].front()->getParent();
  for (size_t i = 0; i < pieces[0].size(); ++i)
    for (const auto& piece : pieces) piece[i]->moveBefore(*block, block->end());
}

}  // namespace

KernelEmitter::KernelEmitter(KernelPlan plan, llvm::Module& module, const std::string& name, const CodegenOptions& options)
    : ScalarEmitter(module.getContext(), options.features, plan.lanes), plan_(std::move(plan)), context_(module.getContext()) {
  auto* ptr = llvm::PointerType::get(context_, 0);
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), {ptr, ptr, b_.getInt64Ty(), b_.getInt64Ty(), ptr, ptr}, false);
  fn_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module);
  entry_ = BasicBlock::Create(context_, "entry", fn_);
}

// Within a function. What the program adds and multiplies is rounded each time: another kernel may compute the same beside other
// operations, and both must find the same.
llvm::FastMathFlags KernelEmitter::contracting() {
  llvm::FastMathFlags flags;
  flags.setAllowContract(true);
  return flags;
}

KernelShape KernelEmitter::run() {
  b_.SetInsertPoint(entry_);
  load_arguments();
  if (V aligned = streamed_buffers_aligned()) {
    when(
        aligned,
        [&] {
          streaming_ = true;
          emit_units();
          b_.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});  // before another thread is told that this one is done
          streaming_ = false;
        },
        [&] { emit_units(); });
  } else {
    emit_units();
  }
  b_.CreateStore(b_.CreateOr(b_.CreateLoad(b_.getInt32Ty(), fn_->getArg(5)), b_.CreateLoad(b_.getInt32Ty(), error_)), fn_->getArg(5));
  b_.CreateRetVoid();
  return plan_.shape;
}

void KernelEmitter::emit_units() {
  loop("unit", fn_->getArg(2), fn_->getArg(3), i64(1), [&](V unit) { emit_unit(unit); });
}

// Null if no store is to be streamed.
llvm::Value* KernelEmitter::streamed_buffers_aligned() {
  V address = nullptr;
  for (size_t i = 0; i < k_.stores.size(); ++i) {
    if (!plan_.streams[i]) continue;
    V a = b_.CreatePtrToInt(buffers_[static_cast<size_t>(k_.stores[i].access.buffer)], b_.getInt64Ty());
    address = address ? b_.CreateOr(address, a) : a;
  }
  return address ? b_.CreateICmpEQ(b_.CreateAnd(address, i64(63)), i64(0)) : nullptr;
}

llvm::AllocaInst* KernelEmitter::local(Type* t, const char* name) {
  llvm::IRBuilder<> at(entry_, entry_->begin());
  auto* a = at.CreateAlloca(t, nullptr, name);
  a->setAlignment(llvm::Align(64));
  return a;
}

// for (i = begin; i < end; i += step) body(i)
void KernelEmitter::loop(const char* name, V begin, V end, V step, const std::function<void(V)>& body) {
  auto* before = b_.GetInsertBlock();
  auto* head = BasicBlock::Create(context_, name, fn_);
  auto* inside = BasicBlock::Create(context_, "body", fn_);
  auto* after = BasicBlock::Create(context_, "done", fn_);
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  auto* i = b_.CreatePHI(b_.getInt64Ty(), 2, name);
  i->addIncoming(begin, before);
  b_.CreateCondBr(b_.CreateICmpSLT(i, end), inside, after);
  b_.SetInsertPoint(inside);
  body(i);
  i->addIncoming(b_.CreateAdd(i, step, "", true, true), b_.GetInsertBlock());
  b_.CreateBr(head);
  b_.SetInsertPoint(after);
}

void KernelEmitter::when(V condition, const std::function<void()>& body, const std::function<void()>& otherwise) {
  auto* inside = BasicBlock::Create(context_, "then", fn_);
  auto* other = otherwise ? BasicBlock::Create(context_, "else", fn_) : nullptr;
  auto* after = BasicBlock::Create(context_, "after", fn_);
  b_.CreateCondBr(condition, inside, other ? other : after);
  b_.SetInsertPoint(inside);
  body();
  b_.CreateBr(after);
  if (other) {
    b_.SetInsertPoint(other);
    otherwise();
    b_.CreateBr(after);
  }
  b_.SetInsertPoint(after);
}

void KernelEmitter::load_arguments() {
  auto* ptr = llvm::PointerType::get(context_, 0);
  for (size_t i = 0; i < k_.buffers.size(); ++i) buffers_.push_back(b_.CreateLoad(ptr, b_.CreateConstGEP1_64(ptr, fn_->getArg(0), i)));
  for (int i = 0; i < k_.symbols; ++i)
    symbols_.push_back(b_.CreateLoad(b_.getInt64Ty(), b_.CreateConstGEP1_64(b_.getInt64Ty(), fn_->getArg(1), static_cast<uint64_t>(i))));
  load_parameters();
  error_ = local(b_.getInt32Ty(), "error");
  b_.CreateStore(b_.getInt32(0), error_);
  zero_ = local(b_.getInt64Ty(), "zero");
  b_.CreateStore(i64(0), zero_);
}

// Numbers arrive as doubles, whose values the element types hold.
void KernelEmitter::load_parameters() {
  parameters_.assign(static_cast<size_t>(k_.parameters), nullptr);
  for (const KernelExpr& e : k_.exprs) {
    if (e.kind != KernelExpr::Kind::parameter) continue;
    const auto at = static_cast<size_t>(as_int(e.value));
    V number =
        b_.CreateLoad(b_.getDoubleTy(), b_.CreateConstGEP1_64(b_.getInt64Ty(), fn_->getArg(1), static_cast<uint64_t>(k_.symbols) + at));
    parameters_[at] = e.dtype == DType::f64 ? number : b_.CreateFPTrunc(number, scalar_type(e.dtype));
  }
}

void KernelEmitter::emit_unit(V unit) {
  V rest = unit;
  V block = nullptr;
  if (!plan_.vector_reduced) {
    V n = integer(plan_.blocks, false);
    block = b_.CreateURem(rest, n);
    rest = b_.CreateUDiv(rest, n);
  }
  V rows = nullptr;  // those of the axis across, in blocks
  if (plan_.across) {
    V n = integer(ceildiv(k_.axes[*plan_.across].extent, KernelPlan::kAcrossBlock), false);
    rows = b_.CreateURem(rest, n);
    rest = b_.CreateUDiv(rest, n);
  }
  for (size_t i = plan_.outer.size(); i-- > 0;) {
    const auto& axis = k_.axes[plan_.outer[i]];
    V n = integer(axis.extent, false);
    point_[axis.id] = i == 0 ? rest : b_.CreateURem(rest, n);
    rest = b_.CreateUDiv(rest, n);
  }
  if (plan_.vector_reduced) return emit_stages();
  V extent = integer(plan_.vector().extent, false), begin = b_.CreateMul(block, i64(plan_.block));
  V end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(begin, i64(plan_.block)), extent);
  if (plan_.tall) return emit_tall(begin, end);
  if (plan_.across) return emit_turned(begin, end, rows);
  emit_pieces(begin, end);
}

void KernelEmitter::emit_pieces(V begin, V end) {
  for (piece_ = 0; piece_ <= plan_.cuts.size(); ++piece_) {
    V next = end;
    if (piece_ < plan_.cuts.size()) {
      next = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, begin, i64(plan_.cuts[piece_]));
      next = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, next, end);
    }
    vector_loop(begin, next, plan_.unroll, [&](unsigned n) { emit_columns(n); });
    begin = next;
  }
}

// Runs body over [begin, end) of the vector axis: `unroll` vectors at a time while they are whole, then one by one, the
// last masked. body(n) must do the n vectors that start at the current point. Of a body that takes long to compile there is one only,
// which is masked in all vectors.
void KernelEmitter::vector_loop(V begin, V end, unsigned unroll, const std::function<void(unsigned)>& body) {
  SymbolId axis = plan_.vector().id;
  auto whole = [&](V from, unsigned n) {
    V step = i64(static_cast<int64_t>(lanes_) * n);
    V last = b_.CreateSub(end, b_.CreateURem(b_.CreateSub(end, from), step));
    loop("vector", from, last, step, [&](V i) {
      point_[axis] = i;
      fresh_values();
      body(n);
    });
    return last;
  };
  auto masked = [&](V from) {
    point_[axis] = from;
    mask_ = b_.CreateICmpULT(iota(), splat(b_.CreateSub(end, from)));
    fresh_values();
    body(1);
    mask_ = nullptr;
  };
  mask_ = nullptr;
  auto extent = plan_.cuts.empty() ? plan_.vector().extent.maybe_constant() : std::nullopt;
  if (plan_.is_long && !(extent && *extent < lanes_)) {
    loop("vector", begin, end, i64(lanes_), masked);
    return fresh_values();
  }
  for (unsigned n = unroll; n > 0; n = n > 1 ? 1 : 0) {
    const int64_t step = static_cast<int64_t>(lanes_) * n;
    if (extent && *extent < step) continue;
    begin = whole(begin, n);
    if (extent && *extent % step == 0 && (plan_.vector_reduced || plan_.block % step == 0)) return fresh_values();
  }
  when(b_.CreateICmpSLT(begin, end), [&] { masked(begin); });
  fresh_values();
}

// Values hold at one point only; reductions that are finished stay.
void KernelEmitter::fresh_values() {
  values_.clear();
  for (const auto& [r, v] : finished_) values_[r] = v;
}

void KernelEmitter::for_reduced_axes(size_t from, size_t to, const std::function<void()>& body) {
  for (size_t a = from; a < to; ++a) {
    if (!k_.axes[a].reduced || a == plan_.vector_axis) continue;
    auto run = [&](V begin, V end) {
      loop("reduce", begin, end, i64(1), [&](V i) {
        point_[k_.axes[a].id] = i;
        for_reduced_axes(a + 1, to, body);
      });
    };
    return in_blocks(a, run);
  }
  body();
}

// Over a reduced axis, at once or in the blocks of sums.
void KernelEmitter::in_blocks(size_t axis, const std::function<void(V, V)>& body) {
  const V extent = integer(k_.axes[axis].extent, false);
  if (!sum_blocks_ || sum_blocks_->axis != axis) return body(i64(0), extent);
  const V size = i64(sum_blocks_->size);
  loop("block", i64(0), extent, size, [&](V begin) {
    const V end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(begin, size), extent);
    body(begin, end);
    if (!sum_blocks_->since) return behind_block_();
    when(sum_blocks_->is_long, [&] {
      const V since = b_.CreateAdd(b_.CreateLoad(b_.getInt64Ty(), sum_blocks_->since), b_.CreateSub(end, begin));
      b_.CreateStore(since, sum_blocks_->since);
      when(b_.CreateICmpSGE(since, size), [&] {
        b_.CreateStore(i64(0), sum_blocks_->since);
        behind_block_();
      });
    });
  });
}

// Rows: the vector axis is reduced.
void KernelEmitter::emit_stages() {
  finished_.clear();
  filled_.clear();
  fresh_values();
  for (const auto& stage : plan_.stages) {
    bool index = std::any_of(stage.begin(), stage.end(), [&](int r) { return is_index_reduction(plan_.expr(r).op); });
    unsigned unroll = index ? 1 : plan_.unroll;
    sum_blocks_ = blocks_of(stage, unroll);
    if (sum_blocks_ && sum_blocks_->since) b_.CreateStore(i64(0), sum_blocks_->since);
    behind_block_ = [&] { add_to_totals(stage, unroll); };
    for (int r : stage)
      for (unsigned s = 0; s < unroll; ++s) reset(r, s);
    for_reduced_axes(0, k_.axes.size(), [&] {
      auto run = [&](V begin, V end) {
        vector_loop(begin, end, unroll, [&](unsigned n) {
          for_vectors(n, [&](unsigned s) {
            for (int r : stage) accumulate(r, s);
          });
        });
      };
      in_blocks(plan_.vector_axis, run);
    });
    if (const auto blocks = std::exchange(sum_blocks_, std::nullopt)) take_totals(stage, unroll, *blocks);
    fresh_values();
    for (int r : stage) {
      const V v = result(r, unroll);
      finished_[r] = plan_.rounds[static_cast<size_t>(r)] ? round_to(v, plan_.expr(r).dtype) : v;
    }
    fresh_values();
    for (const auto& [e, row] : plan_.cached)
      if (plan_.needs(stage, e)) filled_.insert(e);
  }
  store_rows();
}

void KernelEmitter::store_rows() {
  if (plan_.stores_inside())
    for_reduced_axes(0, k_.axes.size(), [&] {
      vector_loop(i64(0), integer(plan_.vector().extent, false), plan_.unroll, [&](unsigned n) { store_vectors(n, true); });
    });
  point_[plan_.vector().id] = i64(0);
  store_vectors(1, false);
}

// n vectors from the current point on: the vector axis advances by the lanes.
void KernelEmitter::for_vectors(unsigned n, const std::function<void(unsigned)>& body) {
  SymbolId axis = plan_.vector().id;
  V start = point_[axis];
  std::vector<Instructions> emitted(n);
  auto* block = b_.GetInsertBlock();
  for (unsigned s = 0; s < n; ++s) {
    auto* before = block->empty() ? nullptr : &block->back();
    point_[axis] = b_.CreateAdd(start, i64(static_cast<int64_t>(s) * lanes_));
    fresh_values();
    if (s < column_values_.size())
      for (const auto& [r, v] : column_values_[s]) values_[r] = v;
    body(s);
    for (auto at = before ? std::next(before->getIterator()) : block->begin(); at != block->end(); ++at) emitted[s].push_back(&*at);
  }
  point_[axis] = start;
  // Not where the order of what they do to memory matters: checks of bounds share a flag.
  bool checks = std::any_of(k_.exprs.begin(), k_.exprs.end(), [](const KernelExpr& e) { return e.kind == KernelExpr::Kind::bounds; });
  if (b_.GetInsertBlock() == block && !checks) interleave(emitted);
}

// Writes n vectors of the results that change along the reduced axes, or of those that do not.
void KernelEmitter::store_vectors(unsigned n, bool inner) {
  std::vector<const KernelStore*> stores;
  for (const auto& s : k_.stores)
    if (plan_.stored_inside(s) == inner) stores.push_back(&s);
  std::vector<std::vector<V>> values(stores.size());
  for_vectors(n, [&](unsigned) {
    for (size_t i = 0; i < stores.size(); ++i) values[i].push_back(value(stores[i]->expr));
  });
  for (size_t i = 0; i < stores.size(); ++i)
    values[i] = all_to_memory(std::move(values[i]), k_.buffers[static_cast<size_t>(stores[i]->access.buffer)]);
  for_vectors(n, [&](unsigned s) {
    for (size_t i = 0; i < stores.size(); ++i) store(*stores[i], values[i][s]);
  });
}

// Vectors of bf16 all at once, because the rare case takes a branch.
std::vector<llvm::Value*> KernelEmitter::all_to_memory(std::vector<V> values, DType t) {
  if (t != DType::bf16 || !is_vector(values[0]) || values.size() == 1) {
    for (V& v : values) v = to_memory(v, t);
    return values;
  }
  V all = to_memory(llvm::concatenateVectors(b_, values), t);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = b_.CreateExtractVector(vector_of(b_.getInt16Ty()), all, i64(static_cast<int64_t>(i * lanes_)));
  return values;
}

// Columns: each lane is a result of its own; the reduced axes are loops around n vectors.
void KernelEmitter::emit_columns(unsigned n) {
  column_values_.assign(n, {});
  finished_.clear();
  for (const auto& stage : plan_.stages) {
    sum_blocks_ = blocks_of(stage, 1);
    behind_block_ = [&] { add_to_totals(stage, n); };
    for (int r : stage)
      for (unsigned s = 0; s < n; ++s) reset(r, s);
    for_reduced_axes(0, k_.axes.size(), [&] {
      for_vectors(n, [&](unsigned s) {
        for (int r : stage) accumulate(r, s);
      });
    });
    if (const auto blocks = std::exchange(sum_blocks_, std::nullopt)) take_totals(stage, n, *blocks);
    for (unsigned s = 0; s < n; ++s)
      for (int r : stage) {
        const auto& e = plan_.expr(r);
        auto& a = accumulator(r, s);
        column_values_[s][r] =
            a.position ? b_.CreateLoad(vector_of(b_.getInt64Ty()), a.position) : b_.CreateLoad(vector_of(accumulator_type(e)), a.value);
      }
  }
  if (plan_.stores_inside()) for_reduced_axes(0, k_.axes.size(), [&] { store_vectors(n, true); });
  store_vectors(n, false);
  column_values_.clear();
}

// Columns [begin, end) of many rows: a row of partial results in scratch memory, and a few rows at a time added to it.
void KernelEmitter::emit_tall(V begin, V end) {
  const unsigned many = plan_.tall_rows;
  const auto& reductions = plan_.stages[0];
  const size_t count = reductions.size();
  auto place = [&](size_t i) {  // behind the partial results those of the blocks that are done
    V column = b_.CreateSub(point_.at(plan_.vector().id), begin);
    return scratch_address(static_cast<int64_t>(i), plan_.block, column, plan_.expr(reductions[i % count]).dtype);
  };
  auto load = [&](size_t i) {
    return b_.CreateAlignedLoad(vector_of(accumulator_type(plan_.expr(reductions[i % count]))), place(i), llvm::Align(4));
  };
  auto store_at = [&](size_t i, V v) { b_.CreateAlignedStore(v, place(i), llvm::Align(4)); };
  auto each = [&](const std::function<void()>& body) { vector_loop(begin, end, 1, [&](unsigned) { body(); }); };
  finished_.clear();
  sum_blocks_ = blocks_of(reductions, 1);
  each([&] {
    for (size_t i = 0; i < (sum_blocks_ ? 2 * count : count); ++i) store_at(i, splat(identity(plan_.expr(reductions[i % count]))));
    for (size_t i = 0; i < count && sum_blocks_; ++i) store_at(2 * count + i, llvm::Constant::getNullValue(load(i)->getType()));
  });
  const size_t innermost = plan_.innermost_reduced();
  auto add_rows = [&](V first, unsigned rows) {
    each([&] {
      std::vector<V> sums;
      for (size_t i = 0; i < count; ++i) sums.push_back(load(i));
      for (unsigned row = 0; row < rows; ++row) {
        point_[k_.axes[innermost].id] = b_.CreateAdd(first, i64(row));
        fresh_values();
        for (size_t i = 0; i < count; ++i) sums[i] = combine(reductions[i], sums[i], splat(value(plan_.expr(reductions[i]).args[0])));
        for (const auto& s : k_.stores)
          if (plan_.stored_inside(s)) store(s, to_memory(value(s.expr), k_.buffers[static_cast<size_t>(s.access.buffer)]));
      }
      for (size_t i = 0; i < count; ++i) store_at(i, sums[i]);
    });
  };
  behind_block_ = [&] {
    each([&] {
      for (size_t i = 0; i < count; ++i) {
        auto sums = is_sum(reductions[i]) ? add_exactly(load(count + i), load(2 * count + i), load(i))
                                          : std::pair{combine(reductions[i], load(count + i), load(i)), load(2 * count + i)};
        store_at(count + i, sums.first), store_at(2 * count + i, sums.second);
        store_at(i, splat(identity(plan_.expr(reductions[i]))));
      }
    });
  };
  for_reduced_axes(0, innermost, [&] {
    auto run = [&](V from, V to) {
      V whole = b_.CreateSub(to, b_.CreateURem(b_.CreateSub(to, from), i64(many)));
      loop("rows", from, whole, i64(many), [&](V first) { add_rows(first, many); });
      if (many > 1) loop("row", whole, to, i64(1), [&](V row) { add_rows(row, 1); });
    };
    in_blocks(innermost, run);
  });
  const size_t results = std::exchange(sum_blocks_, std::nullopt) ? count : 0;
  each([&] {
    column_values_.assign(1, {});
    for (size_t i = 0; i < count; ++i) column_values_[0][reductions[i]] = load(results + i);
    store_vectors(1, false);
    column_values_.clear();
  });
}

KernelShape emit_kernel(const Kernel& kernel, llvm::Module& module, const std::string& name, const CodegenOptions& options) {
  return KernelEmitter(plan_kernel(kernel, options), module, name, options).run();
}

}  // namespace broach::cpu
