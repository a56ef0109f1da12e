// Calls of libtorch's operations from a compiled program.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <vector>

#include "runtime/executable.h"

namespace broach {

// The front's state of one call: the tensors that own the memory of buffers.
struct HostState {
  std::vector<at::Tensor> tensors;  // by buffer; undefined for those in the arena
};

std::unique_ptr<ExternRunner> make_extern(const ExternStep& step, const Schedule& schedule);
void release_extern_result(Frame& frame, int buffer);

c10::SmallVector<int64_t, 6> evaluate(const Shape& s, std::span<const int64_t> symbols);

// A tensor over memory that somebody else owns for as long as it is used.
at::Tensor tensor_over(void* data, const Type& type, const Shape& strides, std::span<const int64_t> symbols);

}  // namespace broach
