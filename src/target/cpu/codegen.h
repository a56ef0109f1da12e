// From kernel IR to LLVM IR: one function a kernel.
#pragma once

#include <llvm/IR/Module.h>

#include "schedule/kernel.h"
#include "target/cpu/vector_math.h"

namespace broach::cpu {

// What the runtime must know of a kernel besides its code.
struct KernelShape {
  SymInt units;           // independent pieces of work: begin and end of a launch count these
  SymInt work_per_unit;   // points in one of them
  SymInt scratch_bytes;   // memory each thread needs
  int ops_per_point = 1;  // roughly, in simple vector instructions
};

// The function emitted has this type. `error` is set to 1 when an index is out of bounds.
using KernelFn = void(void* const* buffers, const int64_t* symbols, int64_t begin, int64_t end, void* scratch, int32_t* error);

struct CodegenOptions {
  Features features;
  int vector_bytes = 64;
};

KernelShape emit_kernel(const Kernel& kernel, llvm::Module& module, const std::string& name, const CodegenOptions& options);

}  // namespace broach::cpu
