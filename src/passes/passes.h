// The passes over a program, one list of them. What the schedule asks for itself (copies of outputs, updates in place) is no row.
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
  std::shared_ptr<const Graph> graph;   // what every call runs
  std::vector<OutputRequest> requests;  // by its outputs
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
  Capabilities::Reductions reductions = {};
};

struct Pass {
  const char* name;
  const char* does;  // one sentence
  std::function<void(Module&, const PassContext&)> run;
  bool is_needed = false;  // for a right answer: cannot be left out
};

// In the order in which they run.
std::span<const Pass> passes();

// An Error that lists the passes that can be left out where one of the names is none of them.
void check_pass_names(const std::vector<std::string>& names);

// Runs all passes but those named; times each in seconds, and shows `observe` what each gave. The verifier runs in between
// where `verifies()` (support/bug.h).
void run_passes(Module& module, const PassContext& context, const std::vector<std::string>& disabled,
                std::vector<std::pair<std::string, double>>* seconds, const std::function<void(const char*, const Module&)>& observe);

// Views without effect, casts of casts, constants folded, arithmetic with neutral elements.
Graph simplify_graph(const Graph& graph);
// Formulas written out by hand become the primitive they compute (gelu, silu).
Graph match_activations(const Graph& graph);
// Reshapes move off matrix products, so that epilogues meet them in one shape.
Graph free_contractions(const Graph& graph);
// No reduction of very many elements gives very few results in one step.
Graph split_reductions(const Graph& graph, const Capabilities::Reductions& worth);
// No kernel computes a concatenation of many operands.
Graph join_many(const Graph& graph);

}  // namespace broach
