// Drawing torch's own random numbers faster than torch does.
#pragma once

#include <memory>

#include "runtime/executable.h"

namespace broach {

// A call of `broach::bernoulli` (sizes, p), whose result says, element by element in the order of memory, whether at::bernoulli_ on the
// default generator of the CPU would give one; the generator goes on as it would. Null for other calls.
std::unique_ptr<ExternRunner> make_draw(const ExternStep& step);

}  // namespace broach
