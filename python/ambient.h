// The settings of torch that a program depends on without naming them.
#pragma once

#include <array>
#include <cstdint>

namespace broach {

// Everything that may differ between calls; two calls with equal words see equal settings, and Function::Modes are equal.
// What `torch.backends.cudnn.allow_tf32` says is not in it: where it does not raise, it follows from the precisions.
using AmbientSettings = std::array<uint64_t, 2>;
AmbientSettings ambient_settings();

// Whether a call happens inside something that interprets operations itself (a transform of torch.func, a dispatch or function
// mode, torch.jit's tracer, another capture, detection of anomalies): then the program runs as it is, and its operations are seen one by
// one.
bool must_run_plainly();

}  // namespace broach
