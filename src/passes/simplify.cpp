#include <cmath>

#include "passes/passes.h"

namespace broach {

namespace {

using Result = std::optional<std::vector<Value>>;

std::optional<double> constant_of(Value v) {
  while (v.node->op == Op::expand || v.node->op == Op::reshape) v = v.node->inputs[0];
  if (v.node->op != Op::scalar || is_complex(v.dtype())) return std::nullopt;
  return as_double(v.node->get<Scalar>(Attr::value));
}

// x + 0, x - 0, x * 1, x / 1 for floating types; -0.0 + 0.0 would change, so x + 0 only for the zero that keeps it.
Result simplify_arithmetic(const Node& n, std::span<const Value> in) {
  auto b = constant_of(in[1]);
  if (!b) return std::nullopt;
  bool neutral = (n.op == Op::mul || n.op == Op::div) ? *b == 1
                 : n.op == Op::sub                    ? (*b == 0 && !std::signbit(*b))
                                                      : n.op == Op::add && *b == 0 && (std::signbit(*b) || is_integral(in[0].dtype()));
  return neutral ? Result({in[0]}) : std::nullopt;
}

// A cast to a wider type that is cast back, and a cast of a cast that loses nothing on the way.
bool keeps_all(DType from, DType to) { return from == to || from == DType::b1 || holds_all(to, from); }

Result simplify_cast(GraphBuilder& b, const Node& n, Value x) {
  DType to = n.get<DType>(Attr::dtype);
  if (x.dtype() == to) return {{x}};
  if (x.node->op == Op::cast && keeps_all(x.node->inputs[0].dtype(), x.dtype())) return {{b.cast(x.node->inputs[0], to)}};
  if (x.node->op == Op::scalar) return {{b.cast(x, to)}};
  if (x.node->op == Op::expand || x.node->op == Op::reshape) {
    // Casting before repeating does the work once.
    Value inner = b.cast(x.node->inputs[0], to);
    return {{b.emit(x.node->op, {inner}, x.node->attrs)}};
  }
  return std::nullopt;
}

double computed(Op op, double a, double b) { return op == Op::add ? a + b : op == Op::sub ? a - b : op == Op::mul ? a * b : a / b; }

// A choice of two numbers, changed by a third: a choice of the two that come of it.
Result simplify_choice(GraphBuilder& b, const Node& n, std::span<const Value> in) {
  const DType t = in[0].dtype();
  if (in[0].node->op != Op::where || !is_floating(t)) return std::nullopt;
  const auto yes = constant_of(in[0].node->inputs[1]), no = constant_of(in[0].node->inputs[2]), number = constant_of(in[1]);
  if (!yes || !no || !number) return std::nullopt;
  auto of = [&](double choice) {
    const double exact = computed(n.op, rounded(choice, t), rounded(*number, t));  // of two floats: rounded twice it is what they give
    return b.full(in[0].shape(), rounded(exact, t), t, in[0].type().device);
  };
  return {{b.where(in[0].node->inputs[0], of(*yes), of(*no))}};
}

Result simplify_node(GraphBuilder& b, const Node& n, std::span<const Value> in) {
  switch (n.op) {
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::div: {
      auto simpler = simplify_arithmetic(n, in);
      return simpler ? simpler : simplify_choice(b, n, in);
    }
    case Op::cast: return simplify_cast(b, n, in[0]);
    case Op::reshape: return {{b.reshape(in[0], n.sizes(Attr::shape))}};
    case Op::permute: return {{b.permute(in[0], n.ints(Attr::dims))}};
    case Op::expand: return {{b.expand(in[0], n.sizes(Attr::shape))}};
    case Op::slice: return {{b.slice(in[0], n.sizes(Attr::starts), n.ints(Attr::steps), n.sizes(Attr::shape))}};
    case Op::cat: return in.size() == 1 ? Result({in[0]}) : std::nullopt;
    case Op::where: {
      auto c = constant_of(in[0]);
      return c ? Result({*c != 0 ? in[1] : in[2]}) : std::nullopt;
    }
    default: return std::nullopt;
  }
}

}  // namespace

Graph simplify(const Graph& graph, const PassContext&) { return rewrite(graph, simplify_node); }

}  // namespace broach
