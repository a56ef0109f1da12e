// The hooks of a node, set aside for a while.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nodes.h"

namespace broach {

// From when it is made to when it goes: all, or those of the node alone and not those of its tensor.
class HooksAside {
 public:
  HooksAside(torch::autograd::Node& n, bool all) : node_(n.getptr()), all_(all) { exchange(); }
  HooksAside(const HooksAside&) = delete;
  HooksAside& operator=(const HooksAside&) = delete;
  ~HooksAside() { exchange(); }

 private:
  void exchange() {
    std::swap(pre_, node_->pre_hooks());
    std::swap(post_, node_->post_hooks());
    if (!all_) return;
    std::swap(of_tensor_, node_->torch::autograd::Node::tensor_pre_hooks());
    std::swap(keeps_, node_->retains_grad_hooks());
  }

  NodePointer node_;
  bool all_;
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> of_tensor_, pre_;
  std::vector<std::unique_ptr<torch::autograd::FunctionPostHook>> post_;
  std::unordered_map<size_t, std::unique_ptr<torch::autograd::FunctionPreHook>> keeps_;
};

}  // namespace broach
