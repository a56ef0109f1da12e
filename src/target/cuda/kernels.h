// Kernels of the device: generated, compiled as one unit, launched.
#pragma once

#include "target/cuda/kernel_plan.h"
#include "target/target.h"

namespace broach::cuda {

CompiledKernels compile_kernels(std::span<const std::shared_ptr<const Kernel>> kernels, const CompileSettings& settings);
std::string save_kernels(const CompiledKernels& kernels);
CompiledKernels load_kernels(std::string_view bytes);
std::string fingerprint();

// The source of these kernels as one unit, in which kernel i is the function k<i>.
std::string emit_unit(std::span<const std::shared_ptr<const Kernel>> kernels, const Variant& variant);

}  // namespace broach::cuda
