// A program and its gradients, recorded as one graph, become two: what a call computes, and what is computed once the gradients are
// asked for. In between lie the values that the call saves.
#pragma once

#include <memory>
#include <vector>

#include "ir/capabilities.h"
#include "ir/graph.h"

namespace broach {

// How a graph that computes gradients too is cut.
struct Joint {
  size_t tangents = 0;            // its last inputs: the gradients of results, known only later
  std::vector<bool> is_gradient;  // by output: asked for later, with the tangents
  std::vector<bool> input_kept;   // by input: its tensor is held as it is until then, for nothing
  std::vector<bool> output_kept;  // by output: likewise
  double memory_budget = 1.0;     // at most this part of what is saved by default, if it can be
  Capabilities::RepeatedOperands repeated_operands = {};
};

struct Partition {
  std::shared_ptr<const Graph> forward;   // the same inputs without tangents; outputs: those that are no gradients, then the saved values
  std::vector<int> saved;                 // outputs of `forward`; some are results as well
  std::shared_ptr<const Graph> backward;  // inputs: `inputs`, the saved values, the tangents; outputs: the gradients
  std::vector<int> inputs;                // positions among the inputs of the whole
  int64_t saved_bytes = 0;                // in memory of its own, at the sizes' hints
};

// Saves what takes the fewest bytes, computing anew what is pointwise or a view, unless one element of it takes many of one value. Of what
// takes as many, that which the call writes to memory in any case, and then that which leaves the least to compute anew. Below
// a budget of 1 contractions, reductions and routines are computed anew too, those first that take the least work for a byte; calls of
// the host's library never are. Each value is computed as late as it can be. Throws Unsupported where an effect depends on a tangent.
Partition partition(const Graph& graph, const Joint& joint);

// The later graph with only some of its outputs, with zeros for those of its last inputs, the tangents, that are not given, and inputs that
// lie so: saved values lie as what computes them found best. `is_linear`: in the tangents. What depends on none that is given is then
// zero, whatever the values beside it, as eager does not compute it: infinite ones would make it NaN.
Graph part_of(const Graph& backward, const std::vector<bool>& outputs, const std::vector<bool>& given, const std::vector<Shape>& strides,
              bool is_linear);

}  // namespace broach
