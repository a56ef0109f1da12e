#define BROACH_VECTOR_FLOATS 16
#include "target/cpu/attention_gradient_simd.h"

namespace broach::cpu {

void attention_avx512(const AttentionRows& rows) { attend_any(rows); }
void attention_gradient_avx512(const AttentionGradient& gradient) { gradients_of_any(gradient); }

}  // namespace broach::cpu
