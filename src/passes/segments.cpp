#include "passes/segments.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "passes/emission.h"

namespace broach {

namespace {

class Splitter {
 public:
  Splitter(Module& module, const Stage& whole, std::vector<size_t> level)
      : m_(module), whole_(whole), g_(*whole.graph), level_(std::move(level)), on_demand_(computed_anew(g_)) {}

  std::vector<Stage> run(size_t least) {
    size_t last = least - 1;
    for (const Node& n : g_.nodes()) last = std::max(last, available(n));
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
  using Key = std::pair<const Node*, uint32_t>;

  struct Given {
    Value value;
    size_t slot;
    int into = -1;      // input of the whole that it is written into
    bool free = false;  // it may lie as is found best
  };

  struct Piece {
    std::vector<const Node*> nodes;
    std::vector<Given> outputs;
    std::vector<Value> inputs;
    std::set<Key> demanded;
    std::vector<const Node*> calls;  // made behind the segment, in this order; each binds symbols
    std::map<Key, size_t> own;       // slots of what is computed anew here, for calls
  };

  // ---- where each node is computed ----
  size_t available(const Node& n) const { return level_[n.id] + (finds_sizes(n) ? 1 : 0); }

  bool on_demand(const Node& n) const { return on_demand_[n.id]; }

  // ---- what goes from segment to segment ----
  // The slot of a value that is stored where it is computed; of a view or something cheap, that of segment `k`'s own copy.
  size_t slot_of(const Value& v, size_t k) {
    const Node& n = *v.node;
    if (n.op == Op::input) return whole_.takes[static_cast<size_t>(n.integer(Attr::index))];
    auto& slots = on_demand(n) ? pieces_[k].own : stored_;
    if (auto it = slots.find({&n, v.index}); it != slots.end()) return it->second;
    size_t slot = m_.new_slot(v.type(), finds_sizes(n) ? n.call().result_strides[v.index] : contiguous_strides(v.shape()));
    slots[{&n, v.index}] = slot;
    if (!finds_sizes(n)) pieces_[on_demand(n) ? k : level_[n.id]].outputs.push_back({v, slot});
    return slot;
  }

  // Segment `k` reads the value.
  void demand(const Value& v, size_t k) {
    const Node& n = *v.node;
    if (!pieces_[k].demanded.insert({&n, v.index}).second) return;
    if (on_demand(n)) {
      for (const Value& in : n.inputs) demand(in, k);
      return;
    }
    if (n.op != Op::input && level_[n.id] == k && !finds_sizes(n)) return;
    slot_of(v, k);
    pieces_[k].inputs.push_back(v);
  }

  void assign(const Node& n) {
    if (n.op == Op::input || on_demand(n)) return;
    size_t k = level_[n.id];
    for (const Value& v : n.inputs) {
      if (!finds_sizes(n) || on_demand(*v.node)) demand(v, k);
      if (finds_sizes(n)) slot_of(v, k);
    }
    if (finds_sizes(n)) pieces_[k].calls.push_back(&n);
    else pieces_[k].nodes.push_back(&n);
  }

  // Whoever takes an output finds it in a slot that others take.
  void give_as(size_t output, size_t slot) {
    std::ranges::replace(m_.outputs, whole_.gives[output], slot);
    for (Stage& s : m_.stages) std::ranges::replace(s.takes, whole_.gives[output], slot);
  }

  // What a call gives back is stored as the caller wants it, once; a second one is a copy.
  void assign_output(size_t i) {
    const Value& v = g_.outputs()[i];
    const Node& n = *v.node;
    const auto& [strides, into, free] = g_.requests()[i];
    if (into >= 0) {
      const size_t last = pieces_.size() - 1;
      demand(v, last);
      demand(g_.inputs()[static_cast<size_t>(into)], last);
      return pieces_[last].outputs.push_back({v, whole_.gives[i], into});
    }
    size_t k = available(n);
    bool ours = n.op != Op::input && !on_demand(n) && taken_.insert({&n, v.index}).second;
    if (ours && finds_sizes(n)) ours = free || n.call().result_strides[v.index] == strides;
    const bool is_stored = finds_sizes(n) || stored_.contains({&n, v.index});
    if (ours && is_stored && (free || m_.slots[slot_of(v, k)].strides == strides)) return give_as(i, slot_of(v, k));
    if (ours && !is_stored && !free) {
      stored_[{&n, v.index}] = whole_.gives[i];
      k = level_[n.id];
    } else {
      demand(v, k);
    }
    pieces_[k].outputs.push_back({v, whole_.gives[i], -1, free});
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

  void finish(Emission& e, Stage& s, const std::vector<Given>& given) {
    std::vector<Value> outputs;
    std::vector<OutputRequest> requests;
    for (const auto& [v, slot, into, free] : given) {
      if (!e.has(v)) emit(e, *v.node);
      outputs.push_back(e.of(v));
      if (into < 0) requests.push_back({m_.slots[slot].strides, -1, free});
      else
        requests.push_back({{}, static_cast<int>(std::ranges::find(s.takes, whole_.takes[static_cast<size_t>(into)]) - s.takes.begin())});
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
    std::vector<Given> given;
    for (uint32_t i = 0; i < n.results.size(); ++i)
      if (auto slot = stored_.find({&n, i}); slot != stored_.end()) given.push_back({{&n, i}, slot->second});
    finish(e, s, given);
    return s;
  }

  Module& m_;
  const Stage& whole_;
  const Graph& g_;
  std::vector<size_t> level_;  // by node: the segment that computes it, or behind which it is called
  std::vector<bool> on_demand_;
  std::vector<Piece> pieces_;
  std::map<Key, size_t> stored_;
  std::set<Key> taken_;
};

}  // namespace

bool finds_sizes(const Node& n) { return n.op == Op::extern_call && !n.call().binds.empty(); }

std::vector<bool> computed_anew(const Graph& g) {
  constexpr int kNotCheap = -1, kMost = 4;
  std::vector<int> cost(g.nodes().size());  // operations that it takes to compute a node from inputs, if these are few and pointwise
  std::vector<bool> out(g.nodes().size());
  for (const Node& n : g.nodes()) {
    if (n.op == Op::input) continue;
    const OpKind k = kind_of(n.op);
    const bool pointwise = k == OpKind::unary || k == OpKind::binary || k == OpKind::compare || k == OpKind::ternary || k == OpKind::cast;
    int sum = pointwise ? 1 : 0;
    bool is_cheap = pointwise || k == OpKind::source || k == OpKind::view;
    for (const Value& v : n.inputs) {
      is_cheap = is_cheap && cost[v.node->id] != kNotCheap;
      sum += cost[v.node->id];
    }
    cost[n.id] = is_cheap && sum <= kMost ? sum : kNotCheap;
    out[n.id] = is_view(n.op) || cost[n.id] != kNotCheap;  // a view must not be stored with elements repeated
  }
  return out;
}

std::vector<Stage> segments(Module& m, const Stage& whole, std::vector<size_t> level, size_t least) {
  return Splitter(m, whole, std::move(level)).run(least);
}

}  // namespace broach
