#include <cmath>

#include "passes/passes.h"

namespace broach {

namespace {

std::optional<double> constant_of(Value v) {
  while (v.node->op == Op::expand || v.node->op == Op::reshape || v.node->op == Op::cast) v = v.node->inputs[0];
  if (v.node->op != Op::scalar || is_complex(v.dtype())) return std::nullopt;
  return as_double(v.node->get<Scalar>(Attr::value));
}

bool near(std::optional<double> a, double b) { return a && std::abs(*a - b) <= 1e-6 * std::abs(b); }

class ActivationMatcher {
 public:
  explicit ActivationMatcher(bool strict) : strict_(strict) {}

  // A product of three factors, in any association: x, 1/2 and the factor with the function.
  std::optional<std::vector<Value>> match(GraphBuilder& b, const Node& n, std::span<const Value> in) const {
    if (n.op != Op::mul) return std::nullopt;
    auto of = [&](Op op, Value x) { return std::vector{b.unary(op, b.cast(b.reshape(root(x), n.results[0].shape), n.results[0].dtype))}; };
    for (size_t i = 0; i < 2; ++i) {
      Value p = in[i], q = bare(in[1 - i]);
      if (q.node->op == Op::sigmoid && q.node->inputs[0] == p && q == in[1 - i]) return {{b.unary(Op::silu, p)}};
      if (auto x = times(p, 0.5))
        if (auto op = gelu_factor(q, *x)) return of(*op, *x);
      if (near(constant_of(p), 0.5) && q.node->op == Op::mul)
        for (size_t j = 0; j < 2; ++j)
          if (auto op = gelu_factor(q.node->inputs[j], q.node->inputs[1 - j])) return of(*op, q.node->inputs[1 - j]);
      if (auto half = times(q, 0.5))
        if (auto op = gelu_factor(*half, p)) return of(*op, p);
    }
    return std::nullopt;
  }

 private:
  // As it was before an operation's result was rounded, or widened for the next one to be computed.
  Value bare(Value v) const {
    auto is_rounding = [](DType a, DType b) {
      return (is_low_precision(a) && compute_dtype(a) == b) || (is_low_precision(b) && compute_dtype(b) == a);
    };
    while (!strict_ && v.node->op == Op::cast && is_rounding(v.dtype(), v.node->inputs[0].dtype())) v = v.node->inputs[0];
    return v;
  }

  // One factor of a product, or term of a sum, is a constant near c: the other one.
  std::optional<Value> beside(Op op, Value v, double c) const {
    v = bare(v);
    if (v.node->op != op) return std::nullopt;
    for (size_t i = 0; i < 2; ++i)
      if (near(constant_of(v.node->inputs[i]), c)) return v.node->inputs[1 - i];
    return std::nullopt;
  }
  std::optional<Value> times(Value v, double c) const { return beside(Op::mul, v, c); }
  std::optional<Value> plus(Value v, double c) const { return beside(Op::add, v, c); }

  // Roundings and reshapes may have changed places.
  Value root(Value v) const {
    for (Value before; !(before == v);) {
      before = v, v = bare(v);
      while (v.node->op == Op::reshape) v = v.node->inputs[0];
    }
    return v;
  }

  bool is(Value v, Value x) const { return v.shape() == x.shape() && root(v) == root(x); }

  bool is_cube(Value v, Value x) const {
    v = bare(v);
    if (v.node->op == Op::pow) return is(v.node->inputs[0], x) && near(constant_of(v.node->inputs[1]), 3);
    if (v.node->op != Op::mul) return false;
    for (size_t i = 0; i < 2; ++i) {
      Value a = v.node->inputs[i], b = bare(v.node->inputs[1 - i]);
      if (is(a, x) && b.node->op == Op::mul && is(b.node->inputs[0], x) && is(b.node->inputs[1], x)) return true;
    }
    return false;
  }

  // tanh's argument sqrt(2/pi) * (x + 0.044715 x^3): x.
  std::optional<Value> gelu_argument(Value v) const {
    auto product = times(v, std::sqrt(2 / M_PI));
    if (!product) return std::nullopt;
    const Value sum = bare(*product);
    if (sum.node->op != Op::add) return std::nullopt;
    for (size_t i = 0; i < 2; ++i) {
      Value x = sum.node->inputs[i];
      auto cube = times(sum.node->inputs[1 - i], 0.044715);
      if (cube && is_cube(*cube, x)) return x;
    }
    return std::nullopt;
  }

  // The factor (1 + tanh(..)) or (1 + erf(..)) of a gelu of x.
  std::optional<Op> gelu_factor(Value v, Value x) const {
    auto one_more = plus(v, 1);
    if (!one_more) return std::nullopt;
    const Value inner = bare(*one_more);
    if (inner.node->op == Op::tanh) {
      auto argument = gelu_argument(inner.node->inputs[0]);
      return argument && is(*argument, x) ? std::optional(Op::gelu_tanh) : std::nullopt;
    }
    if (inner.node->op != Op::erf) return std::nullopt;
    const Value arg = bare(inner.node->inputs[0]);
    auto scaled = times(arg, std::sqrt(0.5));
    if (scaled && is(*scaled, x)) return Op::gelu_erf;
    if (arg.node->op == Op::div && is(arg.node->inputs[0], x) && near(constant_of(arg.node->inputs[1]), std::sqrt(2.0)))
      return Op::gelu_erf;
    return std::nullopt;
  }

  bool strict_;
};

}  // namespace

Graph match_activations(const Graph& graph, const PassContext& c) {
  return rewrite(graph, [matcher = ActivationMatcher(c.strict)](GraphBuilder& b, const Node& n, std::span<const Value> in) {
    return matcher.match(b, n, in);
  });
}

}  // namespace broach
