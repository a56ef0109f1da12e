// What depends on constant inputs only (weights in eval mode) is computed once, not on every call.
#pragma once

#include <memory>
#include <vector>

#include "ir/graph.h"

namespace broach {

// conv(x, w) * s + t with constant w, and s and t of one value a channel, becomes conv(x, w * s, t): batch normalisation
// disappears into the convolution. `constant` is by graph input.
Graph fold_scales(const Graph& graph, const std::vector<bool>& constant);

struct Frozen {
  std::shared_ptr<const Graph> prologue;  // the same inputs; its outputs are the values computed once; null if there are none
  std::shared_ptr<const Graph> main;      // the same inputs, and behind them one for each of these values
};
Frozen split_constants(const Graph& graph, const std::vector<bool>& constant);

}  // namespace broach
