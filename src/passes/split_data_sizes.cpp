// A program in which sizes depend on data runs in segments: the call that finds out a size comes between two of them, so that
// each is compiled, planned and run with sizes that are known when it begins.
#include <algorithm>
#include <map>
#include <set>

#include "passes/passes.h"
#include "passes/segments.h"
#include "support/error.h"

namespace broach {

namespace {

void collect(const Shape& s, std::vector<SymbolId>& out) {
  for (const SymInt& e : s) e.collect_symbols(out);
}

// The symbols that a node's computation or its results' types mention.
std::vector<SymbolId> symbols_of(const Node& n) {
  std::vector<SymbolId> out;
  for (const Type& t : n.results) collect(t.shape, out);
  for (const auto& [name, value] : n.attrs) {
    if (auto e = std::get_if<SymInt>(&value)) e->collect_symbols(out);
    if (auto s = std::get_if<Shape>(&value)) collect(*s, out);
  }
  if (n.op != Op::extern_call) return out;
  for (const Shape& s : n.call().result_strides) collect(s, out);
  for (const ExternArg& a : n.call().args) {
    if (auto e = std::get_if<SymInt>(&a.value)) e->collect_symbols(out);
    if (auto s = std::get_if<Shape>(&a.value)) collect(*s, out);
  }
  return out;
}

// The first segment in which the symbols that a node mentions are known, and its operands.
std::vector<size_t> levels_of(const Graph& g) {
  std::vector<size_t> levels(g.nodes().size());
  std::map<SymbolId, size_t> known_at;  // the segment from which on a symbol is known
  size_t effects = 0;
  for (const Node& n : g.nodes()) {
    size_t level = 0;
    for (const Value& v : n.inputs) level = std::max(level, levels[v.node->id] + (finds_sizes(*v.node) ? 1 : 0));
    std::set<SymbolId> own;
    if (finds_sizes(n))
      for (const auto& b : n.call().binds) own.insert(b.symbol);
    for (SymbolId id : symbols_of(n)) {
      auto root = g.symbols()->known_with(SymInt::symbol(id));
      if (!root || own.contains(*root)) continue;
      auto at = known_at.find(*root);
      check(at != known_at.end(), "segments: %", n.id, " needs ", SymInt::symbol(*root), " before it is known");
      level = std::max(level, at->second);
    }
    if (n.has_effect() && !finds_sizes(n)) level = effects = std::max(level, effects);
    for (SymbolId id : own) known_at[id] = level + 1;
    levels[n.id] = level;
  }
  return levels;
}

}  // namespace

std::vector<Stage> split_data_sizes(Module& m, const Stage& stage, const PassContext&) {
  if (std::none_of(stage.graph->nodes().begin(), stage.graph->nodes().end(), finds_sizes)) return {};
  return segments(m, stage, levels_of(*stage.graph));
}

}  // namespace broach
