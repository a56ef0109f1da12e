// Normalization: softmax, and layer, group, batch, instance and RMS norm, with their gradients. All compute in f32 for the
// small floating types and round once.
#include <algorithm>
#include <limits>

#include "ops/reduction.h"

namespace broach {

namespace {

// The optional tensor argument i in element type t.
std::optional<Expr> maybe(OpCall& c, size_t i, DType t) {
  auto v = c.maybe_tensor(i);
  return v ? std::optional(Expr(c.b, c.b.cast(*v, t))) : std::nullopt;
}

Expr argument(OpCall& c, size_t i, DType t) { return {c.b, c.b.cast(c.tensor(i), t)}; }

// ---- softmax ----

// Dimension argument i, of a tensor that may have none.
Axes softmax_axes(OpCall& c, size_t i, int rank) { return rank ? Axes{{c.dim(i, rank)}, true} : Axes{{}, true}; }

Expr softmax(const Expr& x, const Axes& axes) {
  if (x.builder().symbols().equal(x.value().type().numel(), 0)) return x;
  Expr e = exp(x - reduce(Op::reduce_max, x, axes));
  return e / sum(e, axes);
}

// Of argument 0 over the dimension in argument 1, in the element type that eager gave the result.
template <class F>
SingleLowering over_classes(F f) {
  return [f](OpCall& c) -> Value {
    DType t = c.result().dtype;
    if (!is_floating(t)) return {};
    // A requested element type is that of the operand: rounding to it comes first.
    Expr x = argument(c, 0, size_of(t) < size_of(c.tensor(0).dtype()) ? t : c.tensor(0).dtype()).to(compute_dtype(t));
    return f(x, softmax_axes(c, 1, x.value().rank())).to(t).value();
  };
}

// Rows in which everything is masked out by -inf become 0 instead of NaN.
Expr safe_softmax(const Expr& x, const Axes& axes) {
  if (x.builder().symbols().equal(x.value().type().numel(), 0)) return x;
  Expr masked = reduce(Op::reduce_min, equal(x, -std::numeric_limits<double>::infinity()), axes);
  return select(masked, 0.0, softmax(x, axes));
}

// (grad - sum(grad * y)) * y, or of the logarithm: grad - exp(y) * sum(grad).
Value softmax_backward(OpCall& c, bool logarithm) {
  DType t = compute_dtype(c.tensor(0).dtype());
  Expr grad = argument(c, 0, t), y = argument(c, 1, t);
  Axes axes = softmax_axes(c, 2, y.value().rank());
  Expr x = logarithm ? grad - exp(y) * sum(grad, axes) : (grad - sum(grad * y, axes)) * y;
  return x.to(c.result().dtype).value();
}

void add_softmax(OpTable& t) {
  add_single(t, "_softmax softmax.int special_softmax", over_classes(softmax));
  add_single(t, "_safe_softmax", over_classes(safe_softmax));
  add_single(t, "_log_softmax log_softmax.int special_log_softmax", over_classes([](const Expr& x, const Axes& axes) {
               return Expr(x.builder(), log_softmax(x.builder(), x.value(), axes.dims));
             }));
  add_single(t, "_softmax_backward_data", [](OpCall& c) { return softmax_backward(c, false); });
  add_single(t, "_log_softmax_backward_data", [](OpCall& c) { return softmax_backward(c, true); });
}

// ---- normalization over chosen dimensions ----

Expr inverse_deviation(const Expr& variance, double eps) { return apply(Op::rsqrt, variance + eps); }

// (x - mean) / sqrt(variance + eps), with mean and 1 / sqrt(..) of reduced size 1.
struct Normalized {
  Expr y, mean, rstd, variance;
};

Normalized normalize(const Expr& x, const Axes& axes, double eps) {
  Expr m = mean(x, axes), centered = x - m, variance = mean(centered * centered, axes), rstd = inverse_deviation(variance, eps);
  return {centered * rstd, m, rstd, variance};
}

// y * weight + bias for those that there are.
Expr scaled(Expr y, const std::optional<Expr>& weight, const std::optional<Expr>& bias) {
  if (weight) y = y * *weight;
  return bias ? y + *bias : y;
}

// What reaches x through its own statistics: rstd * (grad - mean(grad) - y * mean(grad * y)), grad being that of y.
Expr through_statistics(const Expr& grad, const Expr& y, const Expr& rstd, const Axes& axes) {
  return rstd * (grad - mean(grad, axes) - y * mean(grad * y, axes));
}

// A gradient that was not asked for is undefined: eager's result then has no element type.
Value gradient(OpCall& c, size_t result, const Expr& x, const Shape& shape) {
  if (c.result(result).dtype == DType::opaque) return {};
  return c.b.cast(reshape_guarded(c.b, x.value(), shape), c.result(result).dtype);
}

// The gradients of x, weight and bias; the latter two are summed over `dims`.
Results gradients(OpCall& c, const Expr& dx, const Shape& x, const Expr& dweight, const Expr& dbias, std::vector<int64_t> dims,
                  const Shape& weight) {
  Axes axes{std::move(dims), false};
  std::vector<Value> results{gradient(c, 0, dx, x), gradient(c, 1, sum(dweight, axes), weight)};
  if (c.results().size() == 3) results.push_back(gradient(c, 2, sum(dbias, axes), weight));
  return results;
}

// ---- layer and RMS norm: the last dimensions ----

// Those of the normalized shape, which is that of x there: by a guard, as whoever calls the operation need not have asked.
Axes last_axes(OpCall& c, const Value& x) {
  const Shape& wanted = c.ints(1);
  const auto first = static_cast<size_t>(x.rank()) - wanted.size();
  for (size_t i = 0; i < wanted.size(); ++i)
    if (const SymInt& size = x.shape()[first + i]; !c.b.symbols().equal(size, wanted[i]))
      unsupported("a dimension of ", size, ", not ", wanted[i]);
  return Axes::from(static_cast<int>(first), x.rank());
}

// Arguments: input, normalized shape, weight, bias, eps.
Results layer_norm(OpCall& c) {
  Value x = c.tensor(0);
  DType t = compute_dtype(x.dtype());
  Normalized n = normalize(argument(c, 0, t), last_axes(c, x), c.number_or(4, 1e-5));
  Expr y = scaled(n.y, maybe(c, 2, t), maybe(c, 3, t));
  std::vector<Value> results{y.to(x.dtype()).value()};
  if (c.results().size() == 3) {
    results.push_back(n.mean.to(c.result(1).dtype).value());
    results.push_back(n.rstd.to(c.result(2).dtype).value());
  }
  return results;
}

// Arguments: grad, input, normalized shape, mean, rstd, weight, bias, mask.
Results layer_norm_backward(OpCall& c) {
  Value x = c.tensor(1);
  DType t = compute_dtype(x.dtype());
  int first = x.rank() - static_cast<int>(c.ints(2).size());
  Expr grad = argument(c, 0, t), rstd = argument(c, 4, t), y = (argument(c, 1, t) - argument(c, 3, t)) * rstd;
  Expr dx = through_statistics(scaled(grad, maybe(c, 5, t), {}), y, rstd, Axes::from(first, x.rank()));
  return gradients(c, dx, x.shape(), grad * y, grad, Axes::all(first).dims, Shape(x.shape().begin() + first, x.shape().end()));
}

// Arguments: input, normalized shape, weight, eps.
Results rms_norm(OpCall& c) {
  Value x = c.tensor(0);
  DType t = compute_dtype(x.dtype());
  if (!is_floating(t) || (c.maybe_tensor(2) && compute_dtype(c.tensor(2).dtype()) != t)) return std::nullopt;
  double eps = t == DType::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  Expr wide = argument(c, 0, t), rstd = inverse_deviation(mean(wide * wide, last_axes(c, x)), c.number_or(3, eps));
  std::vector<Value> results{scaled(wide * rstd, maybe(c, 2, t), {}).to(c.result().dtype).value()};
  if (c.results().size() == 2) results.push_back(rstd.to(c.result(1).dtype).value());
  return results;
}

// Arguments: grad, input, normalized shape, rstd, weight, mask.
Results rms_norm_backward(OpCall& c) {
  Value x = c.tensor(1);
  DType t = compute_dtype(x.dtype());
  int first = x.rank() - static_cast<int>(c.ints(2).size());
  Expr grad = argument(c, 0, t), rstd = argument(c, 3, t), y = argument(c, 1, t) * rstd, dy = scaled(grad, maybe(c, 4, t), {});
  Expr dx = rstd * (dy - y * mean(dy * y, Axes::from(first, x.rank())));
  return gradients(c, dx, x.shape(), grad * y, grad, Axes::all(first).dims, Shape(x.shape().begin() + first, x.shape().end()));
}

// ---- group norm: groups of channels ----

// A tensor with `groups` groups of channels, seen as [n, groups, channels / groups, rest].
struct Grouped {
  Shape whole, shape;
  DType type;  // in which it is computed

  // The argument i of the whole shape, and one with an element a group or a channel.
  Expr whole_argument(OpCall& c, size_t i) const {
    return {c.b, c.b.reshape(c.b.cast(broadcast_to(c.b, c.tensor(i), whole), type), shape)};
  }
  Expr group_argument(OpCall& c, size_t i) const {
    return {c.b, c.b.reshape(c.b.cast(broadcast_to(c.b, c.tensor(i), {shape[0], shape[1]}), type), {shape[0], shape[1], 1, 1})};
  }
  std::optional<Expr> channel_argument(OpCall& c, size_t i) const {
    auto x = maybe(c, i, type);
    if (x) x = Expr(c.b, broadcast_to(c.b, x->value(), {whole[1]}));
    return x ? std::optional(reshaped(*x, {1, shape[1], shape[2], 1})) : std::nullopt;
  }
};

// The number of channels must be known, to be divided.
Grouped grouped(OpCall& c, const Value& x, int64_t groups) {
  Shape whole = x.shape();
  int64_t channels = c.b.symbols().specialize(whole.at(1));
  whole[1] = channels;
  return {whole, {whole[0], groups, channels / groups, product(std::span(whole).subspan(2))}, compute_dtype(x.dtype())};
}

const Axes kGroup{{2, 3}, true};

Results group_norm(OpCall& c, size_t weight, int64_t groups, double eps) {
  Value x = c.tensor(0);
  Grouped g = grouped(c, x, groups);
  Normalized n = normalize(g.whole_argument(c, 0), kGroup, eps);
  Expr y = scaled(n.y, g.channel_argument(c, weight), g.channel_argument(c, weight + 1));
  std::vector<Value> results{reshaped(y.to(x.dtype()), g.whole).value()};
  if (c.results().size() == 3) {
    results.push_back(reshaped(n.mean, {g.shape[0], groups}).to(c.result(1).dtype).value());
    results.push_back(reshaped(n.rstd, {g.shape[0], groups}).to(c.result(2).dtype).value());
  }
  return results;
}

// Arguments: grad, input, mean, rstd, weight, n, channels, rest, groups, mask.
Results group_norm_backward(OpCall& c) {
  Grouped g = grouped(c, c.tensor(1), c.constant(8));
  Expr grad = g.whole_argument(c, 0), rstd = g.group_argument(c, 3), y = (g.whole_argument(c, 1) - g.group_argument(c, 2)) * rstd;
  Expr dx = through_statistics(scaled(grad, g.channel_argument(c, 4), {}), y, rstd, kGroup);
  return gradients(c, dx, g.whole, grad * y, grad, {0, 3}, {g.whole[1]});
}

// ---- batch and instance norm: one channel ----

// A vector with an element a channel, beside a tensor of this rank.
Expr beside(const Expr& channels, int rank) { return {channels.builder(), along(channels.builder(), channels.value(), 1, rank)}; }

std::optional<Expr> maybe_beside(OpCall& c, size_t i, DType t, int rank) {
  auto x = maybe(c, i, t);
  return x ? std::optional(beside(*x, rank)) : std::nullopt;
}

// Every dimension but that of the channels.
Axes batch_axes(int rank) {
  Axes a = Axes::all(rank, true);
  std::erase(a.dims, 1);
  return a;
}

// One multiplication and addition an element, as eager.
Expr with_running_statistics(OpCall& c, const Expr& x, double eps) {
  int rank = x.value().rank();
  Expr scale = inverse_deviation(argument(c, 4, x.dtype()), eps);
  if (auto w = maybe(c, 1, x.dtype())) scale = scale * *w;
  Expr shift = -(argument(c, 3, x.dtype()) * scale);
  if (auto bias = maybe(c, 2, x.dtype())) shift = shift + *bias;
  return x * beside(scale, rank) + beside(shift, rank);
}

// Arguments: input, weight, bias, running mean, running variance. Two statistics, and those to keep, are empty; on a GPU the statistics
// are those that it is given.
Results batch_norm_evaluation(OpCall& c, double eps) {
  Value x = c.tensor(0);
  if (!c.is_tensor(3) || !c.is_tensor(4) || x.rank() < 2) return std::nullopt;
  DType t = compute_dtype(x.dtype());
  std::vector<Value> results{with_running_statistics(c, argument(c, 0, t), eps).to(x.dtype()).value()};
  for (size_t i = 1; i < c.results().size(); ++i) {
    const Shape& shape = c.result(i).shape;
    const DType dtype = c.result(i).dtype;
    const bool is_empty = shape == Shape{0}, is_on_gpu = x.type().device.kind == DeviceKind::cuda;
    if (!is_empty && !(is_on_gpu && i < 3 && shape == c.tensor(3).shape())) return std::nullopt;
    if (is_on_gpu && i < 3 && !is_empty)
      results.push_back((i == 1 ? argument(c, 3, t) : inverse_deviation(argument(c, 4, t), eps)).to(dtype).value());
    else results.push_back(c.b.full({0}, dtype == DType::u8 ? Scalar(int64_t{0}) : Scalar(0.0), dtype, x.type().device));
  }
  return results;
}

Results batch_norm_training(OpCall& c, const Normalized& n) {
  Value x = c.tensor(0);
  DType t = n.y.dtype();
  Shape channels{x.shape().at(1)};
  Expr y = scaled(n.y, maybe_beside(c, 1, t, x.rank()), maybe_beside(c, 2, t, x.rank()));
  std::vector<Value> results{y.to(x.dtype()).value()};
  if (c.results().size() > 1) {
    results.push_back(reshaped(n.mean, channels).to(c.result(1).dtype).value());
    results.push_back(reshaped(n.rstd, channels).to(c.result(2).dtype).value());
  }
  return results;
}

Normalized over_batch(OpCall& c, double eps) {
  Value x = c.tensor(0);
  return normalize(argument(c, 0, compute_dtype(x.dtype())), batch_axes(x.rank()), eps);
}

// Training with running statistics writes them, which only the functional schema says by its results.
Results batch_norm(OpCall& c, size_t training, double eps) {
  if (!c.flag(training)) return batch_norm_evaluation(c, eps);
  if (c.is_tensor(3) || c.is_tensor(4) || c.results().size() > 3 || c.tensor(0).rank() < 2) return std::nullopt;
  return batch_norm_training(c, over_batch(c, eps));
}

// The results of training or evaluation, then the running statistics as they are afterwards.
Results batch_norm_functional(OpCall& c, bool training, double momentum, double eps) {
  Value x = c.tensor(0);
  DType t = compute_dtype(x.dtype());
  Expr mean_before = argument(c, 3, t), variance_before = argument(c, 4, t);
  if (!training) {
    DType saved = c.result(1).dtype;
    if (c.result(1).shape != Shape{0}) return std::nullopt;
    Value y = with_running_statistics(c, argument(c, 0, t), eps).to(x.dtype()).value(), none = c.b.full({0}, 0.0, saved);
    return std::vector{y, none, none, c.tensor(3), c.tensor(4)};
  }
  Normalized n = over_batch(c, eps);
  Axes axes = batch_axes(x.rank());
  SymInt count = axes.count(n.y);
  Shape channels{x.shape()[1]};
  // The running variance is the unbiased one.
  Expr unbiased = n.variance * number(c.b, count, t) / number(c.b, count - 1, t);
  auto blend = [&](const Expr& before, const Expr& now) { return before * (1 - momentum) + reshaped(now, channels) * momentum; };
  Results r = batch_norm_training(c, n);
  // Some schemas have a reserve of bytes, which is empty here.
  if (c.results().size() == 6) r->push_back(c.b.full({0}, int64_t{0}, DType::u8));
  r->push_back(blend(mean_before, n.mean).to(c.tensor(3).dtype()).value());
  r->push_back(blend(variance_before, unbiased).to(c.tensor(4).dtype()).value());
  return r;
}

struct BatchGradients {
  Value x, grad;
  std::optional<Value> weight;
  Expr mean, rstd;  // a channel each
  bool training;
};

Results batch_norm_gradients(OpCall& c, const BatchGradients& g) {
  DType t = compute_dtype(g.x.dtype());
  int rank = g.x.rank();
  Axes axes = batch_axes(rank);
  Expr grad = Expr(c.b, g.grad).to(t), rstd = beside(g.rstd.to(t), rank);
  Expr y = (Expr(c.b, g.x).to(t) - beside(g.mean.to(t), rank)) * rstd, scale = rstd;
  if (g.weight) scale = rstd * beside(Expr(c.b, *g.weight).to(t), rank);
  // The weight is one for all that the statistics are of: the sums are those of the weight's and the bias's gradients.
  Expr dx = g.training ? through_statistics(grad, y, scale, axes) : grad * scale;
  return gradients(c, dx, g.x.shape(), grad * y, grad, axes.dims, {g.x.shape().at(1)});
}

// Arguments: grad, input, weight, running mean and variance, saved mean and inverse deviation, training, eps, mask.
Results batch_norm_backward(OpCall& c) {
  bool training = c.flag(7);
  size_t mean = training ? 5 : 3;
  if (!c.is_tensor(mean) || !c.is_tensor(mean + 1)) return std::nullopt;
  DType t = compute_dtype(c.tensor(1).dtype());
  Expr second = argument(c, mean + 1, t);
  Expr rstd = training ? second : inverse_deviation(second, c.number(8));
  return batch_norm_gradients(c, {c.tensor(1), c.tensor(0), c.maybe_tensor(2), argument(c, mean, t), rstd, training});
}

// Arguments: input, grad, weight, running mean and variance, saved mean and inverse deviation, eps, reserve.
Results cudnn_batch_norm_backward(OpCall& c) {
  if (!c.is_tensor(5) || !c.is_tensor(6)) return std::nullopt;
  return batch_norm_gradients(c, {c.tensor(0), c.tensor(1), c.tensor(2), {c.b, c.tensor(5)}, {c.b, c.tensor(6)}, true});
}

// Arguments: input, weight, bias, running mean and variance, use of the input's own statistics, momentum, eps.
Results instance_norm(OpCall& c) {
  Value x = c.tensor(0);
  if (!c.flag(5)) return batch_norm_evaluation(c, c.number(7));
  if (c.is_tensor(3) || c.is_tensor(4) || x.rank() < 3) return std::nullopt;
  return batch_norm_training(c, normalize(argument(c, 0, compute_dtype(x.dtype())), Axes::from(2, x.rank()), c.number(7)));
}

void add_batch_norm(OpTable& t) {
  add_real(t, "native_batch_norm _native_batch_norm_legit batch_norm cudnn_batch_norm",
           [](OpCall& c) { return batch_norm(c, 5, c.number(7)); });
  add_real(t, "_native_batch_norm_legit_no_training _batch_norm_no_update",
           [](OpCall& c) { return batch_norm_evaluation(c, c.number(6)); });
  add_real(t, "_native_batch_norm_legit.no_stats", [](OpCall& c) -> Results {
    if (!c.flag(3)) return std::nullopt;
    return batch_norm_training(c, over_batch(c, c.number(5)));
  });
  add_real(t, "_native_batch_norm_legit_functional",
           [](OpCall& c) { return batch_norm_functional(c, c.flag(5), c.number(6), c.number(7)); });
  add_real(t, "_batch_norm_with_update_functional", [](OpCall& c) { return batch_norm_functional(c, true, c.number(5), c.number(6)); });
  add_real(t, "native_batch_norm_backward batch_norm_backward", batch_norm_backward);
  add_real(t, "cudnn_batch_norm_backward", cudnn_batch_norm_backward);
  add_real(t, "instance_norm", instance_norm);
}

}  // namespace

void add_normalization_ops(OpTable& t) {
  add_softmax(t);
  add_real(t, "native_layer_norm layer_norm", layer_norm);
  add_real(t, "native_layer_norm_backward", layer_norm_backward);
  add_real(t, "rms_norm _fused_rms_norm", rms_norm);
  add_real(t, "_fused_rms_norm_backward", rms_norm_backward);
  add_real(t, "native_group_norm", [](OpCall& c) { return group_norm(c, 1, c.constant(6), c.number(7)); });
  add_real(t, "group_norm", [](OpCall& c) { return group_norm(c, 2, c.constant(1), c.number_or(4, 1e-5)); });
  add_real(t, "native_group_norm_backward", group_norm_backward);
  add_batch_norm(t);
}

}  // namespace broach
