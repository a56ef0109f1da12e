// How attention is cut into pieces of work: heads, and blocks of their query rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "target/cpu/attention.h"

namespace broach::cpu {

struct AttentionPieces {
  int64_t rows, blocks;  // of one piece (but the last of a head); of one head
};

// Each piece rearranges the keys that it sees, which takes as long as two rows. So a head is divided as little as its length allows, and
// further only where that leaves threads without work while others have much: a few pieces each come out even, as who is done takes the
// next one. `step`: rows that the code works on together; `at_most`: that it takes.
inline AttentionPieces attention_pieces(int64_t heads, int64_t rows, int64_t step, int64_t at_most, int threads) {
  constexpr int64_t kFewest = 48, kEach = 3;
  const int64_t least = std::max<int64_t>(1, (rows + at_most - 1) / at_most), most = std::max(least, rows / kFewest);
  int64_t blocks = least;
  if (threads > 1 && heads % threads != 0) blocks = std::clamp((kEach * threads + heads - 1) / std::max<int64_t>(heads, 1), least, most);
  const int64_t even = (rows + blocks - 1) / blocks, own = std::max(step, (even + step - 1) / step * step);
  return {own, (rows + own - 1) / own};
}

// The i-th piece to be begun. Of causal attention the last rows see the most keys.
struct AttentionPiece {
  int64_t head, block;
};
inline AttentionPiece attention_piece(int64_t i, int64_t heads, int64_t blocks, bool causal) {
  if (causal) return {i % heads, blocks - 1 - i / heads};
  return {i / blocks, i % blocks};
}

}  // namespace broach::cpu
