// Symbols and what was asked of them while a program was recorded.
#include <algorithm>
#include <numeric>

#include "ir/graph.h"
#include "support/error.h"

namespace broach {

const char* name_of(Relation r) {
  static constexpr const char* names[] = {"==", "!=", "<", "<="};
  return names[static_cast<size_t>(r)];
}

std::string Guard::str() const { return cat(lhs, " ", name_of(relation), " ", rhs); }

SymInt Symbols::fresh(SymbolInfo info) {
  if (info.input >= 0 && info.source == SymbolInfo::Source::run_time) info.source = SymbolInfo::Source::size;
  infos_.push_back(info);
  return SymInt::symbol(static_cast<SymbolId>(infos_.size() - 1));
}

int64_t Symbols::hint(const SymInt& a) const {
  return a.eval([this](SymbolId id) { return infos_.at(id).hint; });
}

Ranges Symbols::ranges() const {
  Ranges r;
  for (SymbolId id = 0; id < infos_.size(); ++id) r[id] = Range{infos_[id].min, nullptr};
  return r;
}

bool Symbols::declares(const SymInt& a) const {
  std::vector<SymbolId> symbols;
  a.collect_symbols(symbols);
  return std::all_of(symbols.begin(), symbols.end(), [this](SymbolId id) { return id < infos_.size(); });
}

void Symbols::add_guard(Guard g) {
  bool symmetric = g.relation == Relation::eq || g.relation == Relation::ne;
  if (symmetric && std::find(guards_.begin(), guards_.end(), Guard{g.rhs, g.relation, g.lhs}) != guards_.end()) return;
  if (std::find(guards_.begin(), guards_.end(), g) != guards_.end()) return;
  if (g.relation == Relation::eq) {
    // Of several values known as a call runs it says what it fixes, which may be known before all that it was asked of.
    std::vector<SymbolId> symbols;
    (g.lhs - g.rhs).collect_symbols(symbols);
    const bool of_several = std::ranges::any_of(symbols, [&](SymbolId id) { return id != symbols.front(); });
    if (of_several && is_late(g.lhs - g.rhs)) g = {resolved(g.lhs), g.relation, resolved(g.rhs)};
    solve(g.lhs - g.rhs);
  }
  guards_.push_back(std::move(g));
}

std::optional<SymbolId> Symbols::known_with(const SymInt& a) const {
  std::vector<SymbolId> symbols;
  a.collect_symbols(symbols);
  std::optional<SymbolId> last;
  for (SymbolId id : symbols) {
    while (infos_.at(id).source == SymbolInfo::Source::quotient) id = static_cast<SymbolId>(infos_[id].input);
    if (infos_.at(id).source == SymbolInfo::Source::run_time) last = std::max(last.value_or(id), id);
  }
  return last;
}

// From expression == 0: the newest symbol that stands alone with coefficient 1 or -1. What replaces it must be known where it is.
void Symbols::solve(const SymInt& expression) {
  SymInt e = resolved(expression);
  auto latest = known_with(e);
  std::vector<SymbolId> symbols;
  e.collect_symbols(symbols);
  std::erase_if(symbols, [&](SymbolId id) { return known_with(SymInt::symbol(id)) != latest; });
  std::sort(symbols.rbegin(), symbols.rend());
  for (SymbolId id : symbols) {
    auto parts = e.linear_in(id);
    auto c = parts ? parts->first.maybe_constant() : std::nullopt;
    if (c != 1 && c != -1) continue;
    return set_solved(id, *c == 1 ? SymInt(0) - parts->second : parts->second);
  }
  solve_divisible(e);
}

void Symbols::set_solved(SymbolId id, const SymInt& value) {
  auto replace = [&](SymbolId s) { return s == id ? std::optional(value) : std::nullopt; };
  for (auto& [other, known] : solved_) known = known.substitute(replace);
  solved_[id] = value;
}

// From k * floordiv(n, k) == n or mod(n, k) == 0, both perhaps times something, where n is linear in one symbol: that symbol is a
// multiple of a new one, plus a remainder. The new one is found by division.
void Symbols::solve_divisible(const SymInt& e) {
  for (const Term& t : e.terms())
    for (const Atom& a : t.factors) {
      bool is_quotient = a.kind == AtomKind::floordiv;
      auto k = is_quotient || a.kind == AtomKind::mod ? a.args->second.maybe_constant() : std::nullopt;
      auto split = k && *k > 1 ? e.linear_in(a) : std::nullopt;
      if (!split) continue;
      const SymInt& n = a.args->first;
      if (!((is_quotient ? split->second * *k + split->first * n : split->second) == SymInt(0))) continue;
      std::vector<SymbolId> symbols;
      n.collect_symbols(symbols);
      std::sort(symbols.begin(), symbols.end());
      symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
      auto parts = symbols.size() == 1 ? n.linear_in(symbols[0]) : std::nullopt;
      auto factor = parts ? parts->first.maybe_constant() : std::nullopt;
      if (!factor || !parts->second.is_constant()) continue;
      int64_t by = *k / std::gcd(*k, *factor), hint = infos_[symbols[0]].hint, remainder = hint % by;
      // 0 and 1 stay numbers.
      if (by < 2 || hint / by < 2) continue;
      SymInt value =
          SymInt(by) * fresh({hint / by, 2, static_cast<int>(symbols[0]), static_cast<int>(by), SymbolInfo::Source::quotient}) + remainder;
      guards_.push_back({SymInt::symbol(symbols[0]), Relation::eq, value});
      return set_solved(symbols[0], value);
    }
}

SymInt Symbols::resolved(const SymInt& a) const {
  if (a.is_constant() || solved_.empty()) return a;
  return a.substitute([this](SymbolId id) -> std::optional<SymInt> {
    auto it = solved_.find(id);
    return it == solved_.end() ? std::nullopt : std::optional(it->second);
  });
}

namespace {

std::optional<bool> known(const SymInt& a, Relation r, const SymInt& b, const Ranges& ranges) {
  SymInt d = b - a;
  if (auto c = d.maybe_constant()) return holds<int64_t>(0, r, *c);
  bool above = proven_non_negative(d - 1, ranges), below = proven_non_negative(SymInt(-1) - d, ranges);
  switch (r) {
    case Relation::eq: return above || below ? std::optional(false) : std::nullopt;
    case Relation::ne: return above || below ? std::optional(true) : std::nullopt;
    case Relation::lt:
      if (above) return true;
      return proven_non_negative(SymInt(0) - d, ranges) ? std::optional(false) : std::nullopt;
    default:
      if (proven_non_negative(d, ranges)) return true;
      return below ? std::optional(false) : std::nullopt;
  }
}

Guard negate(const Guard& g) {
  switch (g.relation) {
    case Relation::eq: return {g.lhs, Relation::ne, g.rhs};
    case Relation::ne: return {g.lhs, Relation::eq, g.rhs};
    case Relation::lt: return {g.rhs, Relation::le, g.lhs};
    default: return {g.rhs, Relation::lt, g.lhs};
  }
}

}  // namespace

bool Symbols::ask(const SymInt& a, Relation relation, const SymInt& b) {
  if (a.is_constant() && b.is_constant()) return holds(a.constant(), relation, b.constant());
  if (relation == Relation::le && b == SymInt(std::numeric_limits<int64_t>::max())) return true;  // the end of an open slice
  if (auto answer = known(resolved(a), relation, resolved(b), ranges())) return *answer;
  Guard asked{a, relation, b};
  if (std::find(guards_.begin(), guards_.end(), asked) != guards_.end()) return true;
  if (std::find(guards_.begin(), guards_.end(), negate(asked)) != guards_.end()) return false;
  bool answer = holds(hint(a), relation, hint(b));
  add_guard(answer ? asked : negate(asked));
  return answer;
}

int64_t Symbols::specialize(const SymInt& a) {
  int64_t value = hint(a);
  if (!resolved(a).is_constant()) add_guard({a, Relation::eq, value});
  return value;
}

}  // namespace broach
