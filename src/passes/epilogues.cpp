#include "passes/epilogues.h"

#include <algorithm>

#include "passes/passes.h"

namespace broach {

namespace {

// A value with one element for each entry of dimension `dim` of the shape, repeated along the others.
std::optional<Value> vector_along(const Value& v, size_t dim, const Shape& shape) {
  if (v.node->op != Op::expand || !(v.shape() == shape)) return std::nullopt;
  const Value& x = v.node->inputs[0];
  for (size_t d = 0; d < shape.size(); ++d)
    if (!(x.shape()[d] == (d == dim ? shape[d] : SymInt(1)))) return std::nullopt;
  return x;
}

Contraction plain(const Node& n) { return {&n, &n, n.op == Op::conv && n.inputs.size() > 2 ? n.inputs[2] : Value(), {}}; }

// Takes the next operation along. Whether its operand is repeated along all but the columns, or channels.
bool take_along(Contraction& c, const Node& u) {
  const Node& n = *c.node;
  const Node* last = std::exchange(c.last, &u);
  if (u.op == Op::cast) return false;
  if (u.inputs.size() == 1) return c.epilogue.push_back({u.op, {}}), false;
  Value other = u.inputs[0].node == last ? u.inputs[1] : u.inputs[0];
  auto vector = vector_along(other, n.op == Op::conv ? 1 : n.results[0].shape.size() - 1, n.results[0].shape);
  if (u.op == Op::add && !c.bias && c.epilogue.empty() && vector) return c.bias = *vector, true;
  // What was widened for this alone is read as it was.
  const DType own = n.results[0].dtype;
  if (u.results[0].dtype != own && other.node->op == Op::cast && other.node->inputs[0].dtype() == own) other = other.node->inputs[0];
  c.epilogue.push_back({u.op, other});
  return vector.has_value();
}

class Matcher {
 public:
  Matcher(const Graph& graph, const Capabilities& capabilities, bool strict, bool keeps_nan)
      : graph_(graph),
        capabilities_(capabilities),
        strict_(strict),
        keeps_nan_(keeps_nan),
        users_(graph.nodes().size()),
        is_output_(graph.nodes().size()),
        is_generated_(find_generated()),
        placements_(graph.placements()) {
    for (const Node& n : graph.nodes())
      for (const Value& v : n.inputs) users_[v.node->id].push_back(&n);
    for (const Value& v : graph.outputs()) is_output_[v.node->id] = true;
  }

  Graph run() {
    for (const Node& n : graph_.nodes())
      if (kind_of(n.op) == OpKind::heavy) match(n);
    return graph_.with(std::move(placements_));
  }

 private:
  void match(const Node& n) {
    Contraction c = plain(n), longer = c;
    const ContractionAbility* can = capabilities_.contraction(n.op, n.results[0].dtype);
    // Between a cast to fp32 and the cast back the epilogue could not be stored; it ends where it was last as wide as the result.
    while (can && longer.epilogue.size() < can->most_epilogues && extend(longer, *can))
      if (longer.last->results[0] == n.results[0] && (!can->residuals_only || is_whole(longer))) c = longer;
    for (const Node* m = &n; m != c.last; m = only_user(*m)) placements_[only_user(*m)->id].within = static_cast<int>(n.id);
  }

  const Node* only_user(const Node& n) const {
    const auto& u = users_[n.id];
    return u.size() == 1 && !is_output_[n.id] ? u[0] : nullptr;
  }

  // Takes the next operation along. Everything behind the contraction itself is computed in fp32, whatever is stored.
  bool extend(Contraction& c, const ContractionAbility& can) const {
    const Node& n = *c.node;
    const Node* last = c.last;
    const Node* u = only_user(*last);
    if (!u || placements_[u->id].within >= 0 || !(u->results[0].shape == n.results[0].shape)) return false;
    const DType own = n.results[0].dtype, now = last->results[0].dtype, next = u->results[0].dtype;
    const bool had_bias = static_cast<bool>(c.bias), along = take_along(c, *u);
    if (u->op == Op::cast)
      return !strict_ && can.through_casts && ((now == own && next == DType::f32) || (now == DType::f32 && next == own));
    if (next != now) return false;
    const bool is_bias = c.bias && !had_bias;
    if (can.residuals_only && !suits_residuals(c, is_bias, along)) return false;
    if (strict_ && is_low_precision(own) && !is_bias && u->op != Op::relu) return false;  // of what is rounded before
    if (can.activations.contains(u->op)) return !keeps_nan_ || can.exact_activations.contains(u->op);
    if (!can.binaries.contains(u->op) || u->inputs[0] == u->inputs[1]) return false;
    if (is_bias) return can.takes_bias(n);
    const Value& other = c.epilogue.back().second;
    return along || (is_large(other) && other.dtype() == own);
  }

  // Whether behind the bias of a convolution that is not transposed a sum with a tensor as large as the result and then an activation are all,
  // or the beginning of it.
  static bool suits_residuals(const Contraction& c, bool is_bias, bool along) {
    if (!c.bias || (c.node->op == Op::conv && c.node->integer(Attr::transposed))) return false;
    const auto& behind = c.epilogue;
    return is_bias || (!along && (behind.size() == 1 || (behind[0].second && !behind[1].second)));
  }
  static bool is_whole(const Contraction& c) { return c.epilogue.empty() || !c.epilogue.back().second; }

  // Whether it is computed of positions and single elements, at no cost in memory: such as which elements dropout keeps.
  std::vector<bool> find_generated() const {
    std::vector<bool> out;
    for (const Node& n : graph_.nodes()) {
      const bool of_those = std::all_of(n.inputs.begin(), n.inputs.end(), [&](const Value& v) { return out[v.node->id]; });
      const bool moves = is_elementwise(n.op) || is_view(n.op);
      out.push_back(n.op == Op::expand || (kind_of(n.op) == OpKind::source ? n.op != Op::input : moves && of_those));
    }
    return out;
  }

  // An operand worth reading within the epilogue: it exists in memory anyway, or will have to.
  bool is_large(const Value& v) const {
    const Node* n = v.node;
    if (is_generated_[n->id]) return false;
    return kind_of(n->op) >= OpKind::heavy || n->op == Op::input || users_[n->id].size() > 1 || is_elementwise(n->op);
  }

  const Graph& graph_;
  const Capabilities& capabilities_;
  const bool strict_, keeps_nan_;
  std::vector<std::vector<const Node*>> users_;
  std::vector<bool> is_output_, is_generated_;
  std::vector<Placement> placements_;
};

}  // namespace

// Where there are gradients NaN must be seen: a step whose loss is finite while its gradients are not passes whoever looks out for that.
Graph match_epilogues(const Graph& graph, const PassContext& c) {
  return c.fuse ? Matcher(graph, *c.capabilities, c.strict, c.strict || c.joint).run() : graph;
}

Epilogues epilogues_of(const Graph& graph) {
  Epilogues out;
  out.absorbed.assign(graph.nodes().size(), false);
  for (const Node& n : graph.nodes()) {
    if (kind_of(n.op) == OpKind::heavy) out.contractions[n.id] = plain(n);
    if (const int within = graph.placement(n).within; within >= 0) {
      take_along(out.contractions.at(static_cast<uint32_t>(within)), n);
      out.absorbed[n.id] = true;
    }
  }
  for (const auto& [id, c] : out.contractions) out.stored_as[c.last->id] = c.node;
  return out;
}

}  // namespace broach
