// Operations that are something else to a capture than their schema says: composites that are recorded as one, and what it has to know of
// others' hidden arguments and results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/function.h>

#include <string_view>

namespace broach {

// Whether a call, whose arguments end the stack, is of a recurrent layer that is one operation to a capture: with nothing to
// differentiate and nothing drawn, and of more steps than are worth unrolling.
bool is_whole_layer(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether it is what torch does, in a recurrent layer that is being recorded, to find out where the layer's weights lie; its result is to
// stay the empty tensor that it is given.
bool is_question_of_weights(std::string_view operation);

// The last result of a call, a layer's gradients, which lie in one piece of memory though nothing says so: in memory of their own.
void part_gradients(torch::jit::Stack& stack);

// Whether a call, whose arguments end the stack, draws random numbers.
bool draws(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether it is the gradient of a product of elements, which is an own one while a program is captured: torch's reads its operand.
bool is_product_gradient(const torch::autograd::Node& n);

}  // namespace broach
