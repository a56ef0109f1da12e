// A kernel asks at each element of a concatenation which operand it is of, and holds the code of all of them. Many operands are
// copied one after the other instead, by the host's library.
#include <algorithm>

#include "passes/passes.h"

namespace broach {

namespace {

constexpr size_t kMostAsked = 16;  // operands

bool is_along(const Value& v, int64_t dim) { return v.node->op == Op::cat && v.node->integer(Attr::dim) == dim; }

// Of a concatenation of concatenations along one dimension the innermost operands, while there are not too many.
std::vector<Value> operands_of(std::span<const Value> in, int64_t dim, const std::function<bool(const Value&)>& only_here) {
  std::vector<Value> out, work(in.rbegin(), in.rend());
  while (!work.empty()) {
    const Value v = work.back();
    work.pop_back();
    if (is_along(v, dim) && only_here(v)) work.insert(work.end(), v.node->inputs.rbegin(), v.node->inputs.rend());
    else out.push_back(v);
  }
  return out;
}

Value join(GraphBuilder& b, const Type& type, std::vector<Value> operands, int64_t dim) {
  auto call = std::make_shared<ExternCall>();
  call->schema = "aten::cat";
  ExternArg::Inputs list;
  for (size_t i = 0; i < operands.size(); ++i) list.indices.push_back(static_cast<int64_t>(i));
  call->args = {{std::move(list)}, {SymInt(dim)}};
  call->results = {type};
  call->result_strides = {contiguous_strides(type.shape)};
  return b.emit(Op::extern_call, std::move(operands), {{Attr::call, std::shared_ptr<const ExternCall>(std::move(call))}});
}

}  // namespace

Graph join_many(const Graph& graph, const PassContext&) {
  const std::vector<int> uses = graph.use_counts();
  // By node: it is an operand of nothing but one concatenation along its own dimension, which takes its operands.
  std::vector<bool> inner(graph.nodes().size());
  for (const Node& n : graph.nodes())
    if (n.op == Op::cat)
      for (const Value& v : n.inputs)
        if (is_along(v, n.integer(Attr::dim)) && uses[v.node->id] == 1) inner[v.node->id] = true;
  std::vector<const Node*> old;  // by new node: whose place it takes, if that is inner
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    if (n.op != Op::cat) return std::nullopt;
    if (inner[n.id]) {
      Value made = b.emit(Op::cat, {in.begin(), in.end()}, n.attrs);
      old.resize(std::max<size_t>(old.size(), made.node->id + 1));
      old[made.node->id] = &n;
      return {{made}};
    }
    const int64_t dim = n.integer(Attr::dim);
    auto operands = operands_of(in, dim, [&](const Value& v) { return v.node->id < old.size() && old[v.node->id]; });
    if (operands.size() <= kMostAsked) return std::nullopt;
    return {{join(b, n.results[0], std::move(operands), dim)}};
  });
}

}  // namespace broach
