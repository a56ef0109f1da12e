// Pools and interpolation. A window is a chain over its elements, each a strided slice of the padded operand, so that the
// pool fuses with what is around it; windows that tile the operand are reductions of a reshape.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "ops/build.h"

namespace broach {

namespace {

using Result = std::optional<std::vector<Value>>;
using Taps = std::vector<int64_t>;

constexpr int64_t kMostTaps = 27;

struct Pool {
  std::vector<int64_t> kernel, stride, padding, dilation;
  bool ceil = false;

  size_t n() const { return kernel.size(); }
  int64_t extent(size_t d) const { return dilation[d] * (kernel[d] - 1) + 1; }
  int64_t taps() const { return std::accumulate(kernel.begin(), kernel.end(), int64_t{1}, std::multiplies<>()); }
};

std::vector<int64_t> per_dim(OpCall& c, size_t i, size_t n, int64_t otherwise) {
  std::vector<int64_t> v = c.is_none(i) ? std::vector<int64_t>() : c.constants(i);
  if (v.empty()) v = {otherwise};
  return v.size() == n ? v : std::vector<int64_t>(n, v[0]);
}

// Arguments from `at`: kernel, stride, padding, [dilation,] ceil_mode.
Pool pool_at(OpCall& c, size_t at, size_t n, bool dilated) {
  Pool p;
  p.kernel = per_dim(c, at, n, 1);
  bool own_stride = !c.is_none(at + 1) && !c.constants(at + 1).empty();
  p.stride = own_stride ? per_dim(c, at + 1, n, 1) : p.kernel;
  p.padding = per_dim(c, at + 2, n, 0);
  p.dilation = dilated ? per_dim(c, at + 3, n, 1) : std::vector<int64_t>(n, 1);
  p.ceil = c.flag(dilated ? at + 4 : at + 3);
  return p;
}

size_t lead(const Value& x, size_t n) { return x.shape().size() - n; }
const SymInt& size_at(const Value& x, size_t n, size_t d) { return x.shape()[lead(x, n) + d]; }

bool poolable(const Value& x, size_t n) { return x.shape().size() == n + 1 || x.shape().size() == n + 2; }

Shape output_sizes(GraphBuilder& b, const Pool& p, const Value& x) {
  Shape out;
  for (size_t d = 0; d < p.n(); ++d) {
    const SymInt& in = size_at(x, p.n(), d);
    SymInt size = floordiv(in + 2 * p.padding[d] - p.extent(d) + (p.ceil ? p.stride[d] - 1 : 0), p.stride[d]) + 1;
    // The last window must begin inside the operand or its left padding.
    if (p.ceil && b.symbols().ask(in + p.padding[d], Relation::le, (size - 1) * SymInt(p.stride[d]))) size = size - 1;
    out.push_back(size);
  }
  return out;
}

// Every combination of 0 .. counts[d] - 1, the last fastest.
void for_each_tap(const Taps& counts, const std::function<void(const Taps&)>& body) {
  Taps at(counts.size(), 0);
  for (bool more = true; more;) {
    body(at);
    more = false;
    for (size_t d = counts.size(); d-- > 0 && !more;) {
      more = ++at[d] < counts[d];
      if (!more) at[d] = 0;
    }
  }
}

Value padded(GraphBuilder& b, const Pool& p, Value x, Scalar value) {
  Shape low(x.shape().size(), SymInt(0)), high = low;
  for (size_t d = 0; d < p.n(); ++d) {
    low[lead(x, p.n()) + d] = p.padding[d];
    high[lead(x, p.n()) + d] = p.padding[d] + (p.ceil ? p.stride[d] - 1 : 0);
  }
  return pad(b, x, low, high, value);
}

// Element `at` of every window.
Value tap(GraphBuilder& b, const Pool& p, Value padded, const Shape& out, const Taps& at) {
  for (size_t d = 0; d < p.n(); ++d)
    padded = narrow(b, padded, static_cast<int64_t>(lead(padded, p.n()) + d), at[d] * p.dilation[d], out[d], p.stride[d]);
  return padded;
}

// Row-major strides of the last n dimensions.
Shape plane_strides(const Value& x, size_t n) {
  return contiguous_strides(Shape(x.shape().end() - static_cast<int64_t>(n), x.shape().end()));
}

Value scaled(GraphBuilder& b, Value index, const SymInt& by) {
  return by == SymInt(1) ? index : b.binary(Op::mul, index, size_value(b, by));
}

// The sum over dimensions of coordinate * stride, laid along the last n dimensions of a tensor of rank `rank`.
Value plane_positions(GraphBuilder& b, const std::vector<Value>& coordinates, const Shape& strides, int rank) {
  Value sum;
  for (size_t d = 0; d < coordinates.size(); ++d) {
    Value part = along(b, scaled(b, coordinates[d], strides[d]), rank - static_cast<int64_t>(coordinates.size() - d), rank);
    sum = sum ? b.binary(Op::add, sum, part) : part;
  }
  return sum;
}

Value all_positions(GraphBuilder& b, const Value& x, size_t n) {
  std::vector<Value> coordinates;
  for (size_t d = 0; d < n; ++d) coordinates.push_back(positions(b, size_at(x, n, d)));
  return plane_positions(b, coordinates, plane_strides(x, n), x.rank());
}

// Where each window begins, before the left border is cut off.
Value window_starts(GraphBuilder& b, const Pool& p, size_t d, const SymInt& out) {
  return with_number(b, Op::sub, with_number(b, Op::mul, positions(b, out), p.stride[d]), p.padding[d]);
}

// ---- tiles: the operand's last n dimensions split exactly ----

// How many elements a tile has in each dimension, for `out` tiles; nothing if they do not tile it.
std::optional<Shape> tile_sizes(const Value& x, const Shape& out) {
  Shape k;
  for (size_t d = 0; d < out.size(); ++d) {
    const SymInt& in = size_at(x, out.size(), d);
    auto i = in.maybe_constant(), o = out[d].maybe_constant();
    if (in == out[d]) k.push_back(1);
    else if (o == 1) k.push_back(in);
    else if (i && o && *o > 0 && *i % *o == 0) k.push_back(*i / *o);
    else return std::nullopt;
    if (k.back() == SymInt(0) || o == 0) return std::nullopt;
  }
  return k;
}

// [.., o1 * k1, o2 * k2] as [.., o1, k1, o2, k2].
Value split(GraphBuilder& b, Value x, const Shape& out, const Shape& k) {
  Shape shape(x.shape().begin(), x.shape().end() - static_cast<int64_t>(k.size()));
  for (size_t d = 0; d < k.size(); ++d) shape.insert(shape.end(), {out[d], k[d]});
  return b.reshape(x, shape);
}

std::vector<int64_t> inner_dims(const Value& tiles, size_t n) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < n; ++d) dims.push_back(tiles.rank() - 2 * static_cast<int64_t>(n - d) + 1);
  return dims;
}

// Each element k times along each of the last dimensions.
Value repeated(GraphBuilder& b, Value x, const Shape& k) {
  size_t n = k.size();
  Shape out(x.shape().end() - static_cast<int64_t>(n), x.shape().end()),
      result(x.shape().begin(), x.shape().end() - static_cast<int64_t>(n));
  Value t = split(b, x, out, Shape(n, SymInt(1)));
  Shape wide = t.shape();
  for (size_t d = 0; d < n; ++d) {
    wide[wide.size() - 2 * (n - d) + 1] = k[d];
    result.push_back(out[d] * k[d]);
  }
  return b.reshape(b.expand(t, wide), result);
}

// The operand's part that windows without overlap or border cover, if this pool is of that kind.
std::optional<Value> tiled_part(GraphBuilder& b, const Pool& p, Value x, const Shape& out) {
  for (size_t d = 0; d < p.n(); ++d) {
    bool apart = p.stride[d] == p.kernel[d] || out[d] == SymInt(1);
    if (!apart || p.padding[d] || (p.dilation[d] != 1 && p.kernel[d] != 1) || p.ceil) return std::nullopt;
    x = narrow(b, x, static_cast<int64_t>(lead(x, p.n()) + d), 0, out[d] * SymInt(p.kernel[d]));
  }
  return x;
}

Shape sizes_of(const std::vector<int64_t>& v) { return Shape(v.begin(), v.end()); }

// ---- maximum ----

Value beats(GraphBuilder& b, Value v, Value best) {
  Value more = b.binary(Op::gt, v, best);
  return is_floating(v.dtype()) ? b.binary(Op::bit_or, more, b.unary(Op::is_nan, v)) : more;
}

// Maxima of tiles and, as eager has it, the position of the first maximum, or of the last NaN. `whole` is the tensor in whose
// planes positions count.
struct Windows {
  Value tiles;                // as `split` has them
  Value inside;               // which elements belong to their window; null for all
  std::vector<Value> firsts;  // where windows begin in each dimension
  Shape k;
};

Windows tiles_of(GraphBuilder& b, Value x, const Shape& out, const Shape& k) {
  Windows w{split(b, x, out, k), {}, {}, k};
  for (size_t d = 0; d < k.size(); ++d) w.firsts.push_back(scaled(b, positions(b, out[d]), k[d]));
  return w;
}

// Window i of an adaptive pool holds the elements from floor(i * in / out) to ceil((i + 1) * in / out), exclusive. Each is read as
// one of the size of the largest, whose last elements may be outside. Nothing where sizes are symbols.
std::optional<Windows> adaptive_windows(GraphBuilder& b, Value x, const Shape& out) {
  Windows w;
  size_t n = out.size();
  std::vector<Value> counts;
  for (size_t d = 0; d < n; ++d) {
    auto in = size_at(x, n, d).maybe_constant(), o = out[d].maybe_constant();
    if (!in || !o || *in < 1 || *o < 1) return std::nullopt;
    int64_t most = 1;
    for (int64_t i = 0; i < *o; ++i) most = std::max(most, ((i + 1) * *in + *o - 1) / *o - i * *in / *o);
    w.k.push_back(most);
    Value i = positions(b, out[d]), size = b.constant(*o, DType::i64);
    Value first = b.binary(Op::floor_div, with_number(b, Op::mul, i, *in), b.expand(size, i.shape()));
    Value end = with_number(b, Op::floor_div,
                            with_number(b, Op::add, with_number(b, Op::mul, with_number(b, Op::add, i, int64_t{1}), *in), *o - 1), *o);
    w.firsts.push_back(first);
    counts.push_back(b.binary(Op::sub, end, first));
  }
  for (size_t d = 0; d < n; ++d) {
    Value at = b.binary(Op::add, along(b, w.firsts[d], 0, 2), along(b, positions(b, w.k[d]), 1, 2));
    at = with_number(b, Op::min, b.reshape(at, {out[d] * w.k[d]}), size_at(x, n, d).constant() - 1);
    x = take(b, x, at, static_cast<int64_t>(lead(x, n) + d));
  }
  w.tiles = split(b, x, out, w.k);
  std::vector<int64_t> dims = inner_dims(w.tiles, n);
  for (size_t d = 0; d < n; ++d) {
    Value inside =
        b.binary(Op::lt, along(b, positions(b, w.k[d]), dims[d], w.tiles.rank()), along(b, counts[d], dims[d] - 1, w.tiles.rank()));
    w.inside = w.inside ? b.binary(Op::bit_and, w.inside, inside) : inside;
  }
  w.inside = broadcast_to(b, w.inside, w.tiles.shape());
  return w;
}

std::vector<Value> window_maxima(GraphBuilder& b, const Windows& w, const Value& whole) {
  const Shape& k = w.k;
  size_t n = k.size();
  Value tiles = w.inside ? b.where(w.inside, w.tiles, b.constant(lowest(w.tiles.dtype()), w.tiles.dtype())) : w.tiles;
  std::vector<int64_t> dims = inner_dims(tiles, n);
  Shape strides = plane_strides(whole, n), inside = contiguous_strides(k);
  Value best = b.reduce(Op::reduce_max, tiles, dims), at = b.reduce(Op::reduce_argmax, tiles, dims), local;
  if (is_floating(tiles.dtype())) {
    for (size_t d = 0; d < n; ++d) {
      Value part = along(b, scaled(b, positions(b, k[d]), inside[d]), dims[d], tiles.rank());
      local = local ? b.binary(Op::add, local, part) : part;
    }
    Value last = b.reduce(Op::reduce_max, b.where(b.unary(Op::is_nan, tiles), local, b.constant(int64_t{-1}, DType::i64)), dims);
    at = b.where(with_number(b, Op::ge, last, int64_t{0}), last, at);
  }
  Value position = plane_positions(b, w.firsts, strides, at.rank()), rest = at;
  for (size_t d = 0; d < n; ++d) {
    Value step = size_value(b, inside[d]);
    position = b.binary(Op::add, position, scaled(b, b.binary(Op::floor_div, rest, step), strides[d]));
    rest = b.binary(Op::mod, rest, step);
  }
  return {best, position};
}

// The position that eager gives a window of -inf: its first inside the operand.
Value first_positions(GraphBuilder& b, const Pool& p, const Value& x, const Shape& out) {
  std::vector<Value> first;
  for (size_t d = 0; d < p.n(); ++d) {
    Value start = window_starts(b, p, d, out[d]);
    Value inside = with_number(b, Op::mod, start, p.dilation[d]);
    first.push_back(p.padding[d] ? b.where(with_number(b, Op::lt, start, int64_t{0}), inside, start) : start);
  }
  return plane_positions(b, first, plane_strides(x, p.n()), x.rank());
}

std::vector<Value> window_max(GraphBuilder& b, const Pool& p, Value x, const Shape& out) {
  Shape strides = plane_strides(x, p.n());
  std::vector<Value> starts;
  for (size_t d = 0; d < p.n(); ++d) starts.push_back(window_starts(b, p, d, out[d]));
  Value base = plane_positions(b, starts, strides, x.rank()), source = padded(b, p, x, lowest(x.dtype()));
  Value best, at = first_positions(b, p, x, out);
  for_each_tap(p.kernel, [&](const Taps& t) {
    Value v = tap(b, p, source, out, t);
    SymInt offset(0);
    for (size_t d = 0; d < p.n(); ++d) offset = offset + strides[d] * SymInt(t[d] * p.dilation[d]);
    Value better = beats(b, v, best ? best : b.constant(lowest(x.dtype()), x.dtype()));
    at = b.where(better, b.binary(Op::add, base, size_value(b, offset)), at);
    best = best ? b.where(better, v, best) : v;
  });
  return {best, at};
}

Lowering max_pool(size_t n) {
  return [n](OpCall& c) -> Result {
    Value x = c.tensor(0);
    if (!poolable(x, n) || x.dtype() == DType::b1) return std::nullopt;
    Pool p = pool_at(c, 1, n, true);
    Shape out = output_sizes(c.b, p, x);
    std::vector<Value> r;
    if (p.taps() <= kMostTaps) r = window_max(c.b, p, x, out);
    else if (auto part = tiled_part(c.b, p, x, out)) r = window_maxima(c.b, tiles_of(c.b, *part, out, sizes_of(p.kernel)), x);
    else return std::nullopt;
    r.resize(c.results().size());
    return r;
  };
}

Lowering adaptive_max_pool(size_t n) {
  return [n](OpCall& c) -> Result {
    Value x = c.tensor(0);
    Shape out = c.ints(1);
    out.resize(n, out[0]);
    if (!poolable(x, n) || !is_floating(x.dtype())) return std::nullopt;
    if (auto k = tile_sizes(x, out)) return window_maxima(c.b, tiles_of(c.b, x, out, *k), x);
    auto w = adaptive_windows(c.b, x, out);
    return w ? std::optional(window_maxima(c.b, *w, x)) : std::nullopt;
  };
}

// ---- average ----

// How many elements count for each window, if that differs from window to window.
Value divisor(GraphBuilder& b, const Pool& p, const Value& x, const Shape& out, bool with_border, DType type) {
  Value count;
  for (size_t d = 0; d < p.n(); ++d) {
    Value in = size_value(b, size_at(x, p.n(), d)), start = window_starts(b, p, d, out[d]);
    Value end = b.binary(Op::min, with_number(b, Op::add, start, p.kernel[d]), with_number(b, Op::add, in, p.padding[d]));
    if (!with_border) {
      start = with_number(b, Op::max, start, int64_t{0});
      end = b.binary(Op::min, end, in);
    }
    Value part = along(b, b.binary(Op::sub, end, start), x.rank() - static_cast<int64_t>(p.n() - d), x.rank());
    count = count ? b.binary(Op::mul, count, part) : part;
  }
  return b.cast(count, type);
}

// v / divisor, in v's type; the arguments of avg_pool from `at`: ceil_mode, count_include_pad, divisor_override.
Value divided(OpCall& c, const Pool& p, Value v, const Value& x, const Shape& out, size_t at) {
  bool with_border = c.is_none(at + 1) || c.flag(at + 1);
  bool border = std::any_of(p.padding.begin(), p.padding.end(), [](int64_t i) { return i != 0; });
  if (!c.is_none(at + 2)) return with_number(c.b, Op::div, v, c.constant(at + 2));
  if (!p.ceil && (with_border || !border)) return with_number(c.b, Op::div, v, p.taps());
  return c.b.binary(Op::div, v, divisor(c.b, p, x, out, with_border, v.dtype()));
}

Lowering avg_pool(size_t n) {
  return [n](OpCall& c) -> Result {
    GraphBuilder& b = c.b;
    Value x = c.tensor(0), sum;
    if (!poolable(x, n) || x.dtype() == DType::b1) return std::nullopt;
    Pool p = pool_at(c, 1, n, false);
    Shape out = output_sizes(b, p, x);
    Value wide = b.cast(x, compute_dtype(x.dtype()));
    if (p.taps() <= kMostTaps) {
      Value source = padded(b, p, wide, 0.0);
      // Eager starts from 0, which turns a sum of -0 to 0.
      sum = b.constant(0.0, wide.dtype());
      for_each_tap(p.kernel, [&](const Taps& t) { sum = b.binary(Op::add, tap(b, p, source, out, t), sum); });
    } else if (auto part = tiled_part(b, p, wide, out)) {
      Value tiles = split(b, *part, out, sizes_of(p.kernel));
      sum = b.reduce(Op::reduce_sum, tiles, inner_dims(tiles, n));
    } else {
      return std::nullopt;
    }
    return as_result(c, b.cast(divided(c, p, sum, x, out, 4), x.dtype()));
  };
}

// Eager divides by one size after the other.
Value divided_by_each(GraphBuilder& b, Value v, const Shape& k) {
  for (const SymInt& size : k)
    if (size != SymInt(1)) v = b.binary(Op::div, v, size_number(b, size, v.dtype()));
  return v;
}

// Means of windows of unequal sizes.
Result adaptive_mean(OpCall& c, const Shape& out) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
  DType wide = compute_dtype(x.dtype());
  auto w = adaptive_windows(b, b.cast(x, wide), out);
  if (!w) return std::nullopt;
  std::vector<int64_t> dims = inner_dims(w->tiles, out.size());
  Value sum = b.reduce(Op::reduce_sum, b.where(w->inside, w->tiles, b.constant(0.0, wide)), dims);
  Value count = b.cast(b.reduce(Op::reduce_sum, b.cast(w->inside, DType::i64), dims), wide);
  return as_result(c, b.cast(b.binary(Op::div, sum, count), x.dtype()));
}

Lowering adaptive_avg_pool(size_t n) {
  return [n](OpCall& c) -> Result {
    GraphBuilder& b = c.b;
    Value x = c.tensor(0);
    Shape out = c.ints(1);
    out.resize(n, out[0]);
    if (!poolable(x, n) || !is_floating(x.dtype())) return std::nullopt;
    auto k = tile_sizes(x, out);
    if (!k) return adaptive_mean(c, out);
    Value tiles = split(b, b.cast(x, compute_dtype(x.dtype())), out, *k);
    Value sum = b.reduce(Op::reduce_sum, tiles, inner_dims(tiles, n));
    // To a single element eager takes the mean.
    bool mean = std::all_of(out.begin(), out.end(), [](const SymInt& s) { return s == SymInt(1); });
    Value r = mean ? b.binary(Op::div, sum, size_number(b, product(*k), sum.dtype())) : divided_by_each(b, sum, *k);
    return as_result(c, b.cast(r, x.dtype()));
  };
}

// ---- gradients ----

// For every element of the operand, the value of the `back`th of the windows that can hold it, counted from the last; `outside` if
// there is none. With `exact`, elements that this window does not reach read `outside` too (for a dilation of 1).
Value spread(GraphBuilder& b, const Pool& p, Value windows, const Value& x, const Taps& reach, const Taps& back, Scalar outside,
             bool exact) {
  size_t n = p.n();
  Shape low(windows.shape().size(), SymInt(0)), high = low, repeats, tail(2 * n + lead(windows, n), SymInt(0));
  Shape none = tail, merged(windows.shape().begin(), windows.shape().end() - static_cast<int64_t>(n));
  for (size_t d = 0; d < n; ++d) {
    size_t i = lead(windows, n) + d;
    low[i] = reach[d] - 1;
    high[i] = reach[d];
    int64_t copies = exact ? std::min(p.stride[d], p.kernel[d] - back[d] * p.stride[d]) : p.stride[d];
    repeats.push_back(copies);
    tail[tail.size() - 2 * (n - d) + 1] = p.stride[d] - copies;
    merged.push_back((windows.shape()[i] + low[i] + high[i]) * SymInt(p.stride[d]));
  }
  Value wide = pad(b, windows, low, high, outside);
  Shape counts(wide.shape().end() - static_cast<int64_t>(n), wide.shape().end());
  Value tiles = split(b, repeated(b, wide, repeats), counts, repeats);
  Value all = b.reshape(pad(b, tiles, none, tail, outside), merged);
  for (size_t d = 0; d < n; ++d) {
    int64_t start = p.padding[d] + (reach[d] - 1 - back[d]) * p.stride[d];
    all = narrow(b, all, static_cast<int64_t>(lead(all, n) + d), start, size_at(x, n, d));
  }
  return all;
}

// How many windows can hold one element.
Taps reach_of(const Pool& p) {
  Taps r;
  for (size_t d = 0; d < p.n(); ++d) r.push_back((p.extent(d) + p.stride[d] - 1) / p.stride[d]);
  return r;
}

// Sums part(back) over the windows that can hold an element, in eager's order: from the first window to the last.
std::optional<Value> sum_over_windows(GraphBuilder& b, const Pool& p,
                                      const std::function<Value(const Taps& reach, const Taps& back)>& part) {
  Taps reach = reach_of(p);
  if (std::accumulate(reach.begin(), reach.end(), int64_t{1}, std::multiplies<>()) > kMostTaps) return std::nullopt;
  Value sum;
  for_each_tap(reach, [&](const Taps& t) {
    Taps back;
    for (size_t d = 0; d < t.size(); ++d) back.push_back(reach[d] - 1 - t[d]);
    Value v = part(reach, back);
    sum = b.binary(Op::add, v, sum ? sum : b.constant(0.0, v.dtype()));
  });
  return sum;
}

// Positions within a plane in half the bytes, where they all fit: the gradient reads each several times.
DType type_of_positions(const Value& x, size_t n) {
  const auto elements = product(std::span(x.shape()).last(n)).maybe_constant();
  return elements && *elements <= std::numeric_limits<int32_t>::max() ? DType::i32 : DType::i64;
}

// grad_output, self, kernel, stride, padding, dilation, ceil_mode, indices
Lowering max_pool_backward(size_t n) {
  return [n](OpCall& c) -> Result {
    GraphBuilder& b = c.b;
    Value g = c.tensor(0), x = c.tensor(1);
    if (!poolable(x, n) || !is_floating(g.dtype())) return std::nullopt;
    Pool p = pool_at(c, 2, n, true);
    const DType t = type_of_positions(x, n);
    Value wide = b.cast(g, compute_dtype(g.dtype())), indices = b.cast(with_sizes(b, c.tensor(7), g.shape()), t);
    Value here = b.cast(all_positions(b, x, n), t);
    auto sum = sum_over_windows(b, p, [&](const Taps& reach, const Taps& back) {
      Value chosen = b.binary(Op::eq, spread(b, p, indices, x, reach, back, int64_t{-1}, false), here);
      return b.where(chosen, spread(b, p, wide, x, reach, back, 0.0, false), b.constant(0.0, wide.dtype()));
    });
    return sum ? as_result(c, b.cast(*sum, g.dtype())) : std::nullopt;
  };
}

// grad_output, self, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
Lowering avg_pool_backward(size_t n) {
  return [n](OpCall& c) -> Result {
    GraphBuilder& b = c.b;
    Value g = c.tensor(0), x = c.tensor(1);
    if (!poolable(x, n) || !is_floating(g.dtype())) return std::nullopt;
    Pool p = pool_at(c, 2, n, false);
    Shape out(g.shape().end() - static_cast<int64_t>(n), g.shape().end());
    Value share = divided(c, p, b.cast(g, compute_dtype(g.dtype())), x, out, 5);
    auto sum = sum_over_windows(b, p, [&](const Taps& reach, const Taps& back) { return spread(b, p, share, x, reach, back, 0.0, true); });
    return sum ? as_result(c, b.cast(*sum, g.dtype())) : std::nullopt;
  };
}

// grad_output, self[, indices]
Lowering adaptive_pool_backward(size_t n, bool maximum) {
  return [=](OpCall& c) -> Result {
    GraphBuilder& b = c.b;
    Value g = c.tensor(0), x = c.tensor(1);
    Shape out(g.shape().end() - static_cast<int64_t>(n), g.shape().end());
    auto k = poolable(x, n) && is_floating(g.dtype()) ? tile_sizes(x, out) : std::nullopt;
    if (!k) return std::nullopt;
    if (!maximum) {
      Value share = divided_by_each(b, b.cast(g, compute_dtype(g.dtype())), *k);
      return as_result(c, b.cast(repeated(b, share, *k), g.dtype()));
    }
    Value chosen = b.binary(Op::eq, repeated(b, with_sizes(b, c.tensor(2), g.shape()), *k), all_positions(b, x, n));
    return as_result(c, b.where(chosen, repeated(b, g, *k), b.constant(0.0, g.dtype())));
  };
}

// ---- interpolation ----

// Eager has several formulas for the nearest source position, by memory format and element type.
using Nearest = int64_t (*)(int64_t i, int64_t in, int64_t out, double scale);

template <class T>
T ratio(int64_t in, int64_t out, double scale) {
  return scale > 0 ? static_cast<T>(1.0 / scale) : static_cast<T>(in) / static_cast<T>(out);
}

int64_t below(double position, int64_t in) { return std::min(static_cast<int64_t>(std::floor(static_cast<float>(position))), in - 1); }

constexpr Nearest kNearest[] = {
    [](int64_t i, int64_t in, int64_t out, double s) { return below(ratio<float>(in, out, s) * static_cast<float>(i), in); },
    [](int64_t i, int64_t in, int64_t out, double s) { return below(ratio<double>(in, out, s) * static_cast<double>(i), in); },
    [](int64_t i, int64_t in, int64_t out, double s) {
      return out == in ? i : out == 2 * in ? i / 2 : below(ratio<float>(in, out, s) * static_cast<float>(i), in);
    },
};

// With and without rounding between product and difference.
template <class T>
int64_t nearest_exact(int64_t i, int64_t in, int64_t out, double s, bool fused) {
  double scale = ratio<T>(in, out, s), at = static_cast<double>(i) + 0.5;
  T real = fused ? static_cast<T>(scale * at - 0.5) : static_cast<T>(static_cast<T>(scale * at) - T(0.5));
  return below(static_cast<double>(std::max(real, T(0))) + 0.5, in);
}

constexpr Nearest kNearestExact[] = {
    [](int64_t i, int64_t in, int64_t out, double s) {
      return below((static_cast<double>(i) + 0.5) * static_cast<double>(ratio<float>(in, out, s)), in);
    },
    [](int64_t i, int64_t in, int64_t out, double s) { return nearest_exact<float>(i, in, out, s, false); },
    [](int64_t i, int64_t in, int64_t out, double s) { return nearest_exact<float>(i, in, out, s, true); },
    [](int64_t i, int64_t in, int64_t out, double s) { return nearest_exact<double>(i, in, out, s, false); },
};

// The source position of each output, where all formulas agree on it.
std::optional<Taps> nearest_sources(int64_t in, int64_t out, double scale, bool exact) {
  std::span<const Nearest> formulas = exact ? std::span<const Nearest>(kNearestExact) : std::span<const Nearest>(kNearest);
  Taps sources;
  for (int64_t i = 0; i < out; ++i) {
    sources.push_back(formulas[0](i, in, out, scale));
    for (Nearest f : formulas)
      if (f(i, in, out, scale) != sources.back()) return std::nullopt;
  }
  return sources;
}

// out = in * k where each element repeats k times; 0 if it is not so.
int64_t repetition(const SymInt& in, const SymInt& out, double scale, const std::optional<Taps>& sources, GraphBuilder& b) {
  int64_t k = b.symbols().hint(out) / std::max<int64_t>(b.symbols().hint(in), 1);
  if (k < 1 || out != in * SymInt(k)) return 0;
  // Powers of two are exact whatever the size.
  bool power = (k & (k - 1)) == 0 && (scale <= 0 || scale == static_cast<double>(k));
  if (!sources) return power ? k : 0;
  for (size_t i = 0; i < sources->size(); ++i)
    if ((*sources)[i] != static_cast<int64_t>(i) / k) return 0;
  return k;
}

// floor(i * in / out) in f32, as the first formula of each table.
Value nearest_index(GraphBuilder& b, const SymInt& in, const SymInt& out, double scale, bool exact) {
  Value i = positions(b, out, exact ? DType::f64 : DType::f32), by;
  if (in.is_constant() && out.is_constant()) by = b.constant(double{ratio<float>(in.constant(), out.constant(), scale)}, i.dtype());
  else by = b.binary(Op::div, size_number(b, in, DType::f32), size_number(b, out, DType::f32));
  if (exact) i = with_number(b, Op::add, i, 0.5);
  Value at = b.unary(Op::floor, b.cast(b.binary(Op::mul, i, by), DType::f32));
  return b.binary(Op::min, b.cast(at, DType::i64), size_value(b, in - 1));
}

Value repeat_along(GraphBuilder& b, Value x, int64_t dim, int64_t k) {
  Shape shape = x.shape(), wide = x.shape();
  wide.insert(wide.begin() + dim + 1, SymInt(k));
  shape[static_cast<size_t>(dim)] = shape[static_cast<size_t>(dim)] * SymInt(k);
  return b.reshape(b.expand(unsqueeze(b, x, dim + 1), wide), shape);
}

std::optional<Value> nearest_along(GraphBuilder& b, Value x, int64_t dim, const SymInt& out, double scale, bool exact) {
  const SymInt& in = x.shape()[static_cast<size_t>(dim)];
  std::optional<Taps> sources;
  bool numbers = in.is_constant() && out.is_constant();
  if (numbers && !(sources = nearest_sources(in.constant(), out.constant(), scale, exact))) return std::nullopt;
  if (int64_t k = repetition(in, out, scale, sources, b)) return k == 1 ? x : repeat_along(b, x, dim, k);
  if (!numbers && (exact || scale > 0 || x.dtype() == DType::f64)) return std::nullopt;
  if (numbers && out.constant() > 0 && in.constant() % out.constant() == 0) {
    int64_t step = in.constant() / out.constant(), i = 0;
    if (std::all_of(sources->begin(), sources->end(), [&](int64_t s) { return s == step * i++; })) return narrow(b, x, dim, 0, out, step);
  }
  return take(b, x, nearest_index(b, in, out, scale, exact), dim);
}

// The scale factors of n dimensions from argument `at`; 0 where none is given.
std::vector<double> scales_at(OpCall& c, size_t at, size_t n) {
  std::vector<double> s;
  for (size_t d = 0; d < n; ++d) s.push_back(c.number_or(at + d, 0));
  return s;
}

// self, output_size, scales.. The overloads `.vec` come with their scale factors as a list, which only its absence is handled of.
Lowering nearest(size_t n, bool exact) {
  return [=](OpCall& c) -> Result {
    Value x = c.tensor(0);
    if (x.shape().size() != n + 2 || c.is_none(1) || (c.schema.ends_with(".vec") && !c.is_none(2))) return std::nullopt;
    Shape out = c.ints(1);
    std::vector<double> scales = scales_at(c, 2, n);
    std::optional<Value> r = x;
    for (size_t d = 0; d < n && r; ++d) r = nearest_along(c.b, *r, static_cast<int64_t>(d) + 2, out.at(d), scales[d], exact);
    return r ? as_result(c, *r) : std::nullopt;
  };
}

// grad_output, output_size, input_size, scales..: where every element was repeated equally often.
Lowering nearest_backward(size_t n, bool exact) {
  return [=](OpCall& c) -> Result {
    GraphBuilder& b = c.b;
    Value g = c.tensor(0);
    Shape in = c.ints(2), kept(in.begin() + 2, in.end()), k;
    std::vector<double> scales = scales_at(c, 3, n);
    for (size_t d = 0; d < n; ++d) {
      const SymInt &i = kept.at(d), &o = size_at(g, n, d);
      std::optional<Taps> sources;
      if (i.is_constant() && o.is_constant() && !(sources = nearest_sources(i.constant(), o.constant(), scales[d], exact)))
        return std::nullopt;
      k.push_back(repetition(i, o, scales[d], sources, b));
      if (k.back() == SymInt(0)) return std::nullopt;
    }
    Value tiles = split(b, b.cast(g, compute_dtype(g.dtype())), kept, k);
    return as_result(c, b.cast(b.reduce(Op::reduce_sum, tiles, inner_dims(tiles, n)), g.dtype()));
  };
}

// x * y + number where eager's compiler made it one rounding: f64 holds the product of two f32 numbers.
Value times_plus(GraphBuilder& b, Value x, Value y, double number) {
  Value r = b.binary(Op::mul, b.cast(x, DType::f64), b.cast(y, DType::f64));
  return b.cast(with_number(b, Op::add, r, number), x.dtype());
}

struct Interpolation {
  std::vector<Value> indices, weights;  // vectors over the output; a null index is the position itself
};

// The source coordinate of each output, as area_pixel_compute_source_index has it.
Value source_coordinates(GraphBuilder& b, const SymInt& in, const SymInt& out, bool align, double scale, DType type) {
  bool single = align && !b.symbols().ask(1, Relation::lt, out);
  SymInt low = align ? SymInt(1) : SymInt(0);
  Value by;
  if (single) by = b.constant(0.0, type);
  else if (!align && scale > 0) by = b.constant(type == DType::f64 ? 1.0 / scale : double{static_cast<float>(1.0 / scale)}, type);
  else by = b.binary(Op::div, size_number(b, in - low, type), size_number(b, out - low, type));
  Value i = positions(b, out, type);
  if (align) return b.binary(Op::mul, i, by);
  return times_plus(b, with_number(b, Op::add, i, 0.5), by, -0.5);
}

Value clamped(GraphBuilder& b, Value x, Scalar low, Scalar high) { return with_number(b, Op::min, with_number(b, Op::max, x, low), high); }

// floor(real) but inside the operand, and how far beyond it real is, in 0 .. 1.
std::pair<Value, Value> index_and_rest(GraphBuilder& b, Value real, const SymInt& in) {
  Value floor = b.cast(b.unary(Op::floor, b.cast(real, DType::f32)), DType::i64);
  Value index = b.binary(Op::min, floor, size_value(b, in - 1));
  return {index, clamped(b, b.binary(Op::sub, real, b.cast(index, real.dtype())), 0.0, 1.0)};
}

Interpolation linear_weights(GraphBuilder& b, const SymInt& in, const SymInt& out, bool align, double scale, DType type) {
  // Eager multiplies by 1 and 0 here, so that infinities become NaN.
  if (b.symbols().equal(in, out)) return {{Value(), Value()}, {b.full({out}, 1.0, type), b.full({out}, 0.0, type)}};
  Value real = source_coordinates(b, in, out, align, scale, type);
  if (!align) real = with_number(b, Op::max, real, 0.0);
  auto [index, rest] = index_and_rest(b, real, in);
  Value next = b.binary(Op::min, with_number(b, Op::add, index, int64_t{1}), size_value(b, in - 1));
  return {{index, next}, {b.binary(Op::sub, b.full({out}, 1.0, type), rest), rest}};
}

// The cubic convolution's weight at distance x: within 1, and from 1 to 2.
Value cubic_near(GraphBuilder& b, Value x) {
  Value v = with_number(b, Op::sub, with_number(b, Op::mul, x, 1.25), 2.25);
  return with_number(b, Op::add, b.binary(Op::mul, b.binary(Op::mul, v, x), x), 1.0);
}
Value cubic_far(GraphBuilder& b, Value x) {
  Value v = times_plus(b, times_plus(b, x, b.constant(-0.75, x.dtype()), 3.75), x, -6.0);
  return with_number(b, Op::add, b.binary(Op::mul, v, x), 3.0);
}

Interpolation cubic_weights(GraphBuilder& b, const SymInt& in, const SymInt& out, bool align, double scale, DType type) {
  auto [index, t] = index_and_rest(b, source_coordinates(b, in, out, align, scale, type), in);
  Value u = b.binary(Op::sub, b.full({out}, 1.0, type), t);
  Interpolation r{
      {},
      {cubic_far(b, with_number(b, Op::add, t, 1.0)), cubic_near(b, t), cubic_near(b, u), cubic_far(b, with_number(b, Op::add, u, 1.0))}};
  for (int64_t j = 0; j < 4; ++j) {
    Value at = b.binary(Op::min, with_number(b, Op::add, index, j - 1), size_value(b, in - 1));
    r.indices.push_back(with_number(b, Op::max, at, int64_t{0}));
  }
  return r;
}

// The weighted sum along dimension `dim` of the weighted sums along those after it.
Value interpolated(GraphBuilder& b, Value x, size_t dim, const std::vector<Interpolation>& dims) {
  if (dim == dims.size()) return x;
  Value sum;
  const Interpolation& w = dims[dim];
  for (size_t j = 0; j < w.indices.size(); ++j) {
    int64_t at = static_cast<int64_t>(dim) + 2;
    Value source = w.indices[j] ? take(b, x, w.indices[j], at) : with_sizes(b, x, [&] {
      Shape s = x.shape();
      s[dim + 2] = w.weights[j].shape()[0];
      return s;
    }());
    Value part = interpolated(b, source, dim + 1, dims);
    part = b.binary(Op::mul, part, along(b, w.weights[j], at, x.rank()));
    sum = sum ? b.binary(Op::add, sum, part) : part;
  }
  return sum;
}

using Weights = Interpolation (*)(GraphBuilder&, const SymInt&, const SymInt&, bool, double, DType);

// self, output_size, align_corners, scales..
Lowering resample(size_t n, Weights weights) {
  return [=](OpCall& c) -> Result {
    GraphBuilder& b = c.b;
    Value x = c.tensor(0);
    // On the CPU eager rounds the weights of low precision in one memory format and not in the other.
    bool exact = is_floating(x.dtype()) && (!is_low_precision(x.dtype()) || x.type().device.kind == DeviceKind::cuda);
    if (!exact || x.shape().size() != n + 2 || c.is_none(1) || (c.schema.ends_with(".vec") && !c.is_none(3))) return std::nullopt;
    Shape out = c.ints(1);
    std::vector<double> scales = scales_at(c, 3, n);
    DType type = compute_dtype(x.dtype());
    std::vector<Interpolation> dims;
    for (size_t d = 0; d < n; ++d) dims.push_back(weights(b, size_at(x, n, d), out.at(d), c.flag(2), scales[d], type));
    return as_result(c, b.cast(interpolated(b, b.cast(x, type), 0, dims), x.dtype()));
  };
}

}  // namespace

void add_pooling_ops(OpTable& t) {
  add_real(t, "max_pool1d max_pool1d_with_indices", max_pool(1));
  add_real(t, "max_pool2d max_pool2d_with_indices mkldnn_max_pool2d", max_pool(2));
  add_real(t, "max_pool3d max_pool3d_with_indices mkldnn_max_pool3d", max_pool(3));
  add_real(t, "adaptive_max_pool1d", adaptive_max_pool(1));
  add_real(t, "adaptive_max_pool2d", adaptive_max_pool(2));
  add_real(t, "adaptive_max_pool3d", adaptive_max_pool(3));
  add_real(t, "avg_pool1d", avg_pool(1));
  add_real(t, "avg_pool2d", avg_pool(2));
  add_real(t, "avg_pool3d", avg_pool(3));
  add_real(t, "adaptive_avg_pool1d", adaptive_avg_pool(1));
  add_real(t, "adaptive_avg_pool2d _adaptive_avg_pool2d", adaptive_avg_pool(2));
  add_real(t, "adaptive_avg_pool3d _adaptive_avg_pool3d", adaptive_avg_pool(3));

  add_real(t, "max_pool2d_with_indices_backward", max_pool_backward(2));
  add_real(t, "max_pool3d_with_indices_backward", max_pool_backward(3));
  add_real(t, "avg_pool2d_backward", avg_pool_backward(2));
  add_real(t, "avg_pool3d_backward", avg_pool_backward(3));
  add_real(t, "_adaptive_avg_pool2d_backward", adaptive_pool_backward(2, false));
  add_real(t, "_adaptive_avg_pool3d_backward", adaptive_pool_backward(3, false));
  add_real(t, "adaptive_max_pool2d_backward", adaptive_pool_backward(2, true));
  add_real(t, "adaptive_max_pool3d_backward", adaptive_pool_backward(3, true));

  add_real(t, "upsample_nearest1d upsample_nearest1d.vec", nearest(1, false));
  add_real(t, "upsample_nearest2d upsample_nearest2d.vec", nearest(2, false));
  add_real(t, "upsample_nearest3d upsample_nearest3d.vec", nearest(3, false));
  add_real(t, "_upsample_nearest_exact1d _upsample_nearest_exact1d.vec", nearest(1, true));
  add_real(t, "_upsample_nearest_exact2d _upsample_nearest_exact2d.vec", nearest(2, true));
  add_real(t, "_upsample_nearest_exact3d _upsample_nearest_exact3d.vec", nearest(3, true));
  add_real(t, "upsample_nearest1d_backward", nearest_backward(1, false));
  add_real(t, "upsample_nearest2d_backward", nearest_backward(2, false));
  add_real(t, "upsample_nearest3d_backward", nearest_backward(3, false));
  add_real(t, "_upsample_nearest_exact1d_backward", nearest_backward(1, true));
  add_real(t, "_upsample_nearest_exact2d_backward", nearest_backward(2, true));
  add_real(t, "_upsample_nearest_exact3d_backward", nearest_backward(3, true));
  add_real(t, "upsample_linear1d upsample_linear1d.vec", resample(1, linear_weights));
  add_real(t, "upsample_bilinear2d upsample_bilinear2d.vec", resample(2, linear_weights));
  add_real(t, "upsample_trilinear3d upsample_trilinear3d.vec", resample(3, linear_weights));
  add_real(t, "upsample_bicubic2d upsample_bicubic2d.vec", resample(2, cubic_weights));
}

}  // namespace broach
