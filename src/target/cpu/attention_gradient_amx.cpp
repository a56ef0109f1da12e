#define BROACH_VECTOR_FLOATS 16
#define BROACH_BF16_DOT 1
#include "target/cpu/amx.h"
#include "target/cpu/attention_gradient_simd.h"

namespace broach::cpu {

namespace {

constexpr int64_t kBlock = kAmxGradientBlock;

// Scores are worked on with keys as rows and queries as columns, for what a query's row has in common then lies along a vector, and the
// weights come out transposed, as their products with gradients and queries need them.
struct Memory {
  int64_t rows, deep, wide;  // whole_deep
  // Of all rows: second operands for scores and their gradients, and for the gradients of keys and values.
  float *queries, *gradients, *query_pairs, *gradient_pairs;
  float *tops, *common;
  // Of a block of keys: first operands, the third for the gradients of queries.
  uint16_t *keys, *values, *keys_transposed;
  float *key_sums, *value_sums;
  // Of a block of keys and a block of rows.
  uint16_t *weights, *score_gradients;
  float *score_gradient_pairs, *scores, *weight_gradients;  // the last two: 32 x 32 at a time

  Memory(float* at, int64_t n, int64_t depth, int64_t value_depth)
      : rows(whole_deep(n)), deep(whole_deep(depth)), wide(whole_deep(value_depth)) {
    auto take = [&](int64_t size) { return at += size, at - size; };
    auto take_halves = [&](int64_t size) { return reinterpret_cast<uint16_t*>(take(size / 2)); };
    queries = take(rows * deep / 2), gradients = take(rows * wide / 2);
    query_pairs = take(rows * deep / 2), gradient_pairs = take(rows * wide / 2);
    tops = take(rows), common = take(rows);
    keys = take_halves(kBlock * deep), values = take_halves(kBlock * wide), keys_transposed = take_halves(kBlock * deep);
    key_sums = take(kBlock * deep), value_sums = take(kBlock * wide);
    weights = take_halves(kBlock * kBlock), score_gradients = take_halves(kBlock * kBlock);
    score_gradient_pairs = take(kBlock * kBlock / 2), scores = take(kDeep * kDeep), weight_gradients = take(kDeep * kDeep);
  }
};

inline Rows rows_of(const AttentionMatrix& m, int64_t rows, int64_t cols) {
  return {static_cast<const uint16_t*>(m.data), m.row, m.col, rows, cols};
}

// The transpose of rows [first, first + n), in rows of kBlock elements.
void pack_columns(const Rows& m, int64_t first, int64_t n, uint16_t* to) {
  for (int64_t r = 0; r < n; r += kDeep)
    for (int64_t c = 0; c < m.cols; c += kDeep) {
      alignas(64) float pairs[2 * kTileWords];
      pack_pairs({m.data + c * m.col, m.row, m.col, first + n, m.cols - c < kDeep ? m.cols - c : kDeep}, first + r,
                 n - r < kDeep ? n - r : kDeep, pairs);
      for (int half = 0; half < 2; ++half) {
        Floats v[kWidth];
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) v[i] = load(pairs + half * kTileWords + i * kWidth);
        transpose_step<kWidth / 2>(v);
        for (int i = 0; i < kWidth; ++i) _mm512_storeu_ps(to + (c + half * 16 + i) * kBlock + r, v[i]);
      }
    }
}

void pack_all_rows(const AttentionGradient& a, const Memory& m) {
  const Rows queries = rows_of(a.query, a.rows, a.depth), gradients = rows_of(a.gradient, a.rows, a.value_depth);
  pack_transposed(queries, 0, a.rows, m.queries);
  pack_transposed(gradients, 0, a.rows, m.gradients);
  pack_pairs(queries, 0, a.rows, m.query_pairs);
  pack_pairs(gradients, 0, a.rows, m.gradient_pairs);
  common_parts<BF16>(a, m.common);
  for (int64_t r = 0; r < a.rows; ++r) m.tops[r] = a.logsumexp[r * a.logsumexp_row] * kLog2E;
  for (int64_t r = a.rows; r < m.rows; ++r) m.tops[r] = __builtin_inff(), m.common[r] = 0;  // has no weight for any key
}

// What rows [row, row + 16) add to their scores for one key.
inline Floats mask_of(const AttentionGradient& a, int64_t row, int64_t key) {
  if (a.mask_row == 0) return splat(a.mask[key * a.mask_col]);
  alignas(64) float part[kWidth];
  for (int64_t i = 0; i < kWidth; ++i) part[i] = row + i < a.rows ? a.mask[(row + i) * a.mask_row + key * a.mask_col] : 0;
  return load(part);
}

struct Weighed {
  Floats weight, score_gradient;
};

// Rows [row, row + 16) and one key.
inline Weighed weigh_column(const AttentionGradient& a, const Memory& m, int64_t row, int64_t key, Floats score, Floats weight_gradient) {
  score *= a.scale * kLog2E;
  if (a.mask) score += in_log2(mask_of(a, row, key));
  const Floats weight = exp2_for_bf16(at_most_0(score - load(m.tops + row)));
  const Floats gradient = weight * (weight_gradient - load(m.common + row)) * a.scale;
  if (!a.causal || key <= row) return {weight, gradient};
  const int64_t hidden = key - row;  // the first so many rows do not see the key
  const __mmask16 seen = hidden >= kWidth ? 0 : static_cast<__mmask16>(0xffff << hidden);
  return {_mm512_maskz_mov_ps(seen, weight), _mm512_maskz_mov_ps(seen, gradient)};
}

// Weights of 32 rows for keys [at, at + 32) of the block from `start` on, which has n, and the gradients of their scores.
void weigh_tiles(const AttentionGradient& a, const Memory& m, int64_t start, int64_t at, int64_t n, int64_t row, int64_t first_row) {
  multiply_tiles<2>(m.keys + at * m.deep, m.deep, {m.queries + row * m.deep / 2, kTileWords, 16 * m.deep / 2}, m.deep / kDeep,
                    {m.scores, kDeep}, false);
  multiply_tiles<2>(m.values + at * m.wide, m.wide, {m.gradients + row * m.wide / 2, kTileWords, 16 * m.wide / 2}, m.wide / kDeep,
                    {m.weight_gradients, kDeep}, false);
  const int64_t place = at * kBlock + row - first_row;
  for (int64_t k = 0; k < kDeep; k += 2) {
    __m512i both[2];
#pragma GCC unroll 2
    for (int64_t i = 0; i < 2; ++i) {
      Weighed low{}, high{};
      const int64_t key = k + i;
      if (at + key < n) {
        low = weigh_column(a, m, row, start + at + key, load(m.scores + key * kDeep), load(m.weight_gradients + key * kDeep));
        high = weigh_column(a, m, row + kWidth, start + at + key, load(m.scores + key * kDeep + kWidth),
                            load(m.weight_gradients + key * kDeep + kWidth));
      }
      both[i] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.score_gradient, low.score_gradient));
      _mm512_storeu_si512(m.weights + place + key * kBlock, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.weight, low.weight)));
      _mm512_storeu_si512(m.score_gradients + place + key * kBlock, both[i]);
    }
    float* pairs = m.score_gradient_pairs + at / kDeep * (kBlock * 16) + (row - first_row) * 16 + k / 2 * kWidth;
    store(pairs, pairs_of(both[0], both[1], 0));
    store(pairs + kTileWords, pairs_of(both[0], both[1], 1));
  }
}

// A block of keys, n of them, and rows [row, last).
void add_gradients(const AttentionGradient& a, const Memory& m, int64_t start, int64_t n, int64_t row, int64_t last) {
  const int64_t keys = whole_deep(n), rows = whole_deep(last - row);
  for (int64_t at = 0; at < keys; at += kDeep)
    for (int64_t r = row; r < row + rows; r += kDeep) weigh_tiles(a, m, start, at, n, r, row);
  for (int64_t at = 0; at < keys; at += kDeep) {
    for (int64_t c = 0; c < m.wide; c += kDeep)
      multiply_tiles<2>(m.weights + at * kBlock, kBlock, {m.gradient_pairs + row * m.wide / 2 + c * 16, m.wide * 16, kTileWords},
                        rows / kDeep, {m.value_sums + at * m.wide + c, m.wide}, true);
    for (int64_t c = 0; c < m.deep; c += kDeep)
      multiply_tiles<2>(m.score_gradients + at * kBlock, kBlock, {m.query_pairs + row * m.deep / 2 + c * 16, m.deep * 16, kTileWords},
                        rows / kDeep, {m.key_sums + at * m.deep + c, m.deep}, true);
  }
  for (int64_t d = 0; d < m.deep; d += kDeep)
    for (int64_t r = 0; r < rows; r += kDeep)
      multiply_tiles<2>(m.keys_transposed + d * kBlock, kBlock, {m.score_gradient_pairs + r * 16, kBlock * 16, kTileWords}, keys / kDeep,
                        {a.query_sums + d * m.rows + row + r, m.rows}, true);
}

void gradients_of_block(const AttentionGradient& a, const Memory& m, int64_t start, int64_t n) {
  const Rows keys = rows_of(a.key, start + n, a.depth);
  pack_rows(keys, start, n, whole_deep(n), m.keys);
  pack_rows(rows_of(a.value, start + n, a.value_depth), start, n, whole_deep(n), m.values);
  pack_columns(keys, start, n, m.keys_transposed);
  for (int64_t i = 0; i < kBlock * m.deep; i += kWidth) store(m.key_sums + i, Floats{});
  for (int64_t i = 0; i < kBlock * m.wide; i += kWidth) store(m.value_sums + i, Floats{});
  for (int64_t row = a.causal ? start / kDeep * kDeep : 0; row < a.rows; row += kBlock)
    add_gradients(a, m, start, n, row, a.rows - row < kBlock ? a.rows : row + kBlock);
  write_rows<BF16>(a.key_gradient, start, n, a.depth, m.deep, m.key_sums);
  write_rows<BF16>(a.value_gradient, start, n, a.value_depth, m.wide, m.value_sums);
}

// The sums for queries have the queries as columns.
void write_query_gradient(const AttentionGradient& a, const Memory& m) {
  for (int64_t r = 0; r < a.rows; r += kWidth)
    for (int64_t d = 0; d < a.depth; d += kWidth) {
      Floats v[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) v[i] = load(a.query_sums + (d + i) * m.rows + r);
      transpose_step<kWidth / 2>(v);
      alignas(64) float part[kWidth * kWidth];
      for (int i = 0; i < kWidth; ++i) store(part + i * kWidth, v[i]);
      AttentionMatrix to = a.query_gradient;
      to.data = static_cast<const uint16_t*>(to.data) + d * to.col;
      write_rows<BF16>(to, r, a.rows - r < kWidth ? a.rows - r : kWidth, a.depth - d < kWidth ? a.depth - d : kWidth, kWidth, part);
    }
}

void gradients_in_tiles(const AttentionGradient& a) {
  const Memory m(a.scratch, a.rows, a.depth, a.value_depth);
  if (a.first_key < a.last_key) {
    const FullTiles tiles;
    pack_all_rows(a, m);
    for (int64_t start = a.first_key; start < a.last_key; start += kBlock)
      gradients_of_block(a, m, start, a.last_key - start < kBlock ? a.last_key - start : kBlock);
  }
  if (a.query_gradient.data) write_query_gradient(a, m);
}

}  // namespace

void attention_gradient_amx(const AttentionGradient& a) {
  if (a.bf16 && a.depth > 0 && a.value_depth > 0) return gradients_in_tiles(a);
  attention_gradient_avx512(a);
}

}  // namespace broach::cpu
