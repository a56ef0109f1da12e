// A program that went by values which it computes is right only where these are what they were. They come first, so that behind them,
// once that is known, inputs are written in place.
#include <algorithm>
#include <ranges>

#include "passes/passes.h"
#include "passes/segments.h"

namespace broach {

std::vector<Stage> decide_first(Module& m, const Stage& stage, const PassContext& c) {
  if (c.decides.empty()) return {};
  const Graph& g = *stage.graph;
  std::vector<size_t> level(g.nodes().size(), 1);
  for (size_t i = 0; i < g.outputs().size(); ++i) {
    const auto at = std::ranges::find(m.outputs, stage.gives[i]);
    if (at != m.outputs.end() && c.decides[static_cast<size_t>(at - m.outputs.begin())]) level[g.outputs()[i].node->id] = 0;
  }
  for (const Node& n : std::views::reverse(g.nodes()))
    if (level[n.id] == 0)
      for (const Value& v : n.inputs) level[v.node->id] = 0;
  return segments(m, stage, std::move(level), 2);
}

}  // namespace broach
