// A reduction of much into little leaves nothing to share among threads: each result is one piece of work. Cut into parts
// along its outermost dimension it becomes two: the parts, which are independent, and their combination. Sums also gain:
// parts have smaller errors than one long chain.
#include <algorithm>

#include "passes/passes.h"

namespace broach {

namespace {

// How many parts dimension `dim` of x should be cut into; 1 for none.
int64_t parts(const Node& n, const Shape& x, size_t dim, const Capabilities::Reductions& worth) {
  auto elements = product(x).maybe_constant(), results = n.results[0].numel().maybe_constant(), size = x[dim].maybe_constant();
  if (!elements || !results || !size || *results == 0 || *elements < worth.smallest || *size < 4) return 1;
  const auto& dims = n.ints(Attr::dims);
  bool rows = std::find(dims.begin(), dims.end(), static_cast<int64_t>(x.size()) - 1) != dims.end();
  int64_t pieces = rows ? *results : (*results + worth.columns - 1) / worth.columns;
  if (pieces >= worth.pieces) return 1;
  int64_t wanted =
      std::min({(worth.pieces + pieces - 1) / pieces, *size / 2, std::max<int64_t>(1, *elements / pieces / (worth.smallest / 8))});
  for (int64_t p = wanted; p <= 2 * wanted && p <= *size / 2; ++p)
    if (*size % p == 0) return p;
  return wanted;
}

Value slice_of(GraphBuilder& b, Value x, size_t dim, int64_t from, int64_t to) {
  Shape starts(x.shape().size(), SymInt(0)), shape = x.shape();
  starts[dim] = from;
  shape[dim] = to - from;
  return b.slice(x, starts, std::vector<int64_t>(shape.size(), 1), shape);
}

std::optional<std::vector<Value>> rule(GraphBuilder& b, const Node& n, std::span<const Value> in, const Capabilities::Reductions& worth) {
  auto combine = fold_of(n.op);
  if (!is_reduce(n.op) || !combine || n.ints(Attr::dims).empty()) return std::nullopt;
  const Value x = in[0];
  const auto& dims = n.ints(Attr::dims);
  auto dim = static_cast<size_t>(*std::min_element(dims.begin(), dims.end()));
  int64_t p = parts(n, x.shape(), dim, worth);
  if (p < 2) return std::nullopt;
  int64_t size = x.shape()[dim].constant(), whole = size / p * p;
  Shape cut = x.shape();
  cut[dim] = p;
  cut.insert(cut.begin() + static_cast<int64_t>(dim) + 1, SymInt(size / p));
  std::vector<int64_t> within;
  for (int64_t d : dims) within.push_back(d + 1);
  // Dimensions before `dim` are all kept, so that is where the parts are.
  Value partial = b.reduce(n.op, b.reshape(whole < size ? slice_of(b, x, dim, 0, whole) : x, cut), within);
  Value result = b.reduce(n.op, partial, {static_cast<int64_t>(dim)});
  if (whole < size) result = b.binary(*combine, result, b.reduce(n.op, slice_of(b, x, dim, whole, size), dims));
  return {{result}};
}

}  // namespace

Graph split_reductions(const Graph& graph, const PassContext& c) {
  return rewrite(graph,
                 [&](GraphBuilder& b, const Node& n, std::span<const Value> in) { return rule(b, n, in, c.capabilities->reductions); });
}

}  // namespace broach
