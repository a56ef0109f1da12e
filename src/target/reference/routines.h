// What the routine primitives compute, a line of a tensor at a time.
#pragma once

#include <vector>

#include "target/reference/interpreter.h"

namespace broach::reference {

// The results of a routine node. `results` have their types and zeros in them; attributes that are sizes come as `k` and
// `starts`.
void run_routine(const Node& node, const std::vector<const HostTensor*>& operands, int64_t k, const std::vector<int64_t>& starts,
                 std::vector<HostTensor>& results);

}  // namespace broach::reference
