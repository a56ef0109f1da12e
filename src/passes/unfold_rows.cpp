// Convolutions of few channels, of which libraries make ones of more by adding zeros.
#include "passes/passes.h"

namespace broach {

namespace {

struct Conv {
  int64_t batch, channels, height, out_channels, rows, columns;  // of the weight
  int64_t out_width, stride, padding;                            // along the columns

  int64_t unfolded() const { return channels * columns; }
};

std::optional<Conv> conv_of(const Node& n) {
  const Shape &x = n.inputs[0].shape(), &w = n.inputs[1].shape(), &y = n.results[0].shape;
  if (n.op != Op::conv || x.size() != 4 || n.integer(Attr::transposed) || n.integer(Attr::groups) != 1) return std::nullopt;
  for (const Shape* s : {&x, &w, &y, &n.sizes(Attr::padding)})
    for (const SymInt& size : *s)
      if (!size.is_constant()) return std::nullopt;
  if (n.ints(Attr::dilation)[1] != 1) return std::nullopt;
  return Conv{x[0].constant(), x[1].constant(),         x[2].constant(),
              w[0].constant(), w[2].constant(),         w[3].constant(),
              y[3].constant(), n.ints(Attr::stride)[1], n.sizes(Attr::padding)[1].constant()};
}

Value pad(GraphBuilder& b, Value x, size_t dim, int64_t low, int64_t high) {
  if (low == 0 && high == 0) return x;
  Shape before(x.shape().size(), SymInt(0)), after = before;
  before[dim] = SymInt(low), after[dim] = SymInt(high);
  return b.emit(Op::pad, {x}, {{Attr::low, before}, {Attr::high, after}, {Attr::value, Scalar(0.0)}});
}

// The elements that a row of the weight meets, as channels.
Value unfolded(GraphBuilder& b, const Conv& c, Value x) {
  const int64_t width = x.shape()[3].constant(), needed = (c.out_width - 1) * c.stride + c.columns;
  x = pad(b, x, 3, c.padding, std::max(int64_t{0}, needed - width - c.padding));
  std::vector<Value> columns;
  for (int64_t j = 0; j < c.columns; ++j)
    columns.push_back(b.slice(x, {SymInt(0), SymInt(0), SymInt(0), SymInt(j)}, {1, 1, 1, c.stride},
                              {SymInt(c.batch), SymInt(c.channels), SymInt(c.height), SymInt(c.out_width)}));
  return b.emit(Op::cat, std::move(columns), {{Attr::dim, int64_t{1}}});
}

}  // namespace

// With fewer channels than the target computes at a time, what each row of the weight meets becomes channels, of which few are added.
Graph unfold_rows(const Graph& graph, const PassContext& context) {
  constexpr int64_t kMost = 64;  // channels: each element is written as often as windows meet it
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    const auto c = n.op == Op::conv ? conv_of(n) : std::nullopt;
    const ContractionAbility* can = c ? context.capabilities->contraction(n.op, n.results[0].dtype) : nullptr;
    if (!can || c->channels >= can->channel_piece || c->columns < 2 || c->unfolded() > kMost) return std::nullopt;
    const int64_t work = product(n.results[0].shape).constant() * c->unfolded() * c->rows;
    if (work < can->unfolds_from) return std::nullopt;
    const int64_t missing = (can->channel_piece - c->unfolded() % can->channel_piece) % can->channel_piece;
    const Value weight =
        b.reshape(b.permute(in[1], {0, 3, 1, 2}), {SymInt(c->out_channels), SymInt(c->unfolded()), SymInt(c->rows), SymInt(1)});
    std::vector<Value> operands{pad(b, unfolded(b, *c, in[0]), 1, 0, missing), pad(b, weight, 1, 0, missing)};
    operands.insert(operands.end(), in.begin() + 2, in.end());
    return {{b.emit(Op::conv, std::move(operands),
                    {{Attr::stride, std::vector<int64_t>{n.ints(Attr::stride)[0], 1}},
                     {Attr::padding, Shape{n.sizes(Attr::padding)[0], SymInt(0)}},
                     {Attr::dilation, n.ints(Attr::dilation)},
                     {Attr::transposed, int64_t{0}},
                     {Attr::output_padding, n.sizes(Attr::output_padding)},
                     {Attr::groups, int64_t{1}}})}};
  });
}

}  // namespace broach
