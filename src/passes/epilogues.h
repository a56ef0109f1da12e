// What a contraction computes behind itself, before its result is stored: a bias, activations, sums and products with other values.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace broach {

struct Contraction {
  const Node* node;
  const Node* last;  // the node whose value is stored
  Value bias;        // one element a column (dot) or output channel (conv); may be absent
  std::vector<std::pair<Op, Value>> epilogue;
};

struct Epilogues {
  std::map<uint32_t, Contraction> contractions;  // by node id, all that the graph has
  std::map<uint32_t, const Node*> stored_as;     // by id of the last node: the contraction
  std::vector<bool> absorbed;                    // by node id: computed by a contraction
};

// As the graph says which nodes are computed within contractions.
Epilogues epilogues_of(const Graph& graph);

}  // namespace broach
