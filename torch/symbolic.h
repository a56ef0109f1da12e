// Tensors and integers that stand for the caller's while sizes are captured as symbols.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymFloat.h>
#include <c10/core/SymInt.h>

#include <memory>
#include <vector>

#include "ir/graph.h"

namespace broach {

// Composite operations, in `aten`, that a capture with symbolic sizes records as one.
constexpr const char* kRecurrentLayers[] = {"lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"};

// A symbolic integer as the program sees it: arithmetic builds expressions, and whatever the program decides by one (a
// comparison, a loop bound, a conversion to a plain number) becomes a guard in `symbols`. Constants give plain integers.
c10::SymInt program_integer(const SymInt& value, const std::shared_ptr<Symbols>& symbols);
// Back again. A symbolic integer of somebody else's is an error.
SymInt integer_of(const c10::SymInt& value);
// The same for floating point numbers: of `symbols->floats`. Nothing for a plain one.
// A front's interpreter may have put a node of ours into one of its own: how it comes out. May be null. Set once, at load.
inline c10::SymNode (*unwrap_node)(const c10::SymNode&) = nullptr;
// And how one of ours gets in, for an operation that gives it to the program. Null: none can.
inline c10::SymNode (*wrap_node)(const c10::SymNode&) = nullptr;
c10::SymFloat program_float(HostFloats::Id value, const std::shared_ptr<Symbols>& symbols);
std::optional<HostFloats::Id> float_of(const c10::SymFloat& value);
// Whether an argument is a symbolic number of somebody else's, or a tensor of such sizes, or holds one: torch's own tracers make them.
bool is_of_other_tracer(const c10::IValue& argument);
constexpr const char* kOtherTracer = "the program works with symbolic sizes of another tracer's, as torch.export and make_fx do";

// ---- for a front that replaces functions of numbers ----
bool is_program_number(const c10::SymNode& node);
// Its value in the recorded call, by which nothing is decided.
double recorded_value(const c10::SymNode& node);
// Function number `function` of HostFloats. Null where it is an error.
c10::SymNode apply_function(size_t function, const c10::SymNode& node);
// The next integer below or above it, where that is one for all sizes (ir/whole_part.h). Else null.
c10::SymNode whole_part(const c10::SymNode& node, bool up);

// Held by each of a capture's tensors, and the copies that autograd makes of them: whether any of them is alive.
using Token = std::shared_ptr<const void>;

// A tensor with symbolic sizes outside and the real tensor inside. It has no memory of its own: what reaches for it directly
// (a data pointer, a storage) fails, and the capture with it. Code in C++ that asks for plain sizes fixes them by guards.
at::Tensor capture_tensor(const at::Tensor& real, const Shape& sizes, const Shape& strides, const SymInt& offset,
                          const std::shared_ptr<Symbols>& symbols, const Token& token);
// The real tensor inside, or null for any other tensor.
const at::Tensor* real_tensor(const at::Tensor& t);

}  // namespace broach
