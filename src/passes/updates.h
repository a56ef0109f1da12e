// Writes in place, into inputs.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace broach {

// Gives outputs that need memory of their own a `copy`: inputs and values that are returned twice, or written into an input.
Graph separate_outputs(const Graph& graph, const std::vector<OutputRequest>& requests);

// Writes into windows of an input, which are concatenations of what stays and what is new, become updates.
Graph find_updates(Graph graph, const std::vector<OutputRequest>& requests);

// Updates and scatters, by node id, whose result can lie where the input lies that they start from and end in: the input, or -1.
std::vector<int> updates_in_place(const Graph& graph, const std::vector<OutputRequest>& requests);

}  // namespace broach
