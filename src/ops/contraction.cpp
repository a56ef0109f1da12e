// Contractions: matrix products and convolutions, with what eager adds to them.
#include <algorithm>
#include <array>
#include <cmath>

#include "ops/build.h"
#include "ops/depthwise.h"

namespace broach {

namespace {

using Result = std::optional<std::vector<Value>>;

bool contractible(std::initializer_list<Value> values) {
  for (const Value& v : values)
    if (v.dtype() != values.begin()->dtype() || !(is_floating(v.dtype()) || is_integral(v.dtype()))) return false;
  return true;
}

// ---- matrix products ----

Shape batch_of(const Value& x) { return Shape(x.shape().begin(), x.shape().end() - 2); }

Value with_batch(GraphBuilder& b, Value x, const Shape& batch) {
  Shape shape = batch;
  shape.insert(shape.end(), x.shape().end() - 2, x.shape().end());
  return broadcast_to(b, x, shape);
}

// Products with at most so many multiplications are loops of their own where the CPU's library of contractions does not know the
// element type: beyond, the host's library gains from blocking.
constexpr int64_t kMostMultiplications = 1 << 15;

// The product as a sum of broadcast products: b.dot for element types that contractions lack.
Value summed_products(GraphBuilder& b, Value x, Value y, int64_t batch) {
  int64_t k = x.rank() - 1;
  bool column = y.shape().back() == SymInt(1);
  Shape xs = x.shape(), ys(y.shape().begin(), y.shape().begin() + batch), result(xs.begin(), xs.end() - 1);
  ys.insert(ys.end(), static_cast<size_t>(k - batch), SymInt(1));
  ys.push_back(y.shape()[y.shape().size() - 2]);
  if (!column) xs.push_back(SymInt(1)), ys.push_back(y.shape().back());
  result.push_back(y.shape().back());
  Shape all = xs;
  if (!column) all.back() = ys.back();
  Value products = b.binary(Op::mul, broadcast_to(b, b.reshape(x, xs), all), broadcast_to(b, b.reshape(y, ys), all));
  return b.reshape(b.reduce(Op::reduce_sum, products, {k}), result);
}

// x y, where what is summed over has the same size in both.
Value dot(GraphBuilder& b, Value x, Value y, int64_t batch = 0) {
  DType t = x.dtype();
  Shape result(x.shape().begin(), x.shape().end() - 1);
  result.push_back(y.shape().back());
  if (x.shape().back() == SymInt(0)) return b.full(result, 0.0, t, x.type().device);
  if (x.type().device.kind != DeviceKind::cpu || t == DType::f32 || t == DType::bf16) return b.dot(x, y, batch);
  if (t == DType::f16) return b.cast(b.dot(b.cast(x, DType::f32), b.cast(y, DType::f32), batch), t);
  SymInt work = product(result) * x.shape().back();
  return b.symbols().ask(work, Relation::le, kMostMultiplications) ? summed_products(b, x, y, batch) : b.dot(x, y, batch);
}

// a's last dimension against b's last but one; the sizes may be equal by a guard only.
Value product_of(GraphBuilder& b, Value x, Value y, int64_t batch = 0) {
  Shape shape = y.shape();
  shape[shape.size() - 2] = x.shape().back();
  for (int64_t i = 0; i < batch; ++i) shape[static_cast<size_t>(i)] = x.shape()[static_cast<size_t>(i)];
  return dot(b, x, with_sizes(b, y, shape), batch);
}

}  // namespace

Value matmul(GraphBuilder& b, Value x, Value y) {
  bool column = y.rank() == 1, row = x.rank() == 1 && y.rank() > 2;
  if (column) y = unsqueeze(b, y, 1);
  if (row) x = unsqueeze(b, x, 0);
  Value r;
  if (y.rank() == 2) {
    r = product_of(b, x, y);
  } else {
    Shape batch = b.broadcast(batch_of(x), batch_of(y));
    r = product_of(b, with_batch(b, x, batch), with_batch(b, y, batch), static_cast<int64_t>(batch.size()));
  }
  Shape shape = r.shape();
  if (column) shape.pop_back();
  if (row) shape.erase(shape.end() - 2);
  return b.reshape(r, shape);
}

namespace {

bool is_number(const Scalar& s, double value) { return !is_complex(s) && as_double(s) == value; }

Scalar factor(OpCall& c, size_t i) { return c.is_none(i) ? Scalar(int64_t{1}) : c.scalar(i); }

using Product = Value (*)(GraphBuilder&, Value, Value);

// beta * input + alpha * x y; beta = 0 leaves the input out, NaN and all.
std::optional<Value> add_scaled(OpCall& c, Value input, Product product, Value x, Value y, const Scalar& beta, const Scalar& alpha) {
  GraphBuilder& b = c.b;
  if (is_complex(beta) || is_complex(alpha) || !contractible({x, y, input})) return std::nullopt;
  // BLAS does not read the factors then, so that their NaN does not show.
  if (is_number(alpha, 0)) return std::nullopt;
  // What is to be scaled is not rounded before; products of low precision are exact in f32.
  DType type = x.dtype(), wide = is_number(alpha, 1) && is_number(beta, 1) ? type : compute_dtype(type);
  auto scaled = [&](Value v, const Scalar& s) { return is_number(s, 1) ? v : with_number(b, Op::mul, v, s); };
  Value r = scaled(product(b, b.cast(x, wide), b.cast(y, wide)), alpha);
  if (!is_number(beta, 0)) r = b.binary(Op::add, r, broadcast_to(b, scaled(b.cast(input, wide), beta), r.shape()));
  return b.cast(r, type);
}

// [B, m, k] x [B, k, n] summed over B too: one product over the pairs (B, k).
Value sum_of_products(GraphBuilder& b, Value x, Value y) {
  y = with_sizes(b, y, {x.shape()[0], x.shape()[2], y.shape()[2]});
  SymInt k = x.shape()[0] * x.shape()[2];
  Value rows = b.reshape(b.permute(x, {1, 0, 2}), {x.shape()[1], k});
  return dot(b, rows, b.reshape(y, {k, y.shape()[2]}));
}

// input, two factors, beta, alpha; with out_dtype between for the overloads `.dtype`.
Lowering plus_product(Product product, bool typed = false) {
  return [=](OpCall& c) -> Result {
    Value input = c.tensor(0), x = c.tensor(1), y = c.tensor(2);
    if (typed) {
      DType type = c.result().dtype;
      input = c.b.cast(input, type), x = c.b.cast(x, type), y = c.b.cast(y, type);
    }
    size_t at = typed ? 4 : 3;
    auto r = add_scaled(c, input, product, x, y, factor(c, at), factor(c, at + 1));
    return r ? as_result(c, *r) : std::nullopt;
  };
}

Result addmm_activation(OpCall& c) {
  Value x = c.tensor(1), y = c.tensor(2);
  if (!is_floating(x.dtype())) return std::nullopt;
  auto r = add_scaled(c, c.tensor(0), matmul, x, y, factor(c, 3), factor(c, 4));
  // cuBLASLt knows the approximation only.
  Op gelu = x.type().device.kind == DeviceKind::cuda ? Op::gelu_tanh : Op::gelu_erf;
  return r ? as_result(c, c.b.unary(c.flag(5) ? gelu : Op::relu, *r)) : std::nullopt;
}

Result linear(OpCall& c) {
  Value x = c.tensor(0), w = c.tensor(1);
  if (!contractible({x, w}) || w.rank() > 2) return std::nullopt;
  Value r = matmul(c.b, x, w.rank() == 2 ? c.b.permute(w, {1, 0}) : w);
  if (auto bias = c.maybe_tensor(2)) {
    if (bias->dtype() != r.dtype()) return std::nullopt;
    r = c.b.binary(Op::add, r, broadcast_to(c.b, *bias, r.shape()));
  }
  return as_result(c, r);
}

// Sums over the last dimension of both.
Result inner(OpCall& c) {
  Value x = c.tensor(0), y = c.tensor(1);
  if (!contractible({x, y})) return std::nullopt;
  if (x.rank() == 0 || y.rank() == 0) return as_result(c, c.b.binary(Op::mul, x, y));
  Shape shape(x.shape().begin(), x.shape().end() - 1);
  shape.insert(shape.end(), y.shape().begin(), y.shape().end() - 1);
  SymInt n = product(std::span(y.shape()).first(y.shape().size() - 1));
  Value columns = c.b.permute(c.b.reshape(y, {n, y.shape().back()}), {1, 0});
  return as_result(c, c.b.reshape(product_of(c.b, x, columns), shape));
}

Result tensordot(OpCall& c) {
  Value x = c.tensor(0), y = c.tensor(1);
  if (!contractible({x, y}) || c.constants(2).empty()) return std::nullopt;
  std::vector<int64_t> dx = c.dims(2, x.rank()), dy = c.dims(3, y.rank()), px, py = dy;
  Shape shape, left, right;
  SymInt k(1);
  for (size_t i = 0; i < dx.size(); ++i) {
    const SymInt &a = x.shape()[static_cast<size_t>(dx[i])], &z = y.shape()[static_cast<size_t>(dy[i])];
    if (a != z) return std::nullopt;  // eager broadcasts a size of 1
    k = k * a;
  }
  auto rest = [](const Value& v, const std::vector<int64_t>& dims, std::vector<int64_t>& order, Shape& sizes) {
    for (int64_t d = 0; d < v.rank(); ++d)
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d), sizes.push_back(v.shape()[static_cast<size_t>(d)]);
  };
  rest(x, dx, px, left);
  rest(y, dy, py, right);
  px.insert(px.end(), dx.begin(), dx.end());
  shape = left;
  shape.insert(shape.end(), right.begin(), right.end());
  Value rows = c.b.reshape(c.b.permute(x, px), {product(left), k}), columns = c.b.reshape(c.b.permute(y, py), {k, product(right)});
  return as_result(c, c.b.reshape(dot(c.b, rows, columns), shape));
}

Value outer(GraphBuilder& b, Value x, Value y) { return b.binary(Op::mul, unsqueeze(b, x, 1), unsqueeze(b, y, 0)); }

// Elementwise in eager too: beta * input + alpha * x * y, each step in the element type.
Result addr(OpCall& c) {
  GraphBuilder& b = c.b;
  Value input = c.tensor(0), x = c.tensor(1), y = c.tensor(2);
  Scalar beta = factor(c, 3), alpha = factor(c, 4);
  if (is_complex(beta) || is_complex(alpha) || !contractible({x, y, input})) return std::nullopt;
  Value r = outer(b, is_number(alpha, 1) ? x : with_number(b, Op::mul, x, alpha), y);
  if (is_number(beta, 0)) return as_result(c, r);
  if (!is_number(beta, 1)) input = with_number(b, Op::mul, input, beta);
  return as_result(c, b.binary(Op::add, broadcast_to(b, input, r.shape()), r));
}

Result kron(OpCall& c) {
  Value x = c.tensor(0), y = c.tensor(1);
  if (!contractible({x, y})) return std::nullopt;
  Shape xs, ys, shape;
  size_t rank = static_cast<size_t>(std::max(x.rank(), y.rank()));
  for (size_t i = 0; i < rank; ++i) {
    auto size = [&](const Value& v) {
      size_t skipped = rank - v.shape().size();
      return i < skipped ? SymInt(1) : v.shape()[i - skipped];
    };
    SymInt a = size(x), z = size(y);
    xs.insert(xs.end(), {a, SymInt(1)});
    ys.insert(ys.end(), {SymInt(1), z});
    shape.push_back(a * z);
  }
  return as_result(c, c.b.reshape(c.b.binary(Op::mul, c.b.reshape(x, xs), c.b.reshape(y, ys)), shape));
}

// attention as formulas: softmax(q k' * scale + mask) v, a row without any key gives zeros.
Result attention_math(OpCall& c) {
  GraphBuilder& b = c.b;
  Value q = c.tensor(0), k = c.tensor(1), v = c.tensor(2);
  bool handled = contractible({q, k, v}) && is_floating(q.dtype()) && c.number_or(4, 0) == 0 && c.is_none(6) && !c.flag(8) && q.rank() >= 2;
  if (!handled || c.number_or(7, 1) < 0) return std::nullopt;
  DType type = q.dtype(), wide = compute_dtype(type);
  double scale = c.is_none(7) ? 1 / std::sqrt(static_cast<double>(b.symbols().specialize(q.shape().back()))) : c.number(7);
  auto scaled = [&](Value x) { return with_number(b, Op::mul, b.cast(x, wide), std::sqrt(scale)); };
  int64_t last = k.rank() - 1;
  Value s = matmul(b, scaled(q), transpose(b, scaled(k), last - 1, last));
  std::optional<Value> mask = c.maybe_tensor(3);
  Value none = b.constant(-INFINITY, wide);
  if (c.flag(5)) {
    if (mask) return std::nullopt;
    Value row = along(b, positions(b, q.shape()[q.shape().size() - 2]), 0, 2),
          column = along(b, positions(b, k.shape()[k.shape().size() - 2]), 1, 2);
    mask = b.where(b.binary(Op::le, column, row), b.constant(0.0, wide), none);
  }
  // A mask is added whatever its type: the caller has made a number of each boolean.
  if (mask) s = b.binary(Op::add, s, b.cast(*mask, wide));
  std::vector<int64_t> row{s.rank() - 1};
  Value top = b.reduce(Op::reduce_max, s, row, true), e = b.unary(Op::exp, b.binary(Op::sub, s, top));
  Value p = b.where(b.binary(Op::eq, top, none), b.constant(0.0, wide), b.binary(Op::div, e, b.reduce(Op::reduce_sum, e, row, true)));
  return std::vector<Value>{b.cast(matmul(b, p, b.cast(v, wide)), type), b.cast(p, type)};
}

// How many heads of the queries one of the keys and values serves; nothing where they do not divide.
std::optional<int64_t> queries_of_a_head(GraphBuilder& b, const Value& q, const Value& k, const Value& v) {
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4 || k.shape()[1] != v.shape()[1]) return std::nullopt;
  if (q.shape()[1] == k.shape()[1]) return 1;
  const int64_t heads = b.symbols().specialize(q.shape()[1]), own = b.symbols().specialize(k.shape()[1]);
  if (own <= 0 || heads % own != 0) return std::nullopt;
  return heads / own;
}

// [batch, heads, rows, depth] with each head `times` times in a row, and the sum over these.
Value repeat_heads(GraphBuilder& b, Value x, int64_t times) {
  const Shape s = x.shape();
  Value apart = b.reshape(x, {s[0], s[1], SymInt(1), s[2], s[3]});
  return b.reshape(b.expand(apart, {s[0], s[1], SymInt(times), s[2], s[3]}), {s[0], s[1] * times, s[2], s[3]});
}
Value sum_heads(GraphBuilder& b, Value x, const Shape& s, int64_t times) {
  return b.reduce(Op::reduce_sum, b.reshape(x, {s[0], s[1], SymInt(times), s[2], s[3]}), {2}, false);
}

// The kernel that eager picks on the CPU, which keeps no scores in memory: queries, keys and values of one depth. Arguments: those three
// from `query` on, and from `dropout` on its rate, whether it is causal, the mask and the scale. For its gradient, what comes of `rest`.
//
// Where keys and values have fewer heads, each of theirs serves as many in a row of the queries' (grouped queries).
Result attention_of(OpCall& c, Op op, size_t query, size_t dropout, const std::vector<size_t>& rest) {
  GraphBuilder& b = c.b;
  Value q = c.tensor(query), k = c.tensor(query + 1), v = c.tensor(query + 2);
  const std::optional<int64_t> groups = queries_of_a_head(b, q, k, v);
  if (!groups) return std::nullopt;
  const Shape own = k.shape(), own_values = v.shape();
  if (*groups > 1) k = repeat_heads(b, k, *groups), v = repeat_heads(b, v, *groups);
  bool typed = k.dtype() == q.dtype() && v.dtype() == q.dtype() && (q.dtype() == DType::f32 || q.dtype() == DType::bf16);
  bool fits = q.shape()[0] == k.shape()[0] && b.symbols().ask(own[2] - own_values[2], Relation::eq, 0);
  if (!typed || !fits || c.number_or(dropout, 0) != 0) return std::nullopt;
  const Shape rows{q.shape()[0], q.shape()[1], q.shape()[2]};
  std::vector<Value> operands{q, with_sizes(b, k, {rows[0], rows[1], k.shape()[2], q.shape()[3]}),
                              with_sizes(b, v, {rows[0], rows[1], k.shape()[2], v.shape()[3]})};
  for (size_t i : rest) {
    Value x = c.tensor(i);
    const bool is_row = x.rank() == 3;  // the logarithms
    if (x.dtype() != (is_row ? DType::f32 : q.dtype()) || (!is_row && x.rank() != 4)) return std::nullopt;
    operands.push_back(with_sizes(b, x, is_row ? rows : Shape{rows[0], rows[1], rows[2], v.shape()[3]}));
  }
  if (auto mask = c.maybe_tensor(dropout + 2)) {
    if (!is_floating(mask->dtype())) return std::nullopt;
    operands.push_back(b.expand(b.cast(*mask, DType::f32), {rows[0], rows[1], rows[2], k.shape()[2]}));
  }
  double scale =
      c.is_none(dropout + 3) ? 1 / std::sqrt(static_cast<double>(b.symbols().specialize(q.shape().back()))) : c.number(dropout + 3);
  std::vector<Value> results =
      b.emit_all(op, std::move(operands), {{Attr::scale, Scalar(scale)}, {Attr::causal, int64_t{c.flag(dropout + 1)}}});
  if (op == Op::attention_gradient && *groups > 1)
    results[1] = sum_heads(b, results[1], own, *groups), results[2] = sum_heads(b, results[2], own_values, *groups);
  return results;
}
Result attention(OpCall& c) { return attention_of(c, Op::attention, 0, 3, {}); }
Result attention_backward(OpCall& c) { return attention_of(c, Op::attention_gradient, 1, 6, {0, 4, 5}); }

// ---- convolutions ----

struct Convolution {
  Value x, w;
  std::optional<Value> bias = {};
  std::vector<int64_t> stride = {}, dilation = {};
  Shape padding = {}, output_padding = {};
  bool transposed = false;
  int64_t groups = 1;
};

// One number stands for all spatial dimensions.
template <class T>
std::vector<T> for_each_dim(std::vector<T> v, size_t n, int64_t otherwise) {
  if (v.empty()) v = {T(otherwise)};
  return v.size() == n ? v : std::vector<T>(n, v[0]);
}

// Where a GPU's library takes several times as long for some convolutions as for the products that they are.
bool is_better_as_product(const Value& x) {
  return x.type().device.kind == DeviceKind::cuda && (x.dtype() == DType::f16 || x.dtype() == DType::bf16);
}

// Windows that lie side by side and cover all of x, as rows of a matrix; one window need not tell how far it is to the next.
struct Patches {
  Value rows;
  Shape windows;                        // of the batch, and along each dimension
  std::vector<int64_t> channels_first;  // the order in which a convolution's result has channels behind these
};

std::optional<Patches> patches_of(GraphBuilder& b, const Convolution& a) {
  const size_t n = a.w.shape().size() - 2;
  const SymInt window = product(std::span(a.w.shape()).subspan(2)), image = product(std::span(a.x.shape()).subspan(2));
  if (a.transposed || a.groups != 1 || (window == SymInt(1) && !(image == SymInt(1)))) return std::nullopt;
  Patches out{{}, {a.x.shape()[0]}, {0, static_cast<int64_t>(n) + 1}};
  Shape parts{a.x.shape()[0], a.x.shape()[1]};
  std::vector<int64_t> outer{0}, inner{1};
  for (size_t i = 0; i < n; ++i) {
    const auto size = a.x.shape()[i + 2].maybe_constant(), length = a.w.shape()[i + 2].maybe_constant();
    if (!size || !length || *length == 0 || *size % *length != 0) return std::nullopt;
    if (!(for_each_dim(a.padding, n, 0)[i] == SymInt(0)) || for_each_dim(a.dilation, n, 1)[i] != 1) return std::nullopt;
    if (for_each_dim(a.stride, n, 1)[i] != *length && size != length) return std::nullopt;
    out.windows.push_back(*size / *length);
    parts.push_back(out.windows.back()), parts.push_back(*length);
    outer.push_back(static_cast<int64_t>(2 * i) + 2), inner.push_back(static_cast<int64_t>(2 * i) + 3);
    out.channels_first.push_back(static_cast<int64_t>(i) + 1);
  }
  outer.insert(outer.end(), inner.begin(), inner.end());
  const SymInt length = product(std::span(a.w.shape()).subspan(1));
  out.rows = b.reshape(b.permute(b.reshape(a.x, parts), outer), {product(out.windows), length});
  return out;
}

// Undefined where windows are not such.
Value product_of_patches(GraphBuilder& b, const Convolution& a) {
  std::optional<Patches> patches = is_better_as_product(a.x) ? patches_of(b, a) : std::nullopt;
  if (!patches) return {};
  const SymInt channels = a.w.shape()[0];
  Value y = dot(b, patches->rows, b.permute(b.reshape(a.w, {channels, patches->rows.shape()[1]}), {1, 0}));
  if (a.bias) y = b.binary(Op::add, y, broadcast_to(b, *a.bias, y.shape()));
  patches->windows.push_back(channels);
  return b.permute(b.reshape(y, patches->windows), patches->channels_first);
}

// The weight's gradient, of that of the result. On the host libtorch, where it was chosen, wrote the windows out besides.
Value gradient_of_patches(GraphBuilder& b, const Convolution& a, const Value& y) {
  const bool is_on_host = a.x.type().device.kind == DeviceKind::cpu;
  const std::optional<Patches> patches = is_on_host || is_better_as_product(a.x) ? patches_of(b, a) : std::nullopt;
  if (!patches) return {};
  std::vector<int64_t> channels{1, 0};
  for (size_t i = 2; i < y.shape().size(); ++i) channels.push_back(static_cast<int64_t>(i));
  const Value by_channel = b.reshape(b.permute(y, channels), {y.shape()[1], patches->rows.shape()[0]});
  return b.reshape(dot(b, by_channel, patches->rows), a.w.shape());
}

// Where each channel is convolved by itself, along one dimension.
std::optional<DepthwiseRow> depthwise_row(const Convolution& a) {
  const bool is_row = a.w.rank() == 3 && !a.transposed && a.groups > 1 && a.w.shape()[0] == SymInt(a.groups) && has_few_taps(a.w.shape());
  if (!is_row || for_each_dim(a.stride, 1, 1)[0] != 1) return std::nullopt;
  const DepthwiseRow row{a.x, a.w, for_each_dim(a.padding, 1, 0)[0], for_each_dim(a.dilation, 1, 1)[0]};
  const auto padding = row.padding.maybe_constant();
  return padding && *padding <= row.dilation * (a.w.shape()[2].constant() - 1) ? std::optional(row) : std::nullopt;
}

Result convolve(OpCall& c, Convolution a) {
  GraphBuilder& b = c.b;
  size_t n = a.w.shape().size() - 2;
  bool typed = is_floating(a.x.dtype()) && a.w.dtype() == a.x.dtype() && (!a.bias || a.bias->dtype() == a.x.dtype());
  if (!typed || a.w.rank() < 3) return std::nullopt;
  DType type = a.x.dtype();
  if (type == DType::f16 && a.x.type().device.kind == DeviceKind::cpu) {
    for (Value* v : {&a.x, &a.w}) *v = b.cast(*v, DType::f32);
    if (a.bias) a.bias = b.cast(*a.bias, DType::f32);
  }
  bool single = a.x.shape().size() == n + 1;
  if (single) a.x = unsqueeze(b, a.x, 0);
  Shape sizes = a.x.shape();
  sizes[1] = a.transposed ? a.w.shape()[0] : a.w.shape()[1] * SymInt(a.groups);
  a.x = with_sizes(b, a.x, sizes);
  if (a.bias) a.bias = with_sizes(b, *a.bias, {a.transposed ? a.w.shape()[1] * SymInt(a.groups) : a.w.shape()[0]});
  Value r = product_of_patches(b, a);
  if (const auto row = depthwise_row(a)) r = convolve_row(b, *row, a.bias);
  // A GPU's library has no compiled engines for a sum behind windows with gaps.
  const bool apart = !r && a.bias && is_better_as_product(a.x) && std::ranges::any_of(a.dilation, [](int64_t d) { return d != 1; });
  std::vector<Value> inputs{a.x, a.w};
  if (a.bias && !apart) inputs.push_back(*a.bias);
  if (!r)
    r = b.emit(Op::conv, inputs,
               {{Attr::stride, for_each_dim(a.stride, n, 1)},
                {Attr::padding, for_each_dim(a.padding, n, 0)},
                {Attr::dilation, for_each_dim(a.dilation, n, 1)},
                {Attr::transposed, int64_t{a.transposed}},
                {Attr::output_padding, for_each_dim(a.output_padding, n, 0)},
                {Attr::groups, a.groups}});
  if (apart) r = b.binary(Op::add, r, broadcast_to(b, along(b, *a.bias, 1, r.rank()), r.shape()));
  if (single) r = b.reshape(r, Shape(r.shape().begin() + 1, r.shape().end()));
  return as_result(c, b.cast(r, type));
}

// Where a schema has its arguments; -1: it has none.
struct Layout {
  int bias, stride, padding, dilation, transposed = -1, output_padding = -1, groups = -1;
  bool always_transposed = false, depthwise = false;
};

Lowering convolution(Layout l) {
  return [=](OpCall& c) -> Result {
    auto given = [&](int i) { return i >= 0 && !c.is_none(static_cast<size_t>(i)); };
    Convolution a{.x = c.tensor(0), .w = c.tensor(1)};
    if (given(l.bias)) a.bias = c.tensor(static_cast<size_t>(l.bias));
    if (given(l.stride)) a.stride = c.constants(static_cast<size_t>(l.stride));
    if (given(l.padding)) a.padding = c.ints(static_cast<size_t>(l.padding));
    if (given(l.dilation)) a.dilation = c.constants(static_cast<size_t>(l.dilation));
    if (given(l.output_padding)) a.output_padding = c.ints(static_cast<size_t>(l.output_padding));
    if (given(l.groups)) a.groups = c.constant(static_cast<size_t>(l.groups));
    a.transposed = l.always_transposed || (given(l.transposed) && c.flag(static_cast<size_t>(l.transposed)));
    if (l.depthwise) a.groups = c.b.symbols().specialize(a.x.shape()[a.x.shape().size() + 1 - a.w.shape().size()]);
    return convolve(c, a);
  };
}

// Padding given as "valid" or "same"; the odd element of "same" goes to the end.
Result convolution_by_name(OpCall& c) {
  Convolution a{.x = c.tensor(0), .w = c.tensor(1), .bias = c.maybe_tensor(2)};
  if (!c.is_none(3)) a.stride = c.constants(3);
  if (!c.is_none(5)) a.dilation = c.constants(5);
  if (!c.is_none(6)) a.groups = c.constant(6);
  std::string name = c.is_none(4) ? "valid" : c.text(4);
  if (name != "valid" && name != "same") return std::nullopt;
  size_t n = a.w.shape().size() - 2;
  a.padding.assign(n, SymInt(0));
  Shape low(a.x.shape().size(), SymInt(0)), high = low;
  std::vector<int64_t> dilation = for_each_dim(a.dilation, n, 1);
  for (size_t i = 0; name == "same" && i < n; ++i) {
    int64_t total = dilation[i] * (c.b.symbols().specialize(a.w.shape()[i + 2]) - 1);
    a.padding[i] = total / 2;
    high[high.size() - n + i] = total % 2;
  }
  a.x = pad(c.b, a.x, low, high, 0.0);
  return convolve(c, a);
}

// Channels beside each other: [positions, channels] of [batch, channels, ..], and back.
Value channel_rows(GraphBuilder& b, Value x) {
  std::vector<int64_t> order{0};
  for (int64_t d = 2; d < x.rank(); ++d) order.push_back(d);
  order.push_back(1);
  const SymInt channels = x.shape()[1], rows = x.shape()[0] * product(std::span(x.shape()).subspan(2));
  return b.reshape(b.permute(x, order), {rows, channels});
}
Value from_channel_rows(GraphBuilder& b, Value rows, const Shape& shape) {
  Shape last{shape[0]};
  std::vector<int64_t> order{0, static_cast<int64_t>(shape.size()) - 1};
  for (size_t d = 2; d < shape.size(); ++d) last.push_back(shape[d]), order.push_back(static_cast<int64_t>(d) - 1);
  last.push_back(shape[1]);
  return b.permute(b.reshape(rows, last), order);
}

// A convolution that looks at one position at a time.
bool is_pointwise(const Value& w, std::span<const int64_t> stride, const Shape& padding, int64_t groups) {
  return groups == 1 && product(std::span(w.shape()).subspan(2)) == SymInt(1) &&
         std::ranges::all_of(stride, [](int64_t s) { return s == 1; }) &&
         std::ranges::all_of(padding, [](const SymInt& p) { return p == SymInt(0); });
}

// The gradients of a pointwise convolution by x and w where that of its result is y.
std::pair<Value, Value> pointwise_gradients(GraphBuilder& b, Value x, Value w, Value y) {
  const Value weight = b.reshape(w, {w.shape()[0], w.shape()[1]}), rows = channel_rows(b, y);
  const Value by_x = from_channel_rows(b, dot(b, rows, weight), x.shape());
  return {by_x, b.reshape(dot(b, b.permute(rows, {1, 0}), channel_rows(b, x)), w.shape())};
}

// Windows of a transposed convolution's result behind that of its last input, by dimension: its output padding may have room for some.
Shape windows_beyond(OpCall& c, std::span<const int64_t> stride, size_t n) {
  Shape out(n + 2, SymInt(0));
  const Shape padding = for_each_dim(c.ints(8), n, 0);
  for (size_t i = 0; c.flag(7) && i < n; ++i) out[i + 2] = c.b.symbols().specialize(padding[i]) / stride[i];
  return out;
}

// Those by x and w that need no convolution; undefined where they do.
std::pair<Value, Value> gradients_apart(GraphBuilder& b, const Convolution& a, Value y) {
  if (!a.transposed && is_better_as_product(a.x) && is_pointwise(a.w, a.stride, a.padding, a.groups))
    return pointwise_gradients(b, a.x, a.w, y);
  const auto row = depthwise_row(a);
  return row ? row_gradients(b, *row, y) : std::pair<Value, Value>();
}

// Arguments: gradient, input, weight, sizes of the bias, stride, padding, dilation, transposed, output padding, groups, mask. The
// input's gradient is a convolution with what was transposed and what was not exchanged, and so are the roles in the weight's.
Result convolution_backward(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(1), w = c.tensor(2), y = c.tensor(0);
  const bool transposed = c.flag(7);
  const DType type = x.dtype();
  if (!is_floating(type) || w.dtype() != type || y.dtype() != type || w.rank() < 3 || x.rank() != w.rank()) return std::nullopt;
  const bool is_empty = std::ranges::any_of(std::array{x, w, y}, [](const Value& v) { return v.type().numel() == SymInt(0); });
  if (is_empty) return std::nullopt;
  if (type == DType::f16 && x.type().device.kind == DeviceKind::cpu)
    for (Value* v : {&x, &w, &y}) *v = b.cast(*v, DType::f32);
  const auto n = static_cast<size_t>(w.rank()) - 2;
  const std::vector<int64_t> stride = for_each_dim(c.constants(4), n, 1), dilation = for_each_dim(c.constants(6), n, 1);
  const Shape padding = for_each_dim(c.ints(5), n, 0);
  const int64_t groups = c.constant(9);
  const SymInt in_channels = transposed ? w.shape()[0] : w.shape()[1] * SymInt(groups);
  Shape sizes = x.shape(), given = y.shape();
  sizes[1] = in_channels, given[0] = sizes[0], given[1] = transposed ? w.shape()[1] * SymInt(groups) : w.shape()[0];
  x = with_sizes(b, x, sizes);
  const Shape &large = transposed ? y.shape() : x.shape(), &kernel = w.shape();
  const Shape beyond = windows_beyond(c, stride, n);
  Shape left;  // of the larger side, what the last window does not reach
  for (size_t i = 0; i < n; ++i) {
    const SymInt reach = SymInt(dilation[i]) * (kernel[i + 2] - 1) + 1,
                 windows = floordiv(large[i + 2] + padding[i] * SymInt(2) - reach, stride[i]) + 1;
    left.push_back(large[i + 2] - ((windows - 1) * SymInt(stride[i]) - padding[i] * SymInt(2) + reach));
    (transposed ? sizes : given)[i + 2] = windows - beyond[i + 2];
  }
  (transposed ? x : y) = with_sizes(b, transposed ? x : y, transposed ? sizes : given);
  auto wanted = [&](size_t i) { return c.result(i).dtype != DType::opaque; };
  std::vector<Value> results(3);
  const Convolution a{
      .x = x, .w = w, .stride = stride, .dilation = dilation, .padding = padding, .transposed = transposed, .groups = groups};
  const auto [by_x, by_w] = gradients_apart(b, a, y);
  if (wanted(0)) results[0] = by_x;
  if (wanted(1)) results[1] = by_w;
  if (wanted(0) && !results[0])
    results[0] = b.emit(Op::conv, {y, w},
                        {{Attr::stride, stride},
                         {Attr::padding, padding},
                         {Attr::dilation, dilation},
                         {Attr::transposed, int64_t{!transposed}},
                         {Attr::output_padding, transposed ? Shape(n, SymInt(0)) : left},
                         {Attr::groups, groups}});
  for (size_t i = 2; results[0] && i < n + 2; ++i)
    if (beyond[i] != SymInt(0)) results[0] = narrow(b, results[0], static_cast<int64_t>(i), 0, sizes[i]);
  if (wanted(1) && !results[1] && !transposed) results[1] = gradient_of_patches(b, a, y);
  if (wanted(1) && !results[1])
    results[1] = b.emit(
        Op::conv_weight_gradient, transposed ? std::vector{y, pad(b, x, Shape(beyond.size(), SymInt(0)), beyond, 0.0)} : std::vector{x, y},
        {{Attr::stride, stride}, {Attr::padding, padding}, {Attr::dilation, dilation}, {Attr::groups, groups}, {Attr::shape, kernel}});
  if (wanted(2)) {
    std::vector<int64_t> dims{0};
    for (size_t i = 0; i < n; ++i) dims.push_back(static_cast<int64_t>(i) + 2);
    results[2] = b.reduce(Op::reduce_sum, b.cast(y, compute_dtype(type)), dims);
  }
  for (Value& v : results)
    if (v) v = b.cast(v, type);
  return results;
}

// Time, batch, channels.
Result conv_tbc(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0), w = c.tensor(1);
  Convolution a{.x = b.permute(x, {1, 2, 0}), .w = b.permute(w, {2, 1, 0}), .bias = c.tensor(2), .padding = {c.integer_or(3, 0)}};
  auto r = convolve(c, a);
  return r ? as_result(c, b.permute(r->at(0), {2, 0, 1})) : std::nullopt;
}

}  // namespace

void add_contraction_ops(OpTable& t) {
  auto product = [](OpCall& c) -> Result {
    Value x = c.tensor(0), y = c.tensor(1);
    return contractible({x, y}) && x.rank() && y.rank() ? as_result(c, matmul(c.b, x, y)) : std::nullopt;
  };
  add_real(t, "mm bmm mv dot vdot matmul linalg_matmul", product);
  // The products of bf16 and f16 numbers are exact in f32, integers of 8 bits widen before they meet.
  add_real(t, "mm.dtype bmm.dtype _int_mm", [](OpCall& c) -> Result {
    DType type = c.result().dtype;
    return as_result(c, matmul(c.b, c.b.cast(c.tensor(0), type), c.b.cast(c.tensor(1), type)));
  });
  add_real(t, "addmm baddbmm addmv", plus_product(matmul));
  add_real(t, "addmm.dtype baddbmm.dtype", plus_product(matmul, true));
  add_real(t, "addbmm", plus_product(sum_of_products));
  add_real(t, "addr", addr);
  add_real(t, "_addmm_activation", addmm_activation);
  add_real(t, "outer ger", [](OpCall& c) -> Result {
    Value x = c.tensor(0), y = c.tensor(1);
    return contractible({x, y}) ? as_result(c, outer(c.b, x, y)) : std::nullopt;
  });
  add_real(t, "linear", linear);
  add_real(t, "inner", inner);
  add_real(t, "tensordot", tensordot);
  add_real(t, "kron", kron);
  add_real(t, "_scaled_dot_product_attention_math", attention_math);
  add_real(t, "_scaled_dot_product_flash_attention_for_cpu", attention);
  add_real(t, "_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward);

  add_real(t, "convolution _convolution _convolution.deprecated convolution_overrideable",
           convolution({.bias = 2, .stride = 3, .padding = 4, .dilation = 5, .transposed = 6, .output_padding = 7, .groups = 8}));
  add_real(t, "convolution_backward convolution_backward_overrideable", convolution_backward);
  add_real(t, "conv1d conv2d conv3d", convolution({.bias = 2, .stride = 3, .padding = 4, .dilation = 5, .groups = 6}));
  add_real(t, "conv_transpose1d conv_transpose2d.input conv_transpose3d.input",
           convolution({.bias = 2, .stride = 3, .padding = 4, .dilation = 7, .output_padding = 5, .groups = 6, .always_transposed = true}));
  add_real(t, "conv1d.padding conv2d.padding conv3d.padding _convolution_mode", convolution_by_name);
  add_real(t, "mkldnn_convolution", convolution({.bias = 2, .stride = 4, .padding = 3, .dilation = 5, .groups = 6}));
  add_real(t, "cudnn_convolution", convolution({.bias = -1, .stride = 3, .padding = 2, .dilation = 4, .groups = 5}));
  add_real(
      t, "cudnn_convolution_transpose",
      convolution({.bias = -1, .stride = 4, .padding = 2, .dilation = 5, .output_padding = 3, .groups = 6, .always_transposed = true}));
  add_real(t, "thnn_conv2d _slow_conv2d_forward slow_conv3d slow_conv3d_forward",
           convolution({.bias = 3, .stride = 4, .padding = 5, .dilation = -1}));
  add_real(t, "slow_conv_dilated2d slow_conv_dilated3d", convolution({.bias = 3, .stride = 4, .padding = 5, .dilation = 6}));
  add_real(t, "slow_conv_transpose2d slow_conv_transpose3d",
           convolution({.bias = 3, .stride = 4, .padding = 5, .dilation = 7, .output_padding = 6, .always_transposed = true}));
  add_real(t, "_conv_depthwise2d conv_depthwise3d", convolution({.bias = 3, .stride = 4, .padding = 5, .dilation = 6, .depthwise = true}));
  add_real(t, "conv_tbc", conv_tbc);
}

}  // namespace broach
