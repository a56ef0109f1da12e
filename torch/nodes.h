// What is asked of others' code where gradients are needed.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <string>

namespace broach {

// Whether it computes what an operator's author registered as its gradient, which torch asks to be made of operations alone and to read
// and write no state. Answered by the front that knows such operators; null if none does.
extern bool (*is_registered_gradient)(torch::autograd::Node&);

// Whether an operation's tags say that it draws random numbers; true for one that is not known.
bool may_draw(const std::string& schema);

}  // namespace broach
