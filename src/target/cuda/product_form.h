// What a matrix product of a schedule is for one vector of sizes, and whether cuBLASLt computes it as it lies.
#pragma once

#include <optional>
#include <vector>

#include "target/target.h"

namespace broach::cuda {

using Sizes = std::vector<int64_t>;

// A tensor's sizes and strides in elements.
struct Window {
  Sizes sizes, strides;
  DType dtype{};
  HostWindow at(void* data) const { return {data, dtype, sizes, strides}; }
};

Window window(const Operand& o, std::span<const int64_t> symbols);
// Whether its tensors are the same in all calls but for their addresses.
bool has_fixed_sizes(const ContractionStep& step);

// [.., m, k] x [.., k, n] -> [.., m, n], all of one rank: rows that lie one behind the other are one dimension, and dimensions of rows
// that are left over are batches with one weight.
struct ProductForm {
  Window x, weight, result;
  std::optional<Window> bias;
  std::vector<Window> operands;  // of the epilogue
};
ProductForm product_form(const ContractionStep& step, std::span<const int64_t> symbols);

// A matrix as column-major libraries see it: what is a row here is a column there.
struct ColumnMajor {
  int64_t rows = 0, columns = 0, leading = 0, batch_stride = 0;
  bool transposed = false;  // beside what the product wants
};
// One call for each position of `outer`.
struct LibraryProduct {
  ColumnMajor weight, x, result, added;  // added: the operand of an epilogue `add`
  int64_t batches = 1;
  struct Start {
    int64_t weight, x, result, added;
  };
  std::vector<Start> starts;  // of each call, in elements
  bool adds = false;
};
// Nothing where the library does not take these strides.
std::optional<LibraryProduct> library_product(const ProductForm& form);

}  // namespace broach::cuda
