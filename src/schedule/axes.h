// Positions along the loop axes of a kernel.
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

}  // namespace broach
