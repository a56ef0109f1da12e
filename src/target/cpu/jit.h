// Machine code for kernels through LLVM ORC, shared by equal kernels of the process.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "target/target.h"

namespace broach::cpu {

CompiledKernels compile_kernels(std::span<const std::shared_ptr<const Kernel>> kernels, const CompileSettings& settings);

// Units [begin, end) of a kernel that has neither symbols, parameters nor bounds to check, on the calling thread, which gives it no scratch
// memory; and how many it has, or nothing where it is not such a kernel.
void run_units(const CompiledKernel& kernel, void* const* buffers, int64_t begin, int64_t end);
std::optional<int64_t> units_of(const CompiledKernel& kernel);

// See Target. Code that is loaded is kept, and found, as what is compiled here is.
std::string save_kernels(const CompiledKernels& kernels);
CompiledKernels load_kernels(std::string_view bytes);
std::string fingerprint();

}  // namespace broach::cpu
