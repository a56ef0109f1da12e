// Convolutions of each channel by itself along one dimension, of a few elements each: sums of products that kernels compute in passing.
// Libraries take longer, and copy where a channel's elements lie beside each other.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "ops/build.h"

namespace broach {

// Of x [batch, channels, length] and w [channels, 1, taps], with a stride of 1.
struct DepthwiseRow {
  Value x, w;
  SymInt padding;
  int64_t dilation;
};

// Whether a weight of these sizes has so few taps that it pays.
bool has_few_taps(const Shape& weight);

// All in the type that x is computed in. `bias`: [channels].
Value convolve_row(GraphBuilder& b, const DepthwiseRow& row, std::optional<Value> bias);
// The gradients by x and w, of that of the result, y.
std::pair<Value, Value> row_gradients(GraphBuilder& b, const DepthwiseRow& row, Value y);

}  // namespace broach
