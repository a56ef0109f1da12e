// How a kernel's loop nest will be run: which axis is vectorised, what a unit of work is, in which stages reductions run.
//
// Units are positions of the outer axes (and blocks of the vector axis, if it is not reduced). Within a unit, reductions run
// in stages: those that need no other reduction first.
#pragma once

#include <map>

#include "target/cpu/codegen.h"

namespace broach::cpu {

struct KernelPlan {
  Kernel kernel;
  KernelShape shape;
  std::vector<std::vector<bool>> uses;  // axis_uses(kernel)
  size_t vector_axis = 0;               // the axis that is vectorised
  bool vector_reduced = false, has_reduced = false;
  unsigned lanes = 16;
  bool tall = false;  // rows are read whole, `tall_rows` at a time, into a row of sums in scratch memory
  unsigned tall_rows = 1;
  unsigned unroll = 1;  // vectors that are worked on at once
  int64_t block = 0;    // elements of the vector axis in one unit, if it is not reduced
  SymInt blocks;
  std::vector<size_t> outer;             // axes that units count
  std::vector<std::vector<int>> stages;  // reductions, by how many others lie below them
  std::map<int, int64_t> cached;         // expression -> row of scratch memory that keeps it between passes over a row
  std::vector<bool> coarse;              // by expression: a transcendental function or a quotient of which bf16 is all that will be seen
  std::vector<bool> passes_nan;          // by expression: a maximum that may pass over NaNs, because they come back; see find_softmax
  std::vector<bool> weights;             // by expression: a quotient of a softmax, exp(x - m) <= 1 by its sum >= 1
  std::vector<bool> streams;             // by store: so large that it should go past the caches, if the buffer is aligned

  const KernelExpr& expr(int e) const { return kernel.exprs[static_cast<size_t>(e)]; }
  const KernelAxis& vector() const { return kernel.axes[vector_axis]; }
  bool inner(int e) const;  // whether an expression changes along the reduced axes
  bool moves_with_reduced(const SymInt& index) const;
  bool stored_inside(const KernelStore& s) const {
    return inner(s.expr) || moves_with_reduced(s.access.index);
  }  // at each point of the reduced axes
  bool stores_inside() const;
  bool needs(const std::vector<int>& stage, int e) const;  // whether a pass of these reductions computes e
};

KernelPlan plan_kernel(const Kernel& kernel, const CodegenOptions& options);

// Stride of an address along an axis: nothing if it is not linear.
std::optional<SymInt> stride(const SymInt& index, SymbolId axis);

bool is_expensive(Op op);
bool is_index_reduction(Op op);

}  // namespace broach::cpu
