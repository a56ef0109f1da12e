#include "passes/layouts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ir/strides.h"
#include "passes/epilogues.h"
#include "passes/passes.h"
#include "support/error.h"

namespace broach {

namespace {

bool is_joined(Op op) { return op == Op::cat || op == Op::pad; }

class Chooser {
 public:
  Chooser(const Graph& graph, int64_t row_bytes)
      : graph_(graph),
        epilogues_(epilogues_of(graph)),
        outputs_(stored_outputs(graph)),
        placements_(graph.placements()),
        row_bytes_(row_bytes),
        has_whole_rows_(graph.nodes().size()) {}

  Graph run() {
    share_outputs();
    if (row_bytes_ > 0) find_whole_rows();
    for (const Node& n : graph_.nodes()) {
      std::vector<Shape> strides;
      for (size_t i = 0; i < n.results.size(); ++i) strides.push_back(requested(n, i));
      placements_[n.id].strides = std::move(strides);
    }
    std::vector<OutputRequest> requests = graph_.requests();
    for (size_t i = 0; i < requests.size(); ++i) {
      const Value& v = graph_.outputs()[i];
      const bool is_regrouped = shared_.contains(v.node->id);
      if (std::exchange(requests[i].free, false) && (placements_[v.node->id].in < 0 || is_regrouped))
        requests[i].strides = placements_[v.node->id].strides[v.index];
    }
    return graph_.with(std::move(placements_), std::move(requests));
  }

 private:
  // An output that is a product with its dimensions regrouped: the product is written where the output lies.
  void share_outputs() {
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const Node& n = *graph_.outputs()[i].node;
      auto own = outputs_.find({n.id, 0});
      const bool is_empty = std::ranges::find(n.results[0].shape, SymInt(0)) != n.results[0].shape.end();
      if (n.op != Op::reshape || is_empty || own == outputs_.end() || graph_.requests()[i].into_input >= 0) continue;
      const Node& base = *n.inputs[0].node;
      auto product = epilogues_.stored_as.find(base.id);
      if (product == epilogues_.stored_as.end() || product->second->op != Op::dot || outputs_.contains({base.id, 0})) continue;
      if (!(graph_.requests()[i].strides == contiguous_strides(n.results[0].shape))) continue;
      outputs_.erase(own);
      outputs_[{base.id, 0}] = static_cast<int>(i);
      placements_[n.id].in = static_cast<int>(base.id);
      shared_.insert(n.id);
    }
  }

  // What products read and give.
  void find_whole_rows() {
    constexpr int64_t kWorthIt = int64_t{1} << 30;  // operations
    for (const Node& n : graph_.nodes()) {
      if (n.op != Op::dot) continue;
      const auto operations = (product(n.results[0].shape) * n.inputs[0].shape().back() * 2).maybe_constant();
      if (!operations || *operations < kWorthIt) continue;
      has_whole_rows_[n.id] = true;
      for (const Value& v : n.inputs) {
        const Node* base = v.node;
        while (is_window(base->op)) base = base->inputs[0].node;
        has_whole_rows_[base->id] = true;
      }
    }
    std::vector<std::vector<const Node*>> users(graph_.nodes().size());
    for (const Node& n : graph_.nodes())
      for (const Value& v : n.inputs) users[v.node->id].push_back(&n);
    for (const Node& n : graph_.nodes())
      if (has_whole_rows_[n.id]) has_whole_rows_[n.id] = stays_seen(n, {&n, 0, dense(n, 0)}, users);
  }

  // Whether views of it need no copy if it lies so.
  static bool stays_seen(const Node& n, const MemoryWindow& window, const std::vector<std::vector<const Node*>>& users) {
    return std::ranges::all_of(users[n.id], [&](const Node* u) {
      if (!is_window(u->op)) return true;
      const auto seen = window_of_view(*u, window);
      return seen && stays_seen(*u, *seen, users);
    });
  }

  // Rows that begin where the target wants them, those of elements of two bytes: for others products ask nothing.
  Shape dense(const Node& n, size_t i) const {
    const Shape& shape = n.results[i].shape;
    Shape out = contiguous_strides(shape);
    const int64_t piece = row_bytes_ / 2;
    const auto row = shape.empty() ? std::nullopt : shape.back().maybe_constant();
    if (!has_whole_rows_[n.id] || shape.size() < 2 || size_of(n.results[i].dtype) != 2 || !row || *row % piece == 0) return out;
    SymInt stride = (*row + piece - 1) / piece * piece;
    for (size_t d = shape.size() - 1; d-- > 0; stride = stride * shape[d]) out[d] = stride;
    return out;
  }

  Shape requested(const Node& n, size_t i) const {
    auto it = outputs_.find({n.id, static_cast<uint32_t>(i)});
    if (shared_.contains(n.id)) return regrouped(n);
    if (it == outputs_.end()) return chosen(n, i);
    const OutputRequest& r = graph_.requests()[static_cast<size_t>(it->second)];
    if (graph_.outputs()[static_cast<size_t>(it->second)].node != &n) return r.free ? dense(n, i) : contiguous_strides(n.results[i].shape);
    if (r.free && graph_.placement(n).in < 0) return chosen(n, i);
    return r.into_input >= 0 ? graph_.strides(graph_.inputs()[static_cast<size_t>(r.into_input)]) : r.strides;
  }

  // Of an output that lies where a product does: what makes rows whole leaves it to be seen so (stays_seen).
  Shape regrouped(const Node& n) const {
    const Node& base = *n.inputs[0].node;
    const auto window = window_of_view(n, {&base, 0, placements_[base.id].strides[0]});
    check(window.has_value(), "layouts: %", n.id, " cannot be seen where %", base.id, " lies");
    return window->strides;
  }

  Shape chosen(const Node& n, size_t i) const {
    const Shape& shape = n.results[i].shape;
    const Placement& p = graph_.placement(n);
    if (n.op == Op::input) return graph_.strides({&n, 0});
    if (p.in >= 0 && n.op != Op::reshape) return graph_.strides({&graph_.nodes()[static_cast<size_t>(p.in)], 0});
    if (n.op == Op::extern_call) {
      const auto& strides = n.call().result_strides;
      return i < strides.size() && strides[i].size() == shape.size() ? strides[i] : contiguous_strides(shape);
    }
    // Heads beside each other, as the projection that follows reads them.
    if ((n.op == Op::attention && i == 0) || n.op == Op::attention_gradient) return strides_in_order(shape, {0, 2, 1, 3});
    if (!p.strides.empty() && is_channels_last(shape, p.strides[i])) return p.strides[i];
    auto it = epilogues_.stored_as.find(n.id);
    if (it != epilogues_.stored_as.end() && it->second != &n) return placements_[it->second->id].strides[0];
    return lies_as_operands(n, shape) ? channels_last_strides(shape) : dense(n, i);
  }

  bool is_channels_last_value(const Value& v) const { return is_channels_last(v.shape(), placements_[v.node->id].strides[v.index]); }

  // Whether what it is computed from has its channels last.
  bool lies_as_operands(const Node& n, const Shape& shape) const {
    if (n.op == Op::copy && n.inputs[0].node->op == Op::permute) return false;  // it is there to turn what it copies
    if (is_elementwise(n.op)) {
      for (const Value& v : n.inputs)
        if (v.shape() == shape && is_channels_last_value(v)) return true;
      return false;
    }
    if (is_joined(n.op) || (n.op == Op::take && n.inputs[1].rank() == 1)) return is_channels_last_value(n.inputs[0]);
    if (!is_view(n.op)) return false;
    // As a window this keeps the operand's order; stored, it is contiguous, which the users of the layout must not confuse.
    auto w = window_of_view(n, {nullptr, 0, placements_[n.inputs[0].node->id].strides[n.inputs[0].index]});
    return w && is_channels_last(shape, w->strides);
  }

  const Graph& graph_;
  const Epilogues epilogues_;
  OutputValues outputs_;
  std::vector<Placement> placements_;
  int64_t row_bytes_;
  std::vector<bool> has_whole_rows_;  // by node: whose rows begin where the target wants those of products
  std::set<uint32_t> shared_;         // by node id: outputs that lie where a product does
};

}  // namespace

OutputValues stored_outputs(const Graph& graph) {
  OutputValues out;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Value& v = graph.outputs()[i];
    const int in = graph.placement(*v.node).in;
    if (v.node->op == Op::extern_call) continue;
    out[v.node->op == Op::reshape && in >= 0 ? std::pair(static_cast<uint32_t>(in), 0u) : std::pair(v.node->id, v.index)] =
        static_cast<int>(i);
  }
  return out;
}

Graph choose_layouts(const Graph& graph, const PassContext& c) { return Chooser(graph, c.capabilities->row_bytes).run(); }

}  // namespace broach
