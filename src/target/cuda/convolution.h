// Convolutions on tensors whose channels lie side by side, as kernels for two-byte elements want them: by cuDNN, and by the host's library
// where that does not do.
#pragma once

#include <memory>

#include "target/target.h"

namespace broach::cuda {

bool has_convolutions(DType dtype);
ContractionAbility convolution_ability(Op op, DType dtype);
// Null if the host brings none.
std::shared_ptr<const CompiledContraction> make_convolution(const ContractionStep& step, const CompileSettings& settings);

}  // namespace broach::cuda
