#define BROACH_VECTOR_FLOATS 16
#define BROACH_BF16_DOT 1
#include "target/cpu/attention_simd.h"

namespace broach::cpu {

void attention_avx512_bf16(const AttentionRows& rows) {
  // Few queries are not worth rearranging the keys for.
  if (rows.bf16 && rows.last - rows.first > 2 && lie_in_pairs(rows)) return attend<BF16Pairs>(rows);
  attend_any(rows);
}

}  // namespace broach::cpu
