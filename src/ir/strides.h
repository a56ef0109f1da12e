// Strides: orders of dimensions in memory, and what views are windows of.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace broach {

// Of a dense tensor whose dimensions are stored in this order, outermost first.
Shape strides_in_order(const Shape& shape, const std::vector<size_t>& order);
Shape channels_last_strides(const Shape& shape);
bool is_channels_last(const Shape& shape, const Shape& strides);
// Elements from the first to the last one.
SymInt extent_of(const Shape& shape, const Shape& strides);
// PyTorch's rule for a view with other sizes: dimensions that are contiguous with each other may be regrouped.
std::optional<Shape> reshaped_strides(const Shape& from, const Shape& strides, const Shape& to);

// Elements of a result of `base`, which is in memory: element i is at offset + sum of i[d] * strides[d].
struct MemoryWindow {
  const Node* base;
  SymInt offset;
  Shape strides;
};

// The window of a view of what lies in a window, if it is one without moving elements.
std::optional<MemoryWindow> window_of_view(const Node& view, const MemoryWindow& window);
SymInt address_of(const MemoryWindow& window, std::span<const SymInt> index);

// Views that are windows of what lies dense in memory: all but concatenations and paddings.
inline bool is_window(Op op) { return is_view(op) && op != Op::cat && op != Op::pad; }

}  // namespace broach
