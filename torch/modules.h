// What a compiled module depends on besides its inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
class ModuleDictImpl;
}  // namespace torch::nn

namespace broach {

// Modules and all below them, in order: who they are, whether they train, and which tensors they hold. Tensors may be
// undefined, and one may come several times.
struct ModuleTree {
  std::vector<std::shared_ptr<torch::nn::Module>> roots, modules;
  std::vector<bool> training;
  std::vector<at::Tensor> tensors;
  // Dictionaries among them and how many they hold: what is taken out of one stays registered below it.
  std::vector<std::pair<const torch::nn::ModuleDictImpl*, size_t>> dictionaries;

  // Whether they are still what was read. Cheap: it is asked on every call.
  bool current() const;
};
ModuleTree read_modules(const std::vector<std::shared_ptr<torch::nn::Module>>& roots);

// The name of the first module that is none of libtorch's own layers, which run no host code but libtorch's; empty if all are.
std::string first_foreign_module(const ModuleTree& tree);

}  // namespace broach
