#include <algorithm>
#include <chrono>

#include "passes/passes.h"

namespace broach {

namespace {

constexpr Pass kPasses[] = {
    {"simplify", "folds constants and drops operations without effect", simplify_graph},
    {"match_activations", "recognises gelu and silu written out by hand", match_activations},
    {"free_contractions", "moves reshapes off matrix products", free_contractions},
    {"split_reductions", "cuts large reductions into parts for several threads", split_reductions},
    {"simplify_again", "cleans up after the matches", simplify_graph},
    {"join_many", "leaves concatenations of many operands to the host's library", join_many},
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

Graph run_passes(const Graph& graph, const std::vector<std::string>& disabled, std::vector<std::pair<std::string, double>>* seconds,
                 const std::function<void(const char*, const Graph&)>& observe) {
  Graph current = rewrite(graph, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; });
  for (const Pass& p : kPasses) {
    if (std::find(disabled.begin(), disabled.end(), p.name) != disabled.end()) continue;
    auto start = std::chrono::steady_clock::now();
    current = p.run(current);
#ifndef NDEBUG
    current.verify();
#endif
    if (seconds) seconds->push_back({p.name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
    if (observe) observe(p.name, current);
  }
  return current;
}

}  // namespace broach
