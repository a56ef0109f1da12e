// Contractions by ATen, as a candidate beside the target's own, and in its place where it has none.
#pragma once

#include "target/target.h"

namespace broach {

void aten_contraction(const HostContraction& c);

}  // namespace broach
