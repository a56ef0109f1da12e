#include "stages.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "compat.h"
#include "externs.h"
#include "passes/passes.h"
#include "support/error.h"

namespace broach {

// A call of libtorch's between two stages.
class Stages::Call {
 public:
  Call(const Stage& stage, size_t inputs) : takes_(stage.takes), call_(stage.graph->nodes().back().call()), op_(call_) {
    check(call_.mutated.empty(), call_.schema, ": gives sizes and writes its operands");
    for (const Value& v : stage.graph->nodes().back().inputs) operands_.push_back(static_cast<size_t>(v.node->integer(Attr::index)));
    for (size_t i = 0; i < stage.gives.size(); ++i) gives_.emplace_back(stage.graph->outputs()[i].index, stage.gives[i] - inputs);
  }

  const std::vector<ExternCall::Bind>& binds() const { return call_.binds; }
  const std::string& schema() const { return call_.schema; }

  // Writes the symbols that it binds; the results are kept once the sizes are known to fit.
  torch::jit::Stack run(const RunInputs& values, std::vector<int64_t>& symbols) const {
    c10::SmallVector<at::Tensor, 8> operands;
    for (size_t i : operands_) operands.push_back(*values.tensors[takes_[i]]);
    for (int64_t i : call_.contiguous) operands[static_cast<size_t>(i)] = operands[static_cast<size_t>(i)].contiguous();
    torch::jit::Stack stack = op_.run(operands, symbols);
    for (const ExternCall::Bind& b : binds())
      symbols[b.symbol] = b.result < 0 ? stack.at(0).toScalar().toLong() : stack.at(static_cast<size_t>(b.result)).toTensor().size(b.dim);
    return stack;
  }

  void keep(const torch::jit::Stack& stack, const std::vector<int64_t>& symbols, std::vector<at::Tensor>& made) const {
    for (auto [i, place] : gives_) {
      const Type& type = call_.results[i];
      at::Tensor t = stack.at(i).toTensor();
      auto sizes = evaluate(type.shape, symbols), strides = evaluate(call_.result_strides[i], symbols);
      check(t.sizes() == c10::IntArrayRef(sizes) && dtype_of(t.scalar_type()) == type.dtype, "extern ", call_.schema, " gave ",
            t.scalar_type(), t.sizes(), ", compiled for ", name_of(type.dtype), c10::IntArrayRef(sizes));
      if (t.numel() > 0 && t.strides() != c10::IntArrayRef(strides)) t = at::empty_strided(sizes, strides, t.options()).copy_(t);
      made[place] = std::move(t);
    }
  }

 private:
  const std::vector<size_t> takes_;
  const ExternCall& call_;
  ExternOp op_;
  std::vector<size_t> operands_;                    // inputs of the stage
  std::vector<std::pair<uint32_t, size_t>> gives_;  // results, and where among what is made
};

// By slot: by itself if it is a result of the program's, what such a one is a window of or what an input is given. Of the others, which
// stages alone hold, those of one block are let go together: its number is the part of the gradients that reads them last.
static std::vector<int> blocks_of(const Module& module, const Program& program, int gradient_parts) {
  std::vector<int> out(module.slots.size(), 0);
  if (const Parts parts = parts_for_memory(module, gradient_parts); !parts.gives.empty()) {
    const Stage& last = module.stages.back();
    const std::vector<size_t> readers = last_readers(*last.graph, parts);
    for (size_t i = 0; i < readers.size(); ++i) out[last.takes[i]] = static_cast<int>(readers[i]);
  }
  for (const ResultSpec& r : program.results)
    if (r.index >= 0) out[static_cast<size_t>(r.index)] = kByItself;
  for (const Program::Commit& c : program.commits) out[static_cast<size_t>(c.output)] = kByItself;
  return out;
}

bool is_touched(const Schedule& schedule, size_t input) {
  auto is_its = [&](int b) {
    const Buffer& buffer = schedule.buffers[static_cast<size_t>(b)];
    return buffer.kind == Buffer::Kind::input && buffer.index == static_cast<int>(input);
  };
  return std::ranges::any_of(schedule.output_buffers, is_its) ||
         std::ranges::any_of(schedule.steps, [&](const Step& s) { return std::ranges::any_of(s.reads, is_its); });
}

// Marks what the first stage of a program that decides first computes on the host and only the run itself reads, or kernels are given.
static void mark_elements(const CompiledTrace& compiled, const Program& program, std::vector<int>& blocks) {
  const Module& m = compiled.module;
  std::vector<bool> is_needed(m.slots.size());
  for (const ResultSpec& r : std::span(program.results).first(program.results.size() - program.reads))
    if (r.index >= 0) is_needed[static_cast<size_t>(r.index)] = true;
  for (const Program::Commit& c : program.commits) is_needed[static_cast<size_t>(c.output)] = true;
  size_t decides = 0;
  while (m.stages[decides].runs == Stage::Runs::once) ++decides;
  if (!compiled.executables[decides]) return;
  for (size_t k = decides + 1; k < m.stages.size(); ++k)
    for (size_t i = 0; i < m.stages[k].takes.size(); ++i)
      if (!compiled.executables[k] || is_touched(compiled.executables[k]->schedule(), i)) is_needed[m.stages[k].takes[i]] = true;
  const Schedule& schedule = compiled.executables[decides]->schedule();
  for (size_t i = 0; i < schedule.output_buffers.size(); ++i) {
    const Buffer& b = schedule.buffers[static_cast<size_t>(schedule.output_buffers[i])];
    const DType type = b.type.dtype;
    const bool is_element = b.kind == Buffer::Kind::output && b.type.device.kind == DeviceKind::cpu && b.type.shape.empty() &&
                            (type == DType::b1 || type == DType::i64 || type == DType::f64);
    if (const size_t slot = m.stages[decides].gives[i]; is_element && !is_needed[slot]) blocks[slot] = kElement;
  }
}

Stages::Stages(const CompiledTrace& compiled, const Program& program, const std::vector<bool>& constant, const std::vector<int>& written,
               const PipelineOptions& options, bool is_step, std::span<const c10::Device> current)
    : inputs_(compiled.module.inputs), values_(inputs_) {
  const Module& m = compiled.module;
  std::vector<bool> stays = constant, is_taken(m.slots.size());
  stays.resize(m.slots.size(), false);
  std::vector<int> blocks = blocks_of(m, program, options.gradient_parts);
  if (program.decides_first) mark_elements(compiled, program, blocks);
  for (size_t k = 0; k < m.stages.size(); ++k) {
    const Stage& s = m.stages[k];
    if (s.runs == Stage::Runs::for_gradients) break;
    std::vector<size_t> places;
    for (size_t slot : s.takes) is_taken[slot] = true, values_ = std::max(values_, slot + 1);
    const bool once = s.runs == Stage::Runs::once;
    for (size_t slot : s.gives) {
      places.push_back(slot - (once ? s.gives[0] : inputs_));
      if (once) stays[slot] = true;
      else made_ = std::max(made_, slot - inputs_ + 1);
    }
    if (once) {
      once_ = std::make_shared<const Runner>(compiled.executables[k], s.takes, std::move(places));
      first_frozen_ = s.gives[0];
    } else if (s.runs == Stage::Runs::for_sizes) {
      parts_.push_back({nullptr, nullptr, std::make_unique<const Call>(s, inputs_), s.gives});
      calls_.push_back(parts_.back().call->schema());
    } else {
      std::vector<int> own;
      for (size_t slot : s.gives) own.push_back(blocks[slot]);
      const bool steady = compiled.tangents > 0 || is_step;
      auto runner = std::make_shared<Runner>(compiled.executables[k], s.takes, std::move(places), written, steady, own);
      runner->rely_on(current);
      add(s, std::move(runner), stays, options);
    }
  }
  for (Part& p : parts_) std::erase_if(p.gives, [&](size_t slot) { return !is_taken[slot]; });
  if (std::ranges::find(blocks, kElement) == blocks.end()) return;
  for (size_t i = 0; i < made_; ++i) is_element_.push_back(blocks[inputs_ + i] == kElement);
}

// What is computed once belongs to the first one that runs in every call.
void Stages::add(const Stage& stage, std::shared_ptr<const Runner> runner, const std::vector<bool>& constant,
                 const PipelineOptions& options) {
  executables_.push_back(&runner->executable());
  const auto once = executables_.size() == 1 ? once_ : nullptr;
  std::unique_ptr<Weights> weights;
  if (options.freeze && (once || !runner->executable().packables().empty()))
    weights = std::make_unique<Weights>(runner, once, first_frozen_, constant, options.settings.contractions.deterministic);
  parts_.push_back({std::move(runner), std::move(weights), nullptr, stage.gives});
}

Stages::~Stages() = default;

bool Stages::find_sizes(const Call& call, const RunInputs& values, const SizeGuards& guards, std::vector<bool>& known,
                        std::vector<int64_t>& symbols, std::vector<at::Tensor>& made) const {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  torch::jit::Stack given;
  try {
    given = call.run(values, symbols);
  } catch (const c10::Error&) {
    return false;  // on a way that eager might not have taken: a run that finds no other raises it
  }
  std::vector<SymbolId> fresh;
  for (const ExternCall::Bind& b : call.binds()) fresh.push_back(b.symbol);
  if (!guards.match_late(fresh, known, symbols)) return false;
  call.keep(given, symbols, made);
  return true;
}

bool Stages::run(RunInputs& values, const SizeGuards& guards, std::vector<int64_t>& symbols, std::vector<at::Tensor>& made,
                 const Decide& decide) const {
  made.resize(made_);
  if (values_ > inputs_) values.resize(values_);
  std::vector<bool> known;
  std::vector<int64_t> elements(is_element_.size());
  std::shared_ptr<const Weights::State> frozen;  // holds what later stages take of it
  for (const Part& p : parts_) {
    if (p.call) {
      if (!find_sizes(*p.call, values, guards, known, symbols, made)) return false;
    } else {
      std::shared_ptr<const Weights::State> weights = p.weights ? p.weights->current(values, symbols) : nullptr;
      if (weights && !weights->frozen.empty()) values.set(first_frozen_, (frozen = weights)->frozen_values);
      p.runner->run(values, symbols, weights ? &weights->packs : nullptr, made, {}, elements);
    }
    for (size_t slot : p.gives)
      if (!is_element_.empty() && is_element_[slot - inputs_]) values.set(slot, elements[slot - inputs_]);
      else values.set(slot, made[slot - inputs_]);
    if (decide && &p == &parts_.front() && !decide(made, elements)) return false;
  }
  return true;
}

bool Stages::can_fail() const {
  auto may = [](const Executable* e) { return broach::can_fail(e->schedule()); };
  return std::any_of(executables_.begin(), executables_.end(), may) || (once_ && may(&once_->executable()));
}

std::vector<KeptWeight> Stages::kept(const std::vector<int64_t>& symbols) const {
  std::vector<KeptWeight> out;
  for (const Part& p : parts_)
    if (p.weights) std::ranges::move(p.weights->kept(symbols), std::back_inserter(out));
  return out;
}

}  // namespace broach
