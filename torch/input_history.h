// Inputs of a program that are results of other operations, while its gradients are recorded.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "nodes.h"

namespace broach {

// A node that gives what it gets.
NodePointer new_identity(torch::autograd::edge_list next);

// Whether the engine's walk for a recording ends at each of these: no history leads from one to another, and none is watched by a hook.
// `leaves` get those behind them.
bool end_walks(at::TensorList inputs, std::vector<at::Tensor>* leaves = nullptr);

// Whether something is done, or kept, where a gradient for it is computed.
bool is_hooked(const at::Tensor& t);

// Whether eager raises an error when asked for its history: one of several views, written since by way of another.
bool has_lost_history(const at::Tensor& t);

// Stands in a capture for an input with a history of its own where the engine's walk for the recording would not end at that.
class InputWithHistory {
 public:
  explicit InputWithHistory(at::Tensor given);
  const at::Tensor& given() const { return given_; }
  const at::Tensor& inside() const { return inside_; }
  // Whether the program has done something to it that its tensor now lacks: written to it, so that it has another history, given it a
  // hook, a gradient or other elements, or run the engine through it.
  bool is_changed() const;
  // What the program made of it goes on with the history.
  void connect();
  // The program's result as it is outside: the given tensor, or a window of it, for the same of what stands for it.
  at::Tensor outside(const at::Tensor& result) const;

 private:
  at::Tensor given_, inside_;
  NodePointer node_;
};

}  // namespace broach
