// Matrix products and convolutions on the CPU: oneDNN primitives for the sizes that calls bring.
#pragma once

#include <memory>

#include "target/target.h"

namespace broach::cpu {

// Null if oneDNN is absent or does not know the element type.
std::shared_ptr<const CompiledContraction> make_contraction(const ContractionStep& step, const CompileSettings& settings);
bool has_contractions(DType dtype);

}  // namespace broach::cpu
