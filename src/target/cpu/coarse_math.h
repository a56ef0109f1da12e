// Transcendental functions to about twelve bits, for results that are rounded to bf16's eight: half the instructions of
// vector_math.h. 16 lanes of f32 with AVX-512 only.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include "ir/graph.h"
#include "target/cpu/vector_math.h"

namespace broach::cpu {

// The largest relative error of any of them, of x >= -6 for gelu_erf; further out that of -log2 of its factor is 2^-8 of it.
inline constexpr double kCoarseError = 0x1p-11;

// Whether there is such a function for this operation. NaN, infinities and zeros come out as from the exact one.
bool has_coarse(Op op);
// Null if these values or the machine are none for it.
llvm::Value* emit_coarse(llvm::IRBuilderBase& b, Op op, llvm::Value* x, const Features& features);

}  // namespace broach::cpu
