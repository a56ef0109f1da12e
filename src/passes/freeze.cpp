// What depends on constant inputs only (weights in eval mode) is computed once, not on every call.
#include <algorithm>
#include <map>
#include <set>

#include "passes/emission.h"
#include "passes/passes.h"

namespace broach {

namespace {

bool is_known(const Shape& s) {
  return std::all_of(s.begin(), s.end(), [](const SymInt& e) { return e.is_constant(); });
}

// What is computed once must be the same at all sizes.
bool has_known_sizes(const Node& n) {
  for (const Type& t : n.results)
    if (!is_known(t.shape)) return false;
  if (n.op == Op::extern_call)
    for (const ExternArg& a : n.call().args) {
      if (auto i = std::get_if<SymInt>(&a.value); i && !i->is_constant()) return false;
      if (auto s = std::get_if<Shape>(&a.value); s && !is_known(*s)) return false;
    }
  return std::all_of(n.attrs.begin(), n.attrs.end(), [](const auto& a) {
    auto s = std::get_if<Shape>(&a.second);
    return !s || is_known(*s);
  });
}

// Whether values depend on constant inputs only; remembers the answer by node.
class Constancy {
 public:
  explicit Constancy(const std::vector<bool>& constant) : constant_(constant) {}

  bool operator()(const Node& n) {
    if (n.op == Op::input) {
      auto i = static_cast<size_t>(n.integer(Attr::index));
      return i < constant_.size() && constant_[i];
    }
    auto it = known_.find(&n);
    if (it != known_.end()) return it->second;
    bool yes = !n.has_effect() && n.op != Op::size && has_known_sizes(n);
    for (const Value& v : n.inputs) yes = yes && (*this)(*v.node);
    return known_[&n] = yes;
  }

 private:
  const std::vector<bool>& constant_;
  std::map<const Node*, bool> known_;
};

// One value a channel, repeated over everything else: those values, as [channels].
std::optional<Value> per_channel(GraphBuilder& b, Value v) {
  if (v.node->op != Op::expand) return std::nullopt;
  Value x = v.node->inputs[0];
  for (size_t d = 0; d < x.shape().size(); ++d)
    if (d != 1 && !(x.shape()[d] == SymInt(1))) return std::nullopt;
  return b.expand(b.reshape(x, {x.shape()[1]}), {v.shape()[1]});
}

Value scaled_weight(GraphBuilder& b, Value weight, Value scale) {
  Shape along(weight.shape().size(), SymInt(1));
  along[0] = weight.shape()[0];
  return b.binary(Op::mul, weight, b.reshape(scale, along));
}

}  // namespace

// conv(x, w) * s + t with constant w, and s and t of one value a channel, becomes conv(x, w * s, t): batch normalisation
// disappears into the convolution.
Graph fold_scales(const Graph& graph, const PassContext& c) {
  if (!c.freeze || c.strict) return graph;
  std::vector<int> uses = graph.use_counts();
  Constancy is_constant(c.constant);
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    if (n.op != Op::mul && n.op != Op::add) return std::nullopt;
    for (size_t i = 0; i < 2; ++i) {
      const Node& conv = *in[i].node;
      if (conv.op != Op::conv || uses[n.inputs[i].node->id] != 1 || conv.integer(Attr::transposed) || conv.results[0].dtype != DType::f32)
        continue;
      auto channel = per_channel(b, in[1 - i]);
      if (!channel || !is_constant(*channel->node) || !is_constant(*conv.inputs[1].node)) continue;
      bool has_bias = conv.inputs.size() > 2;
      if (has_bias && !is_constant(*conv.inputs[2].node)) continue;
      std::vector<Value> operands = conv.inputs;
      if (n.op == Op::mul) {
        operands[1] = scaled_weight(b, operands[1], *channel);
        if (has_bias) operands[2] = b.binary(Op::mul, operands[2], *channel);
      } else if (has_bias) {
        operands[2] = b.binary(Op::add, operands[2], *channel);
      } else {
        operands.push_back(*channel);
      }
      return {{b.emit(Op::conv, std::move(operands), conv.attrs)}};
    }
    return std::nullopt;
  });
}

namespace {

// The values that are constant, computed, and read by something that is not constant. A view that only moves elements is left to its
// reader, so that nothing is stored repeated.
struct Border {
  Border(const Graph& graph, Constancy& is_constant) : is_frozen(graph.nodes().size()) {
    for (const Node& n : graph.nodes())
      if (n.op != Op::input && !is_constant(n))
        for (const Value& v : n.inputs) add(v, is_constant);
    for (const Value& v : graph.outputs()) add(v, is_constant);
    for (auto n = graph.nodes().rbegin(); n != graph.nodes().rend(); ++n)
      if (is_frozen[n->id])
        for (const Value& v : n->inputs) is_frozen[v.node->id] = true;
  }

  std::vector<Value> values;
  std::vector<bool> is_frozen;  // by node: what these are computed from, and they themselves

 private:
  void add(Value v, Constancy& is_constant) {
    while (moves_only(v.node->op)) v = v.node->inputs[0];
    if (kind_of(v.node->op) == OpKind::source || !is_constant(*v.node)) return;
    if (known_.emplace(v.node, v.index).second) values.push_back(v);
    is_frozen[v.node->id] = true;
  }

  std::set<std::pair<const Node*, uint32_t>> known_;
};

}  // namespace

std::vector<Stage> freeze(Module& m, const Stage& stage, const PassContext& c) {
  if (!c.freeze) return {};
  const Graph& graph = *stage.graph;
  std::vector<bool> constant;
  for (size_t slot : stage.takes) constant.push_back(slot < c.constant.size() && c.constant[slot]);
  Constancy is_constant(constant);
  const Border border(graph, is_constant);
  if (border.values.empty()) return {};
  Stage once{Stage::Runs::once, nullptr, {}, {}}, in_call = stage;
  Emission first(graph), second(graph);
  for (size_t i = 0; i < stage.takes.size(); ++i) {
    const Value& v = graph.inputs()[i];
    second.input(v, graph.strides(v));
    if (!border.is_frozen[v.node->id]) continue;
    first.input(v, graph.strides(v));
    once.takes.push_back(stage.takes[i]);
  }
  for (const Value& v : border.values) {
    second.input(v, contiguous_strides(v.shape()));
    once.gives.push_back(m.new_slot(v.type(), contiguous_strides(v.shape())));
    in_call.takes.push_back(once.gives.back());
  }
  for (const Node& n : graph.nodes()) {
    if (n.op == Op::input) continue;
    if (border.is_frozen[n.id]) first.emit(n);
    if (is_constant(n) && !moves_only(n.op) && kind_of(n.op) != OpKind::source) continue;
    // What only feeds frozen values is never read here, and is dropped by the next pass that rebuilds the graph.
    if (std::ranges::all_of(n.inputs, [&](const Value& v) { return second.has(v); })) second.emit(n);
  }
  m.set_graph(once, first.b.finish(first.of(border.values)));
  m.set_graph(in_call, rewrite(second.b.finish(second.of(graph.outputs()), graph.requests()),
                               [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; }));
  return {std::move(once), std::move(in_call)};
}

}  // namespace broach
