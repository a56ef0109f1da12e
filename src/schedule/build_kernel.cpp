// From a group of nodes to one kernel: values are inlined from the stores backwards, each as a function of the point. What holds the
// parts are exprs.h and axes.h; finish_kernel.cpp makes the kernel one that any launch can use.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "schedule/axes.h"
#include "schedule/exprs.h"
#include "support/error.h"

namespace broach {

namespace {

using Kind = KernelExpr::Kind;

constexpr size_t kLargePosition = 20;  // atoms of a position: views of views of sizes that are symbols
constexpr size_t kLargeKernel = 1000;  // expressions
constexpr int kMostEvaluations = 8;    // of one node, in a kernel that is large already

constexpr size_t kMostSplits = 4;

class KernelBuilder {
 public:
  KernelBuilder(const std::function<const Place*(const Value&)>& place, const ScheduleOptions& options,
                const std::vector<AxisSplit>& splits)
      : place_(place), splits_(splits) {
    k_.strict = options.strict;
  }

  KernelStep build(const std::vector<const Node*>& roots, const std::function<Place(const Node*)>& target) {
    std::vector<const Node*> order = roots;
    // Reductions among the roots decide the axes first.
    std::stable_sort(order.begin(), order.end(), [](const Node* a, const Node* b) { return is_reduce(a->op) > is_reduce(b->op); });
    if (!is_reduce(order[0]->op)) {
      full_ = axes_.add(order[0]->results[0].shape);
      for (const AxisSplit& s : splits_) axes_.split(s, full_);
      splittable_ = splits_.size() < kMostSplits ? k_.axes.size() : 0;
    }
    for (const Node* root : order) store(root, target(root));
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
    Index index = root_index(root);
    int e = expr({root, 0}, index, -1);
    k_.stores.push_back({{exprs_.buffer(place.buffer, root->results[0].dtype), address(place, index), {}}, e});
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
      full_ = axes_.add(x);
      for (size_t d = 0; d < x.size(); ++d) k_.axes[d].reduced = is_reduced(d);
    }
    if (full_.size() != x.size()) throw Misfit{root};
    Index kept;
    for (size_t d = 0; d < x.size(); ++d)
      if (!is_reduced(d)) kept.push_back(full_[d]);
    return kept;
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
      if (!linear) throw Misfit{v.node};
      if (linear->first == SymInt(0)) continue;
      access.dynamic.push_back({d.expr, linear->first});
      access.index = linear->second;
    }
    return exprs_.load(v.dtype(), std::move(access), predicate);
  }

  int expr(const Value& v, const Index& index, int predicate) {
    Key key{v, index, predicate};
    if (auto it = done_.find(key); it != done_.end()) return it->second;
    // Concatenations of windows of concatenations: each level would compute its operands at several positions.
    if (exprs_.size() > kLargeKernel && !place_(v) && ++evaluations_[v.node] > kMostEvaluations) throw Misfit{v.node};
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
    if (n.op == Op::scalar) return exprs_.constant(n.get<Scalar>(Attr::value), n.results[0].dtype);
    if (n.op == Op::size) return exprs_.position(n.get<SymInt>(Attr::expr));
    if (n.op == Op::iota) return exprs_.cast(position_of(index[static_cast<size_t>(n.integer(Attr::dim))], n), n.results[0].dtype);
    fail("kernel: input %", n.id, " has no place in memory");
  }

  // Positions that depend on a taken index are sums of a static part and the index.
  int position_of(const SymInt& i, const Node& n) {
    for (const Dynamic& d : dynamic_)
      if (i.contains(d.symbol)) {
        auto linear = i.linear_in(d.symbol);
        if (!linear) throw Misfit{&n};
        int scaled = exprs_.op(Op::mul, DType::i64, {d.expr, position_of(linear->first, n)});
        return exprs_.op(Op::add, DType::i64, {scaled, position_of(linear->second, n)});
      }
    return exprs_.position(i);
  }

  // Whether a position is a sum of a static part and multiples of taken indices.
  bool is_linear_in_taken(const SymInt& i) const {
    return std::all_of(dynamic_.begin(), dynamic_.end(), [&](const Dynamic& d) { return !i.contains(d.symbol) || i.linear_in(d.symbol); });
  }

  int elementwise(const Node& n, const Index& index, int predicate) {
    std::vector<int> args;
    for (const Value& in : n.inputs) args.push_back(expr(in, index, predicate));
    return exprs_.op(n.op, n.results[0].dtype, std::move(args));
  }

  int in_range(const SymInt& i, const SymInt& low, const SymInt& high, const Node& n) {
    // low <= i < high; what the axes' extents decide is left out.
    int e = -1;
    const Ranges r = axes_.ranges();
    if (!proven_non_negative(i - low, r)) e = exprs_.op(Op::ge, DType::b1, {position_of(i, n), exprs_.position(low)});
    if (!proven_non_negative(high - 1 - i, r)) e = exprs_.both(e, exprs_.op(Op::lt, DType::b1, {position_of(i, n), exprs_.position(high)}));
    return e;
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
        in = reshaped_index(n.results[0].shape, x.shape(), index, axes_.ranges());
        for (const SymInt& i : in)
          if (i.atoms() > kLargePosition || !is_linear_in_taken(i)) throw Misfit{&n};
        return expr(x, in, predicate);
      case Op::pad: return pad(n, index, predicate);
      default: return concatenation(n, index, predicate);
    }
  }

  int pad(const Node& n, const Index& index, int predicate) {
    const Value& x = n.inputs[0];
    Index in(index.size());
    int inside = -1;
    for (size_t d = 0; d < in.size(); ++d) {
      in[d] = index[d] - n.sizes(Attr::low)[d];
      inside = exprs_.both(inside, in_range(in[d], 0, x.shape()[d], n));
    }
    int value = expr(x, in, exprs_.both(predicate, inside));
    if (inside < 0) return value;
    return exprs_.op(Op::where, n.results[0].dtype, {inside, value, exprs_.constant(n.get<Scalar>(Attr::value), n.results[0].dtype)});
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
      int value = expr(n.inputs[i], in, exprs_.both(predicate, here));
      if (result < 0 || here < 0) {
        result = value;
        continue;
      }
      int before = exprs_.op(Op::lt, DType::b1, {position_of(index[dim], n), exprs_.position(starts[i + 1])});
      result = exprs_.op(Op::where, n.results[0].dtype, {before, value, result});
    }
    return result;
  }

  int take(const Node& n, const Index& index, int predicate) {
    auto dim = static_cast<size_t>(n.integer(Attr::dim));
    const Value &x = n.inputs[0], &positions = n.inputs[1];
    auto rank = static_cast<size_t>(positions.rank());
    int at = expr(positions, Index(index.begin() + static_cast<int64_t>(dim), index.begin() + static_cast<int64_t>(dim + rank)), predicate);
    int checked = exprs_.bounds(exprs_.cast(at, DType::i64), x.shape()[dim], predicate);
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
    for (const SymInt& i : index)
      for (const Dynamic& d : dynamic_)
        if (i.contains(d.symbol)) throw Misfit{&n};
    const Shape& x = n.inputs[0].shape();
    const auto& dims = n.ints(Attr::dims);
    const std::vector<size_t> axes = axes_.reduced_by(n, index, splittable_);
    Index in;
    SymInt linear(0);
    size_t next_kept = 0, next_reduced = 0;
    for (size_t d = 0; d < x.size(); ++d) {
      bool reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
      in.push_back(reduced ? SymInt::symbol(k_.axes[axes[next_reduced++]].id) : index[next_kept++]);
      if (reduced) linear = linear * x[d] + in.back();
    }
    int arg = expr(n.inputs[0], in, -1);
    bool wants_position = is_index_reduction(n.op);
    return exprs_.reduction(n.op, n.results[0].dtype, arg, wants_position ? linear : SymInt(0));
  }

  const std::function<const Place*(const Value&)>& place_;
  const std::vector<AxisSplit>& splits_;
  size_t splittable_ = 0;  // axes that may be split
  Kernel k_;
  LoopAxes axes_{k_.axes};
  ExprList exprs_{k_};
  Index full_;  // the point, as the positions in what the roots store
  std::vector<Dynamic> dynamic_;
  std::map<Key, int> done_;
  std::unordered_map<const Node*, int> evaluations_;  // in a large kernel, at different positions
};

}  // namespace

std::optional<KernelStep> build_kernel(const std::vector<const Node*>& roots, const std::function<const Place*(const Value&)>& place,
                                       const std::function<Place(const Node*)>& target, const ScheduleOptions& options,
                                       const Node** misfit) {
  std::vector<AxisSplit> splits;
  for (;;) {
    try {
      return KernelBuilder(place, options, splits).build(roots, target);
    } catch (const AxisSplit& s) {
      splits.push_back(s);
    } catch (const Misfit& m) {
      *misfit = m.node;
      return std::nullopt;
    }
  }
}

}  // namespace broach
