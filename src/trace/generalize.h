// From the sizes of several calls to symbols: what differed from call to call becomes a symbol, what never did stays a number.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/graph.h"

namespace broach {

// Everything about one call that sizes depend on, by input, and the numbers that the program is given besides.
struct CallSizes {
  std::vector<std::vector<int64_t>> sizes, strides;
  std::vector<int64_t> ints;
  std::vector<double> floats;

  friend bool operator==(const CallSizes&, const CallSizes&) = default;
  // Whether both have the same number of inputs with the same ranks, whose dimensions lie in the same order, and of numbers.
  bool has_form_of(const CallSizes& other) const;
  bool has_numbers_of(const CallSizes& other) const;  // fractions by their bits, as zeros of both signs are two numbers
};

// The same with symbols, whose hints are the values of the last call.
struct SymbolicSizes {
  std::shared_ptr<Symbols> symbols = std::make_shared<Symbols>();
  std::vector<Shape> sizes, strides;
  std::vector<SymInt> ints;
  std::vector<bool> floats;  // those that are no constants

  bool empty() const;  // whether there is nothing but numbers
};

// `calls` have one form; the last is the one that is about to be captured. Sizes that were equal to each other in every call
// share a symbol. Strides are products of sizes where that fits all calls. 0 and 1 stay numbers, since they mean something
// else to broadcasting. `symbolic`, by input: a bit for each dimension that is a symbol whether it differed or not; behind the
// last input one for each integer.
SymbolicSizes generalize(const std::vector<CallSizes>& calls, const std::vector<uint64_t>& symbolic);

}  // namespace broach
