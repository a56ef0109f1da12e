#include "passes/epilogues.h"

#include <algorithm>

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

class Matcher {
 public:
  Matcher(const Graph& graph, const Capabilities& capabilities, bool strict)
      : graph_(graph), capabilities_(capabilities), strict_(strict), users_(graph.nodes().size()), is_output_(graph.nodes().size()) {
    for (const Node& n : graph.nodes())
      for (const Value& v : n.inputs) users_[v.node->id].push_back(&n);
    for (const Value& v : graph.outputs()) is_output_[v.node->id] = true;
    out_.absorbed.assign(graph.nodes().size(), false);
  }

  Epilogues run() {
    for (const Node& n : graph_.nodes())
      if (kind_of(n.op) == OpKind::heavy) match(n);
    return std::move(out_);
  }

 private:
  void match(const Node& n) {
    Contraction c = plain(n), longer = c;
    const ContractionAbility* can = capabilities_.contraction(n.op, n.results[0].dtype);
    // Between a cast to fp32 and the cast back the epilogue could not be stored; it ends where it was last as wide as the result.
    while (can && longer.epilogue.size() < can->most_epilogues && extend(longer, *can))
      if (longer.last->results[0] == n.results[0]) c = longer;
    for (const Node* m = &n; m != c.last; m = only_user(*m)) out_.absorbed[only_user(*m)->id] = true;
    out_.stored_as[c.last->id] = &n;
    out_.contractions[n.id] = std::move(c);
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
    if (!u || out_.absorbed[u->id] || !(u->results[0].shape == n.results[0].shape)) return false;
    const DType own = n.results[0].dtype, now = last->results[0].dtype, next = u->results[0].dtype;
    c.last = u;
    if (u->op == Op::cast)
      return !strict_ && can.through_casts && ((now == own && next == DType::f32) || (now == DType::f32 && next == own));
    if (next != now) return false;
    if (can.activations.contains(u->op)) {
      c.epilogue.push_back({u->op, {}});
      return !strict_ || can.exact_activations.contains(u->op);
    }
    if (!can.binaries.contains(u->op) || u->inputs[0] == u->inputs[1]) return false;
    return add_operand(c, *u, u->inputs[0].node == last ? u->inputs[1] : u->inputs[0], can);
  }

  bool add_operand(Contraction& c, const Node& u, Value other, const ContractionAbility& can) const {
    const Node& n = *c.node;
    const DType own = n.results[0].dtype;
    auto vector = vector_along(other, n.op == Op::conv ? 1 : n.results[0].shape.size() - 1, n.results[0].shape);
    if (u.op == Op::add && !c.bias && c.epilogue.empty() && vector) {
      c.bias = *vector;
      return can.bias;
    }
    // What was widened for this alone is read as it was.
    if (u.results[0].dtype != own && other.node->op == Op::cast && other.node->inputs[0].dtype() == own) other = other.node->inputs[0];
    if (!vector && (!is_large(other) || other.dtype() != own)) return false;
    c.epilogue.push_back({u.op, other});
    return true;
  }

  // An operand worth reading within the epilogue: it exists in memory anyway, or will have to.
  bool is_large(const Value& v) const {
    const Node* n = v.node;
    if (n->op == Op::expand) return false;
    return kind_of(n->op) >= OpKind::heavy || n->op == Op::input || users_[n->id].size() > 1 || is_elementwise(n->op);
  }

  const Graph& graph_;
  const Capabilities& capabilities_;
  const bool strict_;
  std::vector<std::vector<const Node*>> users_;
  std::vector<bool> is_output_;
  Epilogues out_;
};

}  // namespace

Epilogues match_epilogues(const Graph& graph, const Capabilities& capabilities, bool strict) {
  return Matcher(graph, capabilities, strict).run();
}

Epilogues plain_contractions(const Graph& graph) {
  Epilogues out;
  out.absorbed.assign(graph.nodes().size(), false);
  for (const Node& n : graph.nodes())
    if (kind_of(n.op) == OpKind::heavy) {
      out.contractions[n.id] = plain(n);
      out.stored_as[n.id] = &n;
    }
  return out;
}

}  // namespace broach
