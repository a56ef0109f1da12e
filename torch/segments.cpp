#include "segments.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include "compat.h"
#include "externs.h"
#include "support/error.h"

namespace broach {

// A call of libtorch's between two segments.
class SegmentedRun::Call {
 public:
  explicit Call(const Segment::Call& call) : call_(call), op_(*call.call) {}

  const std::vector<ExternCall::Bind>& binds() const { return call_.call->binds; }

  // Writes the symbols that it binds; the results are kept once the sizes are known to fit.
  torch::jit::Stack run(const std::function<const at::Tensor&(size_t)>& slot, std::vector<int64_t>& symbols) const {
    c10::SmallVector<at::Tensor, 8> operands;
    for (size_t s : call_.operands) operands.push_back(slot(s));
    for (int64_t i : call_.call->contiguous) operands[static_cast<size_t>(i)] = operands[static_cast<size_t>(i)].contiguous();
    torch::jit::Stack stack = op_.run(operands, symbols);
    for (const ExternCall::Bind& b : binds())
      symbols[b.symbol] = b.result < 0 ? stack.at(0).toScalar().toLong() : stack.at(static_cast<size_t>(b.result)).toTensor().size(b.dim);
    return stack;
  }

  void keep(torch::jit::Stack stack, Slots& slots, const std::vector<int64_t>& symbols) const {
    for (size_t i = 0; i < call_.results.size(); ++i) {
      if (call_.results[i] < 0) continue;
      const Type& type = call_.call->results[i];
      at::Tensor t = stack.at(i).toTensor();
      auto sizes = evaluate(type.shape, symbols), strides = evaluate(call_.call->result_strides[i], symbols);
      check(t.sizes() == c10::IntArrayRef(sizes) && dtype_of(t.scalar_type()) == type.dtype, "extern ", call_.call->schema, " gave sizes ",
            t.sizes(), ", compiled for ", c10::IntArrayRef(sizes));
      if (t.numel() > 0 && t.strides() != c10::IntArrayRef(strides)) t = at::empty_strided(sizes, strides, t.options()).copy_(t);
      slots[static_cast<size_t>(call_.results[i])] = std::move(t);
    }
  }

 private:
  const Segment::Call& call_;
  ExternOp op_;
};

SegmentedRun::SegmentedRun(const CompiledTrace& compiled, size_t inputs, std::vector<bool> constant, const PipelineOptions& options)
    : segments_(compiled.segments) {
  constant.resize(inputs, true);
  for (size_t k = 0; k < segments_->list.size(); ++k) {
    const Segment& s = segments_->list[k];
    auto& calls = made_.emplace_back();
    for (const Segment::Call& c : s.calls) {
      check(c.call->mutated.empty(), c.call->schema, ": gives sizes and writes its operands");
      calls.push_back(std::make_unique<Call>(c));
      calls_.push_back(c.call->schema);
    }
    if (k == 0) continue;
    auto runner = std::make_shared<const Runner>(compiled.later[k - 1], s.graph->inputs().size());
    std::vector<bool> fixed = constant;
    fixed.resize(inputs + s.carried.size(), false);
    weights_.push_back(options.freeze
                           ? std::make_unique<Weights>(runner, nullptr, std::move(fixed), options.settings.contractions.deterministic)
                           : nullptr);
    later_.push_back(std::move(runner));
  }
}

SegmentedRun::~SegmentedRun() = default;

bool SegmentedRun::make_calls(size_t segment, const RunInputs& inputs, Slots& slots, const SizeGuards& guards, std::vector<bool>& known,
                              std::vector<int64_t>& symbols) const {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto slot = [&](size_t s) -> const at::Tensor& { return s < inputs.tensors.size() ? *inputs.tensors[s] : slots[s]; };
  std::vector<torch::jit::Stack> given;
  std::vector<SymbolId> fresh;
  for (const auto& call : made_[segment]) {
    try {
      given.push_back(call->run(slot, symbols));
    } catch (const c10::Error&) {
      return false;  // on a way that eager might not have taken: a run that finds no other raises it
    }
    for (const ExternCall::Bind& b : call->binds()) fresh.push_back(b.symbol);
  }
  if (!guards.match_late(fresh, known, symbols)) return false;
  for (size_t i = 0; i < given.size(); ++i) made_[segment][i]->keep(std::move(given[i]), slots, symbols);
  return true;
}

std::optional<std::vector<at::Tensor>> SegmentedRun::run(const RunInputs& inputs, std::vector<at::Tensor> first, const SizeGuards& guards,
                                                         std::vector<int64_t>& symbols) const {
  Slots slots(segments_->slots.size());
  std::vector<bool> known;
  std::vector<at::Tensor> made = std::move(first);
  for (size_t k = 0; k < segments_->list.size(); ++k) {
    const Segment& s = segments_->list[k];
    if (k > 0) {
      RunInputs all = inputs;
      for (size_t slot : s.carried) all.add(slots[slot]);
      auto state = weights_[k - 1] ? weights_[k - 1]->current(all, symbols) : nullptr;
      made = later_[k - 1]->run(all, symbols, state ? &state->packs : nullptr, {});
    }
    for (size_t i = 0; i < s.outputs.size(); ++i) slots[s.outputs[i]] = std::move(made[i]);
    if (!make_calls(k, inputs, slots, guards, known, symbols)) return std::nullopt;
  }
  std::vector<at::Tensor> out;
  for (size_t slot : segments_->outputs) out.push_back(slots[slot]);
  return out;
}

std::vector<const Executable*> SegmentedRun::executables() const {
  std::vector<const Executable*> out;
  for (const auto& r : later_) out.push_back(&r->executable());
  return out;
}

std::map<const void*, int64_t> SegmentedRun::packed() const {
  std::map<const void*, int64_t> out;
  for (const auto& w : weights_)
    if (w) out.merge(w->bytes());
  return out;
}

}  // namespace broach
