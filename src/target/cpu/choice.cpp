#include "target/cpu/choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "support/error.h"
#include "support/recently_used.h"

namespace broach::cpu {

namespace {

// Other work on the machine only ever lengthens a run, so the shortest of a few, taken at different times, is near the truth.
constexpr int kRunsEach = 4;
// One that is this much slower, each time it was tried, needs no more runs to lose; two may lie in one disturbed moment.
constexpr double kLost = 1.25;
constexpr int kRunsToLose = 3;
constexpr int kRunsToLead = 2;
// Some candidates may never be available, or too slow to be tried; then what was measured until here decides. What is measured
// anew has what it needs from the beginning.
constexpr int kMostRounds = 192, kMostRoundsAnew = 16;
// A packed weight costs memory, and another order of summation other bits: a win must be worth that, and beyond noise. So a packed
// weight that brings less than this over the best without it is not kept.
constexpr double kMargin = 1.05;
// What is known of a candidate before its first run: it may be this much slower.
constexpr double kUnknown = 0.25;
// So many rounds in a row, each so much slower than measured, say that the measurement holds no more; ever more are needed, as
// the machine itself may have become slower.
constexpr double kSlower = 1.5;
constexpr int kSlowRounds = 32;

constexpr const char* kNames[] = {"plain", "packed", "aten", "tiles", "product"};

struct Registry {
  std::mutex mutex;
  RecentlyUsed<std::string, std::shared_ptr<Choice>> choices{Choice::kMostShapes};
  static Registry& get() {
    static Registry* registry = new Registry;
    return *registry;
  }
};

}  // namespace

std::shared_ptr<Choice> Choice::of(const std::string& shape, Candidate rule, Set candidates) {
  Registry& registry = Registry::get();
  std::lock_guard lock(registry.mutex);
  if (auto found = registry.choices.find(shape)) return *found;
  return registry.choices.insert(shape, std::make_shared<Choice>(rule, candidates));
}

// Of those that ran often enough to be compared.
std::optional<Candidate> Choice::fastest_of(Set among) const {
  std::optional<Candidate> best;
  auto take_if_faster = [&](Candidate c, double margin) {
    if (!(among & candidates_ & set_of(c)) || c == best || times(c).runs < kRunsToLead) return;
    if (!best || times(c).fastest * margin < times(*best).fastest) best = c;
  };
  if (rule_ != Candidate::packed) take_if_faster(rule_, 1);
  const bool has_rule = best.has_value();
  take_if_faster(Candidate::plain, has_rule ? kMargin : 1);
  take_if_faster(Candidate::host, has_rule ? kMargin : 1);
  take_if_faster(Candidate::product, has_rule ? kMargin : 1);
  take_if_faster(Candidate::packed, kMargin);
  take_if_faster(Candidate::tiles, best == Candidate::packed ? 1 : kMargin);
  return best;
}

// The rule's until it was run itself.
Candidate Choice::best_of(Set available) const {
  if (available & set_of(rule_) && !times(rule_).runs) return rule_;
  if (auto fastest = fastest_of(available)) return *fastest;
  const Set known = available & candidates_;
  return available & set_of(rule_) || !known ? rule_ : static_cast<Candidate>(std::countr_zero(known));
}

bool Choice::lost(Candidate c) const {
  const Times& t = times_[static_cast<size_t>(c)];
  return t.runs >= kRunsToLose &&
         std::ranges::any_of(times_, [&](const Times& other) { return other.runs && t.fastest > kLost * other.fastest; });
}

Candidate Choice::next(Set available, Pace* pace) {
  std::lock_guard lock(mutex_);
  const Candidate best = best_of(available);
  if (auto d = decided()) return available & set_of(*d) ? *d : best;
  const uint64_t round = pace ? pace->round() : 0;
  if (!pace || round != round_) round_ = round, ++rounds_;
  auto is_due = [&](Candidate c) { return available & candidates_ & set_of(c) && !lost(c) && (!pace || times(c).round != round); };
  auto next = best;
  int fewest = is_due(best) ? times(best).runs : std::numeric_limits<int>::max();
  for (unsigned i = 0; i < times_.size(); ++i)
    if (auto c = static_cast<Candidate>(i); is_due(c) && times(c).runs < fewest) next = c, fewest = times(c).runs;
  if (next == best || !pace) return next;
  const double usual = times(best).fastest, excess = times(next).runs ? std::max(times(next).fastest - usual, 0.0) : kUnknown * usual;
  return pace->affords_trial(excess, !times(next).runs) ? next : best;
}

void Choice::record(Candidate c, double seconds, Pace* pace, Set available) {
  if (decided()) return watch(c, seconds, pace);
  std::lock_guard lock(mutex_);
  sample(c, seconds, pace, available);
  if (!decided() && is_complete()) decide();
}

bool Choice::is_complete() const {
  if (rounds_ >= (reopened_ ? kMostRoundsAnew : kMostRounds)) return true;
  for (unsigned i = 0; i < times_.size(); ++i)
    if (candidates_ & (1u << i) && times_[i].runs < kRunsEach && !lost(static_cast<Candidate>(i))) return false;
  return true;
}

// What runs anyway is no trial, however much faster another was once.
void Choice::sample(Candidate c, double seconds, Pace* pace, Set available) {
  Times& t = times(c);
  if (pace) {
    const uint64_t round = pace->round();
    if (t.runs && t.round == round) return;
    t.round = round;
    const Candidate usual = best_of(available);
    if (c != usual && times(usual).runs && times(usual).fastest < seconds) pace->tried(seconds - times(usual).fastest);
  }
  t.fastest = t.runs++ ? std::min(t.fastest, seconds) : seconds;
}

void Choice::decide() {
  const Candidate best = fastest_of(candidates_).value_or(rule_);
  expected_.store(times(best).fastest, std::memory_order_relaxed);
  slow_.store(0, std::memory_order_relaxed);
  decided_.store(static_cast<int>(best), std::memory_order_release);
  PackingNews::announce();
}

void Choice::watch(Candidate c, double seconds, Pace* pace) {
  if (decided() != c) return;
  if (seconds <= kSlower * expected_.load(std::memory_order_relaxed)) {
    if (slow_.load(std::memory_order_relaxed)) slow_.store(0, std::memory_order_relaxed);
    return;
  }
  if (pace && slow_round_.exchange(pace->round(), std::memory_order_relaxed) == pace->round()) return;
  if (slow_.fetch_add(1, std::memory_order_relaxed) < kSlowRounds) return;
  std::lock_guard lock(mutex_);
  if (decided() && slow_.load(std::memory_order_relaxed) >= kSlowRounds << std::min(reopened_, 16)) reopen();
}

void Choice::reopen() {
  ++reopened_;
  times_ = {};
  rounds_ = 0;
  decided_.store(-1, std::memory_order_release);
  PackingNews::announce();
}

std::optional<PackingGain> Choice::gain() const {
  std::lock_guard lock(mutex_);
  constexpr Set kPacked = set_of(Candidate::packed) | set_of(Candidate::tiles);
  auto packed = fastest_of(candidates_ & kPacked), unpacked = fastest_of(candidates_ & ~kPacked);
  if (!decided() || !packed || !unpacked) return std::nullopt;
  return PackingGain{times(*packed).fastest, times(*unpacked).fastest};
}

std::string Choice::text() const {
  std::lock_guard lock(mutex_);
  std::string out;
  for (unsigned i = 0; i < times_.size(); ++i)
    if (times_[i].runs) out += cat(out.empty() ? "" : ", ", kNames[i], " ", std::lround(times_[i].fastest * 1e6), " us");
  return out;
}

}  // namespace broach::cpu
