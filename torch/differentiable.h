// How what a program gives depends, for autograd, on what it is given and holds.
#pragma once

#include <cstddef>
#include <vector>

namespace broach {

struct Differentiable {
  std::vector<size_t> results;             // by tangent: the first position among the program's results
  std::vector<size_t> inputs;              // by gradient: position among the inputs, the lifted ones behind those given
  std::vector<std::vector<bool>> reaches;  // by tangent and gradient
  bool empty() const { return results.empty(); }
};

}  // namespace broach
