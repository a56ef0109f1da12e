#include "gradients.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "compat.h"
#include "devices.h"
#include "externs.h"
#include "support/error.h"

namespace broach {

namespace {

namespace ag = torch::autograd;

class Identity : public ag::Node {
 public:
  using ag::Node::Node;
  std::string name() const override { return "BroachInput"; }
  ag::variable_list apply(ag::variable_list&& gradients) override { return std::move(gradients); }
};

// Some results of one call of a compiled program in autograd's graph.
class CompiledCall : public ag::Node {
 public:
  // `own`: which of the call's tangents are those of its results; there are `tangents` in all.
  CompiledCall(std::shared_ptr<const Backward> backward, std::vector<int64_t> symbols, std::vector<size_t> own, size_t tangents)
      : backward_(std::move(backward)), symbols_(std::move(symbols)), own_(std::move(own)), tangents_(tangents) {}

  std::string name() const override { return "BroachBackward"; }

  // Tensors that others may write to, which would be noticed.
  void save(const at::Tensor& t, bool is_result) { saved_.emplace_back(ag::SavedVariable(t, is_result), at::Tensor()); }
  void save_own(at::Tensor t) { saved_.emplace_back(ag::SavedVariable(), std::move(t)); }

  ag::variable_list apply(ag::variable_list&& given) override {
    std::lock_guard lock(mutex_);
    TORCH_CHECK(!released_, ag::ERR_BACKWARD_TWICE);
    ag::variable_list tangents(tangents_);
    for (size_t t = 0; t < given.size(); ++t) {
      if (!given[t].defined()) continue;
      TORCH_CHECK(!results_[t].was_used, ag::ERR_BACKWARD_TWICE);
      results_[t].is_in_use = true;
      tangents[own_[t]] = std::move(given[t]);
    }
    std::vector<bool> wanted;
    for (size_t i = 0; i < num_outputs(); ++i) wanted.push_back(task_should_compute_output(i));
    auto is_other = [](const at::Tensor& t) { return t.defined() && !is_plain(t); };
    if (c10::GradMode::is_enabled() || std::any_of(tangents.begin(), tangents.end(), is_other))
      return run_eagerly(tangents, std::move(wanted));
    released_ = !ag::get_current_graph_task_keep_graph() && none_remains();
    std::vector<at::Tensor> inputs;
    for (auto& [variable, own] : saved_) {
      if (!own.defined()) inputs.push_back(variable.unpack(getptr()));
      else inputs.push_back(released_ ? std::move(own) : own);
    }
    return backward_->run(std::move(inputs), tangents, std::move(wanted), symbols_);
  }

  // A result whose gradient was not asked for may still be differentiated, as far as somebody has it: eager frees what leads to the others.
  void release_variables() override {
    std::lock_guard lock(mutex_);
    const bool is_last = none_remains();
    for (Result& r : results_) r.was_used |= std::exchange(r.is_in_use, false);
    if (!is_last) return;
    saved_.clear();
    given_.clear();
    released_ = true;
  }

  void add_result(const at::Tensor& t) { results_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(t.getIntrusivePtr())}); }

  // For gradients of gradients.
  void keep(const CallInputs& call) {
    if (!call.again) return;
    again_ = *call.again;
    for (const at::Tensor& t : call.tensors) given_.emplace_back(t, t.is_inference() ? 0 : t._version());
    ints_ = call.ints.vec();
    floats_ = call.floats.vec();
  }

 private:
  // Whether no other backward can come.
  bool none_remains() const {
    return std::ranges::all_of(results_, [](const Result& r) { return r.was_used || r.is_in_use || r.tensor.use_count() == 0; });
  }

  ag::variable_list run_eagerly(const ag::variable_list& tangents, std::vector<bool> wanted) const {
    constexpr const char* kWhat = "broach: gradients of gradients (create_graph=True) and batches of them need the program to be run again";
    TORCH_CHECK(again_, kWhat, ", and it is not at hand. Call it without compiling it where they are needed.");
    TORCH_CHECK(backward_->why_not_again().empty(), kWhat, ", but ", backward_->why_not_again(),
                ". Call it without compiling it where they are needed.");
    std::vector<at::Tensor> tensors;
    for (const auto& [t, version] : given_) {
      TORCH_CHECK(t.is_inference() || t._version() == version, kWhat,
                  ", but one of the tensors that it was given has been modified by an inplace operation.");
      tensors.push_back(t);
    }
    return backward_->run_eagerly(*again_, {tensors, ints_, floats_}, tangents, std::move(wanted));
  }

  std::shared_ptr<const Backward> backward_;
  std::vector<int64_t> symbols_;
  std::vector<size_t> own_;
  size_t tangents_;
  std::vector<std::pair<ag::SavedVariable, at::Tensor>> saved_;
  std::shared_ptr<const ProgramAgain> again_;
  std::vector<std::pair<at::Tensor, int64_t>> given_;  // with their versions
  std::vector<int64_t> ints_;
  std::vector<double> floats_;
  struct Result {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    bool is_in_use = false, was_used = false;  // in the backward under way; in one that has freed what it used
  };
  std::vector<Result> results_;  // of its own
  bool released_ = false;
};

// The storage from the tensor's first element on, as elements of another type.
at::Tensor with_elements(const at::Tensor& t, c10::ScalarType type) {
  auto bytes = static_cast<int64_t>(t.storage().nbytes()), own = t.storage_offset() * static_cast<int64_t>(t.itemsize());
  auto size = static_cast<int64_t>(c10::elementSize(type)), n = (bytes - own) / size * size / static_cast<int64_t>(t.itemsize());
  return t.as_strided({n}, {1}, t.storage_offset()).view(type);
}

// The window of `base` that a result is.
at::Tensor window(const at::Tensor& base, const ResultSpec& r, std::span<const int64_t> symbols) {
  bool other = scalar_type(r.type.dtype) != base.scalar_type();
  at::Tensor whole = other ? with_elements(base, scalar_type(r.type.dtype)) : base;
  at::Tensor t =
      whole.as_strided(evaluate(r.type.shape, symbols), evaluate(r.strides, symbols), whole.storage_offset() + r.offset.eval(symbols));
  if (r.conj) t = t.conj();
  return r.neg ? t._neg_view() : t;
}

// For autograd no view: nobody else has the base.
at::Tensor window_of_fresh(const at::Tensor& base, const ResultSpec& r, std::span<const int64_t> symbols) {
  at::AutoDispatchBelowADInplaceOrView below;
  return window(base, r, symbols);
}

// The gradient of a result as the stage was compiled for it.
at::Tensor laid_out(const at::Tensor& t, const Type& type, const Shape& strides, std::span<const int64_t> symbols) {
  auto sizes = evaluate(type.shape, symbols), steps = evaluate(strides, symbols);
  if (t.numel() == 0 || t.strides() == c10::IntArrayRef(steps)) return t;
  return at::empty_strided(sizes, steps, t.options()).copy_(t);
}

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<ResultSpec>& specs, MemoryOf memory, const std::vector<bool>& own_history,
                                   std::span<const int64_t> symbols) {
  const at::Tensor none;
  std::vector<at::Tensor> out;
  out.reserve(specs.size());
  for (const ResultSpec& r : specs) {
    const size_t at = out.size();
    using K = ResultSpec::Kind;
    const at::Tensor& base = r.kind == K::none ? none : memory(r);
    const bool is_apart = r.kind == K::view_of_fresh && at < own_history.size() && own_history[at];
    if (r.kind == K::none || r.kind == K::input || r.kind == K::fresh || !base.defined()) out.push_back(base);
    else out.push_back(is_apart ? window_of_fresh(base, r, symbols) : window(base, r, symbols));
  }
  return out;
}

// ---- inputs with a history ----

InputWithHistory::InputWithHistory(at::Tensor given) : given_(std::move(given)), inside_(given_.detach()) {
  node_ = new_node<Identity>(ag::edge_list{ag::impl::gradient_edge(given_)});
  ag::set_history(inside_, node_);
  node_->next_edges()[0] = {};
}

void InputWithHistory::connect() { node_->next_edges()[0] = ag::impl::gradient_edge(given_); }

bool InputWithHistory::is_written() const { return inside_.grad_fn() != node_; }

at::Tensor InputWithHistory::outside(const at::Tensor& result) const {
  if (!result.defined() || result.is_same(inside_)) return result.defined() ? given_ : result;
  const bool window = result.has_storage() && result.storage().unsafeGetStorageImpl() == given_.storage().unsafeGetStorageImpl() &&
                      result.scalar_type() == given_.scalar_type() && !result.is_conj() && !result.is_neg();
  return window && result.requires_grad() ? given_.as_strided(result.sizes(), result.strides(), result.storage_offset()) : result;
}

// ---- compiled calls ----

Backward::Backward(std::shared_ptr<const CompiledTrace> compiled, Differentiable differentiable, std::vector<at::Tensor> lifted,
                   Targets targets, PipelineOptions options)
    : compiled_(std::move(compiled)),
      differentiable_(std::move(differentiable)),
      lifted_(std::move(lifted)),
      targets_(std::move(targets)),
      options_(std::move(options)) {
  for (size_t g = 0; g < differentiable_.inputs.size(); ++g) {
    auto reaches = [g](const std::vector<bool>& of_result) { return of_result[g]; };
    const auto count = std::ranges::count_if(differentiable_.reaches, reaches);
    if (count > 0 && static_cast<size_t>(count) < differentiable_.reaches.size()) reached_by_some_.push_back(g);
  }
}

// A node runs what lies behind all of its edges, also where there is no gradient. That is seen where there are hooks, or others' code in a
// history: then results are apart that do not depend on the same tensors.
std::vector<std::vector<size_t>> Backward::nodes(const RunInputs& inputs) const {
  const std::vector<std::vector<bool>>& reaches = differentiable_.reaches;
  auto is_seen = [&](size_t g) {
    const at::Tensor& t = *inputs.tensors[differentiable_.inputs[g]];
    if (!t.is_leaf()) return true;
    const ag::Node& n = *ag::impl::gradient_edge(t).function;
    return !ag::impl::hooks(t).empty() || !n.pre_hooks().empty() || !n.post_hooks().empty();
  };
  const bool apart = std::ranges::any_of(reached_by_some_, is_seen);
  std::map<std::vector<bool>, std::vector<size_t>> groups;
  for (size_t t = 0; t < reaches.size(); ++t) groups[apart ? reaches[t] : std::vector<bool>()].push_back(t);
  std::vector<std::vector<size_t>> out;
  for (auto& [reached, tangents] : groups) out.push_back(std::move(tangents));
  return out;
}

void Backward::connect(const CallInputs& call, std::vector<at::Tensor>& results, const RunInputs& inputs,
                       const std::vector<at::Tensor>& made, const std::vector<int64_t>& symbols) const {
  for (const std::vector<size_t>& own : nodes(inputs)) connect(own, call, results, inputs, made, symbols);
  make_windows(results);
}

void Backward::connect(const std::vector<size_t>& own, const CallInputs& call, std::vector<at::Tensor>& results, const RunInputs& inputs,
                       const std::vector<at::Tensor>& made, const std::vector<int64_t>& symbols) const {
  ag::edge_list edges;
  for (size_t g = 0; g < differentiable_.inputs.size(); ++g) {
    const bool reached = std::ranges::any_of(own, [&](size_t t) { return differentiable_.reaches[t][g]; });
    edges.push_back(reached ? ag::impl::gradient_edge(*inputs.tensors[differentiable_.inputs[g]]) : ag::Edge());
  }
  NodePointer node = new_node<CompiledCall>(shared_from_this(), symbols, own, differentiable_.results.size());
  node->set_next_edges(std::move(edges));
  auto& compiled = static_cast<CompiledCall&>(*node);
  for (size_t t : own) {
    at::Tensor& result = results[differentiable_.results[t]];
    ag::set_history(result, node);
    compiled.add_result(result);
  }
  compiled.keep(call);
  const size_t given = compiled_->module.inputs;
  for (size_t i = 0; i + compiled_->tangents < stage().takes.size(); ++i) {
    const size_t slot = stage().takes[i];
    if (slot < given) {
      compiled.save(*inputs.tensors[slot], false);
      continue;
    }
    const at::Tensor& t = made[slot - given];
    auto is_result = [&](const at::Tensor& r) { return r.is_same(t); };
    const bool is_own = t.grad_fn() == node;  // another node's result would hold that one, which may hold this one
    if (std::any_of(results.begin(), results.end(), is_result)) compiled.save(is_own ? t : t.detach(), is_own);
    else compiled.save_own(t);
  }
}

// What lies in the memory of a result that has its history by now gets it from there.
void Backward::make_windows(std::vector<at::Tensor>& results) const {
  const std::vector<size_t>& own = differentiable_.results;
  for (size_t i = 0; own.size() < results.size() && i < results.size(); ++i) {
    at::Tensor& t = results[i];
    auto is_base = [&](size_t r) { return t.defined() && !t.is_same(results[r]) && t.is_alias_of(results[r]); };
    auto base = std::find_if(own.begin(), own.end(), is_base);
    if (base == own.end() || std::find(own.begin(), own.end(), i) != own.end()) continue;
    t = results[*base].as_strided(t.sizes(), t.strides(), t.storage_offset());
    if (!differentiable_.has_history[i]) t = t.detach();
  }
}

std::vector<at::Tensor> Backward::run(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& tangents, std::vector<bool> wanted,
                                      const std::vector<int64_t>& symbols) const {
  keep_reached(tangents, wanted);
  std::vector<bool> given;
  for (const at::Tensor& t : tangents) given.push_back(t.defined());
  const Variant& v = variant({wanted, given});
  const size_t first = inputs.size();
  for (size_t t = 0; t < tangents.size(); ++t) {
    const Slot& tangent = compiled_->module.slots[stage().takes[first + t]];
    inputs.push_back(given[t] ? laid_out(tangents[t], tangent.type, tangent.strides, symbols) : at::Tensor());
  }
  std::vector<ResultSpec> specs = compiled_->gradients;
  std::map<int, at::Tensor> given_back;  // gradients that lie in the memory of an input
  for (size_t g = 0; g < specs.size(); ++g) {
    if (!wanted[g]) specs[g] = {};
    else if (specs[g].is_of_input()) given_back[specs[g].index] = inputs[static_cast<size_t>(specs[g].index)];
  }
  RunInputs run;
  for (const at::Tensor& t : inputs) run.add(t);
  std::vector<at::Tensor> made(stage().gives.size());
  v.runner->run(run, symbols, nullptr, made, inputs);
  auto memory = [&](const ResultSpec& r) -> const at::Tensor& {
    return r.is_of_input() ? given_back.at(static_cast<int>(r.index)) : made[static_cast<size_t>(r.index)];
  };
  return tensors_of(specs, memory, wanted, symbols);
}

// As eager's, a gradient is undefined unless a result that it depends on has one.
void Backward::keep_reached(const std::vector<at::Tensor>& tangents, std::vector<bool>& wanted) const {
  for (size_t g = 0; g < wanted.size(); ++g) {
    bool reached = false;
    for (size_t t = 0; t < tangents.size(); ++t) reached = reached || (tangents[t].defined() && differentiable_.reaches[t][g]);
    wanted[g] = wanted[g] && reached;
  }
}

std::vector<at::Tensor> Backward::run_eagerly(const ProgramAgain& program, const CallInputs& call, const std::vector<at::Tensor>& tangents,
                                              std::vector<bool> wanted) const {
  keep_reached(tangents, wanted);
  std::vector<at::Tensor> inputs = call.tensors.vec(), seeds;
  std::vector<InputWithHistory> with_history;
  for (at::Tensor& t : inputs)
    if (t.defined() && t.requires_grad() && !t.is_leaf()) t = with_history.emplace_back(t).inside();
  const bool create_graph = c10::GradMode::is_enabled();
  std::vector<at::Tensor> results;
  {
    at::AutoGradMode on(true);
    results = program.run(inputs, call.ints, call.floats);
  }
  ag::edge_list roots, leaves;
  for (size_t t = 0; t < tangents.size(); ++t) {
    const size_t r = differentiable_.results[t];
    TORCH_CHECK(r < results.size() && results[r].defined() && results[r].requires_grad(),
                "broach: run again, the program does not give the same results");
    if (!tangents[t].defined()) continue;
    roots.push_back(ag::impl::gradient_edge(results[r]));
    seeds.push_back(tangents[t]);
  }
  std::vector<size_t> asked;  // gradients
  for (size_t g = 0; g < wanted.size(); ++g) {
    if (!wanted[g]) continue;
    const size_t i = differentiable_.inputs[g];
    asked.push_back(g);
    leaves.push_back(ag::impl::gradient_edge(i < inputs.size() ? inputs[i] : lifted_[i - inputs.size()]));
  }
  std::vector<at::Tensor> out(wanted.size());
  if (leaves.empty()) return out;
  auto gradients = ag::Engine::get_default_engine().execute(roots, seeds, /*keep_graph=*/true, create_graph,
                                                            /*accumulate_grad=*/false, leaves);
  for (InputWithHistory& input : with_history) input.connect();
  for (size_t k = 0; k < asked.size(); ++k) out[asked[k]] = std::move(gradients[k]);
  return out;
}

const Backward::Variant& Backward::variant(const Key& key) const {
  std::lock_guard lock(mutex_);
  auto& v = variants_[key];
  if (v) return *v;
  CompiledBackward code = compile_backward(*compiled_, key.first, key.second, targets_, make_extern, options_);
  std::vector<size_t> takes(code.graph->inputs().size());
  std::iota(takes.begin(), takes.end(), size_t{0});
  auto runner = std::make_shared<const Runner>(code.executable, std::move(takes), code.outputs, std::vector<int>(), true);
  v.reset(new Variant{std::move(code), std::move(runner)});
  return *v;
}

std::vector<CompiledBackward> Backward::compiled() const {
  std::lock_guard lock(mutex_);
  std::vector<CompiledBackward> out;
  for (const auto& [key, v] : variants_)
    if (v) out.push_back(v->code);
  return out;
}

}  // namespace broach
