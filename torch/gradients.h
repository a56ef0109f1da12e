// Gradients of compiled programs: a node of torch's autograd that computes them by compiled code.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "compile.h"
#include "differentiable.h"
#include "program.h"
#include "runner.h"

namespace broach {

using NodePointer = decltype(torch::autograd::Edge::function);
// Nodes were held by shared pointers up to 2.12.
template <class P>
concept Intrusive = requires { P::unsafe_reclaim_from_nonowning(nullptr); };
template <class N, class... Args>
NodePointer new_node(Args&&... args) {
  if constexpr (Intrusive<NodePointer>) return c10::make_intrusive<N>(std::forward<Args>(args)...);
  else return NodePointer(new N(std::forward<Args>(args)...), [](auto* n) { deleteNode(n); });
}

// Stands in a capture for an input with a history of its own, at which the engine's walk for the recording must end.
class InputWithHistory {
 public:
  explicit InputWithHistory(at::Tensor given);
  const at::Tensor& given() const { return given_; }
  const at::Tensor& inside() const { return inside_; }
  // Whether the program has written to it, so that it has another history.
  bool is_written() const;
  // What the program made of it goes on with the history.
  void connect();
  // The program's result as it is outside: the given tensor, or a window of it, for the same of what stands for it.
  at::Tensor outside(const at::Tensor& result) const;

 private:
  at::Tensor given_, inside_;
  NodePointer node_;
};

// The tensors that these are the memory of. `own_history`: which get one that is not that of what they are a window of; none if empty.
using MemoryOf = c10::function_ref<const at::Tensor&(const ResultSpec&)>;
std::vector<at::Tensor> tensors_of(const std::vector<ResultSpec>& specs, MemoryOf memory, const std::vector<bool>& own_history,
                                   std::span<const int64_t> symbols);

class Backward : public std::enable_shared_from_this<Backward> {
 public:
  // `lifted`: the program's inputs behind those that it is given.
  Backward(std::shared_ptr<const CompiledTrace> compiled, Differentiable differentiable, std::vector<at::Tensor> lifted, Targets targets,
           PipelineOptions options);

  // Gives the results of a call a history. `made`: what lies in the slots behind the program's inputs.
  void connect(const CallInputs& call, std::vector<at::Tensor>& results, const RunInputs& inputs, const std::vector<at::Tensor>& made,
               const std::vector<int64_t>& symbols) const;
  // By gradient. `tangents` may be undefined; `inputs` are those of the stage but the tangents; only those `wanted` are computed.
  // What `inputs` alone holds is let go as soon as it was read for the last time.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& tangents, std::vector<bool> wanted,
                              const std::vector<int64_t>& symbols) const;

  // The same with a history of their own: by the program itself, once more, and eager's engine.
  std::vector<at::Tensor> run_eagerly(const ProgramAgain& program, const CallInputs& call, const std::vector<at::Tensor>& tangents,
                                      std::vector<bool> wanted) const;

  const std::string& why_not_again() const { return differentiable_.why_not_again; }

  // What was compiled so far.
  std::vector<CompiledBackward> compiled() const;

 private:
  struct Variant {
    CompiledBackward code;
    std::shared_ptr<const Runner> runner;
  };
  using Key = std::pair<std::vector<bool>, std::vector<bool>>;  // gradients, tangents
  const Variant& variant(const Key& key) const;
  void keep_reached(const std::vector<at::Tensor>& tangents, std::vector<bool>& wanted) const;
  void make_windows(std::vector<at::Tensor>& results) const;
  // Tangents, by the node that gets them.
  std::vector<std::vector<size_t>> nodes(const RunInputs& inputs) const;
  void connect(const std::vector<size_t>& own, const CallInputs& call, std::vector<at::Tensor>& results, const RunInputs& inputs,
               const std::vector<at::Tensor>& made, const std::vector<int64_t>& symbols) const;

  const Stage& stage() const { return compiled_->module.stages.back(); }

  std::shared_ptr<const CompiledTrace> compiled_;
  Differentiable differentiable_;
  std::vector<at::Tensor> lifted_;
  Targets targets_;
  PipelineOptions options_;
  std::vector<size_t> reached_by_some_;  // gradients that some results depend on, and others not
  mutable std::mutex mutex_;
  mutable std::map<Key, std::unique_ptr<const Variant>> variants_;
};

}  // namespace broach
