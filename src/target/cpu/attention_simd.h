// The code of attention.h for vectors of kWidth floats. Included by one file for each instruction set.
#pragma once

#if BROACH_VECTOR_FLOATS == 16
#include <immintrin.h>
#endif

#include "target/cpu/attention.h"

namespace broach::cpu {

namespace {

constexpr int kWidth = BROACH_VECTOR_FLOATS;
constexpr int kRows = 6;                        // of queries that share the loads of a tile
constexpr int kVectors = kWidth == 16 ? 4 : 2;  // columns of a tile: as many as registers hold
constexpr int kPanel = kVectors * kWidth;
constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef float FloatsAt __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
typedef uint16_t Halves __attribute__((vector_size(2 * kWidth)));
typedef uint16_t HalvesAt __attribute__((vector_size(2 * kWidth), aligned(2), may_alias));

inline int64_t whole_vectors(int64_t n) { return (n + kWidth - 1) / kWidth * kWidth; }
inline Floats load(const float* p) { return *reinterpret_cast<const FloatsAt*>(p); }
inline void store(float* p, Floats v) { *reinterpret_cast<FloatsAt*>(p) = v; }
inline Floats splat(float x) { return x - Floats{}; }

inline float widen(uint16_t v) {
  uint32_t bits = static_cast<uint32_t>(v) << 16;
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
// To nearest, ties to even; NaN stays one.
inline uint16_t narrow(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  if (f != f) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

struct F32 {
  using Stored = float;
  static constexpr bool pairs = false;
  static float get(float v) { return v; }
  static float put(float v) { return v; }
  static Floats vector(const float* p) { return load(p); }
  static void put(float* p, Floats v) { store(p, v); }
};
struct BF16 {
  using Stored = uint16_t;
  static constexpr bool pairs = false;
  static float get(uint16_t v) { return widen(v); }
  static uint16_t put(float v) { return narrow(v); }
  static Floats vector(const uint16_t* p) {
    Ints wide = __builtin_convertvector(*reinterpret_cast<const HalvesAt*>(p), Ints) << 16;
    return reinterpret_cast<Floats>(wide);
  }
  static void put(uint16_t* p, Floats v) {
    const Words bits = reinterpret_cast<Words>(v), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Words kept = v == v ? rounded : Words{} + 0x7fc0;
    *reinterpret_cast<HalvesAt*>(p) = __builtin_convertvector(kept, Halves);
  }
};

#if BROACH_BF16_DOT
// Products of pairs of bf16, summed in f32: a word of 32 bits holds two elements that follow each other along the sum.
struct BF16Pairs : BF16 {
  static constexpr bool pairs = true;
};
#endif

// 2^x for x <= 0, within 2 units in the last place; below the normal numbers it may be 0. By Cody-Waite: the whole part goes into the
// exponent, the rest, in [-1/2, 1/2], into the Taylor polynomial of 2^x, whose terms after the sixth are below 2^-26.
inline Floats exp2_of(Floats x) {
#if BROACH_VECTOR_FLOATS == 16
  const Floats f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), whole = x - f;
#else
  const Floats magic = splat(12582912.0f), shifted = x + magic, f = x - (shifted - magic);
#endif
  Floats p = splat(1.5403530e-4f);
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
#if BROACH_VECTOR_FLOATS == 16
  return _mm512_scalef_ps(p, whole);
#else
  const Floats r = reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + (reinterpret_cast<Ints>(shifted) << 23));
  const Floats normal = x < -126.0f ? Floats{} : r;
  return x == x ? normal : x;
#endif
}

template <class F>
inline float across(Floats v, F f) {
  float r = v[0];
  for (int i = 1; i < kWidth; ++i) r = f(r, v[i]);
  return r;
}

// sum + x * columns, where x is one for all columns.
template <bool Pairs>
inline Floats multiply_add(Floats sum, const float* x, Floats columns) {
#if BROACH_BF16_DOT
  if constexpr (Pairs) {
    int32_t word;
    __builtin_memcpy(&word, x, 4);
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(word)), reinterpret_cast<__m512bh>(columns));
  }
#endif
  return sum + splat(*x) * columns;
}

// c[M][N vectors] (+)= a[M][n] b[n][N vectors]; rows of b are `step` floats apart, those of a, or of its transpose, a_row. Of pairs, a and
// b hold words.
template <bool Pairs, bool Transposed, int M, int N>
void tile(const float* a, int64_t a_row, const float* b, int64_t step, float* c, int64_t c_row, int64_t n, bool add) {
  Floats sum[M][N];
#pragma GCC unroll 6
  for (int r = 0; r < M; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) sum[r][v] = add ? load(c + r * c_row + v * kWidth) : Floats{};
  for (int64_t i = 0; i < n; ++i, b += step) {
    Floats columns[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) columns[v] = load(b + v * kWidth);
#pragma GCC unroll 6
    for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v)
        sum[r][v] = multiply_add<Pairs>(sum[r][v], Transposed ? a + i * a_row + r : a + r * a_row + i, columns[v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < M; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) store(c + r * c_row + v * kWidth, sum[r][v]);
}

using Tile = void(const float*, int64_t, const float*, int64_t, float*, int64_t, int64_t, bool);
template <bool Pairs, bool Transposed, int M>
Tile* tile_of_rows(int vectors) {
  if constexpr (kVectors == 4) {
    if (vectors == 4) return tile<Pairs, Transposed, M, 4>;
    if (vectors == 3) return tile<Pairs, Transposed, M, 3>;
  }
  return vectors == 2 ? tile<Pairs, Transposed, M, 2> : tile<Pairs, Transposed, M, 1>;
}
template <bool Pairs, bool Transposed = false>
Tile* tile_of(int rows, int vectors) {
  switch (rows) {
    case 6: return tile_of_rows<Pairs, Transposed, 6>(vectors);
    case 5: return tile_of_rows<Pairs, Transposed, 5>(vectors);
    case 4: return tile_of_rows<Pairs, Transposed, 4>(vectors);
    case 3: return tile_of_rows<Pairs, Transposed, 3>(vectors);
    case 2: return tile_of_rows<Pairs, Transposed, 2>(vectors);
    default: return tile_of_rows<Pairs, Transposed, 1>(vectors);
  }
}

// Panels of kPanel columns, each [n][its columns]; the last panel may have fewer vectors. `columns` is a multiple of kWidth.
int64_t panel_width(int64_t columns, int64_t at) { return columns - at < kPanel ? columns - at : kPanel; }

// c[rows][columns] (+)= a[rows][n] b, where b is packed in panels.
template <bool Pairs>
void multiply(const float* a, int64_t a_row, const float* b, float* c, int64_t c_row, int rows, int64_t n, int64_t packed_n,
              int64_t columns, bool add) {
  for (int64_t at = 0; at < columns; at += kPanel) {
    const int64_t width = panel_width(columns, at);
    tile_of<Pairs>(rows, static_cast<int>(width / kWidth))(a, a_row, b + at * packed_n, width, c + at, c_row, n, add);
  }
}

// In runs of `Half` lanes: every second one of x and the one before it of y change places.
template <int Half>
inline void exchange(Floats& x, Floats& y) {
  Ints low, high;
#pragma GCC unroll 16
  for (int l = 0; l < kWidth; ++l) {
    low[l] = l & Half ? kWidth + l - Half : l;
    high[l] = l & Half ? kWidth + l : l + Half;
  }
  const Floats a = x, b = y;
  x = __builtin_shuffle(a, b, low);
  y = __builtin_shuffle(a, b, high);
}

// Rows and columns of a square of vectors change places: squares of half the size first, then their quarters.
template <int Half>
inline void transpose_step(Floats (&v)[kWidth]) {
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i)
    if (!(i & Half)) exchange<Half>(v[i], v[i + Half]);
  if constexpr (Half > 1) transpose_step<Half / 2>(v);
}

// Keys [first, first + n) as panels of columns, zeros behind the last.
template <class E>
void pack_keys(const AttentionRows& a, int64_t first, int64_t n, int64_t columns, float* out) {
  using T = typename E::Stored;
  const T* key = static_cast<const T*>(a.key) + first * a.key_row;
  for (int64_t at = 0; at < columns; at += kWidth) {
    const int64_t panel = at / kPanel * kPanel, width = panel_width(columns, panel);
    float* to = out + panel * a.depth + (at - panel);
    int64_t d = 0;
    if (a.key_col == 1 && at + kWidth <= n)
      for (; d + kWidth <= a.depth; d += kWidth) {
        Floats v[kWidth];
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) v[i] = E::vector(key + (at + i) * a.key_row + d);
        transpose_step<kWidth / 2>(v);
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) store(to + (d + i) * width, v[i]);
      }
    for (; d < a.depth; ++d)
      for (int i = 0; i < kWidth; ++i) to[d * width + i] = at + i < n ? E::get(key[(at + i) * a.key_row + d * a.key_col]) : 0.0f;
  }
}

template <class E>
void pack_values(const AttentionRows& a, int64_t first, int64_t n, int64_t columns, float* out) {
  using T = typename E::Stored;
  const T* value = static_cast<const T*>(a.value) + first * a.value_row;
  for (int64_t at = 0; at < columns; at += kPanel) {
    const int64_t width = panel_width(columns, at);
    float* to = out + at * n;
    const int64_t own = a.value_depth - at < width ? a.value_depth - at : width;
    for (int64_t i = 0; i < n; ++i, to += width) {
      const T* from = value + i * a.value_row + at * a.value_col;
      int64_t d = 0;
      if (a.value_col == 1)
        for (; d + kWidth <= own; d += kWidth) store(to + d, E::vector(from + d));
      for (; d < own; ++d) to[d] = E::get(from[d * a.value_col]);
      for (; d < width; ++d) to[d] = 0;
    }
  }
}

#if BROACH_BF16_DOT
// Values as panels of columns, the elements of two keys in a word; a zero beside the last of an odd number.
void pack_value_pairs(const AttentionRows& a, int64_t first, int64_t n, int64_t columns, float* out) {
  const auto* value = static_cast<const uint16_t*>(a.value) + first * a.value_row;
  const int64_t words = (n + 1) / 2;
  for (int64_t at = 0; at < columns; at += kPanel) {
    const int64_t width = panel_width(columns, at), own = a.value_depth - at < width ? a.value_depth - at : width;
    float* to = out + at * words;
    for (int64_t i = 0; i < n; i += 2, to += width) {
      const uint16_t *low = value + i * a.value_row + at * a.value_col, *high = i + 1 < n ? low + a.value_row : nullptr;
      int64_t d = 0;
      if (a.value_col == 1)
        for (; d + kWidth <= own; d += kWidth) {
          Ints word = __builtin_convertvector(*reinterpret_cast<const HalvesAt*>(low + d), Ints);
          if (high) word |= __builtin_convertvector(*reinterpret_cast<const HalvesAt*>(high + d), Ints) << 16;
          store(to + d, reinterpret_cast<Floats>(word));
        }
      for (; d < width; ++d) {
        const uint32_t word = d < own ? low[d * a.value_col] | static_cast<uint32_t>(high ? high[d * a.value_col] : 0) << 16 : 0;
        __builtin_memcpy(to + d, &word, 4);
      }
    }
  }
}

// A row of weights becomes words in its own place.
void narrow_row(float* row, int64_t columns) {
  for (int64_t i = 0; i < columns; i += kWidth) {
    const __m256bh pairs = _mm512_cvtneps_pbh(load(row + i));
    __builtin_memcpy(row + i / 2, &pairs, sizeof pairs);
  }
}

// Whether rows of queries and keys can be read as words.
inline bool lie_in_pairs(const AttentionRows& a) {
  const auto address = reinterpret_cast<uintptr_t>(a.query) | reinterpret_cast<uintptr_t>(a.key);
  return a.query_col == 1 && a.key_col == 1 && ((a.query_row | a.key_row | a.depth) & 1) == 0 && address % 4 == 0;
}
#endif

// Scores of one query and n keys that lie as they are given, in vectors along the depth: for so few queries that packing the
// keys would cost more than it brings.
template <class E>
void score_row(const AttentionRows& a, const float* query, int64_t first, int64_t n, float* scores) {
  const auto* key = static_cast<const typename E::Stored*>(a.key) + first * a.key_row;
  for (int64_t at = 0; at < n; at += kWidth) {
    Floats v[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      const auto* k = key + (at + i < n ? at + i : n - 1) * a.key_row;
      Floats sum{};
      for (int64_t d = 0; d < a.depth; d += kWidth) sum += load(query + d) * E::vector(k + d);
      v[i] = sum;
    }
    transpose_step<kWidth / 2>(v);
    Floats total{};
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) total += v[i];
    store(scores + at, total);
  }
}

struct RowState {
  float top, sum;  // largest score so far, in units of log2; weights added up, in relation to it
};

// Elements of a mask in units of log2. What is finite stays so: transformers hide by the lowest number, and a row of which all is hidden so
// sees all alike.
inline float in_log2(float mask) {
  constexpr uint32_t kSign = uint32_t{1} << 31, kInfinity = 0x7f800000;
  float x = mask * kLog2E;
  uint32_t was, is;
  __builtin_memcpy(&was, &mask, 4);
  __builtin_memcpy(&is, &x, 4);
  if ((is & ~kSign) == kInfinity && (was & ~kSign) != kInfinity) --is;  // the number before it
  __builtin_memcpy(&x, &is, 4);
  return x;
}

// Scores of one row become weights; what was added up before is scaled to the new maximum.
void soften(float* scores, float scale, int64_t n, int64_t columns, const float* mask, int64_t mask_col, RowState& state, float* sums,
            int64_t value_columns) {
  if (scale != 1)
    for (int64_t i = 0; i < columns; i += kWidth) store(scores + i, load(scores + i) * scale);
  if (mask) {
    if (mask_col == 1)
      for (int64_t i = 0; i < n; ++i) scores[i] += in_log2(mask[i]);
    else
      for (int64_t i = 0; i < n; ++i) scores[i] += in_log2(mask[i * mask_col]);
  }
  const float lowest = -__builtin_inff();
  for (int64_t i = n; i < columns; ++i) scores[i] = lowest;
  Floats most = splat(lowest);
  // A NaN that is passed over here still reaches the sum.
  for (int64_t i = 0; i < columns; i += kWidth) {
    const Floats x = load(scores + i);
    most = x > most ? x : most;
  }
  float top = across(most, [](float x, float y) { return x > y ? x : y; });
  if (state.top > top) top = state.top;
  // Nothing is to be seen yet. (What is subtracted from -inf must not be -inf.)
  const float base = top == lowest ? 0.0f : top;
  Floats sum{};
  for (int64_t i = 0; i < columns; i += kWidth) {
    const Floats e = exp2_of(load(scores + i) - base);
    store(scores + i, e);
    sum += e;
  }
  if (state.top != top) {
    const float factor = exp2_of(splat(state.top - base))[0];
    state.sum *= factor;
    for (int64_t d = 0; d < value_columns; d += kWidth) store(sums + d, load(sums + d) * factor);
  }
  state.top = top;
  state.sum += across(sum, [](float x, float y) { return x + y; });
}

// The same operands with two elements of a query or key for one.
inline AttentionRows in_words(AttentionRows a) {
  a.query_row /= 2, a.key_row /= 2, a.depth /= 2;
  return a;
}

// Row `r` of the block's queries, scaled.
template <class E>
void pack_query(const AttentionRows& a, int64_t r, float scale, float* to) {
  const auto* q = static_cast<const typename E::Stored*>(a.query) + (a.first + r) * a.query_row;
  int64_t e = 0;
  if (a.query_col == 1)
    for (; e + kWidth <= a.depth; e += kWidth) store(to + e, E::vector(q + e) * scale);
  for (; e < a.depth; ++e) to[e] = E::get(q[e * a.query_col]) * scale;
}

// `n` keys and values from `start` on; null: these are read where they lie.
template <class E>
void pack_block(const AttentionRows& a, int64_t start, int64_t n, int64_t packed, int64_t wide, float* keys, float* values) {
  if constexpr (E::pairs) {
#if BROACH_BF16_DOT
    pack_keys<F32>(in_words(a), start, n, packed, keys);
    pack_value_pairs(a, start, n, wide, values);
#endif
  } else {
    if (keys) pack_keys<E>(a, start, n, packed, keys);
    if (values) pack_values<E>(a, start, n, wide, values);
  }
}

// Scores of `count` rows against the block's keys, `most` of which they see, and what the rows have summed up.
struct Scored {
  float* scores;
  int64_t block;
  const float* values;
  float* sums;
  int64_t wide;
  int count;
  int64_t most, start, n;
};

template <class E>
void add_values(const AttentionRows& a, const Scored& s, [[maybe_unused]] int64_t columns, bool values_in_place) {
  if constexpr (E::pairs) {
#if BROACH_BF16_DOT
    for (int i = 0; i < s.count; ++i) narrow_row(s.scores + i * s.block, columns);
    multiply<true>(s.scores, s.block, s.values, s.sums, s.wide, s.count, (s.most + 1) / 2, (s.n + 1) / 2, s.wide, true);
#endif
  } else if (values_in_place) {
    const float* from = static_cast<const float*>(a.value) + s.start * a.value_row;
    for (int64_t at = 0; at < s.wide; at += kPanel)
      tile_of<false>(s.count, static_cast<int>(panel_width(s.wide, at) / kWidth))(s.scores, s.block, from + at, a.value_row, s.sums + at,
                                                                                  s.wide, s.most, true);
  } else {
    multiply<false>(s.scores, s.block, s.values, s.sums, s.wide, s.count, s.most, s.n, s.wide, true);
  }
}

inline void put_logsumexp(const AttentionRows& a, int64_t row, const RowState& state) {
  if (a.logsumexp) a.logsumexp[row * a.logsumexp_row] = state.sum == 0 ? 0 : state.top * kLn2 + __builtin_logf(state.sum);
}

// `next`: from one vector of the sums to the next.
template <class E>
void finish_row(const AttentionRows& a, int64_t row, const RowState& state, const float* sums, int64_t next = kWidth) {
  // A row that sees nothing gives zeros, also for the logarithm.
  const float factor = state.sum == 0 ? 0 : 1 / state.sum;
  auto* out = static_cast<typename E::Stored*>(a.result) + row * a.result_row;
  int64_t first = 0;
  if (a.result && a.result_col == 1)
    for (; first + kWidth <= a.value_depth; first += kWidth) E::put(out + first, load(sums + first / kWidth * next) * factor);
  for (int64_t d = first; a.result && d < a.value_depth; ++d) out[d * a.result_col] = E::put(sums[d / kWidth * next + d % kWidth] * factor);
  put_logsumexp(a, row, state);
}

template <class E>
void attend(const AttentionRows& a) {
  using T = typename E::Stored;
  const int64_t rows = a.last - a.first, block = attention_keys(a.depth > a.value_depth ? a.depth : a.value_depth);
  const int64_t wide = whole_vectors(a.value_depth);
  float* keys = a.scratch;
  float* values = keys + block * a.depth;
  float* scores = values + block * ((a.value_depth + 15) / 16 * 16);
  float* packed_queries = scores + 6 * block;
  float* sums = packed_queries + kAttentionRows * a.depth;
  auto* state = reinterpret_cast<RowState*>(sums + kAttentionRows * ((a.value_depth + 15) / 16 * 16));
  const float scale = a.scale * kLog2E;
  // Pairs are multiplied as they are, so it is the scores that are scaled.
  const AttentionRows words = in_words(a);
  const float* queries = E::pairs ? static_cast<const float*>(words.query) + a.first * words.query_row : packed_queries;
  const int64_t depth = E::pairs ? words.depth : a.depth, query_row = E::pairs ? words.query_row : a.depth;
  for (int64_t r = 0; r < rows; ++r) {
    if (!E::pairs) pack_query<E>(a, r, scale, packed_queries + r * a.depth);
    for (int64_t d = 0; d < wide; ++d) sums[r * wide + d] = 0;
    state[r] = {-__builtin_inff(), 0};
  }
  const bool few = !E::pairs && a.head_rows <= 2 && a.key_col == 1 && a.depth % kWidth == 0;
  const bool values_in_place = few && sizeof(T) == sizeof(float) && a.value_col == 1 && wide == a.value_depth;
  const int64_t seen = a.causal && a.last < a.keys ? a.last : a.keys;
  for (int64_t start = 0; start < seen; start += block) {
    const int64_t n = seen - start < block ? seen - start : block;
    const int64_t packed = whole_vectors(n);
    pack_block<E>(a, start, n, packed, wide, few ? nullptr : keys, values_in_place ? nullptr : values);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int count = static_cast<int>(rows - r < kRows ? rows - r : kRows);
      // Keys that the last of these rows sees; panels are multiplied whole.
      int64_t most = a.causal && a.first + r + count - start < n ? a.first + r + count - start : n;
      if (most <= 0) continue;
      int64_t columns = (most + kPanel - 1) / kPanel * kPanel;
      if (columns > packed) columns = packed;
      for (int i = 0; few && i < count; ++i) score_row<E>(a, queries + (r + i) * query_row, start, n, scores + i * block);
      for (int64_t at = 0; !few && at < columns; at += kPanel) {
        const int64_t width = panel_width(packed, at);
        tile_of<E::pairs>(count, static_cast<int>(width / kWidth))(queries + r * query_row, query_row, keys + at * depth, width,
                                                                   scores + at, block, depth, false);
      }
      for (int i = 0; i < count; ++i) {
        const int64_t row = a.first + r + i, own = a.causal && row + 1 - start < most ? row + 1 - start : most;
        const float* mask = a.mask ? a.mask + row * a.mask_row + start * a.mask_col : nullptr;
        soften(scores + i * block, E::pairs ? scale : 1.0f, own > 0 ? own : 0, columns, mask, a.mask_col, state[r + i],
               sums + (r + i) * wide, wide);
      }
      add_values<E>(a, {scores, block, values, sums + r * wide, wide, count, most, start, n}, columns, values_in_place);
    }
  }
  for (int64_t r = 0; r < rows; ++r) finish_row<E>(a, a.first + r, state[r], sums + r * wide);
}

[[maybe_unused]] void attend_any(const AttentionRows& a) { a.bf16 ? attend<BF16>(a) : attend<F32>(a); }

}  // namespace

}  // namespace broach::cpu
