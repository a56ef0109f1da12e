// Symbolic integers: the sizes, strides, offsets and indices of a compiled program.
//
// A SymInt is kept as a polynomial with integer coefficients over atoms (symbols and floordiv/mod/min/max of other
// SymInts), in a canonical order, so that equality of values that are equal as polynomials is equality of structure.
// Divisors that are not constants stand for positive values.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace broach {

using SymbolId = uint32_t;
// Symbols from here on are loop axes of a kernel; those below are sizes and scalars of a program.
constexpr SymbolId kFirstAxis = 1u << 20;

class SymInt;
struct Term;

enum class AtomKind : uint8_t { symbol, floordiv, mod, min, max };

struct Atom {
  AtomKind kind;
  SymbolId symbol = 0;                                    // for kind symbol
  std::shared_ptr<const std::pair<SymInt, SymInt>> args;  // for the other kinds
};

// What is known of a symbol: min <= symbol <= max. `max` may name other symbols; absent means unbounded.
struct Range {
  int64_t min = 0;
  std::shared_ptr<const SymInt> max;
};
using Ranges = std::unordered_map<SymbolId, Range>;

class SymInt {
 public:
  SymInt(int64_t value = 0) : constant_(value) {}
  static SymInt symbol(SymbolId id);

  bool is_constant() const { return !terms_; }
  // The value of a constant; an error for anything else.
  int64_t constant() const;
  std::optional<int64_t> maybe_constant() const { return terms_ ? std::nullopt : std::optional(constant_); }
  // The part without symbols, and the terms with them (empty for a constant).
  int64_t constant_part() const { return constant_; }
  std::span<const Term> terms() const;
  // The id if this is exactly one symbol.
  std::optional<SymbolId> as_symbol() const;
  bool contains(SymbolId id) const;
  void collect_symbols(std::vector<SymbolId>& out) const;

  // The value when symbol i is values(i).
  int64_t eval(const std::function<int64_t(SymbolId)>& values) const;
  int64_t eval(std::span<const int64_t> values) const;
  SymInt substitute(const std::function<std::optional<SymInt>(SymbolId)>& replacement) const;
  // Splits e = coefficient * symbol + rest where neither part contains the symbol; nothing if it is not linear in it.
  std::optional<std::pair<SymInt, SymInt>> linear_in(SymbolId id) const;
  // The same for an atom of the expression, of which other atoms may contain what is in it.
  std::optional<std::pair<SymInt, SymInt>> linear_in(const Atom& atom) const;

  // The number of atoms in it, those within others counted too.
  size_t atoms() const;

  // Symbols print as s<id>, axes as i<id - kFirstAxis>.
  std::string str() const;
  static SymInt parse(std::string_view text);
  size_t hash() const;

  friend SymInt operator+(const SymInt& a, const SymInt& b);
  friend SymInt operator-(const SymInt& a, const SymInt& b);
  friend SymInt operator*(const SymInt& a, const SymInt& b);
  friend std::strong_ordering compare(const SymInt& a, const SymInt& b);
  friend bool operator==(const SymInt& a, const SymInt& b) { return compare(a, b) == 0; }

 private:
  friend SymInt from_terms(int64_t constant, std::vector<Term> terms);
  int64_t constant_;
  std::shared_ptr<const std::vector<Term>> terms_;
};

struct Term {
  int64_t coefficient;
  std::vector<Atom> factors;  // sorted
};

SymInt floordiv(const SymInt& a, const SymInt& b);  // rounds towards minus infinity, as Python does
SymInt mod(const SymInt& a, const SymInt& b);
SymInt min(const SymInt& a, const SymInt& b);
SymInt max(const SymInt& a, const SymInt& b);
inline SymInt ceildiv(const SymInt& a, const SymInt& b) { return floordiv(a + b - 1, b); }
SymInt product(std::span<const SymInt> factors);

// a >= 0 for every value that the ranges allow. False means "not proven".
bool proven_non_negative(const SymInt& a, const Ranges& ranges);
// Removes floordiv, mod, min and max where the ranges decide them.
SymInt simplify(const SymInt& a, const Ranges& ranges);

inline std::ostream& operator<<(std::ostream& out, const SymInt& a) { return out << a.str(); }

}  // namespace broach

template <>
struct std::hash<broach::SymInt> {
  size_t operator()(const broach::SymInt& a) const { return a.hash(); }
};
