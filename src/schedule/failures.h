// Steps that may find that a call is an error, and what has been written by then.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace broach {

// Whether a step may fail: by an index out of range, or by whatever an extern call raises.
bool can_fail(const Schedule& schedule);
// Inputs that are written while a later step may still fail, so that the call could not be made again.
std::vector<int> written_too_early(const Schedule& schedule, const std::vector<OutputRequest>& outputs);

}  // namespace broach
