#include "ir/capabilities.h"

#include <algorithm>
#include <iterator>

namespace broach {

namespace {

constexpr Op kOps[] = {
#define OP(name, kind, inputs, attrs, facts) Op::name,
#include "ir/ops.def"
#undef OP
};
constexpr DType kElementTypes[] = {
#define TYPE(name, ...) DType::name,
#include "ir/types.def"
#undef TYPE
};

// What no routine has, whatever its element types.
bool is_left_out(const Node& n) {
  if (n.op == Op::kth) return !n.get<SymInt>(Attr::k).is_constant();
  if (n.op == Op::update) return n.inputs[0].rank() == 0;
  return checks_index(n.op) && n.inputs[1].dtype() != DType::i64 && n.inputs[1].dtype() != DType::i32;
}

// A convolution along three dimensions of one channel, of which each row gives one point, or may.
bool is_thin_volume(const Node& n) {
  const Shape& x = n.inputs[0].shape();
  if (n.op != Op::conv || x.size() != 5 || !(x[1] == SymInt(1)) || n.integer(Attr::transposed)) return false;
  const auto width = n.results[0].shape[4].maybe_constant();
  return n.ints(Attr::stride)[2] > 1 && (!width || *width == 1);
}

// Whether a window may lie in the padding as a whole.
bool has_idle_windows(const Node& n) {
  const Shape& weight = n.op == Op::conv ? n.inputs[1].shape() : n.sizes(Attr::shape);
  const Shape& padding = n.sizes(Attr::padding);
  for (size_t i = 0; i < padding.size(); ++i) {
    const auto kernel = weight[i + 2].maybe_constant(), pad = padding[i].maybe_constant();
    if (kernel && pad && *pad > n.ints(Attr::dilation)[i] * (*kernel - 1)) return true;
  }
  return false;
}

bool has_far_padding(const Node& n) {
  if (n.op != Op::conv || !n.integer(Attr::transposed)) return false;
  const Shape& padding = n.sizes(Attr::output_padding);
  for (size_t i = 0; i < padding.size(); ++i)
    if (const auto pad = padding[i].maybe_constant(); pad && *pad >= n.ints(Attr::stride)[i]) return true;
  return false;
}

ContractionAbility usual_ability(Op op, DType dtype) {
  ContractionAbility all;
  all.channels_last = all.lays_weights = op != Op::dot;
  all.channel_piece = op == Op::conv ? 8 : 0;
  if (op == Op::conv_weight_gradient) return all.bias = false, all;
  std::set<Op> activations;
  std::copy_if(std::begin(kOps), std::end(kOps), std::inserter(activations, activations.end()), is_activation);
  all.activations = activations, all.exact_activations = activations, all.binaries = {Op::add, Op::mul};
  all.most_epilogues = 6, all.through_casts = dtype == DType::bf16;
  all.sums_one_row = op == Op::dot && dtype != DType::f64;
  if (op == Op::conv && dtype == DType::bf16) all.scales_weights = ScalesWeights::in_calls;
  return all;
}

}  // namespace

bool ContractionAbility::takes_bias(const Primitive& n) const {
  return bias && (bias_of_dilated || n.op != Op::conv || std::ranges::all_of(n.ints(Attr::dilation), [](int64_t d) { return d == 1; }));
}

const ContractionAbility* Capabilities::contraction(Op op, DType dtype) const {
  auto it = contractions.find({op, dtype});
  return it == contractions.end() ? nullptr : &it->second;
}

bool Capabilities::has(const Node& n) const {
  if (kind_of(n.op) == OpKind::heavy) {
    const ContractionAbility* can = contraction(n.op, n.results[0].dtype);
    if (!can || n.op == Op::dot) return can;
    if ((!can->thin_volumes && is_thin_volume(n)) || (!can->idle_windows && has_idle_windows(n))) return false;
    if (!can->far_padding && has_far_padding(n)) return false;
    return (can->grouped || n.integer(Attr::groups) == 1) && (can->ranks.empty() || can->ranks.contains(n.inputs[0].rank()));
  }
  if (kind_of(n.op) == OpKind::routine) return routines.contains({n.op, n.inputs[0].dtype()}) && !is_left_out(n);
  return true;
}

const Capabilities& all_capabilities() {
  static const Capabilities all = [] {
    Capabilities all;
    for (Op op : kOps)
      for (DType t : kElementTypes) {
        if (kind_of(op) == OpKind::heavy && is_floating(t)) all.contractions[{op, t}] = usual_ability(op, t);
        if (kind_of(op) == OpKind::routine) all.routines.insert({op, t});
      }
    return all;
  }();
  return all;
}

}  // namespace broach
