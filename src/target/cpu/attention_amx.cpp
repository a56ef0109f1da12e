#define BROACH_VECTOR_FLOATS 16
#define BROACH_BF16_DOT 1
#include "target/cpu/amx.h"

namespace broach::cpu {

namespace {

constexpr int64_t kGroup = 32;  // query rows whose scores are in the first-level cache

// Memory of one piece of work. Scores of a group's rows against a block of keys, the weights that they become; of all rows, queries, sums
// of values and their state.
struct Memory {
  uint16_t *queries, *weights;
  float *keys, *values, *scores, *sums;
  RowState* state;
  int64_t block, deep, wide;  // keys of a block; whole_deep of the depths

  Memory(float* at, int64_t depth, int64_t value_depth) : deep(whole_deep(depth)), wide(whole_deep(value_depth)) {
    block = amx_attention_keys(deep > wide ? deep : wide);
    auto take = [&](int64_t n) { return at += n, at - n; };
    queries = reinterpret_cast<uint16_t*>(take(kAttentionRows * deep / 2));
    weights = reinterpret_cast<uint16_t*>(take(kGroup * block / 2));
    keys = take(block * deep / 2), values = take(block * wide / 2);
    scores = take(kGroup * block), sums = take(kAttentionRows * wide);
    state = reinterpret_cast<RowState*>(at);
  }
};

// Scores that a row sees, as they are to be multiplied by the factor that is returned, which is positive; -inf for the rest of `columns`.
inline float scale_and_mask(const AttentionRows& a, float* scores, int64_t seen, int64_t columns, const float* mask) {
  const float scale = a.scale * kLog2E;
  const bool plain = !mask && scale > 0;
  for (int64_t i = 0; !plain && i < seen; i += kWidth) {
    Floats x = load(scores + i) * scale;
    if (mask && a.mask_col == 1) x += _mm512_maskz_loadu_ps(seen - i < kWidth ? (1u << (seen - i)) - 1 : 0xffff, mask + i) * kLog2E;
    store(scores + i, x);
  }
  if (mask && a.mask_col != 1)
    for (int64_t i = 0; i < seen; ++i) scores[i] += mask[i * a.mask_col] * kLog2E;
  for (int64_t i = seen; i < columns; ++i) scores[i] = -__builtin_inff();
  return plain ? scale : 1;
}

// As soften(), to weights in bf16. `columns` is a multiple of 32.
inline void weigh_row(const AttentionRows& a, float* scores, int64_t seen, int64_t columns, const float* mask, RowState& state, float* sums,
                      int64_t wide, uint16_t* weights) {
  float factor = scale_and_mask(a, scores, seen, columns, mask);
  constexpr float lowest = -__builtin_inff();
  Floats most = splat(lowest), most2 = most;
  for (int64_t i = 0; i < columns; i += 2 * kWidth) {
    const Floats x = load(scores + i), y = load(scores + i + kWidth);
    most = x > most ? x : most;
    most2 = y > most2 ? y : most2;
  }
  float top = _mm512_reduce_max_ps(_mm512_max_ps(most, most2)) * factor;
  if (state.top > top) top = state.top;
  const float base = top == lowest ? 0.0f : top;
  // A multiplication and a subtraction that are rounded as one leave of the largest what the other rounding took, here more than a half.
  constexpr float kLarge = 1 << 24;
  if (base > kLarge || base < -kLarge) {
    for (int64_t i = 0; i < columns; i += kWidth) store(scores + i, load(scores + i) * factor);
    factor = 1;
  }
  Floats sum{}, sum2{};
  for (int64_t i = 0; i < columns; i += 2 * kWidth) {
    const Floats x = exp2_for_bf16(load(scores + i) * factor - base), y = exp2_for_bf16(load(scores + i + kWidth) * factor - base);
    sum += x, sum2 += y;
    const __m512bh both = _mm512_cvtne2ps_pbh(y, x);
    __builtin_memcpy(weights + i, &both, sizeof both);
  }
  if (state.top != top && state.top != lowest) {
    const float shrink = exp2_of(splat(state.top - base))[0];
    state.sum *= shrink;
    for (int64_t d = 0; d < wide; d += kWidth) store(sums + d, load(sums + d) * shrink);
  }
  state.top = top;
  state.sum += _mm512_reduce_add_ps(sum + sum2);
}

// `R` tiles of rows from row `r` of the piece on, against `most` keys of the block from `start` on.
template <int R>
void attend_group(const AttentionRows& a, const Memory& m, int64_t r, int64_t count, int64_t start, int64_t most) {
  const int64_t columns = whole_deep(most);
  for (int64_t at = 0; at < columns; at += kDeep)
    multiply_tiles<R>(m.queries + r * m.deep, m.deep, {m.keys + at * m.deep / 2, kTileWords, 16 * m.deep / 2}, m.deep / kDeep,
                      m.scores + at, m.block, false);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = a.first + r + i, own = a.causal && row + 1 - start < most ? row + 1 - start : most;
    weigh_row(a, m.scores + i * m.block, own > 0 ? own : 0, columns, a.mask ? a.mask + row * a.mask_row + start * a.mask_col : nullptr,
              m.state[r + i], m.sums + (r + i) * m.wide, m.wide, m.weights + i * m.block);
  }
  for (int64_t at = 0; at < m.wide; at += kDeep)
    multiply_tiles<R>(m.weights, m.block, {m.values + at / 16 * kTileWords, m.wide * 16, kTileWords}, columns / kDeep,
                      m.sums + r * m.wide + at, m.wide, true);
}

void attend_in_tiles(const AttentionRows& a) {
  const FullTiles tiles;
  const Memory m(a.scratch, a.depth, a.value_depth);
  const int64_t rows = a.last - a.first, seen = a.causal && a.last < a.keys ? a.last : a.keys;
  pack_rows({static_cast<const uint16_t*>(a.query), a.query_row, a.query_col, a.last, a.depth}, a.first, rows, m.queries);
  for (int64_t i = 0; i < whole_deep(rows) * m.wide; i += kWidth) store(m.sums + i, Floats{});
  for (int64_t r = 0; r < rows; ++r) m.state[r] = {-__builtin_inff(), 0};
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
  for (int64_t r = 0; r < rows; ++r) finish_row<BF16>(a, a.first + r, m.state[r], m.sums + r * m.wide);
}

}  // namespace

void attention_amx(const AttentionRows& rows) {
  // Few queries are not worth rearranging the keys for.
  if (rows.bf16 && rows.head_rows > 2 && rows.depth > 0 && rows.value_depth > 0) return attend_in_tiles(rows);
  attention_avx512_bf16(rows);
}

}  // namespace broach::cpu
