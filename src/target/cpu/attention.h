// Attention over blocks of keys: scores of a few query rows and a block of keys, their softmax carried along from block to
// block, and the sum of values, so that the scores of all pairs never lie in memory.
//
// The code is compiled once for each instruction set (attention_avx512.cpp and its kin); a file compiled for more than the
// machine may have must not emit functions that others share, so this header has plain types only.
#pragma once

#include <cstdint>

namespace broach::cpu {

// Rows [first, last) of the queries of one head. Strides are in elements; scores are scaled, and masks added, in f32.
struct AttentionRows {
  const void *query, *key, *value;  // of the head: [rows, depth], [keys, depth], [keys, value_depth]
  const float* mask;                // [rows, keys], or null
  void* result;                     // [rows, value_depth], or null
  float* logsumexp;                 // [rows], or null
  int64_t query_row, query_col, key_row, key_col, value_row, value_col, mask_row, mask_col, result_row, result_col, logsumexp_row;
  int64_t first, last, keys, depth, value_depth;
  int64_t head_rows;  // all of them: what is computed of one does not depend on how they are divided
  float scale;
  bool causal;     // query i sees keys 0..i
  bool bf16;       // element type: bf16, or f32
  float* scratch;  // attention_scratch() floats, aligned to 64 bytes
};

// At most, of one call; on AMX, where keys are rearranged for each call in a larger part of its time, and rows take half the memory.
constexpr int64_t kAttentionRows = 192, kAmxAttentionRows = 512;

// Keys that are worked on together: their rows should stay in the second-level cache.
inline int64_t attention_keys(int64_t depth) {
  int64_t n = 32768 / (depth > 0 ? depth : 1) / 64 * 64;
  return n < 64 ? 64 : n > 512 ? 512 : n;
}
// The same on AMX, where they and the scores of 16 rows should stay in the first-level cache; of depths in multiples of 32.
inline int64_t amx_attention_keys(int64_t depth) {
  int64_t n = 16384 / (depth > 0 ? depth : 1) / 32 * 32;
  return n < 64 ? 64 : n > 128 ? 128 : n;
}
inline int64_t attention_scratch(int64_t depth, int64_t value_depth) {
  const int64_t most = depth > value_depth ? depth : value_depth, keys = attention_keys(most), wide = (value_depth + 15) / 16 * 16;
  // Keys, values and 6 rows of scores of a block; queries, sums of values, maxima and sums of weights of all rows.
  const int64_t plain = keys * depth + keys * wide + 6 * keys + kAttentionRows * (depth + wide + 2) + 6 * 16;
  // As many, with 16 rows of scores, of weights and of queries; keys, values, queries and weights have half the size.
  const int64_t deep = (depth + 31) / 32 * 32, value_deep = (value_depth + 31) / 32 * 32;
  const int64_t block = amx_attention_keys(deep > value_deep ? deep : value_deep);
  const int64_t amx = block * (deep + value_deep) / 2 + 16 * (block * 3 + deep) / 2 + kAmxAttentionRows * (value_deep + 2);
  return plain > amx ? plain : amx;
}

// Whether the machine has tiles of bf16, and the system lets this process use them.
bool may_use_amx();

using AttentionFn = void(const AttentionRows&);
AttentionFn attention_amx, attention_avx512_bf16, attention_avx512, attention_avx2, attention_sse;

// Rows of one head, or what is to become them; strides in elements. Null: nobody wants them.
struct AttentionMatrix {
  const void* data;
  int64_t row, col;
};

// Gradients of one head by its keys [first_key, last_key): of these and their values, and their part of that of the queries. With the
// weights p = exp(score - logsumexp), computed again: dv = p' g, ds = p (g v' - sum over each row of g * result), dk = ds' q, dq = ds k.
// (The backward of Dao et al., FlashAttention, 2022.)
struct AttentionGradient {
  AttentionMatrix query, key, value, gradient, result;  // [rows, depth], [keys, depth], [keys, value_depth], [rows, value_depth] twice
  AttentionMatrix query_gradient, key_gradient, value_gradient;  // that of the queries is written once all is added up
  const float *mask, *logsumexp;                                 // [rows, keys], or null; [rows]
  int64_t mask_row, mask_col, logsumexp_row;
  int64_t rows, depth, value_depth, first_key, last_key;
  float scale;
  bool causal, bf16;
  float* query_sums;  // attention_query_sums() floats: what was added up, in an order of the code's own
  float* scratch;     // attention_gradient_scratch() floats, aligned to 64 bytes
};

constexpr int64_t kGradientKeys = 128, kGradientRows = 48;  // that are worked on together; rows: a multiple of what a tile takes

constexpr int64_t kAmxGradientBlock = 128;  // the same on AMX, of both

inline int64_t attention_wide(int64_t depth) { return (depth + 15) / 16 * 16; }
inline int64_t attention_query_sums(int64_t rows, int64_t depth) { return (rows + 31) / 32 * 32 * ((depth + 31) / 32 * 32); }
inline int64_t attention_gradient_scratch(int64_t rows, int64_t depth, int64_t value_depth) {
  const int64_t wide = attention_wide(depth), value_wide = attention_wide(value_depth);
  const int64_t plain =
      kGradientKeys * (3 * wide + 2 * value_wide) + kGradientRows * (wide + value_wide + 2 * kGradientKeys) + (rows + 15) / 16 * 16;
  // Queries and gradients twice in half the size, what rows have in common; keys twice, values, sums of both; weights and gradients of
  // scores.
  const int64_t deep = (depth + 31) / 32 * 32, value_deep = (value_depth + 31) / 32 * 32, all = (rows + 31) / 32 * 32;
  const int64_t amx = all * (deep + value_deep + 2) + kAmxGradientBlock * (2 * deep + value_deep * 3 / 2) +
                      kAmxGradientBlock * kAmxGradientBlock * 3 / 2 + 2 * 32 * 32;
  return plain > amx ? plain : amx;
}

using AttentionGradientFn = void(const AttentionGradient&);
AttentionGradientFn attention_gradient_amx, attention_gradient_avx512, attention_gradient_avx2, attention_gradient_sse;

}  // namespace broach::cpu
