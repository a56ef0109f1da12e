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

// One factor of a product is a constant near c: the other factor.
std::optional<Value> times(Value v, double c) {
  if (v.node->op != Op::mul) return std::nullopt;
  for (size_t i = 0; i < 2; ++i)
    if (near(constant_of(v.node->inputs[i]), c)) return v.node->inputs[1 - i];
  return std::nullopt;
}

std::optional<Value> plus(Value v, double c) {
  if (v.node->op != Op::add) return std::nullopt;
  for (size_t i = 0; i < 2; ++i)
    if (near(constant_of(v.node->inputs[i]), c)) return v.node->inputs[1 - i];
  return std::nullopt;
}

bool is_cube(Value v, Value x) {
  if (v.node->op == Op::pow) return v.node->inputs[0] == x && near(constant_of(v.node->inputs[1]), 3);
  if (v.node->op != Op::mul) return false;
  for (size_t i = 0; i < 2; ++i) {
    Value a = v.node->inputs[i], b = v.node->inputs[1 - i];
    if (a == x && b.node->op == Op::mul && b.node->inputs[0] == x && b.node->inputs[1] == x) return true;
  }
  return false;
}

// tanh's argument sqrt(2/pi) * (x + 0.044715 x^3): x.
std::optional<Value> gelu_argument(Value v) {
  auto sum = times(v, std::sqrt(2 / M_PI));
  if (!sum || sum->node->op != Op::add) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    Value x = sum->node->inputs[i];
    auto cube = times(sum->node->inputs[1 - i], 0.044715);
    if (cube && is_cube(*cube, x)) return x;
  }
  return std::nullopt;
}

// The factor (1 + tanh(..)) or (1 + erf(..)) of a gelu of x.
std::optional<Op> gelu_factor(Value v, Value x) {
  auto inner = plus(v, 1);
  if (!inner) return std::nullopt;
  if (inner->node->op == Op::tanh && gelu_argument(inner->node->inputs[0]) == std::optional(x)) return Op::gelu_tanh;
  if (inner->node->op != Op::erf) return std::nullopt;
  Value arg = inner->node->inputs[0];
  auto scaled = times(arg, std::sqrt(0.5));
  if (scaled && *scaled == x) return Op::gelu_erf;
  if (arg.node->op == Op::div && arg.node->inputs[0] == x && near(constant_of(arg.node->inputs[1]), std::sqrt(2.0))) return Op::gelu_erf;
  return std::nullopt;
}

// A product of three factors, in any association: x, 1/2 and the factor with the function.
std::optional<std::vector<Value>> match(GraphBuilder& b, const Node& n, std::span<const Value> in) {
  if (n.op != Op::mul) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    Value p = in[i], q = in[1 - i];
    if (q.node->op == Op::sigmoid && q.node->inputs[0] == p) return {{b.unary(Op::silu, p)}};
    if (auto x = times(p, 0.5))
      if (auto op = gelu_factor(q, *x)) return {{b.unary(*op, *x)}};
    if (near(constant_of(p), 0.5) && q.node->op == Op::mul)
      for (size_t j = 0; j < 2; ++j)
        if (auto op = gelu_factor(q.node->inputs[j], q.node->inputs[1 - j])) return {{b.unary(*op, q.node->inputs[1 - j])}};
    if (auto half = times(q, 0.5))
      if (auto op = gelu_factor(*half, p)) return {{b.unary(*op, p)}};
  }
  return std::nullopt;
}

}  // namespace

Graph match_activations(const Graph& graph, const PassContext&) { return rewrite(graph, match); }

}  // namespace broach
