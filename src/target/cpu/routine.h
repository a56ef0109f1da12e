// Routines on the CPU: scans, sorts, searches and scattered writes, as templates over element types.
//
// They are compiled with the library, not for a program: what they do is bound by memory, by comparisons or by a chain of
// dependent operations, so that code made for the sizes at hand would bring little.
#pragma once

#include <functional>
#include <memory>

#include "target/target.h"

namespace broach::cpu {

// Null if there is no routine for these element types.
std::shared_ptr<const CompiledRoutine> make_routine(const Operation& operation);

// Whether there is one for first operands of this element type.
bool has_routine(Op op, DType dtype);

// ---- for the families of routines ----

// False if an index was out of bounds: the results are then not to be used.
using RoutineFunction = std::function<bool(const RoutineArgs&, const Threads&)>;

// Empty if there is none for these element types.
RoutineFunction make_scan(const Operation& operation);
RoutineFunction make_order(const Operation& operation);  // sort, topk, kth, median, mode
RoutineFunction make_search(const Operation& operation);
RoutineFunction make_scatter(const Operation& operation);
RoutineFunction make_update(const Operation& operation);
RoutineFunction make_sum_rows(const Operation& operation);
RoutineFunction make_attention(const Operation& operation);  // and its gradient

constexpr size_t kMostLines = 4;  // tensors that are walked together

// Lines of several tensors that lie at equal distances: line j of tensor t starts at offset[t] + j * across[t], and its
// elements are along[t] apart. All in elements.
struct LineRun {
  int64_t lines;
  int64_t offset[kMostLines], across[kMostLines], along[kMostLines];
};

// Calls body for runs that make up all lines of tensors[0] along dimension `dim`, in parallel; `work` is about what a line
// costs, in element operations. The other tensors have its other dimensions at least; one without `dim` (a reduction's
// result) does not move along it, and null stands for a tensor that is absent.
void for_each_run(std::span<const RoutineTensor* const> tensors, size_t dim, int64_t work, const Threads& threads,
                  const std::function<void(const LineRun&)>& body);

}  // namespace broach::cpu
