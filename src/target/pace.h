// How fast a program becomes faster. Trying candidates and packing weights cost time that the caller has not asked for: each
// run may spend a small share of its own time on them, and what has been gained since the first runs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace broach {

class Pace {
 public:
  // Unlike that of any other run of the process.
  uint64_t round() const { return round_.load(std::memory_order_relaxed); }

  // Whether a trial that is expected to take so much longer than what it replaces may run now. What has never run has to run
  // some time: it may where no other trial has cost anything yet.
  bool affords_trial(double excess, bool is_first) const {
    std::lock_guard lock(mutex_);
    return excess <= left() || (is_first && tried_ == 0);
  }
  void tried(double excess) {
    std::lock_guard lock(mutex_);
    tried_ += excess;
  }

  // Whether so many bytes may be packed now. What costs more than a run may spend has to be saved for.
  bool affords_packing(size_t bytes) const {
    std::lock_guard lock(mutex_);
    double cost = static_cast<double>(bytes) * seconds_per_byte_;
    return cost <= left() || (packed_ == 0 && cost <= saved_);
  }
  void packed(size_t bytes, double seconds) {
    std::lock_guard lock(mutex_);
    packed_ += seconds;
    if (bytes >= 1 << 16) seconds_per_byte_ = 0.5 * (seconds_per_byte_ + seconds / static_cast<double>(bytes));
  }

  // A run is over. `comparable`: it was of the same sizes as the others.
  void finish(double seconds, bool comparable) {
    std::lock_guard lock(mutex_);
    const double work = std::max(seconds - tried_, 0.0);
    if (!comparable) first_ = work;
    else if (runs_ < kFirstRuns) first_ = runs_ == 0 ? work : std::min(first_, work);
    ++runs_;
    gained_ = std::max(first_ - work, 0.0);
    saved_ = std::clamp(saved_ - tried_ - packed_ + kShare * first_ + gained_, 0.0, kMostSaved * first_);
    tried_ = packed_ = 0;
    round_.store(next_round(), std::memory_order_relaxed);
  }

 private:
  static constexpr double kShare = 0.07, kMost = 0.12, kMostSaved = 30;
  static constexpr int kFirstRuns = 3;  // the fastest of these is what a run takes before anything is gained

  static uint64_t next_round() {
    static std::atomic<uint64_t> rounds{0};
    return ++rounds;
  }
  double left() const { return std::min(saved_, kMost * first_ + 0.9 * gained_) - tried_ - packed_; }

  mutable std::mutex mutex_;
  std::atomic<uint64_t> round_{next_round()};
  int runs_ = 0;
  double first_ = 0, gained_ = 0, saved_ = 0, tried_ = 0, packed_ = 0;
  double seconds_per_byte_ = 1e-9;  // fresh memory is slow to fill
};

}  // namespace broach
