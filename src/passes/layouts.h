// Which outputs are values where they are computed.
#pragma once

#include <map>
#include <utility>

#include "ir/graph.h"

namespace broach {

// By node id and result: the output that lies there. Where an output lies in what it regroups, that is in memory and it is not.
using OutputValues = std::map<std::pair<uint32_t, uint32_t>, int>;
OutputValues stored_outputs(const Graph& graph);

}  // namespace broach
