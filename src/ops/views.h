// Views that no chain of movement primitives expresses, as a pair of functions: what the view shows of its operand, and
// what the operand becomes when what the view shows is replaced.
#pragma once

#include <functional>
#include <optional>

#include "ir/graph.h"

namespace broach {

struct View {
  std::function<Value(GraphBuilder&, Value x)> get;
  std::function<Value(GraphBuilder&, Value x, Value y)> put;  // none: cannot be written through
};

// How a tensor lies in a storage; offsets count from the storage's first element that its root shows.
struct Window {
  Shape shape, strides;
  SymInt offset;
};

// A window of a storage whose root is dense (its strides are those of a contiguous tensor in some order); nothing if it is
// not. Elements that the window shows twice make it unwritable.
std::optional<View> strided_view(Symbols& s, const Window& root, const Window& window);

}  // namespace broach
