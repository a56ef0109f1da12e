// Which of several implementations of a contraction is the fastest, measured while programs run.
//
// A rule names the one to begin with. The others are tried by turns, each at most once in a run of the program, so that a
// disturbed moment falls on one sample of several, and no more of them than the program's pace allows. The fastest is kept if
// it wins by a clear margin, for the shape in the whole process, and looked at again when it runs much slower than it did. One
// that takes a rearranged copy of its weight has to win by that margin over all that do without, whatever the rule says.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "target/pace.h"
#include "target/packing.h"

namespace broach::cpu {

// The library's, with the weight as it is or rearranged; the host's own; our own, with the weight as the library rearranges it; the
// host's matrix product, for a convolution's gradient that is one.
enum class Candidate : uint8_t { plain, packed, host, tiles, product };
constexpr bool is_packed(Candidate c) { return c == Candidate::packed || c == Candidate::tiles; }

class Choice {
 public:
  // A set of candidates.
  using Set = unsigned;
  static constexpr Set set_of(Candidate c) { return 1u << static_cast<unsigned>(c); }

  // The one of the process for this shape. Rule and candidates are those of whoever asks first: they follow from the shape. What
  // nobody asked for since for longest is forgotten beyond so many, but by those who hold it.
  static constexpr size_t kMostShapes = 4096;
  static std::shared_ptr<Choice> of(const std::string& shape, Candidate rule, Set candidates);

  Choice(Candidate rule, Set candidates) : rule_(rule), candidates_(candidates) {}

  // Nothing while it is being measured.
  std::optional<Candidate> decided() const {
    int d = decided_.load(std::memory_order_acquire);
    return d < 0 ? std::nullopt : std::optional(static_cast<Candidate>(d));
  }
  bool tries(Candidate c) const { return candidates_ & set_of(c); }
  // What to run next of these; the time that it took is then to be recorded. Without a pace every run is a round of its own.
  Candidate next(Set available, Pace* pace = nullptr);
  // `available`: of these it was the next.
  void record(Candidate c, double seconds, Pace* pace = nullptr, Set available = ~Set{0});
  // What the rearranged weight brings; nothing while it is being measured, or where one of the two was not.
  std::optional<PackingGain> gain() const;
  // The times, for `explain`.
  std::string text() const;

 private:
  struct Times {
    int runs = 0;
    double fastest = 0;
    uint64_t round = 0;  // of the last sample
  };
  Times& times(Candidate c) { return times_[static_cast<size_t>(c)]; }
  const Times& times(Candidate c) const { return times_[static_cast<size_t>(c)]; }
  Candidate best_of(Set available) const;
  std::optional<Candidate> fastest_of(Set among) const;
  bool lost(Candidate c) const;
  void sample(Candidate c, double seconds, Pace* pace, Set available);
  void watch(Candidate c, double seconds, Pace* pace);
  bool is_complete() const;
  void decide();
  void reopen();

  const Candidate rule_;
  const Set candidates_;
  mutable std::mutex mutex_;
  std::array<Times, 5> times_{};
  int rounds_ = 0;
  uint64_t round_ = 0;
  std::atomic<int> decided_{-1};
  std::atomic<double> expected_{0};  // seconds of the decided one
  std::atomic<int> slow_{0};         // rounds in a row in which it took much longer
  std::atomic<uint64_t> slow_round_{0};
  int reopened_ = 0;
};

}  // namespace broach::cpu
