// What depends on inputs alone that stay the same from call to call.
#pragma once

#include <map>
#include <vector>

#include "ir/graph.h"

namespace broach {

// Whether values depend on constant inputs only; remembers the answer by node.
class Constancy {
 public:
  // `constant`: by input. Both it and the nodes that are asked for live longer.
  explicit Constancy(const std::vector<bool>& constant) : constant_(constant) {}
  bool operator()(const Node& n);

 private:
  const std::vector<bool>& constant_;
  std::map<const Node*, bool> known_;
};

}  // namespace broach
