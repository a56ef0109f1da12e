// A program in which sizes depend on data runs in segments: the call that finds out a size comes between two of them, so that
// each is compiled, planned and run with sizes that are known when it begins.
#include <algorithm>
#include <map>
#include <set>

#include "passes/emission.h"
#include "passes/passes.h"
#include "support/error.h"

namespace broach {

namespace {

bool binds(const Node& n) { return n.op == Op::extern_call && !n.call().binds.empty(); }

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

class Splitter {
 public:
  Splitter(Module& module, const Stage& whole)
      : m_(module), whole_(whole), g_(*whole.graph), level_(g_.nodes().size()), cheap_(g_.nodes().size(), kNotCheap) {}

  std::vector<Stage> run() {
    find_levels();
    size_t last = 0;
    for (const Node& n : g_.nodes()) last = std::max(last, binds(n) ? level_[n.id] + 1 : level_[n.id]);
    pieces_.resize(last + 1);
    for (const Node& n : g_.nodes()) assign(n);
    for (size_t i = 0; i < g_.outputs().size(); ++i) assign_output(i);
    std::vector<Stage> out;
    for (size_t k = 0; k < pieces_.size(); ++k) {
      out.push_back(segment(k));
      for (const Node* call : pieces_[k].calls) out.push_back(call_behind(*call, k));
    }
    return out;
  }

 private:
  static constexpr int kNotCheap = -1;
  static constexpr int kMostRepeated = 4;  // operations computed anew in a later segment, where their operands are inputs
  using Key = std::pair<const Node*, uint32_t>;

  struct Piece {
    std::vector<const Node*> nodes;
    std::vector<std::pair<Value, size_t>> outputs;  // values with their slots
    std::vector<Value> inputs;
    std::set<Key> is_input;
    std::vector<const Node*> calls;  // made behind the segment, in this order; each binds symbols
    std::map<Key, size_t> own;       // slots of what is computed anew here, for calls
  };

  // ---- where each node is computed ----
  void find_levels() {
    std::map<SymbolId, size_t> known_at;  // the segment from which on a symbol is known
    size_t effects = 0;
    for (const Node& n : g_.nodes()) {
      size_t level = 0;
      for (const Value& v : n.inputs) level = std::max(level, available(*v.node));
      std::set<SymbolId> own;
      if (binds(n))
        for (const auto& b : n.call().binds) own.insert(b.symbol);
      for (SymbolId id : symbols_of(n)) {
        auto root = g_.symbols()->known_with(SymInt::symbol(id));
        if (!root || own.contains(*root)) continue;
        auto at = known_at.find(*root);
        check(at != known_at.end(), "segments: %", n.id, " needs ", SymInt::symbol(*root), " before it is known");
        level = std::max(level, at->second);
      }
      if (n.has_effect() && !binds(n)) level = effects = std::max(level, effects);
      for (SymbolId id : own) known_at[id] = level + 1;
      level_[n.id] = level;
      cheap_[n.id] = cost(n);
    }
  }

  size_t available(const Node& n) const { return level_[n.id] + (binds(n) ? 1 : 0); }

  // How many operations it takes to compute a node from inputs, if these are few and pointwise.
  int cost(const Node& n) const {
    OpKind k = kind_of(n.op);
    if (n.op == Op::input) return 0;
    bool pointwise = k == OpKind::unary || k == OpKind::binary || k == OpKind::compare || k == OpKind::ternary || k == OpKind::cast;
    if (k != OpKind::source && k != OpKind::view && !pointwise) return kNotCheap;
    int sum = pointwise ? 1 : 0;
    for (const Value& v : n.inputs) {
      int each = cheap_[v.node->id];
      if (each == kNotCheap) return kNotCheap;
      sum += each;
    }
    return sum <= kMostRepeated ? sum : kNotCheap;
  }

  // Computed wherever it is needed: views, which must not be stored with elements repeated, and what is cheap.
  bool on_demand(const Node& n) const { return n.op != Op::input && (is_view(n.op) || cheap_[n.id] != kNotCheap); }

  // ---- what goes from segment to segment ----
  // The slot of a value that is stored where it is computed; of a view or something cheap, that of segment `k`'s own copy.
  size_t slot_of(const Value& v, size_t k) {
    const Node& n = *v.node;
    if (n.op == Op::input) return whole_.takes[static_cast<size_t>(n.integer(Attr::index))];
    auto& slots = on_demand(n) ? pieces_[k].own : stored_;
    if (auto it = slots.find({&n, v.index}); it != slots.end()) return it->second;
    size_t slot = m_.new_slot(v.type(), binds(n) ? n.call().result_strides[v.index] : contiguous_strides(v.shape()));
    slots[{&n, v.index}] = slot;
    if (!binds(n)) pieces_[on_demand(n) ? k : level_[n.id]].outputs.emplace_back(v, slot);
    return slot;
  }

  // Segment `k` reads the value.
  void demand(const Value& v, size_t k) {
    const Node& n = *v.node;
    if (on_demand(n)) {
      for (const Value& in : n.inputs) demand(in, k);
      return;
    }
    if (n.op != Op::input && level_[n.id] == k && !binds(n)) return;
    if (!pieces_[k].is_input.insert({&n, v.index}).second) return;
    slot_of(v, k);
    pieces_[k].inputs.push_back(v);
  }

  void assign(const Node& n) {
    if (n.op == Op::input || on_demand(n)) return;
    size_t k = level_[n.id];
    for (const Value& v : n.inputs) {
      if (!binds(n) || on_demand(*v.node)) demand(v, k);
      if (binds(n)) slot_of(v, k);
    }
    if (binds(n)) pieces_[k].calls.push_back(&n);
    else pieces_[k].nodes.push_back(&n);
  }

  // What a call gives back is stored as the caller wants it, once; a second one is a copy.
  void assign_output(size_t i) {
    const Value& v = g_.outputs()[i];
    const Node& n = *v.node;
    const Shape& strides = g_.requests()[i].strides;
    size_t k = pieces_.size() - 1;
    bool ours = n.op != Op::input && !on_demand(n) && taken_.insert({&n, v.index}).second;
    if (ours && binds(n)) ours = n.call().result_strides[v.index] == strides;
    if (ours && (binds(n) || stored_.contains({&n, v.index})) && m_.slots[slot_of(v, k)].strides == strides) {
      std::replace(m_.outputs.begin(), m_.outputs.end(), whole_.gives[i], slot_of(v, k));
      return;
    }
    if (ours && !binds(n) && !stored_.contains({&n, v.index})) {
      stored_[{&n, v.index}] = whole_.gives[i];
      k = level_[n.id];
    } else {
      demand(v, k);
    }
    pieces_[k].outputs.emplace_back(v, whole_.gives[i]);
  }

  // ---- the stages' graphs ----
  void take(Emission& e, Stage& s, const Value& v, size_t k) {
    s.takes.push_back(slot_of(v, k));
    e.input(v, m_.slots[s.takes.back()].strides);
  }

  // With what it is computed of on demand.
  void emit(Emission& e, const Node& n) {
    for (const Value& v : n.inputs)
      if (!e.has(v)) emit(e, *v.node);
    e.emit(n);
  }

  void finish(Emission& e, Stage& s, const std::vector<std::pair<Value, size_t>>& given) {
    std::vector<Value> outputs;
    std::vector<OutputRequest> requests;
    for (auto& [v, slot] : given) {
      if (!e.has(v)) emit(e, *v.node);
      outputs.push_back(e.of(v));
      requests.push_back({m_.slots[slot].strides, -1});
      s.gives.push_back(slot);
    }
    m_.set_graph(s, e.b.finish(std::move(outputs), std::move(requests)));
  }

  Stage segment(size_t k) {
    Emission e(g_);
    Stage s;
    for (const Value& v : pieces_[k].inputs) take(e, s, v, k);
    for (const Node* n : pieces_[k].nodes) emit(e, *n);
    finish(e, s, pieces_[k].outputs);
    return s;
  }

  Stage call_behind(const Node& n, size_t k) {
    Emission e(g_);
    Stage s{Stage::Runs::for_sizes, nullptr, {}, {}};
    for (const Value& v : n.inputs)
      if (!e.has(v)) take(e, s, v, k);
    e.emit(n);
    std::vector<std::pair<Value, size_t>> given;
    for (uint32_t i = 0; i < n.results.size(); ++i)
      if (auto slot = stored_.find({&n, i}); slot != stored_.end()) given.push_back({{&n, i}, slot->second});
    finish(e, s, given);
    return s;
  }

  Module& m_;
  const Stage& whole_;
  const Graph& g_;
  std::vector<size_t> level_;  // by node: the segment that computes it, or behind which it is called
  std::vector<int> cheap_;     // by node: see cost()
  std::vector<Piece> pieces_;
  std::map<Key, size_t> stored_;
  std::set<Key> taken_;
};

}  // namespace

std::vector<Stage> split_data_sizes(Module& m, const Stage& stage, const PassContext&) {
  if (std::none_of(stage.graph->nodes().begin(), stage.graph->nodes().end(), binds)) return {};
  return Splitter(m, stage).run();
}

}  // namespace broach
