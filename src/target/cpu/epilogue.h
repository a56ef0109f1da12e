// What follows a contraction, as a kernel of its own: where oneDNN has no fast code for a contraction with these operations
// or this layout of the result, it computes the bare product into dense memory, and this kernel does the rest; behind a product
// on tiles it does so for each block of sums.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "target/target.h"

namespace broach::cpu {

// Reads the product, applies bias and operations, and stores the result. Buffers: the product, the bias, the operands, the result.
struct EpilogueForm {
  struct Side {
    DType dtype{};
    std::vector<int64_t> strides = {};  // in elements, one for each dimension; 0: the same element all along
  };
  std::vector<int64_t> dims;
  Side product;
  std::optional<Side> bias = {};
  std::vector<std::pair<Op, std::optional<Side>>> operations = {};
  Side result = {};
};
std::shared_ptr<const CompiledKernel> compile_epilogue(const EpilogueForm& form, const CompileSettings& settings);

// The same for all of a step, with the product, `product` elements, in `from` strides, and its bias if `with_bias`.
std::shared_ptr<const CompiledKernel> compile_epilogue(const ContractionStep& step, DType product, const std::vector<int64_t>& from,
                                                       bool with_bias, std::span<const int64_t> symbols, const CompileSettings& settings);

}  // namespace broach::cpu
