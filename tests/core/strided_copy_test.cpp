#include "target/cpu/strided_copy.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <vector>

TEST_CASE("strided copy: expanded, overlapping and turned elements become dense") {
  struct Case {
    std::vector<int64_t> sizes, strides;
  };
  const std::vector<Case> cases = {{{5}, {0}},       {{3, 4}, {0, 1}},        {{3, 4}, {2, 1}},
                                   {{3, 4}, {1, 3}}, {{2, 3, 4}, {12, 0, 1}}, {{2, 3, 4, 5}, {1, 7, 0, 3}},
                                   {{2, 0}, {1, 1}}};
  std::vector<uint32_t> from(200);
  std::iota(from.begin(), from.end(), 0u);
  for (const Case& c : cases) {
    int64_t n = 1;
    for (int64_t s : c.sizes) n *= s;
    std::vector<uint32_t> to(static_cast<size_t>(n) + 1, 77u);
    broach::cpu::copy_to_dense(c.sizes, c.strides, 4, from.data(), to.data(), broach::SerialThreads());
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i, at = 0;
      for (size_t d = c.sizes.size(); d-- > 0; rest /= c.sizes[d]) at += rest % c.sizes[d] * c.strides[d];
      CHECK(to[static_cast<size_t>(i)] == from[static_cast<size_t>(at)]);
    }
    CHECK(to.back() == 77u);
  }
}
