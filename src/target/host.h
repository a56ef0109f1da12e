// What the host's own library offers to a target: contractions, as candidates beside the target's own.
#pragma once

#include <span>

#include "schedule/schedule.h"

namespace broach {

// A tensor as the host's library is given it: an address, sizes and strides in elements. No address: there is none.
struct HostWindow {
  void* data = nullptr;
  DType dtype{};
  std::span<const int64_t> sizes, strides;
};

// A contraction and the operations behind it, by the host's own library: any strides, elements that overlap or are expanded
// included. Of a product, x is [.., m, k] and the weight [.., k, n], with batches that broadcast; the bias broadcasts to the
// result. A convolution's tensors are its operation's.
struct HostContraction {
  const Operation& operation;
  HostWindow x, weight, bias, result;
  std::span<const int64_t> padding, output_padding;
  std::span<const Epilogue> epilogue;
  std::span<const HostWindow> operands;  // one for each epilogue with an operand, as large as the result or broadcast to it
  Device device = {};                    // where all of these lie; the work goes into the device's current queue
};

using HostContractionFunction = void (*)(const HostContraction&);

}  // namespace broach
