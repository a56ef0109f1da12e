// Matrix products by cuBLASLt, for the sizes that calls bring.
#pragma once

#include <memory>

#include "target/target.h"

namespace broach::cuda {

bool has_products(DType dtype);
ContractionAbility product_ability(DType dtype);
// Null if it is no product of element types that the library has.
std::shared_ptr<const CompiledContraction> make_contraction(const ContractionStep& step, const CompileSettings& settings);

}  // namespace broach::cuda
