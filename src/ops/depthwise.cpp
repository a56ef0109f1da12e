#include "ops/depthwise.h"

#include <vector>

#include "ops/formula.h"

namespace broach {

namespace {

int64_t taps_of(const DepthwiseRow& row) { return row.w.shape()[2].constant(); }

// Zeros before and behind each channel.
Value padded(GraphBuilder& b, const Value& x, const SymInt& by) { return pad(b, x, {0, 0, by}, {0, 0, by}, 0.0); }

// Of each channel the weight that its elements meet at a tap, [1, channels, 1].
Expr tap(GraphBuilder& b, const DepthwiseRow& row, int64_t k) {
  const Value weights = b.reshape(narrow(b, row.w, 2, k, 1), {1, row.w.shape()[0], 1});
  return Expr(b, weights).to(compute_dtype(row.w.dtype()));
}

Expr window(GraphBuilder& b, const Value& x, int64_t start, const SymInt& length) {
  return Expr(b, narrow(b, x, 2, start, length)).to(compute_dtype(x.dtype()));
}

}  // namespace

bool has_few_taps(const Shape& weight) {
  constexpr int64_t kMostTaps = 8;
  const auto taps = weight.size() == 3 ? weight[2].maybe_constant() : std::nullopt;
  return taps && *taps > 0 && *taps <= kMostTaps && weight[1] == SymInt(1);
}

Value convolve_row(GraphBuilder& b, const DepthwiseRow& row, std::optional<Value> bias) {
  const int64_t taps = taps_of(row);
  const SymInt length = row.x.shape()[2] + row.padding * SymInt(2) - SymInt(row.dilation * (taps - 1));
  const Value x = padded(b, row.x, row.padding);
  std::optional<Expr> sum;
  if (bias) sum = Expr(b, along(b, *bias, 1, 3)).to(compute_dtype(bias->dtype()));
  for (int64_t k = 0; k < taps; ++k) {
    const Expr w = tap(b, row, k), part = window(b, x, k * row.dilation, length);
    sum = sum ? multiply_add(w, part, *sum) : w * part;
  }
  return sum->value();
}

std::pair<Value, Value> row_gradients(GraphBuilder& b, const DepthwiseRow& row, Value y) {
  const int64_t taps = taps_of(row);
  const SymInt reach(row.dilation * (taps - 1)), length = row.x.shape()[2];
  const Value x = padded(b, row.x, row.padding), around = padded(b, y, reach - row.padding);
  std::optional<Expr> by_x;
  std::vector<Value> by_w;
  for (int64_t k = 0; k < taps; ++k) {
    const Expr w = tap(b, row, k), part = window(b, around, (taps - 1 - k) * row.dilation, length);
    by_x = by_x ? multiply_add(w, part, *by_x) : w * part;
    const Expr product = window(b, y, 0, y.shape()[2]) * window(b, x, k * row.dilation, y.shape()[2]);
    by_w.push_back(b.reshape(b.reduce(Op::reduce_sum, product.value(), {0, 2}), {row.w.shape()[0], 1, 1}));
  }
  return {by_x->value(), concat(b, std::move(by_w), 2)};
}

}  // namespace broach
