#include "passes/segments.h"

#include <algorithm>
#include <map>
#include <set>

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
  explicit Splitter(const Graph& graph) : g_(graph), level_(graph.nodes().size()), cheap_(graph.nodes().size(), kNotCheap) {}

  Segments run() {
    find_levels();
    for (const Value& v : g_.inputs()) out_.slots.push_back({v.type(), {}});
    size_t last = 0;
    for (const Node& n : g_.nodes()) last = std::max(last, binds(n) ? level_[n.id] + 1 : level_[n.id]);
    pieces_.resize(last + 1);
    for (const Node& n : g_.nodes()) assign(n);
    for (size_t i = 0; i < g_.outputs().size(); ++i) assign_output(g_.outputs()[i], g_.requests()[i]);
    for (size_t k = 0; k < pieces_.size(); ++k) out_.list.push_back(emit(k));
    return std::move(out_);
  }

 private:
  static constexpr int kNotCheap = -1;
  static constexpr int kMostRepeated = 4;  // operations computed anew in a later segment, where their operands are inputs
  using Key = std::pair<const Node*, uint32_t>;

  struct Piece {
    std::vector<const Node*> nodes;
    std::vector<std::pair<Value, size_t>> outputs;  // values with their slots
    std::vector<OutputRequest> requests;
    std::vector<Value> carried;
    std::set<Key> is_carried;
    std::vector<Segment::Call> calls;
    std::map<Key, size_t> own;  // slots of what is computed anew here, for calls
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
  size_t new_slot(const Value& v, Shape strides) {
    out_.slots.push_back({v.type(), std::move(strides)});
    return out_.slots.size() - 1;
  }

  // The slot of a value that is stored where it is computed; of a view or something cheap, that of segment `k`'s own copy.
  size_t slot_of(const Value& v, size_t k) {
    const Node& n = *v.node;
    if (n.op == Op::input) return static_cast<size_t>(n.integer(Attr::index));
    auto& slots = on_demand(n) ? pieces_[k].own : stored_;
    if (auto it = slots.find({&n, v.index}); it != slots.end()) return it->second;
    bool made_by_call = binds(n);
    size_t slot = new_slot(v, made_by_call ? n.call().result_strides[v.index] : contiguous_strides(v.shape()));
    slots[{&n, v.index}] = slot;
    if (!made_by_call) store(v, slot, on_demand(n) ? k : level_[n.id]);
    else call_of(n).results[v.index] = static_cast<int64_t>(slot);
    return slot;
  }

  void store(const Value& v, size_t slot, size_t k) {
    pieces_[k].outputs.emplace_back(v, slot);
    pieces_[k].requests.push_back({out_.slots[slot].strides, -1});
  }

  Segment::Call& call_of(const Node& n) { return pieces_[level_[n.id]].calls[call_index_.at(&n)]; }

  // Segment `k` reads the value.
  void demand(const Value& v, size_t k) {
    const Node& n = *v.node;
    if (n.op == Op::input) return;
    if (on_demand(n)) {
      for (const Value& in : n.inputs) demand(in, k);
      return;
    }
    if (level_[n.id] == k && !binds(n)) return;
    if (!pieces_[k].is_carried.insert({&n, v.index}).second) return;
    slot_of(v, k);
    pieces_[k].carried.push_back(v);
  }

  void assign(const Node& n) {
    if (n.op == Op::input || on_demand(n)) return;
    size_t k = level_[n.id];
    for (const Value& v : n.inputs) demand(v, k);
    if (!binds(n)) return pieces_[k].nodes.push_back(&n);
    Segment::Call call;
    call.call = n.get<std::shared_ptr<const ExternCall>>(Attr::call);
    call.results.assign(n.results.size(), -1);
    for (const Value& v : n.inputs) call.operands.push_back(slot_of(v, k));
    call_index_[&n] = pieces_[k].calls.size();
    pieces_[k].calls.push_back(std::move(call));
  }

  // What a call gives back is stored as the caller wants it, once; a second one is a copy.
  void assign_output(const Value& v, const OutputRequest& request) {
    const Node& n = *v.node;
    size_t last = pieces_.size() - 1;
    bool ours = n.op != Op::input && !on_demand(n) && taken_.insert({&n, v.index}).second;
    if (ours && binds(n)) ours = n.call().result_strides[v.index] == request.strides;
    if (ours && !binds(n) && !stored_.contains({&n, v.index})) {
      size_t slot = new_slot(v, request.strides);
      stored_[{&n, v.index}] = slot;
      store(v, slot, level_[n.id]);
      return out_.outputs.push_back(slot);
    }
    if (ours && out_.slots[slot_of(v, last)].strides == request.strides) return out_.outputs.push_back(slot_of(v, last));
    demand(v, last);
    size_t slot = new_slot(v, request.strides);
    store(v, slot, last);
    out_.outputs.push_back(slot);
  }

  // ---- the segments' graphs ----
  struct Emission {
    GraphBuilder b;
    std::map<Key, Value> now;
  };

  Value value(Emission& e, const Value& v) {
    auto it = e.now.find({v.node, v.index});
    if (it != e.now.end()) return it->second;
    const Node& n = *v.node;
    std::vector<Value> inputs;
    for (const Value& in : n.inputs) inputs.push_back(value(e, in));
    e.b.set_line_index(n.line);
    auto made = e.b.emit_all(n.op, std::move(inputs), n.attrs);
    for (uint32_t i = 0; i < made.size(); ++i) e.now[{&n, i}] = made[i];
    return made.at(v.index);
  }

  Segment emit(size_t k) {
    Piece& p = pieces_[k];
    Emission e{GraphBuilder(g_), {}};
    for (const Value& v : g_.inputs()) e.now[{v.node, 0}] = e.b.input(v.type(), g_.strides(v));
    Segment s;
    for (const Value& v : p.carried) {
      s.carried.push_back(slot_of(v, k));
      e.now[{v.node, v.index}] = e.b.input(v.type(), out_.slots[s.carried.back()].strides);
    }
    for (const Node* n : p.nodes) value(e, {n, 0});
    std::vector<Value> outputs;
    for (auto& [v, slot] : p.outputs) {
      outputs.push_back(value(e, v));
      s.outputs.push_back(slot);
    }
    s.calls = std::move(p.calls);
    s.graph = std::make_shared<const Graph>(e.b.finish(std::move(outputs), std::move(p.requests)));
    return s;
  }

  const Graph& g_;
  std::vector<size_t> level_;  // by node: the segment that computes it, or behind which it is called
  std::vector<int> cheap_;     // by node: see cost()
  std::vector<Piece> pieces_;
  std::map<Key, size_t> stored_;
  std::map<const Node*, size_t> call_index_;
  std::set<Key> taken_;
  Segments out_;
};

}  // namespace

void split_data_sizes(Module& m, const PassContext&) {
  if (std::any_of(m.graph->nodes().begin(), m.graph->nodes().end(), binds))
    m.segments = std::make_shared<const Segments>(Splitter(*m.graph).run());
}

}  // namespace broach
