// Memory of a call: a plan that lets intermediates share one arena, and a pool from which arenas are taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
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

// Arenas that are not in use, to be taken again: fresh pages cost several times what writing to warm ones does.
class ArenaPool {
 public:
  struct Arena {
    std::byte* data = nullptr;  // aligned to 64
    int64_t bytes = 0;
  };
  static ArenaPool& get();
  Arena take(int64_t bytes);
  void give(Arena arena);
  void clear();
  int64_t idle_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Arena> idle_;
};

class ArenaLease {
 public:
  explicit ArenaLease(int64_t bytes) : arena_(bytes > 0 ? ArenaPool::get().take(bytes) : ArenaPool::Arena{}) {}
  ~ArenaLease() {
    if (arena_.data) ArenaPool::get().give(arena_);
  }
  ArenaLease(const ArenaLease&) = delete;
  ArenaLease& operator=(const ArenaLease&) = delete;
  std::byte* data() const { return arena_.data; }

 private:
  ArenaPool::Arena arena_;
};

}  // namespace broach
