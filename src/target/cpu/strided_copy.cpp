#include "target/cpu/strided_copy.h"

#include <cstddef>
#include <cstring>

#include "support/error.h"

namespace broach::cpu {

namespace {

constexpr int64_t kOperations = 24;  // as long as copying an element from far apart

int64_t product(std::span<const int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

template <class T>
void copy_row(const T* from, T* to, int64_t n, int64_t stride) {
  if (stride == 1) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  else
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
}

// Where row number `row` of all dimensions but the last begins.
int64_t start_of(int64_t row, std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t at = 0;
  for (size_t d = sizes.size(); d-- > 0; row /= sizes[d]) at += row % sizes[d] * strides[d];
  return at;
}

template <class T>
void copy_rows(std::span<const int64_t> sizes, std::span<const int64_t> strides, const T* from, T* to, const Threads& threads) {
  const size_t outer = sizes.size() - 1;
  const int64_t n = sizes[outer], rows = product(sizes.first(outer));
  threads.parallel_for(rows, grain_for(rows, kOperations * (n + 1), threads.count()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      copy_row(from + start_of(row, sizes.first(outer), strides), to + row * n, n, strides[outer]);
  });
}

}  // namespace

void copy_to_dense(std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t bytes, const void* from, void* to,
                   const Threads& threads) {
  if (sizes.empty() || product(sizes) == 0) return;
  switch (bytes) {
    case 2: return copy_rows(sizes, strides, static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to), threads);
    case 4: return copy_rows(sizes, strides, static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to), threads);
    case 8: return copy_rows(sizes, strides, static_cast<const uint64_t*>(from), static_cast<uint64_t*>(to), threads);
    default: fail("cpu: copying elements of ", bytes, " bytes");
  }
}

}  // namespace broach::cpu
