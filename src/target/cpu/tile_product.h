// A matrix product in bf16 on AMX tiles whose bias and epilogue are a generated kernel, which finds sums in the thread's own
// caches: what follows a product costs little more than reading its operands.
//
// The weight is taken as oneDNN packs it, so that one packed copy serves both.
#pragma once

#include <memory>
#include <span>

#include "target/cpu/contraction_desc.h"
#include "target/target.h"

namespace broach::cpu {

class TileProduct {
 public:
  // `desc` says what is computed but for its epilogue, which is the step's; `layout` is that of the packed weight. Null where the
  // machine has no tiles, or they do not take this.
  static std::shared_ptr<const TileProduct> create(const onednn::MatmulDesc& desc, const onednn::MemoryLayout& layout,
                                                   const ContractionStep& step, const CompileSettings& settings);

  // `operands`: those of the epilogue, in order.
  void run(const void* source, const void* packed, void* bias, std::span<void* const> operands, void* result, const Threads& threads) const;

 private:
  struct Side {  // a matrix that blocks are given their part of; strides in bytes
    int64_t row, column;
  };
  struct Run;
  static void finish(const void* run, int64_t row, int64_t n, int64_t block, const float* sums);

  int64_t rows_ = 0, depth_ = 0, columns_ = 0, source_row_ = 0;
  bool biased_ = false;
  std::vector<Side> sides_;  // the bias if there is one, the operands, the result
  // What follows for a block of sums; for the last one, which may be narrower.
  std::shared_ptr<const CompiledKernel> whole_, last_;
};

}  // namespace broach::cpu
