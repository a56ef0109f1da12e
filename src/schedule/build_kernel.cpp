// From a group of nodes to one kernel: values are inlined from the stores backwards, each as a function of the point. What holds the
// parts are exprs.h and space.h; finish_kernel.cpp makes the kernel one that any launch can use.
#include <algorithm>
#include <map>

#include "schedule/exprs.h"
#include "schedule/groups.h"
#include "support/error.h"

namespace broach {

namespace {

class KernelBuilder {
 public:
  KernelBuilder(const Space& space, const std::function<const Place*(const Value&)>& place, bool strict) : place_(place), space_(space) {
    space_.forget_taken();
    k_.strict = strict;
  }

  KernelStep build(const std::vector<const Node*>& roots, const std::function<Place(const Node*)>& target) {
    std::vector<const Node*> order = roots;
    std::stable_sort(order.begin(), order.end(), [](const Node* a, const Node* b) { return is_reduce(a->op) > is_reduce(b->op); });
    for (const Node* root : order) store(root, target(root));
    k_.axes = space_.axes();
    return finish_kernel(std::move(k_), std::move(exprs_.buffers()));
  }

 private:
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

  void store(const Node* root, const Place& place) {
    const Index index = space_.root_index(*root);
    int e = expr({root, 0}, index, -1);
    k_.stores.push_back({{exprs_.buffer(place.buffer, root->results[0].dtype), address(place, index), {}}, e});
  }

  // An index inside a take: a plain address, or one with a part that is read from memory.
  struct Dynamic {
    SymbolId symbol;
    int expr;
  };

  int load(const Value& v, const Place& p, const Index& index, int predicate) {
    Access access{exprs_.buffer(p.buffer, v.dtype()), address(p, index), {}};
    for (const Dynamic& d : dynamic_) {
      auto linear = access.index.linear_in(d.symbol);
      check(linear.has_value(), "kernel: the address of %", v.node->id, " is not linear in what is read from memory");
      if (linear->first == SymInt(0)) continue;
      access.dynamic.push_back({d.expr, linear->first});
      access.index = linear->second;
    }
    return exprs_.load(v.dtype(), std::move(access), predicate);
  }

  int expr(const Value& v, const Index& index, int predicate) {
    Key key{v, index, predicate};
    if (auto it = done_.find(key); it != done_.end()) return it->second;
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
      case OpKind::reduce: check(predicate < 0, "kernel: %", n.id, " would be reduced under a condition"); return reduction(n, index);
      case OpKind::heavy:
      case OpKind::routine:
      case OpKind::external: fail("kernel: ", name_of(n.op), " has no place in memory");
      default: return elementwise(n, index, predicate);
    }
  }

  int source(const Node& n, const Index& index) {
    if (n.op == Op::scalar) return exprs_.constant(n.get<Scalar>(Attr::value), n.results[0].dtype);
    if (n.op == Op::zero) return exprs_.constant(Scalar(0.0), n.results[0].dtype);
    if (n.op == Op::size) return exprs_.position(n.get<SymInt>(Attr::expr));
    if (n.op == Op::iota) return exprs_.cast(position_of(index[static_cast<size_t>(n.integer(Attr::dim))], n), n.results[0].dtype);
    fail("kernel: input %", n.id, " has no place in memory");
  }

  // Positions that depend on a taken index are sums of a static part and the index.
  int position_of(const SymInt& i, const Node& n) {
    for (const Dynamic& d : dynamic_)
      if (i.contains(d.symbol)) {
        auto linear = i.linear_in(d.symbol);
        check(linear.has_value(), "kernel: a position of %", n.id, " is not linear in what is read from memory");
        int scaled = exprs_.op(Op::mul, DType::i64, {d.expr, position_of(linear->first, n)});
        return exprs_.op(Op::add, DType::i64, {scaled, position_of(linear->second, n)});
      }
    return exprs_.position(i);
  }

  int elementwise(const Node& n, const Index& index, int predicate) {
    std::vector<int> args;
    for (const Value& in : n.inputs) args.push_back(expr(in, index, predicate));
    if (n.op == Op::place) return args[0];
    return exprs_.op(n.op, n.results[0].dtype, std::move(args));
  }

  // 0 <= i < size; what the axes' extents decide is left out.
  int in_range(const SymInt& i, const SymInt& size, const Node& n) {
    int e = -1;
    if (space_.may_be_below(i)) e = exprs_.op(Op::ge, DType::b1, {position_of(i, n), exprs_.position(0)});
    if (space_.may_be_behind(i, size)) e = exprs_.both(e, exprs_.op(Op::lt, DType::b1, {position_of(i, n), exprs_.position(size)}));
    return e;
  }

  Index operand_index(const Node& n, size_t operand, const Index& index) const {
    auto in = space_.view_operand(n, operand, index);
    check(in.has_value(), "kernel: %", n.id, " (", name_of(n.op), ") does not fit");
    return std::move(*in);
  }

  int view(const Node& n, const Index& index, int predicate) {
    if (n.op == Op::pad) return pad(n, index, predicate);
    if (n.op == Op::cat) return concatenation(n, index, predicate);
    return expr(n.inputs[0], operand_index(n, 0, index), predicate);
  }

  int pad(const Node& n, const Index& index, int predicate) {
    const Value& x = n.inputs[0];
    const Index in = operand_index(n, 0, index);
    int inside = -1;
    for (size_t d = 0; d < in.size(); ++d) inside = exprs_.both(inside, in_range(in[d], x.shape()[d], n));
    int value = expr(x, in, exprs_.both(predicate, inside));
    if (inside < 0) return value;
    return exprs_.op(Op::where, n.results[0].dtype, {inside, value, exprs_.constant(n.get<Scalar>(Attr::value), n.results[0].dtype)});
  }

  int concatenation(const Node& n, const Index& index, int predicate) {
    auto dim = static_cast<size_t>(n.integer(Attr::dim));
    // Back to front, so that the first operand's condition is the outermost.
    int result = -1;
    for (size_t i = n.inputs.size(); i-- > 0;) {
      const Index in = operand_index(n, i, index);
      const SymInt& size = n.inputs[i].shape()[dim];
      int here = in_range(in[dim], size, n);
      int value = expr(n.inputs[i], in, exprs_.both(predicate, here));
      if (result < 0 || here < 0) {
        result = value;
        continue;
      }
      int before = exprs_.op(Op::lt, DType::b1, {position_of(index[dim], n), exprs_.position(index[dim] - in[dim] + size)});
      result = exprs_.op(Op::where, n.results[0].dtype, {before, value, result});
    }
    return result;
  }

  int take(const Node& n, const Index& index, int predicate) {
    auto dim = static_cast<size_t>(n.integer(Attr::dim));
    const Value &x = n.inputs[0], &positions = n.inputs[1];
    const auto [from, to] = dims_of_positions(n);
    const auto first = index.begin() + static_cast<int64_t>(from), last = index.begin() + static_cast<int64_t>(to);
    int at = expr(positions, Index(first, last), predicate);
    int checked = exprs_.bounds(exprs_.cast(at, DType::i64), x.shape()[dim], predicate);
    SymbolId symbol = kFirstAxis * 2 + static_cast<SymbolId>(checked);
    if (std::none_of(dynamic_.begin(), dynamic_.end(), [&](const Dynamic& d) { return d.symbol == symbol; }))
      dynamic_.push_back({symbol, checked});
    space_.add_taken(symbol);
    Index in(index.begin(), index.begin() + static_cast<int64_t>(dim));
    in.push_back(SymInt::symbol(symbol));
    in.insert(in.end(), last, index.end());
    const int taken = expr(x, in, predicate);
    if (is_complex(n.results[0].dtype) || depends_on(taken, checked)) return taken;
    // Whatever is taken of a repeated dimension is the same element: the index is checked all the same.
    const int inside = exprs_.op(Op::lt, DType::b1, {checked, exprs_.position(x.shape()[dim])});
    return exprs_.op(Op::where, n.results[0].dtype, {inside, taken, taken});
  }

  bool depends_on(int e, int other) const {
    std::vector<int> open{e};
    std::vector<bool> seen(static_cast<size_t>(e) + 1);
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      if (at == other) return true;
      if (at < other || seen[static_cast<size_t>(at)]) continue;  // operands come first
      seen[static_cast<size_t>(at)] = true;
      const KernelExpr& x = exprs_[at];
      open.insert(open.end(), x.args.begin(), x.args.end());
      for (const auto& d : x.access.dynamic) open.push_back(d.first);
      if (x.predicate >= 0) open.push_back(x.predicate);
    }
    return false;
  }

  int reduction(const Node& n, const Index& index) {
    const Index in = space_.reduction_operand(n, index);
    int arg = expr(n.inputs[0], in, -1);
    // No axis is left of dimensions of one element.
    if (std::ranges::all_of(n.ints(Attr::dims), [&](int64_t d) { return n.inputs[0].shape()[static_cast<size_t>(d)] == SymInt(1); }))
      return is_index_reduction(n.op) ? exprs_.constant(Scalar(int64_t{0}), n.results[0].dtype) : exprs_.cast(arg, n.results[0].dtype);
    SymInt linear(0);
    if (is_index_reduction(n.op))
      for (size_t d = 0; d < in.size(); ++d)
        if (const auto& dims = n.ints(Attr::dims); std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end())
          linear = linear * n.inputs[0].shape()[d] + in[d];
    return exprs_.reduction(n.op, n.results[0].dtype, arg, linear);
  }

  const std::function<const Place*(const Value&)>& place_;
  Space space_;
  Kernel k_;
  ExprList exprs_{k_};
  std::vector<Dynamic> dynamic_;
  std::map<Key, int> done_;
};

}  // namespace

KernelStep build_kernel(const Group& group, const std::function<const Place*(const Value&)>& place,
                        const std::function<Place(const Node*)>& target, bool strict) {
  return KernelBuilder(group.space, place, strict).build(group.roots, target);
}

}  // namespace broach
