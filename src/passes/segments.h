// A stage divided into segments that run one after another.
#pragma once

#include <cstddef>
#include <vector>

#include "passes/module.h"

namespace broach {

// A call of the host's library that gives results whose sizes are known once it was made.
bool finds_sizes(const Node& n);

// By node: whether each segment that reads its results computes them anew: views, and what a few operations make of the stage's inputs.
std::vector<bool> computed_anew(const Graph& graph);

// `level`, by node: the segment that computes it, none before one of its operands. A call that finds out sizes comes behind its segment, as
// a stage of its own. Outputs are given by the first segment that can, and written into inputs by the last. `least`: so many segments.
std::vector<Stage> segments(Module& m, const Stage& whole, std::vector<size_t> level, size_t least = 1);

}  // namespace broach
