// Memory of a call: a plan that lets intermediates share one arena.
#pragma once

#include <cstdint>
#include <vector>

namespace broach {

// A piece of memory needed from step `first` to step `last`, both included.
struct Lifetime {
  int64_t bytes;
  int first, last;
  int over = -1;  // another of as many bytes, whose last step is this one's first, in whose place it lies; nobody else's; -1: none
};

// Memory that is there besides the arena. Parts of it are in use from the first step on, until one that is told.
struct LentMemory {
  struct Use {
    int64_t offset, bytes;
    int last;
    int heir = -1;  // a lifetime that may take its place in its last step; -1: none
  };
  int64_t bytes = 0;
  std::vector<Use> uses;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // by lifetime; multiples of 64
  std::vector<bool> is_lent;     // by lifetime: an offset in the lent memory; empty: none
  int64_t bytes = 0;             // of the whole arena
};

// Offsets such that pieces alive at the same time do not overlap, but where one takes the place of another: largest first, each at the
// lowest place that is free, in lent memory if there is one; of very many the earliest first, and none in lent memory.
MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes, const LentMemory& lent = {});

}  // namespace broach
