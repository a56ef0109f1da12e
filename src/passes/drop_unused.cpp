#include "passes/passes.h"

namespace broach {

Graph drop_unused(const Graph& graph, const PassContext&) {
  return rewrite(graph, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; });
}

}  // namespace broach
