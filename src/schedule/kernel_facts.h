// Facts about a kernel that any target needs, found on its IR alone.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "schedule/kernel.h"

namespace broach {

struct KernelFacts {
  bool has_reduced = false;              // whether axes are reduced
  std::vector<std::vector<bool>> uses;   // axis_uses(kernel)
  std::vector<bool> inner;               // by expression: whether it changes along the reduced axes
  std::vector<std::vector<int>> stages;  // reductions, by how many others lie below them: each stage is a pass over the reduced axes
  // By expression: whether bf16 is all that will be seen of it, so that a value of few more bits does.
  std::vector<bool> bf16_suffices;
  // By expression: what is computed wider than its low-precision type, and must be rounded to it before another reads it. What is only
  // stored is rounded by that.
  std::vector<bool> rounds;
  // By expression: a maximum that may pass over NaNs, because a softmax's sum brings them back.
  std::vector<bool> passes_nan;
  std::vector<bool> weights;  // by expression: a quotient of a softmax, exp(x - m) <= 1 by its sum >= 1
};

KernelFacts find_facts(const Kernel& kernel);

// Whether it adds up what needs no result of a reduction, which the first pass does.
bool adds_first(const Kernel& kernel, const KernelStore& store);

// By expression: how many passes compute it. A pass is a stage, or the stores that happen at each point of the reduced axes.
std::vector<int> count_passes(const Kernel& kernel, const KernelFacts& facts);

// What the lanes of a vector along an axis have in common: they access one element, elements side by side, or elements apart.
enum class Lanes : uint8_t { same, contiguous, apart };
Lanes lanes_of(const Access& access, const Kernel& kernel, const KernelFacts& facts, size_t axis);

// Stride of an address along an axis: nothing if it is not linear.
std::optional<SymInt> stride(const SymInt& index, SymbolId axis);

void for_each_operand(const KernelExpr& e, const std::function<void(int)>& f);
// Marks what a pass needs to compute an expression, not looking below reductions.
void collect_needed(const Kernel& kernel, int e, std::vector<bool>& seen);

// Positions of the buffers that the one result of a kernel may lie in: whoever stores an element has read it there before, and nobody else
// reads it, a reduction neither.
std::vector<size_t> overwritable(const Kernel& kernel);

}  // namespace broach
