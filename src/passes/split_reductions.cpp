// A reduction of much into little leaves nothing to share among threads: each result is one piece of work. Cut into parts
// along its outermost dimension it becomes two: the parts, which are independent, and their combination. Sums also gain:
// parts have smaller errors than one long chain.
#include <algorithm>
#include <map>
#include <numeric>

#include "passes/passes.h"

namespace broach {

namespace {

// Along dimension `dim`: into parts of equal size, or, where it leaves some over, of size / parts elements and a rest.
struct Cut {
  size_t dim;
  int64_t parts;
};

// How many parts of `size` elements come nearest to those wanted: a divisor, if one is near.
int64_t near(int64_t wanted, int64_t size) {
  for (int64_t p = wanted; p <= 2 * wanted && p <= size / 2; ++p)
    if (size % p == 0) return p;
  return wanted;
}

// Where to cut the operand x of a reduction, outermost first: whole dimensions into their elements, and then one into parts. `columns`:
// what lies innermost in memory is kept.
std::vector<Cut> find_cuts(const Node& n, const Shape& x, bool columns, const Capabilities::Reductions& worth) {
  auto elements = product(x).maybe_constant(), results = n.results[0].numel().maybe_constant();
  if (!elements || !results || *results == 0 || *elements < worth.smallest) return {};
  std::vector<int64_t> dims = n.ints(Attr::dims);
  std::sort(dims.begin(), dims.end());
  const bool rows = !columns && dims.back() == static_cast<int64_t>(x.size()) - 1;
  const int64_t pieces = rows ? *results : (*results + worth.columns - 1) / worth.columns;
  if (2 * pieces > worth.pieces) return {};
  int64_t wanted = std::min((worth.pieces + pieces - 1) / pieces, *elements / pieces / (worth.smallest / 8));
  std::vector<Cut> out;
  for (int64_t d : dims) {
    if (wanted < 2) break;
    const auto dim = static_cast<size_t>(d);
    const int64_t size = x[dim].constant();
    const bool whole = wanted > size / 2 && d != dims.back();
    const int64_t p = whole ? size : near(std::min(wanted, size / 2), size);
    if (p >= 2) out.push_back({dim, p});
    if (!whole) break;
    wanted = (wanted + p - 1) / p;
  }
  return out;
}

// An operand with its parts as dimensions of their own.
struct Parted {
  Value x;                      // whole
  Value parts;                  // regrouped: parts, what is kept, what is reduced
  Value sums;                   // the reductions of the parts
  std::vector<int64_t> within;  // the dimensions that those reduce
  size_t count;                 // of the dimensions of parts, which come first in `sums`
};

Value slice_of(GraphBuilder& b, Value x, size_t dim, int64_t from, int64_t to) {
  Shape starts(x.shape().size(), SymInt(0)), shape = x.shape();
  starts[dim] = from;
  shape[dim] = to - from;
  return b.slice(x, starts, std::vector<int64_t>(shape.size(), 1), shape);
}

Parted divide(GraphBuilder& b, Value x, const std::vector<int64_t>& dims, const std::vector<Cut>& cuts) {
  const Shape& shape = x.shape();
  Shape cut;
  std::vector<int64_t> parts, kept, within;
  auto place = [&](std::vector<int64_t>& group, const SymInt& size) {
    group.push_back(static_cast<int64_t>(cut.size()));
    cut.push_back(size);
  };
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto at = std::ranges::find(cuts, d, &Cut::dim);
    const bool is_reduced = std::ranges::find(dims, static_cast<int64_t>(d)) != dims.end();
    if (at == cuts.end()) {
      place(is_reduced ? within : kept, shape[d]);
      continue;
    }
    place(parts, at->parts);
    if (shape[d] != SymInt(at->parts)) place(within, shape[d].constant() / at->parts);
  }
  std::vector<int64_t> order = parts;
  order.insert(order.end(), kept.begin(), kept.end());
  Parted out{x, {}, {}, {}, parts.size()};
  for (size_t i = 0; i < within.size(); ++i) out.within.push_back(static_cast<int64_t>(order.size() + i));
  order.insert(order.end(), within.begin(), within.end());
  out.parts = b.permute(b.reshape(x, std::move(cut)), order);
  return out;
}

std::vector<int64_t> first(size_t count) {
  std::vector<int64_t> out(count);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// By the sum of x in the new graph; only of operands without a rest.
using Partings = std::map<const Node*, Parted>;

const Value* skip_views(const Value* v) {
  while (v->node->op == Op::expand || v->node->op == Op::reshape) v = &v->node->inputs[0];
  return v;
}

// Of a sum of (x - mean of x)^2: what the sum behind the mean was cut into.
const Parted* parting_of_variance(Value square, const Partings& partings) {
  if (square.node->op != Op::mul || square.node->inputs[0] != square.node->inputs[1]) return nullptr;
  const Node& centred = *square.node->inputs[0].node;
  if (centred.op != Op::sub) return nullptr;
  const Value* mean = skip_views(&centred.inputs[1]);
  if (mean->node->op != Op::div) return nullptr;
  const Value *sum = skip_views(&mean->node->inputs[0]), *count = skip_views(&mean->node->inputs[1]);
  const auto found = partings.find(sum->node);
  if (found == partings.end() || found->second.x != centred.inputs[0] || count->node->op != Op::scalar) return nullptr;
  const Shape &whole = found->second.x.shape(), &results = sum->shape();
  const bool is_mean = product(mean->shape()) == product(results) &&
                       as_double(count->node->get<Scalar>(Attr::value)) * static_cast<double>(product(results).constant()) ==
                           static_cast<double>(product(whole).constant());
  return is_mean ? &found->second : nullptr;
}

// Each part's squares of distances from its own mean, and what its mean adds (Chan, Golub and LeVeque 1983): one pass over memory gives
// that and the sum, where the distances from the mean of all take a second.
Value variance_by_parts(GraphBuilder& b, const Parted& p, Value mean) {
  const DType t = p.x.dtype();
  const Device device = p.x.type().device;
  const int64_t size = product(p.parts.shape()).constant() / product(p.sums.shape()).constant();
  const Value number = b.constant(static_cast<double>(size), t, device), own = b.binary(Op::div, p.sums, number);
  Shape beside = p.parts.shape();
  for (int64_t d : p.within) beside[static_cast<size_t>(d)] = 1;
  const Value distance = b.binary(Op::sub, p.parts, b.expand(b.reshape(own, beside), p.parts.shape()));
  const Value within = b.reduce(Op::reduce_sum, b.binary(Op::mul, distance, distance), p.within);
  const Shape kept(p.sums.shape().begin() + static_cast<int64_t>(p.count), p.sums.shape().end());
  const Value apart = b.binary(Op::sub, own, b.expand(b.reshape(mean, kept), p.sums.shape()));
  const Value between = b.binary(Op::mul, b.binary(Op::mul, apart, apart), number);
  return b.reduce(Op::reduce_sum, b.binary(Op::add, within, between), first(p.count));
}

// Sums along columns of what is reduced along its rows too: where kernels add up rows, both are one reading, and the sums stay whole.
class SumsBesideRows {
 public:
  SumsBesideRows(const Graph& graph, const Capabilities::RowAdder& able) : able_(able), goes_to_rows_(graph.nodes().size()) {
    if (able.most == 0) return;
    for (size_t i = graph.nodes().size(); i-- > 0;) {
      const Node& n = graph.nodes()[i];
      const bool reduces_rows = is_reduce(n.op) && n.ints(Attr::dims) == std::vector{static_cast<int64_t>(n.inputs[0].rank()) - 1};
      if (reduces_rows) goes_to_rows_[n.inputs[0].node->id] = true;
      else if (goes_to_rows_[n.id]) for_each_as_large(n, [&](const Node& in) { goes_to_rows_[in.id] = true; });
    }
  }

  bool contain(const Node& n) const {
    if (able_.most == 0 || n.op != Op::reduce_sum || n.results[0].device.kind != able_.device) return false;
    const Shape& x = n.inputs[0].shape();
    if (n.results[0].shape.size() != 1 || n.results[0].shape[0] != x.back()) return false;
    const auto columns = x.back().maybe_constant(), elements = product(x).maybe_constant();
    if (!columns || !elements || *columns < able_.fewest || *columns > able_.most || *elements < able_.smallest) return false;
    std::vector<const Node*> work{n.inputs[0].node};
    constexpr size_t kMostVisited = 64;
    for (size_t visited = 0; !work.empty() && visited < kMostVisited; ++visited) {
      const Node* m = work.back();
      work.pop_back();
      if (goes_to_rows_[m->id]) return true;
      for_each_as_large(*m, [&](const Node& in) { work.push_back(&in); });
    }
    return false;
  }

 private:
  // Operands of the same rows, of which a value is computed element by element.
  template <class F>
  static void for_each_as_large(const Node& n, const F& f) {
    const Shape& shape = n.results[0].shape;
    if (shape.empty() || (!is_elementwise(n.op) && n.op != Op::reshape)) return;
    for (const Value& v : n.inputs)
      if (v.rank() > 0 && v.shape().back() == shape.back() && product(v.shape()) == product(shape)) f(*v.node);
  }

  const Capabilities::RowAdder& able_;
  std::vector<bool> goes_to_rows_;  // by node
};

class Splitter {
 public:
  Splitter(const Graph& graph, const Capabilities& capabilities)
      : worth_(capabilities.reductions),
        channels_last_(lie_channels_last(graph, capabilities)),
        beside_rows_(graph, capabilities.row_adder) {}

  std::optional<std::vector<Value>> rule(GraphBuilder& b, const Node& n, std::span<const Value> in) {
    auto combine = fold_of(n.op);
    if (!is_reduce(n.op) || !combine || n.ints(Attr::dims).empty() || beside_rows_.contain(n)) return std::nullopt;
    const Value x = in[0];
    const auto& dims = n.ints(Attr::dims);
    // Then dimension 1 lies innermost.
    const bool columns = channels_last_[n.inputs[0].node->id] && std::ranges::find(dims, 1) == dims.end();
    const std::vector<Cut> cuts = find_cuts(n, x.shape(), columns, worth_);
    if (cuts.empty()) return std::nullopt;
    if (n.op == Op::reduce_sum)
      if (const Parted* p = parting_of_variance(x, partings_))
        return {{variance_by_parts(b, *p, *skip_views(&x.node->inputs[0].node->inputs[1]))}};
    const Cut& last = cuts.back();
    const int64_t size = x.shape()[last.dim].constant(), whole = size / last.parts * last.parts;
    Parted p = divide(b, whole < size ? slice_of(b, x, last.dim, 0, whole) : x, dims, cuts);
    p.sums = b.reduce(n.op, p.parts, p.within);
    Value result = b.reduce(n.op, p.sums, first(p.count));
    if (whole < size) return {{b.binary(*combine, result, b.reduce(n.op, slice_of(b, x, last.dim, whole, size), dims))}};
    if (n.op == Op::reduce_sum) partings_.emplace(result.node, std::move(p));
    return {{result}};
  }

 private:
  const Capabilities::Reductions& worth_;
  std::vector<bool> channels_last_;  // by node of the old graph
  SumsBesideRows beside_rows_;
  Partings partings_;
};

}  // namespace

Graph split_reductions(const Graph& graph, const PassContext& c) {
  Splitter splitter(graph, *c.capabilities);
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) { return splitter.rule(b, n, in); });
}

}  // namespace broach
