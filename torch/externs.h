// Calls of libtorch's operations from a compiled program.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <vector>

#include "runtime/executable.h"

namespace broach {

// The front's state of one call: the tensors that own the memory of buffers.
struct ExternState {
  std::vector<at::Tensor> tensors;  // by buffer; undefined for those in the arena
};

// By its name and overload, with a point between.
c10::OperatorHandle find_operation(const std::string& schema);

// An operation of libtorch's with the arguments of a call, which must outlive it.
class ExternOp {
 public:
  explicit ExternOp(const ExternCall& call);
  // What the operation gives.
  torch::jit::Stack run(c10::ArrayRef<at::Tensor> operands, std::span<const int64_t> symbols) const;

 private:
  c10::IValue argument(size_t i, c10::ArrayRef<at::Tensor> operands, std::span<const int64_t> symbols) const;

  const ExternCall& call_;
  c10::OperatorHandle op_;
  std::vector<c10::IValue> constants_;
};

std::unique_ptr<ExternRunner> make_extern(const ExternStep& step, const Schedule& schedule);
void release_extern_result(Frame& frame, int buffer);

c10::SmallVector<int64_t, 6> evaluate(const Shape& s, std::span<const int64_t> symbols);

// A tensor over memory that somebody else owns for as long as it is used.
at::Tensor tensor_over(void* data, const Type& type, const Shape& strides, std::span<const int64_t> symbols);

}  // namespace broach
