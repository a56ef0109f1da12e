// Who must be in memory: outputs, and what is read by something that is no kernel.
#include <algorithm>

#include "schedule/decisions.h"

namespace broach {

namespace {

class Storing {
 public:
  explicit Storing(Decisions& d) : d_(d), must_store_(d.storage.must_store) {}

  void run() {
    const size_t nodes = d_.graph.nodes().size();
    must_store_.assign(nodes, false);
    d_.must_split.assign(nodes, false);
    for (const auto& [value, output] : d_.outputs) {
      must_store_[value.first] = true;
      if (d_.graph.requests()[static_cast<size_t>(output)].into_input >= 0) d_.must_split[value.first] = true;
    }
    for (const Node& n : d_.graph.nodes()) store_operands(n);
    for (const auto& [id, c] : d_.epilogues.contractions) must_store_[c.last->id] = true;
    d_.storage.absorbed = d_.epilogues.absorbed;
    find_windows();
  }

 private:
  void store_operands(const Node& n) {
    const OpKind k = kind_of(n.op);
    if (k == OpKind::external || k == OpKind::routine) {
      // What elements are written into is often one number everywhere, which the routine may as well put there itself.
      for (size_t i = 0; i < n.inputs.size(); ++i) store_window(n.inputs[i], k == OpKind::routine && checks_index(n.op) && i == 0);
    } else if (k == OpKind::heavy) {
      const Contraction& c = d_.epilogues.contractions.at(n.id);
      for (const Value& v : n.inputs) store_for_contraction(v);
      if (c.bias) store_window(c.bias);
      for (auto& [op, v] : c.epilogue)
        if (v) store_window(v);
    } else if (k == OpKind::heavy_view) {
      store(n.inputs[0], window(n.inputs[0]).has_value());
    }
  }

  // Where a value would lie in what it is a view of, if it needs no copy.
  std::optional<MemoryWindow> window(const Value& v) const {
    const Node& n = *v.node;
    if (!is_window(n.op) || must_store_[n.id]) return MemoryWindow{&n, 0, d_.strides[n.id][v.index]};
    auto inner = window(n.inputs[0]);
    return inner ? window_of_view(n, *inner) : std::nullopt;
  }

  // The same for what is no kernel: libraries know no strides below zero, as what was flipped has.
  std::optional<MemoryWindow> forward_window(const Value& v) const {
    auto w = window(v);
    if (w && !std::ranges::all_of(w->strides, [](const SymInt& s) { return proven_non_negative(s, {}); })) return std::nullopt;
    return w;
  }

  void store_window(const Value& v, bool may_repeat = false) { store(v, forward_window(v).has_value(), may_repeat); }

  // What it is a window of, or itself.
  void store(const Value& v, bool is_window_read, bool may_repeat = false) {
    const Node* n = v.node;
    if (is_window_read)
      while (is_window(n->op) && !must_store_[n->id]) n = n->inputs[0].node;
    if (!may_repeat && kind_of(n->op) == OpKind::source && n->op != Op::input) n = v.node;  // a constant: fill the whole value
    if (n->op != Op::input) must_store_[n->id] = true;
  }

  // One dimension with stride 1 and none that repeats.
  void store_for_contraction(const Value& v) {
    auto w = forward_window(v);
    auto has = [&](int64_t stride) { return std::find(w->strides.begin(), w->strides.end(), SymInt(stride)) != w->strides.end(); };
    if (w && (w->strides.empty() || has(1)) && !has(0)) store_window(v);
    else must_store_[v.node->id] = true;
  }

  void find_windows() {
    auto& windows = d_.storage.windows;
    windows.resize(d_.graph.nodes().size());
    for (const Node& n : d_.graph.nodes()) {
      if (must_store_[n.id] || !is_fusible(n, d_.storage)) {
        windows[n.id] = MemoryWindow{&n, 0, d_.strides[n.id][0]};
      } else if (is_window(n.op)) {
        const Value& x = n.inputs[0];
        auto inner = windows[x.node->id];
        if (inner && inner->base == x.node) inner->strides = d_.strides[x.node->id][x.index];
        if (inner) windows[n.id] = window_of_view(n, *inner);
      }
    }
  }

  Decisions& d_;
  std::vector<bool>& must_store_;
};

}  // namespace

void decide_storage(Decisions& d) { Storing(d).run(); }

}  // namespace broach
