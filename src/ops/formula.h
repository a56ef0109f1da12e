// Elementwise formulas written as algebra: what families use to say an operation in a line.
#pragma once

#include "ops/build.h"

namespace broach {

using Results = std::optional<std::vector<Value>>;

// A value of the graph being built, or a number, which takes the element type of the operand beside it.
class Expr {
 public:
  Expr(GraphBuilder& b, Value v) : b_(&b), value_(v) {}
  Expr(double number) : number_(number) {}

  Value value() const { return value_; }
  DType dtype() const { return value_.dtype(); }
  GraphBuilder& builder() const { return *b_; }
  Expr to(DType t) const { return {*b_, b_->cast(value_, t)}; }
  // The number as an operand for this value.
  Expr number(double n) const;

 private:
  friend Expr apply(Op op, const Expr& a, const Expr& b);
  friend Expr select(const Expr& condition, const Expr& a, const Expr& b);
  friend Expr multiply_add(const Expr& a, const Expr& b, const Expr& c);
  GraphBuilder* b_ = nullptr;
  Value value_;
  double number_ = 0;
};

Expr apply(Op op, const Expr& x);
Expr apply(Op op, const Expr& a, const Expr& b);  // one of the two is a value
Expr select(const Expr& condition, const Expr& a, const Expr& b);
// a * b + c as one of eager's operations computes it: its compiler makes one instruction of them, which rounds once. Integers wrap.
Expr multiply_add(const Expr& a, const Expr& b, const Expr& c);

inline Expr operator+(const Expr& a, const Expr& b) { return apply(Op::add, a, b); }
inline Expr operator-(const Expr& a, const Expr& b) { return apply(Op::sub, a, b); }
inline Expr operator*(const Expr& a, const Expr& b) { return apply(Op::mul, a, b); }
inline Expr operator/(const Expr& a, const Expr& b) { return apply(Op::div, a, b); }
inline Expr operator-(const Expr& x) { return apply(Op::neg, x); }
inline Expr operator<(const Expr& a, const Expr& b) { return apply(Op::lt, a, b); }
inline Expr operator<=(const Expr& a, const Expr& b) { return apply(Op::le, a, b); }
inline Expr operator>(const Expr& a, const Expr& b) { return apply(Op::gt, a, b); }
inline Expr operator>=(const Expr& a, const Expr& b) { return apply(Op::ge, a, b); }
inline Expr operator&(const Expr& a, const Expr& b) { return apply(Op::bit_and, a, b); }
inline Expr operator|(const Expr& a, const Expr& b) { return apply(Op::bit_or, a, b); }
inline Expr operator!(const Expr& x) { return apply(Op::bit_not, x); }
inline Expr equal(const Expr& a, const Expr& b) { return apply(Op::eq, a, b); }
inline Expr unequal(const Expr& a, const Expr& b) { return apply(Op::ne, a, b); }
inline Expr min(const Expr& a, const Expr& b) { return apply(Op::min, a, b); }
inline Expr max(const Expr& a, const Expr& b) { return apply(Op::max, a, b); }
inline Expr is_nan(const Expr& x) { return apply(Op::is_nan, x); }
inline Expr abs(const Expr& x) { return apply(Op::abs, x); }
inline Expr exp(const Expr& x) { return apply(Op::exp, x); }
inline Expr expm1(const Expr& x) { return apply(Op::expm1, x); }
inline Expr log(const Expr& x) { return apply(Op::log, x); }
inline Expr log1p(const Expr& x) { return apply(Op::log1p, x); }
inline Expr tanh(const Expr& x) { return apply(Op::tanh, x); }
inline Expr erf(const Expr& x) { return apply(Op::erf, x); }
inline Expr sigmoid(const Expr& x) { return apply(Op::sigmoid, x); }

// x with its bits rounded to its element type here, also where a fused chain would keep more of them.
Expr rounded(const Expr& x);
// What an element of type t holds when the number is stored into it: integers wrap, floating numbers are rounded.
Scalar stored(const Scalar& s, DType t);
// The number argument i, symbolic or not, as a value without dimensions.
Value number_operand(OpCall& c, size_t i, DType t);
// a op b of equal element types; sizes that only a guard makes equal are accepted.
Value broadcast(GraphBuilder& g, Op op, Value a, Value b);
// The tensor or number at position i with elements of type t.
Value operand(OpCall& c, size_t i, DType t);
// The results of a call with one result: the value in the element type that eager gave it.
Results in_result_type(OpCall& c, const Expr& x);

// A formula over the operands at `positions`, computed in compute_dtype of the result and rounded once. Calls with an integer
// result run as externs, unless `integers` says that the formula holds for them.
using Formula = std::function<Expr(OpCall& c, std::span<const Expr> x)>;
void add_formula(OpTable& t, std::string_view names, std::vector<size_t> positions, Formula f, bool integers = false);

// The parts of the pointwise family.
void add_activation_ops(OpTable&);
void add_loss_ops(OpTable&);
void add_foreach_ops(OpTable&);
void add_special_ops(OpTable&);
void add_bessel_ops(OpTable&);

}  // namespace broach
