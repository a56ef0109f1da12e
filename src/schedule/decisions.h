// What is decided about a graph before its steps are made: one file and function for each decision, in this order.
#pragma once

#include <map>
#include <vector>

#include "passes/epilogues.h"
#include "passes/layouts.h"
#include "schedule/groups.h"
#include "schedule/schedule.h"

namespace broach {

struct Decisions {
  const Graph& graph;
  ScheduleOptions options;

  // What the graph says.
  Epilogues epilogues;
  OutputValues outputs;
  std::vector<std::vector<Shape>> strides;  // by node id and result
  std::vector<int> in_place;                // by node id: the input in whose memory it lies, or -1

  std::vector<bool> must_split;  // by node id: stored by a kernel of its own
  Storage storage;
  Groups groups;
  std::map<uint32_t, size_t> relays;  // by node id: the kernel that stores the value for copies into inputs alone

  // The input into which a value is written as a whole, or -1.
  int written_into(const Node& n) const;
  // Whether a value that is to be copied into an input is there already.
  bool is_there(const Node& n) const {
    const int into = written_into(n);
    return into >= 0 && n.op == Op::copy && in_place[n.inputs[0].node->id] == into;
  }
  // How many writes in place lie between the input and this value.
  int version_of(const Node& n) const { return in_place[n.id] >= 0 ? 1 + version_of(*n.inputs[0].node) : 0; }
};

// storage.cpp: which values must be in memory.
void decide_storage(Decisions& d);
// groups.cpp: what the kernels compute, and which values are in memory for that.
void decide_groups(Decisions& d);
// relays.cpp: which writes into inputs go through other memory.
void decide_relays(Decisions& d);

// ---- from decisions to steps ----

// buffers.cpp
struct Buffers {
  std::vector<Buffer> buffers;
  std::map<std::pair<int, int>, int> inputs;  // buffers by input and version
  std::vector<std::vector<Place>> places;     // by node id and result, of what is in memory
};
Buffers place_buffers(const Decisions& d);

// steps.cpp: one for each kernel, and each node that is none.
struct Unit {
  std::vector<const Node*> values;  // that it computes
  Step step;
  bool is_empty = false;  // nothing to do
};
std::vector<Unit> make_steps(const Decisions& d, const Buffers& memory);

// order.cpp
std::vector<Step> order_steps(const Decisions& d, const Buffers& memory, std::vector<Unit> units);
// Positions in an order in which each comes behind those that it names; nothing if there are circles.
std::optional<std::vector<int>> order_of(const std::vector<int>& wanted, const std::vector<std::vector<int>>& before);

}  // namespace broach
