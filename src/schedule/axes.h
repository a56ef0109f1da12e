// The loop axes of a kernel that is being built, and positions along them.
#pragma once

#include <utility>
#include <vector>

#include "schedule/kernel.h"

namespace broach {

// Axes by position, and the number of positions after which floordiv(axis.., d) or mod(axis.., d) in `e` changes or starts anew,
// where it divides the axis' extent.
void find_divisors(const SymInt& e, const std::vector<KernelAxis>& axes, std::vector<std::pair<size_t, SymInt>>& out);

// Of an element of a value, one position a dimension.
using Index = std::vector<SymInt>;

// Where in a value of shape `to` the element lies that is at `index` of the same elements in shape `from`.
Index reshaped_index(const Shape& from, const Shape& to, const Index& index, const Ranges& ranges);

// An axis of which a reduction depends on every `step`th position only: as two axes, it is reduced once for each of these.
struct AxisSplit {
  size_t axis;
  SymInt step;
};

// Thrown: the node cannot be computed in this kernel.
struct Misfit {
  const Node* node;
};

class LoopAxes {
 public:
  explicit LoopAxes(std::vector<KernelAxis>& axes) : axes_(axes) {}

  // Appends axes and gives their symbols.
  Index add(const Shape& extents, bool reduced = false);
  // `index` are positions along the axes, and still are after it.
  void split(const AxisSplit& s, Index& index);
  Ranges ranges() const;
  // The axes that reduction `n` runs over for its result at `index`: those the kernel reduces already, or its axes that the result
  // does not depend on, or new ones if the result depends on all. Throws the split of one of the first `splittable` axes, after
  // which they would fit.
  std::vector<size_t> reduced_by(const Node& n, const Index& index, size_t splittable);

 private:
  [[noreturn]] void split_for(const Node& n, const Index& index, size_t splittable) const;
  bool match_reduced(const Shape& extents, const std::vector<bool>& depends, std::vector<size_t>& wanted);
  bool match(const Shape& extents, const std::vector<size_t>& axes, std::vector<size_t>& wanted);

  std::vector<KernelAxis>& axes_;
};

}  // namespace broach
