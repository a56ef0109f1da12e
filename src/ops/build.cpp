#include "ops/build.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "support/error.h"

namespace broach {

Value size_value(GraphBuilder& b, const SymInt& size) {
  if (auto c = size.maybe_constant()) return b.constant(*c, DType::i64);
  return b.emit(Op::size, {}, {{Attr::expr, size}});
}

Value positions(GraphBuilder& b, const SymInt& n, DType dtype) {
  return b.emit(Op::iota, {}, {{Attr::shape, Shape{n}}, {Attr::dim, int64_t{0}}, {Attr::dtype, dtype}});
}

Value along(GraphBuilder& b, Value vector, int64_t dim, int rank) {
  Shape shape(static_cast<size_t>(rank), SymInt(1));
  shape.at(static_cast<size_t>(dim)) = vector.shape().at(0);
  return b.reshape(vector, shape);
}

Value with_number(GraphBuilder& b, Op op, Value x, Scalar number) { return b.binary(op, x, b.constant(number, x.dtype())); }

Value with_sizes(GraphBuilder& b, Value x, const Shape& shape) {
  for (size_t i = 0; i < shape.size(); ++i)
    check(b.symbols().equal(x.shape().at(i), shape[i]), x.type().str(), " has not the sizes wanted: ", shape[i], " in dimension ", i);
  return b.slice(x, Shape(shape.size(), SymInt(0)), std::vector<int64_t>(shape.size(), 1), shape);
}

Value broadcast_to(GraphBuilder& b, Value x, const Shape& shape) {
  Shape sizes = x.shape();
  size_t skipped = shape.size() - sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != shape[i + skipped]) sizes[i] = b.symbols().equal(sizes[i], shape[i + skipped]) ? shape[i + skipped] : SymInt(1);
  return b.expand(with_sizes(b, x, sizes), shape);
}

Value narrow(GraphBuilder& b, Value x, int64_t dim, SymInt start, SymInt size, int64_t step) {
  Shape starts(x.shape().size(), SymInt(0)), shape = x.shape();
  std::vector<int64_t> steps(x.shape().size(), 1);
  size_t d = static_cast<size_t>(dim);
  starts.at(d) = std::move(start);
  shape.at(d) = std::move(size);
  steps.at(d) = step;
  return b.slice(x, std::move(starts), std::move(steps), std::move(shape));
}

Value pad(GraphBuilder& b, Value x, Shape low, Shape high, Scalar value) {
  Shape none(x.shape().size(), SymInt(0));
  if (low == none && high == none) return x;
  value = b.constant(value, x.dtype()).node->get<Scalar>(Attr::value);
  return b.emit(Op::pad, {x}, {{Attr::low, std::move(low)}, {Attr::high, std::move(high)}, {Attr::value, value}});
}

Value transpose(GraphBuilder& b, Value x, int64_t d0, int64_t d1) {
  std::vector<int64_t> dims(x.shape().size());
  std::iota(dims.begin(), dims.end(), 0);
  std::swap(dims.at(static_cast<size_t>(d0)), dims.at(static_cast<size_t>(d1)));
  return b.permute(x, std::move(dims));
}

Value unsqueeze(GraphBuilder& b, Value x, int64_t dim) {
  Shape shape = x.shape();
  shape.insert(shape.begin() + dim, SymInt(1));
  return b.reshape(x, std::move(shape));
}

namespace {

Value at_positions(GraphBuilder& b, Op op, Value x, Value index, int64_t dim) {
  const SymInt& size = x.shape()[static_cast<size_t>(dim)];
  // No position is one, and whoever reads there all the same, before the error is told or where the answer does not matter, reads nowhere.
  if (!(index.type().numel() == SymInt(0)) && b.symbols().ask(size, Relation::lt, 1)) unsupported("positions in a dimension of size 0");
  return b.emit(op, {x, index}, {{Attr::dim, dim}});
}

}  // namespace

Value take(GraphBuilder& b, Value x, Value index, int64_t dim) { return at_positions(b, Op::take, x, index, dim); }
Value pick(GraphBuilder& b, Value x, Value index, int64_t dim) { return at_positions(b, Op::pick, x, index, dim); }

std::optional<std::vector<Value>> as_result(const OpCall& c, Value v) {
  if (v.dtype() != c.result().dtype || v.rank() != c.result().rank()) return std::nullopt;
  return std::vector<Value>{v};
}

namespace {

template <class F>
bool any_type(const OpCall& c, const F& of_operand, const F& of_result) {
  for (size_t i = 0; i < c.size(); ++i)
    if (c.is_tensor(i) && of_operand(c.tensor(i).type())) return true;
  return std::any_of(c.results().begin(), c.results().end(), of_result);
}

// An undefined result has an opaque type without elements.
bool has_opaque(const OpCall& c) {
  using Test = bool (*)(const Type&);
  return any_type<Test>(
      c, [](const Type& t) { return t.dtype == DType::opaque; },
      [](const Type& t) { return t.dtype == DType::opaque && t.shape != Shape{0}; });
}

bool has_foreign(const OpCall& c) {
  auto foreign = [](const Type& t) { return is_complex(t.dtype) || is_stored_only(t.dtype); };
  return has_opaque(c) || any_type(c, foreign, foreign);
}

// The value with its sizes written as eager's result has them, where they are equal.
Value spelled(GraphBuilder& b, Value v, const Type& expected) {
  if (!v || expected.dtype == DType::opaque || v.shape() == expected.shape || v.rank() != expected.rank()) return v;
  Symbols& s = b.symbols();
  auto declared = [&](const SymInt& e) { return s.declares(e); };
  if (!std::all_of(expected.shape.begin(), expected.shape.end(), declared)) return v;  // the caller wants to know them
  for (size_t i = 0; i < v.shape().size(); ++i)
    if (s.hint(v.shape()[i]) != s.hint(expected.shape[i]) || !s.equal(v.shape()[i], expected.shape[i])) return v;
  return with_sizes(b, v, expected.shape);
}

}  // namespace

void add_real(OpTable& t, std::string_view names, Lowering lowering) {
  add_moving(t, names, [lowering = std::move(lowering)](OpCall& c) { return has_foreign(c) ? std::nullopt : lowering(c); });
}

void add_moving(OpTable& t, std::string_view names, Lowering lowering) {
  t.add(names, [lowering = std::move(lowering)](OpCall& c) -> std::optional<std::vector<Value>> {
    if (has_opaque(c)) return std::nullopt;
    auto values = lowering(c);
    for (size_t i = 0; values && i < std::min(values->size(), c.results().size()); ++i)
      (*values)[i] = spelled(c.b, (*values)[i], c.result(i));
    return values;
  });
}

namespace {

Lowering as_list(SingleLowering lowering) {
  return [lowering = std::move(lowering)](OpCall& c) -> std::optional<std::vector<Value>> {
    Value v = lowering(c);
    if (!v) return std::nullopt;
    return std::vector{v};
  };
}

}  // namespace

void add_single(OpTable& t, std::string_view names, SingleLowering lowering) { add_real(t, names, as_list(std::move(lowering))); }
void add_single_moving(OpTable& t, std::string_view names, SingleLowering lowering) { add_moving(t, names, as_list(std::move(lowering))); }

Value size_number(GraphBuilder& b, const SymInt& size, DType dtype) {
  if (auto n = size.maybe_constant()) return b.constant(*n, dtype);
  return b.cast(size_value(b, size), dtype);
}

Value reshape_guarded(GraphBuilder& b, Value x, Shape shape) {
  if (product(shape) == x.type().numel()) return b.reshape(x, std::move(shape));
  if (!b.symbols().equal(product(shape), x.type().numel())) return {};
  // Guards on what is divided make the two products one expression. Where they do not, every size becomes a number.
  const SymInt elements = product(shape);
  for (const Term& t : elements.terms())
    for (const Atom& a : t.factors)
      if (a.kind == AtomKind::floordiv && b.symbols().hint(mod(a.args->first, a.args->second)) == 0)
        b.symbols().equal(mod(a.args->first, a.args->second), 0);
  Shape fixed = x.shape();
  for (Shape* sizes : {&fixed, &shape})
    for (SymInt& s : *sizes) s = b.symbols().resolved(s);
  if (product(shape) == product(fixed)) return b.reshape(with_sizes(b, x, fixed), std::move(shape));
  for (SymInt& s : fixed) s = b.symbols().specialize(s);
  for (SymInt& s : shape) s = b.symbols().specialize(s);
  return b.reshape(with_sizes(b, x, fixed), std::move(shape));
}

Value squeeze(GraphBuilder& b, Value x, int64_t dim) {
  Shape shape = narrow(b, x, dim, 0, 1).shape();
  shape.erase(shape.begin() + dim);
  return b.reshape(narrow(b, x, dim, 0, 1), std::move(shape));
}

Value diagonal(GraphBuilder& b, Value x, int64_t offset, int64_t d0, int64_t d1) {
  std::vector<int64_t> order;
  for (int64_t d = 0; d < x.rank(); ++d)
    if (d != d0 && d != d1) order.push_back(d);
  order.insert(order.end(), {d0, d1});
  Value y = b.permute(x, order);
  Shape shape = y.shape();
  // The step through the flattened matrix is an attribute, hence a number.
  int64_t columns = b.symbols().specialize(shape.back());
  shape.back() = columns;
  y = with_sizes(b, y, shape);
  shape.pop_back();
  SymInt rows = shape.back(), down = rows + std::min<int64_t>(offset, 0), right = columns - std::max<int64_t>(offset, 0);
  SymInt size = b.symbols().ask(down, Relation::le, right) ? down : right;
  bool empty = b.symbols().ask(size, Relation::le, 0);
  shape.back() = rows * SymInt(columns);
  int64_t start = empty ? 0 : offset >= 0 ? offset : -offset * columns;
  return narrow(b, b.reshape(y, shape), y.rank() - 2, start, empty ? 0 : size, columns + 1);
}

Value concat(GraphBuilder& b, std::vector<Value> parts, int64_t dim) {
  check(!parts.empty(), "cat: there is nothing to join");
  // Sizes off `dim` take the first operand's spelling.
  for (Value& p : parts) {
    Shape shape = parts[0].shape();
    shape.at(static_cast<size_t>(dim)) = p.shape().at(static_cast<size_t>(dim));
    for (size_t i = 0; i < shape.size(); ++i)
      check(b.symbols().equal(shape[i], p.shape().at(i)), "cat: sizes differ: ", shape[i], " and ", p.shape()[i]);
    p = with_sizes(b, p, shape);
  }
  Value any = parts[0];
  std::erase_if(parts, [dim](const Value& p) { return p.shape()[static_cast<size_t>(dim)] == SymInt(0); });
  if (parts.empty()) return any;
  return parts.size() == 1 ? parts[0] : b.emit(Op::cat, std::move(parts), {{Attr::dim, dim}});
}

Value log_softmax(GraphBuilder& b, Value x, const std::vector<int64_t>& dims) {
  // The largest of no elements is not defined.
  if (b.symbols().equal(x.type().numel(), 0)) return x;
  Value shifted = b.binary(Op::sub, x, b.reduce(Op::reduce_max, x, dims, true));
  Value sum = b.reduce(Op::reduce_sum, b.unary(Op::exp, shifted), dims, true);
  return b.binary(Op::sub, shifted, b.unary(Op::log, sum));
}

}  // namespace broach
