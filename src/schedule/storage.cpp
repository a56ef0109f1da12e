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
    if (d_.options.turned_points > 0) store_turned();
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
      if (n.op == Op::dot && has_scattered_rows(n.inputs[0], static_cast<size_t>(n.integer(Attr::batch))))
        must_store_[n.inputs[0].node->id] = true;
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

  // Whether so few of a matrix's rows follow one another at one distance that a library would compute many small products, as of windows of
  // an image that are read where they lie. Behind as many dimensions as `batch` says.
  bool has_scattered_rows(const Value& v, size_t batch) const {
    constexpr int64_t kMany = 64;
    const auto w = forward_window(v);
    const Shape& sizes = v.shape();
    if (!w || sizes.size() < batch + 3) return false;
    SymInt rows = sizes[sizes.size() - 2], distance = w->strides[sizes.size() - 2];
    for (size_t d = sizes.size() - 2; d-- > batch;) {
      if (sizes[d] == SymInt(1)) continue;
      if (rows == SymInt(1)) distance = w->strides[d];
      else if (!(w->strides[d] == distance * rows)) return d_.graph.symbols()->hint(rows) < kMany;
      rows = rows * sizes[d];
    }
    return false;
  }

  // What lies along another axis than the rows that are reduced of it.
  void store_turned() {
    std::vector<bool> is_of_rows(d_.graph.nodes().size());  // reduced along its last axis, or what that is computed of, pointwise
    for (auto n = d_.graph.nodes().rbegin(); n != d_.graph.nodes().rend(); ++n) {
      const int64_t last = static_cast<int64_t>(n->inputs.empty() ? 0 : n->inputs[0].rank()) - 1;
      const bool reduces = is_reduce(n->op) && std::ranges::find(n->ints(Attr::dims), last) != n->ints(Attr::dims).end();
      if (!reduces && !(is_elementwise(n->op) && is_of_rows[n->id])) continue;
      for (const Value& v : n->inputs) is_of_rows[v.node->id] = true;
      if (reduces || d_.graph.symbols()->hint(n->results[0].numel()) < d_.options.turned_points) continue;
      for (const Value& v : n->inputs) {
        const uint32_t stored = n->op == Op::cast ? v.node->id : n->id;  // before it takes more bytes
        if (is_turned(v)) must_store_[stored] = d_.must_split[stored] = true;
      }
    }
  }

  // Whether elements side by side lie apart in memory, and those side by side along another axis of many do not.
  bool is_turned(const Value& v) const {
    constexpr int64_t kMany = 32;
    if (!is_window(v.node->op) || v.rank() < 2) return false;
    const auto w = window(v);
    auto is_many = [&](const SymInt& size) { return d_.graph.symbols()->hint(size) >= kMany; };
    if (!w || w->strides.back() == SymInt(0) || w->strides.back() == SymInt(1) || !is_many(v.shape().back())) return false;
    for (size_t d = 0; d + 1 < v.shape().size(); ++d)
      if (w->strides[d] == SymInt(1) && is_many(v.shape()[d])) return true;
    return false;
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
