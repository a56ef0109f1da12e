// Losses that are elementwise formulas with a reduction, and their gradients.
#include <cmath>
#include <numbers>
#include <numeric>

#include "ops/formula.h"

namespace broach {

namespace {

using Operands = std::span<const Expr>;

// The numbers of at::Reduction.
constexpr int64_t kMean = 1, kSum = 2;

Expr reduced(OpCall& c, const Expr& loss, size_t reduction) {
  int64_t how = c.is_none(reduction) ? kMean : c.constant(reduction);
  if (how != kMean && how != kSum) return loss;
  std::vector<int64_t> dims(loss.value().shape().size());
  std::iota(dims.begin(), dims.end(), 0);
  Expr sum{c.b, c.b.reduce(Op::reduce_sum, loss.value(), dims)};
  return how == kSum ? sum : sum / Expr{c.b, size_number(c.b, loss.value().type().numel(), loss.dtype())};
}

// `factor`, divided by the number of elements of x where the loss was their mean.
Expr gradient_scale(OpCall& c, const Expr& x, size_t reduction, double factor) {
  int64_t how = c.is_none(reduction) ? kMean : c.constant(reduction);
  if (how != kMean) return x.number(factor);
  SymInt n = x.value().type().numel();
  if (n.is_constant()) return x.number(factor / static_cast<double>(n.constant()));
  return factor / Expr{c.b, size_number(c.b, n, x.dtype())};
}

// x as eager has it between two operations: rounded to the result's type, so that f16 overflows where it does.
Expr step(OpCall& c, const Expr& x) { return rounded(x.to(c.result().dtype)).to(x.dtype()); }

// ---- distances ----

Expr smooth_l1(const Expr& x, const Expr& y, double beta) {
  Expr z = abs(x - y);
  return beta == 0 ? z : select(z < beta, z * 0.5 * z / beta, z - 0.5 * beta);
}

Expr huber(const Expr& x, const Expr& y, double delta) {
  Expr z = abs(x - y);
  return select(z <= delta, z * 0.5 * z, (z - 0.5 * delta) * delta);
}

// The slope of a loss that is linear outside of [-bound, bound].
Expr bounded_slope(const Expr& x, double bound, const Expr& grad, const Expr& outside, const Expr& inside) {
  return select(x <= -bound, -outside * grad, select(x >= bound, outside * grad, inside * x * grad));
}

Expr smooth_l1_backward(OpCall& c, Operands x) {
  double beta = c.number(4);
  Expr scale = gradient_scale(c, x[1], 3, 1);
  return bounded_slope(x[1] - x[2], beta, x[0], scale, scale / beta);
}

Expr huber_backward(OpCall& c, Operands x) {
  double delta = c.number(4);
  Expr scale = gradient_scale(c, x[1], 3, 1);
  return bounded_slope(x[1] - x[2], delta, x[0], scale * delta, scale);
}

// Entries for floating tensors; eager computes some of these losses in the operands' integer types.
void add_loss(OpTable& t, const char* names, std::vector<size_t> tensors, Formula f) {
  add_real(t, names, [tensors = std::move(tensors), f = std::move(f)](OpCall& c) -> Results {
    std::vector<Expr> x;
    for (size_t i : tensors) {
      if (!is_floating(c.tensor(i).dtype())) return std::nullopt;
      x.emplace_back(c.b, operand(c, i, compute_dtype(c.result().dtype)));
    }
    return in_result_type(c, f(c, x));
  });
}

void add_distances(OpTable& t) {
  add_loss(t, "mse_loss", {0, 1}, [](OpCall& c, Operands x) {
    Expr d = x[0] - x[1];
    return reduced(c, d * d, 2);
  });
  add_loss(t, "l1_loss", {0, 1}, [](OpCall& c, Operands x) { return reduced(c, abs(x[0] - x[1]), 2); });
  add_loss(t, "smooth_l1_loss", {0, 1}, [](OpCall& c, Operands x) { return reduced(c, smooth_l1(x[0], x[1], c.number_or(3, 1)), 2); });
  add_loss(t, "huber_loss", {0, 1}, [](OpCall& c, Operands x) { return reduced(c, huber(x[0], x[1], c.number_or(3, 1)), 2); });
  add_loss(t, "mse_loss_backward", {0, 1, 2}, [](OpCall& c, Operands x) { return (x[1] - x[2]) * gradient_scale(c, x[1], 3, 2) * x[0]; });
  add_loss(t, "smooth_l1_loss_backward", {0, 1, 2}, smooth_l1_backward);
  add_loss(t, "huber_loss_backward", {0, 1, 2}, huber_backward);
}

// ---- cross entropies ----

Expr optional_product(OpCall& c, const Expr& x, size_t weight) {
  return c.is_tensor(weight) ? x * Expr{c.b, operand(c, weight, x.dtype())} : x;
}

Expr binary_cross_entropy_backward(OpCall& c, Operands x) {
  const Expr &grad = x[0], &p = x[1], &target = x[2];
  // Eager's constant is a float, and none in f16: at 0 and 1 the gradient is NaN there.
  const double least = c.tensor(1).dtype() == DType::f16 ? 0 : double{1e-12F};
  Expr g = grad * (p - target) / max((1.0 - p) * p, least);
  return optional_product(c, g, 3) * gradient_scale(c, p, 4, 1);
}

Expr with_logits(OpCall& c, Operands x) {
  const Expr &z = x[0], &target = x[1];
  Expr log_sigmoid = min(z, 0.0) - log1p(exp(-abs(z)));
  if (c.is_tensor(3)) {
    Expr weight{c.b, operand(c, 3, z.dtype())};
    log_sigmoid = log_sigmoid * ((weight - 1.0) * target + 1.0);
  }
  Expr loss = (1.0 - target) * z - log_sigmoid;
  return reduced(c, optional_product(c, loss, 2), 4);
}

Expr kl_divergence(OpCall& c, Operands x) {
  const Expr &z = x[0], &target = x[1];
  if (c.flag(3)) return reduced(c, exp(target) * (target - z), 2);
  Expr entropy = select(is_nan(target), target, select(equal(target, 0.0), 0.0, target * log(target)));
  return reduced(c, entropy - target * z, 2);
}

void add_entropies(OpTable& t) {
  // binary_cross_entropy is eager's own: it raises where a probability is none.
  add_loss(t, "binary_cross_entropy_backward", {0, 1, 2}, binary_cross_entropy_backward);
  add_loss(t, "binary_cross_entropy_with_logits", {0, 1}, with_logits);
  add_loss(t, "kl_div", {0, 1}, kl_divergence);
}

// ---- margins ----

Expr soft_margin_backward(OpCall& c, Operands x) {
  const Expr &grad = x[0], &y = x[1], &target = x[2];
  Expr z = exp(-target * y);
  return target * z * gradient_scale(c, y, 3, -1) / (z + 1.0) * grad;
}

Expr poisson(OpCall& c, Operands x) {
  const Expr &z = x[0], &target = x[1];
  Expr loss = c.flag(2) ? exp(z) - target * z : z - target * log(z + c.number(4));
  if (c.flag(3)) {
    Expr stirling = target * log(target) - target + log(target * (2 * std::numbers::pi)) * 0.5;
    loss = loss + select(target <= 1.0, 0.0, stirling);
  }
  return reduced(c, loss, 5);
}

Expr hinge_embedding(OpCall& c, Operands x) {
  const Expr &y = x[0], &target = x[1];
  Expr margin = max(c.number_or(2, 1) - y, 0.0);
  Expr loss = select(unequal(target, 1.0), margin, 0.0) + select(unequal(target, -1.0), y, 0.0);
  return reduced(c, loss, 3);
}

// A row as [1, classes].
Expr as_rows(OpCall& c, Value x) { return {c.b, x.rank() == 2 ? x : c.b.reshape(x, {1, x.type().numel()})}; }

Value sum_last(OpCall& c, const Expr& x, std::vector<int64_t> dims) { return c.b.reduce(Op::reduce_sum, x.value(), std::move(dims)); }

// Of NaN it is 0, as where eager asks whether a class comes within the margin.
Expr positive_part(const Expr& x) { return select(x > 0.0, x, 0.0); }

// self, target, p, margin, weight, reduction: each class but the target's that comes within the margin of it, to the power p.
Results multi_margin(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0), target = c.tensor(1);
  double p = c.number_or(2, 1), margin = c.number_or(3, 1);
  if (!is_floating(x.dtype()) || x.rank() == 0 || (p != 1 && p != 2)) return std::nullopt;
  DType t = compute_dtype(x.dtype());
  Expr rows = as_rows(c, b.cast(x, t)), at(b, b.reshape(b.cast(target, DType::i64), {target.type().numel(), SymInt(1)}));
  const Shape& shape = rows.value().shape();
  Expr hit = equal(Expr(b, along(b, positions(b, shape[1]), 1, 2)), at);
  // Reading the classes at the targets makes one that is none an error.
  Expr checked(b, take(b, positions(b, shape[1]), at.value(), 0));
  hit = hit & equal(checked, at);
  Expr own(b, b.reduce(Op::reduce_sum, select(hit, rows, 0.0).value(), {1}, true)), gap = positive_part(margin - own + rows);
  if (p == 2) gap = gap * gap;
  if (c.is_tensor(4)) gap = gap * Expr(b, take(b, b.cast(c.tensor(4), t), at.value(), 0));
  Expr loss{b, sum_last(c, select(hit, 0.0, gap), {1})};
  loss = loss / Expr{b, size_number(b, shape[1], t)};
  if (x.rank() < 2) loss = {b, b.reshape(loss.value(), {})};
  return in_result_type(c, reduced(c, loss, 5));
}

// self, target, reduction: the targets are the classes before the first -1. Gives the loss and which classes are targets.
Results multilabel_margin(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
  if (!is_floating(x.dtype()) || x.rank() == 0 || !(c.tensor(1).shape() == x.shape())) return std::nullopt;
  DType t = compute_dtype(x.dtype());
  Expr rows = as_rows(c, b.cast(x, t)), target = as_rows(c, b.cast(c.tensor(1), DType::i64));
  const Shape& shape = rows.value().shape();
  SymInt n = shape[1];
  // Position of the first -1 in each row.
  Expr place(b, along(b, positions(b, n), 1, 2)),
      end(b, b.reduce(Op::reduce_min, select(target < 0.0, place, Expr(b, size_value(b, n))).value(), {1}, true));
  Expr valid = place < end;
  // [row, target, class]
  auto by_target = [&](const Expr& v) { return Expr(b, unsqueeze(b, v.value(), 2)); };
  auto by_class = [&](const Expr& v) { return Expr(b, unsqueeze(b, v.value(), 1)); };
  Expr hit = equal(by_target(target), Expr(b, along(b, positions(b, n), 2, 3))) & by_target(valid);
  Expr is_target(b, b.reduce(Op::reduce_max, hit.value(), {1}));
  Expr own(b, b.reduce(Op::reduce_sum, select(hit, by_class(rows), 0.0).value(), {2}));
  Expr gap = positive_part(1.0 - by_target(own) + by_class(rows));
  Expr loss{b, sum_last(c, select(by_target(valid) & !by_class(is_target), gap, 0.0), {1, 2})};
  loss = loss / Expr{b, size_number(b, n, t)};
  if (x.rank() < 2) loss = {b, b.reshape(loss.value(), {})};
  Value flags = b.reshape(is_target.to(c.result(1).dtype).value(), c.tensor(1).shape());
  return {{reduced(c, loss, 2).to(c.result(0).dtype).value(), flags}};
}

void add_margins(OpTable& t) {
  add_real(t, "multi_margin_loss", multi_margin);
  add_real(t, "multilabel_margin_loss_forward", multilabel_margin);
  add_loss(t, "soft_margin_loss", {0, 1},
           [](OpCall& c, Operands x) { return reduced(c, step(c, log1p(step(c, exp(step(c, -x[1] * x[0]))))), 2); });
  add_loss(t, "soft_margin_loss_backward", {0, 1, 2}, soft_margin_backward);
  add_loss(t, "poisson_nll_loss", {0, 1}, poisson);
  add_loss(t, "hinge_embedding_loss", {0, 1}, hinge_embedding);
  add_loss(t, "margin_ranking_loss", {0, 1, 2},
           [](OpCall& c, Operands x) { return reduced(c, max(-x[2] * (x[0] - x[1]) + c.number_or(3, 0), 0.0), 4); });
}

}  // namespace

void add_loss_ops(OpTable& t) {
  add_distances(t);
  add_entropies(t);
  add_margins(t);
}

}  // namespace broach
