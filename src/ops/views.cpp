// as_strided and everything else that is a window of a storage, views of the same bits as elements of another size, complex
// numbers as pairs, and the lazy conjugate and negative.
#include "ops/views.h"

#include <algorithm>
#include <numeric>

#include "ops/complex.h"

namespace broach {

namespace {

using Dims = std::vector<int64_t>;

// ---- windows ----

// The dimensions from the outermost in memory to the innermost; nothing if the tensor is not dense.
std::optional<Dims> memory_order(Symbols& s, const Window& w) {
  Dims order, rest(w.shape.size());
  std::iota(rest.begin(), rest.end(), 0);
  SymInt expected(1);
  // Dimensions of size 1 can be anywhere.
  std::erase_if(rest, [&](int64_t d) {
    bool one = s.hint(w.shape[static_cast<size_t>(d)]) == 1 && s.equal(w.shape[static_cast<size_t>(d)], 1);
    if (one) order.push_back(d);
    return one;
  });
  while (!rest.empty()) {
    auto fits = [&](int64_t d) { return s.hint(w.strides[static_cast<size_t>(d)]) == s.hint(expected); };
    auto it = std::find_if(rest.rbegin(), rest.rend(), fits);
    if (it == rest.rend() || !s.equal(w.strides[static_cast<size_t>(*it)], expected)) return std::nullopt;
    expected = expected * w.shape[static_cast<size_t>(*it)];
    order.push_back(*it);
    rest.erase(std::next(it).base());
  }
  std::reverse(order.begin(), order.end());
  return order;
}

Value flattened(GraphBuilder& b, Value x, const Dims& order) { return b.reshape(b.permute(x, order), {x.type().numel()}); }

Value unflattened(GraphBuilder& b, Value flat, const Shape& shape, const Dims& order) {
  Shape permuted;
  Dims back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    permuted.push_back(shape[static_cast<size_t>(order[i])]);
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return b.permute(b.reshape(flat, permuted), back);
}

Value number(GraphBuilder& b, const SymInt& n) { return size_value(b, n); }

// The position of every element of the window, in its shape.
Value window_positions(GraphBuilder& b, const Window& w) {
  Value sum = b.expand(number(b, w.offset), w.shape);
  for (size_t d = 0; d < w.shape.size(); ++d) {
    Value part = b.binary(Op::mul, positions(b, w.shape[d]), number(b, w.strides[d]));
    sum = b.binary(Op::add, sum, along(b, part, static_cast<int64_t>(d), static_cast<int>(w.shape.size())));
  }
  return sum;
}

// Dimensions of more than one element by descending stride, if each steps over all that the inner ones reach: then no two
// elements share memory.
std::optional<Dims> nested(Symbols& s, const Window& w) {
  Dims dims;
  for (size_t d = 0; d < w.shape.size(); ++d)
    if (s.hint(w.shape[d]) != 1 || !s.equal(w.shape[d], 1)) dims.push_back(static_cast<int64_t>(d));
  auto stride = [&](int64_t d) { return w.strides[static_cast<size_t>(d)]; };
  std::stable_sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return s.hint(stride(a)) > s.hint(stride(b)); });
  for (size_t i = 0; i < dims.size(); ++i) {
    SymInt reach = i + 1 < dims.size() ? stride(dims[i + 1]) * w.shape[static_cast<size_t>(dims[i + 1])] : SymInt(1);
    if (!s.ask(reach, Relation::le, stride(dims[i]))) return std::nullopt;
  }
  return dims;
}

// `flat` with the elements that the window shows replaced by y's.
Value write_window(GraphBuilder& b, Value flat, Value y, const Window& w, const Dims& dims) {
  auto test = [&](Op op, Value x, const SymInt& n) { return b.binary(op, x, number(b, n)); };
  Value rest = b.binary(Op::sub, positions(b, flat.shape()[0]), number(b, w.offset));
  Value hit = test(Op::ge, rest, 0), index = b.full(flat.shape(), int64_t{0}, DType::i64);
  Shape strides = contiguous_strides(w.shape);
  for (int64_t dim : dims) {
    auto d = static_cast<size_t>(dim);
    Value at = b.binary(Op::floor_div, rest, number(b, w.strides[d]));
    rest = b.binary(Op::mod, rest, number(b, w.strides[d]));
    hit = b.binary(Op::bit_and, hit, test(Op::lt, at, w.shape[d]));
    index = b.binary(Op::add, index, b.binary(Op::mul, at, number(b, strides[d])));
  }
  hit = b.binary(Op::bit_and, hit, test(Op::eq, rest, 0));
  Value source = take(b, b.reshape(y, {y.type().numel()}), b.where(hit, index, number(b, 0)), 0);
  return b.where(hit, source, flat);
}

bool is_empty(Symbols& s, const Shape& shape) {
  return std::any_of(shape.begin(), shape.end(), [&](const SymInt& n) { return s.hint(n) == 0 && s.equal(n, 0); });
}

}  // namespace

std::optional<View> strided_view(Symbols& s, const Window& root, const Window& window) {
  if (is_empty(s, window.shape))
    return View{[window](GraphBuilder& b, Value x) { return b.full(window.shape, int64_t{0}, x.dtype()); },
                [](GraphBuilder&, Value x, Value) { return x; }};
  auto order = memory_order(s, root);
  if (!order) return std::nullopt;
  bool whole_rows = window.strides == contiguous_strides(window.shape);
  View v;
  v.get = [=](GraphBuilder& b, Value x) {
    Value flat = flattened(b, x, *order);
    if (whole_rows) return b.reshape(narrow(b, flat, 0, window.offset, product(window.shape)), window.shape);
    return take(b, flat, window_positions(b, window), 0);
  };
  if (auto dims = nested(s, window))
    v.put = [=](GraphBuilder& b, Value x, Value y) {
      return unflattened(b, write_window(b, flattened(b, x, *order), y, window, *dims), x.shape(), *order);
    };
  return v;
}

namespace {

// ---- the same bits as other elements ----

using ViewRule = std::optional<View>;

View pairs_view() {
  return {[](GraphBuilder& b, Value x) { return pairs_of(b, x); }, [](GraphBuilder& b, Value, Value y) { return complex_of(b, y); }};
}

ViewRule real_pairs(OpCall& c) {
  if (c.tensor(0).dtype() != DType::c64) return std::nullopt;
  return pairs_view();
}

ViewRule complex_pairs(OpCall& c) {
  if (c.tensor(0).dtype() != DType::f32) return std::nullopt;
  View pairs = pairs_view();
  return View{[=](GraphBuilder& b, Value x) { return complex_of(b, x); }, [=](GraphBuilder& b, Value, Value y) { return pairs_of(b, y); }};
}

ViewRule conjugate(OpCall& c) {
  if (c.tensor(0).dtype() != DType::c64) return std::nullopt;
  return View{[](GraphBuilder& b, Value x) { return conj(b, x); }, [](GraphBuilder& b, Value, Value y) { return conj(b, y); }};
}

ViewRule negative(OpCall& c) {
  if (c.tensor(0).dtype() == DType::c64)
    return View{[](GraphBuilder& b, Value x) { return neg(b, x); }, [](GraphBuilder& b, Value, Value y) { return neg(b, y); }};
  if (is_complex(c.tensor(0).dtype())) return std::nullopt;
  return View{[](GraphBuilder& b, Value x) { return b.unary(Op::neg, x); },
              [](GraphBuilder& b, Value, Value y) { return b.unary(Op::neg, y); }};
}

ViewRule elements_of_other_size(OpCall& c) {
  DType from = c.tensor(0).dtype(), to = c.result().dtype;
  if (!has_bits(from) || !has_bits(to) || c.tensor(0).rank() == 0) return std::nullopt;
  auto convert = [](GraphBuilder& b, Value x, DType t) {
    return size_of(t) < size_of(x.dtype()) ? split_bits(b, x, t) : join_bits(b, x, t);
  };
  return View{[=](GraphBuilder& b, Value x) { return convert(b, x, to); },
              [=](GraphBuilder& b, Value, Value y) { return convert(b, y, from); }};
}

}  // namespace

void add_views(OpTable& t) {
  t.add_view("view_as_real", real_pairs);
  t.add_view("view_as_complex", complex_pairs);
  t.add_view("_conj", conjugate);
  t.add_view("_neg_view", negative);
  t.add_view("view.dtype", elements_of_other_size);
}

}  // namespace broach
