// Complex numbers without primitives of their own: a c64 is 64 bits that movement carries as they are, and arithmetic takes
// apart into two f32 values and puts together again, all inside one kernel.
#pragma once

#include "ops/formula.h"
#include "ops/reduction.h"

namespace broach {

// ---- bits ----

// Whether elements of the type can be taken apart and put together as integers.
bool has_bits(DType t);
// x's last dimension in elements of a narrower type, as many times longer; or of a wider one.
Value split_bits(GraphBuilder& b, Value x, DType narrow);
Value join_bits(GraphBuilder& b, Value x, DType wide);

// ---- pairs ----

Value pairs_of(GraphBuilder& b, Value x);    // c64 [..] as f32 [.., 2]
Value complex_of(GraphBuilder& b, Value x);  // f32 [.., 2] as c64 [..]
Value conj(GraphBuilder& b, Value x);
Value neg(GraphBuilder& b, Value x);

// A complex value as its parts, of one shape.
struct Complex {
  Expr re, im;
};
Complex parts(GraphBuilder& b, Value x);  // of a real value: itself and 0
Value packed(const Complex& z);

void add_complex_ops(OpTable&);
void add_partwise_ops(OpTable&);  // complex_parts.cpp: those that act on both parts alike

}  // namespace broach
