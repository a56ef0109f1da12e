// Tiles of bf16: 16 rows of 64 bytes, and products of 16 x 32 by 32 x 16 elements that are summed in f32. Included by files that are
// compiled for AMX and AVX-512.
//
// The first operand of a product lies in rows. Of the second, a tile's row holds the elements of two rows, those of one column side by
// side in a word; its tiles follow each other. Everything is padded to whole tiles with zeros.
#pragma once

#include <immintrin.h>

#include "target/cpu/attention_simd.h"

namespace broach::cpu {

namespace {

constexpr int64_t kTileRows = 16, kTileWords = 256, kDeep = 32;  // kDeep: elements that one product sums

inline int64_t whole_deep(int64_t n) { return (n + kDeep - 1) / kDeep * kDeep; }

// What ldtilecfg reads: eight tiles of full size.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kFullTiles;

// Tiles of full size while it lives; then what the thread had set before.
class FullTiles {
 public:
  FullTiles() {
    _tile_storeconfig(before_);
    _tile_loadconfig(&kFullTiles);
  }
  ~FullTiles() {
    if (before_[0]) _tile_loadconfig(before_);
    else _tile_release();
  }
  FullTiles(const FullTiles&) = delete;
  FullTiles& operator=(const FullTiles&) = delete;

 private:
  alignas(64) uint8_t before_[64];
};

// Rows of bf16; strides in elements.
struct Rows {
  const uint16_t* data;
  int64_t row, col, rows, cols;
};

// Elements [c, c + 32) of row r, zeros where there are none.
inline __m512i row_part(const Rows& m, int64_t r, int64_t c) {
  const int64_t n = r < m.rows ? m.cols - c : 0;
  if (n <= 0) return _mm512_setzero_si512();
  const uint16_t* from = m.data + r * m.row + c * m.col;
  if (m.col == 1) return n >= 32 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16((1u << n) - 1, from);
  alignas(64) uint16_t part[32] = {};
  for (int64_t i = 0; i < n && i < 32; ++i) part[i] = from[i * m.col];
  return _mm512_load_si512(part);
}

// Columns [c, c + 16) of rows r and r + 1, as words.
inline Floats pairs_of(__m512i low, __m512i high, int half) {
  const __m256i a = half ? _mm512_extracti64x4_epi64(low, 1) : _mm512_castsi512_si256(low);
  const __m256i b = half ? _mm512_extracti64x4_epi64(high, 1) : _mm512_castsi512_si256(high);
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16)));
}

// [padded][whole_deep(cols)], of which the first n are rows from `first` on.
inline void pack_rows(const Rows& m, int64_t first, int64_t n, int64_t padded, uint16_t* to) {
  for (int64_t r = 0; r < padded; ++r)
    for (int64_t c = 0; c < m.cols; c += kDeep, to += kDeep)
      _mm512_storeu_si512(to, r < n ? row_part(m, first + r, c) : _mm512_setzero_si512());
}

// The transpose as a second operand: tiles of 16 rows, which become columns, and 32 columns; those of the same rows follow each other.
inline void pack_transposed(const Rows& m, int64_t first, int64_t n, float* to) {
  for (int64_t r = 0; r < whole_deep(n); r += kTileRows)
    for (int64_t c = 0; c < m.cols; c += kDeep, to += kTileWords) {
      Floats v[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) v[i] = _mm512_castsi512_ps(r + i < n ? row_part(m, first + r + i, c) : _mm512_setzero_si512());
      transpose_step<kWidth / 2>(v);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) store(to + i * kWidth, v[i]);
    }
}

// The rows themselves as a second operand: tiles of 32 rows and 16 columns; those of the same rows follow each other.
inline void pack_pairs(const Rows& m, int64_t first, int64_t n, float* to) {
  const __m512i none = _mm512_setzero_si512();
  for (int64_t r = 0; r < n; r += kDeep)
    for (int64_t c = 0; c < m.cols; c += kDeep, to += 2 * kTileWords)
      for (int64_t i = 0; i < kTileRows; ++i) {
        const int64_t at = r + 2 * i;
        const __m512i low = at < n ? row_part(m, first + at, c) : none, high = at + 1 < n ? row_part(m, first + at + 1, c) : none;
        store(to + i * kWidth, pairs_of(low, high, 0));
        store(to + kTileWords + i * kWidth, pairs_of(low, high, 1));
      }
}

// A second operand: its tiles for one column of tiles are `deeper` words apart, those of the next column `next` from the first's, and the
// rows of a tile `row`.
struct TileColumns {
  const float* data;
  int64_t deeper, next, row = 16;
};

// Where the sums of a product go, two or four tiles of them: rows are `row` floats apart, the second tile `next` from the first, and the last
// two `below` from the first two.
struct TileSums {
  float* data;
  int64_t row, next = kTileRows, below = kTileRows * row;
};
// One row of tiles that follow each other. (A tile whose rows do so is stored in two thirds of the time.)
inline TileSums row_of_tiles(float* data) { return {data, kTileRows, kTileWords, 2 * kTileWords}; }

// Tiles 0 to N - 1 are summed in.
template <int N>
inline void begin_sums(const TileSums& c, bool add) {
  const int64_t bytes = c.row * 4;
  asm volatile("" ::: "memory");  // GCC does not know that loading a tile reads memory
  if (add) {
    _tile_loadd(0, c.data, bytes);
    _tile_loadd(1, c.data + c.next, bytes);
    if constexpr (N == 4) {
      _tile_loadd(2, c.data + c.below, bytes);
      _tile_loadd(3, c.data + c.below + c.next, bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (N == 4) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
}
template <int N>
inline void end_sums(const TileSums& c) {
  const int64_t bytes = c.row * 4;
  _tile_stored(0, c.data, bytes);
  _tile_stored(1, c.data + c.next, bytes);
  if constexpr (N == 4) {
    _tile_stored(2, c.data + c.below, bytes);
    _tile_stored(3, c.data + c.below + c.next, bytes);
  }
}

// c[16 R][32] (+)= a[16 R][32 n] b[32 n][32]. Strides in elements. `between` is called behind each of the n steps: the unit that multiplies
// tiles, and one of two for vectors, are then busy for some 64 cycles, and the other has nothing to do.
template <int R, class Between>
inline void multiply_tiles(const uint16_t* a, int64_t a_row, const TileColumns& b, int64_t n, const TileSums& c, bool add,
                           Between between) {
  const int64_t a_bytes = a_row * 2;
  begin_sums<2 * R>(c, add);
  for (int64_t i = 0; i < n; ++i) {
    const float* at = b.data + i * b.deeper;
    _tile_loadd(4, a + i * kDeep, a_bytes);
    _tile_loadd(6, at, b.row * 4);
    _tile_loadd(7, at + b.next, b.row * 4);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (R == 2) {
      _tile_loadd(5, a + 16 * a_row + i * kDeep, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    between();
  }
  end_sums<2 * R>(c);
}

template <int R>
inline void multiply_tiles(const uint16_t* a, int64_t a_row, const TileColumns& b, int64_t n, const TileSums& c, bool add) {
  multiply_tiles<R>(a, a_row, b, n, c, add, [] {});
}

// c[16][16 N] (+)= a[16][32 n] b[32 n][16 N], where the tiles of c follow each other. `step`: from the first operand's 32 elements to the
// next; `pair`: from two columns of the second's tiles to the next two.
template <int N>
inline void multiply_tile_row(const uint16_t* a, int64_t a_row, int64_t step, const TileColumns& b, int64_t pair, int64_t n, float* c,
                              bool add) {
  begin_sums<N>(row_of_tiles(c), add);
  for (int64_t i = 0; i < n; ++i) {
    const float* at = b.data + i * b.deeper;
    _tile_loadd(4, a + i * step, a_row * 2);
    _tile_loadd(5, at, b.row * 4);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, at + b.next, b.row * 4);
    _tile_dpbf16ps(1, 4, 6);
    if constexpr (N == 4) {
      _tile_loadd(7, at + pair, b.row * 4);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, at + pair + b.next, b.row * 4);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  end_sums<N>(row_of_tiles(c));
}

// As of one number.
inline Floats in_log2(Floats mask) {
  const Floats most = splat(0x1.fffffep127f), x = mask * kLog2E;
  const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(mask), most, _CMP_LE_OQ);
  return _mm512_mask_min_ps(x, finite, most, _mm512_max_ps(-most, x));
}

// 2^x, as exp2_of, for results that are rounded to bf16: within 3e-6, relatively, by the best polynomial of the fourth degree on [-1/2, 1/2].
inline Floats exp2_for_bf16(Floats x) {
  const Floats f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), whole = x - f;
  Floats p = splat(9.5701022e-3f);
  p = p * f + 5.5917859e-2f;
  p = p * f + 2.4024744e-1f;
  p = p * f + 6.9312179e-1f;
  p = p * f + 9.9999928e-1f;
  return _mm512_scalef_ps(p, whole);
}

}  // namespace

}  // namespace broach::cpu
