// Reductions over chosen dimensions, as the reduction and normalization families use them.
#pragma once

#include "ops/formula.h"

namespace broach {

// The dimensions that a call reduces; `keep` leaves them in the result with size 1.
struct Axes {
  std::vector<int64_t> dims;
  bool keep = false;

  static Axes all(int rank, bool keep = false);
  static Axes from(int first, int rank, bool keep = true);        // first, first + 1, .., rank - 1
  static Axes of(OpCall& c, size_t dims, size_t keep, int rank);  // none or an empty list of dimensions: all
  Axes kept() const { return {dims, true}; }
  SymInt count(const Expr& x) const;  // elements that one result is made of
};

Expr reduce(Op op, const Expr& x, const Axes& axes);
inline Expr sum(const Expr& x, const Axes& axes) { return reduce(Op::reduce_sum, x, axes); }
Expr mean(const Expr& x, const Axes& axes);
Expr reshaped(const Expr& x, Shape shape);
// The p-norm, with eager's meaning of 0 and of the infinities.
Expr p_norm(const Expr& x, double p, const Axes& axes);
// A size as a value of an arithmetic element type.
Expr number(GraphBuilder& b, const SymInt& n, DType t);

// The class of each row's target, from log-probabilities: for classification losses. `x` is [n, classes, ..] or [classes].
std::optional<std::vector<Value>> nll_loss(OpCall& c, Value x);

}  // namespace broach
