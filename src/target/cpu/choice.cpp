#include "target/cpu/choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "support/error.h"

namespace broach::cpu {

namespace {

// Other work on the machine only ever lengthens a run, so the shortest of a few is near the truth.
constexpr int kRunsEach = 4;
// Some candidates may never be available; then what was measured until here decides.
constexpr int kMostRuns = 96;
// A packed weight costs memory, and another order of summation other bits: a win must be worth that, and beyond noise.
constexpr double kMargin = 1.05;

constexpr const char* kNames[] = {"plain", "packed", "aten"};

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Choice>> choices;
  static Registry& get() {
    static Registry* registry = new Registry;
    return *registry;
  }
};

}  // namespace

std::shared_ptr<Choice> Choice::of(const std::string& shape, Candidate rule, Set candidates) {
  Registry& registry = Registry::get();
  std::lock_guard lock(registry.mutex);
  auto& found = registry.choices[shape];
  if (!found) found = std::make_shared<Choice>(rule, candidates);
  return found;
}

Candidate Choice::next(Set available) {
  std::lock_guard lock(mutex_);
  auto best = rule_;
  int fewest = available & set_of(rule_) ? times_[static_cast<size_t>(rule_)].runs : kMostRuns + 1;
  for (unsigned i = 0; i < times_.size(); ++i)
    if (available & candidates_ & (1u << i) && times_[i].runs < fewest) best = static_cast<Candidate>(i), fewest = times_[i].runs;
  return best;
}

void Choice::record(Candidate c, double seconds) {
  std::lock_guard lock(mutex_);
  Times& t = times_[static_cast<size_t>(c)];
  t.fastest = t.runs++ ? std::min(t.fastest, seconds) : seconds;
  ++runs_;
  bool complete = true;
  for (unsigned i = 0; i < times_.size(); ++i) complete &= !(candidates_ & (1u << i)) || times_[i].runs >= kRunsEach;
  if (decided_.load(std::memory_order_relaxed) < 0 && (complete || runs_ >= kMostRuns)) decide();
}

void Choice::decide() {
  auto best = static_cast<unsigned>(rule_);
  double least = times_[best].runs >= kRunsEach ? times_[best].fastest / kMargin : std::numeric_limits<double>::infinity();
  for (unsigned i = 0; i < times_.size(); ++i)
    if (candidates_ & (1u << i) && times_[i].runs >= kRunsEach && times_[i].fastest < least) best = i, least = times_[i].fastest;
  decided_.store(static_cast<int>(best), std::memory_order_release);
}

std::string Choice::text() const {
  std::lock_guard lock(mutex_);
  std::string out;
  for (unsigned i = 0; i < times_.size(); ++i)
    if (times_[i].runs) out += cat(out.empty() ? "" : ", ", kNames[i], " ", std::lround(times_[i].fastest * 1e6), " us");
  return out;
}

}  // namespace broach::cpu
