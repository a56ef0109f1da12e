// The option `verify` of the C++ API: a compiled call is tried on copies of its arguments, then the program itself runs on the
// real ones, and both answers are compared. What the trial wrote is taken back first, so nothing happens twice.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "devices.h"
#include "function.h"

namespace broach {

class Trial {
 public:
  // `given`: the call's tensors, of which the first `own` are the program's and stay themselves; `held`: those that it reads
  // without being given them.
  Trial(const std::vector<at::Tensor>& given, size_t own, const std::vector<at::Tensor>& held);

  // What the trial is to be given.
  const std::vector<at::Tensor>& inputs() const { return inputs_; }
  // Remembers what the trial wrote to the program's own tensors, and takes it back.
  void rewind();
  // What is not as eager left it, first of all; empty if there is nothing. To be asked after eager has run.
  std::string difference(const Function::Results& want, const Function::Results& got) const;

 private:
  struct Saved {
    at::Tensor tensor, before, after_trial;
    int64_t version;
  };
  double limit(const Function::Results& want) const;

  std::vector<at::Tensor> given_, inputs_;
  size_t own_;
  std::vector<Saved> saved_;
  RandomStates random_;
};

}  // namespace broach
