// A range of the host's addresses from which blocks are cut.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

namespace broach {

// Each block lies in the smallest gap that has room for it, the lowest of several, so that what is asked for in turn, as by the steps of a
// training, comes to lie on pages that are there already. (In the lowest gap of any size, steps whose intermediates and gradients come by
// turns need up to a fifth more pages.) The system gives them when they are first written; they are given back as far above everything
// as no block of the last runs lay, or by `trim`.
class Region {
 public:
  static constexpr int kWindow = 64;  // runs after which pages are given back that none of them, and none of as many before, has used

  // Of so many bytes of addresses. Where the system refuses them it has room for nothing.
  explicit Region(size_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Aligned to 64 bytes; null where there is no room.
  std::byte* take(size_t bytes);
  void give(std::byte* block);
  void begin_run();
  void trim();
  size_t used_bytes() const;
  // Of pages that no block uses, at most.
  size_t idle_bytes() const;

 private:
  size_t top() const;  // behind the highest block
  void give_back(size_t begin, size_t end);

  mutable std::mutex mutex_;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  std::map<size_t, size_t> free_;            // bytes, by offset
  std::unordered_map<size_t, size_t> used_;  // likewise
  size_t used_bytes_ = 0;
  size_t touched_ = 0;            // above which no page is used
  size_t high_ = 0, before_ = 0;  // the highest tops, in the present window and in the one before
  int runs_ = 0;                  // of the present window
};

}  // namespace broach
