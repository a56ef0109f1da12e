// Gradients of compiled programs: a node of torch's autograd that computes them by compiled code.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compile.h"
#include "differentiable.h"
#include "kept_by_eager.h"
#include "nodes.h"
#include "program.h"
#include "rerun.h"
#include "runner.h"

namespace broach {

// The tensors that these are the memory of. `own_history`: which get one that is not that of what they are a window of; none if empty.
// `shown`: as what, for autograd; views if empty.
using MemoryOf = c10::function_ref<const at::Tensor&(const ResultSpec&)>;
std::vector<at::Tensor> tensors_of(const std::vector<ResultSpec>& specs, MemoryOf memory, const std::vector<bool>& own_history,
                                   std::span<const int64_t> symbols, std::span<const ShownAs> shown = {});

// The code for some gradients, where some results have none.
struct BackwardVariant {
  std::string failure;  // why there is no code
  CompiledBackward code;
  std::deque<Runner> runners;                // by part
  std::vector<ptrdiff_t> last_read;          // by slot of the module: the part that takes it last; -1: none
  std::vector<std::optional<size_t>> slots;  // by output of the stage
};

// A run for the gradients of one call, which come part by part.
class BackwardRun {
 public:
  // Of code: `values` are what the module takes. `gradients` says how each that is wanted is made, of an input or an output of the stage.
  BackwardRun(std::shared_ptr<const BackwardVariant> variant, std::vector<ResultSpec> gradients, std::vector<size_t> parts,
              std::vector<at::Tensor> values, std::vector<int64_t> symbols);
  // Of gradients that are there.
  BackwardRun(std::vector<at::Tensor> gradients, std::vector<size_t> parts);

  // To be added to what is given, by gradient.
  void add(std::vector<at::Tensor> more) { more_ = std::move(more); }

  // What the next part gives, by gradient: undefined are those of other parts, and what nobody wants.
  std::vector<at::Tensor> next();
  bool is_over() const;  // nothing that is wanted is left

 private:
  void compute(size_t part);
  std::vector<at::Tensor> made();
  void set_apart(const std::vector<ResultSpec>& own, std::vector<at::Tensor>& out) const;

  std::shared_ptr<const BackwardVariant> variant_;
  std::vector<ResultSpec> gradients_;
  std::vector<size_t> parts_;           // by gradient; empty: all are given at once
  std::vector<at::Tensor> values_;      // by slot; without code, by gradient
  std::vector<at::Tensor> more_;        // by gradient
  std::vector<at::Tensor> given_back_;  // by gradient: those that lie in the memory of an input
  std::vector<int64_t> versions_;       // of what the module takes, if there are parts
  std::vector<int64_t> symbols_;
  size_t next_ = 0;
};

class Backward : public std::enable_shared_from_this<Backward> {
 public:
  // `lifted`: the program's inputs behind those that it is given.
  Backward(std::shared_ptr<const CompiledTrace> compiled, Differentiable differentiable, Rerun rerun, std::vector<at::Tensor> lifted,
           Targets targets, PipelineOptions options);

  // Gives the results of a call a history. `made`: what lies in the slots behind the program's inputs; `found`: by `rerun()`, before it.
  void connect(const CallInputs& call, std::vector<at::Tensor>& results, const RunInputs& inputs, const std::vector<at::Tensor>& made,
               const std::vector<int64_t>& symbols, const std::shared_ptr<const FoundByCall>& found) const;
  // `tangents` may be undefined; only those `wanted` are computed. `saved` gives what the stage takes but the tangents, by position: it is
  // asked for what is read alone, since the rest may have been written. What nobody else holds is let go as soon as it was read for the
  // last time. `in_parts`: as `parts` says, or all at once.
  BackwardRun run(c10::function_ref<at::Tensor(size_t)> saved, const std::vector<at::Tensor>& tangents, std::vector<bool> wanted,
                  const std::vector<int64_t>& symbols, bool in_parts) const;

  // The same by the program itself, once more, and eager's engine, so that they may have a history of their own. `needed`: which of the
  // call's tensors needed gradients then. Behind the gradients come those of the results of the tangents `ends`, at which the engine's
  // walk ends.
  std::vector<at::Tensor> run_eagerly(const ProgramAgain& program, const CallInputs& call, const std::vector<bool>& needed,
                                      const FoundByCall* found, const std::vector<at::Tensor>& tangents, std::vector<bool> wanted,
                                      const std::vector<size_t>& ends) const;
  // Of the gradients that are wanted, those that depend on results with a tangent.
  std::vector<bool> reached(const std::vector<at::Tensor>& tangents, std::vector<bool> wanted) const;
  BackwardRun as_run(std::vector<at::Tensor> gradients, bool in_parts) const {
    return {std::move(gradients), in_parts ? parts_ : std::vector<size_t>()};
  }

  // How often the tensors that the program holds, its inputs behind `given` others, were written, but those that it writes itself.
  std::vector<int64_t> held_versions(size_t given) const { return rerun_.versions(lifted_, given); }

  // What its code, if it has any, has read on the host and would find changed.
  std::string changed() const { return differentiable_.read_by_code ? differentiable_.read_by_code->changed() : ""; }
  // Whether these tangents lie otherwise than the recorded ones, and code of the program's goes by that.
  bool lie_otherwise(const std::vector<at::Tensor>& tangents, std::span<const int64_t> symbols) const;
  const Rerun& rerun() const { return rerun_; }
  bool knows_what_eager_keeps() const { return differentiable_.kept.is_known; }
  int64_t reruns() const { return reruns_; }
  bool reaches(size_t tangent, size_t gradient) const { return differentiable_.reaches[tangent][gradient]; }
  const std::vector<size_t>& through(size_t tangent) const { return differentiable_.through[tangent]; }

  // What was compiled so far.
  std::vector<CompiledBackward> compiled() const;

 private:
  using Key = std::tuple<std::vector<bool>, std::vector<bool>, bool>;  // gradients, tangents, in parts
  std::shared_ptr<const BackwardVariant> variant(const Key& key) const;
  at::Tensor view_of(const at::Tensor& base, const at::Tensor& t, size_t result) const;
  void make_views(std::vector<at::Tensor>& results) const;
  void make_windows(std::vector<at::Tensor>& results) const;
  // Tangents, by the node that gets them.
  std::vector<std::vector<size_t>> nodes(const RunInputs& inputs) const;
  NodePointer connect(const std::vector<size_t>& own, const CallInputs& call, std::vector<at::Tensor>& results, const RunInputs& inputs,
                      const std::vector<at::Tensor>& made, const std::vector<int64_t>& symbols,
                      const std::shared_ptr<const FoundByCall>& found, const std::shared_ptr<KeptOfCall>& kept) const;
  void connect_apart(std::vector<at::Tensor>& results, const std::vector<torch::autograd::Edge>& edges) const;

  const Stage& stage() const { return compiled_->module.stages.back(); }

  std::shared_ptr<const CompiledTrace> compiled_;
  Differentiable differentiable_;
  Rerun rerun_;
  std::vector<at::Tensor> lifted_;
  std::vector<bool> lifted_needed_;  // gradients
  Targets targets_;
  PipelineOptions options_;
  std::vector<size_t> reached_by_some_;  // gradients that some results depend on, and others not
  std::vector<size_t> parts_;            // by gradient: in which part it is ready, if they are computed in several
  Parts stage_parts_;                    // the same, by what the stage gives, and what it takes
  Parts memory_parts_;                   // in which it runs where all are given at once
  mutable std::atomic<int64_t> reruns_{0};
  mutable std::mutex mutex_;
  mutable std::map<Key, std::shared_ptr<const BackwardVariant>> variants_;
};

}  // namespace broach
