// Convolutions by the host's library, on tensors whose channels lie side by side: what its kernels for two-byte elements want.
#pragma once

#include <memory>

#include "target/target.h"

namespace broach::cuda {

bool has_convolutions(DType dtype);
ContractionAbility convolution_ability(Op op);
// Null if the host brings none.
std::shared_ptr<const CompiledContraction> make_convolution(const ContractionStep& step, const CompileSettings& settings);

}  // namespace broach::cuda
