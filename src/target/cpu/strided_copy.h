// Copies elements that lie anywhere, expanded or overlapping ones too, into a dense tensor.
#pragma once

#include <cstdint>
#include <span>

#include "support/parallel.h"

namespace broach::cpu {

// `bytes` of an element: 2, 4 or 8. Strides are in elements.
void copy_to_dense(std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t bytes, const void* from, void* to,
                   const Threads& threads);

}  // namespace broach::cpu
