// The passes over the graph, each a pure function from a graph to its successor.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace broach {

struct Pass {
  const char* name;
  const char* does;  // one sentence
  Graph (*run)(const Graph&);
};

// In the order in which they run.
std::span<const Pass> passes();

// An Error that lists the passes where one of the names is none.
void check_pass_names(const std::vector<std::string>& names);

// Runs all passes but those named; times each in seconds, and shows `observe` what each gave. The verifier runs in between
// where `verifies()` (support/bug.h).
Graph run_passes(const Graph& graph, const std::vector<std::string>& disabled, std::vector<std::pair<std::string, double>>* seconds,
                 const std::function<void(const char*, const Graph&)>& observe);

// Views without effect, casts of casts, constants folded, arithmetic with neutral elements.
Graph simplify_graph(const Graph& graph);
// Formulas written out by hand become the primitive they compute (gelu, silu).
Graph match_activations(const Graph& graph);
// Reshapes move off matrix products, so that epilogues meet them in one shape.
Graph free_contractions(const Graph& graph);
// No reduction of very many elements gives very few results in one step.
Graph split_reductions(const Graph& graph);
// No kernel computes a concatenation of many operands.
Graph join_many(const Graph& graph);

}  // namespace broach
