// Divisors of loop axes: where an expression steps every few positions of an axis.
#pragma once

#include <utility>
#include <vector>

#include "schedule/kernel.h"

namespace broach {

// Axes by position, and the number of positions after which floordiv(axis.., d) or mod(axis.., d) in `e` changes or starts anew,
// where it divides the axis' extent.
void find_divisors(const SymInt& e, const std::vector<KernelAxis>& axes, std::vector<std::pair<size_t, SymInt>>& out);

}  // namespace broach
