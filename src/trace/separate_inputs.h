// Inputs that lie in one memory but apart from each other, such as parameters that are windows of one buffer.
#pragma once

#include <optional>

#include "trace/trace.h"

namespace broach {

// The trace with a storage for each of them, and for what the program makes of it; nothing where there are none in a storage that is written,
// or where they cannot be told apart: sizes or places that are symbols, and windows that go from one to another. It stands for calls in
// which those inputs lie apart.
std::optional<Trace> with_separate_inputs(const Trace& trace);

}  // namespace broach
