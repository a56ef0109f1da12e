// The gradients of attention.h, with the tiles of attention_simd.h. Included by one file for each instruction set.
#pragma once

#include "target/cpu/attention_simd.h"

namespace broach::cpu {

namespace {

// Rows [first, first + n) in f32, zeros behind the last column.
template <class E>
void copy_rows(const AttentionMatrix& m, int64_t first, int64_t n, int64_t depth, int64_t wide, float* to) {
  const auto* from = static_cast<const typename E::Stored*>(m.data) + first * m.row;
  for (int64_t r = 0; r < n; ++r, from += m.row, to += wide) {
    int64_t d = 0;
    if (m.col == 1)
      for (; d + kWidth <= depth; d += kWidth) store(to + d, E::vector(from + d));
    for (; d < depth; ++d) to[d] = E::get(from[d * m.col]);
    for (; d < wide; ++d) to[d] = 0;
  }
}

template <class E>
void write_rows(const AttentionMatrix& m, int64_t first, int64_t n, int64_t depth, int64_t wide, const float* from) {
  if (!m.data) return;
  auto* to = static_cast<typename E::Stored*>(const_cast<void*>(m.data)) + first * m.row;
  for (int64_t r = 0; r < n; ++r, to += m.row, from += wide) {
    int64_t d = 0;
    if (m.col == 1)
      for (; d + kWidth <= depth; d += kWidth) E::put(to + d, load(from + d));
    for (; d < depth; ++d) to[d * m.col] = E::put(from[d]);
  }
}

// Rows [first, first + n) as columns, in the panels of pack_keys.
template <class E>
void copy_columns(const AttentionMatrix& m, int64_t first, int64_t n, int64_t depth, int64_t columns, float* to) {
  AttentionRows rows{};
  rows.key = m.data, rows.key_row = m.row, rows.key_col = m.col, rows.depth = depth;
  pack_keys<E>(rows, first, n, columns, to);
}

// What each row's gradient and result have in common: with it, and a weight, the gradient of a score is known.
template <class E>
void common_parts(const AttentionGradient& a, float* out) {
  using T = typename E::Stored;
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* g = static_cast<const T*>(a.gradient.data) + r * a.gradient.row;
    const T* y = static_cast<const T*>(a.result.data) + r * a.result.row;
    Floats sum{};
    int64_t d = 0;
    if (a.gradient.col == 1 && a.result.col == 1)
      for (; d + kWidth <= a.value_depth; d += kWidth) sum += E::vector(g + d) * E::vector(y + d);
    float rest = 0;
    for (; d < a.value_depth; ++d) rest += E::get(g[d * a.gradient.col]) * E::get(y[d * a.result.col]);
    out[r] = rest + across(sum, [](float x, float y) { return x + y; });
  }
}

// c[rows][columns] = x[rows][depth] times columns packed in panels.
inline void scores_of(const float* x, int64_t rows, int64_t wide, const float* columns, int64_t most, int64_t packed, int64_t depth,
                      float* c) {
  for (int64_t at = 0; at < most; at += kPanel) {
    const int64_t width = panel_width(packed, at);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int count = static_cast<int>(rows - r < kRows ? rows - r : kRows);
      tile_of<false>(count, static_cast<int>(width / kWidth))(x + r * wide, wide, columns + at * depth, width, c + r * kGradientKeys + at,
                                                              kGradientKeys, depth, false);
    }
  }
}

// c[rows][wide] += a b, or a' b where the rows of c are columns of `a`.
template <bool Transposed>
void add_product(const float* a, int64_t rows, const float* b, int64_t n, int64_t wide, float* c) {
  for (int64_t r = 0; r < rows; r += kRows)
    for (int64_t at = 0; at < wide; at += kPanel) {
      const int count = static_cast<int>(rows - r < kRows ? rows - r : kRows), vectors = static_cast<int>(panel_width(wide, at) / kWidth);
      tile_of<false, Transposed>(count, vectors)(Transposed ? a + r : a + r * kGradientKeys, kGradientKeys, b + at, wide, c + r * wide + at,
                                                 wide, n, true);
    }
}

// No weight is more than 1, wherever a large score and its row's logarithm were rounded to. NaN stays.
inline Floats at_most_0(Floats x) { return x > 0.0f ? Floats{} : x; }

// Scores of a row become weights, what its gradient and the values gave becomes the gradient of its scores. Keys from `seen` on are not
// seen by the row.
inline void weigh(const AttentionGradient& a, int64_t row, int64_t first_key, int64_t n, int64_t seen, float common, float* scores,
                  float* gradients) {
  const float scale = a.scale * kLog2E, top = a.logsumexp[row * a.logsumexp_row] * kLog2E;
  const float* mask = a.mask ? a.mask + row * a.mask_row + first_key * a.mask_col : nullptr;
  if (mask)
    for (int64_t i = 0; i < n; ++i) scores[i] = scores[i] * scale + in_log2(mask[i * a.mask_col]);
  const float factor = mask ? 1 : scale;
  for (int64_t i = 0; i < n; i += kWidth) {
    const Floats weights = exp2_of(at_most_0(load(scores + i) * factor - top));
    store(scores + i, weights);
    store(gradients + i, weights * (load(gradients + i) - common) * a.scale);
  }
  for (int64_t i = seen > 0 ? seen : 0; i < n; ++i) scores[i] = gradients[i] = 0;
}

struct GradientScratch {
  float *key_columns, *value_columns, *keys, *key_sums, *value_sums, *queries, *gradients, *weights, *score_gradients, *common;
  GradientScratch(float* at, int64_t depth, int64_t value_depth) {
    const int64_t wide = attention_wide(depth), value_wide = attention_wide(value_depth);
    auto take = [&](int64_t n) { return at += n, at - n; };
    key_columns = take(kGradientKeys * wide), value_columns = take(kGradientKeys * value_wide), keys = take(kGradientKeys * wide);
    key_sums = take(kGradientKeys * wide), value_sums = take(kGradientKeys * value_wide);
    queries = take(kGradientRows * wide), gradients = take(kGradientRows * value_wide);
    weights = take(kGradientRows * kGradientKeys), score_gradients = take(kGradientRows * kGradientKeys);
    common = at;
  }
};

// A block of keys against all rows that see some of them.
template <class E>
void gradients_of_block(const AttentionGradient& a, const GradientScratch& s, int64_t start, int64_t n) {
  const int64_t wide = whole_vectors(a.depth), value_wide = whole_vectors(a.value_depth);
  const int64_t packed = whole_vectors(n);
  copy_columns<E>(a.key, start, n, a.depth, packed, s.key_columns);
  copy_columns<E>(a.value, start, n, a.value_depth, packed, s.value_columns);
  copy_rows<E>(a.key, start, n, a.depth, wide, s.keys);
  for (int64_t i = 0; i < n * wide; ++i) s.key_sums[i] = 0;
  for (int64_t i = 0; i < n * value_wide; ++i) s.value_sums[i] = 0;
  for (int64_t row = a.causal ? start / kGradientRows * kGradientRows : 0; row < a.rows; row += kGradientRows) {
    const int64_t count = a.rows - row < kGradientRows ? a.rows - row : kGradientRows;
    const int64_t most = a.causal && row + count - start < n ? row + count - start : n;
    if (most <= 0) continue;
    copy_rows<E>(a.query, row, count, a.depth, wide, s.queries);
    copy_rows<E>(a.gradient, row, count, a.value_depth, value_wide, s.gradients);
    scores_of(s.queries, count, wide, s.key_columns, most, packed, a.depth, s.weights);
    scores_of(s.gradients, count, value_wide, s.value_columns, most, packed, a.value_depth, s.score_gradients);
    for (int64_t r = 0; r < count; ++r)
      weigh(a, row + r, start, most, a.causal ? row + r + 1 - start : most, s.common[row + r], s.weights + r * kGradientKeys,
            s.score_gradients + r * kGradientKeys);
    add_product<true>(s.weights, most, s.gradients, count, value_wide, s.value_sums);
    add_product<true>(s.score_gradients, most, s.queries, count, wide, s.key_sums);
    add_product<false>(s.score_gradients, count, s.keys, most, wide, a.query_sums + row * wide);
  }
  write_rows<E>(a.key_gradient, start, n, a.depth, wide, s.key_sums);
  write_rows<E>(a.value_gradient, start, n, a.value_depth, value_wide, s.value_sums);
}

template <class E>
void gradients_of(const AttentionGradient& a) {
  const GradientScratch s(a.scratch, a.depth, a.value_depth);
  if (a.first_key < a.last_key) common_parts<E>(a, s.common);
  for (int64_t start = a.first_key; start < a.last_key; start += kGradientKeys)
    gradients_of_block<E>(a, s, start, a.last_key - start < kGradientKeys ? a.last_key - start : kGradientKeys);
  write_rows<E>(a.query_gradient, 0, a.rows, a.depth, whole_vectors(a.depth), a.query_sums);
}

[[maybe_unused]] void gradients_of_any(const AttentionGradient& a) { a.bf16 ? gradients_of<BF16>(a) : gradients_of<F32>(a); }

}  // namespace

}  // namespace broach::cpu
