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

// Sums whose epilogue is still to come: a few rows at a time between the tiles of what is multiplied next, which leave one of two vector
// units idle.
class Waiting {
 public:
  explicit Waiting(const TileRows& w) : w_(w) {}

  // Rows that are worked off in this many steps are as many as come in them.
  void set_pace(int64_t steps_for_block) { steps_for_block_ = steps_for_block; }

  void put(int64_t row, int64_t count, int64_t block, const float* sums) {
    if (block != block_ || sums != sums_ + (last_ - row_) * kTileBlockRow) {
      finish_all();
      row_ = row, block_ = block, sums_ = sums;
    }
    last_ = row + count;
  }

  // Sums are about to be computed in this place.
  void leave(const float* place) {
    if (place + kTileBlockRows * kTileBlockRow > sums_ && place < sums_ + (last_ - row_) * kTileBlockRow) finish_all();
  }

  void step() {
    if (row_ == last_) return;
    credit_ += kTileBlockRows;
    if (credit_ < kFewestRows * steps_for_block_) return;
    const int64_t rows = credit_ / steps_for_block_;
    credit_ -= rows * steps_for_block_;
    finish(last_ - row_ < rows ? last_ - row_ : rows);
  }

  void finish_all() {
    while (row_ != last_) finish(last_ - row_ < kTileBlockRows ? last_ - row_ : kTileBlockRows);
    credit_ = 0;
  }

 private:
  static constexpr int64_t kFewestRows = 2;  // of one call

  void finish(int64_t rows) {
    w_.finish(w_.context, row_, rows, block_, sums_);
    row_ += rows, sums_ += rows * kTileBlockRow;
  }

  const TileRows& w_;
  int64_t row_ = 0, last_ = 0, block_ = -1, credit_ = 0, steps_for_block_ = 1;
  const float* sums_ = nullptr;
};

// What of the weight comes next, fetched from further away while what is there is multiplied.
class NextWeight {
 public:
  // `bytes` of it, in so many steps.
  NextWeight(const void* data, int64_t bytes, int64_t steps)
      : at_(static_cast<const char*>(data)), end_(at_ + bytes), step_((bytes / 64 + steps - 1) / steps * 64) {}

  void step() {
    for (const char* last = end_ - at_ < step_ ? end_ : at_ + step_; at_ < last; at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const char *at_, *end_;
  int64_t step_;
};

void multiply_block(const TileRows& w, int64_t first, int64_t last, int64_t block, const uint16_t* padded, int64_t deep, Waiting& waiting) {
  const float* weight = static_cast<const float*>(w.weight) + block * w.depth / 2 * kPairs;
  const int64_t row_blocks = (last - first + kTileBlockRows - 1) / kTileBlockRows;
  // Sums of several parts need a place for each block of rows. Others are worked off while the next are computed, and two do for all, which
  // have another between them, so that they are not taken for neighbours.
  const bool at_once = deep >= w.depth;
  float* place = w.scratch + (has_two_sums(w.depth) && block % 2 ? tile_rows(w.depth) * kTileBlockRow : 0);
  for (int64_t k = 0; k < w.depth; k += deep, weight += deep / 2 * kPairs) {
    const int64_t n = w.depth - k < deep ? w.depth - k : deep, steps = n / kDeep;
    const bool is_end = block + 1 == w.last_block && k + n == w.depth;
    NextWeight next(weight + n / 2 * kPairs, is_end ? 0 : n * kPairs * 2, row_blocks * 2 * steps);
    waiting.set_pace(2 * (has_two_sums(w.depth) ? w.depth / kDeep : steps));
    for (int64_t r = first; r < last; r += kTileBlockRows) {
      const int64_t count = last - r < kTileBlockRows ? last - r : kTileBlockRows, i = (r - first) / kTileBlockRows;
      const Part a = rows_from(w, r, padded);
      float* sums = place + (at_once ? i % 2 * 2 : i) * kTileBlockRows * kTileBlockRow;
      waiting.leave(sums);
      auto between = [&] {
        next.step();
        waiting.step();
      };
      for (int64_t half = 0; half < 2; ++half) {
        const TileColumns b{weight + half * 32, 16 * kPairs, 16, kPairs};
        if (count > kTileRows) multiply_tiles<2>(a.rows + k, a.row, b, steps, {sums + half * 32, kTileBlockRow}, k > 0, between);
        else multiply_tiles<1>(a.rows + k, a.row, b, steps, {sums + half * 32, kTileBlockRow}, k > 0, between);
      }
      if (k + n == w.depth) waiting.put(r, count, block, sums);
    }
  }
}

}  // namespace

void multiply_amx(const TileRows& w) {
  const FullTiles tiles;
  Waiting waiting(w);
  const int64_t together = tile_rows(w.depth), parts = (w.depth + kMostDeep - 1) / kMostDeep;
  const int64_t deep = whole_deep((w.depth + parts - 1) / parts);
  auto* padded = reinterpret_cast<uint16_t*>(w.scratch + tile_sums(w.depth));
  if (w.last_row == w.count && w.count % kTileBlockRows != 0) {
    const int64_t from = w.count / kTileBlockRows * kTileBlockRows;
    pack_rows({w.rows, w.row, 1, w.count, w.depth}, from, w.count - from, whole_deep(w.count - from), padded);
  }
  for (int64_t r = w.first_row; r < w.last_row; r += together)
    for (int64_t block = w.first_block; block < w.last_block; ++block)
      multiply_block(w, r, w.last_row - r < together ? w.last_row : r + together, block, padded, deep, waiting);
  waiting.finish_all();
}

}  // namespace broach::cpu
