// Writes in place: an input that is written at a few places (a cache of keys and values) is not copied as a whole.
//
// After functionalisation such a write makes a new value of all elements, which an output request copies back into the input.
// Where it is a concatenation of what stays and what is new, it becomes updates of the windows that are new.
#include "passes/passes.h"

namespace broach {

namespace {

// What is written back into input `m` by output i: the value before its copy.
Value written_back(const Graph& g, size_t i) {
  const Value& out = g.outputs()[i];
  return out.node->op == Op::copy ? out.node->inputs[0] : out;
}

// Where a window without steps begins in x; nothing if v is no such window of x.
std::optional<Shape> origin(const Value& v, const Value& x) {
  if (v == x) return Shape(x.shape().size(), SymInt(0));
  const Node& n = *v.node;
  if (n.op != Op::slice) return std::nullopt;
  auto inner = origin(n.inputs[0], x);
  if (!inner) return std::nullopt;
  for (size_t d = 0; d < inner->size(); ++d) {
    if (n.ints(Attr::steps)[d] != 1) return std::nullopt;
    (*inner)[d] = (*inner)[d] + n.sizes(Attr::starts)[d];
  }
  return inner;
}

struct Piece {
  Value source;
  Shape starts;
};

// The parts of v, which begins at `at`, that are not x's own elements at the same place.
void collect_pieces(const Value& v, const Value& x, const Shape& at, std::vector<Piece>& out) {
  if (origin(v, x) == std::optional(at)) return;
  if (v.node->op != Op::cat) return out.push_back({v, at});
  auto dim = static_cast<size_t>(v.node->integer(Attr::dim));
  Shape start = at;
  for (const Value& part : v.node->inputs) {
    collect_pieces(part, x, start, out);
    start[dim] = start[dim] + part.shape()[dim];
  }
}

std::vector<Piece> pieces_of(const Value& v, const Value& x) {
  std::vector<Piece> out;
  collect_pieces(v, x, Shape(v.shape().size(), SymInt(0)), out);
  return out;
}

// A value of this type of which v contains a window: the one that v is a changed copy of.
Value kept_of(const Value& v, const Type& type) {
  if (v.node->op == Op::cat) {
    for (const Value& part : v.node->inputs)
      if (Value x = kept_of(part, type)) return x;
    return {};
  }
  Value x = v;
  while (x.node->op == Op::slice) x = x.node->inputs[0];
  return x.node != v.node && x.type() == type ? x : Value();
}

constexpr size_t kMostPieces = 8;  // beyond, one pass over everything costs less

}  // namespace

Graph find_updates(const Graph& graph, const PassContext&) {
  std::vector<bool> found(graph.nodes().size());
  bool any = false;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    if (graph.requests()[i].into_input < 0) continue;
    // The last write first; each starts from the value that the one before it made.
    for (Value v = written_back(graph, i); v;) {
      if (writes_elements(v.node->op)) {
        v = v.node->inputs[0];
        continue;
      }
      const Value x = v.node->op == Op::cat ? kept_of(v, v.type()) : Value();
      if (!x || pieces_of(v, x).size() > kMostPieces) break;
      any = found[v.node->id] = true;
      v = x;
    }
  }
  if (!any) return graph;
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    if (!found[n.id]) return std::nullopt;
    const Value whole = b.emit(Op::cat, {in.begin(), in.end()}, n.attrs);
    Value result = kept_of(whole, whole.type());
    for (const Piece& p : pieces_of(whole, result)) result = b.emit(Op::update, {result, p.source}, {{Attr::starts, p.starts}});
    return {{result}};
  });
}

}  // namespace broach
