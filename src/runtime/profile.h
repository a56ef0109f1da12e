// Where a call's time goes: seconds, bytes and arithmetic of each step. BROACH_PROFILE=1 turns it on; so may a front.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace broach {

// What one run of a step must do at least.
struct StepCost {
  double bytes = 0;  // each window that it touches, read or written once
  double flops = 0;  // of a contraction or attention: two for each multiply-add
};

// `buffers`: of the step's schedule.
StepCost step_cost(const Step& step, std::span<const Buffer> buffers, std::span<const int64_t> symbols);
// The kind of step and what it computes, short enough for a line of a table.
std::string step_name(const Step& step);

struct StepProfile {
  std::string name, line;  // line: of the program's source, if known
  int64_t runs = 0;
  double seconds = 0, bytes = 0, flops = 0;  // of the fastest run: others may have waited for something else
};

// The steps of one executable, run by any number of threads.
class Profile {
 public:
  explicit Profile(size_t steps) : best_(steps) {}

  static bool enabled();
  static void enable(bool on);

  void add(size_t step, double seconds, const StepCost& cost);
  std::vector<StepProfile> report(const Schedule& schedule) const;  // by step; empty if nothing ran

 private:
  struct Best {
    int64_t runs = 0;
    double seconds = 0;
    StepCost cost;
  };
  mutable std::mutex mutex_;
  std::vector<Best> best_;
};

}  // namespace broach
