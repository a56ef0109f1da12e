// What a call's sizes must satisfy for a compiled program to stand for it, checked in one flat pass.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace broach {

// One input of a call: `rank` sizes and strides, in elements.
struct GivenTensor {
  const int64_t* sizes;
  const int64_t* strides;
  size_t rank;
};

// The values of a program's symbols in a call, and of its host numbers.
struct SymbolValues {
  std::vector<int64_t> sizes;
  std::vector<double> floats;
};

class SizeGuards {
 public:
  SizeGuards() = default;
  // By input: sizes and strides as the program was captured with; `ints` and `floats`, the numbers it was given, where a float that
  // is no constant is absent; what was decided by them.
  SizeGuards(std::vector<Shape> sizes, std::vector<Shape> strides, std::vector<SymInt> ints, std::vector<std::optional<double>> floats,
             const Symbols& symbols);

  // Whether the program holds for a call. Writes the values of its symbols and host numbers (none for a program without).
  // `why`, if not null: what differs, if something does.
  bool match(std::span<const GivenTensor> inputs, std::span<const int64_t> ints, std::span<const double> floats, SymbolValues& values,
             std::string* why) const;
  bool has_symbols() const { return !infos_.empty(); }
  // What `match` leaves open, for symbols that become known while the program runs: whether the program still holds now that those
  // of `fresh` have values too. `known`, by symbol, is updated, and so are the values that follow.
  bool match_late(std::span<const SymbolId> fresh, std::vector<bool>& known, std::vector<int64_t>& symbols) const;
  std::vector<int64_t> hints() const;
  // One line for each guard besides those that fix sizes.
  std::vector<std::string> text() const;

 private:
  struct Number {  // one size, stride or integer that a call must have
    int64_t constant;
    int expression = -1;  // into expressions_, if it is not constant
  };
  Number number(const SymInt& e);
  bool bind(std::span<const GivenTensor> inputs, std::span<const int64_t> ints, std::vector<int64_t>& symbols, std::string* why) const;
  bool fits(const Number& n, int64_t value, const std::vector<int64_t>& symbols) const {
    return value == (n.expression < 0 ? n.constant : expressions_[static_cast<size_t>(n.expression)].eval(symbols));
  }
  std::string shown(const Number& n) const;
  bool fits_late(SymbolId id, std::vector<int64_t>& symbols) const;
  bool differs(std::string* why, const Number& expected, int64_t value, const char* what, size_t input, size_t dim) const;

  std::vector<size_t> ranks_;
  std::vector<Number> numbers_;  // by input: sizes, then strides; then the integers
  std::vector<SymInt> expressions_;
  std::vector<std::optional<double>> floats_;
  HostFloats host_;
  std::vector<SymbolInfo> infos_;
  std::vector<Guard> guards_;
  struct Late {
    std::vector<SymbolId> symbols;  // run-time ones that it needs
    std::optional<SymbolId> quotient;
    std::optional<Guard> guard;
  };
  std::vector<Late> late_;     // quotients first, as they follow from each other
  std::vector<bool> is_late_;  // by symbol
};

}  // namespace broach
