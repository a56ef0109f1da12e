// CUDA C++ from kernel IR.
#pragma once

#include <string>

#include "target/cuda/kernel_plan.h"

namespace broach::cuda {

// The text of one kernel, a function of this name that takes the buffers, then the symbols and parameters, of 64 bits each. Throws
// Unsupported for what there is no code for.
std::string emit_kernel(const KernelPlan& plan, const std::string& name);

}  // namespace broach::cuda
