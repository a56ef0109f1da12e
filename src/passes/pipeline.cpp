#include <algorithm>
#include <chrono>

#include "passes/passes.h"
#include "support/bug.h"

namespace broach {

namespace {

std::function<void(Module&, const PassContext&)> on_module(Divide* pass) { return pass; }
std::function<void(Module&, const PassContext&)> on_module(Whole* pass) {
  return [pass](Module& m, const PassContext& c) { m.graph = std::make_shared<const Graph>(pass(*m.graph, c)); };
}

constexpr Pass::Part part_of(std::string_view on) { return on == "Stage" ? Pass::Part::stage : Pass::Part::program; }

const Pass kPasses[] = {
#define PASS(name, function, on, needed, does) {name, does, on_module(function), needed, part_of(#on)},
#include "passes/passes.def"
#undef PASS
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

void run_passes(Module& module, Pass::Part part, const PassContext& context, const std::vector<std::string>& disabled,
                std::vector<std::pair<std::string, double>>* seconds, const std::function<void(const char*, const Module&)>& observe) {
  check_pass_names(disabled);
  for (const Pass& p : kPasses) {
    if (p.part != part || std::find(disabled.begin(), disabled.end(), p.name) != disabled.end()) continue;
    auto start = std::chrono::steady_clock::now();
    p.run(module, context);
    if (verifies()) module.verify();
    if (seconds) seconds->push_back({p.name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
    if (observe) observe(p.name, module);
  }
}

}  // namespace broach
