// Gradients of leaves, given to them without a step of the engine's for each.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace broach {

// Whether somebody is told as soon as the node has run, or is about to.
bool has_hooks(torch::autograd::Node& node);

// Whether something happens as soon as a leaf has its gradient: its reduction over several processes (DDP), a step of an optimizer.
bool is_awaited(torch::autograd::Node& accumulates);

// To be called while the engine runs `node`, whose `gradients`, by edge, nobody else holds yet. Leaves of which only this node and no hook
// knows get theirs here; these are undefined afterwards, and the node is without the edges to those leaves until the engine's run is over.
// The others are left to the engine, which takes more than a microsecond for each. `is_reached`: whether one of the results leads there that
// have gradients. Eager does not come to the other leaves, and calls no hook of theirs.
void give_to_leaves(torch::autograd::Node& node, torch::autograd::variable_list& gradients, c10::function_ref<bool(size_t)> is_reached);

}  // namespace broach
