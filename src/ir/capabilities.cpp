#include "ir/capabilities.h"

namespace broach {

namespace {

constexpr Op kOps[] = {
#define OP(name, kind, inputs, attrs) Op::name,
#include "ir/ops.def"
#undef OP
};
constexpr DType kTypes[] = {DType::u8,  DType::i8,  DType::i16, DType::i32,  DType::i64, DType::f16, DType::f32,
                            DType::f64, DType::c32, DType::c64, DType::c128, DType::b1,  DType::bf16};

bool is_scatter(Op op) {
  return op == Op::scatter || op == Op::scatter_add || op == Op::scatter_mul || op == Op::scatter_min || op == Op::scatter_max;
}

// What no routine has, whatever its element types.
bool is_left_out(const Node& n) {
  if (n.op == Op::kth) return !n.get<SymInt>(Attr::k).is_constant();
  if (n.op == Op::update) return n.inputs[0].rank() == 0;
  return is_scatter(n.op) && n.inputs[1].dtype() != DType::i64 && n.inputs[1].dtype() != DType::i32;
}

ContractionAbility usual_ability(Op op, DType dtype) {
  const std::set<Op> exact{Op::gelu_erf, Op::gelu_tanh, Op::silu, Op::tanh, Op::sigmoid};
  std::set<Op> activations = exact;
  activations.insert(Op::relu);  // makes 0 of NaN
  return {activations, exact, {Op::add, Op::mul}, 6, true, dtype == DType::bf16, op == Op::conv};
}

}  // namespace

const ContractionAbility* Capabilities::contraction(Op op, DType dtype) const {
  auto it = contractions.find({op, dtype});
  return it == contractions.end() ? nullptr : &it->second;
}

bool Capabilities::has(const Node& n) const {
  if (kind_of(n.op) == OpKind::heavy) return contraction(n.op, n.results[0].dtype) != nullptr;
  if (kind_of(n.op) == OpKind::routine) return routines.contains({n.op, n.inputs[0].dtype()}) && !is_left_out(n);
  return true;
}

Capabilities all_capabilities() {
  Capabilities all;
  for (Op op : kOps)
    for (DType t : kTypes) {
      if (kind_of(op) == OpKind::heavy && is_floating(t)) all.contractions[{op, t}] = usual_ability(op, t);
      if (kind_of(op) == OpKind::routine) all.routines.insert({op, t});
    }
  return all;
}

}  // namespace broach
