// The loop nest of a kernel, from its plan: see kernel_plan.h. If the vector axis is reduced, each lane reduces a part and
// the lanes are combined at the end; if not, lanes are different results. Its tail is a masked iteration.
#pragma once

#include <set>

#include "target/cpu/kernel_plan.h"
#include "target/cpu/scalar_emitter.h"

namespace broach::cpu {

class KernelEmitter : ScalarEmitter {
 public:
  KernelEmitter(KernelPlan plan, llvm::Module& module, const std::string& name, const CodegenOptions& options);
  KernelShape run();

 private:
  // ---- emit_expressions.cpp: values at the current point, and memory ----
  V integer(const SymInt& e, bool lanes);
  V atom(const Atom& a, bool lanes);
  V divided(const Atom& a, V x, V y);
  bool varies(const SymInt& e) const { return e.contains(plan_.vector().id); }
  V position(const SymInt& e);
  V element(int buffer, V index);
  V mask_of(const KernelExpr& e);
  unsigned masked_lanes(Type* element) const;
  bool is_apart(const Access& a, const std::optional<SymInt>& step) const;
  llvm::Value* lane_address(llvm::Type* type, llvm::Value* first, unsigned lane, const SymInt& step);
  V masked_load(Type* type, V p, llvm::Align align, V mask);
  void masked_store(V v, V p, llvm::Align align, V mask);
  V lanes_of(V v, unsigned first, unsigned count);
  V load(const KernelExpr& e);
  V load_scalar(Type* type, V p, const KernelExpr& e, llvm::Align align);
  void store(const KernelStore& s, V v);
  V value(int e);
  V compute(int at);
  static llvm::FastMathFlags contracting();
  bool is_constant(int e, int64_t number) const;
  std::optional<bool> known(int e) const;
  std::optional<std::pair<V, V>> halves(const KernelExpr& e);
  V interleaved(V low, V high);
  V divided_by_one(int at, const std::vector<V>& args);
  V times_inverse(V x, V y, bool coarse);
  V scratch_address(int64_t row, const SymInt& length, V position, DType t);
  V scratch(int64_t row, DType t, V v);
  V bounds(const KernelExpr& e);

  // ---- emit_reductions.cpp ----
  struct Accumulator {
    llvm::AllocaInst* value;
    llvm::AllocaInst* position = nullptr;
    // Of the blocks that are done, where sums are made in blocks, and what rounding added to it.
    llvm::AllocaInst *total = nullptr, *excess = nullptr;
  };
  // A reduced axis of which so many elements at a time are summed by themselves: in one long chain of sums rounding errors add up.
  struct SumBlocks {
    size_t axis;
    int64_t size;
    // Where the axis may as well be short: elements since the last one ended, and whether there are enough for one.
    llvm::AllocaInst* since = nullptr;
    V is_long = nullptr;
  };
  DType reduced_dtype(const KernelExpr& r) const { return is_index_reduction(r.op) ? plan_.expr(r.args[0]).dtype : r.dtype; }
  Type* accumulator_type(const KernelExpr& r) { return scalar_type(reduced_dtype(r)); }
  V identity(const KernelExpr& r);
  V combine(int r, V a, V b);
  V binary(Op op, V a, V b, DType t);
  V replaces(const KernelExpr& r, V a, V p, V b, V q);
  Accumulator& accumulator(int r, unsigned slot);
  bool is_sum(int r) const;
  std::optional<SumBlocks> blocks_of(const std::vector<int>& stage, unsigned unroll);
  void reset(int r, unsigned slot);
  std::pair<V, V> add_exactly(V total, V excess, V x);
  void add_to_totals(const std::vector<int>& stage, unsigned slots);
  void take_totals(const std::vector<int>& stage, unsigned slots, const SumBlocks& blocks);
  void accumulate(int r, unsigned slot);
  V result(int r, unsigned slots);
  V index_result(int r, V v);

  // ---- emit_loops.cpp ----
  llvm::AllocaInst* local(Type* t, const char* name);
  void loop(const char* name, V begin, V end, V step, const std::function<void(V)>& body);
  void when(V condition, const std::function<void()>& body, const std::function<void()>& otherwise = nullptr);
  void load_arguments();
  void load_parameters();
  void emit_units();
  V streamed_buffers_aligned();
  void emit_unit(V unit);
  void vector_loop(V begin, V end, unsigned unroll, const std::function<void(unsigned)>& body);
  void emit_pieces(V begin, V end);
  void fresh_values();
  void for_reduced_axes(size_t from, size_t to, const std::function<void()>& body);
  void in_blocks(size_t axis, const std::function<void(V, V)>& body);
  void emit_stages();
  void store_rows();
  void for_vectors(unsigned n, const std::function<void(unsigned)>& body);
  void store_vectors(unsigned n, bool inner);
  std::vector<V> all_to_memory(std::vector<V> values, DType t);
  void emit_columns(unsigned n);
  void emit_tall(V begin, V end);

  // ---- emit_turned.cpp ----
  void emit_turned(V begin, V end, V block);
  void emit_square(V first, V rows, V last);
  void turn(int load, V rows, V last);
  V turned(int load);

  KernelPlan plan_;
  const Kernel& k_ = plan_.kernel;
  const Ranges ranges_ = ranges_of(k_);
  llvm::LLVMContext& context_;
  llvm::Function* fn_;
  llvm::BasicBlock* entry_;
  std::vector<V> buffers_, symbols_, parameters_;
  llvm::AllocaInst *error_ = nullptr, *zero_ = nullptr;  // the latter is read where there is no element
  std::map<SymbolId, V> point_;                          // of each axis, the current position; of the vector axis that of lane 0
  bool streaming_ = false;                               // write results that are to be streamed past the caches
  V mask_ = nullptr;                                     // lanes that exist; null for all
  std::map<int, V> values_;                              // of expressions at the current point
  std::map<int, V> finished_;                            // reductions of earlier stages
  std::optional<SumBlocks> sum_blocks_;
  std::function<void()> behind_block_;
  std::set<int> filled_;  // expressions whose row of scratch memory is filled
  std::vector<std::map<int, V>> column_values_;
  std::map<int, std::vector<Accumulator>> accumulators_;
  std::map<int, llvm::AllocaInst*> squares_;  // of turned loads
  V row_ = nullptr;                           // of the square, at the current point
  size_t piece_ = 0;                          // of the vector axis, between two of its cuts
};

}  // namespace broach::cpu
