#define BROACH_VECTOR_FLOATS 16
#define BROACH_BF16_DOT 1
#include "target/cpu/amx.h"

namespace broach::cpu {

namespace {

// An element of a row of scores or of sums, which lie in tiles that follow each other.
inline float* in_tiles(float* row, int64_t i) { return row + i / kTileRows * kTileWords + i % kTileRows; }

// Memory of one piece of work. Of a block of keys: these, their values, and of the rows of one tile the scores and the weights that they
// become, all of which should stay in the first-level cache. Of all rows, sums of values and their state.
struct Memory {
  uint16_t *queries, *weights;
  float *keys, *values, *scores, *sums;
  float *tops, *totals;       // of a row: the largest score so far, in units of log2; weights added up, in relation to it
  int64_t block, deep, wide;  // keys of a block; whole_deep of the depths

  Memory(float* at, int64_t depth, int64_t value_depth) : deep(whole_deep(depth)), wide(whole_deep(value_depth)) {
    block = amx_attention_keys(deep > wide ? deep : wide);
    auto take = [&](int64_t n) { return at += n, at - n; };
    queries = reinterpret_cast<uint16_t*>(take(kTileRows * deep / 2));
    weights = reinterpret_cast<uint16_t*>(take(kTileRows * block / 2));
    keys = take(block * deep / 2), values = take(block * wide / 2);
    scores = take(kTileRows * block), sums = take(kAmxAttentionRows * wide);
    tops = take(kAmxAttentionRows), totals = take(kAmxAttentionRows);
  }
};

// Elements of a row of scores from `seen` on become -inf.
inline void hide_from(float* scores, int64_t seen, int64_t columns) {
  const Floats hidden = splat(-__builtin_inff());
  int64_t i = seen / kWidth * kWidth;
  if (i < seen) _mm512_mask_storeu_ps(in_tiles(scores, i), static_cast<__mmask16>(0xffffu << (seen - i)), hidden), i += kWidth;
  for (; i < columns; i += kWidth) store(in_tiles(scores, i), hidden);
}

// Scores that a row sees are scaled, and a mask is added.
inline void scale_and_mask(const AttentionRows& a, float* scores, int64_t seen, const float* mask) {
  const float scale = a.scale * kLog2E;
  for (int64_t i = 0; i < seen; i += kWidth) {
    Floats x = load(in_tiles(scores, i)) * scale;
    if (mask && a.mask_col == 1) x += in_log2(_mm512_maskz_loadu_ps(seen - i < kWidth ? (1u << (seen - i)) - 1 : 0xffff, mask + i));
    store(in_tiles(scores, i), x);
  }
  if (mask && a.mask_col != 1)
    for (int64_t i = 0; i < seen; ++i) *in_tiles(scores, i) += in_log2(mask[i * a.mask_col]);
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

// What the scores of 16 rows from row `row` of the piece on become: weights in bf16, in tiles as well, whose sums and largest scores are kept.
// As soften(), but for what rows are reduced to, which is computed of all at once: one after the other they would wait for it. `columns` is
// a multiple of 32; scores of row i are to be multiplied by factors[i]. `sums`: what was added up of these rows.
inline void weigh_rows(const Memory& m, int64_t row, int64_t columns, float* factors, float* sums) {
  float* const scores = m.scores;
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
    uint16_t* to = m.weights + i * kDeep;
    for (const float* end = at + columns * kWidth; at < end; at += 2 * kTileWords, to += kTileRows * kDeep) {
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
    for (int64_t d = 0; d < m.wide; d += kWidth)
      for (int i = 0; i < kWidth; ++i) {
        float* sum = sums + d / kWidth * kTileWords + i * kWidth;
        store(sum, load(sum) * shrink[i]);
      }
  }
  store(m.tops + row, top);
  store(m.totals + row, total + reduce_rows(v, [](Floats x, Floats y) { return x + y; }));
}

// c[16][columns] (+)= a[16][32 n] b[32 n][columns], as multiply_tile_row.
inline void multiply_row(const uint16_t* a, int64_t a_row, int64_t step, TileColumns b, int64_t pair, int64_t n, float* c, int64_t columns,
                         bool add) {
  for (; columns > kDeep; columns -= 2 * kDeep, b.data += 2 * pair, c += 4 * kTileWords)
    multiply_tile_row<4>(a, a_row, step, b, pair, n, c, add);
  if (columns > 0) multiply_tile_row<2>(a, a_row, step, b, pair, n, c, add);
}

// Rows [r, r + count) of the piece, a tile of them at most, against the first `most` keys of the block from `start` on. Gives what their sums
// are then. `only`: there is no other block for them, so the sums need not be kept.
float* attend_rows(const AttentionRows& a, const Memory& m, int64_t r, int64_t count, int64_t start, int64_t most, bool only) {
  const int64_t columns = whole_deep(most);
  float* const sums = m.sums + (only ? 0 : r * m.wide);
  const Rows queries{static_cast<const uint16_t*>(a.query), a.query_row, a.query_col, a.last, a.depth};
  const bool in_place = a.query_col == 1 && a.depth == m.deep && count == kTileRows;
  if (!in_place) pack_rows(queries, a.first + r, count, kTileRows, m.queries);
  multiply_row(in_place ? queries.data + (a.first + r) * a.query_row : m.queries, in_place ? a.query_row : m.deep, kDeep,
               {m.keys, kTileWords, 16 * m.deep / 2}, kDeep * m.deep / 2, m.deep / kDeep, m.scores, columns, false);
  // Weighing can multiply by what is positive.
  const bool is_plain = !a.mask && a.scale > 0;
  alignas(64) float factors[kWidth];
  store(factors, splat(is_plain ? a.scale * kLog2E : 1));
  for (int64_t i = 0; i < kTileRows; ++i) {
    const int64_t row = a.first + r + (i < count ? i : count - 1);  // rows behind the last are whatever is finite
    const int64_t seen = !a.causal || row + 1 - start > most ? most : row + 1 > start ? row + 1 - start : 0;
    if (!is_plain) scale_and_mask(a, m.scores + i * kWidth, seen, a.mask ? a.mask + row * a.mask_row + start * a.mask_col : nullptr);
    if (seen < columns) hide_from(m.scores + i * kWidth, seen, columns);
  }
  weigh_rows(m, r, columns, factors, sums);
  multiply_row(m.weights, kDeep, kTileRows * kDeep, {m.values, m.wide * 16, kTileWords}, 2 * kTileWords, columns / kDeep, sums, m.wide,
               start > 0);
  return sums;
}

// Rows [r, r + count) of the piece, a tile of them at most.
void finish_rows(const AttentionRows& a, const Memory& m, int64_t r, int64_t count, const float* sums) {
  const Floats totals = load(m.totals + r), none{};
  alignas(64) float factors[kWidth];
  store(factors, totals == none ? none : 1 / totals);  // a row that sees nothing gives zeros
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = a.first + r + i;
    const RowState state{m.tops[r + i], m.totals[r + i]};
    const float* from = sums + i * kWidth;
    if (!a.result || a.result_col != 1) {
      finish_row<BF16>(a, row, state, from, kTileWords);
      continue;
    }
    put_logsumexp(a, row, state);
    auto* to = static_cast<uint16_t*>(a.result) + row * a.result_row;
    for (int64_t d = 0; d < a.value_depth; d += kDeep, from += 2 * kTileWords) {
      const Floats low = load(from) * factors[i], high = load(from + kTileWords) * factors[i];
      const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      const int64_t n = a.value_depth - d;
      if (n >= kDeep) _mm512_storeu_si512(to + d, both);
      else _mm512_mask_storeu_epi16(to + d, (1u << n) - 1, both);
    }
  }
}

void attend_in_tiles(const AttentionRows& a) {
  const FullTiles tiles;
  const Memory m(a.scratch, a.depth, a.value_depth);
  const int64_t rows = a.last - a.first, seen = a.causal && a.last < a.keys ? a.last : a.keys;
  for (int64_t r = 0; r < whole_deep(rows); ++r) m.tops[r] = -__builtin_inff(), m.totals[r] = 0;
  const Rows keys{static_cast<const uint16_t*>(a.key), a.key_row, a.key_col, seen, a.depth};
  const Rows values{static_cast<const uint16_t*>(a.value), a.value_row, a.value_col, seen, a.value_depth};
  for (int64_t start = 0; start < seen; start += m.block) {
    const int64_t n = seen - start < m.block ? seen - start : m.block;
    pack_transposed(keys, start, n, m.keys);
    pack_pairs(values, start, n, m.values);
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int64_t count = rows - r < kTileRows ? rows - r : kTileRows, end = a.causal ? a.first + r + count : seen;
      const int64_t most = end - start < n ? end - start : n;  // keys that the last of these rows sees
      if (most <= 0) continue;
      const bool is_last = start + n >= (end < seen ? end : seen);
      const float* const sums = attend_rows(a, m, r, count, start, most, is_last && start == 0);
      if (is_last) finish_rows(a, m, r, count, sums);
    }
  }
  for (int64_t i = 0; seen == 0 && i < kTileRows * m.wide; i += kWidth) store(m.sums + i, Floats{});
  for (int64_t r = 0; seen == 0 && r < rows; r += kTileRows) finish_rows(a, m, r, rows - r < kTileRows ? rows - r : kTileRows, m.sums);
}

}  // namespace

void attention_amx(const AttentionRows& rows) {
  // Few queries are not worth rearranging the keys for.
  if (rows.bf16 && rows.head_rows > 2 && rows.depth > 0 && rows.value_depth > 0) return attend_in_tiles(rows);
  attention_avx512_bf16(rows);
}

}  // namespace broach::cpu
