// Machine code for kernels through LLVM ORC, shared by equal kernels of the process.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "target/target.h"

namespace broach::cpu {

std::vector<std::shared_ptr<const CompiledKernel>> compile_kernels(std::span<const std::shared_ptr<const Kernel>> kernels,
                                                                   const CompileSettings& settings);

}  // namespace broach::cpu
