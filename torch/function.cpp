#include "function.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>

#include "capture.h"
#include "support/error.h"
#include "support/log.h"

namespace broach {

Function::Modes Function::Modes::now() {
  Modes m;
  m.grad = c10::GradMode::is_enabled();
  m.inference = c10::InferenceMode::is_enabled();
  m.deterministic = at::globalContext().deterministicAlgorithms();
  m.autocast = at::autocast::is_autocast_enabled(c10::kCPU);
  if (m.autocast) m.autocast_dtype = at::autocast::get_autocast_dtype(c10::kCPU);
  return m;
}

constexpr const char* kNeedsGradients = "gradients are needed: the program runs eagerly until training is compiled";

Function::Function(Eager eager, std::vector<bool> constant_inputs, ProgramOptions options, size_t limit, OnFailure on_failure)
    : eager_(std::move(eager)), constant_inputs_(std::move(constant_inputs)), options_(std::move(options)), limit_(limit), on_failure_(on_failure), entries_(std::make_shared<const Entries>()) {}

Function::Results Function::operator()(at::TensorList inputs, at::IntArrayRef ints) {
  ++calls_;
  Modes modes = Modes::now();
  if (modes.grad && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.defined() && t.requires_grad(); }))
    return run_eager(inputs, ints, kNeedsGradients);
  if (modes.grad && eager_with_grad_) return run_eager(inputs, ints, kNeedsGradients);
  if (Capture::current()) return run_eager(inputs, ints, "called while another program is captured: its operations are part of that one");
  auto entries = entries_.load(std::memory_order_acquire);
  for (const Entry& e : *entries)
    if (e.modes == modes && ints == e.ints && e.program->accepts(inputs, nullptr)) {
      ++compiled_calls_;
      return {e.program->run(inputs), e.int_results, e.form};
    }
  if (hopeless_) return run_eager(inputs, ints, "");
  return capture_and_compile(inputs, ints, modes);
}

Function::Results Function::run_eager(at::TensorList inputs, at::IntArrayRef ints, const std::string& why) {
  note_eager(why);
  return eager_(inputs, c10::fromIntArrayRefSlow(ints));
}

void Function::note_eager(const std::string& why) {
  std::lock_guard lock(stats_mutex_);
  ++stats_.eager_calls;
  auto& reasons = stats_.eager_reasons;
  if (why.empty() || std::find(reasons.begin(), reasons.end(), why) != reasons.end()) return;
  reasons.push_back(why);
  log_info("runs eagerly: ", why);
}

void Function::set_line(std::string line) {
  if (Capture* c = Capture::current()) c->set_line(std::move(line));
}

void Function::reject_capture(std::string why) {
  if (Capture* c = Capture::current()) c->reject(std::move(why));
}

Function::Results Function::capture_and_compile(at::TensorList inputs, at::IntArrayRef ints, const Modes& modes) {
  std::unique_lock lock(compile_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return run_eager(inputs, ints, "another thread is compiling");
  auto entries = entries_.load();
  for (const Entry& e : *entries)
    if (e.modes == modes && ints == e.ints && e.program->accepts(inputs, nullptr)) {
      ++compiled_calls_;
      return {e.program->run(inputs), e.int_results, e.form};
    }
  if (entries->size() >= limit_) return run_eager(inputs, ints, cat("more than ", limit_, " versions would be needed"));
  if (!entries->empty()) {
    std::string why = "the grad, autocast or other mode differs";
    for (const Entry& e : *entries)
      if (e.modes == modes) e.program->accepts(inputs, &why);
    std::lock_guard guard(stats_mutex_);
    stats_.recompilations.push_back(why);
    log_info("recompiles: ", why);
  }
  auto start = std::chrono::steady_clock::now();
  auto seconds = [&] {
    auto now = std::chrono::steady_clock::now();
    double s = std::chrono::duration<double>(now - start).count();
    start = now;
    return s;
  };
  Capture capture(inputs.vec());
  Results results;
  capture.run([&] { results = eager_(inputs, c10::fromIntArrayRefSlow(ints)); });
  capture.finish(results.tensors);
  double captured = seconds();
  if (modes.grad && std::any_of(results.tensors.begin(), results.tensors.end(), [](const at::Tensor& t) { return t.defined() && t.requires_grad(); })) {
    eager_with_grad_ = true;
    note_eager(kNeedsGradients);
    return results;
  }
  std::string why = capture.failure();
  if (why.empty()) {
    try {
      auto program = std::make_shared<const CompiledProgram>(capture.trace(), capture.lifted(), constant_inputs_, options_);
      auto next = std::make_shared<Entries>(*entries);
      next->push_back({modes, ints.vec(), results.ints, results.form, std::move(program)});
      entries_.store(std::move(next), std::memory_order_release);
    } catch (const Error& e) {
      why = e.what();
    }
  }
  std::lock_guard guard(stats_mutex_);
  stats_.capture_seconds.push_back(captured);
  stats_.compile_seconds.push_back(seconds());
  if (!why.empty()) {
    if (on_failure_ == OnFailure::raise) unsupported(why);
    ++stats_.eager_calls;
    stats_.eager_reasons.push_back(why);
    log_warning("runs eagerly: ", why);
    hopeless_ = true;
  }
  return results;
}

FunctionStats Function::stats() const {
  std::lock_guard lock(stats_mutex_);
  FunctionStats s = stats_;
  s.calls = calls_;
  s.compiled_calls = compiled_calls_;
  return s;
}

std::vector<std::shared_ptr<const CompiledProgram>> Function::programs() const {
  std::vector<std::shared_ptr<const CompiledProgram>> out;
  for (const Entry& e : *entries_.load()) out.push_back(e.program);
  return out;
}

void Function::reset() {
  std::lock_guard lock(compile_mutex_);
  entries_.store(std::make_shared<const Entries>());
  hopeless_ = false;
  eager_with_grad_ = false;
}

}  // namespace broach
