// Elementwise code: what each primitive is on scalars or on vectors of `lanes_` elements. Floating values of low precision
// are f32 here; b1 is i1.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include "schedule/kernel.h"
#include "target/cpu/vector_math.h"

namespace broach::cpu {

class ScalarEmitter {
 protected:
  using V = llvm::Value*;
  using Type = llvm::Type;

  ScalarEmitter(llvm::LLVMContext& context, const Features& features, unsigned lanes) : features_(features), lanes_(lanes), b_(context) {}

  Type* scalar_type(DType t);
  Type* memory_type(DType t);
  Type* vector_of(Type* t) { return llvm::FixedVectorType::get(t, lanes_); }
  static bool is_vector(V v) { return v->getType()->isVectorTy(); }
  V splat(V v) { return is_vector(v) ? v : b_.CreateVectorSplat(lanes_, v); }
  V splat_like(V v, V like) { return is_vector(like) ? splat(v) : v; }
  V i64(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }
  static V fp(Type* like, double d) { return llvm::ConstantFP::get(like, d); }
  V iota();
  void even_out(V& a, V& b);  // both as vectors if one is

  V to_compute(V v, DType t);
  V to_memory(V v, DType t);
  V round_to(V v, DType t);  // the nearest value of a low-precision type, in the type that is computed in
  V constant(const Scalar& s, DType t);

  // An elementwise primitive; `from` is the element type of the last operand.
  V operation(const KernelExpr& e, const std::vector<V>& a, DType from);
  V float_op(Op op, const std::vector<V>& a);
  V int_op(Op op, const std::vector<V>& a, DType t);
  V compare(Op op, const std::vector<V>& a, DType t);

 private:
  V math(MathFn f, llvm::ArrayRef<V> args) { return emit_math(b_, f, args, features_); }
  V next_after(V x, V y);
  V sign(V x);
  V gelu_erf(V x);
  V gelu_tanh(V x);
  V normal(V x);  // the normal distribution function
  V tanh_of_gelu(V x, V square);
  V gelu_erf_derivative(V x);
  V gelu_tanh_derivative(V x);
  V float_floor_div(V x, V y);
  V float_mod(V x, V y);
  V divide(Op op, V x, V y, bool u);
  V shift(Op op, V x, V y, bool u);
  V int_pow(V x, V y, bool u);
  V cast(V v, DType from, DType to);
  V float_to_int(V v, DType to, Type* t);
  V bitcast(V v, DType from, DType to);

 protected:
  Features features_;
  unsigned lanes_;
  llvm::IRBuilder<> b_;
};

}  // namespace broach::cpu
