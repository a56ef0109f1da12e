// conv(x, w) * s + t, with s and t of one value a channel, becomes conv(x, w * s, t): batch normalisation in eval mode disappears into the
// convolution.
#include "passes/constancy.h"
#include "passes/passes.h"

namespace broach {

namespace {

// One value a channel, repeated over everything else: those values, as [channels].
std::optional<Value> per_channel(GraphBuilder& b, Value v) {
  if (v.node->op != Op::expand) return std::nullopt;
  Value x = v.node->inputs[0];
  for (size_t d = 0; d < x.shape().size(); ++d)
    if (d != 1 && !(x.shape()[d] == SymInt(1))) return std::nullopt;
  return b.expand(b.reshape(x, {x.shape()[1]}), {v.shape()[1]});
}

Value times(GraphBuilder& b, Value weight, Value scale) {
  Shape along(weight.shape().size(), SymInt(1));
  along[0] = weight.shape()[0];
  return b.binary(Op::mul, weight, b.reshape(scale, along));
}

// In fp32: what was rounded from that, as it was before.
Value wide(GraphBuilder& b, Value v) {
  const bool rounded = v.node->op == Op::cast && v.node->inputs[0].dtype() == DType::f32;
  return rounded ? v.node->inputs[0] : b.cast(v, DType::f32);
}

class Folder {
 public:
  Folder(const Graph& graph, const PassContext& c) : graph_(graph), c_(c), uses_(graph.use_counts()), is_constant_(c.constant) {}

  std::optional<std::vector<Value>> operator()(GraphBuilder& b, const Node& n, std::span<const Value> in) {
    if (n.op == Op::cast && rounds_what_was_widened(n, in[0])) return {{in[0].node->inputs[0]}};
    if (n.op != Op::mul && n.op != Op::add) return std::nullopt;
    for (size_t i = 0; i < 2; ++i)
      if (const auto made = fold(b, n, in, i)) return {{*made}};
    return std::nullopt;
  }

 private:
  static bool rounds_what_was_widened(const Node& n, const Value& v) {
    const DType to = n.results[0].dtype;
    return is_low_precision(to) && v.node->op == Op::cast && v.dtype() == DType::f32 && v.node->inputs[0].dtype() == to;
  }

  // Into the convolution that operand `i` is, perhaps widened to fp32.
  std::optional<Value> fold(GraphBuilder& b, const Node& n, std::span<const Value> in, size_t i) {
    const bool widened = in[i].node->op == Op::cast;
    const Node& conv = widened ? *in[i].node->inputs[0].node : *in[i].node;
    if (conv.op != Op::conv || conv.integer(Attr::transposed) || in[i].dtype() != DType::f32 || !is_read_once(*n.inputs[i].node))
      return std::nullopt;
    const auto channel = per_channel(b, in[1 - i]);
    if (!channel || !(widened ? may_fold_rounded(n, i, *channel, conv) : is_constant(*channel, conv))) return std::nullopt;
    const DType own = conv.results[0].dtype;
    std::vector<Value> operands = conv.inputs;
    const bool has_bias = operands.size() > 2;
    if (n.op == Op::mul) {
      operands[1] = b.cast(times(b, wide(b, operands[1]), *channel), own);
      if (has_bias) operands[2] = b.cast(b.binary(Op::mul, wide(b, operands[2]), *channel), own);
    } else if (has_bias) {
      operands[2] = b.cast(b.binary(Op::add, wide(b, operands[2]), *channel), own);
    } else {
      operands.push_back(b.cast(*channel, own));
    }
    return b.cast(b.emit(Op::conv, std::move(operands), conv.attrs), DType::f32);
  }

  // The value, and the convolution's where it is widened.
  bool is_read_once(const Node& n) const { return uses_[n.id] == 1 && (n.op != Op::cast || is_read_once(*n.inputs[0].node)); }

  bool is_constant(const Value& channel, const Node& conv) {
    if (!c_.freeze || !is_constant_(*channel.node)) return false;
    for (size_t i = 1; i < conv.inputs.size(); ++i)
      if (!is_constant_(*conv.inputs[i].node)) return false;
    return true;
  }

  // The weight is rounded once more and the result once less, which programs with gradients are spared. In fp16 a scale could leave the
  // range. In each call only where the weight's elements are few beside the result's, or are laid anew anyway.
  bool may_fold_rounded(const Node& n, size_t i, const Value& channel, const Node& conv) {
    const auto* can = c_.capabilities->contraction(Op::conv, conv.results[0].dtype);
    if (c_.joint || !can || can->scales_weights == ScalesWeights::never || !c_.capabilities->has(conv)) return false;
    if (can->scales_weights == ScalesWeights::once) return n.op == Op::mul && is_constant(channel, conv);
    const Node& operand = *n.inputs[i].node;
    if (n.op == Op::add) return operand.op == Op::mul && can->takes_bias(conv);  // whose scale was folded
    const Value& weight = operand.inputs[0].node->inputs[1];
    return is_laid_anew(graph_, weight) || elements(weight) <= 2 * elements(operand.inputs[0]);
  }

  double elements(const Value& v) const {  // at the sizes' hints
    double n = 1;
    for (const SymInt& e : v.shape()) n *= static_cast<double>(graph_.symbols()->hint(e));
    return n;
  }

  const Graph& graph_;
  const PassContext& c_;
  std::vector<int> uses_;
  Constancy is_constant_;
};

}  // namespace

Graph fold_scales(const Graph& graph, const PassContext& c) { return c.strict ? graph : rewrite(graph, Folder(graph, c)); }

}  // namespace broach
