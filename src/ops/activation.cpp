// Activations and their gradients. A comment-free formula is that of the PyTorch documentation; where kernels of eager
// decide a boundary or the fate of NaN, the comparison is written as they write it.
#include <numbers>

#include "ops/formula.h"

namespace broach {

namespace {

using Operands = std::span<const Expr>;

// ---- piecewise linear ----

Expr six_part(const Expr& x) { return min(max(x + 3.0, 0.0), 6.0); }

// Whole numbers have more digits than a double.
Expr threshold(OpCall& c, Operands x) {
  const DType t = x[0].value().dtype();
  if (!is_integral(t)) return select(x[0] <= c.number(1), c.number(2), x[0]);
  auto number = [&](size_t i) { return Expr{c.b, c.b.constant(c.scalar(i), t)}; };
  return select(x[0] <= number(1), number(2), x[0]);
}

void add_piecewise(OpTable& t) {
  add_single(t, "relu6", [](OpCall& c) {
    Expr x{c.b, c.tensor(0)};
    return min(max(x, 0.0), 6.0).value();
  });
  add_formula(t, "hardtanh_backward", {0, 1},
              [](OpCall& c, Operands x) { return select((x[1] > c.number(2)) & (x[1] < c.number(3)), x[0], 0.0); });
  add_formula(t, "hardswish", {0}, [](OpCall&, Operands x) { return x[0] * six_part(x[0]) / 6.0; });
  add_formula(t, "hardswish_backward", {0, 1},
              [](OpCall&, Operands x) { return select(x[1] <= -3.0, 0.0, select(x[1] >= 3.0, x[0], x[0] * (x[1] / 3.0 + 0.5))); });
  add_single(t, "hardsigmoid", [](OpCall& c) { return c.b.unary(Op::hardsigmoid, c.tensor(0)); });
  add_formula(t, "hardsigmoid_backward", {0, 1}, [](OpCall&, Operands x) {
    // Eager's constant is an f32 even where it computes in f64.
    return select((x[1] > -3.0) & (x[1] < 3.0), x[0] * static_cast<double>(1.0f / 6.0f), 0.0);
  });
  add_formula(t, "softshrink", {0}, [](OpCall& c, Operands x) {
    double lambda = c.number_or(1, 0.5);
    return select(x[0] > lambda, x[0] - lambda, select(x[0] < -lambda, x[0] + lambda, select(is_nan(x[0]), x[0], 0.0)));
  });
  add_formula(t, "hardshrink", {0}, [](OpCall& c, Operands x) {
    const double lambda = as_double(stored(c.number_or(1, 0.5), c.result().dtype));
    return select((x[0] >= -lambda) & (x[0] <= lambda), 0.0, x[0]);
  });
  add_formula(t, "softshrink_backward hardshrink_backward", {0, 1}, [](OpCall& c, Operands x) {
    double lambda = c.number(2);
    return select((x[1] > lambda) | (x[1] < -lambda), x[0], 0.0);
  });
  add_formula(t, "threshold", {0}, threshold, true);
  add_formula(t, "threshold_backward", {0, 1}, [](OpCall& c, Operands x) { return select(x[1] <= c.number(2), 0.0, x[0]); }, true);
}

// ---- leaky ----

Expr leaky(const Expr& x, const Expr& value, const Expr& slope) { return select(x > 0.0, value, value * slope); }

double rrelu_slope(OpCall& c, size_t lower) { return (c.number_or(lower, 0.125) + c.number_or(lower + 1, 1.0 / 3.0)) / 2; }

// The weight laid along dimension 1 of x, if there is more than one.
Value prelu_weight(OpCall& c) {
  Value x = c.tensor(0), weight = c.tensor(1);
  if (weight.rank() == x.rank()) return weight;
  Value flat = c.b.reshape(weight, {weight.type().numel()});
  return x.rank() < 2 ? c.b.reshape(flat, Shape(x.shape().size(), SymInt(1))) : along(c.b, flat, 1, x.rank());
}

Results prelu_backward(OpCall& c) {
  DType t = compute_dtype(c.result().dtype);
  Expr grad{c.b, operand(c, 0, t)}, x{c.b, operand(c, 1, t)}, weight{c.b, operand(c, 2, t)};
  Expr of_x = leaky(x, grad, weight), of_weight = select(x > 0.0, 0.0, x * grad);
  return {{of_x.to(c.result(0).dtype).value(), of_weight.to(c.result(1).dtype).value()}};
}

Results rrelu_functional(OpCall& c) {
  if (c.flag(4)) return std::nullopt;
  Expr x{c.b, operand(c, 0, compute_dtype(c.result().dtype))};
  return {{leaky(x, x, rrelu_slope(c, 2)).to(c.result().dtype).value(), c.tensor(1)}};
}

Results rrelu(OpCall& c) {
  if (c.flag(3)) return std::nullopt;
  Expr x{c.b, operand(c, 0, compute_dtype(c.result().dtype))};
  return in_result_type(c, leaky(x, x, rrelu_slope(c, 1)));
}

Expr rrelu_backward(OpCall& c, Operands x) {
  if (c.flag(5)) return x[0] * Expr{c.b, operand(c, 2, x[0].dtype())};
  return leaky(x[1], x[0], rrelu_slope(c, 3));
}

void add_leaky(OpTable& t) {
  add_formula(t, "leaky_relu", {0}, [](OpCall& c, Operands x) { return leaky(x[0], x[0], c.number_or(1, 0.01)); });
  add_formula(t, "leaky_relu_backward", {0, 1}, [](OpCall& c, Operands x) { return leaky(x[1], x[0], c.number(2)); });
  add_formula(t, "_prelu_kernel", {0, 1}, [](OpCall&, Operands x) { return leaky(x[0], x[0], x[1]); });
  add_real(t, "_prelu_kernel_backward", prelu_backward);
  add_formula(t, "prelu", {0}, [](OpCall& c, Operands x) { return leaky(x[0], x[0], {c.b, c.b.cast(prelu_weight(c), x[0].dtype())}); });
  add_real(t, "rrelu", rrelu);
  add_real(t, "rrelu_with_noise_functional", rrelu_functional);
  add_formula(t, "rrelu_with_noise_backward", {0, 1}, rrelu_backward);
}

// ---- exponential ----

Expr elu(const Expr& x, double alpha, double scale, double input_scale) {
  Expr positive = scale == 1 ? x : x * scale, inner = input_scale == 1 ? x : x * input_scale;
  return select(x < 0.0, expm1(inner) * (alpha * scale), positive);
}

Expr elu_backward(OpCall& c, Operands x) {
  const Expr &grad = x[0], &y = x[1];
  double alpha = c.number(1), scale = c.number(2), input_scale = c.number(3), slope = alpha * scale;
  Expr negative = c.flag(4) ? grad * input_scale * (y + slope) : grad * (input_scale * slope) * exp(y * input_scale);
  return select(y > 0.0, grad * scale, negative);
}

Expr softplus(OpCall& c, Operands x) {
  double beta = c.number_or(1, 1), threshold = c.number_or(2, 20);
  Expr scaled = x[0] * beta;
  return select(scaled > threshold, x[0], log1p(exp(scaled)) / beta);
}

Expr softplus_backward(OpCall& c, Operands x) {
  double beta = c.number(2), threshold = c.number(3);
  Expr scaled = x[1] * beta, z = exp(scaled);
  return select(scaled > threshold, x[0], x[0] * z / (z + 1.0));
}

Expr mish_backward(OpCall&, Operands x) {
  Expr t = tanh(log1p(exp(x[1])));
  return x[0] * (t + x[1] * sigmoid(x[1]) * (1.0 - t * t));
}

Expr silu_backward(OpCall&, Operands x) {
  Expr s = sigmoid(x[1]);
  return x[0] * s * (1.0 + x[1] * (1.0 - s));
}

Expr log_sigmoid(const Expr& x) { return min(x, 0.0) - log1p(exp(-abs(x))); }

// On the CPU the second result is exp(-|x|); elsewhere it is empty.
Results log_sigmoid_forward(OpCall& c) {
  Expr x{c.b, operand(c, 0, compute_dtype(c.result().dtype))};
  const Type& buffer = c.result(1);
  Value z = buffer.device.kind == DeviceKind::cpu ? exp(-abs(x)).to(buffer.dtype).value()
                                                  : c.b.full(buffer.shape, 0.0, buffer.dtype, buffer.device);
  return {{log_sigmoid(x).to(c.result().dtype).value(), z}};
}

Expr log_sigmoid_backward(OpCall& c, Operands x) {
  bool cpu = x[1].value().type().device.kind == DeviceKind::cpu;
  Expr z = cpu ? Expr{c.b, operand(c, 2, x[1].dtype())} : exp(-abs(x[1])), part = z / (1.0 + z);
  return x[0] * select(x[1] < 0.0, 1.0 - part, part);
}

void add_exponential(OpTable& t) {
  add_formula(t, "elu", {0}, [](OpCall& c, Operands x) { return elu(x[0], c.number_or(1, 1), c.number_or(2, 1), c.number_or(3, 1)); });
  add_formula(t, "selu", {0}, [](OpCall&, Operands x) { return elu(x[0], 1.6732632423543772848, 1.0507009873554804935, 1); });
  add_formula(t, "celu", {0}, [](OpCall& c, Operands x) {
    double alpha = c.number_or(1, 1);
    return elu(x[0], alpha, 1, 1 / alpha);
  });
  add_formula(t, "elu_backward", {0, 5}, elu_backward);
  add_formula(t, "softplus", {0}, softplus);
  add_formula(t, "softplus_backward", {0, 1}, softplus_backward);
  add_formula(t, "mish", {0}, [](OpCall&, Operands x) { return x[0] * tanh(log1p(exp(x[0]))); });
  add_formula(t, "mish_backward", {0, 1}, mish_backward);
  add_single(t, "silu", [](OpCall& c) { return c.b.unary(Op::silu, c.tensor(0)); });
  add_formula(t, "silu_backward", {0, 1}, silu_backward);
  add_formula(t, "log_sigmoid", {0}, [](OpCall&, Operands x) { return log_sigmoid(x[0]); });
  add_real(t, "log_sigmoid_forward", log_sigmoid_forward);
  add_formula(t, "log_sigmoid_backward", {0, 1}, log_sigmoid_backward);
}

// ---- gelu and glu ----

Value gelu(OpCall& c) { return c.b.unary(!c.is_none(1) && c.text(1) == "tanh" ? Op::gelu_tanh : Op::gelu_erf, c.tensor(0)); }

Results glu(OpCall& c) {
  DType t = compute_dtype(c.result().dtype);
  Value x = c.tensor(0);
  int64_t dim = c.is_none(1) ? x.rank() - 1 : c.dim(1, x.rank());
  const SymInt& size = x.shape().at(static_cast<size_t>(dim));
  if (!c.b.symbols().equal(mod(size, 2), 0)) unsupported("halves of ", size);
  SymInt half = floordiv(size, 2);
  auto part = [&](SymInt start) { return Expr{c.b, c.b.cast(narrow(c.b, x, dim, start, half), t)}; };
  return in_result_type(c, part(0) * sigmoid(part(half)));
}

Results glu_backward(OpCall& c) {
  DType t = compute_dtype(c.result().dtype);
  Value x = c.tensor(1);
  int64_t dim = c.dim(2, x.rank());
  Expr grad{c.b, operand(c, 0, t)};
  SymInt half = grad.value().shape().at(static_cast<size_t>(dim));
  auto part = [&](SymInt start) { return Expr{c.b, narrow(c.b, x, dim, start, half)}; };
  // Eager keeps the gate in the result, hence in its type, before it goes on.
  Expr a = part(0).to(t), gate = sigmoid(part(half)).to(t);
  Expr of_b = (1.0 - gate) * gate * grad * a;
  Value both = concat(c.b, {(gate * grad).value(), of_b.value()}, dim);
  return in_result_type(c, {c.b, both});
}

void add_gated(OpTable& t) {
  add_single(t, "gelu", gelu);
  add_formula(t, "gelu_backward", {0, 1}, [](OpCall& c, Operands x) {
    const bool by_tanh = !c.is_none(2) && c.text(2) == "tanh";
    return x[0] * apply(by_tanh ? Op::gelu_tanh_derivative : Op::gelu_erf_derivative, x[1]);
  });
  add_formula(t, "infinitely_differentiable_gelu_backward", {0, 1},
              [](OpCall&, Operands x) { return x[0] * apply(Op::gelu_erf_derivative, x[1]); });
  add_real(t, "glu", glu);
  add_real(t, "glu_backward", glu_backward);
}

// ---- dropout ----

Results evaluated_dropout(OpCall& c) {
  if (c.is_none(2) || c.flag(2)) return std::nullopt;
  return {{c.tensor(0), c.b.full(c.tensor(0).shape(), true, DType::b1, c.tensor(0).type().device)}};
}

Results dropout_backward(OpCall& c) {
  if (!is_floating(c.result().dtype) || c.tensor(1).dtype() != DType::b1) return std::nullopt;
  DType t = compute_dtype(c.result().dtype);
  return in_result_type(c, Expr{c.b, operand(c, 0, t)} * Expr{c.b, operand(c, 1, t)} * c.number(2));
}

void add_dropout(OpTable& t) {
  add_real(t, "native_dropout", evaluated_dropout);
  add_single(t, "dropout alpha_dropout feature_dropout feature_alpha_dropout",
             [](OpCall& c) { return c.number(1) == 0 || !c.flag(2) ? c.tensor(0) : Value{}; });
  add_real(t, "native_dropout_backward _masked_scale", dropout_backward);
}

}  // namespace

void add_activation_ops(OpTable& t) {
  add_piecewise(t);
  add_leaky(t);
  add_exponential(t);
  add_gated(t);
  add_dropout(t);
}

}  // namespace broach
