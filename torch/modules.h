// What a compiled module depends on besides its inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace broach {

// Modules and all below them, in order: who they are, whether they train, and which tensors they hold. Tensors may be
// undefined, and one may come several times.
struct ModuleTree {
  std::vector<std::shared_ptr<torch::nn::Module>> roots, modules;
  std::vector<bool> training;
  std::vector<at::Tensor> tensors;

  // Whether they are still what was read. Cheap: it is asked on every call.
  bool current() const;
};
ModuleTree read_modules(const std::vector<std::shared_ptr<torch::nn::Module>>& roots);

// The name of the first module that is none of libtorch's own layers, which run no host code but libtorch's; empty if all are.
std::string first_foreign_module(const ModuleTree& tree);

}  // namespace broach
