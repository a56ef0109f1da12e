// The code of attention for each instruction set that this machine has.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "target/cpu/attention.h"

using namespace broach::cpu;

namespace {

constexpr int64_t kQueries = 11, kKeys = 70, kDepth = 20;

float element(int64_t i) { return std::sin(static_cast<float>(i) * 1.7f); }

std::vector<float> by_hand(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v) {
  std::vector<float> out;
  for (int64_t r = 0; r < kQueries; ++r) {
    std::vector<double> p;
    double sum = 0;
    for (int64_t j = 0; j <= std::min(r, kKeys - 1); ++j) {
      double s = 0;
      for (int64_t d = 0; d < kDepth; ++d) s += double(q[r * kDepth + d]) * k[j * kDepth + d];
      p.push_back(std::exp(0.5 * s));
      sum += p.back();
    }
    for (int64_t d = 0; d < kDepth; ++d) {
      double x = 0;
      for (size_t j = 0; j < p.size(); ++j) x += p[j] * v[j * kDepth + d];
      out.push_back(static_cast<float>(x / sum));
    }
  }
  return out;
}

void check_code(AttentionFn* code) {
  std::vector<float> q(kQueries * kDepth), k(kKeys * kDepth), v(kKeys * kDepth), out(q.size(), -1),
      scratch(attention_scratch(kDepth, kDepth) + 16);
  for (size_t i = 0; i < q.size(); ++i) q[i] = element(static_cast<int64_t>(i));
  for (size_t i = 0; i < k.size(); ++i) k[i] = element(static_cast<int64_t>(i) + 1000), v[i] = element(static_cast<int64_t>(i) + 5000);
  AttentionRows a{};
  a.query = q.data(), a.key = k.data(), a.value = v.data(), a.result = out.data();
  a.query_row = a.key_row = a.value_row = a.result_row = kDepth;
  a.query_col = a.key_col = a.value_col = a.result_col = 1;
  a.last = kQueries, a.keys = kKeys, a.depth = a.value_depth = kDepth;
  a.scale = 0.5f;
  a.causal = true;
  a.scratch = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63});
  code(a);
  auto want = by_hand(q, k, v);
  for (size_t i = 0; i < want.size(); ++i) CHECK(out[i] == doctest::Approx(want[i]).epsilon(1e-5));
}

}  // namespace

TEST_CASE("attention for SSE, AVX2 and AVX-512") {
  check_code(attention_sse);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) check_code(attention_avx2);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    check_code(attention_avx512);
}
