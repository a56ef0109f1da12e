// The passes over a program, one list of them: all that changes a graph before the schedule.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/capabilities.h"
#include "passes/segments.h"

namespace broach {

// A program on its way to the schedule: one graph to begin with, which some passes divide.
struct Module {
  std::shared_ptr<const Graph> graph;  // what every call runs
  // Computes, from the same inputs, those that `graph` has behind them; null if there are none. Run where a constant changed.
  std::shared_ptr<const Graph> prologue;
  std::shared_ptr<const Segments> segments;  // of `graph`; null: it runs in one

  void verify() const;
  std::string str() const;
};

// What the passes may know beside the program.
struct PassContext {
  std::vector<bool> constant;  // by input: its elements are the same from call to call
  bool freeze = true;          // what depends on those alone may be computed once
  bool strict = false;         // every result is rounded as eager rounds it
  bool fuse = true;            // several operations may be computed at once
  const Capabilities* capabilities = &all_capabilities();
};

struct Pass {
  const char* name;
  const char* does;  // one sentence
  std::function<void(Module&, const PassContext&)> run;
  bool is_needed = false;  // for a right answer: cannot be left out
  // Of the whole program, before it is divided into stages, or of the graph of one stage.
  enum class Part : uint8_t { program, stage };
  Part part = Part::program;
};

// In the order in which they run.
std::span<const Pass> passes();

// An Error that lists the passes that can be left out where one of the names is none of them.
void check_pass_names(const std::vector<std::string>& names);

// Runs all passes of this part but those named; times each in seconds, and shows `observe` what each gave. The verifier runs in between
// where `verifies()` (support/bug.h).
void run_passes(Module& module, Pass::Part part, const PassContext& context, const std::vector<std::string>& disabled,
                std::vector<std::pair<std::string, double>>* seconds, const std::function<void(const char*, const Module&)>& observe);

// ---- the passes themselves ----

using Whole = Graph(const Graph&, const PassContext&);
using Divide = void(Module&, const PassContext&);
using Stage = Graph(const Graph&, const PassContext&);
#define PASS(name, function, on, ...) on function;
#include "passes/passes.def"
#undef PASS

}  // namespace broach
