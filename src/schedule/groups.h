// Fusion: which values exist in memory, and which kernel computes each.
#pragma once

#include <set>
#include <vector>

#include "schedule/fit.h"

namespace broach {

struct Group {
  std::vector<const Node*> roots;  // the values that the kernel stores
  Space space;
  bool reads_what_it_overwrites = false;  // elements of an input that are gone by then
  bool can_fail = false;
};

struct Groups {
  std::vector<bool> in_memory;  // by node id: the value gets a buffer
  std::vector<Group> kernels;
  std::vector<std::set<int>> readers;  // by node id, of what is in memory: the kernels that read it
};

struct FusionRules {
  const Graph& graph;
  const Storage& storage;
  bool fuse = true;
  std::vector<bool> must_split;  // by node id: stored by a kernel of its own
  std::vector<int> overwritten;  // by node id: the input into which it is written, or -1
};

// Every kernel fits, whatever its nodes: one that does not is left out as it is met.
Groups group_nodes(FusionRules rules);

}  // namespace broach
