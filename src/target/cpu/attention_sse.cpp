#define BROACH_VECTOR_FLOATS 4
#include "target/cpu/attention_simd.h"

namespace broach::cpu {

void attention_sse(const AttentionRows& rows) { attend_any(rows); }

}  // namespace broach::cpu
