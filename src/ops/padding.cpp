// Padding, writing into a part of a tensor, and windows: what puts elements into a larger tensor, with their gradients.
#include <algorithm>
#include <string>

#include "ops/movement.h"
#include "support/error.h"

namespace broach {

namespace {

// ---- padding ----

Scalar typed(const Scalar& value, DType t) {
  if (is_floating(t)) return as_double(value);
  return t == DType::b1 ? Scalar(as_double(value) != 0) : Scalar(as_int(value));
}

Value pad_dim(GraphBuilder& b, Value x, int64_t dim, SymInt low, SymInt high, const Scalar& value = int64_t{0}) {
  Shape lows(x.shape().size()), highs(x.shape().size());
  lows[at(dim)] = std::move(low);
  highs[at(dim)] = std::move(high);
  return pad(b, x, lows, highs, typed(value, x.dtype()));
}

// Padding by dimension: pairs of PyTorch's list belong to the last dimension first. Negative padding crops.
using PadDim = std::function<Value(Value x, int64_t dim, const SymInt& low, const SymInt& high)>;
Value each_padded(Value x, const Shape& padding, const PadDim& one) {
  for (size_t i = 0; i + 1 < padding.size(); i += 2)
    if (padding[i] != SymInt(0) || padding[i + 1] != SymInt(0))
      x = one(x, x.rank() - 1 - static_cast<int64_t>(i / 2), padding[i], padding[i + 1]);
  return x;
}

Value crop_or_pad(GraphBuilder& b, Value x, int64_t dim, SymInt low, SymInt high, const Scalar& value = int64_t{0}) {
  auto negative = [&b](const SymInt& n) { return b.symbols().ask(n, Relation::lt, 0); };
  SymInt cut_low = negative(low) ? SymInt(0) - low : SymInt(0), cut_high = negative(high) ? SymInt(0) - high : SymInt(0);
  x = narrow(b, x, dim, cut_low, size_of(x, dim) - cut_low - cut_high);
  return pad_dim(b, x, dim, low + cut_low, high + cut_high, value);
}

Value pad_constant(GraphBuilder& b, Value x, const Shape& padding, const Scalar& value) {
  if (is_complex(x.dtype()) && (is_complex(value) || as_double(value) != 0)) return {};  // padding has numbers of one part
  return each_padded(x, padding,
                     [&](Value v, int64_t d, const SymInt& low, const SymInt& high) { return crop_or_pad(b, v, d, low, high, value); });
}

enum class PadMode { reflect, replicate, circular };

// Which element of n stands at each position of the padded dimension.
Value padded_index(GraphBuilder& b, PadMode mode, const SymInt& n, const SymInt& low, const SymInt& high) {
  Value size = size_value(b, n), last = size_value(b, n - 1);
  Value p = b.binary(Op::sub, positions(b, n + low + high), size_value(b, low));
  if (mode == PadMode::circular) return b.binary(Op::mod, p, size);
  if (mode == PadMode::replicate) return b.binary(Op::max, b.binary(Op::min, p, last), b.constant(int64_t{0}, DType::i64));
  Value from_end = b.unary(Op::abs, b.binary(Op::sub, last, b.unary(Op::abs, p)));
  return b.binary(Op::sub, last, from_end);
}

// n, or 0 where it is negative.
SymInt not_negative(Symbols& s, const SymInt& n) { return s.ask(n, Relation::lt, 0) ? SymInt(0) : n; }

// Elements are mirrored, and go round, at most once: what eager refuses must not be read.
void check_padding(Symbols& s, PadMode mode, const SymInt& size, const SymInt& low, const SymInt& high) {
  if (s.ask(size, Relation::lt, 1)) unsupported("padding of nothing by elements");
  if (mode == PadMode::replicate) return;
  const SymInt most = mode == PadMode::reflect ? size - 1 : size;
  if (s.ask(most, Relation::lt, low) || s.ask(most, Relation::lt, high)) unsupported("padding of ", size, " by ", low, " and ", high);
}

Value pad_by(GraphBuilder& b, PadMode mode, Value x, const Shape& padding) {
  return each_padded(x, padding, [&](Value v, int64_t d, SymInt low, SymInt high) {
    if (mode == PadMode::circular) {
      // What is cropped takes no part in the circle.
      SymInt more_low = not_negative(b.symbols(), low), more_high = not_negative(b.symbols(), high);
      v = crop_or_pad(b, v, d, low - more_low, high - more_high);
      low = more_low, high = more_high;
    }
    check_padding(b.symbols(), mode, size_of(v, d), low, high);
    return take(b, v, padded_index(b, mode, size_of(v, d), low, high), d);
  });
}

// The gradient of one padded dimension: what was copied outwards is added back where it came from.
Value fold_padding(GraphBuilder& b, PadMode mode, Value g, int64_t d, const SymInt& low, const SymInt& high) {
  SymInt n = size_of(g, d) - low - high, l = not_negative(b.symbols(), low), h = not_negative(b.symbols(), high);
  // The elements that are there once, with zeros for those cropped.
  Value sum = pad_dim(b, narrow(b, g, d, l, size_of(g, d) - l - h), d, l - low, h - high);
  auto add = [&](Value part, const SymInt& before) {
    if (size_of(part, d) == SymInt(0)) return;
    part = mode == PadMode::reflect ? flip_dim(b, part, d) : b.reduce(Op::reduce_sum, part, {d}, true);
    sum = b.binary(Op::add, sum, pad_dim(b, part, d, before, n - before - size_of(part, d)));
  };
  add(narrow(b, g, d, 0, l), mode == PadMode::reflect ? 1 : 0);
  add(narrow(b, g, d, size_of(g, d) - h, h), mode == PadMode::reflect ? n - 1 - h : n - 1);
  return sum;
}

Value pad_backward(OpCall& c, PadMode mode) {
  Value g = c.b.cast(c.tensor(0), compute_dtype(c.tensor(0).dtype()));
  Value x = each_padded(
      g, c.ints(2), [&](Value v, int64_t d, const SymInt& low, const SymInt& high) { return fold_padding(c.b, mode, v, d, low, high); });
  return c.b.cast(x, c.tensor(0).dtype());
}

Value pad_mode(OpCall& c) {
  std::string mode = c.text(2);
  if (mode == "constant") return pad_constant(c.b, c.tensor(0), c.ints(1), c.is_none(3) ? Scalar(int64_t{0}) : c.scalar(3));
  PadMode m = mode == "reflect" ? PadMode::reflect : mode == "replicate" ? PadMode::replicate : PadMode::circular;
  return pad_by(c.b, m, c.tensor(0), c.ints(1));
}

// Each tensor in `chunks` pieces along `dim`, the last filled up with zeros, and what follows `dim` flattened; then side by side.
Value chunk_cat(OpCall& c) {
  GraphBuilder& b = c.b;
  int64_t chunks = c.constant(2), dim = 0;
  std::vector<Value> parts;
  for (const auto& given : c.tensors(0)) {
    Value x = b.cast(given.value(), c.result().dtype);
    dim = c.dim(1, x.rank());
    SymInt size = size_of(x, dim), each = ceildiv(size, chunks);
    x = pad_dim(b, x, dim, 0, each * SymInt(chunks) - size);
    Shape shape(x.shape().begin(), x.shape().begin() + dim);
    shape.insert(shape.end(), {SymInt(chunks), each * product(std::span(x.shape()).subspan(at(dim) + 1))});
    x = reshape_guarded(b, x, shape);
    if (!x) return {};
    parts.push_back(x);
  }
  return concat(b, parts, dim + 1);
}

// ---- writing a part ----

// The elements with step - 1 zeros after each, cropped or filled up to `length`.
Value spread(GraphBuilder& b, Value x, int64_t dim, int64_t step, const SymInt& length) {
  SymInt n = size_of(x, dim);
  if (step > 1) {
    Shape shape = x.shape();
    shape[at(dim)] = n * SymInt(step);
    x = b.reshape(pad_dim(b, unsqueeze(b, x, dim + 1), dim + 1, 0, step - 1), shape);
  }
  return crop_or_pad(b, x, dim, 0, length - size_of(x, dim));
}

// `src` in place of the elements of `x` that `p` names along `dim`.
Value write_part(GraphBuilder& b, Value x, Value src, int64_t dim, const Part& p) {
  SymInt size = size_of(x, dim), rest = size - p.start;
  src = b.cast(src, x.dtype());
  if (p.step == 1) return concat(b, {narrow(b, x, dim, 0, p.start), src, narrow(b, x, dim, p.start + p.length, rest - p.length)}, dim);
  Value over = pad_dim(b, spread(b, src, dim, p.step, rest), dim, p.start, 0);
  Value i = b.binary(Op::sub, positions(b, size), size_value(b, p.start));
  Value hit = with_number(b, Op::eq, with_number(b, Op::mod, i, p.step), int64_t{0});
  hit = b.binary(Op::bit_and, hit, with_number(b, Op::ge, i, int64_t{0}));
  hit = b.binary(Op::bit_and, hit, b.binary(Op::lt, i, size_value(b, p.length * SymInt(p.step))));
  return b.where(along(b, hit, dim, x.rank()), over, x);
}

Value slice_scatter(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(2, x.rank());
  const Part p = part(c, 3, size_of(x, d));
  Shape written = x.shape();
  written[static_cast<size_t>(d)] = p.length;
  return write_part(c.b, x, with_sizes(c.b, c.tensor(1), written), d, p);
}

Value select_scatter(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(2, x.rank());
  select_at(c.b, x, d, c.integer(3));  // for its guard
  return write_part(c.b, x, unsqueeze(c.b, c.tensor(1), d), d, {wrapped(c.b.symbols(), c.integer(3), size_of(x, d)), 1, 1});
}

Value slice_backward(OpCall& c) {
  Shape sizes = c.ints(1);
  int64_t d = c.dim(2, c.tensor(0).rank());
  Part p = part(c, 3, sizes.at(at(d)));
  return pad_dim(c.b, spread(c.b, c.tensor(0), d, p.step, sizes[at(d)] - p.start), d, p.start, 0);
}

Value select_backward(OpCall& c) {
  Shape sizes = c.ints(1);
  int64_t d = c.dim(2, static_cast<int>(sizes.size()));
  SymInt index = wrapped(c.b.symbols(), c.integer(3), sizes.at(at(d)));
  return pad_dim(c.b, unsqueeze(c.b, c.tensor(0), d), d, index, sizes[at(d)] - index - 1);
}

// A matrix (last two dimensions) that holds `diagonal` where column = row + offset and `background` elsewhere.
Value with_diagonal(GraphBuilder& b, Value diagonal, int64_t offset, Value background) {
  int64_t rank = background.rank();
  SymInt rows = size_of(background, rank - 2), columns = size_of(background, rank - 1);
  Value down = with_number(b, Op::add, positions(b, rows), offset);
  Value hit = b.binary(Op::eq, along(b, down, 0, 2), along(b, positions(b, columns), 1, 2));
  int64_t last = diagonal.rank() - 1;
  // Element i is of row i above the main diagonal and of column i below it.
  Value spread_out = pad_dim(b, diagonal, last, 0, (offset >= 0 ? rows : columns) - size_of(diagonal, last));
  return b.where(hit, unsqueeze(b, spread_out, offset >= 0 ? last + 1 : last), background);
}

// The same with the matrix in dimensions d0 and d1 of `x`.
Value write_diagonal(GraphBuilder& b, Value x, Value src, int64_t offset, int64_t d0, int64_t d1) {
  Dims order = counted(x.rank()), back(order.size());
  std::erase_if(order, [&](int64_t d) { return d == d0 || d == d1; });
  order.insert(order.end(), {d0, d1});
  for (size_t i = 0; i < order.size(); ++i) back[at(order[i])] = static_cast<int64_t>(i);
  return b.permute(with_diagonal(b, b.cast(src, x.dtype()), offset, b.permute(x, order)), back);
}

Value zeros(GraphBuilder& b, const Shape& shape, DType t) { return b.full(shape, typed(int64_t{0}, t), t); }

Value embed_diagonal(GraphBuilder& b, Value x, int64_t offset, int64_t d0, int64_t d1) {
  Shape shape(x.shape().begin(), x.shape().end() - 1);
  SymInt n = x.shape().back() + SymInt(std::abs(offset));
  // Inserted in ascending order, each at its own place in the result.
  shape.insert(shape.begin() + std::min(d0, d1), n);
  shape.insert(shape.begin() + std::max(d0, d1), n);
  return write_diagonal(b, zeros(b, shape, x.dtype()), x, offset, d0, d1);
}

Value diag(OpCall& c) {
  Value x = c.tensor(0);
  return x.rank() == 1 ? embed_diagonal(c.b, x, c.constant(1), 0, 1) : diagonal(c.b, x, c.constant(1), 0, 1);
}

// The gradient of windows along `dim`, which are [.., count, .., size]: pieces of `step` elements do not overlap.
Value fold_windows(GraphBuilder& b, Value g, int64_t dim, int64_t step, const SymInt& length) {
  int64_t last = g.rank() - 1, size = b.symbols().specialize(g.shape().back());
  Value sum;
  for (int64_t from = 0; from < size; from += step) {
    int64_t n = std::min(step, size - from);
    Value piece = move_dim(b, pad_dim(b, narrow(b, g, last, from, n), last, 0, step - n), last, dim + 1);
    Shape shape = piece.shape();
    shape.erase(shape.begin() + dim + 1);
    shape[at(dim)] = shape[at(dim)] * SymInt(step);
    piece = b.reshape(piece, shape);
    piece = crop_or_pad(b, piece, dim, from, length - size_of(piece, dim) - SymInt(from));
    sum = sum ? b.binary(Op::add, sum, piece) : piece;
  }
  return sum;
}

Value unfold_backward(OpCall& c) {
  Value g = c.b.cast(c.tensor(0), compute_dtype(c.tensor(0).dtype()));
  Shape sizes = c.ints(1);
  if (sizes.empty() || c.constant(3) > 64 * c.constant(4)) return {};
  int64_t d = c.dim(2, static_cast<int>(sizes.size()));
  Value x = fold_windows(c.b, g, d, c.constant(4), sizes[at(d)]);
  return x ? c.b.cast(x, c.tensor(0).dtype()) : x;
}

// i * step + j * spacing for i < n and j < m, as [n, m].
Value grid(GraphBuilder& b, const SymInt& n, int64_t step, const SymInt& m, int64_t spacing) {
  Value rows = with_number(b, Op::mul, positions(b, n), step), columns = with_number(b, Op::mul, positions(b, m), spacing);
  return b.binary(Op::add, along(b, rows, 0, 2), along(b, columns, 1, 2));
}

Value unfold_copy(OpCall& c) {
  auto w = windows(c);
  if (!w) return {};
  Value index = grid(c.b, w->count, w->step, w->size, 1);
  return move_dim(c.b, take(c.b, w->x, index, w->dim), w->dim + 1, w->x.rank());
}

// im2col and col2im: [n, c, h, w] and [n, c * kh * kw, oh * ow].
struct Blocks {
  Dims kernel, dilation, padding, stride;
  bool batched;
};

Blocks blocks(OpCall& c, size_t i, int unbatched_rank) {
  auto pair = [&c](size_t k) {
    Dims v = c.constants(k);
    if (v.size() == 1) v.push_back(v[0]);
    return v;
  };
  return {pair(i), pair(i + 1), pair(i + 2), pair(i + 3), c.tensor(0).rank() > unbatched_rank};
}

Value im2col(OpCall& c) {
  GraphBuilder& b = c.b;
  Blocks k = blocks(c, 1, 3);
  Value x = k.batched ? c.tensor(0) : unsqueeze(b, c.tensor(0), 0);
  SymInt n = size_of(x, 0), channels = size_of(x, 1), outputs(1);
  // Width first: each take replaces one dimension by two, [.., kernel, output].
  for (size_t i : {size_t{1}, size_t{0}}) {
    int64_t d = static_cast<int64_t>(i) + 2;
    x = pad_dim(b, x, d, k.padding[i], k.padding[i]);
    SymInt count = floordiv(size_of(x, d) - SymInt(k.dilation[i] * (k.kernel[i] - 1) + 1), k.stride[i]) + 1;
    x = take(b, x, grid(b, k.kernel[i], k.dilation[i], count, k.stride[i]), d);
    outputs = outputs * count;
  }
  Shape shape{n, channels * SymInt(k.kernel[0] * k.kernel[1]), outputs};
  x = b.reshape(b.permute(x, {0, 1, 2, 4, 3, 5}), shape);
  return k.batched ? x : squeeze(b, x, 0);
}

// Adds up the windows [.., kernel at d, .., output at from, ..] of one dimension; the sum takes the place of `output`.
Value fold_kernel(GraphBuilder& b, Value x, int64_t d, int64_t from, int64_t dilation, int64_t stride, const SymInt& length) {
  int64_t kernel = b.symbols().specialize(size_of(x, d));
  Value sum;
  for (int64_t i = 0; i < kernel; ++i) {
    Value piece = spread(b, select_at(b, x, d, i), from - 1, stride, length - SymInt(i * dilation));
    piece = pad_dim(b, piece, from - 1, i * dilation, 0);
    sum = sum ? b.binary(Op::add, sum, piece) : piece;
  }
  return sum;
}

Value col2im(OpCall& c) {
  GraphBuilder& b = c.b;
  Blocks k = blocks(c, 2, 2);
  if (k.kernel[0] + k.kernel[1] > 32) return {};  // a term of the sum for each
  Value x = k.batched ? c.tensor(0) : unsqueeze(b, c.tensor(0), 0);
  Shape size = c.ints(1), outputs(2), padded(2);
  for (size_t i = 0; i < 2; ++i) {
    padded[i] = size.at(i) + SymInt(2 * k.padding[i]);
    outputs[i] = floordiv(padded[i] - SymInt(k.dilation[i] * (k.kernel[i] - 1) + 1), k.stride[i]) + 1;
  }
  SymInt channels = floordiv(size_of(x, 1), k.kernel[0] * k.kernel[1]);
  x = reshape_guarded(b, x, {size_of(x, 0), channels, k.kernel[0], k.kernel[1], outputs[0], outputs[1]});
  if (!x) return {};
  x = b.cast(x, compute_dtype(x.dtype()));
  x = fold_kernel(b, x, 3, 5, k.dilation[1], k.stride[1], padded[1]);
  x = fold_kernel(b, x, 2, 3, k.dilation[0], k.stride[0], padded[0]);
  for (size_t i = 0; i < 2; ++i) x = narrow(b, x, static_cast<int64_t>(i) + 2, k.padding[i], size[i]);
  x = b.cast(x, c.tensor(0).dtype());
  return k.batched ? x : squeeze(b, x, 0);
}

}  // namespace

void add_padding_ops(OpTable& t) {
  add_single_moving(t, "constant_pad_nd", [](OpCall& c) { return pad_constant(c.b, c.tensor(0), c.ints(1), c.scalar(2)); });
  add_single_moving(t, "pad", pad_mode);
  add_single_moving(t, "_chunk_cat", chunk_cat);
  add_single_moving(t, "_pad_circular", [](OpCall& c) { return pad_by(c.b, PadMode::circular, c.tensor(0), c.ints(1)); });
  for (auto [name, mode] : {std::pair("reflection", PadMode::reflect), std::pair("replication", PadMode::replicate)})
    for (const char* rank : {"1d", "2d", "3d"}) {
      add_single_moving(t, cat(name, "_pad", rank), [mode = mode](OpCall& c) { return pad_by(c.b, mode, c.tensor(0), c.ints(1)); });
      add_single_moving(t, cat(name, "_pad", rank, "_backward"), [mode = mode](OpCall& c) { return pad_backward(c, mode); });
    }
}

void add_window_ops(OpTable& t) {
  add_single_moving(t, "unfold_copy", unfold_copy);
  add_single_moving(t, "im2col", im2col);
  add_single_moving(t, "col2im", col2im);
  add_single_moving(t, "unfold_backward", unfold_backward);
  add_single_moving(t, "slice_scatter", slice_scatter);
  add_single_moving(t, "select_scatter", select_scatter);
  add_single_moving(t, "diagonal_scatter", [](OpCall& c) {
    Value x = c.tensor(0);
    return write_diagonal(c.b, x, c.tensor(1), c.constant(2), c.dim(3, x.rank()), c.dim(4, x.rank()));
  });
  add_single_moving(t, "slice_backward", slice_backward);
  add_single_moving(t, "select_backward", select_backward);
  add_single_moving(t, "diagonal_backward", [](OpCall& c) {
    Shape sizes = c.ints(1);
    int rank = static_cast<int>(sizes.size());
    return write_diagonal(c.b, zeros(c.b, sizes, c.tensor(0).dtype()), c.tensor(0), c.constant(2), c.dim(3, rank), c.dim(4, rank));
  });
  add_single_moving(t, "diag", diag);
  add_single_moving(t, "diag_embed", [](OpCall& c) {
    Value x = c.tensor(0);
    return embed_diagonal(c.b, x, c.constant(1), c.dim(2, x.rank() + 1), c.dim(3, x.rank() + 1));
  });
}

}  // namespace broach
