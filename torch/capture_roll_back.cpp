// What a run that is recorded has written, as it was before.
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <ranges>

#include "capture.h"
#include "keys.h"
#include "support/error.h"
#include "tensors.h"

namespace broach {

namespace {

// Of a tensor that needed no gradients before the run: or else the run that counts would add to the history that this one gave it.
void forget_history(const at::Tensor& t) {
  namespace ag = torch::autograd;
  auto forget = [](ag::AutogradMeta* meta) {
    if (meta) meta->grad_fn_.reset(), meta->output_nr_ = 0, meta->requires_grad_ = false;
  };
  if (ag::DifferentiableViewMeta* view = ag::impl::get_view_autograd_meta(t); view && t.is_view()) {
    forget(ag::impl::get_autograd_meta(t._base()));
    view->set_attr_version(static_cast<uint32_t>(t._version()));
  }
  forget(ag::impl::get_autograd_meta(t));
}

}  // namespace

// Elements that lie in one place once.
static at::Tensor without_repeats(at::Tensor t) {
  for (int64_t d = 0; t.layout() == c10::kStrided && d < t.dim(); ++d)
    if (t.stride(d) == 0 && t.size(d) > 1) t = t.narrow(d, 0, 1);
  return t;
}

BeforeWrite::BeforeWrite(const at::Tensor& t)
    : tensor(t), memory(t.detach()), elements(without_repeats(memory).clone()), version(version_of(t)), required_grad(t.requires_grad()) {}

// What becomes of what an operation is about to write.
void Capture::before_writes(const TraceOp& op, const std::vector<std::pair<at::Tensor, TensorId>>& written, bool draws) {
  if (!regions_.empty()) check_region(op.mutated, draws);
  if (symbolic_ || may_roll_back_) {
    std::for_each(op.mutated.begin(), op.mutated.end(), [this](TensorId id) { save_before_write(id); });
    for (const auto& [t, id] : written) save_outside(t, id);
  }
  if (in_gradients_ && !op.mutated.empty()) protect(op, written);
}

void Capture::save_before_write(TensorId id) {
  int32_t storage = trace_.tensors[static_cast<size_t>(id)].storage;
  for (size_t i = 0; i < trace_.inputs.size(); ++i) {
    if (trace_.tensors[static_cast<size_t>(trace_.inputs[i])].storage != storage) continue;
    const at::Tensor& real = i < given_.size() ? given_[i] : lifted_[i - given_.size()];
    if (std::none_of(saved_.begin(), saved_.end(), [&](const BeforeWrite& s) { return s.tensor.is_same(real); }))
      saved_.push_back(BeforeWrite(real));
  }
}

// Of a window that reaches beyond the input in whose storage it lies, or between that one's elements.
void Capture::save_outside(const at::Tensor& t, TensorId id) {
  const int32_t storage = trace_.tensors[static_cast<size_t>(id)].storage;
  bool is_of_input = false;
  for (size_t i = 0; i < trace_.inputs.size(); ++i) {
    if (trace_.tensors[static_cast<size_t>(trace_.inputs[i])].storage != storage) continue;
    is_of_input = true;
    const at::Tensor& input = i < given_.size() ? given_[i] : lifted_[i - given_.size()];
    const Reach of_input = reach_in_storage(input), of_window = reach_in_storage(t);
    const bool has_gaps = bytes_of(input) != input.nbytes();
    if (!has_gaps && of_window.first >= of_input.first && of_window.second <= of_input.second) return;
  }
  if (!is_of_input) return;
  c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
  at::NoGradGuard no_grad;
  saved_.push_back(BeforeWrite(t));
}

bool Capture::has_written() const {
  auto is_input = [&](TensorId m) {
    return std::any_of(trace_.inputs.begin(), trace_.inputs.end(), [&](TensorId i) {
      return trace_.tensors[static_cast<size_t>(i)].storage == trace_.tensors[static_cast<size_t>(m)].storage;
    });
  };
  return std::any_of(trace_.ops.begin(), trace_.ops.end(),
                     [&](const TraceOp& op) { return op.effect || std::any_of(op.mutated.begin(), op.mutated.end(), is_input); });
}

void Capture::keep_for_roll_back() {
  may_roll_back_ = true;
  random_before_.add(c10::kCPU);
  for (c10::Device d : current_) random_before_.add(d);
}

void Capture::roll_back() {
  drop_gradients();
  put_back(saved_);
  for (size_t i = 0; i < facts_.size(); ++i)
    if (const at::Tensor& t = i < given_.size() ? given_[i] : lifted_[i - given_.size()]; t.defined() && t.is_leaf())
      if (t.requires_grad() != needed_gradients_[i]) t.requires_grad_(needed_gradients_[i]);
  random_before_.put_back();
}

// What code of a gradient writes is put back at once: nobody has asked for the gradients yet.
void Capture::protect(const TraceOp& op, const std::vector<std::pair<at::Tensor, TensorId>>& written) {
  auto add = [&](const at::Tensor& t, TensorId id) {
    const int32_t storage = trace_.tensors[static_cast<size_t>(id)].storage;
    auto is_input = [&](TensorId i) { return trace_.tensors[static_cast<size_t>(i)].storage == storage; };
    if (storage >= first_storage_of_gradients_ && std::none_of(trace_.inputs.begin(), trace_.inputs.end(), is_input)) return;
    protected_.push_back(BeforeWrite(t));
  };
  c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
  at::NoGradGuard no_grad;
  for (const auto& [t, id] : written) add(t, id);
  if (op.mutated.size() > written.size() && no_gradients_.empty()) no_gradients_ = cat("a gradient is computed by ", op.schema);
}

void Capture::put_back(const std::vector<BeforeWrite>& saved) {
  c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
  at::NoGradGuard no_grad;
  for (const BeforeWrite& s : std::views::reverse(saved)) {
    without_repeats(s.memory).copy_(s.elements);
    c10::TensorImpl& impl = *s.tensor.unsafeGetTensorImpl();
    if (s.tensor.layout() == c10::kStrided && (s.tensor.sizes() != s.memory.sizes() || s.tensor.strides() != s.memory.strides()))
      impl.set_sizes_and_strides(s.memory.sizes(), s.memory.strides(), s.memory.storage_offset());
    c10::VariableVersion version = s.tensor.unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) version.set_version(s.version);
    if (s.tensor.requires_grad() && !s.required_grad) forget_history(s.tensor);
  }
}

}  // namespace broach
