// What is computed once from weights: values that depend on constant inputs only, and copies of weights rearranged for the
// kernels that read them. `watched.h` tells when a weight was written.
//
// What a program computes once may also come from memory that cannot be watched; that memory is digested on every call, which
// reads no more than computing it again would. Weights there are not packed.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "kept_weights.h"
#include "runner.h"
#include "support/published.h"
#include "watched.h"

namespace broach {

// What looking after copies takes, by the clock: it must stay a small share of the time in which they are used.
class Upkeep {
 public:
  explicit Upkeep(bool always) : always_(always) {}

  static constexpr double kShare = 6;

  bool affords(double seconds) const { return always_ || seconds * kShare <= idle(); }
  double idle() const;  // since the last time something was done
  // What doing it took.
  template <class Work>
  double spend(const Work& work) {
    auto start = Clock::now();
    work();
    last_ = Clock::now();
    return std::chrono::duration<double>(*last_ - start).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool always_;
  std::optional<Clock::time_point> last_;
};

class Weights {
 public:
  struct State {
    struct Source {
      int input;
      const void *address, *memory;  // of the elements, and where their storage begins
      c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    };
    struct Digested {
      int input;
      Digest digest;
    };
    struct Denied {  // could be packed if it had no more holders than these
      int input;
      Holders most;
    };
    std::vector<Source> sources;
    std::vector<std::shared_ptr<const Watch>> watches;  // of these
    std::vector<Digested> digested;
    std::vector<Denied> denied;
    mutable std::atomic<uint64_t> found_written = 0;  // of all watches, when these ones were looked at
    std::vector<at::Tensor> frozen;                   // what was computed once; undefined where only packs of it are read
    RunInputs frozen_values;                          // the same, as a run takes them
    std::shared_ptr<const std::byte[]> frozen_names;  // one byte each, whose address stands for the elements
    WeightPacks packs;
    bool settled = true;                     // it is known which contractions want their weights packed, and they are
    mutable std::atomic<uint64_t> news = 0;  // PackingNews that this agrees with
    std::set<int> unwatched;                 // inputs whose memory cannot be watched
  };

  // `constant`, by slot: passed unchanged from call to call. `once` computes what lies in the slots from `first_frozen` on; it may be
  // null. `by_rule`: what is packed does not depend on time.
  Weights(std::shared_ptr<const Runner> main, std::shared_ptr<const Runner> once, size_t first_frozen, const std::vector<bool>& constant,
          bool by_rule);

  // What agrees with the inputs' elements now. `inputs`: the values of a call, by slot.
  std::shared_ptr<const State> current(const RunInputs& inputs, const std::vector<int64_t>& symbols);
  std::vector<KeptWeight> kept(const std::vector<int64_t>& symbols) const;

 private:
  using StatePointer = std::shared_ptr<const State>;
  using Packs = std::vector<std::shared_ptr<const std::byte[]>>;
  // A weight as it was found while nothing is packed.
  struct Seen {
    const c10::StorageImpl* storage;
    Digest digest;  // of what cannot be watched
    bool operator==(const Seen&) const = default;
  };

  StatePointer renewed(const RunInputs& inputs, const std::vector<int64_t>& symbols);
  StatePointer once(const RunInputs& inputs) const;
  std::vector<Executable::Packable> wanted(const std::vector<int64_t>& symbols) const;
  bool affords(const Executable::Packable& p, const std::vector<int64_t>& symbols) const;  // packing it in this call
  bool has_what_is_wanted(const State& state, const std::vector<int64_t>& symbols) const;
  bool is_complete(const State& state, const RunInputs& inputs, const std::vector<int64_t>& symbols) const;
  bool is_unchanged(const State& state, const RunInputs& inputs, std::vector<std::shared_ptr<const Watch>>& now) const;
  Packs packs_that_hold(const State& state, const std::vector<std::shared_ptr<const Watch>>& now) const;
  void note_change(double kept);
  bool stays_the_same(const RunInputs& inputs);
  StatePointer build(const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const;
  // Null if the input's memory cannot be watched.
  std::shared_ptr<const Watch> add_source(State& state, int input, const RunInputs& inputs) const;
  std::optional<PackSource> source_of(State& state, int input, const RunInputs& inputs) const;
  void pack(State& state, const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const;

  bool is_frozen(size_t slot) const { return once_ && slot >= first_frozen_ && slot < first_frozen_ + once_->outputs(); }
  std::vector<at::Tensor> compute_frozen(const RunInputs& inputs) const;

  std::shared_ptr<const Runner> main_, once_;
  size_t first_frozen_;
  std::vector<int> sources_, weights_;           // what is computed once is computed from; the same, and what is packed
  std::vector<Executable::Packable> packables_;  // with their slots
  Published<StatePointer> state_;                // replaced under mutex_
  std::mutex mutex_;
  bool by_rule_;
  Upkeep upkeep_;
  double comparing_ = 0, building_ = 0;  // seconds that it took last
  int calm_ = 0, calm_needed_ = 0;       // calls that found the weights as the call before had left them
  std::vector<Seen> seen_;
};

}  // namespace broach
