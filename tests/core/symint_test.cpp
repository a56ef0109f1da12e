// Symbolic integers, fuzzed against plain ones.
#include "ir/symint.h"

#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "support/error.h"

using namespace broach;

namespace {

constexpr int kSymbols = 4;
using Values = std::vector<int64_t>;

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// An expression as it was asked for, computed without any algebra, beside its SymInt.
struct Expression {
  SymInt symbolic;
  std::function<int64_t(const Values&)> plain;
};

struct Generator {
  std::mt19937 random;

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); }

  Expression leaf() {
    if (below(3) == 0) {
      int64_t c = below(13) - 4;
      return {c, [c](const Values&) { return c; }};
    }
    auto id = static_cast<SymbolId>(below(kSymbols));
    return {SymInt::symbol(id), [id](const Values& v) { return v[id]; }};
  }
  // Divisors are constants other than 0, or positive whatever the symbols are.
  Expression divisor() {
    int64_t c = 1 + below(6);
    if (below(4) == 0) return {-c, [c](const Values&) { return -c; }};
    if (below(2) == 0) return {c, [c](const Values&) { return c; }};
    auto id = static_cast<SymbolId>(below(kSymbols));
    return {SymInt::symbol(id) * c + 1, [id, c](const Values& v) { return v[id] * c + 1; }};
  }
  Expression any(int depth) {
    if (depth == 0) return leaf();
    Expression a = any(depth - 1);
    int64_t op = below(9);
    Expression b = op == 3 || op == 4 ? divisor() : any(below(depth) < 2 ? 0 : depth - 1);
    auto x = a.plain, y = b.plain;
    switch (op) {
      case 0:
      case 7: return {a.symbolic + b.symbolic, [x, y](const Values& v) { return x(v) + y(v); }};
      case 1:
      case 8: return {a.symbolic - b.symbolic, [x, y](const Values& v) { return x(v) - y(v); }};
      case 2: return {a.symbolic * b.symbolic, [x, y](const Values& v) { return x(v) * y(v); }};
      case 3: return {floordiv(a.symbolic, b.symbolic), [x, y](const Values& v) { return floor_div(x(v), y(v)); }};
      case 4: return {mod(a.symbolic, b.symbolic), [x, y](const Values& v) { return x(v) - floor_div(x(v), y(v)) * y(v); }};
      case 5: return {min(a.symbolic, b.symbolic), [x, y](const Values& v) { return std::min(x(v), y(v)); }};
      default: return {max(a.symbolic, b.symbolic), [x, y](const Values& v) { return std::max(x(v), y(v)); }};
    }
  }

  // Some symbols bounded by a constant or by another symbol, some unbounded; a symbol of 0 has no values below its bound.
  Ranges ranges() {
    Ranges r;
    for (SymbolId id = 0; id < kSymbols; ++id) {
      Range& range = r[id];
      range.min = below(3) == 0 ? below(6) - (below(4) == 0 ? 5 : 0) : 0;
      if (id > 0 && below(3) == 0)
        range.max = std::make_shared<const SymInt>(SymInt::symbol(0) * (1 + below(3)) + below(3) + std::max<int64_t>(range.min, 0));
      else if (below(3) == 0) range.max = std::make_shared<const SymInt>(range.min + below(8));
    }
    return r;
  }
  Values values(const Ranges& r) {
    Values v(kSymbols);
    for (SymbolId id = 0; id < kSymbols; ++id) {
      const Range& range = r.at(id);
      int64_t top = range.max ? range.max->eval(v) : range.min + (below(3) == 0 ? 40 : 4);
      v[id] = top <= range.min ? range.min : range.min + below(top - range.min + 1);
    }
    return v;
  }
  Values values() {
    Values v(kSymbols);
    for (auto& x : v) x = below(12);
    return v;
  }
};

SymInt s(SymbolId id) { return SymInt::symbol(id); }

}  // namespace

TEST_CASE("symint: an expression is worth what its operations give") {
  Generator g{std::mt19937(1)};
  for (int i = 0; i < 20000; ++i) {
    Expression e = g.any(4);
    CAPTURE(e.symbolic.str());
    for (int k = 0; k < 4; ++k) {
      Values v = g.values();
      REQUIRE(e.symbolic.eval(v) == e.plain(v));
    }
  }
}

TEST_CASE("symint: text reads back as the same expression") {
  Generator g{std::mt19937(2)};
  for (int i = 0; i < 20000; ++i) {
    Expression e = g.any(4);
    CAPTURE(e.symbolic.str());
    SymInt back = SymInt::parse(e.symbolic.str());
    REQUIRE(back == e.symbolic);
    REQUIRE(back.str() == e.symbolic.str());
    REQUIRE(back.hash() == e.symbolic.hash());
  }
  CHECK((s(0) * 2 - s(1) + 3).str() == "2*s0 - s1 + 3");
  CHECK((s(kFirstAxis + 2) - 1).str() == "i2 - 1");
  CHECK(SymInt::parse("i2 - 1") == s(kFirstAxis + 2) - 1);
  CHECK(SymInt::parse(" ( s0+1 ) *2 ") == s(0) * 2 + 2);
  CHECK(floordiv(s(0) + 1, 2).str() == "floordiv(s0 + 1, 2)");
  for (int64_t c : {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), int64_t{0}})
    CHECK(SymInt::parse(SymInt(c).str()) == SymInt(c));
  for (const char* bad : {"", "s", "1 +", "s0 s1", "floordiv(s0)", "(s0", "99999999999999999999", "q0", "min(s0, 1"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(SymInt::parse(bad), Error);
  }
}

TEST_CASE("symint: equal expressions are equal however they were built") {
  Generator g{std::mt19937(3)};
  for (int i = 0; i < 5000; ++i) {
    Expression a = g.any(3), b = g.any(2), c = g.any(2);
    CAPTURE(a.symbolic.str());
    CAPTURE(b.symbolic.str());
    CAPTURE(c.symbolic.str());
    auto same = [](const SymInt& x, const SymInt& y) { return x == y && x.hash() == y.hash() && x.str() == y.str(); };
    REQUIRE(same(a.symbolic + b.symbolic, b.symbolic + a.symbolic));
    REQUIRE(same(a.symbolic * b.symbolic, b.symbolic * a.symbolic));
    REQUIRE(same(a.symbolic - a.symbolic, 0));
    REQUIRE(same(min(a.symbolic, b.symbolic), min(b.symbolic, a.symbolic)));
    REQUIRE(same((a.symbolic + b.symbolic) + c.symbolic - b.symbolic, a.symbolic + c.symbolic));
    REQUIRE((compare(a.symbolic, b.symbolic) < 0) == (compare(b.symbolic, a.symbolic) > 0));
  }
  CHECK((s(0) + s(1)) * (s(0) - s(1)) == s(0) * s(0) - s(1) * s(1));
  CHECK(mod(s(0), 4) + 4 * floordiv(s(0), 4) == s(0));
  CHECK(3 * mod(s(0), 4) + 12 * floordiv(s(0), 4) + s(1) == 3 * s(0) + s(1));
  CHECK(s(1) * floordiv(s(0), s(1)) + mod(s(0), s(1)) == s(0));
  CHECK(floordiv(s(0) * 6 + 5, 3) == s(0) * 2 + 1);
  CHECK(floordiv(floordiv(s(0), 3), 4) == floordiv(s(0), 12));
  CHECK(floordiv(s(0) * s(1), s(1)) == s(0));
  CHECK(mod(s(0) * s(1), s(0)) == SymInt(0));
  CHECK(min(s(0), s(0) + 1) == s(0));
  CHECK(s(0) != s(1));
  CHECK(floordiv(7, -2) == SymInt(-4));
  CHECK(mod(7, -2) == SymInt(-1));
}

TEST_CASE("symint: substitution is evaluation in steps") {
  Generator g{std::mt19937(4)};
  for (int i = 0; i < 5000; ++i) {
    Expression e = g.any(3), a = g.any(1);
    Values v = g.values();
    SymInt replaced = e.symbolic.substitute([&](SymbolId id) { return id == 1 ? std::optional(s(2) + 1) : std::nullopt; });
    CAPTURE(e.symbolic.str());
    CAPTURE(replaced.str());
    REQUIRE(!replaced.contains(1));
    v[1] = v[2] + 1;
    REQUIRE(replaced.eval(v) == e.plain(v));
  }
}

TEST_CASE("symint: linear_in splits exactly, and finds what is linear") {
  Generator g{std::mt19937(5)};
  int found = 0;
  for (int i = 0; i < 10000; ++i) {
    Expression e = g.any(3);
    auto split = e.symbolic.linear_in(0);
    if (!split) continue;
    ++found;
    CAPTURE(e.symbolic.str());
    REQUIRE(!split->first.contains(0));
    REQUIRE(!split->second.contains(0));
    REQUIRE(split->first * s(0) + split->second == e.symbolic);
  }
  CHECK(found > 3000);
  auto [coefficient, rest] = *(s(0) * s(1) * 3 + s(0) + floordiv(s(1), 2) - 1).linear_in(0);
  CHECK(coefficient == s(1) * 3 + 1);
  CHECK(rest == floordiv(s(1), 2) - 1);
  CHECK(!(s(0) * s(0)).linear_in(0));
  CHECK(!mod(s(0), 3).linear_in(0));
  CHECK(s(1).linear_in(0)->first == SymInt(0));
}

TEST_CASE("symint: what is proven holds, and simplifying changes no value") {
  Generator g{std::mt19937(6)};
  int proven = 0, simpler = 0;
  for (int i = 0; i < 30000; ++i) {
    Expression e = g.any(1 + static_cast<int>(g.below(4)));
    Ranges r = g.ranges();
    bool claimed = proven_non_negative(e.symbolic, r);
    SymInt simple = simplify(e.symbolic, r);
    proven += claimed;
    simpler += !(simple == e.symbolic);
    CAPTURE(e.symbolic.str());
    CAPTURE(simple.str());
    for (int k = 0; k < 12; ++k) {
      Values v = g.values(r);
      // A bound below the minimum leaves no values.
      bool inside = true;
      for (SymbolId id = 0; id < kSymbols; ++id) inside = inside && (!r[id].max || v[id] <= r[id].max->eval(v));
      if (!inside) continue;
      bool divisors = true;  // divisors with symbols must be positive
      for (int64_t x : v) divisors = divisors && x >= 0;
      if (!divisors) continue;
      CAPTURE(v[0]);
      CAPTURE(v[1]);
      CAPTURE(v[2]);
      CAPTURE(v[3]);
      if (claimed) REQUIRE(e.plain(v) >= 0);
      REQUIRE(simple.eval(v) == e.plain(v));
    }
  }
  CHECK(proven > 2000);
  CHECK(simpler > 300);
}

TEST_CASE("symint: what a schedule needs is proven") {
  Ranges r;
  r[0] = {1, nullptr};
  r[1] = {2, nullptr};
  SymbolId i = kFirstAxis, j = kFirstAxis + 1;
  r[i] = {0, std::make_shared<const SymInt>(s(0) - 1)};
  r[j] = {0, std::make_shared<const SymInt>(3)};
  CHECK(proven_non_negative(s(0) - 1, r));
  CHECK(!proven_non_negative(s(0) - 2, r));
  CHECK(proven_non_negative(s(0) * s(1) - 2, r));
  CHECK(proven_non_negative(s(0) - 1 - s(i), r));
  CHECK(proven_non_negative(s(0) * 4 - 1 - (s(i) * 4 + s(j)), r));
  CHECK(!proven_non_negative(s(0) * 4 - 2 - (s(i) * 4 + s(j)), r));
  CHECK(proven_non_negative(s(0) - min(s(0), 8), r));
  CHECK(proven_non_negative(SymInt(8) - min(s(0), 8), r));
  CHECK(proven_non_negative(max(s(0) - 5, 0), r));
  CHECK(proven_non_negative(s(0) + s(1) - max(s(0), s(1)), r));
  CHECK(simplify(floordiv(s(i) * 4 + s(j), 4), r) == s(i));
  CHECK(simplify(mod(s(i) * 4 + s(j), 4), r) == s(j));
  CHECK(simplify(mod(s(i), s(0)), r) == s(i));
  CHECK(simplify(floordiv(s(i) * s(1) + floordiv(s(j), 4), s(1)), r) == s(i));
  CHECK(simplify(min(s(i), s(0)), r) == s(i));
  SymbolId k = kFirstAxis + 2;
  r[k] = {0, std::make_shared<const SymInt>(s(1) - 1)};
  CHECK(simplify(floordiv(s(i) * s(1) + s(k), s(1)), r) == s(i));
  CHECK(simplify(mod(s(i) * s(1) + s(k), s(1)), r) == s(k));
  CHECK(simplify(floordiv((s(i) * s(1) + s(k)) * 4 + s(j), s(1) * 4), r) == s(i));
  // Atoms that may be negative are not taken for sizes.
  CHECK(!proven_non_negative(floordiv(s(0) - s(1), 4), r));
  CHECK(!proven_non_negative(s(0) - 5 - max(SymInt(0), s(0) - 5), r));
  CHECK(!proven_non_negative(min(s(0) - 5, s(1)), r));
}

TEST_CASE("symint: errors") {
  CHECK_THROWS_WITH_AS(floordiv(5, 0), "symbolic integer: division of 5 by zero", Error);
  CHECK_THROWS_AS(mod(s(0), 0), Error);
  CHECK_THROWS_AS((s(0) + 1).constant(), Error);
  CHECK_THROWS_WITH_AS(s(3).eval(Values{1, 2}), "symbol s3 has no value", Error);
  const int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  CHECK_THROWS_WITH_AS(SymInt(most) + 1, "symbolic integer: 9223372036854775807 + 1 overflows", Error);
  CHECK_THROWS_AS((s(0) * most) * 2, Error);
  CHECK_THROWS_AS((s(0) * most).eval(Values{2}), Error);
  CHECK_THROWS_AS(floordiv(SymInt(least), -1), Error);
  CHECK(SymInt::parse((s(0) + least).str()) == s(0) + least);
  CHECK(SymInt::parse((s(0) * least).str()) == s(0) * least);
  CHECK((s(0) + 1).maybe_constant() == std::nullopt);
  CHECK(s(3).as_symbol() == 3u);
  CHECK(!(s(3) * 2).as_symbol());
}
