// From a group of nodes to one kernel: values are inlined from the stores backwards, each as a function of the point.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "schedule/axes.h"
#include "schedule/schedule.h"
#include "support/error.h"

namespace broach {

namespace {

using Kind = KernelExpr::Kind;

constexpr size_t kLargePosition = 20;  // atoms of a position: views of views of sizes that are symbols
constexpr size_t kLargeKernel = 1000;  // expressions
constexpr int kMostEvaluations = 8;    // of one node, in a kernel that is large already

struct Misfit {
  const Node* node;
};

// An axis of which a reduction depends on every `step`th position only: as two axes, it is reduced once for each of these.
struct Split {
  size_t axis;
  SymInt step;
};

constexpr size_t kMostSplits = 4;

class KernelBuilder {
 public:
  KernelBuilder(const std::function<const Place*(const Value&)>& place, const ScheduleOptions& options, const std::vector<Split>& splits)
      : place_(place), splits_(splits) {
    k_.strict = options.strict;
  }

  KernelStep build(const std::vector<const Node*>& roots, const std::function<Place(const Node*)>& target) {
    std::vector<const Node*> order = roots;
    // Reductions among the roots decide the axes first.
    std::stable_sort(order.begin(), order.end(), [](const Node* a, const Node* b) { return is_reduce(a->op) > is_reduce(b->op); });
    if (!is_reduce(order[0]->op)) {
      full_ = new_axes(order[0]->results[0].shape);
      for (const Split& s : splits_) split(s);
      splittable_ = splits_.size() < kMostSplits ? k_.axes.size() : 0;
    }
    for (const Node* root : order) store(root, target(root));
    return finish();
  }

 private:
  using Index = std::vector<SymInt>;

  struct Key {
    Value value;
    Index index;
    int predicate;
    bool operator<(const Key& o) const {
      if (value.node->id != o.value.node->id) return value.node->id < o.value.node->id;
      if (value.index != o.value.index) return value.index < o.value.index;
      if (predicate != o.predicate) return predicate < o.predicate;
      return std::lexicographical_compare(index.begin(), index.end(), o.index.begin(), o.index.end(),
                                          [](const SymInt& a, const SymInt& b) { return compare(a, b) < 0; });
    }
  };

  Index new_axes(const Shape& extents, bool reduced = false) {
    Index ids;
    for (const SymInt& e : extents) {
      SymbolId id = kFirstAxis + static_cast<SymbolId>(k_.axes.size());
      k_.axes.push_back({id, e, reduced});
      ids.push_back(SymInt::symbol(id));
    }
    return ids;
  }

  void split(const Split& s) {
    const KernelAxis inner{kFirstAxis + static_cast<SymbolId>(k_.axes.size()), s.step, false};
    const SymbolId outer = k_.axes[s.axis].id;
    k_.axes[s.axis].extent = floordiv(k_.axes[s.axis].extent, s.step);
    const SymInt joined = SymInt::symbol(outer) * s.step + SymInt::symbol(inner.id);
    k_.axes.insert(k_.axes.begin() + static_cast<int64_t>(s.axis) + 1, inner);
    for (SymInt& i : full_) i = i.substitute([&](SymbolId id) { return id == outer ? std::optional(joined) : std::nullopt; });
  }

  void store(const Node* root, const Place& place) {
    Index index = root_index(root);
    int e = expr({root, 0}, index, -1);
    k_.stores.push_back({{buffer(place.buffer, root->results[0].dtype), address(place, index), {}}, e});
  }

  // Where a root is stored: at the point itself, or for a reduction at the position of the axes that remain.
  Index root_index(const Node* root) {
    if (!is_reduce(root->op)) {
      if (full_.empty() && !k_.axes.empty() && root->results[0].rank() > 0) throw Misfit{root};
      if (full_.size() != static_cast<size_t>(root->results[0].rank())) throw Misfit{root};
      return full_;
    }
    const Shape& x = root->inputs[0].shape();
    const auto& dims = root->ints(Attr::dims);
    auto is_reduced = [&](size_t d) { return std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end(); };
    if (full_.empty() && k_.axes.empty()) {
      full_ = new_axes(x);
      for (size_t d = 0; d < x.size(); ++d) k_.axes[d].reduced = is_reduced(d);
    }
    if (full_.size() != x.size()) throw Misfit{root};
    Index kept;
    for (size_t d = 0; d < x.size(); ++d)
      if (!is_reduced(d)) kept.push_back(full_[d]);
    return kept;
  }

  static SymInt address(const Place& p, const Index& index) {
    SymInt a = p.offset;
    for (size_t d = 0; d < index.size(); ++d) a = a + index[d] * p.strides[d];
    return a;
  }

  int buffer(int id, DType dtype) {
    auto [it, fresh] = positions_.emplace(std::pair(id, dtype), static_cast<int>(buffers_.size()));
    if (!fresh) return it->second;
    buffers_.push_back(id);
    k_.buffers.push_back(dtype);
    return it->second;
  }

  static size_t hash(const KernelExpr& e) {
    size_t h = static_cast<size_t>(e.kind) * 31 + static_cast<size_t>(e.op);
    auto mix = [&](size_t v) { h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2); };
    mix(static_cast<size_t>(e.dtype));
    for (int a : e.args) mix(static_cast<size_t>(a));
    mix(static_cast<size_t>(e.access.buffer));
    mix(e.access.index.hash());
    mix(static_cast<size_t>(e.predicate));
    if (e.kind == Kind::constant) mix(std::hash<std::string>()(str(e.value)));
    return h;
  }

  // Equal expressions are shared.
  int add(KernelExpr e) {
    const size_t h = hash(e);
    for (auto [it, end] = known_.equal_range(h); it != end; ++it)
      if (const KernelExpr& k = k_.exprs[static_cast<size_t>(it->second)];
          k == e && e.value.index() == k.value.index() && str(e.value) == str(k.value))
        return it->second;
    k_.exprs.push_back(std::move(e));
    known_.emplace(h, static_cast<int>(k_.exprs.size()) - 1);
    return static_cast<int>(k_.exprs.size()) - 1;
  }
  int op(Op o, DType dtype, std::vector<int> args) {
    return add({.kind = Kind::op,
                .dtype = dtype,
                .op = o,
                .args = std::move(args),
                .value = int64_t{0},
                .access = {},
                .limit = {},
                .predicate = -1});
  }
  int constant(Scalar v, DType dtype) {
    return add(
        {.kind = Kind::constant, .dtype = dtype, .op = Op::scalar, .args = {}, .value = v, .access = {}, .limit = {}, .predicate = -1});
  }
  int position(const SymInt& i) {
    if (auto c = i.maybe_constant()) return constant(*c, DType::i64);
    return add({.kind = Kind::position,
                .dtype = DType::i64,
                .op = Op::scalar,
                .args = {},
                .value = int64_t{0},
                .access = {-1, i, {}},
                .limit = {},
                .predicate = -1});
  }
  int both(int a, int b) { return a < 0 ? b : b < 0 ? a : op(Op::bit_and, DType::b1, {a, b}); }

  // An index inside a take: a plain address, or one with a part that is read from memory.
  struct Dynamic {
    SymbolId symbol;
    int expr;
  };

  int load(const Value& v, const Place& p, const Index& index, int predicate) {
    SymInt a = address(p, index);
    Access access{buffer(p.buffer, v.dtype()), a, {}};
    for (const Dynamic& d : dynamic_) {
      auto linear = access.index.linear_in(d.symbol);
      if (!linear) throw Misfit{v.node};
      if (linear->first == SymInt(0)) continue;
      access.dynamic.push_back({d.expr, linear->first});
      access.index = linear->second;
    }
    return add({.kind = Kind::load,
                .dtype = v.dtype(),
                .op = Op::scalar,
                .args = {},
                .value = int64_t{0},
                .access = access,
                .limit = {},
                .predicate = predicate});
  }

  int expr(const Value& v, const Index& index, int predicate) {
    Key key{v, index, predicate};
    if (auto it = done_.find(key); it != done_.end()) return it->second;
    // Concatenations of windows of concatenations: each level would compute its operands at several positions.
    if (k_.exprs.size() > kLargeKernel && !place_(v) && ++evaluations_[v.node] > kMostEvaluations) throw Misfit{v.node};
    int e = compute(v, index, predicate);
    done_.emplace(std::move(key), e);
    return e;
  }

  int compute(const Value& v, const Index& index, int predicate) {
    const Node& n = *v.node;
    const Place* p = place_(v);
    if (p) return load(v, *p, index, predicate);
    switch (kind_of(n.op)) {
      case OpKind::source: return source(n, index);
      case OpKind::view: return view(n, index, predicate);
      case OpKind::heavy_view: return take(n, index, predicate);
      case OpKind::reduce: return reduction(n, index, predicate);
      case OpKind::heavy:
      case OpKind::routine:
      case OpKind::external: fail("kernel: ", name_of(n.op), " has no place in memory");
      default: return elementwise(n, index, predicate);
    }
  }

  int source(const Node& n, const Index& index) {
    if (n.op == Op::scalar) return constant(n.get<Scalar>(Attr::value), n.results[0].dtype);
    if (n.op == Op::size) return position(n.get<SymInt>(Attr::expr));
    if (n.op == Op::iota) return cast(position_of(index[static_cast<size_t>(n.integer(Attr::dim))], n), n.results[0].dtype);
    fail("kernel: input %", n.id, " has no place in memory");
  }

  // Positions that depend on a taken index are sums of a static part and the index.
  int position_of(const SymInt& i, const Node& n) {
    for (const Dynamic& d : dynamic_)
      if (i.contains(d.symbol)) {
        auto linear = i.linear_in(d.symbol);
        if (!linear) throw Misfit{&n};
        int scaled = op(Op::mul, DType::i64, {d.expr, position_of(linear->first, n)});
        return op(Op::add, DType::i64, {scaled, position_of(linear->second, n)});
      }
    return position(i);
  }

  // Whether a position is a sum of a static part and multiples of taken indices.
  bool is_linear_in_taken(const SymInt& i) const {
    return std::all_of(dynamic_.begin(), dynamic_.end(), [&](const Dynamic& d) { return !i.contains(d.symbol) || i.linear_in(d.symbol); });
  }

  int cast(int e, DType to) {
    if (k_.exprs[static_cast<size_t>(e)].dtype == to) return e;
    return op(Op::cast, to, {e});
  }

  int elementwise(const Node& n, const Index& index, int predicate) {
    std::vector<int> args;
    for (const Value& in : n.inputs) args.push_back(expr(in, index, predicate));
    return op(n.op, n.results[0].dtype, std::move(args));
  }

  int in_range(const SymInt& i, const SymInt& low, const SymInt& high, const Node& n) {
    // low <= i < high; what the axes' extents decide is left out.
    int e = -1;
    Ranges r = ranges();
    if (!proven_non_negative(i - low, r)) e = op(Op::ge, DType::b1, {position_of(i, n), position(low)});
    if (!proven_non_negative(high - 1 - i, r)) e = both(e, op(Op::lt, DType::b1, {position_of(i, n), position(high)}));
    return e;
  }

  Ranges ranges() const {
    Ranges r;
    for (const auto& a : k_.axes) r[a.id] = Range{0, std::make_shared<SymInt>(a.extent - 1)};
    return r;
  }

  int view(const Node& n, const Index& index, int predicate) {
    const Value& x = n.inputs[0];
    Index in(x.shape().size());
    switch (n.op) {
      case Op::expand:
        for (size_t d = 0; d < in.size(); ++d) in[d] = x.shape()[d] == SymInt(1) ? SymInt(0) : index[d];
        return expr(x, in, predicate);
      case Op::permute:
        for (size_t d = 0; d < in.size(); ++d) in[static_cast<size_t>(n.ints(Attr::dims)[d])] = index[d];
        return expr(x, in, predicate);
      case Op::slice:
        for (size_t d = 0; d < in.size(); ++d) in[d] = n.sizes(Attr::starts)[d] + index[d] * SymInt(n.ints(Attr::steps)[d]);
        return expr(x, in, predicate);
      case Op::reshape:
        in = reshaped(n.results[0].shape, x.shape(), index);
        for (const SymInt& i : in)
          if (i.atoms() > kLargePosition || !is_linear_in_taken(i)) throw Misfit{&n};
        return expr(x, in, predicate);
      case Op::pad: return pad(n, index, predicate);
      default: return concatenation(n, index, predicate);
    }
  }

  Index reshaped(const Shape& from, const Shape& to, const Index& index) const {
    Ranges r = ranges();
    // Without elements no position is read, and none could be divided by the sizes.
    auto none = [](const Shape& s) { return std::find(s.begin(), s.end(), SymInt(0)) != s.end(); };
    if (none(from) || none(to)) return Index(to.size(), SymInt(0));
    Index out(to.size());
    // Only the groups of dimensions that really change are linearised.
    size_t i = 0, j = 0;
    while (i < from.size() || j < to.size()) {
      if (i < from.size() && j < to.size() && from[i] == to[j]) {
        out[j++] = index[i++];
        continue;
      }
      size_t i0 = i, j0 = j;
      SymInt p = i < from.size() ? from[i++] : SymInt(1), q = j < to.size() ? to[j++] : SymInt(1);
      while (!(p == q) && (i < from.size() || j < to.size())) {
        bool take_from = j >= to.size() || (i < from.size() && size_hint(p) < size_hint(q));
        if (take_from) p = p * from[i++];
        else q = q * to[j++];
      }
      SymInt linear(0);
      for (size_t d = i0; d < i; ++d) linear = linear * from[d] + index[d];
      linear = simplify(linear, r);
      for (size_t d = j; d-- > j0;) {
        out[d] = d == j0 ? linear : simplify(mod(linear, to[d]), r);
        if (to[d] == SymInt(1)) out[d] = 0;
        linear = simplify(floordiv(linear, to[d]), r);
      }
    }
    return out;
  }

  static int64_t size_hint(const SymInt& s) {
    return s.eval([](SymbolId) { return int64_t{1000}; });
  }

  int pad(const Node& n, const Index& index, int predicate) {
    const Value& x = n.inputs[0];
    Index in(index.size());
    int inside = -1;
    for (size_t d = 0; d < in.size(); ++d) {
      in[d] = index[d] - n.sizes(Attr::low)[d];
      inside = both(inside, in_range(in[d], 0, x.shape()[d], n));
    }
    int value = expr(x, in, both(predicate, inside));
    if (inside < 0) return value;
    return op(Op::where, n.results[0].dtype, {inside, value, constant(n.get<Scalar>(Attr::value), n.results[0].dtype)});
  }

  int concatenation(const Node& n, const Index& index, int predicate) {
    auto dim = static_cast<size_t>(n.integer(Attr::dim));
    // Back to front, so that the first operand's condition is the outermost.
    std::vector<SymInt> starts{SymInt(0)};
    for (const Value& v : n.inputs) starts.push_back(starts.back() + v.shape()[dim]);
    int result = -1;
    for (size_t i = n.inputs.size(); i-- > 0;) {
      Index in = index;
      in[dim] = index[dim] - starts[i];
      int here = in_range(in[dim], 0, n.inputs[i].shape()[dim], n);
      int value = expr(n.inputs[i], in, both(predicate, here));
      if (result < 0 || here < 0) {
        result = value;
        continue;
      }
      int before = op(Op::lt, DType::b1, {position_of(index[dim], n), position(starts[i + 1])});
      result = op(Op::where, n.results[0].dtype, {before, value, result});
    }
    return result;
  }

  int take(const Node& n, const Index& index, int predicate) {
    auto dim = static_cast<size_t>(n.integer(Attr::dim));
    const Value &x = n.inputs[0], &positions = n.inputs[1];
    auto rank = static_cast<size_t>(positions.rank());
    int at = expr(positions, Index(index.begin() + static_cast<int64_t>(dim), index.begin() + static_cast<int64_t>(dim + rank)), predicate);
    at = cast(at, DType::i64);
    int checked = add({.kind = Kind::bounds,
                       .dtype = DType::i64,
                       .op = Op::scalar,
                       .args = {at},
                       .value = int64_t{0},
                       .access = {},
                       .limit = x.shape()[dim],
                       .predicate = predicate});
    SymbolId symbol = kFirstAxis * 2 + static_cast<SymbolId>(checked);
    if (std::none_of(dynamic_.begin(), dynamic_.end(), [&](const Dynamic& d) { return d.symbol == symbol; }))
      dynamic_.push_back({symbol, checked});
    Index in(index.begin(), index.begin() + static_cast<int64_t>(dim));
    in.push_back(SymInt::symbol(symbol));
    in.insert(in.end(), index.begin() + static_cast<int64_t>(dim + rank), index.end());
    return expr(x, in, predicate);
  }

  int reduction(const Node& n, const Index& index, int predicate) {
    if (predicate >= 0) throw Misfit{&n};  // it would be reduced where it is not wanted
    const Shape& x = n.inputs[0].shape();
    const auto& dims = n.ints(Attr::dims);
    std::vector<size_t> axes = reduced_axes(n, index);
    Index in;
    SymInt linear(0);
    size_t next_kept = 0, next_reduced = 0;
    for (size_t d = 0; d < x.size(); ++d) {
      bool reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
      in.push_back(reduced ? SymInt::symbol(k_.axes[axes[next_reduced++]].id) : index[next_kept++]);
      if (reduced) linear = linear * x[d] + in.back();
    }
    int arg = expr(n.inputs[0], in, -1);
    bool wants_position = n.op == Op::reduce_argmax || n.op == Op::reduce_argmin;
    return add({.kind = Kind::reduction,
                .dtype = n.results[0].dtype,
                .op = n.op,
                .args = {arg},
                .value = int64_t{0},
                .access = {-1, wants_position ? linear : SymInt(0), {}},
                .limit = {},
                .predicate = -1});
  }

  // The axes a reduction runs over: those the kernel reduces already, or its axes that the result does not depend on, or
  // new ones if the result depends on all.
  std::vector<size_t> reduced_axes(const Node& n, const Index& index) {
    Shape extents;
    for (int64_t d : n.ints(Attr::dims)) extents.push_back(n.inputs[0].shape()[static_cast<size_t>(d)]);
    for (const SymInt& i : index)
      for (const Dynamic& d : dynamic_)
        if (i.contains(d.symbol)) throw Misfit{&n};
    auto depends = [&](const KernelAxis& a) {
      return std::any_of(index.begin(), index.end(), [&](const SymInt& i) { return i.contains(a.id); });
    };
    for (const KernelAxis& a : k_.axes)
      if (std::any_of(index.begin(), index.end(), [&](const SymInt& i) { return i.contains(a.id) && !i.linear_in(a.id); }))
        split_for(n, index);
    std::vector<size_t> free, reduced;
    for (size_t a = 0; a < k_.axes.size(); ++a) {
      if (k_.axes[a].reduced) reduced.push_back(a);
      if (!depends(k_.axes[a]) && !(k_.axes[a].extent == SymInt(1))) free.push_back(a);
    }
    // Dimensions of size 1 need no axis of the point: give each a fresh one.
    bool fits = false;
    std::vector<size_t> wanted;
    if (!reduced.empty()) {
      std::vector<size_t> real;
      for (size_t a : reduced)
        if (!(k_.axes[a].extent == SymInt(1))) real.push_back(a);
      fits = match(extents, real, wanted) && std::none_of(real.begin(), real.end(), [&](size_t a) { return depends(k_.axes[a]); });
      // Every axis that stays must move the result, or each would reduce again for the same answer.
      for (size_t a : free) fits = fits && k_.axes[a].reduced;
    } else if (free.empty()) {
      if (k_.axes.size() + extents.size() > 24) throw Misfit{&n};
      size_t first = k_.axes.size();
      new_axes(extents, true);
      for (size_t i = 0; i < extents.size(); ++i) wanted.push_back(first + i);
      return wanted;
    } else {
      fits = match(extents, free, wanted);
    }
    if (!fits) throw Misfit{&n};
    for (size_t a : wanted) k_.axes[a].reduced = true;
    return wanted;
  }

  // The result is the same at several positions of an axis, and would be reduced anew for each.
  [[noreturn]] void split_for(const Node& n, const Index& index) const {
    std::vector<std::pair<size_t, SymInt>> divisors;
    for (const SymInt& i : index) find_divisors(i, k_.axes, divisors);
    for (auto& [axis, step] : divisors)
      if (axis < splittable_) throw Split{axis, step};
    throw Misfit{&n};
  }

  bool match(const Shape& extents, const std::vector<size_t>& axes, std::vector<size_t>& wanted) {
    size_t next = 0;
    wanted.clear();
    for (const SymInt& e : extents) {
      if (e == SymInt(1)) {
        new_axes({e}, true);
        wanted.push_back(k_.axes.size() - 1);
        continue;
      }
      if (next >= axes.size() || !(k_.axes[axes[next]].extent == e)) return false;
      wanted.push_back(axes[next++]);
    }
    return next == axes.size();
  }

  KernelStep finish() {
    k_ = normalize_axes(std::move(k_));
    std::vector<SymbolId> symbols;
    auto collect = [&](const SymInt& s) { s.collect_symbols(symbols); };
    for (const auto& a : k_.axes) collect(a.extent);
    for (const auto& e : k_.exprs) {
      collect(e.access.index);
      collect(e.limit);
      for (const auto& d : e.access.dynamic) collect(d.second);
    }
    for (const auto& s : k_.stores) collect(s.access.index);
    std::erase_if(symbols, [](SymbolId id) { return id >= kFirstAxis; });
    std::sort(symbols.begin(), symbols.end());
    symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
    auto renamed = [&](SymbolId id) -> std::optional<SymInt> {
      auto it = std::find(symbols.begin(), symbols.end(), id);
      return it == symbols.end() ? std::nullopt : std::optional(SymInt::symbol(static_cast<SymbolId>(it - symbols.begin())));
    };
    for (auto& a : k_.axes) a.extent = a.extent.substitute(renamed);
    for (auto& e : k_.exprs) {
      e.access.index = e.access.index.substitute(renamed);
      e.limit = e.limit.substitute(renamed);
      for (auto& d : e.access.dynamic) d.second = d.second.substitute(renamed);
    }
    for (auto& s : k_.stores) s.access.index = s.access.index.substitute(renamed);
    k_.symbols = static_cast<int>(symbols.size());
    std::vector<int64_t> starts = take_starts();
    return {std::make_shared<const Kernel>(std::move(k_)), buffers_, symbols, std::move(starts), {}};
  }

  // Where in a buffer the kernel begins is told with each launch: the rows of a tensor, taken one by one, are one kernel then.
  std::vector<int64_t> take_starts() {
    std::vector<std::optional<int64_t>> first(buffers_.size());
    auto each = [&](const auto& f) {
      for (auto& e : k_.exprs)
        if (e.kind == Kind::load) f(e.access);
      for (auto& s : k_.stores) f(s.access);
    };
    each([&](const Access& a) {
      auto& known = first[static_cast<size_t>(a.buffer)];
      known = std::min(known.value_or(a.index.constant_part()), a.index.constant_part());
    });
    std::vector<int64_t> starts;
    for (const auto& f : first) starts.push_back(f.value_or(0));
    if (std::all_of(starts.begin(), starts.end(), [](int64_t s) { return s == 0; })) return {};
    each([&](Access& a) { a.index = a.index - starts[static_cast<size_t>(a.buffer)]; });
    return starts;
  }

  const std::function<const Place*(const Value&)>& place_;
  const std::vector<Split>& splits_;
  size_t splittable_ = 0;  // axes that may be split
  Kernel k_;
  Index full_;
  std::vector<int> buffers_;
  std::map<std::pair<int, DType>, int> positions_;  // of buffers and element types in buffers_
  std::unordered_multimap<size_t, int> known_;      // expressions by their hash
  std::vector<Dynamic> dynamic_;
  std::map<Key, int> done_;
  std::unordered_map<const Node*, int> evaluations_;  // in a large kernel, at different positions
};

}  // namespace

std::optional<KernelStep> build_kernel(const std::vector<const Node*>& roots, const std::function<const Place*(const Value&)>& place,
                                       const std::function<Place(const Node*)>& target, const ScheduleOptions& options,
                                       const Node** misfit) {
  std::vector<Split> splits;
  for (;;) {
    try {
      return KernelBuilder(place, options, splits).build(roots, target);
    } catch (const Split& s) {
      splits.push_back(s);
    } catch (const Misfit& m) {
      *misfit = m.node;
      return std::nullopt;
    }
  }
}

}  // namespace broach
