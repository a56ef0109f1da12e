#include "ir/symint.h"

#include <algorithm>
#include <cctype>
#include <charconv>

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

int64_t plus(int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) throw OutOfRange(cat("symbolic integer: ", a, " + ", b, " overflows"));
  return sum;
}

int64_t times(int64_t a, int64_t b) {
  int64_t p;
  if (__builtin_mul_overflow(a, b, &p)) throw OutOfRange(cat("symbolic integer: ", a, " * ", b, " overflows"));
  return p;
}

int64_t floordiv(int64_t a, int64_t b) {
  if (b == 0) throw OutOfRange(cat("symbolic integer: division of ", a, " by zero"));
  if (b == -1) return times(a, -1);
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
      merged.back().coefficient = plus(merged.back().coefficient, t.coefficient);
    else merged.push_back(std::move(t));
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

size_t SymInt::atoms() const {
  size_t n = 0;
  for (const Term& t : terms())
    for (const Atom& a : t.factors) n += 1 + (a.args ? a.args->first.atoms() + a.args->second.atoms() : 0);
  return n;
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
    r.constant_ = plus(a.constant_, b.constant_);
    return r;
  }
  std::vector<Term> terms(a.terms_->begin(), a.terms_->end());
  terms.insert(terms.end(), b.terms_->begin(), b.terms_->end());
  return from_terms(plus(a.constant_, b.constant_), std::move(terms));
}

SymInt operator-(const SymInt& a, const SymInt& b) { return a + SymInt(-1) * b; }

SymInt operator*(const SymInt& a, const SymInt& b) {
  if (a.is_constant() && b.is_constant()) return times(a.constant_, b.constant_);
  if (a == SymInt(1)) return b;
  if (b == SymInt(1)) return a;
  std::vector<Term> terms;
  auto multiply = [&](int64_t ca, const std::vector<Atom>& fa, int64_t cb, const std::vector<Atom>& fb) {
    Term t{times(ca, cb), fa};
    t.factors.insert(t.factors.end(), fb.begin(), fb.end());
    std::sort(t.factors.begin(), t.factors.end(), atom_less);
    terms.push_back(std::move(t));
  };
  for (const Term& x : a.terms()) {
    for (const Term& y : b.terms()) multiply(x.coefficient, x.factors, y.coefficient, y.factors);
    multiply(x.coefficient, x.factors, b.constant_, {});
  }
  for (const Term& y : b.terms()) multiply(a.constant_, {}, y.coefficient, y.factors);
  return from_terms(times(a.constant_, b.constant_), std::move(terms));
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
      if (t.coefficient % d == 0) quotient = quotient + from_terms(0, {Term{t.coefficient / d, t.factors}});
      else rest = rest + from_terms(0, {t});
    return {quotient, rest};
  }
  if (a == b) return {1, 0};
  if (b.constant_part() != 0 || b.terms().size() != 1) return {0, a};
  rest = a.constant_part();
  for (const Term& t : a.terms()) {
    if (auto q = divide(t, b.terms()[0])) quotient = quotient + (q->factors.empty() ? SymInt(q->coefficient) : from_terms(0, {*q}));
    else rest = rest + from_terms(0, {t});
  }
  return {quotient, rest};
}

bool may_be_positive(const SymInt& e) { return !e.is_constant() || e.constant() > 0; }

}  // namespace

SymInt floordiv(const SymInt& a, const SymInt& b) {
  if (a.is_constant() && b.is_constant()) return floordiv(a.constant(), b.constant());
  auto [quotient, rest] = split_by(a, b);
  if (rest == SymInt(0)) return quotient;
  if (rest.is_constant() && b.is_constant()) return quotient + floordiv(rest.constant(), b.constant());
  // floordiv(floordiv(x, c), d) = floordiv(x, c*d) for positive c and d.
  if (may_be_positive(b) && rest.constant_part() == 0 && rest.terms().size() == 1) {
    const Term& t = rest.terms()[0];
    if (t.coefficient == 1 && t.factors.size() == 1 && t.factors[0].kind == AtomKind::floordiv)
      if (const auto& [x, c] = *t.factors[0].args; may_be_positive(c)) return quotient + floordiv(x, c * b);
  }
  return quotient + atom(AtomKind::floordiv, rest, b);
}

SymInt mod(const SymInt& a, const SymInt& b) {
  SymInt rest = split_by(a, b).second;
  if (rest == SymInt(0)) return rest;
  if (rest.is_constant() && b.is_constant()) return rest - floordiv(rest, b) * b;
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
      if (a.kind == AtomKind::symbol) p = p * replacement(a.symbol).value_or(SymInt::symbol(a.symbol));
      else p = p * apply(a.kind, a.args->first.substitute(replacement), a.args->second.substitute(replacement));
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
      if (a.kind == AtomKind::symbol) p = times(p, values(a.symbol));
      else p = times(p, apply(a.kind, a.args->first.eval(values), a.args->second.eval(values)).constant());
    }
    sum = plus(sum, p);
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

std::optional<std::pair<SymInt, SymInt>> SymInt::linear_in(const Atom& atom) const {
  SymInt coefficient(0), rest(constant_);
  for (const Term& t : terms()) {
    Term without{t.coefficient, {}};
    std::copy_if(t.factors.begin(), t.factors.end(), std::back_inserter(without.factors),
                 [&](const Atom& a) { return compare_atoms(a, atom) != 0; });
    size_t count = t.factors.size() - without.factors.size();
    if (count > 1) return std::nullopt;
    SymInt& into = count ? coefficient : rest;
    into = into + (without.factors.empty() ? SymInt(without.coefficient) : from_terms(0, {without}));
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
  if (a.kind == AtomKind::symbol) return a.symbol >= kFirstAxis ? cat("i", a.symbol - kFirstAxis) : cat("s", a.symbol);
  return cat(kAtomNames[static_cast<int>(a.kind)], "(", a.args->first, ", ", a.args->second, ")");
}

// expression := [-] term {(+|-) term};  term := factor {* factor};  factor := number | symbol | name(e, e) | (e)
struct SymIntParser {
  std::string_view text;
  size_t at = 0;

  void skip() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  bool accept(char c) {
    skip();
    if (at >= text.size() || text[at] != c) return false;
    ++at;
    return true;
  }
  void expect(char c) { check(accept(c), "symbolic integer: expected '", c, "' at ", at, " in \"", text, "\""); }

  SymInt expression() {
    SymInt sum = term(accept('-'));
    for (;;) {
      if (accept('+')) sum = sum + term(false);
      else if (accept('-')) sum = sum + term(true);
      else return sum;
    }
  }
  SymInt term(bool negative) {
    SymInt p = factor(negative);
    while (accept('*')) p = p * factor(false);
    return p;
  }
  int64_t number(bool negative) {
    size_t start = at;
    while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
    check(at > start, "symbolic integer: expected a number at ", at, " in \"", text, "\"");
    uint64_t value = 0;
    bool fits = std::from_chars(text.data() + start, text.data() + at, value).ec == std::errc() && value < (1ull << 63) + negative;
    check(fits, "symbolic integer: a number out of range at ", start, " in \"", text, "\"");
    return static_cast<int64_t>(negative ? 0 - value : value);
  }
  SymbolId id() { return static_cast<SymbolId>(number(false)); }
  SymInt factor(bool negative) {
    skip();
    bool digit = at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]));
    if (digit || !negative) return digit ? number(negative) : factor();
    return SymInt(-1) * factor();
  }
  SymInt factor() {
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
    if (accept('s')) return SymInt::symbol(id());
    if (accept('i')) return SymInt::symbol(kFirstAxis + id());
    return number(false);
  }
};

}  // namespace

std::string SymInt::str() const {
  std::string out;
  for (const Term& t : terms()) {
    int64_t c = t.coefficient;
    out += out.empty() ? (c < 0 ? "-" : "") : (c < 0 ? " - " : " + ");
    uint64_t magnitude = c < 0 ? 0 - static_cast<uint64_t>(c) : static_cast<uint64_t>(c);
    if (magnitude != 1) out += cat(magnitude, "*");
    for (size_t i = 0; i < t.factors.size(); ++i) out += (i ? "*" : "") + text_of(t.factors[i]);
  }
  if (out.empty()) return std::to_string(constant_);
  if (constant_ > 0) out += cat(" + ", constant_);
  if (constant_ < 0) out += cat(" - ", 0 - static_cast<uint64_t>(constant_));  // also for the lowest
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

// Bounds are expressions in unbounded symbols; nothing where none is known. Divisors are taken to be positive.
struct Bounds {
  const Ranges& ranges;
  bool second;  // which operand stands for a min from above and for a max from below: either is right, one may prove more

  std::optional<SymInt> of(const SymInt& e, bool above) const;
  std::optional<SymInt> of(const Term& t, bool above) const;
  std::optional<SymInt> of(const Atom& a, bool above) const;
  std::optional<SymInt> of_symbol(SymbolId id, bool above) const;
  bool non_negative(const Atom& a) const;
};

// Non-negative for all non-negative values of its symbols, as its coefficients show.
bool plainly_non_negative(const SymInt& e);

bool plainly_non_negative(const Atom& a) {
  switch (a.kind) {
    case AtomKind::symbol: return true;
    case AtomKind::max: return plainly_non_negative(a.args->first) || plainly_non_negative(a.args->second);
    case AtomKind::mod: return plainly_non_negative(a.args->second);
    default: return plainly_non_negative(a.args->first) && plainly_non_negative(a.args->second);
  }
}

bool plainly_non_negative(const SymInt& e) {
  if (e.constant_part() < 0) return false;
  for (const Term& t : e.terms()) {
    if (t.coefficient < 0) return false;
    for (const Atom& a : t.factors)
      if (!plainly_non_negative(a)) return false;
  }
  return true;
}

bool Bounds::non_negative(const Atom& a) const {
  if (a.kind == AtomKind::symbol) {
    auto it = ranges.find(a.symbol);
    return it == ranges.end() || it->second.min >= 0;
  }
  const auto& [x, y] = *a.args;
  switch (a.kind) {
    case AtomKind::floordiv: return proven_non_negative(x, ranges);
    case AtomKind::mod: return !y.is_constant() || y.constant() > 0;
    case AtomKind::min: return proven_non_negative(x, ranges) && proven_non_negative(y, ranges);
    default: return proven_non_negative(x, ranges) || proven_non_negative(y, ranges);
  }
}

std::optional<SymInt> Bounds::of(const SymInt& e, bool above) const {
  SymInt sum(e.constant_part());
  for (const Term& t : e.terms()) {
    auto bound = of(t, above);
    if (!bound) return std::nullopt;
    sum = sum + *bound;
  }
  return sum;
}

// A product grows with each of its factors if all of them are non-negative.
std::optional<SymInt> Bounds::of(const Term& t, bool above) const {
  bool factors_above = above == (t.coefficient > 0);
  SymInt p(t.coefficient);
  for (const Atom& a : t.factors) {
    if (t.factors.size() > 1 && !non_negative(a)) return std::nullopt;
    auto bound = of(a, factors_above);
    if (!bound) return std::nullopt;
    p = p * (t.factors.size() > 1 && !factors_above && !plainly_non_negative(*bound) ? SymInt(0) : *bound);
  }
  return p;
}

std::optional<SymInt> Bounds::of_symbol(SymbolId id, bool above) const {
  auto it = ranges.find(id);
  if (it == ranges.end() || !it->second.max) return SymInt::symbol(id);
  return above ? of(*it->second.max, true) : SymInt(it->second.min);
}

std::optional<SymInt> Bounds::of(const Atom& a, bool above) const {
  if (a.kind == AtomKind::symbol) return of_symbol(a.symbol, above);
  const auto& [x, y] = *a.args;
  if (a.kind == AtomKind::mod) {
    if (!non_negative(a)) return std::nullopt;
    auto top = above ? of(y, true) : SymInt(1);
    return top ? std::optional(*top - 1) : std::nullopt;
  }
  auto bx = of(x, above);
  if (a.kind == AtomKind::floordiv) {
    if (y.is_constant()) return bx && y.constant() > 0 ? std::optional(floordiv(*bx, y)) : std::nullopt;
    if (!proven_non_negative(x, ranges)) return std::nullopt;
    return above ? bx : SymInt(0);
  }
  auto by = of(y, above);
  if (above == (a.kind == AtomKind::min)) return second ? (by ? by : bx) : (bx ? bx : by);
  if (!bx || !by) return std::nullopt;
  if (a.kind == AtomKind::min) return min(*bx, *by);
  bool sum = !(*bx - *by).is_constant() && proven_non_negative(x, ranges) && proven_non_negative(y, ranges);
  return sum ? *bx + *by : max(*bx, *by);
}

bool proven(const SymInt& a, const Ranges& ranges, bool second) {
  auto low = Bounds{ranges, second}.of(a, false);
  if (!low) return false;
  // Shift every remaining symbol by its minimum: non-negative coefficients then mean a non-negative value.
  bool bounded = true;
  SymInt shifted = low->substitute([&](SymbolId id) -> std::optional<SymInt> {
    auto it = ranges.find(id);
    if (it == ranges.end() || it->second.min == 0) return std::nullopt;
    constexpr int64_t far = int64_t{1} << 31;  // beyond it the shift might overflow
    if (it->second.min < -far) bounded = false;
    return SymInt::symbol(id) + std::clamp(it->second.min, -far, far);
  });
  return bounded && plainly_non_negative(shifted);
}

}  // namespace

bool proven_non_negative(const SymInt& a, const Ranges& ranges) { return proven(a, ranges, false) || proven(a, ranges, true); }

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
    for (const Atom& f : t.factors) p = p * (f.kind == AtomKind::symbol ? SymInt::symbol(f.symbol) : simplify_atom(f, ranges));
    sum = sum + p;
  }
  return sum;
}

}  // namespace broach
