#include "ir/floats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "ir/graph.h"
#include "support/error.h"

namespace broach {

namespace {

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

// False where Python raises an error instead.
bool compute(HostFloats::Op op, double a, double b, double& out) {
  using Op = HostFloats::Op;
  switch (op) {
    case Op::add: return out = a + b, true;
    case Op::sub: return out = a - b, true;
    case Op::mul: return out = a * b, true;
    case Op::div: return out = a / b, b != 0;
    case Op::pow: return out = std::pow(a, b), std::isfinite(out) || !std::isfinite(a) || !std::isfinite(b);
    case Op::neg: return out = -a, true;
    case Op::min: return out = std::min(a, b), true;
    default: return out = std::max(a, b), true;
  }
}

// Whether it, like all integers nearer to zero, is a double.
bool is_exact(int64_t i) { return i >= -(int64_t{1} << 53) && i <= int64_t{1} << 53; }

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kMost = std::numeric_limits<double>::max();

// Where exponentials overflow.
constexpr double kMostExponent = 709.782712893384, kMostOfSinh = 710.4758600739439;

constexpr HostFloats::Function kFunctions[] = {
    {"sqrt", "aten::sqrt", std::sqrt, 0, kInfinity, true, true},
    {"exp", "aten::exp", std::exp, -kInfinity, kMostExponent, true, true},
    {"expm1", "aten::expm1", std::expm1, -kInfinity, kMostExponent, true, true},
    {"log", "aten::log", std::log, 0, kInfinity, false, true},
    {"log2", "aten::log2", std::log2, 0, kInfinity, false, true},
    {"log10", "aten::log10", std::log10, 0, kInfinity, false, true},
    {"log1p", "aten::log1p", std::log1p, -1, kInfinity, false, true},
    {"sin", "aten::sin", std::sin, -kMost, kMost, true, true},
    {"cos", "aten::cos", std::cos, -kMost, kMost, true, true},
    {"tan", "aten::tan", std::tan, -kMost, kMost, true, true},
    {"asin", "aten::asin", std::asin, -1, 1, true, true},
    {"acos", "aten::acos", std::acos, -1, 1, true, true},
    {"atan", "aten::atan", std::atan, -kInfinity, kInfinity, true, true},
    {"sinh", "aten::sinh", std::sinh, -kMostOfSinh, kMostOfSinh, true, true},
    {"cosh", "aten::cosh", std::cosh, -kMostOfSinh, kMostOfSinh, true, true},
    {"tanh", "aten::tanh", std::tanh, -kInfinity, kInfinity, true, true},
    {"asinh", "aten::asinh", std::asinh, -kInfinity, kInfinity, true, true},
    {"acosh", "aten::acosh", std::acosh, 1, kInfinity, true, true},
    {"atanh", "aten::atanh", std::atanh, -1, 1, false, false},
    {"erf", "aten::erf", std::erf, -kInfinity, kInfinity, true, true},
    {"erfc", "aten::erfc", std::erfc, -kInfinity, kInfinity, true, true},
    {"fabs", "aten::abs", std::fabs, -kInfinity, kInfinity, true, true},
};

const char* sign_of(HostFloats::Op op) {
  static constexpr const char* names[] = {"", "", "", "", " + ", " - ", " * ", " / ", " ** ", "-", " min ", " max "};
  return names[static_cast<size_t>(op)];
}

}  // namespace

HostFloats::Id HostFloats::add(Node n) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& o = nodes_[i];
    if (o.op == n.op && o.a == n.a && o.b == n.b && o.index == n.index && o.expression == n.expression && same_bits(o.hint, n.hint))
      return static_cast<Id>(i);
  }
  nodes_.push_back(std::move(n));
  return static_cast<Id>(nodes_.size()) - 1;
}

HostFloats::Id HostFloats::given(size_t index, double hint) { return add({Op::given, -1, -1, hint, index, {}}); }
HostFloats::Id HostFloats::size(SymInt expression, int64_t hint, bool late) {
  check(is_exact(hint), "the program computes with ", hint, ", which is no floating point number");
  return add({Op::size, -1, -1, static_cast<double>(hint), 0, std::move(expression), late});
}
HostFloats::Id HostFloats::constant(double value) { return add({Op::constant, -1, -1, value, 0, {}}); }

HostFloats::Id HostFloats::element(double hint) { return add({Op::element, -1, -1, hint, nodes_.size(), {}, true}); }

HostFloats::Id HostFloats::compute(Op op, Id a, Id b) {
  double value = 0;
  bool deferred = is_deferred(a) || (b >= 0 && is_deferred(b));
  if (deferred && op == Op::div) ask(b, Relation::ne, constant(0));
  if (deferred && op == Op::pow) return power(a, b);
  check(broach::compute(op, hint(a), b < 0 ? 0 : hint(b), value), "the program divides a number by zero, or its power is none");
  return add({op, a, b, value, 0, {}, deferred});
}

// Of what is known only as it runs: of a positive base, and none that overflows, which is an error of Python's. Zero, as a rate of decay may
// be, has two powers.
HostFloats::Id HostFloats::power(Id a, Id b) {
  if (is_constant(a) && hint(a) == 0 && !std::signbit(hint(a))) {
    if (ask(constant(0), Relation::lt, b)) return constant(0);
    check(ask(b, Relation::eq, constant(0)), "a negative power of zero is computed");
    return constant(1);
  }
  check(is_constant(a) ? hint(a) > 0 : ask(constant(0), Relation::lt, a), "a power of an element of a tensor that may be none is computed");
  const Id result = add({Op::pow, a, b, std::pow(hint(a), hint(b)), 0, {}, true});
  const bool is_root = is_constant(b) && hint(b) >= 0 && hint(b) <= 1;
  // Of a fraction it cannot where the exponent is no negative one, which all powers with that exponent share.
  const bool shrinks = is_constant(a) && hint(a) <= 1 && hint(b) >= 0 && ask(constant(0), Relation::le, b);
  check(is_root || shrinks || ask(result, Relation::le, constant(kMost)), "a power of an element of a tensor overflows");
  return result;
}

std::span<const HostFloats::Function> HostFloats::functions() { return kFunctions; }

std::optional<HostFloats::Id> HostFloats::apply(size_t function, Id a) {
  const Function& f = kFunctions[function];
  // What is no number fulfils no comparison, and gives no number.
  bool bounded = f.low > -kInfinity || f.high < kInfinity;
  if (bounded && std::isnan(hint(a))) {
    ask(a, Relation::ne, a);
  } else if (bounded) {
    if (f.low > -kInfinity && !ask(constant(f.low), f.has_low ? Relation::le : Relation::lt, a)) return std::nullopt;
    if (f.high < kInfinity && !ask(a, f.has_high ? Relation::le : Relation::lt, constant(f.high))) return std::nullopt;
  }
  return add({Op::function, a, -1, f.value(hint(a)), function, {}, is_deferred(a)});
}

bool HostFloats::ask(Id a, Relation relation, Id b) {
  Guard g{a, b, relation, holds(hint(a), relation, hint(b))};
  auto known = [&](const Guard& o) { return o.a == a && o.b == b && o.relation == relation; };
  if (std::none_of(guards_.begin(), guards_.end(), known)) guards_.push_back(g);
  return g.answer;
}

std::vector<HostFloats::Decision> HostFloats::deferred() const {
  std::vector<Decision> out;
  std::copy_if(guards_.begin(), guards_.end(), std::back_inserter(out),
               [this](const Guard& g) { return is_deferred(g.a) || (g.b >= 0 && is_deferred(g.b)); });
  return out;
}

double HostFloats::fix(Id id) {
  const Node n = node(id);
  if (n.op == Op::size) return n.hint;
  check(!n.deferred, "the program wants an element of a tensor as a plain number");
  auto known = [&](const Guard& g) { return g.a == id && g.b < 0; };
  if (n.op == Op::given && std::none_of(guards_.begin(), guards_.end(), known)) guards_.push_back({id, -1, Relation::eq, true});
  for (Id operand : {n.a, n.b})
    if (operand >= 0) fix(operand);
  return n.hint;
}

std::vector<SymInt> HostFloats::sizes_behind(Id id) const {
  const Node& n = nodes_[static_cast<size_t>(id)];
  if (n.op == Op::size) return {n.expression};
  std::vector<SymInt> out;
  for (Id operand : {n.a, n.b})
    if (operand >= 0)
      for (SymInt& e : sizes_behind(operand)) out.push_back(std::move(e));
  return out;
}

bool HostFloats::evaluate(std::span<const double> given, std::span<const int64_t> symbols, std::vector<double>& values,
                          std::string* why) const {
  values.resize(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (n.deferred) continue;
    if (n.op == Op::given) values[i] = given[n.index];
    else if (n.op == Op::size) {
      const int64_t size = n.expression.eval(symbols);
      values[i] = static_cast<double>(size);
      if (!is_exact(size)) {
        if (why) *why = cat("the program computes with ", size, ", which is no floating point number");
        return false;
      }
    } else if (n.op == Op::constant) values[i] = n.hint;
    else if (n.op == Op::function) values[i] = kFunctions[n.index].value(values[static_cast<size_t>(n.a)]);
    else if (!broach::compute(n.op, values[static_cast<size_t>(n.a)], n.b < 0 ? 0 : values[static_cast<size_t>(n.b)], values[i])) {
      if (why) *why = cat("the program computes ", text(static_cast<Id>(i)), ", which is an error now");
      return false;
    }
  }
  for (const Guard& g : guards_) {
    if (is_deferred(g.a) || (g.b >= 0 && is_deferred(g.b))) continue;
    double a = values[static_cast<size_t>(g.a)];
    if (g.b < 0 ? same_bits(a, hint(g.a)) : holds(a, g.relation, values[static_cast<size_t>(g.b)]) == g.answer) continue;
    if (why) *why = cat("the program found ", text(g), ", which does not hold");
    return false;
  }
  return true;
}

std::string HostFloats::text(Id id) const {
  const Node& n = nodes_[static_cast<size_t>(id)];
  if (n.op == Op::given) return cat("number ", n.index);
  if (n.op == Op::size) return n.expression.str();
  if (n.op == Op::element) return cat("element ", n.index);
  if (n.op == Op::constant) return str(Scalar(n.hint));
  if (n.op == Op::function) return cat(kFunctions[n.index].name, "(", text(n.a), ")");
  if (n.op == Op::neg) return cat("-(", text(n.a), ")");
  return cat("(", text(n.a), sign_of(n.op), text(n.b), ")");
}

std::string HostFloats::text(const Guard& g) const {
  if (g.b < 0) return cat(text(g.a), " == ", str(Scalar(hint(g.a))));
  return cat(g.answer ? "" : "not ", text(g.a), " ", broach::name_of(g.relation), " ", text(g.b));
}

namespace {

constexpr const char* kNames[] = {"given", "size", "constant", "element", "add", "sub", "mul", "div", "pow", "neg", "min", "max"};

}  // namespace

const char* HostFloats::name_of(Op op) { return op == Op::function ? "function" : kNames[static_cast<size_t>(op)]; }

std::optional<HostFloats::Op> HostFloats::find_op(std::string_view name) {
  auto it = std::find(std::begin(kNames), std::end(kNames), name);
  return it == std::end(kNames) ? std::nullopt : std::optional(static_cast<Op>(it - kNames));
}

void HostFloats::restore(const Step& s, double hint, bool late) {
  bool deferred = late || s.op == Op::element || (s.a >= 0 && is_deferred(s.a)) || (s.b >= 0 && is_deferred(s.b));
  nodes_.push_back({s.op, s.a, s.b, hint, s.function, s.size, deferred});
}

std::vector<std::string> HostFloats::text() const {
  std::vector<std::string> out;
  for (const Guard& g : guards_)
    if (!is_deferred(g.a) && (g.b < 0 || !is_deferred(g.b))) out.push_back(text(g));
  return out;
}

}  // namespace broach
