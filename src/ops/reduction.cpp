// Reductions, and the losses and norms that are little more than one.
#include "ops/reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace broach {

// ---- shared with the normalizations ----

Axes Axes::from(int first, int rank, bool keep) {
  Axes a{std::vector<int64_t>(static_cast<size_t>(rank - first)), keep};
  std::iota(a.dims.begin(), a.dims.end(), first);
  return a;
}

Axes Axes::all(int rank, bool keep) { return from(0, rank, keep); }

Axes Axes::of(OpCall& c, size_t dims, size_t keep, int rank) { return {c.dims(dims, rank), c.flag(keep)}; }

SymInt Axes::count(const Expr& x) const {
  SymInt n(1);
  for (int64_t d : dims) n = n * x.value().shape().at(static_cast<size_t>(d));
  return n;
}

Expr reduce(Op op, const Expr& x, const Axes& axes) { return {x.builder(), x.builder().reduce(op, x.value(), axes.dims, axes.keep)}; }

Expr mean(const Expr& x, const Axes& axes) { return sum(x, axes) / number(x.builder(), axes.count(x), x.dtype()); }

Expr reshaped(const Expr& x, Shape shape) { return {x.builder(), x.builder().reshape(x.value(), std::move(shape))}; }

Expr number(GraphBuilder& b, const SymInt& n, DType t) { return {b, size_number(b, n, t)}; }

Expr p_norm(const Expr& x, double p, const Axes& axes) {
  // One element is its own norm, which its square might overflow.
  if (axes.count(x) == SymInt(1)) return sum(p == 0 ? unequal(x, 0.0).to(x.dtype()) : abs(x), axes);
  if (p == 0) return sum(unequal(x, 0.0).to(x.dtype()), axes);
  if (p == 1) return sum(abs(x), axes);
  if (p == 2) return apply(Op::sqrt, sum(x * x, axes));
  if (std::isinf(p)) return reduce(p > 0 ? Op::reduce_max : Op::reduce_min, abs(x), axes);
  return apply(Op::pow, sum(apply(Op::pow, abs(x), p), axes), 1 / p);
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Argument 0 in the element type in which a result of eager's type is computed.
Expr computed(OpCall& c, size_t i = 0) { return Expr(c.b, c.tensor(i)).to(compute_dtype(c.result().dtype)); }
Value result(OpCall& c, const Expr& x) { return x.to(c.result().dtype).value(); }

// ---- sums and extrema ----

// A reduction as the overload over all dimensions (names without dimensions) and over those of arguments 1 and 2.
using Reduction = std::function<Value(OpCall&, Expr x, const Axes&)>;
void add_reduction(OpTable& t, std::string_view over_all, std::string_view over_dims, Reduction r) {
  add_single(t, over_all, [r](OpCall& c) { return r(c, {c.b, c.tensor(0)}, Axes::all(c.tensor(0).rank(), false)); });
  add_single(t, over_dims, [r](OpCall& c) { return r(c, {c.b, c.tensor(0)}, Axes::of(c, 1, 2, c.tensor(0).rank())); });
}

// Sums and products: elements become the result's type before they are added up, in f32 for the small floating types.
Value accumulated(OpCall& c, Op op, const Expr& x, const Axes& axes) {
  DType t = c.result().dtype;
  if (t == DType::b1) return {};
  return result(c, reduce(op, x.to(t).to(compute_dtype(t)), axes));
}

Value average(OpCall& c, const Expr& x, const Axes& axes) { return result(c, mean(x.to(compute_dtype(c.result().dtype)), axes)); }

// Extrema of nothing are an error in eager; a size that may be 0 is guarded.
bool has_elements(const Expr& x, const Axes& axes) { return x.builder().symbols().ask(axes.count(x), Relation::ne, 0); }

Value extremum(Op op, const Expr& x, const Axes& axes) { return has_elements(x, axes) ? reduce(op, x, axes).value() : Value{}; }

// The position among bools is that among 0 and 1.
Value position(Op op, const Expr& x, const Axes& axes) {
  // A constant lies with the host.
  const bool is_hosts = x.value().type().device == Device{};
  if (is_hosts && axes.count(x) == SymInt(1))
    return x.builder().full(reduce(Op::reduce_max, x, axes).value().shape(), int64_t{0}, DType::i64);
  return extremum(op, x.dtype() == DType::b1 ? x.to(DType::u8) : x, axes);
}

Results both(Value a, Value b) {
  if (!a || !b) return std::nullopt;
  return std::vector{a, b};
}

Results with_position(OpCall& c, Op value, Op index) {
  Expr x(c.b, c.tensor(0));
  Axes axes = Axes::of(c, 1, 2, c.tensor(0).rank());
  return both(extremum(value, x, axes), position(index, x, axes));
}

// Of truth values; eager answers bytes with bytes.
Value logical(OpCall& c, Op op, const Expr& x, const Axes& axes) { return result(c, reduce(op, x.to(DType::b1), axes)); }

// `dims` as an empty list reduces nothing here, unlike elsewhere.
Value logical_dims(OpCall& c, Op op) {
  Expr x(c.b, c.tensor(0));
  bool none = !c.is_none(1) && c.ints(1).empty();
  return logical(c, op, x, none ? Axes{} : Axes::of(c, 1, 2, c.tensor(0).rank()));
}

Expr without_nan(const Expr& x) { return is_floating(x.dtype()) ? select(is_nan(x), 0.0, x) : x; }

Value nan_mean(OpCall& c, const Axes& axes) {
  Expr x = computed(c);
  return result(c, sum(without_nan(x), axes) / sum((!is_nan(x)).to(x.dtype()), axes));
}

Value count_nonzero(OpCall& c) {
  Axes axes{c.dims(1, c.tensor(0).rank()), false};
  return sum(Expr(c.b, c.tensor(0)).to(DType::b1).to(DType::i64), axes).value();
}

// Every dimension that the result has not, or has with size 1.
Value sum_to_size(OpCall& c) {
  Expr x(c.b, c.tensor(0));
  Shape sizes = c.ints(1);
  int64_t lead = x.value().rank() - static_cast<int64_t>(sizes.size());
  Axes axes{{}, true};
  for (int64_t d = 0; d < x.value().rank(); ++d) {
    const SymInt& own = x.value().shape()[static_cast<size_t>(d)];
    if (d < lead || (own != SymInt(1) && sizes[static_cast<size_t>(d - lead)] == SymInt(1))) axes.dims.push_back(d);
  }
  if (axes.dims.empty()) return result(c, x);
  Value y = accumulated(c, Op::reduce_sum, x, axes);
  return y ? reshape_guarded(c.b, y, sizes) : y;
}

// The largest is taken out, unless it is infinite, so that exp does not overflow.
Value log_sum_exp(OpCall& c) {
  // Eager keeps all dimensions of the largest here, which then fits no sum.
  if (c.ints(1).empty() && c.tensor(0).rank()) return {};
  Expr x = Expr(c.b, c.tensor(0)).to(c.result().dtype).to(compute_dtype(c.result().dtype));
  Axes axes = Axes::of(c, 1, 2, c.tensor(0).rank());
  if (!has_elements(x, axes)) return result(c, log(sum(exp(x), axes)));
  Expr top = reduce(Op::reduce_max, x, axes.kept());
  top = select(equal(abs(top), kInfinity), 0.0, top);
  Expr total = log(sum(exp(x - top), axes));
  return result(c, total + reshaped(top, total.value().shape()));
}

// ---- variance ----

// Deviations from the mean, squared and averaged over count - correction (at least 0, as eager).
struct Moments {
  Expr mean, variance;
};

// By the corrected algorithm of two passes (Chan, Golub and LeVeque): what a mean lacks by its rounding is the mean of the deviations from
// it, whose square is in theirs. Equal elements so have no variance, whatever their size. Infinite squares stay so.
Moments moments(const Expr& x, const Axes& axes, double correction) {
  GraphBuilder& b = x.builder();
  SymInt n = axes.count(x);
  Expr about = mean(x, axes.kept()), from_about = x - about, rest = mean(from_about, axes.kept());
  Expr m = about + rest, squares = sum(from_about * from_about, axes);
  Expr of_rest = reshaped(rest * rest, squares.value().shape()) * number(b, n, x.dtype());
  squares = select(equal(squares, kInfinity), squares, max(squares - of_rest, 0.0));
  Expr divisor = n.is_constant() ? Expr(b, b.constant(std::max(static_cast<double>(n.constant()) - correction, 0.0), x.dtype()))
                                 : max(number(b, n, x.dtype()) - correction, 0.0);
  return {reshaped(m, squares.value().shape()), squares / divisor};
}

// var, std, var_mean and std_mean, each with its three overloads.
void add_variance(OpTable& t, std::string name, bool root, bool with_mean) {
  auto lower = [=](OpCall& c, double correction, const Axes& axes) -> Results {
    Moments m = moments(computed(c), axes, correction);
    Expr v = root ? apply(Op::sqrt, m.variance) : m.variance;
    if (!with_mean) return std::vector{result(c, v)};
    return std::vector{result(c, v), result(c, m.mean)};
  };
  add_real(t, name, [=](OpCall& c) { return lower(c, c.flag(1), Axes::all(c.tensor(0).rank(), false)); });
  add_real(t, name + ".dim", [=](OpCall& c) { return lower(c, c.flag(2), Axes::of(c, 1, 3, c.tensor(0).rank())); });
  add_real(t, name + ".correction", [=](OpCall& c) { return lower(c, c.number_or(2, 1), Axes::of(c, 1, 3, c.tensor(0).rank())); });
}

// ---- norms ----

Value norm(OpCall& c, double p, const Axes& axes) {
  Expr x(c.b, c.tensor(0));
  if (!is_floating(x.dtype()) || std::isnan(p) || ((p < 0 || std::isinf(p)) && !has_elements(x, axes))) return {};
  return result(c, p_norm(computed(c), p, axes));
}

// Without an order, the 2-norm of all elements, whatever the dimensions.
Value linalg_norm(OpCall& c) {
  size_t dims = c.is_none(2) ? 0 : c.ints(2).size();
  if (!c.is_none(1) && dims != 1 && c.tensor(0).rank() != 1) return {};
  return norm(c, c.number_or(1, 2), Axes::of(c, 2, 3, c.tensor(0).rank()));
}

// Two operands in the element type in which the result is computed.
Value distance(OpCall& c) {
  Expr d = computed(c, 0) - computed(c, 1);
  return result(c, p_norm(d, c.number(2), Axes::all(d.value().rank(), false)));
}

Value pairwise_distance(OpCall& c) {
  if (!is_floating(c.tensor(0).dtype()) || !is_floating(c.tensor(1).dtype())) return {};
  Expr d = computed(c, 0) - computed(c, 1) + c.number(3);
  if (d.value().rank() == 0) return {};
  return result(c, p_norm(d, c.number(2), {{d.value().rank() - 1}, c.flag(4)}));
}

Value cosine_similarity(OpCall& c) {
  int rank = std::max(c.tensor(0).rank(), c.tensor(1).rank());
  if (rank == 0) return {};
  Axes axes{{c.dim(2, rank)}, true};
  Shape shape = c.b.broadcast(c.tensor(0).shape(), c.tensor(1).shape());
  auto unit = [&](size_t i) {
    Expr x(c.b, broadcast_to(c.b, computed(c, i).value(), shape));
    return x / max(p_norm(x, 2, axes), c.number(3));
  };
  return result(c, sum(unit(0) * unit(1), {axes.dims, false}));
}

// All pairs of rows [.., m, 1, k] and [.., 1, n, k]: their distances. Eager takes a matrix product for many rows.
Value pair_distances(OpCall& c) {
  Value x = c.tensor(0), y = c.tensor(1);
  double p = c.number(2);
  int64_t mode = c.is_none(3) ? 0 : c.constant(3);
  auto many = [&](const Value& v) { return c.b.symbols().hint(v.shape()[v.shape().size() - 2]) > 25; };
  if (!is_floating(x.dtype()) || (p == 2 && (mode == 1 || (mode == 0 && (many(x) || many(y)))))) return {};
  Expr d = Expr(c.b, unsqueeze(c.b, x, x.rank() - 1)) - Expr(c.b, unsqueeze(c.b, y, y.rank() - 2));
  Axes last{{d.value().rank() - 1}, false};
  return std::isinf(p) && !has_elements(d, last) ? Value{} : result(c, p_norm(d.to(compute_dtype(x.dtype())), p, last));
}

// The distances of rows i < j, in the order of (0, 1), (0, 2), .., (1, 2), ..
Value distances_within(OpCall& c) {
  GraphBuilder& b = c.b;
  Value x = c.tensor(0);
  int64_t n = b.symbols().specialize(x.shape()[0]);
  double p = c.number(1);
  if (!is_floating(x.dtype()) || n < 2 || n > 1 << 15) return {};
  // Pair k is in row i where i * (2n - 1 - i) / 2 <= k: the root of a quadratic, rounded down and put right.
  Expr k(b, positions(b, n * (n - 1) / 2)), root(b, b.cast(k.value(), DType::f64));
  double side = static_cast<double>(2 * n - 1);
  Expr i = apply(Op::floor, (side - apply(Op::sqrt, side * side - root * 8.0)) * 0.5).to(DType::i64);
  auto begin = [&](const Expr& row) { return apply(Op::shr, row * (side - row), Expr(b, b.constant(int64_t{1}, DType::i64))); };
  i = select(begin(i) > k, i - 1.0, i);
  i = select(begin(i + 1.0) <= k, i + 1.0, i);
  Expr j = k - begin(i) + i + 1.0;
  Expr d = Expr(b, take(b, x, i.value(), 0)) - Expr(b, take(b, x, j.value(), 0));
  Axes last{{1}, false};
  return std::isinf(p) && !has_elements(d, last) ? Value{} : result(c, p_norm(d.to(compute_dtype(x.dtype())), p, last));
}

// The product of three tensors with dimensions inserted, summed over some.
Value trilinear(OpCall& c) {
  DType t = compute_dtype(c.result().dtype);
  int rank = c.tensor(0).rank() + static_cast<int>(c.constants(3).size());
  auto factor = [&](size_t i) {
    Value x = c.b.cast(c.tensor(i), t);
    std::vector<int64_t> dims = c.constants(i + 3);
    for (int64_t& d : dims) d = OpCall::wrap_dim(d, rank);
    std::sort(dims.begin(), dims.end());
    for (int64_t d : dims) x = unsqueeze(c.b, x, d);
    return Expr(c.b, x);
  };
  Expr product = factor(0) * factor(1) * factor(2);
  return result(c, sum(product, {c.dims(6, rank), false}));
}

// Every dimension but one.
Axes others(int64_t dim, int rank) {
  Axes a = Axes::all(rank, true);
  std::erase(a.dims, dim);
  return a;
}

// Slices along a dimension whose norm is beyond the largest, scaled down to it.
Value renormalized(OpCall& c) {
  Expr x = computed(c);
  double p = c.number(1), most = c.number(3);
  Expr norm = p_norm(x, p, others(c.dim(2, x.value().rank()), x.value().rank()));
  return result(c, x * select(norm > most, most / (norm + 1e-7), 1.0));
}

Results weight_norm(OpCall& c) {
  Value v = c.tensor(0);
  Expr x = computed(c), norm = p_norm(x, 2, others(c.dim(2, v.rank()), v.rank()));
  return std::vector{result(c, x * (computed(c, 1) / norm)), norm.to(c.result(1).dtype).value()};
}

Results weight_norm_backward(OpCall& c) {
  Value v = c.tensor(1);
  DType t = compute_dtype(v.dtype());
  auto argument = [&](size_t i) { return Expr(c.b, c.tensor(i)).to(t); };
  Expr grad = argument(0), x = argument(1), g = argument(2), norm = argument(3);
  Expr along_x = sum(grad * x, others(c.dim(4, v.rank()), v.rank()));
  Expr grad_x = (g / norm) * (grad - x * (along_x / (norm * norm)));
  return std::vector{grad_x.to(v.dtype()).value(), (along_x / norm).to(c.tensor(2).dtype()).value()};
}

// ---- classification losses ----

enum class Reduce : int64_t { none, mean, sum };

Expr integers(OpCall& c, Value v) { return Expr(c.b, v).to(DType::i64); }

// Rows of [n, classes, rest], with [n, rest] targets.
struct Classes {
  Value x, target;
  SymInt n, classes, rest;
  Shape sizes;  // of a loss for each target
};

Classes as_rows(OpCall& c, Value x, Value target) {
  const Shape& s = x.shape();
  if (x.rank() == 1) return {x, c.b.reshape(target, {1, 1}), 1, s[0], 1, {}};
  Shape sizes = s;
  sizes.erase(sizes.begin() + 1);
  SymInt rest = product(std::span(s).subspan(2));
  return {x, c.b.reshape(broadcast_to(c.b, target, sizes), {s[0], rest}), s[0], s[1], rest, sizes};
}

// What a tensor holds once for each row, or once.
std::optional<Value> of_rows(GraphBuilder& b, const Classes& k, const Node& expand) {
  const Value of = expand.inputs[0];
  const Shape &from = of.shape(), &to = expand.results[0].shape;
  if (!(to == k.x.shape())) return std::nullopt;
  if (product(from) == SymInt(1)) return b.expand(b.reshape(of, {1, 1}), k.target.shape());
  const size_t dim = to.size() == 1 ? 0 : 1;
  for (size_t d = 0; d < to.size(); ++d)
    if (!(from[d] == (d == dim ? SymInt(1) : to[d]))) return std::nullopt;
  return b.reshape(of, k.target.shape());
}

constexpr int kDeepest = 8;

// Elements of x, which `read` reads. What is computed element by element is computed for these alone, of what `walk` gives of its operands, so
// that no logarithm of all probabilities is stored.
template <class Walk, class Read>
Value computed_for_some(GraphBuilder& b, Value x, int depth, const Walk& walk, const Read& read) {
  const Node& n = *x.node;
  const bool alone = is_elementwise(n.op) && std::ranges::all_of(n.inputs, [&](const Value& v) { return v.shape() == x.shape(); });
  if (!alone || depth == kDeepest) return read();
  std::vector<Value> inputs;
  for (const Value& v : n.inputs) inputs.push_back(walk(v));
  return b.emit(n.op, std::move(inputs), n.attrs);
}

// At positions among all.
Value take_of_rows(GraphBuilder& b, const Classes& k, Value x, Value index, int depth = 0) {
  const Node& n = *x.node;
  if (n.op == Op::expand)
    if (const auto row = of_rows(b, k, n)) return *row;
  if (n.op == Op::reshape && depth < kDeepest) return take_of_rows(b, k, n.inputs[0], index, depth + 1);  // the index is one of all
  return computed_for_some(
      b, x, depth, [&](const Value& v) { return take_of_rows(b, k, v, index, depth + 1); },
      [&] { return take(b, b.reshape(x, {k.n * k.classes * k.rest}), index, 0); });
}

// Of [.., classes] the element of each row at its position, [..].
Value pick_of_rows(GraphBuilder& b, Value x, Value index, int depth = 0) {
  const Node& n = *x.node;
  const Shape rows = index.shape();
  Shape once = rows;
  once.push_back(1);
  if (n.op == Op::expand && depth > 0) {
    if (n.inputs[0].shape() == once) return b.reshape(n.inputs[0], rows);
    if (product(n.inputs[0].shape()) == SymInt(1)) return b.expand(b.reshape(n.inputs[0], Shape(rows.size(), SymInt(1))), rows);
  }
  if (n.op == Op::reshape && depth > 0 && depth < kDeepest && n.inputs[0].rank() > 0 && n.inputs[0].shape().back() == x.shape().back()) {
    const Shape& from = n.inputs[0].shape();
    return b.reshape(pick_of_rows(b, n.inputs[0], b.reshape(index, Shape(from.begin(), from.end() - 1)), depth + 1), rows);
  }
  return computed_for_some(
      b, x, depth, [&](const Value& v) { return pick_of_rows(b, v, index, depth + 1); },
      [&] { return pick(b, x, index, static_cast<int64_t>(rows.size())); });
}

// `x` at each target, 0 where it is ignored. A target that is no class becomes an index that is none: an error, as in eager.
Expr picked(OpCall& c, const Classes& k, const Expr& target, const Expr& ignored) {
  GraphBuilder& b = c.b;
  auto size = [&](const SymInt& n) { return number(b, n, DType::i64); };
  Expr valid = (target >= 0.0) & (target < size(k.classes));
  // Rows stay as they lie, which need not be one behind the other.
  if (k.x.rank() == 2 && k.rest == SymInt(1)) {
    Expr own = select(ignored, 0.0, select(valid, target, size(k.classes)));
    return {b, b.reshape(pick_of_rows(b, k.x, b.reshape(own.value(), {k.n})), k.target.shape())};
  }
  SymInt row = k.classes * k.rest, all = k.n * row;
  Expr first = Expr(b, along(b, positions(b, k.n), 0, 2)) * size(row) + Expr(b, along(b, positions(b, k.rest), 1, 2));
  Expr index = select(valid, first + target * size(k.rest), size(all));
  return {b, take_of_rows(b, k, k.x, select(ignored, 0.0, index).value())};
}

// Arguments as nll_loss_forward: target, weight, reduction, ignored class.
struct LossArguments {
  Value target;
  std::optional<Value> weight;
  Reduce reduction;
  SymInt ignored;
};

LossArguments loss_arguments(OpCall& c, size_t i) {
  return {c.tensor(i), c.maybe_tensor(i + 1), static_cast<Reduce>(c.constant(i + 2)), c.integer(i + 3)};
}

}  // namespace

Results nll_loss(OpCall& c, Value x) {
  LossArguments a = loss_arguments(c, 1);
  if (!is_floating(x.dtype()) || x.rank() == 0 || !is_integral(a.target.dtype())) return std::nullopt;
  Classes k = as_rows(c, x, a.target);
  Expr target = integers(c, k.target), ignored = equal(target, number(c.b, a.ignored, DType::i64));
  DType t = compute_dtype(x.dtype());
  Expr weight = select(ignored, 0.0, Expr(c.b, c.b.full(k.target.shape(), 1.0, t)));
  if (a.weight) {
    Expr own(c.b, take(c.b, with_sizes(c.b, *a.weight, {k.classes}), select(ignored, 0.0, target).value(), 0));
    weight = select(ignored, 0.0, own.to(t));
  }
  Expr terms = select(ignored, 0.0, -(picked(c, k, target, ignored).to(t) * weight));
  Axes all = Axes::all(2, false);
  Expr total = sum(weight, all), loss = sum(terms, all);
  if (a.reduction == Reduce::mean) loss = loss / total;
  if (a.reduction == Reduce::none) {
    loss = reshaped(terms, k.sizes);
    if (x.rank() > 1) total = Expr(c.b, c.b.constant(0.0, t));  // as eager, which fills it in for a single row only
  }
  return std::vector{loss.to(x.dtype()).value(), total.to(x.dtype()).value()};
}

namespace {

Results first_only(Results r) {
  if (r) r->resize(1);
  return r;
}

// Each row has its gradient at the target's class.
Value nll_loss_backward(OpCall& c) {
  Value x = c.tensor(1);
  LossArguments a = loss_arguments(c, 2);
  DType t = compute_dtype(x.dtype());
  int64_t dim = x.rank() == 1 ? 0 : 1;
  auto beside_classes = [&](Value v) {
    if (v.rank() == 0 || (x.rank() == 1 && v.rank() == 1)) return v;
    return unsqueeze(c.b, v, dim);
  };
  Expr target = integers(c, beside_classes(a.target)), grad = Expr(c.b, beside_classes(c.tensor(0))).to(t);
  if (a.reduction == Reduce::mean) grad = grad / Expr(c.b, c.tensor(6)).to(t);
  if (a.weight) grad = grad * Expr(c.b, along(c.b, *a.weight, dim, x.rank())).to(t);
  Expr classes(c.b, along(c.b, positions(c.b, x.shape()[static_cast<size_t>(dim)]), dim, x.rank()));
  Expr hit = equal(classes, target) & unequal(target, number(c.b, a.ignored, DType::i64));
  return broadcast_to(c.b, select(hit, -grad, 0.0).to(x.dtype()).value(), x.shape());
}

Results cross_entropy(OpCall& c) {
  Value x = c.tensor(0);
  if (x.rank() == 0 || !is_floating(x.dtype()) || !is_integral(c.tensor(1).dtype()) || c.number_or(5, 0) != 0) return std::nullopt;
  Value wide = c.b.cast(x, compute_dtype(x.dtype()));
  return first_only(nll_loss(c, c.b.cast(log_softmax(c.b, wide, {x.rank() == 1 ? 0 : 1}), x.dtype())));
}

void add_loss_reductions(OpTable& t) {
  add_real(t, "nll_loss_forward nll_loss2d_forward", [](OpCall& c) { return nll_loss(c, c.tensor(0)); });
  add_real(t, "nll_loss nll_loss2d nll_loss_nd", [](OpCall& c) { return first_only(nll_loss(c, c.tensor(0))); });
  add_single(t, "nll_loss_backward nll_loss2d_backward", nll_loss_backward);
  add_real(t, "cross_entropy_loss", cross_entropy);
  add_single(t, "dist", distance);
  add_single(t, "_cdist_forward", pair_distances);
  add_single(t, "_pdist_forward", distances_within);
  add_single(t, "_trilinear", trilinear);
  add_single(t, "renorm", renormalized);
  add_single(t, "pairwise_distance", pairwise_distance);
  add_single(t, "cosine_similarity", cosine_similarity);
  add_real(t, "_weight_norm_interface", weight_norm);
  add_real(t, "_weight_norm_interface_backward", weight_norm_backward);
  add_single(t, "trace",
             [](OpCall& c) { return accumulated(c, Op::reduce_sum, {c.b, diagonal(c.b, c.tensor(0), 0, 0, 1)}, Axes::all(1, false)); });
}

void add_norms(OpTable& t) {
  add_single(t, "norm.Scalar norm.ScalarOpt_dtype",
             [](OpCall& c) { return norm(c, c.number_or(1, 2), Axes::all(c.tensor(0).rank(), false)); });
  add_single(t, "norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype linalg_vector_norm",
             [](OpCall& c) { return norm(c, c.number_or(1, 2), Axes::of(c, 2, 3, c.tensor(0).rank())); });
  add_single(t, "linalg_norm", linalg_norm);
  add_single(t, "frobenius_norm.dim", [](OpCall& c) { return norm(c, 2, Axes::of(c, 1, 2, c.tensor(0).rank())); });
}

}  // namespace

void add_reduction_ops(OpTable& t) {
  auto accumulate = [](Op op) { return [op](OpCall& c, Expr x, const Axes& axes) { return accumulated(c, op, x, axes); }; };
  add_reduction(t, "sum", "sum.dim_IntList", accumulate(Op::reduce_sum));
  add_reduction(t, "prod", "prod.dim_int", accumulate(Op::reduce_prod));
  add_reduction(t, "mean", "mean.dim", average);
  add_reduction(t, "max", "amax", [](OpCall&, Expr x, const Axes& axes) { return extremum(Op::reduce_max, x, axes); });
  add_reduction(t, "min", "amin", [](OpCall&, Expr x, const Axes& axes) { return extremum(Op::reduce_min, x, axes); });
  add_reduction(t, "", "argmax", [](OpCall&, Expr x, const Axes& axes) { return position(Op::reduce_argmax, x, axes); });
  add_reduction(t, "", "argmin", [](OpCall&, Expr x, const Axes& axes) { return position(Op::reduce_argmin, x, axes); });
  add_reduction(t, "any _is_any_true", "any.dim", [](OpCall& c, Expr x, const Axes& axes) { return logical(c, Op::reduce_max, x, axes); });
  add_reduction(t, "all _is_all_true", "all.dim", [](OpCall& c, Expr x, const Axes& axes) { return logical(c, Op::reduce_min, x, axes); });
  add_reduction(t, "", "nansum", [](OpCall& c, Expr x, const Axes& axes) { return accumulated(c, Op::reduce_sum, without_nan(x), axes); });
  add_reduction(t, "", "nanmean", [](OpCall& c, Expr, const Axes& axes) { return nan_mean(c, axes); });
  add_single(t, "any.dims", [](OpCall& c) { return logical_dims(c, Op::reduce_max); });
  add_single(t, "all.dims", [](OpCall& c) { return logical_dims(c, Op::reduce_min); });
  add_real(t, "max.dim", [](OpCall& c) { return with_position(c, Op::reduce_max, Op::reduce_argmax); });
  add_real(t, "min.dim", [](OpCall& c) { return with_position(c, Op::reduce_min, Op::reduce_argmin); });
  add_real(t, "aminmax", [](OpCall& c) {
    Expr x(c.b, c.tensor(0));
    Axes axes = Axes::of(c, 1, 2, c.tensor(0).rank());
    return both(extremum(Op::reduce_min, x, axes), extremum(Op::reduce_max, x, axes));
  });
  add_single(t, "count_nonzero count_nonzero.dim_IntList", count_nonzero);
  add_single(t, "sum_to_size", sum_to_size);
  add_single(t, "logsumexp special_logsumexp", log_sum_exp);
  for (const char* name : {"var", "std"})
    for (bool with_mean : {false, true}) add_variance(t, std::string(name) + (with_mean ? "_mean" : ""), name[0] == 's', with_mean);
  add_norms(t);
  add_loss_reductions(t);
}

}  // namespace broach
