// How what a program gives depends, for autograd, on what it is given and holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace broach {

// What code of a front's, which computes gradients, has read on the host.
class ReadByCode {
 public:
  virtual ~ReadByCode() = default;
  // What is not as it was when the gradients were recorded, in words; empty if nothing.
  virtual std::string changed() const = 0;
};

struct Differentiable {
  std::vector<size_t> results;                     // by tangent: the first position among the program's results
  std::vector<size_t> inputs;                      // by gradient: position among the inputs, the lifted ones behind those given
  std::vector<std::vector<bool>> reaches;          // by tangent and gradient
  std::vector<bool> has_history;                   // by result of the program
  std::string why_not_again;                       // why the program cannot be run again for the same results; empty if it can
  std::shared_ptr<const ReadByCode> read_by_code;  // null where all gradients are torch's own formulas
  bool empty() const { return results.empty(); }
};

// The program of a compiled call, for running it once more with autograd on: where gradients are to have gradients themselves.
class ProgramAgain {
 public:
  virtual ~ProgramAgain() = default;
  // Its results, as in the capture. Throws an Error where it cannot be run any more, or might not do the same.
  virtual std::vector<at::Tensor> run(at::TensorList inputs, at::IntArrayRef ints, at::ArrayRef<double> floats) const = 0;
};

}  // namespace broach
