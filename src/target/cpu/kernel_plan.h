// How a kernel's loop nest will be run: which axis is vectorised, what a unit of work is, in which stages reductions run.
//
// Units are positions of the outer axes (and blocks of the vector axis, if it is not reduced, and of the one across). Within a unit,
// reductions run in stages: those that need no other reduction first.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "schedule/kernel_facts.h"
#include "target/cpu/codegen.h"

namespace broach::cpu {

struct KernelPlan : KernelFacts {
  Kernel kernel;
  KernelShape shape;
  size_t vector_axis = 0;  // the axis that is vectorised
  bool vector_reduced = false;
  unsigned lanes = 16;
  bool tall = false;  // rows are read whole, `tall_rows` at a time, into a row of sums in scratch memory
  unsigned tall_rows = 1;
  unsigned unroll = 1;   // vectors that are worked on at once
  bool is_long = false;  // so many operations that code for them is made once only
  bool has_many_masks = false;
  // Loads of elements that are apart along the vector axis and side by side along this one: they are made along this one, a vector for
  // each lane, and turned.
  std::optional<size_t> across;
  std::set<int> turned;
  static constexpr int64_t kAcrossBlock = 256;  // elements of that axis in one unit, a multiple of any number of lanes
  // Positions along the vector axis where comparisons of it change, as at the pieces of a concatenation. `known`: by piece and expression,
  // what a condition is in all of a piece; whatever it selects is all that is computed there.
  std::vector<int64_t> cuts;
  std::vector<std::vector<std::optional<bool>>> known;
  int64_t block = 0;  // elements of the vector axis in one unit, if it is not reduced
  SymInt blocks;
  std::vector<size_t> outer;      // axes that units count
  std::map<int, int64_t> cached;  // expression -> row of scratch memory that keeps it between passes over a row
  std::vector<bool> coarse;   // by expression: a transcendental function or a quotient that is computed to a few bits more than bf16 has
  std::vector<bool> streams;  // by store: so large that it should go past the caches, if the buffer is aligned

  size_t innermost_reduced() const;
  const KernelExpr& expr(int e) const { return kernel.exprs[static_cast<size_t>(e)]; }
  const KernelAxis& vector() const { return kernel.axes[vector_axis]; }
  bool moves_with_reduced(const SymInt& index) const;
  bool stored_inside(const KernelStore& s) const {
    return inner[static_cast<size_t>(s.expr)] || moves_with_reduced(s.access.index);
  }  // at each point of the reduced axes
  bool stores_inside() const;
  bool needs(const std::vector<int>& stage, int e) const;  // whether a pass of these reductions computes e
};

KernelPlan plan_kernel(const Kernel& kernel, const CodegenOptions& options);

}  // namespace broach::cpu
