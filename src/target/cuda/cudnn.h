// Convolutions of two dimensions and their gradients by cuDNN, into the result, on tensors whose channels lie side by side.
#pragma once

#include <memory>

#include "target/cuda/product_form.h"
#include "target/target.h"

namespace broach::cuda {

// One convolution for the library. Forward it takes x [n, c, h, w] and weight [o, c, kh, kw] to y [n, o, h', w']; the gradients take y and
// one of the two to the other.
struct LibraryConvolution {
  enum class Wanted : uint8_t { y, x, weight };
  Wanted wanted = Wanted::y;
  DType dtype{};
  Sizes x, weight, y;  // sizes
  Sizes padding, stride, dilation;
  std::optional<DType> bias;  // behind y: one for each channel o,
  bool adds = false;          // then a tensor as y,
  bool relu = false;          // and then its positive part
  bool deterministic = false;

  auto operator<=>(const LibraryConvolution&) const = default;
};

// Addresses of elements 0, all at multiples of 16 bytes.
struct ConvolutionAddresses {
  void *x, *weight, *y, *bias, *added;
};

class ConvolutionPlan {
 public:
  virtual ~ConvolutionPlan() = default;
  virtual void run(const ConvolutionAddresses& at, const RunContext& run) const = 0;
};

// Those of a device are made once. Null where the library is missing, or has no engine for it.
std::shared_ptr<const ConvolutionPlan> convolution_plan(const LibraryConvolution& convolution, int device);

}  // namespace broach::cuda
