// Matrix products by ATen, as a candidate beside the target's own.
#pragma once

#include "target/target.h"

namespace broach {

void aten_product(const HostProduct& p);

}  // namespace broach
