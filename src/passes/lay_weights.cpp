// Weights whose channels lie apart, for a library that wants them side by side: it would copy each in a launch of its own, in the call and
// once more for gradients, whose weight gradient it would copy back.
#include <algorithm>
#include <set>

#include "ir/strides.h"
#include "passes/passes.h"

namespace broach {

namespace {

// Along more than one point: channels of single points lie side by side in either order.
bool has_window(const Shape& weight) {
  return std::any_of(weight.begin() + 2, weight.end(), [](const SymInt& n) { return !(n == SymInt(1)); });
}

// What is computed once, or fused with what computes the weight.
Value with_channels_last(GraphBuilder& b, Value weight) {
  const auto rank = static_cast<int64_t>(weight.shape().size());
  std::vector<int64_t> last{0}, back{0, rank - 1};
  for (int64_t d = 2; d < rank; ++d) last.push_back(d), back.push_back(d - 1);
  last.push_back(1);
  return b.permute(b.emit(Op::copy, {b.permute(weight, last)}, {{Attr::index, int64_t{0}}}), back);
}

}  // namespace

bool is_laid_anew(const Graph& graph, const Value& weight) {
  return has_window(weight.shape()) && !(weight.node->op == Op::input && is_channels_last(weight.shape(), graph.strides(weight)));
}

Graph lay_weights(const Graph& graph, const PassContext& c) {
  auto lays = [&](const Node& n) {
    if (n.op != Op::conv && n.op != Op::conv_weight_gradient) return false;
    return c.capabilities->has(n) && c.capabilities->contraction(n.op, n.results[0].dtype)->lays_weights;
  };
  std::set<const Node*> given;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Value& v = graph.outputs()[i];
    const OutputRequest& r = graph.requests()[i];
    if (v.node->op == Op::conv_weight_gradient && !r.free && !is_channels_last(v.shape(), r.strides)) given.insert(v.node);
  }
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    if (!lays(n)) return std::nullopt;
    if (n.op == Op::conv_weight_gradient) {
      if (!given.contains(&n) || !has_window(n.results[0].shape)) return std::nullopt;
      return {{b.emit(Op::copy, b.emit_all(n.op, {in.begin(), in.end()}, n.attrs), {{Attr::index, int64_t{0}}})}};
    }
    if (!is_laid_anew(graph, n.inputs[1])) return std::nullopt;
    std::vector<Value> operands(in.begin(), in.end());
    operands[1] = with_channels_last(b, operands[1]);
    return b.emit_all(n.op, std::move(operands), n.attrs);
  });
}

}  // namespace broach
