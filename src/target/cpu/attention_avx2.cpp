#define BROACH_VECTOR_FLOATS 8
#include "target/cpu/attention_simd.h"

namespace broach::cpu {

void attention_avx2(const AttentionRows& rows) { attend_any(rows); }

}  // namespace broach::cpu
