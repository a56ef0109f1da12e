#define BROACH_VECTOR_FLOATS 16
#define BROACH_BF16_DOT 1
#include "target/cpu/amx.h"

namespace broach::cpu {

namespace {

constexpr int64_t kGroup = 32;  // query rows whose scores are in the first-level cache

// An element of a row of scores, which lie in tiles that follow each other.
inline float* in_tiles(float* row, int64_t i) { return row + i / kTileRows * kTileWords + i % kTileRows; }

// Memory of one piece of work. Scores of a group's rows against a block of keys, the weights that they become; of all rows, queries, sums
// of values and their state.
struct Memory {
  uint16_t *queries, *weights;
  float *keys, *values, *scores, *sums;
  float *tops, *totals;       // of a row: the largest score so far, in units of log2; weights added up, in relation to it
  int64_t block, deep, wide;  // keys of a block; whole_deep of the depths

  Memory(float* at, int64_t depth, int64_t value_depth) : deep(whole_deep(depth)), wide(whole_deep(value_depth)) {
    block = amx_attention_keys(deep > wide ? deep : wide);
    auto take = [&](int64_t n) { return at += n, at - n; };
    queries = reinterpret_cast<uint16_t*>(take(kAmxAttentionRows * deep / 2));
    weights = reinterpret_cast<uint16_t*>(take(kGroup * block / 2));
    keys = take(block * deep / 2), values = take(block * wide / 2);
    scores = take(kGroup * block), sums = take(kAmxAttentionRows * wide);
    tops = take(kAmxAttentionRows), totals = take(kAmxAttentionRows);
  }
};

// Scores that a row sees, as they are to be multiplied by the factor that is returned, which is positive; -inf for the rest of `columns`.
inline float scale_and_mask(const AttentionRows& a, float* scores, int64_t seen, int64_t columns, const float* mask) {
  const float scale = a.scale * kLog2E;
  const bool plain = !mask && scale > 0;
  for (int64_t i = 0; !plain && i < seen; i += kWidth) {
    Floats x = load(in_tiles(scores, i)) * scale;
    if (mask && a.mask_col == 1) x += in_log2(_mm512_maskz_loadu_ps(seen - i < kWidth ? (1u << (seen - i)) - 1 : 0xffff, mask + i));
    store(in_tiles(scores, i), x);
  }
  if (mask && a.mask_col != 1)
    for (int64_t i = 0; i < seen; ++i) *in_tiles(scores, i) += in_log2(mask[i * a.mask_col]);
  for (int64_t i = seen; i < columns; ++i) *in_tiles(scores, i) = -__builtin_inff();
  return plain ? scale : 1;
}

// One of each row's elements, by `f`, which takes two at a time: lane i of the result is of v[i].
template <int Half = kWidth / 2, class F>
inline Floats reduce_rows(Floats* v, F f) {
#pragma GCC unroll 8
  for (int i = 0; i < Half; ++i) {
    exchange<Half>(v[i], v[i + Half]);
    v[i] = f(v[i], v[i + Half]);
  }
  if constexpr (Half > 1) return reduce_rows<Half / 2>(v, f);
  return v[0];
}

inline Floats larger(Floats x, Floats y) { return x > y ? x : y; }

// What 16 rows of scores become: weights in bf16, whose sums and largest scores are of the rows from `row` of the piece on. As soften(), but
// for what rows are reduced to, which is computed of all at once: one after the other they would wait for it. `columns` is a multiple of 32;
// scores of row i are to be multiplied by factors[i].
inline void weigh_rows(const Memory& m, int64_t row, float* scores, int64_t columns, float* factors, uint16_t* weights) {
  constexpr float kLowest = -__builtin_inff();
  alignas(64) float bases[kWidth];
  Floats v[kWidth];
#pragma GCC unroll 1
  for (int i = 0; i < kWidth; ++i) {
    const float* at = scores + i * kWidth;
    Floats most = splat(kLowest), most2 = most;
    for (const float* end = at + columns * kWidth; at < end; at += 2 * kTileWords)
      most = larger(load(at), most), most2 = larger(load(at + kTileWords), most2);
    v[i] = larger(most, most2);
  }
  const Floats before = load(m.tops + row), top = larger(reduce_rows(v, larger) * load(factors), before);
  const Floats base = top == kLowest ? Floats{} : top;
  store(bases, base);
  // A multiplication and a subtraction that are rounded as one leave of the largest what the other rounding took: here so much that a weight
  // of one is seen to be none.
  constexpr float kLarge = 1 << 8;
  const __mmask16 large = _mm512_cmp_ps_mask(_mm512_abs_ps(base), splat(kLarge), _CMP_GT_OQ);
  for (int i = 0; large && i < kWidth; ++i) {
    if (!(large >> i & 1)) continue;
    for (int64_t c = 0; c < columns; c += kWidth)
      store(in_tiles(scores + i * kWidth, c), load(in_tiles(scores + i * kWidth, c)) * factors[i]);
    factors[i] = 1;
  }
#pragma GCC unroll 1
  for (int i = 0; i < kWidth; ++i) {
    const Floats factor = splat(factors[i]), own = splat(bases[i]);
    Floats sum{}, sum2{};
    const float* at = scores + i * kWidth;
    uint16_t* to = weights + i * m.block;
    for (const float* end = at + columns * kWidth; at < end; at += 2 * kTileWords, to += 2 * kWidth) {
      const Floats x = exp2_for_bf16(load(at) * factor - own), y = exp2_for_bf16(load(at + kTileWords) * factor - own);
      sum += x, sum2 += y;
      const __m512bh both = _mm512_cvtne2ps_pbh(y, x);
      __builtin_memcpy(to, &both, sizeof both);
    }
    v[i] = sum + sum2;
  }
  const __mmask16 shrinks = _mm512_cmp_ps_mask(before, top, _CMP_NEQ_UQ) & _mm512_cmp_ps_mask(before, splat(kLowest), _CMP_NEQ_UQ);
  Floats total = load(m.totals + row);
  if (shrinks) {
    alignas(64) float shrink[kWidth];
    const Floats by = _mm512_mask_mov_ps(splat(1), shrinks, exp2_of(before - base));
    total *= by;
    store(shrink, by);
    for (int i = 0; i < kWidth; ++i)
      for (int64_t d = 0; shrinks >> i & 1 && d < m.wide; d += kWidth) {
        float* sum = m.sums + (row + i) * m.wide + d;
        store(sum, load(sum) * shrink[i]);
      }
  }
  store(m.tops + row, top);
  store(m.totals + row, total + reduce_rows(v, [](Floats x, Floats y) { return x + y; }));
}

// `R` tiles of rows from row `r` of the piece on, against `most` keys of the block from `start` on.
template <int R>
void attend_group(const AttentionRows& a, const Memory& m, int64_t r, int64_t count, int64_t start, int64_t most) {
  const int64_t columns = whole_deep(most);
  for (int64_t at = 0; at < columns; at += kDeep)
    multiply_tiles<R>(m.queries + r * m.deep, m.deep, {m.keys + at * m.deep / 2, kTileWords, 16 * m.deep / 2}, m.deep / kDeep,
                      whole_tiles(m.scores + at * kTileRows, m.block), false);
  for (int64_t first = 0; first < R * kTileRows; first += kTileRows) {
    alignas(64) float factors[kWidth];
    for (int64_t i = first; i < first + kTileRows; ++i) {
      const int64_t row = a.first + r + (i < count ? i : count - 1);  // rows behind the last are whatever is finite
      const int64_t own = a.causal && row + 1 - start < most ? row + 1 - start : most;
      factors[i - first] = scale_and_mask(a, m.scores + first * m.block + (i - first) * kWidth, own > 0 ? own : 0, columns,
                                          a.mask ? a.mask + row * a.mask_row + start * a.mask_col : nullptr);
    }
    weigh_rows(m, r + first, m.scores + first * m.block, columns, factors, m.weights + first * m.block);
  }
  for (int64_t at = 0; at < m.wide; at += kDeep)
    multiply_tiles<R>(m.weights, m.block, {m.values + at / 16 * kTileWords, m.wide * 16, kTileWords}, columns / kDeep,
                      {m.sums + r * m.wide + at, m.wide}, true);
}

void attend_in_tiles(const AttentionRows& a) {
  const FullTiles tiles;
  const Memory m(a.scratch, a.depth, a.value_depth);
  const int64_t rows = a.last - a.first, seen = a.causal && a.last < a.keys ? a.last : a.keys;
  pack_rows({static_cast<const uint16_t*>(a.query), a.query_row, a.query_col, a.last, a.depth}, a.first, rows, m.queries);
  for (int64_t i = 0; i < whole_deep(rows) * m.wide; i += kWidth) store(m.sums + i, Floats{});
  for (int64_t r = 0; r < whole_deep(rows); ++r) m.tops[r] = -__builtin_inff(), m.totals[r] = 0;
  const Rows keys{static_cast<const uint16_t*>(a.key), a.key_row, a.key_col, seen, a.depth};
  const Rows values{static_cast<const uint16_t*>(a.value), a.value_row, a.value_col, seen, a.value_depth};
  for (int64_t start = 0; start < seen; start += m.block) {
    const int64_t n = seen - start < m.block ? seen - start : m.block;
    pack_transposed(keys, start, n, m.keys);
    pack_pairs(values, start, n, m.values);
    for (int64_t r = 0; r < rows; r += kGroup) {
      const int64_t count = rows - r < kGroup ? rows - r : kGroup, last = a.first + r + count - start;
      const int64_t most = a.causal && last < n ? last : n;  // keys that the last of these rows sees
      if (most <= 0) continue;
      (count > kTileRows ? attend_group<2> : attend_group<1>)(a, m, r, count, start, most);
    }
  }
  for (int64_t r = 0; r < rows; ++r) finish_row<BF16>(a, a.first + r, {m.tops[r], m.totals[r]}, m.sums + r * m.wide);
}

}  // namespace

void attention_amx(const AttentionRows& rows) {
  // Few queries are not worth rearranging the keys for.
  if (rows.bf16 && rows.head_rows > 2 && rows.depth > 0 && rows.value_depth > 0) return attend_in_tiles(rows);
  attention_avx512_bf16(rows);
}

}  // namespace broach::cpu
