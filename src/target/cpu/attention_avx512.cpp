#define BROACH_VECTOR_FLOATS 16
#include "target/cpu/attention_simd.h"

namespace broach::cpu {

void attention_avx512(const AttentionRows& rows) { attend_any(rows); }

}  // namespace broach::cpu
