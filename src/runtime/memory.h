// Memory of a call: a plan that lets intermediates share one arena.
#pragma once

#include <cstdint>
#include <vector>

namespace broach {

// A piece of memory needed from step `first` to step `last`, both included.
struct Lifetime {
  int64_t bytes;
  int first, last;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // by lifetime; multiples of 64
  int64_t bytes = 0;             // of the whole arena
};

// Offsets such that pieces alive at the same time do not overlap: largest first, each at the lowest place that is free; of very
// many the earliest first.
MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes);

}  // namespace broach
