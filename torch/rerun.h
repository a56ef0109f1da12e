// Running the program of a compiled call once more, with autograd on: for gradients that shall have gradients themselves.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "devices.h"
#include "passes/module.h"
#include "program.h"
#include "runner.h"
#include "trace/functionalize.h"

namespace broach {

// The program, as a front calls it.
class ProgramAgain {
 public:
  virtual ~ProgramAgain() = default;
  // Its results, as in the capture. Throws an Error where it cannot be run any more, or might not do the same.
  virtual std::vector<at::Tensor> run(at::TensorList inputs, at::IntArrayRef ints, at::ArrayRef<double> floats) const = 0;
};

// What a call found and changed itself, as far as its results depend on it.
struct FoundByCall {
  RandomStates random;
  std::vector<at::Tensor> elements;  // by what the program writes; undefined where no result depends on the old ones
};

// What has to be as the call found it for the same results, and afterwards as it was before: the state of random numbers, what the
// program writes, and autocast.
class Rerun {
 public:
  Rerun() = default;
  // As the call is now that was captured. `forward`: what computes the results. `differentiable`: those with a history, by position.
  Rerun(const Trace& trace, const Program& program, const Module& forward, const std::vector<InputFacts>& facts,
        const std::vector<size_t>& differentiable, bool eager_random);

  // Why it cannot be done; empty if it can.
  const std::string& why_not() const { return why_not_; }
  // To be asked before a call. Null if it changes nothing that matters.
  std::shared_ptr<const FoundByCall> found(const RunInputs& inputs) const;
  // Whether the program does, so that a newer version of that input says nothing of others' writes.
  bool writes(size_t input) const;
  // Of the tensors that the program holds, its inputs behind `given` others; 0 of those that it writes.
  std::vector<int64_t> versions(at::TensorList held, size_t given) const;
  // The program's results. `call`: what it was given; `held`: the tensors that the program holds, its inputs behind these; `found`: before
  // that call.
  std::vector<at::Tensor> run(const ProgramAgain& program, const CallInputs& call, at::TensorList held, const FoundByCall* found) const;

 private:
  struct Written {
    size_t input;
    int64_t steps;   // of its version
    bool is_needed;  // results depend on the elements before
  };
  std::vector<Written> written_;
  Autocast autocast_;
  bool draws_ = false;
  std::string why_not_;
};

}  // namespace broach
