// Runs the stages of a compiled program: those that are compiled, and between them the calls of libtorch's that find out sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compile.h"
#include "runner.h"
#include "runtime/guards.h"
#include "weights.h"

namespace broach {

// Whether a step reads an input; kernels may be given it as a number.
bool is_touched(const Schedule& schedule, size_t input);

class Stages {
 public:
  // `program`: how results are made of the slots. `constant`, by input: stays the same from call to call. `written`: inputs that are
  // written in place. `is_step`: a whole step of training, which is run again and again. `current`: devices that are when it runs.
  Stages(const CompiledTrace& compiled, const Program& program, const std::vector<bool>& constant, const std::vector<int>& written,
         const PipelineOptions& options, bool is_step, std::span<const c10::Device> current);
  ~Stages();

  // `values` has those of the program's inputs, `made` gets those of the slots behind them, and `symbols` the sizes. False if these are
  // none that the program was compiled for. `decide`, if given, is asked behind the first stage whether the others shall run; else false.
  // Of what a program that decides first goes by, elements on the host (of b1 or i64) are no tensors but among `elements`.
  using Decide = std::function<bool(const std::vector<at::Tensor>& made, std::span<const int64_t> elements)>;
  bool run(RunInputs& values, const SizeGuards& guards, std::vector<int64_t>& symbols, std::vector<at::Tensor>& made,
           const Decide& decide = {}) const;

  // Whether some sizes are known only once it runs.
  bool finds_sizes() const { return !calls_.empty(); }
  bool can_fail() const;
  // Of what runs in every call.
  const std::vector<const Executable*>& executables() const { return executables_; }
  const std::vector<std::string>& calls() const { return calls_; }  // by schema
  std::vector<KeptWeight> kept(const std::vector<int64_t>& symbols) const;

 private:
  class Call;
  struct Part {
    std::shared_ptr<const Runner> runner;
    std::unique_ptr<Weights> weights;  // null where nothing is packed
    std::unique_ptr<const Call> call;  // instead of the two
    std::vector<size_t> gives;         // slots that other stages take
  };
  void add(const Stage& stage, std::shared_ptr<const Runner> runner, const std::vector<bool>& constant, const PipelineOptions& options);
  bool find_sizes(const Call& call, const RunInputs& values, const SizeGuards& guards, std::vector<bool>& known,
                  std::vector<int64_t>& symbols, std::vector<at::Tensor>& made) const;

  size_t inputs_, values_, made_ = 0;  // slots: of the program's inputs, of what stages take, behind the inputs
  std::vector<bool> is_element_;       // by slot behind the inputs; empty: none is
  std::vector<Part> parts_;
  std::shared_ptr<const Runner> once_;
  size_t first_frozen_ = 0;
  std::vector<const Executable*> executables_;
  std::vector<std::string> calls_;
};

}  // namespace broach
