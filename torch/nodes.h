// Nodes of autograd's: how they are made, and what is asked of others' code where gradients are needed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// Whether it computes what an operator's author registered as its gradient, which torch asks to be made of operations alone, and which is
// seen to read nothing but what it is given. Answered by the front that knows such operators; null if none does.
extern bool (*is_registered_gradient)(torch::autograd::Node&);

// The tensors that it has saved for a gradient, but those that were written since; nothing if a backward that went through it has freed
// them. Answered by the front that can look at them without running the node; null if none does.
extern std::optional<std::vector<at::Tensor>> (*saved_tensors)(torch::autograd::Node&);

// Whether a hook has no code: what was registered with it has been removed, or was left behind as a module was read from a file. Answered by
// the front that knows such hooks; null if none does.
extern bool (*is_empty_hook)(const torch::autograd::FunctionPreHook&);
bool have_code(const std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& hooks);

// Whether an operation's tags say that it draws random numbers; true for one that is not known.
bool may_draw(const std::string& schema);

}  // namespace broach
