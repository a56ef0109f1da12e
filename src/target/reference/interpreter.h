// The reference interpreter: slow and obvious. It defines what every primitive computes and is the oracle of the tests.
//
// Every primitive rounds its result to its element type; f16 and bf16 are computed in f32, and sums are taken in a wider
// type and rounded once. What is not defined (a square root of integers, the largest of no elements, an index outside,
// an integer division by zero) is an Error that names the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace broach {

// A contiguous tensor in host memory. The sizes in its type are constants.
struct HostTensor {
  Type type;
  std::vector<std::byte> bytes;

  std::vector<int64_t> sizes() const;
  int64_t numel() const;
  // Elements by position in row-major order; numbers are converted as `cast` does.
  Scalar at(int64_t i) const;
  void set(int64_t i, const Scalar& value);
};
HostTensor zeros(DType dtype, std::span<const int64_t> sizes, Device device = {});

// Runs an extern call: the results for these operands.
using ExternHandler = std::function<std::vector<HostTensor>(const Node&, std::span<const HostTensor> inputs)>;

// The outputs of the graph. `symbol_values` are by symbol id; where they end, a symbol's value is read from the input that
// its SymbolInfo names, and a symbol without an input gets the size that an extern call returns where its type has it.
std::vector<HostTensor> interpret(const Graph& graph, std::span<const HostTensor> inputs, std::span<const int64_t> symbol_values = {},
                                  const ExternHandler& extern_handler = nullptr);

}  // namespace broach
