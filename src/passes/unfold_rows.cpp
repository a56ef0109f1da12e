// Convolutions of few channels, of which libraries make ones of more by adding zeros.
#include "passes/passes.h"

namespace broach {

namespace {

struct Axis {
  int64_t size, window, stride, padding, out;

  int64_t met() const { return (out - 1) * stride + window; }  // from the first to the last element that windows see
  bool has_whole_steps() const { return window % stride == 0; }
};

struct Conv {
  int64_t batch, channels, out_channels;
  Axis rows, columns;

  int64_t unfolded() const { return channels * columns.window; }
  int64_t step_channels() const { return channels * rows.stride * columns.stride; }
};

std::optional<Conv> conv_of(const Node& n) {
  const Shape &x = n.inputs[0].shape(), &w = n.inputs[1].shape(), &y = n.results[0].shape;
  if (n.op != Op::conv || x.size() != 4 || n.integer(Attr::transposed) || n.integer(Attr::groups) != 1) return std::nullopt;
  for (const Shape* s : {&x, &w, &y, &n.sizes(Attr::padding)})
    for (const SymInt& size : *s)
      if (!size.is_constant()) return std::nullopt;
  if (n.ints(Attr::dilation)[1] != 1) return std::nullopt;
  auto axis = [&](size_t d) {
    return Axis{x[d + 2].constant(), w[d + 2].constant(), n.ints(Attr::stride)[d], n.sizes(Attr::padding)[d].constant(),
                y[d + 2].constant()};
  };
  return Conv{x[0].constant(), x[1].constant(), w[0].constant(), axis(0), axis(1)};
}

Value pad(GraphBuilder& b, Value x, size_t dim, int64_t low, int64_t high) {
  if (low == 0 && high == 0) return x;
  Shape before(x.shape().size(), SymInt(0)), after = before;
  before[dim] = SymInt(low), after[dim] = SymInt(high);
  return b.emit(Op::pad, {x}, {{Attr::low, before}, {Attr::high, after}, {Attr::value, Scalar(0.0)}});
}

// With all that windows meet.
Value padded(GraphBuilder& b, const Axis& a, Value x, size_t dim) {
  return pad(b, x, dim, a.padding, std::max(int64_t{0}, a.met() - a.size - a.padding));
}

// The elements that a row of the weight meets, as channels.
Value unfolded(GraphBuilder& b, const Conv& c, Value x) {
  const Axis& a = c.columns;
  x = padded(b, a, x, 3);
  std::vector<Value> columns;
  for (int64_t j = 0; j < a.window; ++j)
    columns.push_back(b.slice(x, {SymInt(0), SymInt(0), SymInt(0), SymInt(j)}, {1, 1, 1, a.stride},
                              {SymInt(c.batch), SymInt(c.channels), SymInt(c.rows.size), SymInt(a.out)}));
  return b.emit(Op::cat, std::move(columns), {{Attr::dim, int64_t{1}}});
}

// [.., rows, columns] as [.., steps, steps], what lies within a step becoming channels.
Value in_steps(GraphBuilder& b, Value x, const Conv& c) {
  const int64_t down = c.rows.stride, across = c.columns.stride;
  const Shape s = x.shape();
  const SymInt rows = floordiv(s[2], down), columns = floordiv(s[3], across);
  x = b.reshape(x, {s[0], s[1], rows, SymInt(down), columns, SymInt(across)});
  return b.reshape(b.permute(x, {0, 1, 3, 5, 2, 4}), {s[0], s[1] * down * across, rows, columns});
}

// Nothing but what windows meet.
Value met_of(GraphBuilder& b, const Axis& a, Value x, size_t dim) {
  x = padded(b, a, x, dim);
  Shape shape = x.shape();
  if (shape[dim] == SymInt(a.met())) return x;
  shape[dim] = SymInt(a.met());
  return b.slice(x, Shape(4, SymInt(0)), std::vector<int64_t>(4, 1), shape);
}

struct Rewritten {
  Value x, weight;
  std::vector<int64_t> stride;
  Shape padding;
};

Rewritten by_steps(GraphBuilder& b, const Conv& c, Value x, Value weight) {
  x = met_of(b, c.columns, met_of(b, c.rows, x, 2), 3);
  return {in_steps(b, x, c), in_steps(b, weight, c), {1, 1}, {SymInt(0), SymInt(0)}};
}

Rewritten by_columns(GraphBuilder& b, const Conv& c, Value x, Value weight) {
  weight = b.reshape(b.permute(weight, {0, 3, 1, 2}), {SymInt(c.out_channels), SymInt(c.unfolded()), SymInt(c.rows.window), SymInt(1)});
  return {unfolded(b, c, x), weight, {c.rows.stride, 1}, {SymInt(c.rows.padding), SymInt(0)}};
}

}  // namespace

// With fewer channels than the target computes at a time, what each row of the weight meets becomes channels, of which few are added; or what
// a step covers, where windows see whole ones: to fill them up, elements beside a window would be multiplied by zeros, and one that is not
// finite be seen.
Graph unfold_rows(const Graph& graph, const PassContext& context) {
  constexpr int64_t kMost = 64;  // channels: each element is written as often as windows meet it
  return rewrite(graph, [&](GraphBuilder& b, const Node& n, std::span<const Value> in) -> std::optional<std::vector<Value>> {
    const auto c = n.op == Op::conv ? conv_of(n) : std::nullopt;
    const ContractionAbility* can = c ? context.capabilities->contraction(n.op, n.results[0].dtype) : nullptr;
    if (!can || c->channels >= can->channel_piece || c->columns.window < 2) return std::nullopt;
    const bool steps = n.ints(Attr::dilation)[0] == 1 && c->rows.has_whole_steps() && c->columns.has_whole_steps() &&
                       c->step_channels() >= can->channel_piece;
    if (!steps && c->unfolded() > kMost) return std::nullopt;
    const int64_t work = product(n.results[0].shape).constant() * c->unfolded() * c->rows.window;
    if (work < can->unfolds_from) return std::nullopt;
    const Rewritten made = steps ? by_steps(b, *c, in[0], in[1]) : by_columns(b, *c, in[0], in[1]);
    const int64_t channels = made.weight.shape()[1].constant();
    const int64_t missing = (can->channel_piece - channels % can->channel_piece) % can->channel_piece;
    std::vector<Value> operands{pad(b, made.x, 1, 0, missing), pad(b, made.weight, 1, 0, missing)};
    operands.insert(operands.end(), in.begin() + 2, in.end());
    return {{b.emit(Op::conv, std::move(operands),
                    {{Attr::stride, made.stride},
                     {Attr::padding, made.padding},
                     {Attr::dilation, n.ints(Attr::dilation)},
                     {Attr::transposed, int64_t{0}},
                     {Attr::output_padding, n.sizes(Attr::output_padding)},
                     {Attr::groups, int64_t{1}}})}};
  });
}

}  // namespace broach
