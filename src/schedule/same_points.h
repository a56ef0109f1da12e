// One kernel over the points of another.
#pragma once

#include <optional>

#include "schedule/schedule.h"

namespace broach {

// An elementwise kernel, written over the axes of another one that reads, by `load`, each element that it writes by `store`, once. Nothing
// where that is not so, or sizes are symbols. Buffers stay what they were.
std::optional<Kernel> over_points_of(const Kernel& elementwise, const SymInt& store, const Kernel& other, const SymInt& load);

}  // namespace broach
