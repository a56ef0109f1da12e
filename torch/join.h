// Joining many small tensors, as a list of rows that a program stacks.
#pragma once

#include <memory>

#include "runtime/executable.h"

namespace broach {

// A concatenation that is copied from where its operands lie, without a tensor for each. Null where ATen's own does as well or better:
// pieces that are large, or whose sizes are symbols, or that have gaps.
std::unique_ptr<ExternRunner> make_join(const ExternStep& step, const Schedule& schedule);

}  // namespace broach
