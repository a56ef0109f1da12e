// What follows a contraction, as a kernel of its own: where oneDNN has no fast code for a contraction with these operations
// or this layout of the result, it computes the bare product into dense memory, and this kernel does the rest.
#pragma once

#include <memory>

#include "target/target.h"

namespace broach::cpu {

// Reads the product, `product` elements in `from` strides, applies bias (if `with_bias`) and epilogue, and stores the result
// where the step says. Buffers: the product, the bias, the epilogue's operands, the result.
std::shared_ptr<const CompiledKernel> compile_epilogue(const ContractionStep& step, DType product, const std::vector<int64_t>& from,
                                                       bool with_bias, std::span<const int64_t> symbols, const CompileSettings& settings);

}  // namespace broach::cpu
