#include <algorithm>
#include <chrono>

#include "passes/passes.h"
#include "support/bug.h"

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

void check_pass_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::any_of(std::begin(kPasses), std::end(kPasses), [&](const Pass& p) { return p.name == name; })) continue;
    std::string known;
    for (const Pass& p : kPasses) known += cat(known.empty() ? "" : ", ", p.name);
    fail("'", name, "' is no graph pass that can be left out; those are ", known);
  }
}

Graph run_passes(const Graph& graph, const std::vector<std::string>& disabled, std::vector<std::pair<std::string, double>>* seconds,
                 const std::function<void(const char*, const Graph&)>& observe) {
  check_pass_names(disabled);
  Graph current = rewrite(graph, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; });
  if (verifies()) current.verify();
  for (const Pass& p : kPasses) {
    if (std::find(disabled.begin(), disabled.end(), p.name) != disabled.end()) continue;
    auto start = std::chrono::steady_clock::now();
    current = p.run(current);
    if (verifies()) current.verify();
    if (seconds) seconds->push_back({p.name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
    if (observe) observe(p.name, current);
  }
  return current;
}

}  // namespace broach
