// Products of bf16 on AMX tiles, in blocks of sums that are given away while they lie in the caches of the thread's own.
//
// A file compiled for more than the machine may have must not emit functions that others share, so this header has plain types only.
#pragma once

#include <cstdint>

namespace broach::cpu {

constexpr int64_t kTileBlockRows = 32;     // of a block of sums
constexpr int64_t kTileBlockColumns = 64;  // likewise, and those of the weight that lie together
constexpr int64_t kTileBlockRow = 80;      // from one row of a block to the next: rows and columns never look like one dimension
constexpr int64_t kTileDepth = 32;         // elements that one instruction sums

// Rows [first_row, last_row) times the blocks of columns [first_block, last_block). Strides in elements.
struct TileRows {
  const uint16_t* rows;  // [count, depth], bf16, elements side by side
  int64_t row, count;    // from row to row; all rows that may be read
  int64_t depth;         // a multiple of kTileDepth
  const void* weight;    // bf16 [blocks][depth / 32][16][64][2]
  int64_t first_row, last_row, first_block, last_block;
  float* scratch;  // tile_scratch(depth) floats, aligned to 64 bytes
  // What becomes of the sums of `n` rows from `row` on in a block of columns: f32, kTileBlockRow from row to row.
  void (*finish)(const void* context, int64_t row, int64_t n, int64_t block, const float* sums);
  const void* context;
};

// Whether the sums of one block of columns may wait for their epilogue until those of the next are there: it takes longer than the last
// of the parts that the depth is divided into, but not where there are many of these.
constexpr bool has_two_sums(int64_t depth) { return depth <= 1024; }
// Rows that are worked on together, so that these and their sums, 27/16 MiB at most, stay in the second-level cache, which has two where
// there are tiles.
constexpr int64_t tile_rows(int64_t depth) {
  const int64_t row = depth * 2 + kTileBlockRow * 4 * (has_two_sums(depth) ? 2 : 1);
  const int64_t n = (int64_t{27} << 16) / row / kTileBlockRows * kTileBlockRows;
  return n < 64 ? 64 : n > 1024 ? 1024 : n;
}
constexpr int64_t tile_sums(int64_t depth) { return tile_rows(depth) * kTileBlockRow * (has_two_sums(depth) ? 2 : 1); }
// Sums of these, and the last rows with zeros behind them.
constexpr int64_t tile_scratch(int64_t depth) { return tile_sums(depth) + kTileBlockRows * depth / 2; }

void multiply_amx(const TileRows& work);

}  // namespace broach::cpu
