// What host code does besides operations, where it shows: tensors of one run that are still held when it is over, which a replay
// would not make anew, and sizes that were asked for in plain numbers.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "capture.h"
#include "devices.h"
#include "input_history.h"
#include "support/error.h"
#include "symbolic.h"
#include "tensors.h"

namespace broach {

namespace {

using Known = std::unordered_set<const c10::TensorImpl*>;

// A view keeps the tensor that it is a view of.
void add_with_base(const at::Tensor& t, Known& known) {
  if (!t.defined()) return;
  known.insert(t.unsafeGetTensorImpl());
  if (!t.is_inference() && t.is_view()) known.insert(t._base().unsafeGetTensorImpl());
}

using Nodes = std::unordered_set<const torch::autograd::Node*>;

void add_history(const at::Tensor& t, Nodes& ends) {
  if (t.requires_grad() && !has_lost_history(t)) ends.insert(torch::autograd::impl::gradient_edge(t).function.get());
}

// Whether gradients of a view go on to one of these.
bool leads_to(const at::Tensor& view, const Nodes& ends) {
  if (!view.grad_fn()) return false;
  Nodes met{view.grad_fn().get()};
  std::vector<const torch::autograd::Node*> stack(met.begin(), met.end());
  while (!stack.empty()) {
    const torch::autograd::Node* n = stack.back();
    stack.pop_back();
    if (ends.contains(n)) return true;
    for (const torch::autograd::Edge& e : n->next_edges())
      if (e.function && met.insert(e.function.get()).second) stack.push_back(e.function.get());
  }
  return false;
}

}  // namespace

// No operation shows a write to `requires_grad`.
bool Capture::changes_gradients() const {
  auto differs = [&](const at::Tensor& t, size_t i) { return t.requires_grad() != needed_gradients_[i]; };
  for (size_t i = 0; i < needed_gradients_.size(); ++i)
    if (differs(i < given_.size() ? given_[i] : lifted_[i - given_.size()], i) || (i < given_.size() && differs(inputs_[i], i)))
      return true;
  return false;
}

// What operations read before would be without a history in eager, but not where they are made again for the gradients' own gradients.
bool Capture::only_lets_inputs_need(const std::vector<at::Tensor>& outputs) {
  auto shares = [](const at::Tensor& t, const at::Tensor& other) { return other.defined() && other.has_storage() && other.is_alias_of(t); };
  std::vector<size_t> found;
  for (size_t i = 0; i < needed_gradients_.size(); ++i) {
    const at::Tensor& t = i < given_.size() ? inputs_[i] : lifted_[i - given_.size()];
    if (t.requires_grad() == needed_gradients_[i]) continue;
    const at::Tensor& real = i < given_.size() ? given_[i] : t;
    if (i >= given_.size() || needed_gradients_[i] || read_without_history_.contains(t.unsafeGetTensorImpl()) ||
        std::ranges::any_of(outputs, [&](const at::Tensor& o) { return shares(real, o); }))
      return false;
    found.push_back(i);
  }
  differentiable_.lets_need = std::move(found);
  return true;
}

// A replay gives a view of the caller's tensor, with the history that this has: not one that the program let need gradients, that it
// detached before, or that eager made without a history. With gradients off a view still needs them if what it is a view of does.
std::string Capture::why_other_history(const std::vector<at::Tensor>& outputs) const {
  Known known;
  Nodes ends;
  for (const auto* list : {&given_, &inputs_, &lifted_})
    for (const at::Tensor& t : *list) {
      add_with_base(t, known);
      if (!t.defined() || t.is_inference()) continue;
      add_history(t, ends);  // a leaf may be a view of what needs no gradients
      if (t.is_view()) add_history(at::Tensor(t._base()), ends);
    }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& t = outputs[i];
    const bool is_input = std::find(trace_.inputs.begin(), trace_.inputs.end(), trace_.outputs[i]) != trace_.inputs.end();
    if (!t.defined() || !t.requires_grad() || is_input) continue;
    if (!at::GradMode::is_enabled()) return "the program gives, with gradients off, a view of a tensor that needs them";
    if (!is_view_of_input(trace_.outputs[i])) continue;
    if (t.is_inference() || !t.is_view() || has_lost_history(t) || !known.contains(t._base().unsafeGetTensorImpl()) || !leads_to(t, ends))
      return "the program gives a view of a tensor, with a history that is not its own";
  }
  return "";
}

// A new gradient lies in memory that the capture has seen an operation fill; that which was there before is another tensor to it.
std::string Capture::kept_gradient(const std::vector<at::Tensor>& outputs) const {
  Known known;
  for (const auto* list : {&given_, &lifted_, &outputs})
    for (const at::Tensor& t : *list) add_with_base(t, known);
  for (const auto* list : {&given_, &lifted_})
    for (const at::Tensor& t : *list) {
      if (!t.defined() || !t.is_leaf() || !t.grad().defined() || known.contains(t.grad().unsafeGetTensorImpl())) continue;
      if (storage_of(t.grad()) >= 0) return cat("the gradient of a tensor, ", t.toString(), t.sizes(), ", that it was given or holds");
    }
  return "";
}

std::string Capture::kept(const std::vector<at::Tensor>& outputs) const {
  Known known;
  for (const auto* list : {&given_, &lifted_, &outputs})
    for (const at::Tensor& t : *list) add_with_base(t, known);
  for (const auto& [impl, seen] : tensors_) {
    if (seen.impl.use_count() == 0 || known.contains(impl)) continue;
    const Type& type = trace_.tensors[static_cast<size_t>(seen.id)].type;
    auto maker = std::find_if(trace_.ops.begin(), trace_.ops.end(), [&, id = seen.id](const TraceOp& op) {
      return std::find(op.results.begin(), op.results.end(), id) != op.results.end();
    });
    if (maker == trace_.ops.end()) continue;
    return cat("a tensor, ", type.str(), ", that ", maker->schema, " gave",
               maker->line >= 0 ? " at " + trace_.lines[static_cast<size_t>(maker->line)] : "");
  }
  return "";
}

std::string Capture::held_argument(const std::vector<at::Tensor>& outputs, const std::vector<bool>& is_weight) const {
  Known returned;
  for (const at::Tensor& t : outputs) add_with_base(t, returned);
  for (size_t i = 0; i < is_held_.size(); ++i)
    if (is_held_[i] && !(i < is_weight.size() && is_weight[i]) && !returned.contains(given_[i].unsafeGetTensorImpl()))
      return cat("its argument ", i, ", ", given_[i].toString(), given_[i].sizes());
  return "";
}

std::vector<size_t> Capture::references() const {
  std::vector<size_t> out;
  for (const at::Tensor& t : given_) out.push_back(t.use_count());
  return out;
}

// ---- what host code does to tensors ----

void Capture::watch_host_code(const std::vector<bool>& is_weight) {
  host_writes_.emplace();
  for (size_t i = 0; i < given_.size(); ++i)
    if (i >= is_weight.size() || !is_weight[i]) host_writes_->note(given_[i]);
}

// What an operation is about to read, or the caller; gives the tensors.
std::vector<at::Tensor> Capture::look_at_operands(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> out;
  if (!host_writes_) return out;
  for (const c10::IValue& v : values) {
    for_each_tensor_in(v, [&](const at::Tensor& t) { out.push_back(real_tensor(t) ? *real_tensor(t) : t); });
    if (v.isGenerator() && v.toGenerator().defined() && !is_default(v.toGenerator()))
      fail_with({"random numbers are drawn from a generator that the program may make, or set, itself", Fallback::eager});
  }
  for (const at::Tensor& t : out) {
    if (!host_writes_->are_as_noted(t))
      fail_with({"host code writes elements of a tensor between operations (data_ptr(), an accessor)", Fallback::eager});
    const auto seen = t.defined() && t.has_storage() ? tensors_.find(t.unsafeGetTensorImpl()) : tensors_.end();
    if (seen != tensors_.end() && storage_of(t) != trace_.tensors[static_cast<size_t>(seen->second.id)].storage)
      fail_with({cat("the program gives other memory to a tensor, ", t.toString(), t.sizes(), ", by set_data()"), Fallback::eager});
  }
  return out;
}

// Behind an operation, whose results are the last in the stack, `results` of them.
void Capture::note_writes(const TraceOp& op, const std::vector<at::Tensor>& operands, const torch::jit::Stack& stack, size_t results) {
  if (!host_writes_ || op.is_view) return;
  auto note = [&](const at::Tensor& t) { host_writes_->note(t); };
  for (const c10::IValue& v : torch::jit::last(stack, results)) for_each_tensor_in(v, note);
  if (!op.mutated.empty()) std::ranges::for_each(operands, note);
}

std::string Capture::exchanged() const {
  for (const auto* list : {&given_, &lifted_})
    for (const at::Tensor& t : *list) {
      const auto seen = t.defined() ? tensors_.find(t.unsafeGetTensorImpl()) : tensors_.end();
      if (seen == tensors_.end() || real_tensor(t) || !t.has_storage()) continue;
      if (storage_of(t) != trace_.tensors[static_cast<size_t>(seen->second.id)].storage) return cat(t.toString(), t.sizes());
    }
  return "";
}

bool Capture::writes_inputs() const {
  std::unordered_set<int32_t> written;
  for (const TraceOp& op : trace_.ops)
    for (TensorId id : op.mutated) written.insert(trace_.tensors[static_cast<size_t>(id)].storage);
  return std::any_of(trace_.inputs.begin(), trace_.inputs.end(),
                     [&](TensorId id) { return written.contains(trace_.tensors[static_cast<size_t>(id)].storage); });
}

void Capture::note_plain_read(const SymInt& size) {
  if (!size.is_constant()) size.collect_symbols(plainly_read_);
}

std::vector<InputSize> Capture::plain_reads() const {
  std::vector<InputSize> out;
  for (SymbolId id : plainly_read_) {
    const SymbolInfo& s = trace_.symbols->infos()[static_cast<size_t>(id)];
    bool known = std::any_of(out.begin(), out.end(), [&](const InputSize& o) { return o.input == s.input && o.dim == s.dim; });
    if (s.source == SymbolInfo::Source::size && s.input >= 0 && !known) out.push_back({s.input, s.dim});
  }
  return out;
}

}  // namespace broach
