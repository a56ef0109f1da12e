// How each value lies if it is stored, and which outputs are values where they are computed.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "ir/strides.h"
#include "passes/epilogues.h"

namespace broach {

struct Layouts {
  std::vector<std::vector<Shape>> strides;               // by node id and result
  std::map<std::pair<uint32_t, uint32_t>, int> outputs;  // by node id and result: the output that is this value
  std::map<uint32_t, const Node*> shared;                // by node id of an output: the product that is written there
};

// What a contraction that wants channels last reads and adds should lie so too: by node id.
std::vector<bool> find_channels_last(const Graph& graph, const Epilogues& epilogues, const Capabilities& capabilities);

// `in_place`, by node id: the input in which a value lies, or -1. `channels_last`: those that should lie so, or empty.
Layouts choose_layouts(const Graph& graph, const std::vector<Shape>& input_strides, const std::vector<OutputRequest>& requests,
                       const Epilogues& epilogues, const std::vector<int>& in_place, const std::vector<bool>& channels_last);

}  // namespace broach
