#define BROACH_VECTOR_FLOATS 16
#define BROACH_BF16_DOT 1
#include "target/cpu/tiles.h"

#include "target/cpu/amx.h"

namespace broach::cpu {

namespace {

// Of one product's depth, so that a block of the weight and what it is multiplied with stay in the first-level cache.
constexpr int64_t kMostDeep = 256;
constexpr int64_t kPairs = kTileBlockColumns;  // words from one pair of the weight's rows to the next

struct Part {
  const uint16_t* rows;
  int64_t row;
};

// 32 rows, of which the last may be missing: these are read from a copy that has zeros there.
Part rows_from(const TileRows& w, int64_t r, const uint16_t* last) {
  return r + kTileBlockRows <= w.count ? Part{w.rows + r * w.row, w.row} : Part{last, w.depth};
}

void multiply_block(const TileRows& w, int64_t first, int64_t last, int64_t block, const uint16_t* padded, int64_t deep) {
  const float* weight = static_cast<const float*>(w.weight) + block * w.depth / 2 * kTileBlockColumns;
  const bool at_once = deep >= w.depth;  // then every block of sums is given away at once, and one place does for all
  for (int64_t k = 0; k < w.depth; k += deep) {
    const int64_t n = w.depth - k < deep ? w.depth - k : deep;
    for (int64_t r = first; r < last; r += kTileBlockRows) {
      const int64_t count = last - r < kTileBlockRows ? last - r : kTileBlockRows;
      const Part a = rows_from(w, r, padded);
      float* sums = w.scratch + (at_once ? 0 : r - first) * kTileBlockRow;
      for (int64_t half = 0; half < 2; ++half) {
        const TileColumns b{weight + k / 2 * kPairs + half * 32, 16 * kPairs, 16, kPairs};
        if (count > kTileRows) multiply_tiles<2>(a.rows + k, a.row, b, n / kDeep, sums + half * 32, kTileBlockRow, k > 0);
        else multiply_tiles<1>(a.rows + k, a.row, b, n / kDeep, sums + half * 32, kTileBlockRow, k > 0);
      }
      if (k + n == w.depth) w.finish(w.context, r, count, block, sums);
    }
  }
}

}  // namespace

void multiply_amx(const TileRows& w) {
  const FullTiles tiles;
  const int64_t together = tile_rows(w.depth), parts = (w.depth + kMostDeep - 1) / kMostDeep;
  const int64_t deep = whole_deep((w.depth + parts - 1) / parts);
  auto* padded = reinterpret_cast<uint16_t*>(w.scratch + together * kTileBlockRow);
  if (w.last_row == w.count && w.count % kTileBlockRows != 0) {
    const int64_t from = w.count / kTileBlockRows * kTileBlockRows;
    pack_rows({w.rows, w.row, 1, w.count, w.depth}, from, w.count - from, padded);
  }
  for (int64_t r = w.first_row; r < w.last_row; r += together)
    for (int64_t block = w.first_block; block < w.last_block; ++block)
      multiply_block(w, r, w.last_row - r < together ? w.last_row : r + together, block, padded, deep);
}

}  // namespace broach::cpu
