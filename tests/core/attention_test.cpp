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

struct Head {
  int64_t rows, keys, depth, value_depth;
  bool causal, masked;
  std::vector<float> q, k, v, g, y, mask, logs;
  static constexpr float scale = 0.3f;

  Head(int64_t m, int64_t n, int64_t d, int64_t e, bool c, bool with_mask)
      : rows(m), keys(n), depth(d), value_depth(e), causal(c), masked(with_mask), y(m * e), logs(m) {
    int64_t next = 0;
    for (auto [t, count] : {std::pair(&q, m * d), {&k, n * d}, {&v, n * e}, {&g, m * e}, {&mask, m * n}})
      for (int64_t i = 0; i < count; ++i) t->push_back(element(++next));
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += weight(i, j);
      logs[i] = static_cast<float>(std::log(sum));
      for (int64_t x = 0; x < e; ++x) {
        double made = 0;
        for (int64_t j = 0; j < n; ++j) made += weight(i, j) / sum * v[j * e + x];
        y[i * e + x] = static_cast<float>(made);
      }
    }
  }
  double weight(int64_t i, int64_t j) const {
    double s = masked ? mask[i * keys + j] : 0;
    for (int64_t x = 0; x < depth; ++x) s += double(scale) * q[i * depth + x] * k[j * depth + x];
    return causal && j > i ? 0 : std::exp(s);
  }
  // Sum over all elements of g * result, whose derivatives the gradients are.
  double loss() const {
    double out = 0;
    for (int64_t i = 0; i < rows; ++i) {
      double sum = 0, made = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double w = weight(i, j), given = 0;
        for (int64_t x = 0; x < value_depth; ++x) given += double(g[i * value_depth + x]) * v[j * value_depth + x];
        sum += w, made += w * given;
      }
      out += made / sum;
    }
    return out;
  }
};

double slope(Head& h, std::vector<float>& x, size_t i) {
  const float was = x[i], step = 1e-2f;
  x[i] = was + step;
  const double above = h.loss(), up = x[i];
  x[i] = was - step;
  const double below = h.loss(), down = x[i];
  x[i] = was;
  return (above - below) / (up - down);
}

void check_gradient(AttentionGradientFn* code, Head h, int64_t parts) {
  std::vector<float> dq(h.q.size(), -1), dk(h.k.size(), -1), dv(h.v.size(), -1), sums(h.rows * attention_wide(h.depth)),
      scratch(attention_gradient_scratch(h.rows, h.depth, h.value_depth) + 16);
  AttentionGradient a{};
  a.query = {h.q.data(), h.depth, 1}, a.key = {h.k.data(), h.depth, 1}, a.value = {h.v.data(), h.value_depth, 1};
  a.gradient = {h.g.data(), h.value_depth, 1}, a.result = {h.y.data(), h.value_depth, 1};
  // Columns beside each other, and those of the keys' apart.
  a.key_gradient = {dk.data(), 1, h.keys}, a.value_gradient = {dv.data(), h.value_depth, 1};
  a.mask = h.masked ? h.mask.data() : nullptr, a.mask_row = h.keys, a.mask_col = 1;
  a.logsumexp = h.logs.data(), a.logsumexp_row = 1;
  a.rows = h.rows, a.depth = h.depth, a.value_depth = h.value_depth;
  a.scale = h.scale, a.causal = h.causal;
  a.query_sums = sums.data();
  a.scratch = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63});
  for (int64_t p = 0; p < parts; ++p) {
    a.first_key = h.keys * p / parts, a.last_key = h.keys * (p + 1) / parts;
    if (p + 1 == parts) a.query_gradient = {dq.data(), h.depth, 1};
    code(a);
  }
  auto check = [&](const char* of, std::vector<float>& x, size_t i, float have) {
    INFO(of, " ", i);
    CHECK(have == doctest::Approx(slope(h, x, i)).epsilon(2e-3).scale(0.1));
  };
  for (size_t i = 0; i < dq.size(); i += 1 + dq.size() / 60) check("query", h.q, i, dq[i]);
  for (size_t i = 0; i < dk.size(); i += 1 + dk.size() / 60) check("key", h.k, i, dk[i % h.depth * h.keys + i / h.depth]);
  for (size_t i = 0; i < dv.size(); i += 1 + dv.size() / 60) check("value", h.v, i, dv[i]);
}

void check_gradients(AttentionGradientFn* code) {
  check_gradient(code, Head(11, 70, 20, 20, true, false), 1);
  check_gradient(code, Head(50, 37, 16, 24, false, true), 1);
  check_gradient(code, Head(100, 150, 5, 70, true, true), 1);
  check_gradient(code, Head(7, 300, 33, 3, false, false), 2);
}

}  // namespace

TEST_CASE("the gradient of attention for SSE, AVX2 and AVX-512") {
  check_gradients(attention_gradient_sse);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) check_gradients(attention_gradient_avx2);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    check_gradients(attention_gradient_avx512);
}

TEST_CASE("attention for SSE, AVX2 and AVX-512") {
  check_code(attention_sse);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) check_code(attention_avx2);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    check_code(attention_avx512);
}
