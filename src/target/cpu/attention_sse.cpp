#define BROACH_VECTOR_FLOATS 4
#include "target/cpu/attention_gradient_simd.h"

namespace broach::cpu {

void attention_sse(const AttentionRows& rows) { attend_any(rows); }
void attention_gradient_sse(const AttentionGradient& gradient) { gradients_of_any(gradient); }

}  // namespace broach::cpu
