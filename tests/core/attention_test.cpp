// The code of attention for each instruction set that this machine has.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>
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
  a.last = a.head_rows = kQueries, a.keys = kKeys, a.depth = a.value_depth = kDepth;
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
  std::vector<float> dq(h.q.size(), -1), dk(h.k.size(), -1), dv(h.v.size(), -1), sums(attention_query_sums(h.rows, h.depth)),
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

// One head in bf16, with columns beside each other or rows, and what two codes make of it.
struct HalfHead {
  int64_t rows, keys, depth, value_depth;
  bool by_columns, causal;
  int mask_kind;  // 0: none, 1: of all rows, 2: one for all rows
  std::vector<uint16_t> q, k, v, g;
  std::vector<float> mask, scratch, sums;

  HalfHead(int64_t m, int64_t n, int64_t d, int64_t e, bool columns, bool c, int kind)
      : rows(m), keys(n), depth(d), value_depth(e), by_columns(columns), causal(c), mask_kind(kind) {
    int64_t next = 0;
    for (auto [t, count] : {std::pair(&q, m * d), {&k, n * d}, {&v, n * e}, {&g, m * e}})
      for (int64_t i = 0; i < count; ++i) t->push_back(half(element(++next)));
    for (int64_t i = 0; i < m * n; ++i) mask.push_back(i % 7 == 3 ? -INFINITY : element(++next));
    scratch.resize(std::max(attention_scratch(d, e), attention_gradient_scratch(m, d, e)) + 16, NAN);
    sums.resize(attention_query_sums(m, d));
  }
  static uint16_t half(float x) { return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + 0x8000) >> 16); }
  static float whole(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
  float* memory() { return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t{63}); }
  AttentionMatrix matrix(const std::vector<uint16_t>& x, int64_t m, int64_t d) const {
    return by_columns ? AttentionMatrix{x.data(), 1, m} : AttentionMatrix{x.data(), d, 1};
  }
  void mask_strides(int64_t& row, int64_t& col) const { row = mask_kind == 1 ? keys : 0, col = 1; }

  struct Forward {
    std::vector<uint16_t> result;
    std::vector<float> logs;
  };
  Forward forward(AttentionFn* code) {
    Forward out{std::vector<uint16_t>(rows * value_depth), std::vector<float>(rows)};
    AttentionRows a{};
    auto put = [](const AttentionMatrix& m, auto& data, int64_t& row, int64_t& col) { data = m.data, row = m.row, col = m.col; };
    put(matrix(q, rows, depth), a.query, a.query_row, a.query_col);
    put(matrix(k, keys, depth), a.key, a.key_row, a.key_col);
    put(matrix(v, keys, value_depth), a.value, a.value_row, a.value_col);
    a.result = out.result.data(), a.result_row = value_depth, a.result_col = 1, a.logsumexp = out.logs.data(), a.logsumexp_row = 1;
    a.mask = mask_kind ? mask.data() : nullptr;
    mask_strides(a.mask_row, a.mask_col);
    a.keys = keys, a.depth = depth, a.value_depth = value_depth, a.scale = 0.3f, a.causal = causal, a.bf16 = true, a.scratch = memory();
    a.head_rows = rows;
    for (; a.first < rows; a.first = a.last) {
      a.last = std::min(rows, a.first + (code == attention_amx ? kAmxAttentionRows : kAttentionRows));
      code(a);
    }
    return out;
  }

  struct Backward {
    std::vector<uint16_t> q, k, v;
  };
  Backward backward(AttentionGradientFn* code, const Forward& made) {
    Backward out{std::vector<uint16_t>(q.size()), std::vector<uint16_t>(k.size()), std::vector<uint16_t>(v.size())};
    AttentionGradient a{};
    a.query = matrix(q, rows, depth), a.key = matrix(k, keys, depth), a.value = matrix(v, keys, value_depth);
    a.gradient = matrix(g, rows, value_depth), a.result = {made.result.data(), value_depth, 1};
    a.key_gradient = matrix(out.k, keys, depth), a.value_gradient = matrix(out.v, keys, value_depth);
    a.mask = mask_kind ? mask.data() : nullptr, a.logsumexp = made.logs.data(), a.logsumexp_row = 1;
    mask_strides(a.mask_row, a.mask_col);
    a.rows = rows, a.depth = depth, a.value_depth = value_depth, a.scale = 0.3f, a.causal = causal, a.bf16 = true;
    a.scratch = memory(), a.query_sums = sums.data();
    std::fill(sums.begin(), sums.end(), 0.0f);
    const int64_t middle = std::min<int64_t>(keys, kAmxGradientBlock);
    a.last_key = middle;
    code(a);
    a.first_key = middle, a.last_key = keys;
    a.query_gradient = matrix(out.q, rows, depth);
    code(a);
    return out;
  }
};

// bf16 has eight bits; weights that add up to about one, rounded to them, are off by 1/256 together, however small what they sum.
void check_near(const std::vector<uint16_t>& have, const std::vector<uint16_t>& want) {
  float largest = 0, gap = 0;
  for (uint16_t w : want) largest = std::max(largest, std::abs(HalfHead::whole(w)));
  for (size_t i = 0; i < want.size(); ++i) {
    const float d = std::abs(HalfHead::whole(have[i]) - HalfHead::whole(want[i]));
    gap = d <= gap ? gap : d;  // NaN is kept
  }
  CHECK(largest > 0);
  CHECK(gap <= largest / 64 + 1.0f / 128);
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

TEST_CASE("attention and its gradient on AMX are those of SSE in bf16") {
  if (!may_use_amx()) return;
  for (const auto& [rows, keys, depth, value_depth] : {std::array<int64_t, 4>{3, 5, 64, 64},
                                                       {16, 16, 8, 8},
                                                       {33, 70, 64, 64},
                                                       {200, 300, 64, 32},
                                                       {131, 257, 80, 40},
                                                       {40, 600, 128, 128},
                                                       {17, 64, 33, 31},
                                                       {20, 90, 320, 64},
                                                       {540, 90, 64, 64}})
    for (bool by_columns : {false, true})
      for (bool causal : {false, true})
        for (int mask_kind : {0, 1, 2}) {
          INFO(rows, " ", keys, " ", depth, " ", value_depth, " ", by_columns, " ", causal, " ", mask_kind);
          HalfHead h(rows, keys, depth, value_depth, by_columns, causal, mask_kind);
          const auto want = h.forward(attention_sse), have = h.forward(attention_amx);
          check_near(have.result, want.result);
          for (int64_t r = 0; r < rows; ++r) CHECK(have.logs[r] == doctest::Approx(want.logs[r]).epsilon(1e-4));
          const auto wanted = h.backward(attention_gradient_sse, want), had = h.backward(attention_gradient_amx, want);
          check_near(had.q, wanted.q);
          check_near(had.k, wanted.k);
          check_near(had.v, wanted.v);
        }
}
