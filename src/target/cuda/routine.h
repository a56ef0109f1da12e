// Routine primitives on the device: those without which writes into parts of tensors could not be compiled.
#pragma once

#include <memory>
#include <string>

#include "target/target.h"

namespace broach::cuda {

bool has_routine(Op op, DType dtype);
std::shared_ptr<const CompiledRoutine> make_routine(const Operation& operation);

// sum_rows.cpp
std::shared_ptr<const CompiledRoutine> make_sum_rows(const Operation& operation);
std::string sum_rows_source();

// Rows of elements of two bytes that lie side by side, from and to rows that begin so many elements apart.
struct Rows {
  int64_t rows, columns, to_stride, from_stride;
};
void copy_rows(void* to, const void* from, const Rows& rows, const RunContext& run);

}  // namespace broach::cuda
