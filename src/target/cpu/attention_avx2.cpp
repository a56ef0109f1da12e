#define BROACH_VECTOR_FLOATS 8
#include "target/cpu/attention_gradient_simd.h"

namespace broach::cpu {

void attention_avx2(const AttentionRows& rows) { attend_any(rows); }
void attention_gradient_avx2(const AttentionGradient& gradient) { gradients_of_any(gradient); }

}  // namespace broach::cpu
