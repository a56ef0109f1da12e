#include "runtime/executable.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "support/error.h"

namespace broach {

// The tensors' sizes and strides are evaluated once if no symbol is in them.
struct Executable::PreparedRoutine {
  const RoutineStep& step;
  std::shared_ptr<const CompiledRoutine> routine;
  bool is_static = true;
  std::vector<int64_t> sizes;  // of operands and results, one after another, each followed by its strides; then the starts

  PreparedRoutine(const RoutineStep& s, std::shared_ptr<const CompiledRoutine> r) : step(s), routine(std::move(r)) {
    std::vector<SymbolId> symbols;
    for (const auto* list : {&step.operands, &step.results})
      for (const Operand& o : *list)
        for (const Shape* shape : {&o.type.shape, &o.place.strides})
          for (const SymInt& e : *shape) e.collect_symbols(symbols);
    for (const SymInt& e : starts()) e.collect_symbols(symbols);
    is_static = symbols.empty();
    if (is_static) sizes = evaluate({});
  }

  std::vector<int64_t> evaluate(std::span<const int64_t> symbols) const {
    std::vector<int64_t> out;
    for (const auto* list : {&step.operands, &step.results})
      for (const Operand& o : *list)
        for (const Shape* shape : {&o.type.shape, &o.place.strides})
          for (const SymInt& e : *shape) out.push_back(e.eval(symbols));
    for (const SymInt& e : starts()) out.push_back(e.eval(symbols));
    return out;
  }

  const Shape& starts() const {
    static const Shape none;
    return step.node->attrs.contains(Attr::starts) ? step.node->sizes(Attr::starts) : none;
  }
};

Executable::Executable(Schedule schedule, const Target& target, const CompileSettings& settings, const ExternFactory& externs)
    : schedule_(std::move(schedule)), profile_(schedule_.steps.size()) {
  std::vector<std::shared_ptr<const Kernel>> kernels;
  for (const Step& s : schedule_.steps)
    if (auto k = std::get_if<KernelStep>(&s.work)) kernels.push_back(k->kernel);
  auto compiled = target.compile(kernels, settings);
  stats_.kernels = static_cast<int>(compiled.size());
  std::set<const CompiledKernel*> distinct;
  for (const auto& k : compiled)
    if (distinct.insert(k.get()).second) stats_.code_bytes += k->code_bytes();
  stats_.distinct_kernels = static_cast<int>(distinct.size());
  size_t next = 0;
  steps_.reserve(schedule_.steps.size());
  for (const Step& s : schedule_.steps) {
    CompiledStep c;
    if (auto k = std::get_if<KernelStep>(&s.work)) {
      c.kernel = compiled[next++];
      c.buffers = k->buffers;
      c.symbols = k->symbols;
      c.numbers = k->numbers;
      for (size_t i = 0; i < k->starts.size(); ++i) c.starts.push_back(k->starts[i] * size_of(k->kernel->buffers[i]));
    } else if (auto d = std::get_if<ContractionStep>(&s.work)) {
      c.contraction = target.contraction(*d, settings);
      if (!c.contraction) unsupported("target ", target.name(), " has no ", name_of(d->node->op), " for ", d->result.type.str());
      c.contraction_step = d;
      c.contraction_index = stats_.contractions++;
    } else if (auto r = std::get_if<RoutineStep>(&s.work)) {
      auto routine = target.routine(*r->node);
      if (!routine) unsupported("target ", target.name(), " has no ", name_of(r->node->op), " for ", r->node->inputs[0].type().str());
      c.routine = std::make_shared<const PreparedRoutine>(*r, std::move(routine));
      ++stats_.routines;
    } else {
      const auto& e = std::get<ExternStep>(s.work);
      c.external = externs(e, schedule_);
      ++stats_.externs[e.node->call().schema];
    }
    steps_.push_back(std::move(c));
  }
  for (const CompiledStep& c : steps_) {
    if (!c.contraction) continue;
    contraction_steps_.push_back(&c);
    if (int64_t input = c.contraction_step->weight_inputs[1]; input >= 0)
      packables_.push_back({c.contraction_index, static_cast<int>(input)});
  }
  is_paced_ = !contraction_steps_.empty() && !settings.contractions.deterministic;
  find_lifetimes();
  find_versions();
}

void Executable::find_versions() {
  const auto& buffers = schedule_.buffers;
  std::map<int, int> first;  // buffers of inputs as they are given
  for (size_t a = 0; a < buffers.size(); ++a)
    if (buffers[a].kind == Buffer::Kind::input && buffers[a].version == 0) first.emplace(buffers[a].index, static_cast<int>(a));
  for (size_t b = 0; b < buffers.size(); ++b)
    if (auto it = buffers[b].version > 0 ? first.find(buffers[b].index) : first.end(); it != first.end())
      versions_.push_back({static_cast<int>(b), it->second});
}

void Executable::find_lifetimes() {
  std::vector<int> first(schedule_.buffers.size(), -1), last(first);
  for (size_t i = 0; i < schedule_.steps.size(); ++i)
    for (const auto* list : {&schedule_.steps[i].reads, &schedule_.steps[i].writes})
      for (int b : *list) {
        auto& f = first[static_cast<size_t>(b)];
        if (f < 0) f = static_cast<int>(i);
        last[static_cast<size_t>(b)] = static_cast<int>(i);
      }
  std::vector<SymbolId> symbols;
  const std::set<int> outputs(schedule_.output_buffers.begin(), schedule_.output_buffers.end());
  for (size_t b = 0; b < schedule_.buffers.size(); ++b) {
    const bool returned = outputs.contains(static_cast<int>(b));
    if (schedule_.buffers[b].kind == Buffer::Kind::external && last[b] >= 0 && !returned)
      steps_[static_cast<size_t>(last[b])].releases.push_back(static_cast<int>(b));
    if (schedule_.buffers[b].kind != Buffer::Kind::arena || first[b] < 0) continue;
    arena_buffers_.push_back({static_cast<int>(b), first[b], last[b]});
    schedule_.buffers[b].elements.collect_symbols(symbols);
  }
  std::sort(symbols.begin(), symbols.end());
  symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
  plan_symbols_ = std::move(symbols);
  if (plan_symbols_.empty()) fixed_plan_ = std::make_shared<const MemoryPlan>(memory_plan({}));
}

MemoryPlan Executable::memory_plan(std::span<const int64_t> symbols) const {
  std::vector<Lifetime> lifetimes;
  for (const ArenaBuffer& a : arena_buffers_) {
    const Buffer& b = schedule_.buffers[static_cast<size_t>(a.buffer)];
    lifetimes.push_back({b.elements.eval(symbols) * size_of(b.type.dtype), a.first, a.last});
  }
  return plan_memory(lifetimes);
}

std::shared_ptr<const MemoryPlan> Executable::plan_for(std::span<const int64_t> symbols) const {
  if (fixed_plan_) return fixed_plan_;
  std::vector<int64_t> key;
  for (SymbolId s : plan_symbols_) key.push_back(symbols[s]);
  {
    std::shared_lock lock(mutex_);
    if (auto known = plans_.find(key)) return *known;
  }
  auto plan = std::make_shared<const MemoryPlan>(memory_plan(symbols));
  std::unique_lock lock(mutex_);
  return plans_.insert(std::move(key), std::move(plan));
}

size_t Executable::remembered_plans() const {
  std::shared_lock lock(mutex_);
  return plans_.size();
}

void Executable::place_arena(const MemoryPlan& plan, std::byte* arena, Frame& frame) const {
  for (size_t i = 0; i < arena_buffers_.size(); ++i) frame.data[static_cast<size_t>(arena_buffers_[i].buffer)] = arena + plan.offsets[i];
}

void Executable::run_kernel(const CompiledStep& step, Frame& frame) const {
  constexpr size_t kFew = 64;
  void* few[kFew];
  int64_t few_symbols[kFew];
  std::vector<void*> many(step.buffers.size() > kFew ? step.buffers.size() : 0);
  const size_t numbers = step.symbols.size() + step.numbers.size();
  std::vector<int64_t> many_symbols(numbers > kFew ? numbers : 0);
  void** buffers = many.empty() ? few : many.data();
  int64_t* symbols = many_symbols.empty() ? few_symbols : many_symbols.data();
  for (size_t i = 0; i < step.buffers.size(); ++i) buffers[i] = frame.data[static_cast<size_t>(step.buffers[i])];
  for (size_t i = 0; i < step.starts.size(); ++i) buffers[i] = static_cast<std::byte*>(buffers[i]) + step.starts[i];
  for (size_t i = 0; i < step.symbols.size(); ++i) symbols[i] = frame.symbols[step.symbols[i]];
  std::copy(step.numbers.begin(), step.numbers.end(), symbols + step.symbols.size());
  if (!step.kernel->launch(buffers, symbols, *frame.threads)) throw IndexError("index out of range in self");
}

namespace {

void* address(const Operand& o, const Frame& frame) {
  return static_cast<std::byte*>(frame.data[static_cast<size_t>(o.place.buffer)]) +
         o.place.offset.eval(frame.symbols) * size_of(o.type.dtype);
}

}  // namespace

void Executable::run_contraction(const CompiledStep& step, Frame& frame) const {
  const ContractionStep& c = *step.contraction_step;
  const bool weight = frame.data[static_cast<size_t>(c.operands[1].place.buffer)] != nullptr;
  void* operands[2] = {address(c.operands[0], frame), weight ? address(c.operands[1], frame) : nullptr};
  void* epilogue[8];
  size_t n = 0;
  for (const Epilogue& e : c.epilogue)
    if (e.operand) epilogue[n++] = address(*e.operand, frame);
  static const PackedWeight none;
  const PackedWeight& packed = frame.packs ? (*frame.packs)[static_cast<size_t>(step.contraction_index)] : none;
  step.contraction->run({operands,
                         c.bias ? address(*c.bias, frame) : nullptr,
                         {epilogue, n},
                         address(c.result, frame),
                         packed.data.get(),
                         packed.layout,
                         frame.symbols,
                         *frame.threads,
                         frame.pace});
}

void Executable::run_routine(const PreparedRoutine& r, Frame& frame) const {
  constexpr size_t kMany = 8;
  RoutineTensor tensors[kMany];
  const size_t operands = r.step.operands.size(), results = r.step.results.size();
  check(operands + results <= kMany, "a routine with more than ", kMany, " tensors");
  std::vector<int64_t> evaluated;
  if (!r.is_static) evaluated = r.evaluate(frame.symbols);
  std::span<const int64_t> sizes = r.is_static ? r.sizes : evaluated;
  for (size_t i = 0; i < operands + results; ++i) {
    const Operand& o = i < operands ? r.step.operands[i] : r.step.results[i - operands];
    const size_t rank = o.type.shape.size();
    tensors[i] = {o.place.buffer < 0 ? nullptr : address(o, frame), o.type.dtype, sizes.first(rank), sizes.subspan(rank, rank)};
    sizes = sizes.subspan(2 * rank);
  }
  if (!r.routine->run({{tensors, operands}, {tensors + operands, results}, sizes, *frame.threads}))
    throw IndexError("index out of range in self");
}

void Executable::run_step(const CompiledStep& s, Frame& frame) const {
  if (s.kernel) run_kernel(s, frame);
  else if (s.contraction) run_contraction(s, frame);
  else if (s.routine) run_routine(*s.routine, frame);
  else s.external->run(frame);
  for (int b : s.releases) frame.release(frame, b);
}

void Executable::run_profiled(Frame& frame) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    auto start = std::chrono::steady_clock::now();
    run_step(steps_[i], frame);
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    profile_.add(i, took.count(), step_cost(schedule_.steps[i], schedule_.buffers, frame.symbols));
  }
}

void Executable::run(Frame& frame) const {
  auto plan = plan_for(frame.symbols);
  ArenaLease arena(plan->bytes);
  place_arena(*plan, arena.data(), frame);
  for (auto [later, first] : versions_) frame.data[static_cast<size_t>(later)] = frame.data[static_cast<size_t>(first)];
  frame.pace = pace();
  if (!frame.pace) return run_steps(frame);
  auto start = std::chrono::steady_clock::now();
  run_steps(frame);
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  pace_.finish(took.count(), frame.symbols.empty());
}

void Executable::run_steps(Frame& frame) const {
  if (Profile::enabled()) return run_profiled(frame);
  for (const CompiledStep& s : steps_) run_step(s, frame);
}

PackedWeight Executable::pack(int contraction, const PackSource& source, std::span<const int64_t> symbols) const {
  const CompiledStep& s = *contraction_steps_.at(static_cast<size_t>(contraction));
  size_t bytes = s.contraction->packed_bytes(symbols, true);
  if (bytes == 0) return {};
  const Operand& w = s.contraction_step->operands[1];
  const int64_t offset = w.place.offset.eval(symbols) * static_cast<int64_t>(size_of(w.type.dtype));
  PackedWeight packed{nullptr, bytes, s.contraction->packed_layout(symbols)};
  PackForm form{static_cast<int64_t>(w.type.dtype), offset, static_cast<int64_t>(packed.layout)};
  for (const Shape* numbers : {&w.type.shape, &w.place.strides})
    for (const SymInt& n : *numbers) form.push_back(n.eval(symbols));
  packed.data = SharedPacks::of_process().find_or_make(source, form, bytes, [&](std::byte* memory) {
    auto start = std::chrono::steady_clock::now();
    s.contraction->pack(symbols, static_cast<const std::byte*>(source.data) + offset, memory);
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    pace_.packed(bytes, took.count());
  });
  return packed;
}

size_t Executable::packing_trial(int contraction, std::span<const int64_t> symbols) const {
  return contraction_steps_.at(static_cast<size_t>(contraction))->contraction->packing_trial(symbols);
}

bool Executable::wants_packed(int contraction, std::span<const int64_t> symbols) const {
  return contraction_steps_.at(static_cast<size_t>(contraction))->contraction->packed_bytes(symbols, false) > 0;
}

size_t Executable::packed_bytes(int contraction, std::span<const int64_t> symbols) const {
  return contraction_steps_.at(static_cast<size_t>(contraction))->contraction->packed_bytes(symbols, true);
}

bool Executable::is_settled(std::span<const int64_t> symbols) const {
  return std::all_of(contraction_steps_.begin(), contraction_steps_.end(),
                     [&](const CompiledStep* s) { return s->contraction->is_settled(symbols); });
}

std::vector<std::string> Executable::picks(std::span<const int64_t> symbols) const {
  std::vector<std::string> out;
  for (const auto* s : contraction_steps_) out.push_back(s->contraction->pick(symbols));
  return out;
}

}  // namespace broach
