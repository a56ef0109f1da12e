// A program in which sizes depend on data runs in segments: the call that finds out a size comes between two of them, so that
// each is compiled, planned and run with sizes that are known when it begins.
#pragma once

#include <memory>
#include <vector>

#include "ir/graph.h"

namespace broach {

// A slot holds a value that outlives a segment. The first ones are the whole graph's inputs.
struct Segment {
  std::shared_ptr<const Graph> graph;  // its inputs: those of the whole graph, and behind them `carried`
  std::vector<size_t> carried;         // slots
  std::vector<size_t> outputs;         // slots, by output of the graph
  struct Call {
    std::shared_ptr<const ExternCall> call;
    std::vector<size_t> operands;  // slots
    std::vector<int64_t> results;  // slots; -1 for one that nobody reads
  };
  std::vector<Call> calls;  // made behind the segment, in this order; each binds symbols
};

struct Segments {
  struct Slot {
    Type type;
    Shape strides;
  };
  std::vector<Segment> list;
  std::vector<Slot> slots;
  std::vector<size_t> outputs;  // slots, by output of the whole graph
};

}  // namespace broach
