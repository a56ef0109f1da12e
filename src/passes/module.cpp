#include "passes/module.h"

#include <algorithm>

#include "ir/parse.h"
#include "support/error.h"

namespace broach {

namespace {

constexpr const char* kRuns[] = {"once", "in_call", "for_sizes", "for_gradients"};

std::string list_text(const std::vector<size_t>& slots) {
  std::string out;
  for (size_t s : slots) out += cat(out.empty() ? "" : ", ", s);
  return cat("[", out, "]");
}

std::string indented(const std::string& lines) {
  std::string out;
  for (size_t at = 0, end; at < lines.size(); at = end + 1) {
    end = lines.find('\n', at);
    out += "  " + lines.substr(at, end + 1 - at);
  }
  return out;
}

class ModuleParser : TextParser {
 public:
  explicit ModuleParser(std::string_view text) : TextParser(text, std::make_shared<Symbols>()) {}

  Module parse() {
    bool ends = false;
    for_each_line([&] {
      if (c_.accept("inputs")) m_.slots.resize(m_.inputs = slot());
      else if (c_.accept("stage")) stage();
      else if (ends = c_.accept("outputs"); ends) m_.outputs = slots();
      else c_.fail_at(c_.at, "expected 'inputs', 'stage' or 'outputs'");
    });
    if (!ends) fail_at_end("the module ends without outputs");
    return std::move(m_);
  }

 private:
  static constexpr size_t kMostSlots = 1 << 20;
  size_t slot() {
    const size_t start = (c_.skip(), c_.at);
    const auto slot = static_cast<size_t>(c_.digits());
    if (slot >= kMostSlots) c_.fail_at(start, "expected fewer than ", kMostSlots, " slots");
    return slot;
  }
  std::vector<size_t> slots() {
    return c_.list("[", "]", [&] { return slot(); });
  }

  void stage() {
    const size_t start = (c_.skip(), c_.at);
    auto runs = std::find(std::begin(kRuns), std::end(kRuns), c_.word());
    if (runs == std::end(kRuns)) c_.fail_at(start, "expected once, in_call, for_sizes or for_gradients");
    Stage s{static_cast<Stage::Runs>(runs - kRuns), nullptr, slots(), {}};
    c_.expect("->");
    s.gives = slots();
    for (const auto* list : {&s.takes, &s.gives})
      for (size_t slot : *list) m_.slots.resize(std::max(m_.slots.size(), slot + 1));
    Graph graph = c_.placed(start, [&] { return Graph::parse(block("  ").first); });
    for (size_t i = 0; i < std::min(s.takes.size(), graph.inputs().size()); ++i)
      if (Slot& given = m_.slots[s.takes[i]]; s.takes[i] < m_.inputs) given = {graph.inputs()[i].type(), graph.strides(graph.inputs()[i])};
    if (s.gives.size() != graph.outputs().size()) c_.fail_at(start, "the graph gives ", graph.outputs().size(), " values");
    m_.set_graph(s, std::move(graph));
    m_.stages.push_back(std::move(s));
  }

  Module m_;
};

// `given`, by slot: whether something is in it by now.
void verify_stage(const Stage& s, const Module& m, std::vector<bool>& given) {
  const Graph& g = *s.graph;
  g.verify();
  check(s.takes.size() == g.inputs().size(), "takes ", s.takes.size(), " values, its graph has ", g.inputs().size(), " inputs");
  check(s.gives.size() == g.outputs().size(), "gives ", s.gives.size(), " values, its graph ", g.outputs().size());
  for (size_t i = 0; i < s.takes.size(); ++i) {
    const size_t slot = s.takes[i];
    check(slot < given.size() && given[slot], "takes slot ", slot, ", which nothing was given to");
    const Value& v = g.inputs()[i];
    check(v.type() == m.slots[slot].type, "takes slot ", slot, " as ", v.type().str(), ", not ", m.slots[slot].type.str());
    // How what is saved for gradients lies is decided when these are compiled.
    check(s.runs == Stage::Runs::for_gradients || g.strides(v) == m.slots[slot].strides, "takes slot ", slot, " with other strides");
  }
  for (size_t i = 0; i < s.gives.size(); ++i) {
    const size_t slot = s.gives[i];
    check(slot < given.size() && !given[slot], "gives slot ", slot, ", which something was given to");
    check(g.outputs()[i].type() == m.slots[slot].type, "gives slot ", slot, " another type than ", m.slots[slot].type.str());
    given[slot] = true;
  }
  auto finds_sizes = [](const Node& n) { return n.op == Op::extern_call && !n.call().binds.empty(); };
  if (s.runs == Stage::Runs::for_sizes) {
    const auto& nodes = g.nodes();
    check(nodes.size() == g.inputs().size() + 1 && finds_sizes(nodes.back()), "is no call that finds out sizes");
  }
}

}  // namespace

Module::Module(std::shared_ptr<const Graph> graph) : inputs(graph->inputs().size()), stages{{Stage::Runs::in_call, graph, {}, {}}} {
  for (const Value& v : graph->inputs()) stages[0].takes.push_back(new_slot(v.type(), graph->strides(v)));
  for (size_t i = 0; i < graph->outputs().size(); ++i)
    outputs.push_back(new_slot(graph->outputs()[i].type(), graph->requests()[i].strides));
  stages[0].gives = outputs;
}

size_t Module::new_slot(Type type, Shape strides) {
  slots.push_back({std::move(type), std::move(strides)});
  return slots.size() - 1;
}

void Module::set_graph(Stage& stage, Graph graph) {
  for (size_t i = 0; i < stage.gives.size(); ++i) slots[stage.gives[i]] = {graph.outputs()[i].type(), graph.requests()[i].strides};
  stage.graph = std::make_shared<const Graph>(std::move(graph));
}

std::string Module::str() const {
  if (stages.size() == 1) return stages[0].graph->str();
  std::string out = cat("inputs ", inputs, "\n");
  for (const Stage& s : stages)
    out += cat("stage ", kRuns[static_cast<size_t>(s.runs)], " ", list_text(s.takes), " -> ", list_text(s.gives), "\n",
               indented(s.graph->str()));
  return cat(out, "outputs ", list_text(outputs), "\n");
}

Module Module::parse(std::string_view text) {
  return text.starts_with("inputs ") ? ModuleParser(text).parse() : Module(std::make_shared<const Graph>(Graph::parse(text)));
}

void Module::verify() const {
  std::vector<bool> given(slots.size());
  std::fill_n(given.begin(), inputs, true);
  for (size_t i = 0; i < stages.size(); ++i) verify_part(cat("stage ", i), [&] { verify_stage(stages[i], *this, given); });
  for (size_t slot : outputs) check(slot < given.size() && given[slot], "nothing was given to the output in slot ", slot);
}

}  // namespace broach
