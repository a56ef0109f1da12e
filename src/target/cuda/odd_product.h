// Products that the library has only slow kernels for as they are: in types of two bytes its fast ones want rows that begin every 16
// bytes, and as many elements along them (a vocabulary of 50257 has neither).
#pragma once

#include <optional>
#include <vector>

#include "target/cuda/product_form.h"

namespace broach::cuda {

// Copies of matrices with other rows, and products of sizes that suit the kernels with what is left over.
struct OddProduct {
  struct Part {
    LibraryProduct product;
    bool accumulates = false;  // adds to what the part before it gave
    int64_t bias_start = 0;
  };
  // As they lie for the parts; what lies elsewhere than in the product is copied. Of a result that is copied there is one chunk at a time.
  ColumnMajor weight, x, result;
  bool copies_weight = false, copies_x = false, copies_result = false;
  std::vector<Part> parts;
  struct Chunk {
    int64_t first, rows;  // of the result, in columns
    size_t end;           // of its parts
  };
  std::vector<Chunk> chunks;
  bool copies() const { return copies_weight || copies_x || copies_result; }
};

// Nothing where the product is no such, or it does not pay. `whole_sums`: what is left of a sum is not to be added to its result, which is
// rounded, or has something else behind it.
std::optional<OddProduct> odd_product(const LibraryProduct& product, DType dtype, bool whole_sums);

}  // namespace broach::cuda
