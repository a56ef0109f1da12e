// From what happened to what it means: a trace with mutation and views becomes a graph of values.
//
// A storage has a value at each of its versions. A tensor that owns its storage's value is its root; every other tensor of
// the storage is a chain of view steps from the root. An in-place operation computes a new value for its tensor, carries it
// back along the chain to the root, and so makes the storage's next version; other tensors of the storage are computed anew
// from it when they are next read.
#pragma once

#include <memory>
#include <vector>

#include "ir/capabilities.h"
#include "trace/trace.h"

namespace broach {

// How one output of the program is made from what a call computed.
struct ResultSpec {
  enum class Kind : uint8_t {
    none,           // None
    input,          // the caller's own tensor, input `index`
    view_of_input,  // a window of input `index`: offset counts from that input's first element
    fresh,          // graph output `index`
    view_of_fresh,  // a window of graph output `index`
  };
  Kind kind = Kind::none;
  int index = -1;
  Type type;
  Shape strides;
  SymInt offset;      // in elements of `type`, which need not be the base's
  bool conj = false;  // a lazy conjugate or negative of the base
  bool neg = false;

  bool is_of_input() const { return kind == Kind::input || kind == Kind::view_of_input; }
  bool is_made() const { return kind == Kind::fresh || kind == Kind::view_of_fresh; }
};

struct Program {
  std::shared_ptr<const Graph> graph;
  std::vector<ResultSpec> results;  // by program output
  std::vector<int> mutated_inputs;
  // Where the program read values that it computed, the last `reads` results are these, in order. Nothing may be seen of a run
  // with other values, or with sizes that depend on data and do not fit, so the new elements of inputs are then graph outputs too,
  // to be copied by whoever runs the program. `decides_first`: the values are computed by a stage of their own, behind which inputs are
  // written in place.
  size_t reads = 0;
  bool speculative = false, decides_first = false;
  struct Commit {
    int input, output;
  };
  std::vector<Commit> commits;
};

struct FunctionalizeOptions {
  const Capabilities* capabilities = &all_capabilities();  // of the target; what it has not stays a call of the host's library
  Device device;                                           // whose they are: contractions and routines elsewhere stay calls
  bool lower = true;                                       // false: every op stays an extern call
  bool eager_random = false;                               // random numbers are the host's own
  size_t tangents = 0;                                     // the trace's last inputs
};

// Throws Unsupported for programs whose meaning the graph cannot express.
Program functionalize(const Trace& trace, const FunctionalizeOptions& options);

}  // namespace broach
