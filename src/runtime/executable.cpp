#include "runtime/executable.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <list>
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
    return step.operation.attrs.contains(Attr::starts) ? step.operation.sizes(Attr::starts) : none;
  }
};

Executable::Executable(Schedule schedule, const Targets& targets, const CompileSettings& settings, const ExternFactory& externs)
    : schedule_(std::move(schedule)), profile_(schedule_.steps.size()) {
  compile_steps(targets, settings, externs);
  for (const CompiledStep& c : steps_) {
    if (!c.contraction) continue;
    contraction_steps_.push_back(&c);
    const int64_t input = c.contraction_step->weight_inputs[1];
    if (input >= 0 && c.contraction->packing()) packables_.push_back({c.contraction_index, static_cast<int>(input)});
  }
  is_paced_ = !contraction_steps_.empty() && !settings.contractions.deterministic;
  find_numbers();
  find_versions();
  find_lifetimes(targets);
  find_replays();
}

size_t Executable::part_on(Device device, const Targets& targets) {
  for (size_t i = 0; i < parts_.size(); ++i)
    if (parts_[i].device == device) return i;
  // The host's memory serves calls of its library where no target runs on it.
  parts_.push_back({device, targets.has(device) ? &targets.on(device) : nullptr, {}});
  return parts_.size() - 1;
}

// A call of the host's library is made on the device where all lies that it touches, if a target runs there.
size_t Executable::part_of(const Step& step, const Targets& targets) {
  if (!std::holds_alternative<ExternStep>(step.work)) return part_on(step.device, targets);
  std::optional<Device> where;
  for (const auto* list : {&step.reads, &step.writes})
    for (int b : *list) {
      const Type& t = schedule_.buffers[static_cast<size_t>(b)].type;
      if (t.dtype == DType::opaque) continue;
      if (where && !(*where == t.device)) return part_on(step.device, targets);
      where = t.device;
    }
  return part_on(where && targets.has(*where) ? *where : step.device, targets);
}

// All kernels of a device at once, then the steps in their order.
void Executable::compile_steps(const Targets& targets, const CompileSettings& settings, const ExternFactory& externs) {
  std::vector<std::vector<std::shared_ptr<const Kernel>>> kernels;
  for (const Step& s : schedule_.steps) {
    const size_t part = part_of(s, targets);
    kernels.resize(parts_.size());
    if (!std::holds_alternative<ExternStep>(s.work)) targets.on(s.device);  // there has to be one
    if (const auto* k = std::get_if<KernelStep>(&s.work)) kernels[part].push_back(k->kernel);
  }
  if (parts_.empty()) part_on({}, targets);
  kernels.resize(parts_.size());
  std::vector<CompiledKernels> compiled;
  std::set<const CompiledKernel*> distinct;
  for (size_t p = 0; p < parts_.size(); ++p) {
    compiled.push_back(kernels[p].empty() ? CompiledKernels() : parts_[p].target->compile(kernels[p], settings));
    stats_.kernels += static_cast<int>(compiled[p].size());
    for (const auto& k : compiled[p])
      if (distinct.insert(k.get()).second) stats_.code_bytes += k->code_bytes();
  }
  stats_.distinct_kernels = static_cast<int>(distinct.size());
  std::vector<size_t> next(parts_.size(), 0);
  steps_.reserve(schedule_.steps.size());
  auto is_input = [&](int b) { return schedule_.buffers[static_cast<size_t>(b)].kind == Buffer::Kind::input; };
  bool fails = false;
  for (const Step& s : schedule_.steps) {
    const size_t part = part_of(s, targets);
    CompiledStep c = compile_step(s, parts_[part].target, settings, externs);
    c.part = part;
    c.settles = fails && !s.early && std::any_of(s.writes.begin(), s.writes.end(), is_input);
    fails = (fails && !c.settles) || can_fail(s);
    if (std::holds_alternative<KernelStep>(s.work)) c.kernel = compiled[part][next[part]++];
    steps_.push_back(std::move(c));
  }
}

Executable::CompiledStep Executable::compile_step(const Step& step, const Target* target, const CompileSettings& settings,
                                                  const ExternFactory& externs) {
  CompiledStep c;
  if (auto k = std::get_if<KernelStep>(&step.work)) {
    c.buffers = k->buffers;
    c.symbols = k->symbols;
    c.numbers = k->numbers;
    for (size_t i = 0; i < k->starts.size(); ++i) c.starts.push_back(k->starts[i] * size_of(k->kernel->buffers[i]));
  } else if (auto d = std::get_if<ContractionStep>(&step.work)) {
    c.contraction = target->contraction(*d, settings);
    if (!c.contraction) unsupported("target ", target->name(), " has no ", name_of(d->operation.op), " for ", d->result.type.str());
    c.contraction_step = d;
    c.contraction_index = stats_.contractions++;
  } else if (auto r = std::get_if<RoutineStep>(&step.work)) {
    auto routine = target->routine(r->operation);
    if (!routine) unsupported("target ", target->name(), " has no ", name_of(r->operation.op), " for ", r->operation.operands[0].str());
    c.works_in_place = routine->works_in_place();
    c.routine = std::make_shared<const PreparedRoutine>(*r, std::move(routine));
    ++stats_.routines;
  } else if (auto copy = std::get_if<CopyStep>(&step.work)) {
    c.copy = copy;
  } else {
    const auto& e = std::get<ExternStep>(step.work);
    c.external = externs(e, schedule_);
    ++stats_.externs[e.operation.call().schema];
  }
  return c;
}

void Executable::find_numbers() {
  for (const CompiledStep& s : steps_)
    for (const KernelNumber& n : s.numbers)
      if (n.input >= 0) number_buffers_.resize(std::max(number_buffers_.size(), static_cast<size_t>(n.input) + 1), -1);
  for (size_t b = 0; b < schedule_.buffers.size(); ++b) {
    const Buffer& buffer = schedule_.buffers[b];
    if (buffer.kind != Buffer::Kind::input || static_cast<size_t>(buffer.index) >= number_buffers_.size()) continue;
    int& known = number_buffers_[static_cast<size_t>(buffer.index)];
    if (known < 0) known = static_cast<int>(b);
  }
}

bool Executable::is_read_behind(int buffer, size_t step) const {
  const auto& steps = schedule_.steps;
  const bool is_output = std::ranges::find(schedule_.output_buffers, buffer) != schedule_.output_buffers.end();
  return is_output || std::any_of(steps.begin() + static_cast<std::ptrdiff_t>(step), steps.end(), [&](const Step& s) {
           return std::ranges::find(s.reads, buffer) != s.reads.end() || std::ranges::find(s.writes, buffer) != s.writes.end();
         });
}

// Whether results of a step are the program's, or read by steps that are never recorded.
bool Executable::gives(size_t step) const {
  size_t end = step + 1;
  while (end < steps_.size() && (steps_[end].external || steps_[end].contraction || is_replayable(end, false))) ++end;
  return std::ranges::any_of(schedule_.steps[step].writes, [&](int b) { return is_read_behind(b, end); });
}

bool Executable::is_replayable(size_t step, bool with_calls) const {
  const CompiledStep& s = steps_[step];
  const Target* target = parts_[s.part].target;
  if (!target || !target->records()) return false;
  if (s.external) return with_calls && s.external->records(false) && s.external->records(gives(step));
  return s.kernel || s.routine || (s.contraction && s.contraction->records() && (with_calls || !s.contraction->calls_host()));
}

StepUse Executable::use_of(size_t step) const {
  const CompiledStep& s = steps_[step];
  StepUse out;
  out.is_kernel = s.kernel != nullptr, out.is_call = s.external || (s.contraction && s.contraction->calls_host());
  out.has_numbers = std::ranges::any_of(s.numbers, [](const KernelNumber& n) { return n.input >= 0; });
  if (s.kernel) out.buffers = s.buffers;
  else
    for (const auto* list : {&schedule_.steps[step].reads, &schedule_.steps[step].writes})
      out.buffers.insert(out.buffers.end(), list->begin(), list->end());
  if (!s.external) {
    add_memory(step, out);
    return out;
  }
  out.launches_many = s.external->launches_many();
  for (int b : schedule_.steps[step].writes)
    if (schedule_.buffers[static_cast<size_t>(b)].kind == Buffer::Kind::external) out.made.push_back(b);
  return out;
}

// Of kernels and products, on what small ones touch.
void Executable::add_memory(size_t step, StepUse& use) const {
  constexpr int64_t kFewBytes = int64_t{2} << 20, kFewOperations = int64_t{1} << 31;
  const CompiledStep& s = steps_[step];
  if (use.is_call || (!s.kernel && !s.contraction)) return;
  int64_t all = 0;
  auto add = [&](int b, bool is_written) {
    const Buffer& buffer = schedule_.buffers[static_cast<size_t>(b)];
    const auto elements = buffer.elements.maybe_constant();
    const int64_t bytes = elements ? *elements * size_of(buffer.type.dtype) : -1;
    // Versions of an input lie in its memory.
    int own = buffer.kind == Buffer::Kind::arena ? -1 : b;
    for (size_t first = 0; buffer.kind == Buffer::Kind::input && first < schedule_.buffers.size(); ++first)
      if (schedule_.buffers[first].kind == Buffer::Kind::input && schedule_.buffers[first].index == buffer.index) {
        own = static_cast<int>(first);
        break;
      }
    use.memory.push_back({b, own, bytes, is_written});
    all = bytes < 0 || all < 0 ? -1 : all + bytes;
  };
  for (int b : schedule_.steps[step].reads) add(b, false);
  for (int b : schedule_.steps[step].writes) add(b, true);
  use.is_product = s.contraction != nullptr;
  if (s.kernel) {
    use.is_small = all >= 0 && all <= kFewBytes;
    return;
  }
  const ContractionStep& c = *s.contraction_step;
  const auto operations = (product(c.result.type.shape) * c.operands[0].type.shape.back() * 2).maybe_constant();
  use.is_small = c.operation.op == Op::dot && all >= 0 && operations && *operations <= kFewOperations;
}

// The most that calls have at once, in large pieces of known size.
int64_t Executable::made_bytes(size_t first, size_t end) const {
  auto large = [](int64_t bytes) { return bytes > ReplayedSteps::kSmallPiece ? bytes : 0; };
  auto bytes_of = [&](int b) -> int64_t {
    const Buffer& buffer = schedule_.buffers[static_cast<size_t>(b)];
    if (buffer.kind != Buffer::Kind::external || !buffer.elements.is_constant()) return 0;
    return large(buffer.elements.constant() * size_of(buffer.type.dtype));
  };
  std::set<int> made;
  int64_t now = 0, most = 0;
  for (size_t i = first; i < end; ++i) {
    if (steps_[i].external)
      for (int b : schedule_.steps[i].writes)
        if (made.insert(b).second) now += bytes_of(b);
    most = std::max(most, now + (steps_[i].contraction ? large(steps_[i].contraction->host_bytes()) : 0));
    for (int b : steps_[i].releases)
      if (made.erase(b) > 0) now -= bytes_of(b);
  }
  return most;
}

void Executable::add_replays(bool with_calls) {
  std::vector<bool> replayable;
  for (size_t i = 0; i < steps_.size(); ++i) replayable.push_back(is_replayable(i, with_calls));
  for (size_t i = 0, end; i < steps_.size(); i = std::max(end, i + 1)) {
    const size_t part = steps_[i].part;
    std::vector<StepUse> uses;
    for (end = i; end < steps_.size() && replayable[end] && steps_[end].part == part; ++end) uses.push_back(use_of(end));
    const bool is_worth_it = uses.size() >= ReplayedSteps::kFewest || std::ranges::any_of(uses, &StepUse::launches_many);
    if (!is_worth_it || (with_calls && std::ranges::none_of(uses, &StepUse::is_call))) continue;
    for (StepUse& u : uses) std::ranges::copy_if(u.made, std::back_inserter(u.given), [&](int b) { return is_read_behind(b, end); });
    steps_[i].replays[with_calls ? 0 : 1] = replays_.emplace_back(std::make_unique<ReplayedSteps>(i, uses, part, made_bytes(i, end))).get();
  }
}

void Executable::find_replays() {
  add_replays(true);
  add_replays(false);
}

RecordingCounts Executable::recordings() const {
  RecordingCounts out;
  for (const auto& r : replays_) out += r->counts();
  return out;
}

void Executable::run_kernel(const CompiledStep& step, Frame& frame, const RunContext& context) const {
  constexpr size_t kFew = 512;  // memory for more is felt beside a launch
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
  int64_t* bits = symbols + step.symbols.size();
  for (const KernelNumber& n : step.numbers) {
    *bits = n.bits;
    if (n.input >= 0) std::memcpy(bits, frame.data[static_cast<size_t>(number_buffers_[static_cast<size_t>(n.input)])], sizeof *bits);
    ++bits;
  }
  step.kernel->launch(buffers, symbols, context);
}

namespace {

void* address(const Operand& o, const Frame& frame) {
  return static_cast<std::byte*>(frame.data[static_cast<size_t>(o.place.buffer)]) +
         o.place.offset.eval(frame.symbols) * size_of(o.type.dtype);
}

}  // namespace

void Executable::run_contraction(const CompiledStep& step, Frame& frame, const RunContext& context) const {
  const ContractionStep& c = *step.contraction_step;
  const bool weight = frame.data[static_cast<size_t>(c.operands[1].place.buffer)] != nullptr;
  void* operands[2] = {address(c.operands[0], frame), weight ? address(c.operands[1], frame) : nullptr};
  void* epilogue[8];
  size_t n = 0;
  for (const Epilogue& e : c.epilogue)
    if (e.operand) epilogue[n++] = address(*e.operand, frame);
  std::vector<void*> sides;
  for (const auto& side : c.side_results) sides.push_back(address(side.result, frame));
  const PackedWeight* packed = frame.packs ? &(*frame.packs)[static_cast<size_t>(step.contraction_index)] : nullptr;
  step.contraction->run({.operands = operands,
                         .bias = c.bias ? address(*c.bias, frame) : nullptr,
                         .epilogue = {epilogue, n},
                         .result = address(c.result, frame),
                         .side_results = sides,
                         .packed = packed && packed->data ? packed : nullptr},
                        context);
}

void Executable::run_routine(const PreparedRoutine& r, Frame& frame, const RunContext& context) const {
  constexpr size_t kMany = 12;
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
  r.routine->run({{tensors, operands}, {tensors + operands, results}, sizes}, context);
}

void Executable::run_copy(const CompiledStep& step, Frame& frame, const RunContext& context) const {
  const CopyStep& copy = *step.copy;
  const Buffer& b = schedule_.buffers[static_cast<size_t>(copy.from)];
  const auto bytes = static_cast<size_t>(b.elements.eval(frame.symbols) * size_of(b.type.dtype));
  const bool to_host = schedule_.buffers[static_cast<size_t>(copy.to)].type.device != context.device;
  if (bytes == 0) return;
  parts_[step.part].target->copy(frame.data[static_cast<size_t>(copy.to)], frame.data[static_cast<size_t>(copy.from)], bytes, to_host,
                                 context);
}

void Executable::run_work(const CompiledStep& s, Frame& frame, RunContext& context) const {
  if (s.kernel) run_kernel(s, frame, context);
  else if (s.contraction) run_contraction(s, frame, context);
  else if (s.routine) run_routine(*s.routine, frame, context);
  else if (s.copy) run_copy(s, frame, context);
  else s.external->run(frame);
}

void Executable::release(const CompiledStep& s, Frame& frame) const {
  for (int b : s.releases) frame.release(frame, b);
}

void Executable::run_step(const CompiledStep& s, Frame& frame, RunContext& context) const {
  if (frame.by_step) begin_by_step(s, frame);
  run_work(s, frame, context);
  release(s, frame);
  if (frame.by_step) end_by_step(s, frame);
}

namespace {

void raise(const ErrorFlag& errors) {
  if (errors.is_set()) throw IndexError("index out of range in self");
}

}  // namespace

void Executable::run_steps(Frame& frame, Contexts contexts) const {
  const bool profiles = Profile::enabled();
  for (size_t i = 0; i < steps_.size(); ++i) {
    RunContext& context = contexts[steps_[i].part];
    context.step = static_cast<int>(i);
    if (steps_[i].settles) settle(contexts);
    if (const size_t next = profiles ? 0 : replay_from(i, frame, contexts)) {
      i = next - 1;
      continue;
    }
    auto start = profiles ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
    run_step(steps_[i], frame, context);
    if (profiles) {
      if (parts_[steps_[i].part].target) parts_[steps_[i].part].target->wait(context);
      std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      profile_.add(i, took.count(), step_cost(schedule_.steps[i], schedule_.buffers, frame.symbols));
    }
    raise(*context.errors);  // what follows need not run on elements that are not there
  }
}

// The step behind those that were launched at once; 0 where there are none.
size_t Executable::replay_from(size_t step, Frame& frame, Contexts contexts) const {
  for (ReplayedSteps* r : steps_[step].replays)
    if (const size_t next = r ? replay(*r, frame, contexts) : 0) return next;
  return 0;
}

size_t Executable::replay(ReplayedSteps& replayed, Frame& frame, Contexts contexts) const {
  const size_t part = replayed.part();
  // Should it not be recorded after all, what was made before is still needed.
  auto step = [&](size_t i, RunContext& context) {
    run_work(steps_[i], frame, context);
    for (int b : steps_[i].releases)
      if (replayed.makes(b)) frame.release(frame, b);
  };
  if (!replayed.run(*parts_[part].target, contexts[part], frame, recordings_memory_, step)) return 0;
  for (size_t i = replayed.first(); i < replayed.end(); ++i) release(steps_[i], frame);
  return replayed.end();
}

void Executable::settle(Contexts contexts) const {
  for (size_t p = 0; p < parts_.size(); ++p)
    if (parts_[p].target && parts_[p].target->must_wait()) parts_[p].target->wait(contexts[p]);
  raise(*contexts[0].errors);
}

RunContext Executable::context_for(const Part& part, const Frame& frame, ErrorFlag& errors) const {
  RunContext out{.device = part.device,
                 .memory = part.target ? &part.target->memory() : &HostMemory::get(),
                 .errors = &errors,
                 .symbols = frame.symbols,
                 .threads = frame.threads,
                 .pace = pace()};
  for (const DeviceUse& use : frame.devices) {
    if (use.device != part.device) continue;
    out.queue = use.queue;
    if (use.memory) out.memory = use.memory;
  }
  return out;
}

// However a run ends, none of its work is left to be done: it refers to the frame.
struct Executable::Drain {
  const std::vector<Part>& parts;
  Contexts contexts;
  ~Drain() {
    for (size_t p = 0; p < parts.size(); ++p)
      if (parts[p].target) parts[p].target->drain(contexts[p]);
  }
};

// To take and to give back a little memory is felt beside a launch. What a user records into a graph lies in memory of that graph, though.
bool Executable::keeps_arena(int64_t bytes, const RunContext& context) {
  constexpr int64_t kSmall = int64_t{1} << 16;
  return bytes > 0 && bytes <= kSmall && context.may_replay.value_or(false);
}

void Executable::run(Frame& frame) const {
  std::shared_ptr<const Plans> made;  // counting references is felt in a small call
  if (frame.spent.bytes > 0) made = plans_for(frame.symbols, false, lent_by(frame), frame.spent.device);
  else if (!fixed_plans_) made = plans_for(frame.symbols, false);
  frame.has_large = frame.by_step && (made ? *made : *fixed_plans_).by_part[0].bytes >= kComesByStep;
  if (frame.has_large) made = plans_for(frame.symbols, true);
  const Plans& plans = made ? *made : *fixed_plans_;
  ErrorFlag errors;
  RunContext first = context_for(parts_[0], frame, errors);
  std::vector<RunContext> several;
  if (parts_.size() > 1)
    for (const Part& p : parts_) several.push_back(context_for(p, frame, errors));
  const Contexts contexts = several.empty() ? Contexts(&first, 1) : Contexts(several);
  RunContext& own = contexts[0];
  if (!replays_.empty() && parts_[0].target) own.may_replay = parts_[0].target->may_replay(own);
  MemoryOfQueue kept(kept_arenas_, own.queue, *own.memory);
  const bool keeps = keeps_arena(plans.by_part[0].bytes, own);
  const int64_t bytes = keeps ? std::bit_ceil(static_cast<uint64_t>(plans.by_part[0].bytes)) : plans.by_part[0].bytes;
  const MemoryLease arena(keeps ? static_cast<Memory&>(kept) : *own.memory, bytes, own.queue);
  place_arena(0, plans.by_part[0], arena.data(), frame);
  std::list<MemoryLease> more;
  for (size_t p = 1; p < parts_.size(); ++p)
    place_arena(p, plans.by_part[p], more.emplace_back(*contexts[p].memory, plans.by_part[p].bytes, contexts[p].queue).data(), frame);
  for (const auto* list : {&versions_, &within_})
    for (auto [other, first] : *list) frame.data[static_cast<size_t>(other)] = frame.data[static_cast<size_t>(first)];
  Drain drain{parts_, contexts};
  run_on(frame, contexts);
}

void Executable::run_on(Frame& frame, Contexts contexts) const {
  using Clock = std::chrono::steady_clock;  // reading it is felt in a small call
  const auto start = is_paced_ ? Clock::now() : Clock::time_point();
  run_steps(frame, contexts);
  settle(contexts);
  if (is_paced_) pace_.finish(std::chrono::duration<double>(Clock::now() - start).count(), frame.symbols.empty());
}

const WeightPacking* Executable::packing_of(int contraction) const {
  return contraction_steps_.at(static_cast<size_t>(contraction))->contraction->packing();
}

PackedWeight Executable::pack(int contraction, const PackSource& source, std::span<const int64_t> symbols) const {
  const CompiledStep& s = *contraction_steps_.at(static_cast<size_t>(contraction));
  const WeightPacking* packing = s.contraction->packing();
  const size_t bytes = packing ? packing->bytes(symbols, true) : 0;
  if (bytes == 0) return {};
  const Operand& w = s.contraction_step->operands[1];
  const int64_t offset = w.place.offset.eval(symbols) * static_cast<int64_t>(size_of(w.type.dtype));
  PackedWeight packed{nullptr, bytes, packing->layout(symbols)};
  PackForm form{static_cast<int64_t>(w.type.dtype), offset, static_cast<int64_t>(packed.layout)};
  for (const Shape* numbers : {&w.type.shape, &w.place.strides})
    for (const SymInt& n : *numbers) form.push_back(n.eval(symbols));
  packed.data = SharedPacks::of_process().find_or_make(source, form, bytes, [&](std::byte* memory) {
    auto start = std::chrono::steady_clock::now();
    packing->pack(symbols, static_cast<const std::byte*>(source.data) + offset, memory);
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    pace_.packed(bytes, took.count());
  });
  return packed;
}

size_t Executable::packing_trial(int contraction, std::span<const int64_t> symbols) const {
  const WeightPacking* packing = packing_of(contraction);
  return packing ? packing->trial(symbols) : 0;
}

std::optional<PackingGain> Executable::packing_gain(int contraction, std::span<const int64_t> symbols) const {
  const WeightPacking* packing = packing_of(contraction);
  return packing ? packing->gain(symbols) : std::nullopt;
}

std::string Executable::weight_text(int contraction) const {
  const ContractionStep& step = *contraction_steps_.at(static_cast<size_t>(contraction))->contraction_step;
  return cat(name_of(step.operation.op), " ", step.operands[1].type.str());
}

bool Executable::wants_packed(int contraction, std::span<const int64_t> symbols) const {
  const WeightPacking* packing = packing_of(contraction);
  return packing && packing->bytes(symbols, false) > 0;
}

size_t Executable::packed_bytes(int contraction, std::span<const int64_t> symbols) const {
  const WeightPacking* packing = packing_of(contraction);
  return packing ? packing->bytes(symbols, true) : 0;
}

bool Executable::is_settled(std::span<const int64_t> symbols) const {
  return std::all_of(contraction_steps_.begin(), contraction_steps_.end(), [&](const CompiledStep* s) {
    const WeightPacking* packing = s->contraction->packing();
    return !packing || packing->is_settled(symbols);
  });
}

std::vector<std::string> Executable::picks(std::span<const int64_t> symbols) const {
  std::vector<std::string> out;
  for (const auto* s : contraction_steps_) out.push_back(s->contraction->pick(symbols));
  return out;
}

}  // namespace broach
