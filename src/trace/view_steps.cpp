#include "trace/view_steps.h"

#include "support/error.h"

namespace broach {

namespace {

// y, put between the parts of x before and behind.
Value replace_range(GraphBuilder& b, int64_t dim, const SymInt& start, Value x, Value y) {
  auto d = static_cast<size_t>(dim);
  const SymInt n = y.shape()[d], size = x.shape()[d];
  std::vector<Value> parts;
  auto part = [&](const SymInt& from, const SymInt& length) {
    if (length == SymInt(0)) return;
    Shape starts(x.shape().size(), SymInt(0)), shape = x.shape();
    starts[d] = from;
    shape[d] = length;
    parts.push_back(b.slice(x, starts, std::vector<int64_t>(shape.size(), 1), shape));
  };
  part(0, start);
  parts.push_back(y);
  part(start + n, size - start - n);
  return parts.size() == 1 ? parts[0] : b.emit(Op::cat, parts, {{Attr::dim, dim}});
}

// Element i shows y[(i - start) / step] where that is whole and in range.
Value replace_every(GraphBuilder& b, int64_t dim, const SymInt& start, int64_t step, Value x, Value y) {
  auto d = static_cast<size_t>(dim);
  const SymInt n = y.shape()[d], size = x.shape()[d];
  Value i = b.emit(Op::iota, {}, {{Attr::shape, Shape{size}}, {Attr::dim, int64_t{0}}, {Attr::dtype, DType::i64}});
  auto number = [&](const SymInt& s) { return b.expand(b.emit(Op::size, {}, {{Attr::expr, s}}), {size}); };
  Value off = b.emit(Op::sub, {i, number(start)}), by = number(step);
  Value at = b.emit(Op::floor_div, {off, by});
  Value hit = b.emit(Op::eq, {b.emit(Op::mod, {off, by}), number(0)});
  hit = b.emit(Op::bit_and, {hit, b.emit(Op::ge, {off, number(0)})});
  hit = b.emit(Op::bit_and, {hit, b.emit(Op::lt, {at, number(n)})});
  at = b.where(hit, at, number(0));
  Value spread = b.emit(Op::take, {y, at}, {{Attr::dim, dim}});
  Shape along(x.shape().size(), SymInt(1));
  along[d] = size;
  return b.where(b.expand(b.reshape(hit, along), x.shape()), spread, x);
}

Value replace_along(GraphBuilder& b, int64_t dim, const SymInt& start, int64_t step, Value x, Value y) {
  if (x.shape() == y.shape()) return y;
  if (!b.symbols().ask(0, Relation::lt, y.shape()[static_cast<size_t>(dim)])) return x;
  if (step < 0) unsupported("a write through a reversed slice");
  return step == 1 ? replace_range(b, dim, start, x, y) : replace_every(b, dim, start, step, x, y);
}

Value replace_slice(GraphBuilder& b, const ViewStep& step, Value x, Value y) {
  const auto& starts = std::get<Shape>(step.attrs.at(Attr::starts));
  const auto& steps = std::get<std::vector<int64_t>>(step.attrs.at(Attr::steps));
  // One dimension at a time, the last first: then x is cut to what the earlier dimensions leave of it.
  Shape begin(starts.size(), SymInt(0)), shape = x.shape();
  std::vector<int64_t> ones(starts.size(), 1);
  std::vector<Value> cuts{x};
  for (size_t d = 0; d < starts.size(); ++d) {
    Shape from(starts.size(), SymInt(0));
    std::vector<int64_t> by(starts.size(), 1);
    from[d] = starts[d];
    by[d] = steps[d];
    shape[d] = y.shape()[d];
    cuts.push_back(b.slice(cuts.back(), from, by, shape));
  }
  for (size_t d = starts.size(); d-- > 0;) y = replace_along(b, static_cast<int64_t>(d), starts[d], steps[d], cuts[d], y);
  return y;
}

}  // namespace

Value shown_by(GraphBuilder& b, const ViewStep& step, Value x) {
  return step.view ? step.view->get(b, x) : b.emit(step.op, {x}, step.attrs);
}

Value replaced_through(GraphBuilder& b, const ViewStep& step, Value x, Value y) {
  if (step.view && !step.view->put) unsupported("a write through a view that shows elements twice");
  if (step.view) return step.view->put(b, x, y);
  switch (step.op) {
    case Op::reshape: return b.reshape(y, x.shape());
    case Op::permute: {
      const auto& dims = std::get<std::vector<int64_t>>(step.attrs.at(Attr::dims));
      std::vector<int64_t> back(dims.size());
      for (size_t d = 0; d < dims.size(); ++d) back[static_cast<size_t>(dims[d])] = static_cast<int64_t>(d);
      return b.permute(y, back);
    }
    case Op::slice: return replace_slice(b, step, x, y);
    default: unsupported("a write through ", name_of(step.op));
  }
}

}  // namespace broach
