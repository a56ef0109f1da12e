#include <algorithm>
#include <chrono>

#include "passes/freeze.h"
#include "passes/passes.h"
#include "support/bug.h"

namespace broach {

namespace {

std::function<void(Module&, const PassContext&)> of_graph(Graph (*pass)(const Graph&)) {
  return [pass](Module& m, const PassContext&) { m.graph = std::make_shared<const Graph>(pass(*m.graph)); };
}

void cut_reductions(Module& m, const PassContext& c) { m.graph = std::make_shared<const Graph>(split_reductions(*m.graph, c.reductions)); }

Graph drop_unused(const Graph& graph) {
  return rewrite(graph, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; });
}

void fold_constant_scales(Module& m, const PassContext& c) {
  if (c.freeze && !c.strict) m.graph = std::make_shared<const Graph>(fold_scales(*m.graph, c.constant));
}

void freeze(Module& m, const PassContext& c) {
  if (!c.freeze) return;
  Frozen frozen = split_constants(*m.graph, c.constant);
  if (!frozen.prologue) return;
  m.graph = std::move(frozen.main);
  m.prologue = std::move(frozen.prologue);
}

void split_data_sizes(Module& m, const PassContext&) {
  if (has_data_sizes(*m.graph)) m.segments = std::make_shared<const Segments>(split_at_calls(*m.graph, m.requests));
}

const Pass kPasses[] = {
    {"drop_unused", "drops what no output needs", of_graph(drop_unused), true},
    {"simplify", "folds constants and drops operations without effect", of_graph(simplify_graph)},
    {"match_activations", "recognises gelu and silu written out by hand", of_graph(match_activations)},
    {"free_contractions", "moves reshapes off matrix products", of_graph(free_contractions)},
    {"split_reductions", "cuts large reductions into parts for several threads", cut_reductions},
    {"simplify_again", "cleans up after the matches", of_graph(simplify_graph)},
    {"join_many", "leaves concatenations of many operands to the host's library", of_graph(join_many)},
    {"fold_scales", "folds what scales a convolution's channels into its weight", fold_constant_scales},
    {"freeze", "computes what depends on constant inputs alone once", freeze},
    {"split_data_sizes", "cuts the program where a size is found out", split_data_sizes, true},
};

}  // namespace

void Module::verify() const {
  graph->verify();
  if (prologue) prologue->verify();
  if (segments)
    for (const Segment& s : segments->list) s.graph->verify();
}

std::string Module::str() const {
  std::string text = prologue ? cat("# once\n", prologue->str(), "# in every call\n") : "";
  if (!segments) return text + graph->str();
  for (size_t i = 0; i < segments->list.size(); ++i) text += cat("# segment ", i, "\n", segments->list[i].graph->str());
  return text;
}

std::span<const Pass> passes() { return kPasses; }

void check_pass_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::ranges::any_of(kPasses, [&](const Pass& p) { return p.name == name && !p.is_needed; })) continue;
    std::string known;
    for (const Pass& p : kPasses)
      if (!p.is_needed) known += cat(known.empty() ? "" : ", ", p.name);
    fail("'", name, "' is no graph pass that can be left out; those are ", known);
  }
}

void run_passes(Module& module, const PassContext& context, const std::vector<std::string>& disabled,
                std::vector<std::pair<std::string, double>>* seconds, const std::function<void(const char*, const Module&)>& observe) {
  check_pass_names(disabled);
  for (const Pass& p : kPasses) {
    if (std::find(disabled.begin(), disabled.end(), p.name) != disabled.end()) continue;
    auto start = std::chrono::steady_clock::now();
    p.run(module, context);
    if (verifies()) module.verify();
    if (seconds) seconds->push_back({p.name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
    if (observe) observe(p.name, module);
  }
}

}  // namespace broach
