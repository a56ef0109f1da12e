// Machine code for kernels through LLVM ORC, shared by equal kernels of the process.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "target/target.h"

namespace broach::cpu {

CompiledKernels compile_kernels(std::span<const std::shared_ptr<const Kernel>> kernels, const CompileSettings& settings);

// See Target. Code that is loaded is kept, and found, as what is compiled here is.
std::string save_kernels(const CompiledKernels& kernels);
CompiledKernels load_kernels(std::string_view bytes);
std::string fingerprint();

}  // namespace broach::cpu
