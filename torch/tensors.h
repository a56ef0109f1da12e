// What several files ask of a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <utility>

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

// The bytes of its storage from the first that a dense tensor has to the one behind its last.
using Reach = std::pair<int64_t, int64_t>;
inline Reach reach_in_storage(const at::Tensor& t) {
  const int64_t first = t.storage_offset() * static_cast<int64_t>(t.itemsize());
  return {first, first + static_cast<int64_t>(bytes_of(t))};
}
// Of an argument or a result of an operation.
template <class Look>
void for_each_tensor_in(const c10::IValue& v, Look look) {
  if (v.isTensor()) look(v.toTensor());
  else if (v.isTensorList() || v.isOptionalTensorList())
    for (const c10::IValue& element : v.toListRef())
      if (element.isTensor()) look(element.toTensor());
}

inline bool meet(const Reach& a, const Reach& b) { return a.first < b.second && b.first < a.second; }

}  // namespace broach
