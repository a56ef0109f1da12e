#include "ir/symint.h"

#include <algorithm>
#include <cctype>

#include "support/error.h"

namespace broach {

namespace {

std::strong_ordering compare_atoms(const Atom& a, const Atom& b) {
  if (auto c = a.kind <=> b.kind; c != 0) return c;
  if (a.kind == AtomKind::symbol) return a.symbol <=> b.symbol;
  if (a.args == b.args) return std::strong_ordering::equal;
  if (auto c = compare(a.args->first, b.args->first); c != 0) return c;
  return compare(a.args->second, b.args->second);
}

std::strong_ordering compare_factors(const std::vector<Atom>& a, const std::vector<Atom>& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (auto c = compare_atoms(a[i], b[i]); c != 0) return c;
  return a.size() <=> b.size();
}

bool atom_less(const Atom& a, const Atom& b) { return compare_atoms(a, b) < 0; }
bool term_less(const Term& a, const Term& b) { return compare_factors(a.factors, b.factors) < 0; }

SymInt atom(AtomKind kind, const SymInt& a, const SymInt& b);

int64_t floordiv(int64_t a, int64_t b) {
  check(b != 0, "symbolic integer: division of ", a, " by zero");
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

}  // namespace

// Sorts, merges equal terms, drops zeros, and joins k*mod(x, c) + k*c*floordiv(x, c) into k*x.
SymInt from_terms(int64_t constant, std::vector<Term> terms) {
  std::sort(terms.begin(), terms.end(), term_less);
  std::vector<Term> merged;
  for (auto& t : terms) {
    if (!merged.empty() && compare_factors(merged.back().factors, t.factors) == 0)
      merged.back().coefficient += t.coefficient;
    else
      merged.push_back(std::move(t));
  }
  std::erase_if(merged, [](const Term& t) { return t.coefficient == 0; });
  SymInt result(constant);
  if (merged.empty()) return result;
  for (size_t i = 0; i < merged.size(); ++i) {
    const auto& factors = merged[i].factors;
    if (factors.size() != 1 || factors[0].kind != AtomKind::mod) continue;
    const auto& [x, c] = *factors[0].args;
    SymInt partner = SymInt(merged[i].coefficient) * c * atom(AtomKind::floordiv, x, c);
    if (partner.terms().size() != 1 || partner.constant_part() != 0) continue;
    const Term& want = partner.terms()[0];
    for (size_t j = 0; j < merged.size(); ++j) {
      if (merged[j].coefficient != want.coefficient || compare_factors(merged[j].factors, want.factors) != 0) continue;
      SymInt joined = SymInt(merged[i].coefficient) * x;
      std::vector<Term> rest;
      for (size_t k = 0; k < merged.size(); ++k)
        if (k != i && k != j) rest.push_back(merged[k]);
      return from_terms(constant, std::move(rest)) + joined;
    }
  }
  result.terms_ = std::make_shared<const std::vector<Term>>(std::move(merged));
  return result;
}

SymInt SymInt::symbol(SymbolId id) { return from_terms(0, {Term{1, {Atom{AtomKind::symbol, id, nullptr}}}}); }

int64_t SymInt::constant() const {
  check(is_constant(), "symbolic integer ", str(), " is used where a constant is needed");
  return constant_;
}

std::span<const Term> SymInt::terms() const { return terms_ ? std::span<const Term>(*terms_) : std::span<const Term>(); }

std::optional<SymbolId> SymInt::as_symbol() const {
  if (!terms_ || constant_ != 0 || terms_->size() != 1) return std::nullopt;
  const Term& t = terms_->front();
  if (t.coefficient != 1 || t.factors.size() != 1 || t.factors[0].kind != AtomKind::symbol) return std::nullopt;
  return t.factors[0].symbol;
}

void SymInt::collect_symbols(std::vector<SymbolId>& out) const {
  for (const Term& t : terms())
    for (const Atom& a : t.factors) {
      if (a.kind == AtomKind::symbol) {
        out.push_back(a.symbol);
      } else {
        a.args->first.collect_symbols(out);
        a.args->second.collect_symbols(out);
      }
    }
}

bool SymInt::contains(SymbolId id) const {
  std::vector<SymbolId> symbols;
  collect_symbols(symbols);
  return std::find(symbols.begin(), symbols.end(), id) != symbols.end();
}

std::strong_ordering compare(const SymInt& a, const SymInt& b) {
  if (a.terms_ != b.terms_) {
    auto ta = a.terms(), tb = b.terms();
    for (size_t i = 0; i < std::min(ta.size(), tb.size()); ++i) {
      if (auto c = compare_factors(ta[i].factors, tb[i].factors); c != 0) return c;
      if (auto c = ta[i].coefficient <=> tb[i].coefficient; c != 0) return c;
    }
    if (auto c = ta.size() <=> tb.size(); c != 0) return c;
  }
  return a.constant_ <=> b.constant_;
}

SymInt operator+(const SymInt& a, const SymInt& b) {
  if (b.is_constant() || a.is_constant()) {
    SymInt r = a.is_constant() ? b : a;
    r.constant_ = a.constant_ + b.constant_;
    return r;
  }
  std::vector<Term> terms(a.terms_->begin(), a.terms_->end());
  terms.insert(terms.end(), b.terms_->begin(), b.terms_->end());
  return from_terms(a.constant_ + b.constant_, std::move(terms));
}

SymInt operator-(const SymInt& a, const SymInt& b) { return a + SymInt(-1) * b; }

SymInt operator*(const SymInt& a, const SymInt& b) {
  if (a.is_constant() && b.is_constant()) return a.constant_ * b.constant_;
  if (a == SymInt(1)) return b;
  if (b == SymInt(1)) return a;
  std::vector<Term> terms;
  auto multiply = [&](int64_t ca, const std::vector<Atom>& fa, int64_t cb, const std::vector<Atom>& fb) {
    Term t{ca * cb, fa};
    t.factors.insert(t.factors.end(), fb.begin(), fb.end());
    std::sort(t.factors.begin(), t.factors.end(), atom_less);
    terms.push_back(std::move(t));
  };
  for (const Term& x : a.terms()) {
    for (const Term& y : b.terms()) multiply(x.coefficient, x.factors, y.coefficient, y.factors);
    multiply(x.coefficient, x.factors, b.constant_, {});
  }
  for (const Term& y : b.terms()) multiply(a.constant_, {}, y.coefficient, y.factors);
  return from_terms(a.constant_ * b.constant_, std::move(terms));
}

namespace {

SymInt atom(AtomKind kind, const SymInt& a, const SymInt& b) {
  return from_terms(0, {Term{1, {Atom{kind, 0, std::make_shared<const std::pair<SymInt, SymInt>>(a, b)}}}});
}

// The quotient of a term by a monomial, if it divides.
std::optional<Term> divide(const Term& t, const Term& by) {
  if (t.coefficient % by.coefficient != 0) return std::nullopt;
  Term q{t.coefficient / by.coefficient, t.factors};
  for (const Atom& f : by.factors) {
    auto it = std::find_if(q.factors.begin(), q.factors.end(), [&](const Atom& g) { return compare_atoms(f, g) == 0; });
    if (it == q.factors.end()) return std::nullopt;
    q.factors.erase(it);
  }
  return q;
}

// a = b * quotient + rest, with as much in the quotient as divides term by term.
std::pair<SymInt, SymInt> split_by(const SymInt& a, const SymInt& b) {
  SymInt quotient(0), rest(0);
  if (b.is_constant()) {
    int64_t d = b.constant();
    check(d != 0, "symbolic integer: division of ", a, " by zero");
    int64_t q = floordiv(a.constant_part(), d);
    quotient = q;
    rest = a.constant_part() - q * d;
    for (const Term& t : a.terms())
      if (t.coefficient % d == 0)
        quotient = quotient + from_terms(0, {Term{t.coefficient / d, t.factors}});
      else
        rest = rest + from_terms(0, {t});
    return {quotient, rest};
  }
  if (a == b) return {1, 0};
  if (b.constant_part() != 0 || b.terms().size() != 1) return {0, a};
  rest = a.constant_part();
  for (const Term& t : a.terms()) {
    if (auto q = divide(t, b.terms()[0]))
      quotient = quotient + (q->factors.empty() ? SymInt(q->coefficient) : from_terms(0, {*q}));
    else
      rest = rest + from_terms(0, {t});
  }
  return {quotient, rest};
}

// A constant in [0, b) leaves nothing behind when b is a positive constant; with symbols it stays.
bool is_zero_quotient(const SymInt& rest, const SymInt& b) {
  if (rest == SymInt(0)) return true;
  return rest.is_constant() && b.is_constant() && rest.constant() >= 0 && rest.constant() < b.constant();
}

}  // namespace

SymInt floordiv(const SymInt& a, const SymInt& b) {
  if (b == SymInt(1)) return a;
  auto [quotient, rest] = split_by(a, b);
  if (is_zero_quotient(rest, b)) return quotient;
  // floordiv(floordiv(x, c), d) = floordiv(x, c*d) for positive c and d.
  if (quotient == SymInt(0) && rest.constant_part() == 0 && rest.terms().size() == 1) {
    const Term& t = rest.terms()[0];
    if (t.coefficient == 1 && t.factors.size() == 1 && t.factors[0].kind == AtomKind::floordiv)
      return floordiv(t.factors[0].args->first, t.factors[0].args->second * b);
  }
  return quotient + atom(AtomKind::floordiv, rest, b);
}

SymInt mod(const SymInt& a, const SymInt& b) {
  if (b == SymInt(1)) return 0;
  SymInt rest = split_by(a, b).second;
  if (is_zero_quotient(rest, b)) return rest;
  return atom(AtomKind::mod, rest, b);
}

SymInt min(const SymInt& a, const SymInt& b) {
  if (auto d = (a - b).maybe_constant()) return *d <= 0 ? a : b;
  return compare(a, b) < 0 ? atom(AtomKind::min, a, b) : atom(AtomKind::min, b, a);
}

SymInt max(const SymInt& a, const SymInt& b) {
  if (auto d = (a - b).maybe_constant()) return *d >= 0 ? a : b;
  return compare(a, b) < 0 ? atom(AtomKind::max, a, b) : atom(AtomKind::max, b, a);
}

SymInt product(std::span<const SymInt> factors) {
  SymInt p(1);
  for (const auto& f : factors) p = p * f;
  return p;
}

namespace {

SymInt apply(AtomKind kind, const SymInt& a, const SymInt& b) {
  switch (kind) {
    case AtomKind::floordiv: return floordiv(a, b);
    case AtomKind::mod: return mod(a, b);
    case AtomKind::min: return min(a, b);
    default: return max(a, b);
  }
}

}  // namespace

SymInt SymInt::substitute(const std::function<std::optional<SymInt>(SymbolId)>& replacement) const {
  if (is_constant()) return *this;
  SymInt sum(constant_);
  for (const Term& t : terms()) {
    SymInt p(t.coefficient);
    for (const Atom& a : t.factors) {
      if (a.kind == AtomKind::symbol)
        p = p * replacement(a.symbol).value_or(SymInt::symbol(a.symbol));
      else
        p = p * apply(a.kind, a.args->first.substitute(replacement), a.args->second.substitute(replacement));
    }
    sum = sum + p;
  }
  return sum;
}

int64_t SymInt::eval(const std::function<int64_t(SymbolId)>& values) const {
  int64_t sum = constant_;
  for (const Term& t : terms()) {
    int64_t p = t.coefficient;
    for (const Atom& a : t.factors) {
      if (a.kind == AtomKind::symbol)
        p *= values(a.symbol);
      else
        p *= apply(a.kind, a.args->first.eval(values), a.args->second.eval(values)).constant();
    }
    sum += p;
  }
  return sum;
}

int64_t SymInt::eval(std::span<const int64_t> values) const {
  if (is_constant()) return constant_;
  return eval([&](SymbolId id) {
    check(id < values.size(), "symbol s", id, " has no value");
    return values[id];
  });
}

std::optional<std::pair<SymInt, SymInt>> SymInt::linear_in(SymbolId id) const {
  SymInt coefficient(0), rest(constant_);
  for (const Term& t : terms()) {
    int count = 0;
    Term without{t.coefficient, {}};
    for (const Atom& a : t.factors) {
      if (a.kind == AtomKind::symbol && a.symbol == id) {
        ++count;
        continue;
      }
      if (a.kind != AtomKind::symbol && (a.args->first.contains(id) || a.args->second.contains(id))) return std::nullopt;
      without.factors.push_back(a);
    }
    if (count > 1) return std::nullopt;
    SymInt value = without.factors.empty() ? SymInt(without.coefficient) : from_terms(0, {without});
    (count ? coefficient : rest) = (count ? coefficient : rest) + value;
  }
  return std::pair(coefficient, rest);
}

size_t SymInt::hash() const {
  size_t h = std::hash<int64_t>()(constant_);
  auto mix = [&h](size_t v) { h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2); };
  for (const Term& t : terms()) {
    mix(std::hash<int64_t>()(t.coefficient));
    for (const Atom& a : t.factors) {
      mix(static_cast<size_t>(a.kind));
      if (a.kind == AtomKind::symbol) {
        mix(a.symbol);
      } else {
        mix(a.args->first.hash());
        mix(a.args->second.hash());
      }
    }
  }
  return h;
}

// ---- text ----

namespace {

constexpr const char* kAtomNames[] = {"", "floordiv", "mod", "min", "max"};

std::string text_of(const Atom& a) {
  if (a.kind == AtomKind::symbol)
    return a.symbol >= kFirstAxis ? cat("i", a.symbol - kFirstAxis) : cat("s", a.symbol);
  return cat(kAtomNames[static_cast<int>(a.kind)], "(", a.args->first, ", ", a.args->second, ")");
}

// expression := [-] term {(+|-) term};  term := factor {* factor};  factor := number | symbol | name(e, e) | (e)
struct SymIntParser {
  std::string_view text;
  size_t at = 0;

  void skip() { while (at < text.size() && text[at] == ' ') ++at; }
  bool accept(char c) {
    skip();
    if (at >= text.size() || text[at] != c) return false;
    ++at;
    return true;
  }
  void expect(char c) { check(accept(c), "symbolic integer: expected '", c, "' at ", at, " in \"", text, "\""); }

  SymInt expression() {
    SymInt sum = accept('-') ? SymInt(-1) * term() : term();
    for (;;) {
      if (accept('+')) sum = sum + term();
      else if (accept('-')) sum = sum - term();
      else return sum;
    }
  }
  SymInt term() {
    SymInt p = factor();
    while (accept('*')) p = p * factor();
    return p;
  }
  int64_t number() {
    size_t start = at;
    while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
    check(at > start, "symbolic integer: expected a number at ", at, " in \"", text, "\"");
    return std::stoll(std::string(text.substr(start, at - start)));
  }
  SymInt factor() {
    skip();
    if (accept('(')) {
      SymInt e = expression();
      expect(')');
      return e;
    }
    for (int kind = 1; kind <= 4; ++kind) {
      std::string_view name = kAtomNames[kind];
      if (text.substr(at, name.size()) != name) continue;
      at += name.size();
      expect('(');
      SymInt a = expression();
      expect(',');
      SymInt b = expression();
      expect(')');
      return apply(static_cast<AtomKind>(kind), a, b);
    }
    if (accept('s')) return SymInt::symbol(static_cast<SymbolId>(number()));
    if (accept('i')) return SymInt::symbol(kFirstAxis + static_cast<SymbolId>(number()));
    return number();
  }
};

}  // namespace

std::string SymInt::str() const {
  std::string out;
  for (const Term& t : terms()) {
    int64_t c = t.coefficient;
    out += out.empty() ? (c < 0 ? "-" : "") : (c < 0 ? " - " : " + ");
    int64_t magnitude = c < 0 ? -c : c;
    if (magnitude != 1) out += cat(magnitude, "*");
    for (size_t i = 0; i < t.factors.size(); ++i) out += (i ? "*" : "") + text_of(t.factors[i]);
  }
  if (out.empty()) return std::to_string(constant_);
  if (constant_ > 0) out += cat(" + ", constant_);
  if (constant_ < 0) out += cat(" - ", -constant_);
  return out;
}

SymInt SymInt::parse(std::string_view text) {
  SymIntParser p{text};
  SymInt e = p.expression();
  p.skip();
  check(p.at == text.size(), "symbolic integer: trailing text at ", p.at, " in \"", text, "\"");
  return e;
}

// ---- ranges ----

namespace {

// An expression in unbounded symbols only that is nowhere below (want_max) or above (!want_max) the atom.
SymInt bound_of(const Atom& a, bool want_max, const Ranges& ranges);

// Every atom is non-negative, so a term grows with each of its factors when its coefficient is positive.
SymInt bound_of(const SymInt& e, bool want_max, const Ranges& ranges) {
  SymInt sum(e.constant_part());
  for (const Term& t : e.terms()) {
    SymInt p(t.coefficient);
    for (const Atom& a : t.factors) p = p * bound_of(a, want_max == (t.coefficient > 0), ranges);
    sum = sum + p;
  }
  return sum;
}

SymInt bound_of(const Atom& a, bool want_max, const Ranges& ranges) {
  if (a.kind == AtomKind::symbol) {
    auto it = ranges.find(a.symbol);
    if (it != ranges.end() && want_max && it->second.max) return bound_of(*it->second.max, true, ranges);
    if (it != ranges.end() && !want_max && it->second.max) return it->second.min;
    return SymInt::symbol(a.symbol);
  }
  const auto& [x, y] = *a.args;
  switch (a.kind) {
    case AtomKind::floordiv:
      if (!y.is_constant()) return want_max ? bound_of(x, true, ranges) : SymInt(0);
      return floordiv(bound_of(x, want_max, ranges), y);
    case AtomKind::mod: return want_max ? bound_of(y, true, ranges) - 1 : SymInt(0);
    case AtomKind::min: return want_max ? bound_of(x, true, ranges) : SymInt(0);
    default: return want_max ? bound_of(x, true, ranges) + bound_of(y, true, ranges) : bound_of(x, false, ranges);
  }
}

}  // namespace

bool proven_non_negative(const SymInt& a, const Ranges& ranges) {
  SymInt low = bound_of(a, false, ranges);
  // Shift every remaining symbol by its minimum: non-negative coefficients then mean a non-negative value.
  low = low.substitute([&](SymbolId id) -> std::optional<SymInt> {
    auto it = ranges.find(id);
    if (it == ranges.end() || it->second.min == 0) return std::nullopt;
    return SymInt::symbol(id) + it->second.min;
  });
  if (low.constant_part() < 0) return false;
  for (const Term& t : low.terms())
    if (t.coefficient < 0) return false;
  return true;
}

namespace {

SymInt simplify_atom(const Atom& a, const Ranges& ranges) {
  SymInt x = simplify(a.args->first, ranges), y = simplify(a.args->second, ranges);
  switch (a.kind) {
    case AtomKind::floordiv:
    case AtomKind::mod: {
      auto [quotient, rest] = split_by(x, y);
      bool small = proven_non_negative(rest, ranges) && proven_non_negative(y - 1 - rest, ranges);
      if (a.kind == AtomKind::mod) return small ? rest : mod(rest, y);
      return small ? quotient : floordiv(x, y);
    }
    case AtomKind::min:
      if (proven_non_negative(y - x, ranges)) return x;
      return proven_non_negative(x - y, ranges) ? y : min(x, y);
    default:
      if (proven_non_negative(x - y, ranges)) return x;
      return proven_non_negative(y - x, ranges) ? y : max(x, y);
  }
}

}  // namespace

SymInt simplify(const SymInt& a, const Ranges& ranges) {
  SymInt sum(a.constant_part());
  for (const Term& t : a.terms()) {
    SymInt p(t.coefficient);
    for (const Atom& f : t.factors)
      p = p * (f.kind == AtomKind::symbol ? SymInt::symbol(f.symbol) : simplify_atom(f, ranges));
    sum = sum + p;
  }
  return sum;
}

}  // namespace broach
