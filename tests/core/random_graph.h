// Random valid graphs and inputs for them, for holding one implementation against another.
//
// Magnitudes stay moderate, so that results are finite unless the inputs are not. With `stable`, operations that jump
// (comparisons, rounding to integers, argmax, casts to integers) read only values that every correct implementation
// computes bit for bit, so that two implementations may differ by rounding and still must agree.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "target/reference/interpreter.h"

namespace broach::testing {

struct Options {
  int steps = 12;             // operations; each is one or a few primitives
  bool integers = true;       // also u8, i32, i64 and b1
  bool low_precision = true;  // also f16 and bf16
  bool reductions = true;
  bool contractions = false;  // dot and conv
  bool routines = false;      // scans, sorts, searches, scattered writes
  bool empty = true;          // now and then a size of 0
  bool symbolic = false;      // some sizes are symbols (at least 2)
  bool stable = true;
  int64_t max_elements = 4096;
};

namespace detail {

class Generator {
 public:
  Generator(uint32_t seed, Options options) : options_(options), random_(seed) {}

  Graph graph() {
    for (int i = 0; i < 2; ++i) add_input(random_dtype(), random_shape());
    for (int i = 0; i < options_.steps; ++i) step();
    std::vector<Value> outputs{pool_.back().value};
    for (int64_t i = below(3); i > 0; --i) outputs.push_back(any().value);
    return b_.finish(std::move(outputs));
  }

 private:
  // |element| <= bound for floating-point values; exact: the same bits in every implementation.
  struct Item {
    Value value;
    double bound;
    bool exact;
  };

  // ---- dice ----

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<int64_t>(list.size()))];
  }
  Item any() {
    return pool_[static_cast<size_t>(chance(0.5) ? below(static_cast<int64_t>(pool_.size()))
                                                 : std::max<int64_t>(0, static_cast<int64_t>(pool_.size()) - 1 - below(3)))];
  }
  template <class F>
  std::optional<Item> any_where(const F& f) {
    for (int i = 0; i < 8; ++i)
      if (Item x = any(); f(x)) return x;
    return std::nullopt;
  }

  int64_t hint(const SymInt& s) { return b_.symbols().hint(s); }
  int64_t elements(const Shape& shape) { return hint(product(shape)); }
  bool is_float(const Item& x) const { return is_floating(x.value.dtype()); }
  bool steady(const Item& x) const { return x.exact || !options_.stable; }

  DType random_dtype() {
    if (options_.integers && chance(0.3)) return pick({DType::i64, DType::i32, DType::u8, DType::b1});
    if (options_.low_precision && chance(0.3)) return pick({DType::bf16, DType::f16});
    return chance(0.15) ? DType::f64 : DType::f32;
  }
  SymInt random_size() {
    if (options_.symbolic && chance(0.4)) {
      auto known = static_cast<SymbolId>(b_.symbols().infos().size());
      if (known > 0 && chance(0.6)) return SymInt::symbol(static_cast<SymbolId>(below(known)));
      return b_.symbols().fresh({pick<int64_t>({2, 3, 5, 8, 13}), 2, -1, -1});
    }
    if (options_.empty && chance(0.02)) return 0;
    return pick<int64_t>({1, 2, 3, 4, 5, 7, 8, 16, 17, 33});
  }
  Shape random_shape() {
    Shape shape;
    for (int64_t rank = below(5); rank > 0; --rank) {
      shape.push_back(random_size());
      if (elements(shape) > options_.max_elements) shape.pop_back();
    }
    return shape;
  }

  // ---- items ----

  Item add(Value v, double bound, bool exact) {
    Item x{v, is_floating(v.dtype()) ? bound : 0, exact};
    if (is_float(x) && bound > 1000) x = tamed(x, 4);
    pool_.push_back(x);
    return x;
  }
  Item add_input(DType dtype, const Shape& shape) {
    int input = static_cast<int>(b_.graph().inputs().size());
    for (size_t d = 0; d < shape.size(); ++d)
      if (auto s = shape[d].as_symbol(); s && b_.symbols().infos()[*s].input < 0) {
        b_.symbols().infos()[*s].source = SymbolInfo::Source::size;
        b_.symbols().infos()[*s].input = input;
        b_.symbols().infos()[*s].dim = static_cast<int>(d);
      }
    return add(b_.input({dtype, shape, {}}), 2, true);
  }
  // A symbol comes from an input.
  void bind_symbols(const Shape& shape) {
    for (const SymInt& s : shape)
      if (auto id = s.as_symbol(); id && b_.symbols().infos()[*id].input < 0) add_input(DType::f32, {s});
  }
  Value constant_like(Value x, double c) {
    return b_.full(x.shape(), is_floating(x.dtype()) ? Scalar(c) : Scalar(static_cast<int64_t>(c)), x.dtype());
  }
  Value with(Op op, Value x, double c) { return b_.binary(op, x, constant_like(x, c)); }
  Item tamed(const Item& x, double bound) {
    return x.bound <= bound ? x : Item{with(Op::mul, x.value, bound / x.bound), bound * 1.01, false};
  }
  Value positive(Value x) { return with(Op::add, b_.unary(Op::abs, x), 0.5); }

  // A second operand for x: one at hand, a new input that broadcasts, or a constant.
  Item partner(const Item& x) {
    auto fits = [&](const Item& y) { return y.value.dtype() == x.value.dtype() && y.value.shape() == x.value.shape(); };
    if (auto y = any_where(fits); y && chance(0.6)) return *y;
    if (chance(0.3)) return {constant_like(x.value, static_cast<double>(below(7)) - (is_integral(x.value.dtype()) ? 0 : 3)), 3, true};
    Shape shape = x.value.shape();
    for (auto& s : shape)
      if (chance(0.3)) s = 1;
    if (chance(0.3) && !shape.empty()) shape.erase(shape.begin(), shape.begin() + 1 + below(static_cast<int64_t>(shape.size())));
    return add_input(x.value.dtype(), shape);
  }

  // ---- steps ----

  void step() {
    if (options_.routines && chance(0.25)) return routine();
    switch (below(options_.contractions ? 16 : 15)) {
      case 0:
      case 1: return unary();
      case 2:
      case 3:
      case 4: return binary();
      case 5: return select();
      case 6: return cast();
      case 7: return reshape();
      case 8: return permute_or_expand();
      case 9: return slice();
      case 10: return pad_or_cat();
      case 11: return chance(0.3) ? pick() : take();
      case 12: return iota();
      case 13: return reduce();
      case 14: return normalise();
      default: return chance(0.5) ? dot() : conv();
    }
  }

  void unary() {
    Item x = any();
    if (x.value.dtype() == DType::b1) return void(add(b_.unary(Op::bit_not, x.value), 0, true));
    if (!is_float(x)) return void(add(b_.unary(pick({Op::neg, Op::abs, Op::sign, Op::relu, Op::bit_not}), x.value), 0, x.exact));
    if (chance(0.2) && steady(x))
      return void(add(b_.unary(pick({Op::floor, Op::ceil, Op::trunc, Op::round, Op::sign}), x.value), x.bound + 1, x.exact));
    if (chance(0.2)) return void(add(b_.unary(pick({Op::neg, Op::abs, Op::relu}), x.value), x.bound, x.exact));
    Item y = tamed(x, 8);
    switch (below(4)) {
      case 0: add(b_.unary(pick({Op::exp, Op::exp2, Op::expm1, Op::sinh, Op::cosh}), y.value), 3000, false); return;
      case 1:
        add(b_.unary(pick({Op::sqrt, Op::rsqrt, Op::reciprocal, Op::log, Op::log2, Op::log10, Op::log1p, Op::lgamma, Op::digamma}),
                     positive(y.value)),
            16, false);
        return;
      case 2:
        add(b_.unary(pick({Op::asin, Op::acos, Op::atanh, Op::erfinv}), with(Op::mul, b_.unary(Op::tanh, y.value), 0.9)), 4, false);
        return;
      default:
        add(b_.unary(pick({Op::sin, Op::cos, Op::atan, Op::tanh, Op::asinh, Op::erf, Op::erfc, Op::sigmoid, Op::gelu_erf, Op::gelu_tanh,
                           Op::gelu_erf_derivative, Op::gelu_tanh_derivative, Op::silu}),
                     y.value),
            8, false);
    }
  }

  void binary() {
    Item x = any(), y = partner(x);
    DType t = x.value.dtype();
    if (t == DType::b1) return void(add(b_.binary(pick({Op::bit_and, Op::bit_or, Op::bit_xor}), x.value, y.value), 0, true));
    if (!is_float(x)) return integer_binary(x, y);
    if (chance(0.15) && steady(x) && steady(y)) {
      Op op = pick({Op::floor_div, Op::mod, Op::fmod, Op::copysign, Op::atan2, Op::nextafter});
      bool divides = op == Op::floor_div || op == Op::mod || op == Op::fmod;
      Value divisor = divides ? b_.binary(Op::max, b_.unary(Op::abs, y.value), constant_like(y.value, 0.5)) : y.value;
      return void(add(b_.binary(op, x.value, divisor), 2 * x.bound + 4, op != Op::atan2));
    }
    x = tamed(x, 30), y = tamed(y, 30);
    switch (Op op = pick({Op::add, Op::sub, Op::mul, Op::div, Op::min, Op::max, Op::hypot, Op::pow})) {
      case Op::min:
      case Op::max: add(b_.binary(op, x.value, y.value), std::max(x.bound, y.bound), x.exact && y.exact); return;
      case Op::mul: add(b_.binary(op, x.value, y.value), x.bound * y.bound, false); return;
      case Op::div: add(b_.binary(op, x.value, positive(y.value)), 2 * x.bound, false); return;
      case Op::pow: add(b_.binary(op, positive(tamed(x, 4).value), tamed(y, 3).value), 100, false); return;
      default: add(b_.binary(op, x.value, y.value), x.bound + y.bound, false);
    }
  }
  void integer_binary(const Item& x, const Item& y) {
    Op op = pick({Op::add, Op::sub, Op::mul, Op::min, Op::max, Op::bit_and, Op::bit_or, Op::bit_xor, Op::shl, Op::shr, Op::div,
                  Op::floor_div, Op::mod, Op::fmod});
    Value right = y.value;
    if (op >= Op::div && op <= Op::fmod) right = with(Op::add, with(Op::bit_and, right, 7), 1);
    if (op == Op::shl || op == Op::shr) right = with(Op::bit_and, right, 15);
    add(b_.binary(op, x.value, right), 0, x.exact && y.exact);
  }

  void select() {
    Item x = any(), y = partner(x);
    auto is_condition = [&](const Item& c) { return c.value.dtype() == DType::b1 && c.value.shape() == x.value.shape(); };
    auto condition = any_where(is_condition);
    if (!condition && steady(x) && steady(y))
      condition = add(b_.binary(pick({Op::eq, Op::ne, Op::lt, Op::le, Op::gt, Op::ge}), x.value, y.value), 0, true);
    if (!condition) return;
    add(b_.where(condition->value, x.value, y.value), std::max(x.bound, y.bound), condition->exact && x.exact && y.exact);
  }

  void cast() {
    Item x = any();
    DType to = random_dtype();
    if (is_float(x) == is_floating(to)) return void(add(b_.cast(x.value, to), x.bound * 1.01, x.exact));
    if (!is_float(x)) {
      Value small = x.value.dtype() == DType::b1 ? x.value : with(Op::bit_and, x.value, 63);
      return void(add(b_.cast(small, to), 63, x.exact));
    }
    if (!steady(x)) return;
    Value fits = b_.binary(Op::lt, b_.unary(Op::abs, x.value), constant_like(x.value, 100));  // false for NaN
    Value safe = b_.where(fits, x.value, constant_like(x.value, 1));
    add(b_.cast(to == DType::u8 ? b_.unary(Op::abs, safe) : safe, to), 0, x.exact);
  }

  void reshape() {
    Item x = any();
    Shape shape = x.value.shape();
    auto rank = static_cast<int64_t>(shape.size());
    auto dim = rank ? below(rank) : 0;
    switch (below(4)) {
      case 0: shape = {product(shape)}; break;
      case 1: shape.insert(shape.begin() + below(rank + 1), SymInt(1)); break;
      case 2:
        if (dim + 1 >= rank) return;
        shape[static_cast<size_t>(dim)] = shape[static_cast<size_t>(dim)] * shape[static_cast<size_t>(dim) + 1];
        shape.erase(shape.begin() + dim + 1);
        break;
      default: {
        if (!rank) return;
        SymInt& size = shape[static_cast<size_t>(dim)];
        auto [quotient, rest] = std::pair(floordiv(size, 2), mod(size, 2));
        if (!(rest == SymInt(0))) return;
        size = 2;
        shape.insert(shape.begin() + dim + below(2), quotient);
      }
    }
    add(b_.reshape(x.value, shape), x.bound, x.exact);
  }

  void permute_or_expand() {
    Item x = any();
    auto rank = static_cast<int64_t>(x.value.rank());
    if (chance(0.5)) {
      std::vector<int64_t> dims(static_cast<size_t>(rank));
      for (int64_t i = 0; i < rank; ++i) dims[static_cast<size_t>(i)] = i;
      std::shuffle(dims.begin(), dims.end(), random_);
      return void(add(b_.permute(x.value, dims), x.bound, x.exact));
    }
    Shape one = x.value.shape();
    int64_t at = below(rank + 1);
    one.insert(one.begin() + at, SymInt(1));
    Shape shape = one;
    shape[static_cast<size_t>(at)] = random_size();
    bind_symbols(shape);
    if (elements(shape) <= options_.max_elements) add(b_.expand(b_.reshape(x.value, one), shape), x.bound, x.exact);
  }

  void slice() {
    Item x = any();
    Shape starts, shape;
    std::vector<int64_t> steps;
    for (const SymInt& size : x.value.shape()) {
      bool whole = chance(0.4) || hint(size) < 2, backwards = chance(0.2);
      int64_t step = whole ? 1 : size.is_constant() ? 1 + below(3) : 1, cut = whole || !chance(0.5) ? 0 : 1;
      SymInt length = size - cut, taken = step == 1 ? length : SymInt((length.constant() + step - 1) / step);
      starts.push_back(backwards ? size - 1 : SymInt(cut));
      steps.push_back(backwards ? -step : step);
      shape.push_back(taken);
      if (size == SymInt(0)) starts.back() = 0, steps.back() = 1;
    }
    add(b_.slice(x.value, starts, steps, shape), x.bound, x.exact);
  }

  void pad_or_cat() {
    Item x = any();
    auto rank = static_cast<int64_t>(x.value.rank());
    if (chance(0.5)) {
      Shape low, high;
      for (int64_t i = 0; i < rank; ++i) low.push_back(below(3)), high.push_back(below(3));
      Scalar value = is_float(x) ? Scalar(static_cast<double>(below(3)) - 1) : Scalar(below(2));
      Value v = b_.emit(Op::pad, {x.value}, {{Attr::low, low}, {Attr::high, high}, {Attr::value, value}});
      if (elements(v.shape()) <= 4 * options_.max_elements) add(v, std::max(x.bound, 1.0), x.exact);
      return;
    }
    if (!rank || elements(x.value.shape()) > options_.max_elements) return;
    int64_t dim = below(rank);
    Shape shape = x.value.shape();
    shape[static_cast<size_t>(dim)] = pick<int64_t>({1, 2, 3});
    Item y = add_input(x.value.dtype(), shape), z = partner(x);
    std::vector<Value> parts{x.value, y.value};
    if (z.value.shape() == x.value.shape()) parts.push_back(z.value);
    std::shuffle(parts.begin(), parts.end(), random_);
    add(b_.emit(Op::cat, parts, {{Attr::dim, dim}}), std::max({x.bound, y.bound, z.bound}), x.exact && y.exact && z.exact);
  }

  void take() {
    Item x = any();
    if (!x.value.rank()) return;
    int64_t dim = below(x.value.rank());
    const SymInt size = x.value.shape()[static_cast<size_t>(dim)];
    if (hint(size) == 0) return;
    auto small_integers = [&](const Item& i) {
      return is_integral(i.value.dtype()) && i.value.rank() <= 2 && elements(i.value.shape()) <= 16;
    };
    auto found = any_where(small_integers);
    Value index =
        found ? b_.cast(found->value, DType::i64)
              : with(Op::mul, b_.emit(Op::iota, {}, {{Attr::shape, Shape{5}}, {Attr::dim, int64_t{0}}, {Attr::dtype, DType::i64}}), 3);
    index = b_.binary(Op::mod, index, b_.emit(Op::size, {}, {{Attr::expr, size}}));
    if (elements(index.shape()) * elements(x.value.shape()) / hint(size) > options_.max_elements) return;
    add(b_.emit(Op::take, {x.value, index}, {{Attr::dim, dim}}), x.bound, x.exact && (!found || found->exact));
  }

  void pick() {
    Item x = any();
    if (!x.value.rank()) return;
    const int64_t dim = below(x.value.rank());
    const SymInt size = x.value.shape()[static_cast<size_t>(dim)];
    if (hint(size) == 0) return;
    Shape shape(x.value.shape().begin(), x.value.shape().begin() + dim);
    if (dim == 0 || chance(0.5)) shape.push_back(2);
    const int64_t along = below(static_cast<int64_t>(shape.size()));
    Value index = with(Op::mul, b_.emit(Op::iota, {}, {{Attr::shape, shape}, {Attr::dim, along}, {Attr::dtype, DType::i64}}), 3);
    index = b_.binary(Op::mod, index, b_.emit(Op::size, {}, {{Attr::expr, size}}));
    if (elements(shape) * elements(x.value.shape()) / hint(size) > options_.max_elements * 4) return;
    add(b_.emit(Op::pick, {x.value, index}, {{Attr::dim, dim}}), x.bound, x.exact);
  }

  void iota() {
    Shape shape = random_shape();
    if (shape.empty()) return;
    int64_t dim = below(static_cast<int64_t>(shape.size()));
    DType t = random_dtype();
    if (t == DType::b1) t = DType::f32;
    bind_symbols(shape);
    add(b_.emit(Op::iota, {}, {{Attr::shape, shape}, {Attr::dim, dim}, {Attr::dtype, t}}),
        static_cast<double>(hint(shape[static_cast<size_t>(dim)])), true);
  }

  std::vector<int64_t> random_dims(int rank) {
    std::vector<int64_t> dims;
    for (int64_t d = 0; d < rank; ++d)
      if (chance(0.5)) dims.push_back(d);
    if (dims.empty() && rank) dims.push_back(below(rank));
    return dims;
  }
  int64_t reduced_elements(const Value& x, const std::vector<int64_t>& dims) {
    int64_t n = 1;
    for (int64_t d : dims) n *= hint(x.shape()[static_cast<size_t>(d)]);
    return n;
  }

  void reduce() {
    if (!options_.reductions) return;
    Item x = any();
    auto dims = random_dims(x.value.rank());
    int64_t n = reduced_elements(x.value, dims);
    bool keep = chance(0.3);
    if (n == 0 || chance(0.5)) {
      if (is_float(x) && chance(0.2)) return void(add(b_.reduce(Op::reduce_prod, tamed(x, 1).value, dims, keep), 1.5, false));
      Item y = tamed(x, 1000.0 / static_cast<double>(std::max<int64_t>(n, 1)));
      return void(add(b_.reduce(Op::reduce_sum, y.value, dims, keep), y.bound * static_cast<double>(n), !is_float(x) && x.exact));
    }
    if (steady(x) && chance(0.3))
      return void(add(b_.reduce(pick({Op::reduce_argmin, Op::reduce_argmax}), x.value, dims, keep), 0, x.exact));
    add(b_.reduce(pick({Op::reduce_min, Op::reduce_max}), x.value, dims, keep), x.bound, x.exact);
  }

  // Softmax, or a norm: reductions broadcast back over what they reduced.
  void normalise() {
    if (!options_.reductions) return;
    auto x = any_where([&](const Item& i) { return is_float(i) && i.value.rank() && elements(i.value.shape()); });
    if (!x) return;
    Value v = tamed(*x, 8).value;
    auto dims = random_dims(v.rank());
    auto back = [&](Op op, Value y) { return b_.expand(b_.reduce(op, y, dims, true), v.shape()); };
    if (chance(0.5)) {
      Value e = b_.unary(Op::exp, b_.binary(Op::sub, v, back(Op::reduce_max, v)));
      return void(add(b_.binary(Op::div, e, back(Op::reduce_sum, e)), 1.01, false));
    }
    double scale = 1.0 / static_cast<double>(reduced_elements(v, dims));
    Value centred = b_.binary(Op::sub, v, back(Op::reduce_sum, with(Op::mul, v, scale)));
    Value variance = back(Op::reduce_sum, with(Op::mul, b_.binary(Op::mul, centred, centred), scale));
    add(b_.binary(Op::mul, centred, b_.unary(Op::rsqrt, with(Op::add, variance, 0.1))), 64, false);
  }

  void routine() {
    auto x = any_where([&](const Item& i) { return i.value.rank() && elements(i.value.shape()); });
    if (!x) return;
    const int64_t dim = below(x->value.rank());
    switch (below(4)) {
      case 0: return scan(*x, dim);
      case 1: return order(*x, dim);
      case 2: return search(*x);
      default: return scatter(*x, dim);
    }
  }

  void add_both(const std::vector<Value>& values, const Item& x) {
    add(values[0], x.bound, x.exact);
    add(values[1], 0, x.exact);
  }

  void scan(const Item& x, int64_t dim) {
    const Attrs attrs{{Attr::dim, dim}};
    if (chance(0.4)) {
      if (steady(x)) add_both(b_.emit_all(pick({Op::scan_max, Op::scan_min}), {x.value}, attrs), x);
      return;
    }
    if (x.value.dtype() == DType::b1) return;
    const double n = static_cast<double>(hint(x.value.shape()[static_cast<size_t>(dim)]));
    switch (below(is_float(x) ? 3 : 2)) {
      case 0: return void(add(b_.emit(Op::scan_sum, {tamed(x, 1000 / n).value}, attrs), 1001, !is_float(x) && x.exact));
      case 1: return void(add(b_.emit(Op::scan_prod, {tamed(x, 1).value}, attrs), 1.5, !is_float(x) && x.exact));
      default: return void(add(b_.emit(Op::scan_logsumexp, {tamed(x, 8).value}, attrs), 8 + n, false));
    }
  }

  void order(const Item& x, int64_t dim) {
    if (!steady(x)) return;
    const int64_t size = hint(x.value.shape()[static_cast<size_t>(dim)]);
    auto flag = [&] { return AttrValue(int64_t{chance(0.5)}); };
    switch (below(5)) {
      case 0: return add_both(b_.emit_all(Op::sort, {x.value}, {{Attr::dim, dim}, {Attr::descending, flag()}, {Attr::stable, flag()}}), x);
      case 1:
        return add_both(
            b_.emit_all(Op::topk, {x.value},
                        {{Attr::dim, dim}, {Attr::k, SymInt(below(size) + 1)}, {Attr::descending, flag()}, {Attr::sorted, flag()}}),
            x);
      case 2: return add_both(b_.emit_all(Op::kth, {x.value}, {{Attr::dim, dim}, {Attr::k, SymInt(below(size))}}), x);
      case 3: return add_both(b_.emit_all(Op::median, {x.value}, {{Attr::dim, dim}, {Attr::skip_nan, flag()}}), x);
      default: return add_both(b_.emit_all(Op::mode, {x.value}, {{Attr::dim, dim}}), x);
    }
  }

  void search(const Item& x) {
    if (!steady(x)) return;
    Item values = partner(x);
    if (!steady(values) || values.value.dtype() != x.value.dtype()) return;
    Value line = b_.reshape(x.value, {product(x.value.shape())});
    line = b_.emit(Op::sort, {line}, {{Attr::dim, int64_t{0}}, {Attr::descending, int64_t{0}}, {Attr::stable, int64_t{1}}});
    add(b_.emit(Op::search, {line, values.value}, {{Attr::right, int64_t{chance(0.5)}}}), 0, x.exact && values.exact);
  }

  void scatter(const Item& x, int64_t dim) {
    Shape shape = x.value.shape();
    const SymInt size = shape[static_cast<size_t>(dim)];
    shape[static_cast<size_t>(dim)] = pick<int64_t>({0, 1, 3, 9});
    if (elements(shape) > options_.max_elements) return;
    Value index =
        with(Op::mul, b_.emit(Op::iota, {}, {{Attr::shape, shape}, {Attr::dim, below(x.value.rank())}, {Attr::dtype, DType::i64}}), 5);
    index = b_.binary(Op::mod, index, b_.emit(Op::size, {}, {{Attr::expr, size}}));
    Item source = add_input(x.value.dtype(), shape);
    Op op = pick({Op::scatter, Op::scatter_add, Op::scatter_mul, Op::scatter_min, Op::scatter_max});
    if (op == Op::scatter_mul && is_float(x)) op = Op::scatter;
    const bool sums = op == Op::scatter_add || op == Op::scatter_mul;
    add(b_.emit(op, {x.value, index, source.value}, {{Attr::dim, dim}}), x.bound + 9 * source.bound, x.exact && !(sums && is_float(x)));
  }

  void dot() {
    auto x = any_where([&](const Item& i) { return is_float(i) && i.value.rank() >= 1; });
    if (!x) return;
    Item a = tamed(*x, 2);
    const Shape& shape = a.value.shape();
    int64_t batch = shape.size() >= 3 ? below(2) : 0;
    Shape weight(shape.begin(), shape.begin() + batch);
    weight.insert(weight.end(), {shape.back(), SymInt(pick<int64_t>({1, 4, 9}))});
    Shape result(shape.begin(), shape.end() - 1);
    result.push_back(weight.back());
    if (elements(result) > options_.max_elements) return;
    Item w = add_input(a.value.dtype(), weight);
    add(b_.dot(a.value, w.value, batch), a.bound * w.bound * static_cast<double>(hint(shape.back())), false);
  }

  void conv() {
    int64_t spatial = 1 + below(2), groups = 1 + below(2), stride = 1 + below(2), dilation = 1 + below(2);
    bool transposed = chance(0.3);
    auto dims = static_cast<size_t>(spatial);
    DType t = pick({DType::f32, DType::f64});
    Shape x{2, 2 * groups}, w{transposed ? 2 * groups : 3 * groups, transposed ? 3 : 2};
    for (int64_t i = 0; i < spatial; ++i) x.push_back(7 + i), w.push_back(2 + i);
    Item in = add_input(t, x), weight = add_input(t, w);
    std::vector<Value> operands{in.value, weight.value};
    if (chance(0.5)) operands.push_back(add_input(t, {3 * groups}).value);
    std::vector<int64_t> strides(dims, stride), dilations(dims, dilation);
    const Shape padding(dims, below(2));
    Value y = b_.emit(Op::conv, operands,
                      {{Attr::stride, strides},
                       {Attr::padding, padding},
                       {Attr::dilation, dilations},
                       {Attr::transposed, int64_t{transposed}},
                       {Attr::output_padding, Shape(dims, transposed ? stride - 1 : 0)},
                       {Attr::groups, groups}});
    add(y, 200, false);
    if (!transposed && chance(0.5))
      add(b_.emit(
              Op::conv_weight_gradient, {in.value, y},
              {{Attr::stride, strides}, {Attr::padding, padding}, {Attr::dilation, dilations}, {Attr::groups, groups}, {Attr::shape, w}}),
          40000, false);
  }

  Options options_;
  std::mt19937 random_;
  GraphBuilder b_;
  std::vector<Item> pool_;
};

}  // namespace detail

inline Graph random_graph(uint32_t seed, Options options = {}) { return detail::Generator(seed, options).graph(); }

// Floating-point numbers between -2 and 2 with zeros of both signs and whole numbers among them, integers between -100 and
// 100 (0 to 255 for u8). With `special`, also infinities and NaN. Symbols take their hints where no value is given.
inline std::vector<HostTensor> random_inputs(const Graph& graph, uint32_t seed, std::span<const int64_t> symbol_values = {},
                                             bool special = false) {
  std::mt19937 random(seed);
  auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  auto number = [&]() -> double {
    if (special && below(10) == 0) return std::array{HUGE_VAL, -HUGE_VAL, std::nan("")}[static_cast<size_t>(below(3))];
    if (below(6) == 0) return std::array{0.0, -0.0, 1.0, -1.0, 2.0, -2.0}[static_cast<size_t>(below(6))];
    return std::uniform_real_distribution<double>(-2, 2)(random);
  };
  const auto& infos = graph.symbols()->infos();
  std::vector<HostTensor> inputs;
  for (const Value& v : graph.inputs()) {
    std::vector<int64_t> sizes;
    for (const SymInt& s : v.shape())
      sizes.push_back(s.eval([&](SymbolId id) { return id < symbol_values.size() ? symbol_values[id] : infos.at(id).hint; }));
    HostTensor& t = inputs.emplace_back(zeros(v.dtype(), sizes, v.type().device));
    for (int64_t i = 0; i < t.numel(); ++i) {
      if (v.dtype() == DType::b1) t.set(i, below(2) == 1);
      else if (v.dtype() == DType::u8) t.set(i, below(256));
      else if (is_integral(v.dtype())) t.set(i, below(201) - 100);
      else if (is_complex(v.dtype())) t.set(i, std::complex<double>(number(), number()));
      else t.set(i, number());
    }
  }
  return inputs;
}

// Where two tensors first differ by more than absolute + relative * |expected|, as text; empty if nowhere. NaN equals NaN.
inline std::string first_difference(const HostTensor& actual, const HostTensor& expected, double relative = 0, double absolute = 0) {
  if (!(actual.type.dtype == expected.type.dtype && actual.type.shape == expected.type.shape))
    return actual.type.str() + " instead of " + expected.type.str();
  auto close = [&](double a, double e) {
    return a == e || (std::isnan(a) && std::isnan(e)) || std::fabs(a - e) <= absolute + relative * std::fabs(e);
  };
  for (int64_t i = 0; i < expected.numel(); ++i) {
    Scalar a = actual.at(i), e = expected.at(i);
    auto imaginary = [](const Scalar& s) { return is_complex(s) ? std::get<std::complex<double>>(s).imag() : 0; };
    bool equal = std::holds_alternative<int64_t>(e) ? as_int(a) == as_int(e)
                                                    : close(as_double(a), as_double(e)) && close(imaginary(a), imaginary(e));
    if (!equal) return "element " + std::to_string(i) + " of " + expected.type.str() + " is " + str(a) + " instead of " + str(e);
  }
  return "";
}

}  // namespace broach::testing
