// What a target computes by itself, as data. Shared code asks, and knows no library.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "ir/graph.h"

namespace broach {

// Of one kind of contraction, with results of one element type.
struct ContractionAbility {
  std::set<Op> activations;        // computed behind it, before the result is stored
  std::set<Op> exact_activations;  // of these, those that give what the primitive says for NaN as well
  std::set<Op> binaries;           // likewise, with an operand as large as the result, or repeated along all but its channels
  size_t most_epilogues = 0;
  bool bias = true;            // one element a column, or output channel
  bool through_casts = false;  // behind a cast to f32, if the result is cast back
  bool channels_last = false;  // its tensors should lie so
};

struct Capabilities {
  // What is missing stays a call of the host's library.
  std::map<std::pair<Op, DType>, ContractionAbility> contractions;

  const ContractionAbility* contraction(Op op, DType dtype) const {
    auto it = contractions.find({op, dtype});
    return it == contractions.end() ? nullptr : &it->second;
  }
};

// Of a target that has everything.
Capabilities all_capabilities();

}  // namespace broach
