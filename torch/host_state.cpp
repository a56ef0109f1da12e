#include "host_state.h"

#include <utility>

#include "capture.h"
#include "support/error.h"

namespace broach {

bool trains(const Capture& capture) {
  return capture.differentiates() && (need_gradients(capture.lifted()) || need_gradients(capture.inputs()));
}

Verdict HostState::unclear(int most, const std::string& reason) {
  if (++unclear_in_a_row_ >= most) return {Outcome::unsupported, reason};
  return {
      Outcome::unclear,
      "the program keeps a tensor, or writes to one that it is given or holds: its next run will show whether it does the same each time"};
}

Verdict HostState::judge(const Capture& capture, const std::string& kept, CallSizes sizes) {
  constexpr int kMostUnclear = 3;
  // What it keeps the first time may be a cache that it finds filled from then on.
  if (!kept.empty()) return unclear(2, cat("the program keeps ", kept, ": a replay would leave there what the first run found"));
  if (!writes_alike_ && capture.writes_inputs()) {
    if (capture.differentiable().empty() && trains(capture))
      return {Outcome::unsupported, "the program trains: it writes to tensors that it holds and computes gradients"};
    Run run{capture.trace().str(), std::move(sizes)};
    for (const at::Tensor& t : capture.lifted()) run.text += cat("\n", static_cast<const void*>(t.unsafeGetTensorImpl()));
    auto before = std::exchange(before_, std::move(run));
    if (!before || !(before->sizes == before_->sizes))
      return unclear(kMostUnclear,
                     "the program writes to tensors that it is given or holds, and the sizes of its inputs change all the time");
    if (before->text != before_->text)
      return {
          Outcome::unsupported,
          "the program writes to tensors that it is given or holds, and did so otherwise in two runs: it depends on state of its host code"};
    writes_alike_ = true;
  }
  unclear_in_a_row_ = 0;
  return {};
}

}  // namespace broach
