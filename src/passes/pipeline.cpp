#include <algorithm>
#include <chrono>

#include "passes/passes.h"
#include "support/bug.h"

namespace broach {

namespace {

using Run = std::function<void(Module&, const PassContext&)>;

Run on_module(Rewrite* pass) {
  return [pass](Module& m, const PassContext& c) {
    for (Stage& s : m.stages)
      if (s.is_compiled()) m.set_graph(s, pass(*s.graph, c));
  };
}
Run on_module(Divide* pass) {
  return [pass](Module& m, const PassContext& c) {
    std::vector<Stage> stages;
    for (const Stage& s : m.stages) {
      std::vector<Stage> parts;
      if (s.runs == Stage::Runs::in_call) parts = pass(m, s, c);
      if (parts.empty()) parts.push_back(s);
      stages.insert(stages.end(), parts.begin(), parts.end());
    }
    m.stages = std::move(stages);
  };
}

const Pass kPasses[] = {
#define PASS(name, function, as, needed, does) {name, does, on_module(function), needed},
#include "passes/passes.def"
#undef PASS
};

}  // namespace

std::span<const Pass> passes(std::string_view first) {
  const std::span<const Pass> all(kPasses);
  return first.empty() ? all : all.subspan(static_cast<size_t>(std::ranges::find(all, first, &Pass::name) - all.begin()));
}

void check_pass_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::ranges::any_of(kPasses, [&](const Pass& p) { return p.name == name && !p.is_needed; })) continue;
    std::string known;
    for (const Pass& p : kPasses)
      if (!p.is_needed) known += cat(known.empty() ? "" : ", ", p.name);
    fail("'", name, "' is no graph pass that can be left out; those are ", known);
  }
}

void run_passes(std::span<const Pass> passes, Module& module, const PassContext& context, const std::vector<std::string>& disabled,
                std::vector<std::pair<std::string, double>>* seconds, const std::function<void(const char*, const Module&)>& observe) {
  check_pass_names(disabled);
  for (const Pass& p : passes) {
    if (std::find(disabled.begin(), disabled.end(), p.name) != disabled.end()) continue;
    auto start = std::chrono::steady_clock::now();
    p.run(module, context);
    if (verifies()) module.verify();
    if (seconds) seconds->push_back({p.name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
    if (observe) observe(p.name, module);
  }
}

}  // namespace broach
