// What eager keeps of a program for its gradients. A compiled call keeps other tensors, but eager's errors are its own: where what eager
// has kept was written since, and where a backward has let it go.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "differentiable.h"
#include "runner.h"

namespace broach {

// `reached`, by node: the leaves behind it; nothing where it is no part of the program. `place_of`: where a tensor lies that others may
// write. There must be a front that can look at what nodes keep.
using PlaceOf = c10::function_ref<std::optional<size_t>(const at::Tensor&)>;
using ReachedFrom = c10::function_ref<std::optional<std::vector<bool>>(torch::autograd::Node&)>;
KeptByEager kept_by_eager(const torch::autograd::edge_list& roots, ReachedFrom reached, PlaceOf place_of);

// Gives a result the history of one that a backward has gone through: another one is eager's error.
void give_used_up_history(const at::Tensor& t, const UsedUpHistory& history, const RunInputs& inputs);

// What eager keeps of one call. Keeps no tensor alive.
class KeptOfCall {
 public:
  explicit KeptOfCall(const KeptByEager& kept) : kept_(kept), freed_by_(kept.groups.size(), kNone) {}
  // `at`, by place: the call's tensors, as they are at its end.
  void begin(c10::function_ref<const at::Tensor&(size_t)> at);
  // Before a part of the engine's run under way, with these tangents and for these gradients: raises what eager does.
  void use(const std::vector<bool>& given, const std::vector<bool>& wanted, bool keeps_graph);
  // Whether no other backward from this tangent's result can come that would go through any of these nodes.
  bool is_spent(size_t tangent);

 private:
  struct Written {
    size_t place;
    c10::VariableVersion counter;
    uint32_t version;
  };
  static constexpr int kNone = -1;
  const KeptByEager& kept_;  // of the program, which the nodes of the call keep
  std::mutex mutex_;
  std::vector<Written> may_be_written_;
  std::vector<int> freed_by_;  // by group: the run of the engine's; kNone: nothing was freed
};

}  // namespace broach
