#include "host_state.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <sstream>
#include <utility>

#include "capture.h"
#include "support/error.h"

namespace broach {

bool trains(const Capture& capture) {
  const bool is_known = !capture.has_run_backward() || capture.runs_known_backwards();
  if (is_known && !capture.gives_histories()) return false;
  const bool may = capture.has_run_backward() || capture.writes_inputs();  // a tensor that is written may get a history
  return may && capture.differentiates() && (need_gradients(capture.lifted()) || need_gradients(capture.given()));
}

Verdict HostState::unclear(int most, const std::string& reason) {
  if (++unclear_in_a_row_ >= most) return {Outcome::unsupported, reason};
  return {
      Outcome::unclear,
      "the program keeps a tensor, writes to one that it is given or holds, or draws random numbers beside others: its next run will show "
      "whether it does the same each time"};
}

namespace {

std::string given_to(const Capture& capture) {
  std::string out;
  for (const at::Tensor& t : capture.inputs())
    if (t.defined()) out += cat(t.dtype().name(), t.is_leaf() ? " leaf" : "", t.requires_grad() ? " with gradients;" : ";");
  for (const at::Tensor& t : capture.lifted()) out += t.defined() && t.requires_grad() ? "1" : "0";
  for (const c10::ScalarType t : Autocast::now().types) out += cat(";", static_cast<int>(t));
  out += cat(c10::GradMode::is_enabled() ? " with gradients" : "", c10::InferenceMode::is_enabled() ? " for inference;" : ";");
  for (const ValueRead& r : capture.trace().reads) out += cat(str(r.value), ";");
  return out;
}

// The recording but for sizes that depend on data, and the tensors that it holds; gradients and arguments' bases are others in every step.
std::string done_by(const Capture& capture) {
  std::istringstream trace(capture.trace().str());
  std::string out;
  for (std::string line; std::getline(trace, line);)
    if (!line.starts_with("symbol ") && !line.starts_with("guard ")) out += line + "\n";
  const size_t given = capture.facts().size() - capture.lifted().size();
  for (size_t i = 0; i < capture.lifted().size(); ++i)
    if (!capture.facts()[given + i].companion_of) out += cat(static_cast<const void*>(capture.lifted()[i].unsafeGetTensorImpl()), "\n");
  return out;
}

}  // namespace

Verdict HostState::judge(const Capture& capture, const std::string& kept, CallSizes sizes) {
  // What it keeps the first time may be a cache that it finds filled from then on.
  if (!kept.empty()) return unclear(2, cat("the program keeps ", kept, ": a replay would leave there what the first run found"));
  if (!writes_alike_ && capture.writes_inputs()) {
    if (capture.differentiable().empty() && trains(capture))
      return {Outcome::unsupported, "the program trains: it writes to tensors that it holds and computes gradients"};
    const std::string did = done_by(capture);
    Run run{std::move(sizes), given_to(capture), digest(did.data(), did.size())};
    auto before = std::ranges::find_if(before_, [&](const Run& r) { return r.sizes == run.sizes && r.given == run.given; });
    if (before == before_.end()) {
      before_.push_back(std::move(run));
      return unclear(kMostRuns, "the program writes to tensors that it is given or holds, and the sizes of its inputs change all the time");
    }
    if (!(before->did == run.did))
      return {
          Outcome::unsupported,
          "the program writes to tensors that it is given or holds, and did so otherwise in two runs: it depends on state of its host code"};
    before_.clear();
    writes_alike_ = true;
  }
  unclear_in_a_row_ = 0;
  return {};
}

}  // namespace broach
