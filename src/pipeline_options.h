// How a program is compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "target/target.h"

namespace broach {

struct PipelineOptions {
  // Which sizes become symbols: those that were seen to change, none, or all from the first call on.
  enum class Dynamic : uint8_t { automatic, never, always };
  Dynamic dynamic = Dynamic::automatic;
  std::vector<uint64_t> symbolic_dims;  // by input, a bit for each dimension that is a symbol from the first call on
  int branches = 0;                     // most programs kept for different values read on the host; 0: none is compiled
  bool whole = false;                   // what the program itself decides by computed values is refused
  bool freeze = true;                   // compute what depends on constant inputs once
  double memory_budget = 1.0;           // at most this part of what is saved for gradients by default (0..1)
  int gradient_parts = 0;     // in which gradients are computed, so that saved values make room for them; 0: as parts_for_memory says
  bool eager_random = false;  // random numbers are the host's own, element by element
  bool fuse = true;
  bool lower = true;                         // false: every op a call of the host's library
  std::vector<std::string> disabled_passes;  // by name
  std::string target = "cpu";                // of target_names()
  CompileSettings settings;
};

// A trace that goes on with the gradients of what the program gives: what is its own, and what theirs.
struct TracedGradients {
  size_t first_op = 0;                 // of those that compute them
  size_t tangents = 0, gradients = 0;  // the trace's last inputs, and its last outputs; none: it has no gradients
  bool is_linear = true;               // they are formulas, linear in the tangents, and no code of the program's
};

}  // namespace broach
