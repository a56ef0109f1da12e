// How loops are run in parallel: handed in by whoever embeds Broach, so that one process has one pool of threads. How work is divided is
// decided here, from its size and the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace broach {

class Threads {
 public:
  virtual ~Threads() = default;
  // Calls body(b, e) for pieces that cover [0, n), each of at least `grain` (but the last); returns when all are done.
  virtual void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) const = 0;
  // That a loop which begins now would have.
  virtual int count() const = 0;
};

// Everything on the calling thread.
class SerialThreads : public Threads {
 public:
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& body) const override {
    if (n > 0) body(0, n);
  }
  int count() const override { return 1; }
};

// Work is counted in operations on one element within a vectorised loop, some 25 ps each. So many take ten microseconds: less is not worth
// waking threads for, which takes a few, and more where there are very many.
constexpr int64_t kWorthThreads = 400'000, kWorthEachThread = 25'000;
// What a thread that was woken should have at least.
constexpr int64_t kLeastPiece = 100'000;

// Whether n units of so many operations are worth sharing among so many threads.
inline bool is_worth_threads(int64_t n, int64_t operations, int threads = 2) {
  return threads > 1 && n > 1 && n > std::max(kWorthThreads, kWorthEachThread * threads) / std::max<int64_t>(operations, 1);
}

// The size of pieces into which n such units are divided. A loop that is not run by the calling thread alone wakes all threads and waits
// for them (an OpenMP team that changes its size loses its threads), so what is worth waking them is shared among as many as can be.
inline int64_t grain_for(int64_t n, int64_t operations, int threads) {
  if (!is_worth_threads(n, operations, threads)) return std::max<int64_t>(n, 1);
  const int64_t least = (kLeastPiece + operations - 1) / std::max<int64_t>(operations, 1);
  return std::max({int64_t{1}, least, (n + threads - 1) / threads});
}

// Calls body(i) for each of n pieces. Who is done takes the next one: where they differ in work, those that begin with the largest, of all;
// where they are alike, of as many that follow each other, so that a thread finds in its caches what it computed by such a division before,
// and then of another thread's.
template <class Body>
void share(const Threads& threads, int workers, int64_t n, bool are_alike, const Body& body) {
  const int64_t count = std::min<int64_t>(workers, n), parts = are_alike ? count : 1;
  if (count <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  struct alignas(64) Part {
    std::atomic<int64_t> next;
    int64_t end;
  };
  std::vector<Part> left(static_cast<size_t>(parts));
  for (int64_t p = 0; p < parts; ++p)
    left[static_cast<size_t>(p)].next = p * n / parts, left[static_cast<size_t>(p)].end = (p + 1) * n / parts;
  threads.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin)
      for (int64_t p = begin; p < begin + parts; ++p) {
        Part& of = left[static_cast<size_t>(p % parts)];
        for (int64_t i; (i = of.next.fetch_add(1, std::memory_order_relaxed)) < of.end;) body(i);
      }
  });
}

}  // namespace broach
