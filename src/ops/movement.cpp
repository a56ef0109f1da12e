// Movement: views, and ops whose results are the operand's elements elsewhere (cat, pad, flip, roll, repeat, scatter of
// slices, folding). Views are made of reshape, permute, expand and slice on the operand itself, so that a write to the
// view can be carried back.
#include <algorithm>
#include <numeric>

#include "ops/build.h"
#include "support/error.h"

namespace broach {

namespace {

using Dims = std::vector<int64_t>;
using Results = std::optional<std::vector<Value>>;

size_t at(int64_t dim) { return static_cast<size_t>(dim); }
const SymInt& size_of(const Value& x, int64_t dim) { return x.shape().at(at(dim)); }

Dims counted(int n) {
  Dims dims(at(n));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

// A 0-dim tensor as a vector of one element.
Value at_least_1d(GraphBuilder& b, Value x) { return x.rank() ? x : b.reshape(x, {1}); }

Value at_least_2d(GraphBuilder& b, Value x) { return x.rank() >= 2 ? x : unsqueeze(b, at_least_1d(b, x), 0); }

Value at_least_3d(GraphBuilder& b, Value x) {
  Value y = at_least_2d(b, x);
  return y.rank() >= 3 ? y : unsqueeze(b, y, 2);
}

// ---- reshaping ----

// Sizes with at most one -1, for this many elements.
Shape inferred(Shape sizes, const SymInt& numel) {
  auto unknown = std::find(sizes.begin(), sizes.end(), SymInt(-1));
  if (unknown == sizes.end()) return sizes;
  *unknown = 1;
  *unknown = floordiv(numel, product(sizes));
  return sizes;
}

Value view(OpCall& c) { return reshape_guarded(c.b, c.tensor(0), inferred(c.ints(1), c.tensor(0).type().numel())); }
Value view_as(OpCall& c) { return reshape_guarded(c.b, c.tensor(0), c.tensor(1).shape()); }

Value flatten(OpCall& c) {
  Value x = at_least_1d(c.b, c.tensor(0));
  int64_t first = c.dim(1, x.rank()), last = c.dim(2, x.rank());
  Shape shape(x.shape().begin(), x.shape().begin() + first);
  shape.push_back(product(std::span(x.shape()).subspan(at(first), at(last - first + 1))));
  shape.insert(shape.end(), x.shape().begin() + last + 1, x.shape().end());
  return c.b.reshape(x, shape);
}

Value unflatten(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(1, x.rank());
  Shape shape = x.shape(), sizes = inferred(c.ints(2), size_of(x, d));
  shape.erase(shape.begin() + d);
  shape.insert(shape.begin() + d, sizes.begin(), sizes.end());
  return reshape_guarded(c.b, x, shape);
}

Value squeeze_dims(GraphBuilder& b, Value x, Dims dims) {
  std::sort(dims.rbegin(), dims.rend());
  for (int64_t d : dims)
    if (d < x.rank() && b.symbols().equal(size_of(x, d), 1)) x = squeeze(b, x, d);
  return x;
}

Value squeeze_listed(OpCall& c) {
  Dims dims;
  for (int64_t d : c.constants(1)) dims.push_back(OpCall::wrap_dim(d, c.tensor(0).rank()));
  return squeeze_dims(c.b, c.tensor(0), dims);
}

Value expand_to(GraphBuilder& b, Value x, Shape shape) {
  Shape own = x.shape();
  size_t lead = shape.size() - own.size();
  for (size_t i = 0; i < own.size(); ++i) {
    SymInt& wanted = shape[lead + i];
    if (wanted == SymInt(-1) || (own[i] != SymInt(1) && b.symbols().equal(own[i], wanted))) wanted = own[i];
    else if (b.symbols().equal(own[i], 1)) own[i] = 1;
    else return {};
  }
  return b.expand(with_sizes(b, x, own), shape);
}

// ---- order of dimensions ----

Value swap_dims(OpCall& c) {
  Value x = c.tensor(0);
  return x.rank() ? transpose(c.b, x, c.dim(1, x.rank()), c.dim(2, x.rank())) : x;
}

Value swap_last(OpCall& c) {
  Value x = c.tensor(0);
  return x.rank() < 2 ? x : transpose(c.b, x, x.rank() - 2, x.rank() - 1);
}

Value permute(OpCall& c) {
  Dims dims;
  for (int64_t d : c.constants(1)) dims.push_back(OpCall::wrap_dim(d, c.tensor(0).rank()));
  return c.b.permute(c.tensor(0), dims);
}

Value reverse_dims(OpCall& c) {
  Dims dims = counted(c.tensor(0).rank());
  std::reverse(dims.begin(), dims.end());
  return c.b.permute(c.tensor(0), dims);
}

// Dimension `from` to position `to`, the others in their order.
Value move_dim(GraphBuilder& b, Value x, int64_t from, int64_t to) {
  Dims dims = counted(x.rank());
  dims.erase(dims.begin() + from);
  dims.insert(dims.begin() + to, from);
  return b.permute(x, dims);
}

Value move_dims(OpCall& c) {
  Value x = c.tensor(0);
  if (x.rank() == 0) return x;
  Dims from = c.constants(1), to = c.constants(2), dims(at(x.rank()), -1);
  for (size_t i = 0; i < from.size(); ++i) dims.at(at(OpCall::wrap_dim(to[i], x.rank()))) = from[i] = OpCall::wrap_dim(from[i], x.rank());
  int64_t next = 0;
  for (int64_t& d : dims) {
    if (d >= 0) continue;
    while (std::find(from.begin(), from.end(), next) != from.end()) ++next;
    d = next++;
  }
  return c.b.permute(x, dims);
}

// ---- parts of a dimension ----

struct Part {
  SymInt start, length;
  int64_t step;
};

// A bound of a slice: from the end if negative, then clamped to [0, size].
SymInt clamped(Symbols& s, SymInt bound, const SymInt& size) {
  constexpr int64_t kFar = int64_t{1} << 60;  // "to the end", whatever the size
  if (auto n = bound.maybe_constant(); n && *n >= kFar) return size;
  if (s.ask(bound, Relation::lt, 0)) bound = bound + size;
  if (s.ask(bound, Relation::lt, 0)) return 0;
  return bound == SymInt(0) || s.ask(bound, Relation::lt, size) ? bound : size;
}

// Arguments i, i + 1, i + 2: start, end, step.
Part part(OpCall& c, size_t i, const SymInt& size) {
  Symbols& s = c.b.symbols();
  int64_t step = c.is_none(i + 2) ? 1 : c.constant(i + 2);
  SymInt start = clamped(s, c.integer_or(i, 0), size), end = clamped(s, c.integer_or(i + 1, size), size);
  if (s.ask(end, Relation::lt, start)) end = start;
  return {start, ceildiv(end - start, step), step};
}

SymInt wrapped(Symbols& s, const SymInt& index, const SymInt& size) { return s.ask(index, Relation::lt, 0) ? index + size : index; }

Value slice(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(1, x.rank());
  Part p = part(c, 2, size_of(x, d));
  return narrow(c.b, x, d, p.start, p.length, p.step);
}

Value select_at(GraphBuilder& b, Value x, int64_t dim, const SymInt& index) {
  return squeeze(b, narrow(b, x, dim, wrapped(b.symbols(), index, size_of(x, dim)), 1), dim);
}

Value narrow_call(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(1, x.rank());
  return narrow(c.b, x, d, wrapped(c.b.symbols(), c.integer(2), size_of(x, d)), c.integer(3));
}

// As many parts of `size` as there were results; the last takes what is left.
Results split_evenly(OpCall& c, Value x, int64_t dim, const SymInt& size) {
  auto n = static_cast<int64_t>(c.results().size());
  SymInt before = SymInt(n - 1) * size, total = size_of(x, dim);
  Symbols& s = c.b.symbols();
  // The number of parts must stay what it was.
  if (n == 0 || !s.ask(total, Relation::le, before + size) || (n > 1 && !s.ask(before, Relation::lt, total))) return std::nullopt;
  std::vector<Value> parts;
  for (int64_t i = 0; i < n; ++i) parts.push_back(narrow(c.b, x, dim, SymInt(i) * size, i + 1 < n ? size : total - before));
  return parts;
}

Results split(OpCall& c) { return split_evenly(c, c.tensor(0), c.dim(2, c.tensor(0).rank()), c.integer(1)); }

Results split_sizes(OpCall& c) {
  int64_t d = c.dim(2, c.tensor(0).rank());
  std::vector<Value> parts;
  SymInt start;
  for (const SymInt& size : c.ints(1)) {
    parts.push_back(narrow(c.b, c.tensor(0), d, start, size));
    start = start + size;
  }
  return parts;
}

Results chunk(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(2, x.rank());
  SymInt size = ceildiv(size_of(x, d), c.constant(1));
  // Nothing to split gives as many empty parts as asked for.
  if (c.b.symbols().equal(size, 0)) return std::vector<Value>(c.results().size(), x);
  return split_evenly(c, x, d, size);
}

// The first (size mod n) of n sections have one element more.
Results split_sections(OpCall& c, int64_t dim, const SymInt& sections) {
  Value x = c.tensor(0);
  int64_t n = c.b.symbols().specialize(sections), more = c.b.symbols().specialize(mod(size_of(x, dim), n));
  SymInt size = floordiv(size_of(x, dim), n);
  std::vector<Value> parts;
  for (int64_t i = 0; i < n; ++i)
    parts.push_back(narrow(c.b, x, dim, SymInt(i) * size + std::min(i, more), size + (i < more ? 1 : 0)));
  return parts;
}

Results split_at(OpCall& c, int64_t dim, const Shape& indices) {
  Value x = c.tensor(0);
  Symbols& s = c.b.symbols();
  const SymInt& size = size_of(x, dim);
  std::vector<Value> parts;
  SymInt start;
  for (size_t i = 0; i <= indices.size(); ++i) {
    SymInt from = clamped(s, start, size), to = i < indices.size() ? clamped(s, indices[i], size) : size;
    parts.push_back(narrow(c.b, x, dim, from, s.ask(to, Relation::lt, from) ? SymInt(0) : to - from));
    if (i < indices.size()) start = indices[i];
  }
  return parts;
}

Results unbind(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(1, x.rank()), n = c.b.symbols().specialize(size_of(x, d));
  std::vector<Value> parts;
  for (int64_t i = 0; i < n; ++i) parts.push_back(select_at(c.b, x, d, i));
  return parts;
}

struct Windows {
  Value x;
  int64_t dim, size, step;
  SymInt count;
};

std::optional<Windows> windows(OpCall& c) {
  Value x = c.tensor(0);
  if (x.rank() == 0) return std::nullopt;
  int64_t d = c.dim(1, x.rank()), size = c.constant(2), step = c.constant(3);
  return Windows{x, d, size, step, floordiv(size_of(x, d) - SymInt(size), step) + 1};
}

// Windows that do not overlap are a reshape; others have no place in a view of each element's own.
Value unfold(OpCall& c) {
  auto w = windows(c);
  if (!w) return {};
  GraphBuilder& b = c.b;
  if (w->size == 1) return move_dim(b, unsqueeze(b, narrow(b, w->x, w->dim, 0, w->count, w->step), w->dim), w->dim, w->x.rank());
  SymInt used = w->count * SymInt(w->step);
  if (w->step < w->size || !b.symbols().ask(used, Relation::le, size_of(w->x, w->dim))) return {};
  Value x = narrow(b, w->x, w->dim, 0, used);
  Shape shape = x.shape();
  shape[at(w->dim)] = w->count;
  shape.insert(shape.begin() + w->dim + 1, SymInt(w->step));
  return move_dim(b, narrow(b, b.reshape(x, shape), w->dim + 1, 0, w->size), w->dim + 1, w->x.rank());
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
  for (size_t i = 0; i + 1 < padding.size() && x; i += 2)
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
  return each_padded(x, padding, [&](Value v, int64_t d, const SymInt& low, const SymInt& high) { return crop_or_pad(b, v, d, low, high, value); });
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

Value pad_by(GraphBuilder& b, PadMode mode, Value x, const Shape& padding) {
  return each_padded(x, padding, [&](Value v, int64_t d, const SymInt& low, const SymInt& high) {
    return take(b, v, padded_index(b, mode, size_of(v, d), low, high), d);
  });
}

Value flip_dim(GraphBuilder& b, Value x, int64_t dim) { return narrow(b, x, dim, size_of(x, dim) - 1, size_of(x, dim), -1); }

// The gradient of one padded dimension: what was copied outwards is added back where it came from.
Value fold_padding(GraphBuilder& b, PadMode mode, Value g, int64_t d, const SymInt& low, const SymInt& high) {
  Symbols& s = b.symbols();
  if (s.ask(low, Relation::lt, 0) || s.ask(high, Relation::lt, 0)) return {};
  SymInt n = size_of(g, d) - low - high;
  Value left = narrow(b, g, d, 0, low), right = narrow(b, g, d, low + n, high);
  if (mode == PadMode::reflect) {
    left = pad_dim(b, flip_dim(b, left, d), d, 1, n - 1 - low);
    right = pad_dim(b, flip_dim(b, right, d), d, n - 1 - high, 1);
  } else {
    left = pad_dim(b, b.reduce(Op::reduce_sum, left, {d}, true), d, 0, n - 1);
    right = pad_dim(b, b.reduce(Op::reduce_sum, right, {d}, true), d, n - 1, 0);
  }
  return b.binary(Op::add, b.binary(Op::add, narrow(b, g, d, low, n), left), right);
}

Value pad_backward(OpCall& c, PadMode mode) {
  Value g = c.b.cast(c.tensor(0), compute_dtype(c.tensor(0).dtype()));
  Value x = each_padded(g, c.ints(2), [&](Value v, int64_t d, const SymInt& low, const SymInt& high) { return fold_padding(c.b, mode, v, d, low, high); });
  return x ? c.b.cast(x, c.tensor(0).dtype()) : x;
}

Value pad_mode(OpCall& c) {
  std::string mode = c.text(2);
  if (mode == "constant") return pad_constant(c.b, c.tensor(0), c.ints(1), c.is_none(3) ? Scalar(int64_t{0}) : c.scalar(3));
  PadMode m = mode == "reflect" ? PadMode::reflect : mode == "replicate" ? PadMode::replicate : PadMode::circular;
  return pad_by(c.b, m, c.tensor(0), c.ints(1));
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
  if (p.step == 1)
    return concat(b, {narrow(b, x, dim, 0, p.start), src, narrow(b, x, dim, p.start + p.length, rest - p.length)}, dim);
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
  return write_part(c.b, x, c.tensor(1), d, part(c, 3, size_of(x, d)));
}

Value select_scatter(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(2, x.rank());
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

Value diagonal_call(OpCall& c) {
  Value x = c.tensor(0);
  return diagonal(c.b, x, c.constant(1), c.dim(2, x.rank()), c.dim(3, x.rank()));
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
  Value x = fold_windows(c.b, with_sizes(c.b, g, g.shape()), d, c.constant(4), sizes[at(d)]);
  return x ? c.b.cast(x, c.tensor(0).dtype()) : x;
}

// ---- joining and repeating ----

std::vector<Value> listed(OpCall& c) {
  std::vector<Value> values;
  for (const auto& v : c.tensors(0)) values.push_back(c.b.cast(v.value(), c.result().dtype));
  return values;
}

Value cat(OpCall& c) {
  std::vector<Value> values = listed(c);
  Value first = values.at(0);
  // Vectors without elements fit any rank, as they always did.
  std::erase_if(values, [](const Value& v) { return v.rank() == 1 && v.shape()[0] == SymInt(0); });
  if (values.empty()) return first;
  return concat(c.b, values, c.dim(1, values[0].rank()));
}

Value stack(OpCall& c) {
  std::vector<Value> values = listed(c);
  int64_t d = c.dim(1, values.at(0).rank() + 1);
  for (Value& v : values) v = unsqueeze(c.b, v, d);
  return concat(c.b, values, d);
}

using RaiseRank = Value (*)(GraphBuilder&, Value);
Value join_raised(OpCall& c, RaiseRank raise, int64_t dim) {
  std::vector<Value> values = listed(c);
  for (Value& v : values) v = raise(c.b, v);
  return concat(c.b, values, std::min<int64_t>(dim, values.at(0).rank() - 1));
}

Value as_column(GraphBuilder& b, Value x) { return x.rank() >= 2 ? x : unsqueeze(b, at_least_1d(b, x), 1); }

// Every element of `dim` `times` times: in place (a a b b), or the whole again (a b a b).
Value repeat_dim(GraphBuilder& b, Value x, int64_t dim, const SymInt& times, bool in_place) {
  if (times == SymInt(1)) return x;
  Value y = unsqueeze(b, x, in_place ? dim + 1 : dim);
  Shape shape = y.shape(), merged = x.shape();
  shape[at(in_place ? dim + 1 : dim)] = times;
  merged[at(dim)] = merged[at(dim)] * times;
  return b.reshape(b.expand(y, shape), merged);
}

Value repeat_all(GraphBuilder& b, Value x, const Shape& times) {
  size_t rank = std::max(times.size(), x.shape().size());
  Shape shape(rank - x.shape().size(), SymInt(1));
  shape.insert(shape.end(), x.shape().begin(), x.shape().end());
  x = b.reshape(x, shape);
  for (size_t i = 0; i < times.size(); ++i) x = repeat_dim(b, x, static_cast<int64_t>(rank - times.size() + i), times[i], false);
  return x;
}

Value repeat_interleave(OpCall& c) {
  Value x = c.tensor(0);
  if (c.is_none(2)) x = c.b.reshape(x, {x.type().numel()});
  int64_t d = c.is_none(2) ? 0 : c.dim(2, x.rank());
  return repeat_dim(c.b, at_least_1d(c.b, x), d, c.integer(1), true);
}

Value flip(GraphBuilder& b, Value x, const Dims& dims) {
  if (x.rank() == 0) return x;
  for (int64_t d : dims) x = flip_dim(b, x, OpCall::wrap_dim(d, x.rank()));
  return x;
}

Value roll_dim(GraphBuilder& b, Value x, int64_t dim, const SymInt& shift) {
  Symbols& s = b.symbols();
  const SymInt& n = size_of(x, dim);
  if (s.equal(n, 0)) return x;
  SymInt by = wrapped(s, shift, n);
  // A shift by more than the size needs both as numbers.
  if (s.ask(by, Relation::lt, 0) || s.ask(n, Relation::le, by)) {
    int64_t size = s.specialize(n);
    by = ((s.specialize(shift) % size) + size) % size;
  }
  return concat(b, {narrow(b, x, dim, n - by, by), narrow(b, x, dim, 0, n - by)}, dim);
}

Value roll(OpCall& c) {
  Value x = c.tensor(0);
  Shape shifts = c.ints(1);
  if (x.rank() == 0) return x;
  Dims dims = c.constants(2);
  if (dims.empty()) return c.b.reshape(roll_dim(c.b, c.b.reshape(x, {x.type().numel()}), 0, shifts.at(0)), x.shape());
  for (size_t i = 0; i < dims.size(); ++i) x = roll_dim(c.b, x, OpCall::wrap_dim(dims[i], x.rank()), shifts.at(i));
  return x;
}

Value rot90(OpCall& c) {
  Value x = c.tensor(0);
  Dims dims = c.dims(2, x.rank());
  int64_t turns = ((c.constant(1) % 4) + 4) % 4;
  if (turns == 0) return x;
  if (turns == 2) return flip(c.b, x, dims);
  return transpose(c.b, flip(c.b, x, {dims.at(turns == 1 ? 1 : 0)}), dims[0], dims[1]);
}

// ---- rearranging blocks ----

// Reshaped to `split`, with the last `order.size()` dimensions permuted, reshaped to `merged`; leading dimensions stay.
Value regroup(GraphBuilder& b, Value x, size_t kept, const Shape& split, const Dims& order, const Shape& merged) {
  Shape from(x.shape().begin(), x.shape().begin() + static_cast<int64_t>(kept)), to = from;
  from.insert(from.end(), split.begin(), split.end());
  to.insert(to.end(), merged.begin(), merged.end());
  Dims dims = counted(static_cast<int>(kept));
  for (int64_t d : order) dims.push_back(d + static_cast<int64_t>(kept));
  Value y = reshape_guarded(b, x, from);
  return y ? reshape_guarded(b, b.permute(y, dims), to) : y;
}

Value pixel_shuffle(OpCall& c) {
  Value x = c.tensor(0);
  SymInt r = c.constant(1), h = size_of(x, x.rank() - 2), w = size_of(x, x.rank() - 1), n = floordiv(size_of(x, x.rank() - 3), r * r);
  return regroup(c.b, x, x.shape().size() - 3, {n, r, r, h, w}, {0, 3, 1, 4, 2}, {n, h * r, w * r});
}

Value pixel_unshuffle(OpCall& c) {
  Value x = c.tensor(0);
  SymInt r = c.constant(1), n = size_of(x, x.rank() - 3), h = floordiv(size_of(x, x.rank() - 2), r), w = floordiv(size_of(x, x.rank() - 1), r);
  return regroup(c.b, x, x.shape().size() - 3, {n, h, r, w, r}, {0, 2, 4, 1, 3}, {n * r * r, h, w});
}

Value channel_shuffle(OpCall& c) {
  Value x = c.tensor(0);
  SymInt groups = c.integer(1), each = floordiv(size_of(x, 1), groups), rest = product(std::span(x.shape()).subspan(2));
  Shape merged(x.shape().begin() + 1, x.shape().end());
  return regroup(c.b, x, 1, {groups, each, rest}, {1, 0, 2}, merged);
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

// The same bits as another element type of the same size. A bool keeps to its two values, so it is left out.
Value bits_as(OpCall& c) {
  Value x = c.tensor(0);
  DType t = c.result().dtype;
  if (x.dtype() == t) return x;
  if (size_of(x.dtype()) != size_of(t) || x.dtype() == DType::b1 || t == DType::b1) return {};
  return c.b.emit(Op::bitcast, {x}, {{Attr::dtype, t}});
}

Results broadcast_tensors(OpCall& c) {
  std::vector<Value> values;
  Shape shape;
  for (const auto& v : c.tensors(0)) {
    values.push_back(v.value());
    shape = c.b.broadcast(shape, values.back().shape());
  }
  for (Value& v : values)
    if (!(v = expand_to(c.b, v, shape))) return std::nullopt;
  return values;
}

// Vectors as the axes of a grid; "xy" indexing exchanges the first two dimensions.
Results meshgrid(OpCall& c, bool xy) {
  std::vector<Value> values;
  Shape shape;
  for (const auto& v : c.tensors(0)) values.push_back(at_least_1d(c.b, v.value()));
  for (const Value& v : values) shape.push_back(size_of(v, 0));
  xy = xy && values.size() >= 2;
  if (xy) std::swap(shape[0], shape[1]);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = c.b.expand(along(c.b, values[i], static_cast<int64_t>(xy && i < 2 ? 1 - i : i), static_cast<int>(shape.size())), shape);
  return values;
}

void add_view_ops(OpTable& t) {
  add_single(t, "alias alias_copy detach detach_copy contiguous positive resolve_conj resolve_neg conj real lift lift_fresh lift_fresh_copy",
             [](OpCall& c) { return c.tensor(0); });
  add_single(t, "view view_copy _unsafe_view reshape _reshape_alias _reshape_alias_copy _reshape_copy", view);
  add_single(t, "view_as reshape_as", view_as);
  add_single(t, "view.dtype view_copy.dtype", bits_as);
  add_single(t, "ravel", [](OpCall& c) { return c.b.reshape(c.tensor(0), {c.tensor(0).type().numel()}); });
  add_single(t, "flatten.using_ints", flatten);
  add_single(t, "unflatten.int", unflatten);
  add_single(t, "expand expand_copy broadcast_to", [](OpCall& c) { return expand_to(c.b, c.tensor(0), c.ints(1)); });
  add_single(t, "expand_as", [](OpCall& c) { return expand_to(c.b, c.tensor(0), c.tensor(1).shape()); });
  add_single(t, "squeeze squeeze_copy", [](OpCall& c) { return squeeze_dims(c.b, c.tensor(0), counted(c.tensor(0).rank())); });
  add_single(t, "squeeze.dim squeeze.dims squeeze_copy.dim squeeze_copy.dims", squeeze_listed);
  add_single(t, "unsqueeze unsqueeze_copy", [](OpCall& c) { return unsqueeze(c.b, c.tensor(0), c.dim(1, c.tensor(0).rank() + 1)); });
  add_single(t, "atleast_1d", [](OpCall& c) { return at_least_1d(c.b, c.tensor(0)); });
  add_single(t, "atleast_2d", [](OpCall& c) { return at_least_2d(c.b, c.tensor(0)); });
  add_single(t, "atleast_3d", [](OpCall& c) { return at_least_3d(c.b, c.tensor(0)); });
  add_single(t, "permute permute_copy", permute);
  add_single(t, "transpose.int transpose_copy.int swapaxes swapdims", swap_dims);
  add_single(t, "t t_copy mT mH adjoint matrix_H", swap_last);
  add_single(t, "numpy_T", reverse_dims);
  add_single(t, "movedim.int movedim.intlist moveaxis.int moveaxis.intlist", move_dims);
  add_single(t, "slice.Tensor slice_copy.Tensor", slice);
  add_single(t, "select.int select_copy.int", [](OpCall& c) { return select_at(c.b, c.tensor(0), c.dim(1, c.tensor(0).rank()), c.integer(2)); });
  add_single(t, "narrow narrow_copy", narrow_call);
  add_single(t, "diagonal diagonal_copy", diagonal_call);
  add_single(t, "unfold", unfold);
  add_single(t, "unfold_copy", unfold_copy);
}

void add_split_ops(OpTable& t) {
  add_real(t, "split.Tensor split_copy.Tensor unsafe_split.Tensor", split);
  add_real(t, "split.sizes split_with_sizes split_with_sizes_copy unsafe_split_with_sizes", split_sizes);
  add_real(t, "chunk unsafe_chunk", chunk);
  add_real(t, "tensor_split.sections", [](OpCall& c) { return split_sections(c, c.dim(2, c.tensor(0).rank()), c.integer(1)); });
  add_real(t, "tensor_split.indices", [](OpCall& c) { return split_at(c, c.dim(2, c.tensor(0).rank()), c.ints(1)); });
  for (auto [name, dim] : {std::pair("vsplit", 0), std::pair("hsplit", 1), std::pair("dsplit", 2)}) {
    auto where = [dim = dim](OpCall& c) { return std::min<int64_t>(dim, c.tensor(0).rank() - 1); };
    add_real(t, broach::cat(name, ".int"), [where](OpCall& c) { return split_sections(c, where(c), c.integer(1)); });
    add_real(t, broach::cat(name, ".array"), [where](OpCall& c) { return split_at(c, where(c), c.ints(1)); });
  }
  add_real(t, "unbind.int unbind_copy.int", unbind);
  add_real(t, "broadcast_tensors", broadcast_tensors);
  add_real(t, "meshgrid", [](OpCall& c) { return meshgrid(c, false); });
  add_real(t, "meshgrid.indexing", [](OpCall& c) { return meshgrid(c, c.text(1) == "xy"); });
}

void add_join_ops(OpTable& t) {
  add_single(t, "cat concat concatenate", cat);
  add_single(t, "stack _stack", stack);
  add_single(t, "hstack", [](OpCall& c) { return join_raised(c, at_least_1d, 1); });
  add_single(t, "vstack row_stack", [](OpCall& c) { return join_raised(c, at_least_2d, 0); });
  add_single(t, "dstack", [](OpCall& c) { return join_raised(c, at_least_3d, 2); });
  add_single(t, "column_stack", [](OpCall& c) { return join_raised(c, as_column, 1); });
  add_single(t, "repeat tile", [](OpCall& c) { return repeat_all(c.b, c.tensor(0), c.ints(1)); });
  add_single(t, "repeat_interleave.self_int", repeat_interleave);
  add_single(t, "flip", [](OpCall& c) { return flip(c.b, c.tensor(0), c.constants(1)); });
  add_single(t, "fliplr", [](OpCall& c) { return flip_dim(c.b, c.tensor(0), 1); });
  add_single(t, "flipud", [](OpCall& c) { return flip_dim(c.b, c.tensor(0), 0); });
  add_single(t, "roll", roll);
  add_single(t, "rot90", rot90);
  add_single(t, "pixel_shuffle", pixel_shuffle);
  add_single(t, "pixel_unshuffle", pixel_unshuffle);
  add_single(t, "channel_shuffle native_channel_shuffle", channel_shuffle);
  add_single(t, "im2col", im2col);
  add_single(t, "col2im", col2im);
}

void add_pad_ops(OpTable& t) {
  add_single(t, "constant_pad_nd", [](OpCall& c) { return pad_constant(c.b, c.tensor(0), c.ints(1), c.scalar(2)); });
  add_single(t, "pad", pad_mode);
  add_single(t, "_pad_circular", [](OpCall& c) { return pad_by(c.b, PadMode::circular, c.tensor(0), c.ints(1)); });
  for (auto [name, mode] : {std::pair("reflection", PadMode::reflect), std::pair("replication", PadMode::replicate)})
    for (const char* rank : {"1d", "2d", "3d"}) {
      add_single(t, broach::cat(name, "_pad", rank), [mode = mode](OpCall& c) { return pad_by(c.b, mode, c.tensor(0), c.ints(1)); });
      add_single(t, broach::cat(name, "_pad", rank, "_backward"), [mode = mode](OpCall& c) { return pad_backward(c, mode); });
    }
}

void add_write_ops(OpTable& t) {
  add_single(t, "slice_scatter", slice_scatter);
  add_single(t, "select_scatter", select_scatter);
  add_single(t, "diagonal_scatter", [](OpCall& c) {
    Value x = c.tensor(0);
    return write_diagonal(c.b, x, c.tensor(1), c.constant(2), c.dim(3, x.rank()), c.dim(4, x.rank()));
  });
  add_single(t, "slice_backward", slice_backward);
  add_single(t, "select_backward", select_backward);
  add_single(t, "diagonal_backward", [](OpCall& c) {
    Shape sizes = c.ints(1);
    int rank = static_cast<int>(sizes.size());
    return write_diagonal(c.b, zeros(c.b, sizes, c.tensor(0).dtype()), c.tensor(0), c.constant(2), c.dim(3, rank), c.dim(4, rank));
  });
  add_single(t, "unfold_backward", unfold_backward);
  add_single(t, "diag", diag);
  add_single(t, "diag_embed", [](OpCall& c) {
    Value x = c.tensor(0);
    return embed_diagonal(c.b, x, c.constant(1), c.dim(2, x.rank() + 1), c.dim(3, x.rank() + 1));
  });
}

}  // namespace

void add_movement_ops(OpTable& t) {
  add_view_ops(t);
  add_split_ops(t);
  add_join_ops(t);
  add_pad_ops(t);
  add_write_ops(t);
}

}  // namespace broach
