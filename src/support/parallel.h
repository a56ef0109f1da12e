// How loops are run in parallel: handed in by whoever embeds Broach, so that one process has one pool of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace broach {

class Threads {
 public:
  virtual ~Threads() = default;
  // Calls body(b, e) for pieces that cover [0, n), each of at least `grain` (but the last); returns when all are done.
  virtual void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) const = 0;
};

// Everything on the calling thread.
class SerialThreads : public Threads {
 public:
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& body) const override {
    if (n > 0) body(0, n);
  }
};

}  // namespace broach
