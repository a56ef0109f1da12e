// Composite operations that a capture records as one.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/function.h>

namespace broach {

// Whether a call, whose arguments end the stack, is of a recurrent layer that is one operation to a capture: with nothing to
// differentiate and nothing drawn, and of more steps than are worth unrolling.
bool is_whole_layer(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether it is the gradient of a product of elements, which is an own one while a program is captured: torch's reads its operand.
bool is_product_gradient(const torch::autograd::Node& n);

}  // namespace broach
