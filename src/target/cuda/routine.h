// Routine primitives on the device: those without which writes into parts of tensors could not be compiled.
#pragma once

#include <memory>

#include "target/target.h"

namespace broach::cuda {

bool has_routine(Op op, DType dtype);
std::shared_ptr<const CompiledRoutine> make_routine(const Operation& operation);

}  // namespace broach::cuda
