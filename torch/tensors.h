// What several files ask of a tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace broach {

// How often it was written in place; 0 for what counts no versions.
inline int64_t version_of(const at::Tensor& t) { return t.defined() && !t.is_inference() ? static_cast<int64_t>(t._version()) : 0; }

// Of memory, from its first element to its last.
inline size_t bytes_of(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return static_cast<size_t>(last + 1) * t.itemsize();
}

}  // namespace broach
