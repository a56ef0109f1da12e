// Movement: views, and ops whose results are the operand's elements elsewhere (split, cat, flip, roll, repeat; padding,
// windows and writing into parts are in padding.cpp). Views are made of reshape, permute, expand and slice on the operand itself, so that a write to the
// view can be carried back.
#include <algorithm>
#include <numeric>

#include "ops/formula.h"
#include "ops/movement.h"
#include "support/error.h"

namespace broach {

// ---- shared with padding.cpp ----

Dims counted(int n) {
  Dims dims(at(n));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

Value flip_dim(GraphBuilder& b, Value x, int64_t dim) { return narrow(b, x, dim, size_of(x, dim) - 1, size_of(x, dim), -1); }

Value move_dim(GraphBuilder& b, Value x, int64_t from, int64_t to) {
  Dims dims = counted(x.rank());
  dims.erase(dims.begin() + from);
  dims.insert(dims.begin() + to, from);
  return b.permute(x, dims);
}

std::optional<Windows> windows(OpCall& c) {
  Value x = c.tensor(0);
  if (x.rank() == 0) return std::nullopt;
  int64_t d = c.dim(1, x.rank()), size = c.constant(2), step = c.constant(3);
  return Windows{x, d, size, step, floordiv(size_of(x, d) - SymInt(size), step) + 1};
}

SymInt clamped(Symbols& s, SymInt bound, const SymInt& size) {
  constexpr int64_t kFar = int64_t{1} << 60;  // "to the end", whatever the size
  if (auto n = bound.maybe_constant(); bound == size || (n && *n >= kFar)) return size;
  if (s.ask(bound, Relation::lt, 0)) bound = bound + size;
  if (s.ask(bound, Relation::lt, 0)) return 0;
  return bound == SymInt(0) || s.ask(bound, Relation::lt, size) ? bound : size;
}

Part part(OpCall& c, size_t i, const SymInt& size) {
  Symbols& s = c.b.symbols();
  int64_t step = c.is_none(i + 2) ? 1 : c.constant(i + 2);
  SymInt start = clamped(s, c.integer_or(i, 0), size), end = clamped(s, c.integer_or(i + 1, size), size);
  if (s.ask(end, Relation::lt, start)) end = start;
  return {start, ceildiv(end - start, step), step};
}

SymInt wrapped(Symbols& s, const SymInt& index, const SymInt& size) { return s.ask(index, Relation::lt, 0) ? index + size : index; }

// That the element is there is a guard: whoever calls the operation need not have asked.
Value select_at(GraphBuilder& b, Value x, int64_t dim, const SymInt& index) {
  const SymInt size = size_of(x, dim), at = wrapped(b.symbols(), index, size);
  if (b.symbols().ask(at, Relation::lt, 0) || b.symbols().ask(size, Relation::le, at)) unsupported("index ", index, " of ", size);
  return squeeze(b, narrow(b, x, dim, at, 1), dim);
}

namespace {

using Results = std::optional<std::vector<Value>>;

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

Value slice(OpCall& c) {
  Value x = c.tensor(0);
  int64_t d = c.dim(1, x.rank());
  Part p = part(c, 2, size_of(x, d));
  return narrow(c.b, x, d, p.start, p.length, p.step);
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
  if (const SymInt& all = size_of(c.tensor(0), d); !c.b.symbols().equal(start, all)) unsupported("parts of ", start, " in all of ", all);
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
  for (int64_t i = 0; i < n; ++i) parts.push_back(narrow(c.b, x, dim, SymInt(i) * size + std::min(i, more), size + (i < more ? 1 : 0)));
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

Value diagonal_call(OpCall& c) {
  Value x = c.tensor(0);
  return diagonal(c.b, x, c.constant(1), c.dim(2, x.rank()), c.dim(3, x.rank()));
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

// ---- joining and repeating ----

std::vector<Value> listed(OpCall& c) {
  std::vector<Value> values;
  for (const auto& v : c.tensors(0)) values.push_back(c.b.cast(v.value(), c.result().dtype));
  return values;
}

Value cat(OpCall& c) {
  std::vector<Value> values = listed(c);
  int rank = 0;
  for (const Value& v : values) rank = std::max(rank, v.rank());
  // A vector among tensors of more dimensions is one without elements, which fits any rank.
  std::erase_if(values, [&](const Value& v) { return v.rank() < rank && c.b.symbols().equal(v.shape().at(0), 0); });
  return concat(c.b, values, c.dim(1, rank));
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

// Matrices along the diagonal of a larger one that is zero elsewhere.
Value block_diagonal(OpCall& c) {
  std::vector<Value> values = listed(c);
  if (values.empty()) return {};
  SymInt total, before;
  for (Value& v : values) total = total + size_of(v = at_least_2d(c.b, v), 1);
  for (Value& v : values) {
    SymInt own = size_of(v, 1);
    v = pad(c.b, v, {0, before}, {0, total - before - own}, c.b.constant(int64_t{0}, v.dtype()).node->get<Scalar>(Attr::value));
    before = before + own;
  }
  return concat(c.b, values, 0);
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

// The elements of `dim`, `by` places further on.
Value rotated(GraphBuilder& b, Value x, int64_t dim, int64_t by) {
  int64_t n = b.symbols().specialize(size_of(x, dim));
  return concat(b, {narrow(b, x, dim, by, n - by), narrow(b, x, dim, 0, by)}, dim);
}

// x y' - x' y with the components one and two places further on, and two and one. Eager's compilers round the difference once.
Value cross(OpCall& c) {
  GraphBuilder& b = c.b;
  Shape shape = b.broadcast(c.tensor(0).shape(), c.tensor(1).shape());
  int64_t dim = c.is_none(2) ? static_cast<int64_t>(shape.size()) - 1 : c.dim(2, static_cast<int>(shape.size()));
  Value x = broadcast_to(b, b.cast(c.tensor(0), c.result().dtype), shape),
        y = broadcast_to(b, b.cast(c.tensor(1), c.result().dtype), shape);
  auto part = [&](Value v, int64_t by) { return Expr{b, rotated(b, v, dim, by)}; };
  const Expr second = part(x, 2) * part(y, 1);
  if (is_low_precision(x.dtype()) || !is_floating(x.dtype())) return (part(x, 1) * part(y, 2) - second).value();
  return multiply_add(part(x, 1), part(y, 2), -second).value();
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
  SymInt r = c.constant(1), n = size_of(x, x.rank() - 3), h = floordiv(size_of(x, x.rank() - 2), r),
         w = floordiv(size_of(x, x.rank() - 1), r);
  return regroup(c.b, x, x.shape().size() - 3, {n, h, r, w, r}, {0, 2, 4, 1, 3}, {n * r * r, h, w});
}

Value channel_shuffle(OpCall& c) {
  Value x = c.tensor(0);
  SymInt groups = c.integer(1), each = floordiv(size_of(x, 1), groups), rest = product(std::span(x.shape()).subspan(2));
  Shape merged(x.shape().begin() + 1, x.shape().end());
  return regroup(c.b, x, 1, {groups, each, rest}, {1, 0, 2}, merged);
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

void add_view_ops(OpTable& t) {
  add_single_moving(t, "contiguous", [](OpCall& c) { return c.tensor(0); });
  add_single_moving(t, "view view_copy _unsafe_view reshape _reshape_alias _reshape_alias_copy _reshape_copy", view);
  add_single_moving(t, "view_as reshape_as", view_as);
  add_single_moving(t, "view.dtype view_copy.dtype", bits_as);
  add_single_moving(t, "ravel", [](OpCall& c) { return c.b.reshape(c.tensor(0), {c.tensor(0).type().numel()}); });
  add_single_moving(t, "flatten.using_ints", flatten);
  add_single_moving(t, "unflatten.int", unflatten);
  add_single_moving(t, "expand expand_copy broadcast_to", [](OpCall& c) { return expand_to(c.b, c.tensor(0), c.ints(1)); });
  add_single_moving(t, "expand_as", [](OpCall& c) { return expand_to(c.b, c.tensor(0), c.tensor(1).shape()); });
  add_single_moving(t, "squeeze squeeze_copy", [](OpCall& c) { return squeeze_dims(c.b, c.tensor(0), counted(c.tensor(0).rank())); });
  add_single_moving(t, "squeeze.dim squeeze.dims squeeze_copy.dim squeeze_copy.dims", squeeze_listed);
  add_single_moving(t, "unsqueeze unsqueeze_copy", [](OpCall& c) { return unsqueeze(c.b, c.tensor(0), c.dim(1, c.tensor(0).rank() + 1)); });
  add_single_moving(t, "atleast_1d", [](OpCall& c) { return at_least_1d(c.b, c.tensor(0)); });
  add_single_moving(t, "atleast_2d", [](OpCall& c) { return at_least_2d(c.b, c.tensor(0)); });
  add_single_moving(t, "atleast_3d", [](OpCall& c) { return at_least_3d(c.b, c.tensor(0)); });
  add_single_moving(t, "permute permute_copy", permute);
  add_single_moving(t, "transpose.int transpose_copy.int swapaxes swapdims", swap_dims);
  add_single_moving(t, "t t_copy mT", swap_last);
  add_single_moving(t, "numpy_T", reverse_dims);
  add_single_moving(t, "movedim.int movedim.intlist moveaxis.int moveaxis.intlist", move_dims);
  add_single_moving(t, "slice.Tensor slice_copy.Tensor", slice);
  add_single_moving(t, "select.int select_copy.int",
                    [](OpCall& c) { return select_at(c.b, c.tensor(0), c.dim(1, c.tensor(0).rank()), c.integer(2)); });
  add_single_moving(t, "narrow narrow_copy", narrow_call);
  add_single_moving(t, "diagonal diagonal_copy", diagonal_call);
  add_single_moving(t, "unfold", unfold);
}

void add_split_ops(OpTable& t) {
  add_moving(t, "split.Tensor split_copy.Tensor unsafe_split.Tensor", split);
  add_moving(t, "split.sizes split_with_sizes split_with_sizes_copy unsafe_split_with_sizes", split_sizes);
  add_moving(t, "chunk unsafe_chunk", chunk);
  add_moving(t, "tensor_split.sections", [](OpCall& c) { return split_sections(c, c.dim(2, c.tensor(0).rank()), c.integer(1)); });
  add_moving(t, "tensor_split.indices", [](OpCall& c) { return split_at(c, c.dim(2, c.tensor(0).rank()), c.ints(1)); });
  for (auto [name, dim] : {std::pair("vsplit", 0), std::pair("hsplit", 1), std::pair("dsplit", 2)}) {
    auto where = [dim = dim](OpCall& c) { return std::min<int64_t>(dim, c.tensor(0).rank() - 1); };
    add_moving(t, broach::cat(name, ".int"), [where](OpCall& c) { return split_sections(c, where(c), c.integer(1)); });
    add_moving(t, broach::cat(name, ".array"), [where](OpCall& c) { return split_at(c, where(c), c.ints(1)); });
  }
  add_moving(t, "unbind.int unbind_copy.int", unbind);
  add_moving(t, "broadcast_tensors", broadcast_tensors);
}

void add_join_ops(OpTable& t) {
  add_single_moving(t, "cat concat concatenate", cat);
  add_single_moving(t, "stack _stack", stack);
  add_single_moving(t, "block_diag", block_diagonal);
  add_single_moving(t, "hstack", [](OpCall& c) { return join_raised(c, at_least_1d, 1); });
  add_single_moving(t, "vstack row_stack", [](OpCall& c) { return join_raised(c, at_least_2d, 0); });
  add_single_moving(t, "dstack", [](OpCall& c) { return join_raised(c, at_least_3d, 2); });
  add_single_moving(t, "column_stack", [](OpCall& c) { return join_raised(c, as_column, 1); });
  add_single_moving(t, "repeat tile", [](OpCall& c) { return repeat_all(c.b, c.tensor(0), c.ints(1)); });
  add_single_moving(t, "repeat_interleave.self_int", repeat_interleave);
  add_single_moving(t, "flip", [](OpCall& c) { return flip(c.b, c.tensor(0), c.constants(1)); });
  add_single_moving(t, "fliplr", [](OpCall& c) { return flip_dim(c.b, c.tensor(0), 1); });
  add_single_moving(t, "flipud", [](OpCall& c) { return flip_dim(c.b, c.tensor(0), 0); });
  add_single_moving(t, "roll", roll);
  add_single_moving(t, "rot90", rot90);
  add_single(t, "linalg_cross", cross);
  add_single_moving(t, "pixel_shuffle", pixel_shuffle);
  add_single_moving(t, "pixel_unshuffle", pixel_unshuffle);
  add_single_moving(t, "channel_shuffle native_channel_shuffle", channel_shuffle);
}

}  // namespace

void add_movement_ops(OpTable& t) {
  add_view_ops(t);
  add_split_ops(t);
  add_join_ops(t);
  add_padding_ops(t);
  add_window_ops(t);
}

}  // namespace broach
