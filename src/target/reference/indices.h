// Indices of tensors, in row-major order.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace broach::reference {

using Sizes = std::vector<int64_t>;

inline int64_t count(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

inline int64_t dot_product(std::span<const int64_t> index, std::span<const int64_t> strides) {
  return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
}

// f(index, position) for every index in row-major order.
template <class F>
void for_each_index(const Sizes& sizes, const F& f) {
  Sizes index(sizes.size());
  const int64_t n = count(sizes);
  for (int64_t position = 0; position < n; ++position) {
    f(std::as_const(index), position);
    for (size_t d = sizes.size(); d-- > 0;) {
      if (++index[d] < sizes[d]) break;
      index[d] = 0;
    }
  }
}

inline Sizes strides_of(std::span<const int64_t> sizes) {
  Sizes strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0; step *= sizes[i]) strides[i] = step;
  return strides;
}

}  // namespace broach::reference
