#include "ir/capabilities.h"

namespace broach {

Capabilities all_capabilities() {
  const std::set<Op> activations{Op::relu, Op::gelu_erf, Op::gelu_tanh, Op::silu, Op::tanh, Op::sigmoid};
  std::set<Op> exact = activations;
  exact.erase(Op::relu);
  Capabilities all;
  for (DType t : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (Op op : {Op::dot, Op::conv})
      all.contractions[{op, t}] = {activations, exact, {Op::add, Op::mul}, 6, true, t == DType::bf16, op == Op::conv};
  return all;
}

}  // namespace broach
