#include "program.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "capture.h"
#include "compat.h"
#include "devices.h"
#include "externs.h"
#include "gradients.h"
#include "input_history.h"
#include "ir/text.h"
#include "nodes.h"
#include "stages.h"
#include "support/bug.h"
#include "support/error.h"
#include "tensors.h"

namespace broach {

namespace {

// The exact text of a tensor's only element; NaN equals NaN.
std::string value_text(const at::Tensor& t) {
  c10::Scalar s = t.item();
  return s.isBoolean() ? str(Scalar(s.toBool())) : s.isIntegral(false) ? str(Scalar(s.toLong())) : str(Scalar(s.toDouble()));
}

// Without the library's list of C++ frames.
std::string message_of(const std::exception& e) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&e);
  return of_torch ? of_torch->what_without_backtrace() : e.what();
}

// Off the CPU other settings hold, and ATen's contractions take no memory but the host's and what the target for CUDA says is a device's.
PipelineOptions options_for(const Trace& trace, PipelineOptions options) {
  auto off_the_cpu = [](const TraceTensor& t) { return t.type.device.kind != DeviceKind::cpu; };
  auto found = std::find_if(trace.tensors.begin(), trace.tensors.end(), off_the_cpu);
  if (found == trace.tensors.end()) return options;
  const bool pinned = options.settings.contractions.deterministic;
  options.settings.contractions = contraction_rules(found->type.device.kind);
  options.settings.contractions.deterministic |= pinned;
  if (found->type.device.kind != DeviceKind::cuda) options.settings.host_contraction = nullptr;
  return options;
}

// By input. Lifted tensors, which are those from `given` to `held`, stay the same; whether memory that the host cannot look at was
// written is not known.
std::vector<bool> constants(const Trace& trace, std::vector<bool> constant, size_t given, size_t held) {
  constant.resize(given, false);
  constant.resize(held, true);
  constant.resize(trace.inputs.size(), false);
  for (size_t i = 0; i < constant.size(); ++i)
    if (trace.tensors[static_cast<size_t>(trace.inputs[i])].type.device.kind != DeviceKind::cpu) constant[i] = false;
  return constant;
}

// A kernel that does not build is left out, with a warning that names it: a program's kernels may build where each is of one operation,
// and else all operations are calls of libtorch's.
CompiledTrace compiled_as_it_builds(const Trace& trace, const std::vector<bool>& constant, const Targets& targets,
                                    const TracedGradients& gradients, PipelineOptions& options) {
  while (true) {
    try {
      return compile_trace(trace, constant, targets, make_extern, options, gradients);
    } catch (const BuildFailure& e) {
      if (!options.lower) throw;
      constexpr const char *alone = "operations of its program are kernels of their own",
                           *calls = "operations of its program are extern calls";
      report_bug("a kernel", e.what(), options.fuse ? alone : calls);
      (options.fuse ? options.fuse : options.lower) = false;
    }
  }
}

// A pass may leave constants of what an operation computes, and those name no device.
void check_devices(const CompiledTrace& compiled) {
  for (const ResultSpec& r : compiled.program.results) {
    if (!r.is_made()) continue;
    const Type& made = compiled.module.slots[static_cast<size_t>(r.index)].type;
    if (made.device != r.type.device) unsupported("a result on ", r.type.device.str(), " is made of constants alone");
  }
}

}  // namespace

CompiledProgram::CompiledProgram(const Trace& trace, std::vector<SymInt> ints, std::vector<std::optional<double>> floats,
                                 std::vector<at::Tensor> lifted, const std::vector<InputFacts>& facts,
                                 const std::vector<bool>& constant_inputs, const ProgramOptions& asked,
                                 const Differentiable& differentiable, const TracedGradients& gradients,
                                 std::vector<ReplacedGradient> replaced)
    : lifted_(std::move(lifted)),
      given_(trace.inputs.size() - lifted_.size() - trace.numbers.size() - gradients.tangents),
      all_inputs_(trace.inputs.size()),
      numbers_(trace.numbers) {
  ProgramOptions options = asked;
  options.freeze = options.freeze && differentiable.empty();  // weights change with every step
  for (const at::Tensor& t : lifted_) held_.push_back(&t);
  std::vector<bool> constant = constants(trace, constant_inputs, given_, given_ + lifted_.size());
  const Targets targets = targets_for(trace, options);
  options = options_for(trace, std::move(options));
  auto compiled = std::make_shared<CompiledTrace>(compiled_as_it_builds(trace, constant, targets, gradients, options));
  compiled_ = compiled;
  check_devices(*compiled);
  program_ = std::move(compiled->program);
  if (!compiled_->gradients.empty()) {
    stats_.saved_bytes = compiled_->module.saved_bytes;
    Rerun rerun(trace, program_, compiled_->module, facts, differentiable.results, asked.eager_random);
    backward_ = std::make_shared<const Backward>(compiled_, differentiable, std::move(rerun), lifted_, targets, options);
  }
  for (size_t i = 0; i < given_; ++i) required_grad_.push_back(!backward_ && facts[i].requires_grad);
  for (size_t i : differentiable.inputs)
    if (backward_ && i < given_) required_grad_[i] = true;
  lets_need_ = differentiable.lets_need;
  for (size_t i : lets_need_) required_grad_[i] = false;
  add_devices(trace);
  has_history_ = differentiable.has_history;
  bases_ = differentiable.bases.size();
  used_up_ = differentiable.used_up;
  shown_ = differentiable.shown;
  stats_.seconds = std::move(compiled->seconds);
  add_reads(trace);
  draws_ = std::any_of(trace.ops.begin(), trace.ops.end(), [](const TraceOp& op) { return op.effect; });
  std::vector<Shape> sizes, strides;
  add_guards(trace, facts, constant_inputs, sizes, strides);
  for (int m : program_.mutated_inputs) constant[static_cast<size_t>(m)] = false;
  std::vector<int> written_in_place;
  for (int m : program_.mutated_inputs)
    if (std::none_of(program_.commits.begin(), program_.commits.end(), [m](const Program::Commit& c) { return c.input == m; }))
      written_in_place.push_back(m);
  const Symbols& symbols = *compiled_->module.stages.front().graph->symbols();
  sizes_ = SizeGuards(std::move(sizes), std::move(strides), std::move(ints), std::move(floats), symbols);
  stages_ =
      std::make_unique<const Stages>(*compiled_, program_, constant, written_in_place, options, differentiable.runs_backward, current_);
  finds_sizes_ = stages_->finds_sizes();
  can_fail_ = stages_->can_fail();
  add_stats();
  for (ReplacedGradient& r : replaced)
    if (!backward_ && r.input < given_ && is_unread(r.input)) unread_gradients_.push_back(std::move(r));
  for (const at::Tensor& t : lifted_) Watches::of_process().add_program(t, 1);  // last, for the destructor undoes it
}

CompiledProgram::~CompiledProgram() {
  for (const at::Tensor& t : lifted_) Watches::of_process().add_program(t, -1);
}

void CompiledProgram::add_reads(const Trace& trace) {
  for (const ValueRead& r : trace.reads) {
    if (r.input >= 0) reads_.push_back(r);
    else read_values_.push_back(r.value);
    if (r.input < 0)
      stats_.guards.push_back(
          cat("read on the host", r.line >= 0 ? " at " + trace.lines[static_cast<size_t>(r.line)] : "", ": ", str(r.value)));
  }
}

void CompiledProgram::add_guards(const Trace& trace, const std::vector<InputFacts>& facts, const std::vector<bool>& constant_inputs,
                                 std::vector<Shape>& sizes, std::vector<Shape>& strides) {
  for (size_t i = 0; i < given_ + lifted_.size(); ++i) {
    const TraceTensor& t = trace.tensors[static_cast<size_t>(trace.inputs[i])];
    c10::ScalarType dtype = scalar_type(t.type.dtype);
    if (i >= given_) {
      HeldGuard guard{c10::scalarTypeToTypeMeta(dtype),
                      device_of(t.type.device),
                      static_cast<int64_t>(c10::elementSize(dtype)),
                      lifted_[i - given_].requires_grad(),
                      facts[i].keys,
                      {}};
      for (size_t d = 0; d < t.strides.size(); ++d) guard.window.append({t.type.shape[d].constant(), t.strides[d].constant()});
      const auto known = std::ranges::find(held_guards_, guard);
      guard_of_held_.push_back(static_cast<uint32_t>(known - held_guards_.begin()));
      if (known == held_guards_.end()) held_guards_.push_back(std::move(guard));
      continue;
    }
    guards_.push_back({c10::scalarTypeToTypeMeta(dtype), device_of(t.type.device), facts[i].keys,
                       constant_inputs.size() > i && constant_inputs[i] ? std::nullopt : std::optional(facts[i].is_leaf)});
    sizes.push_back(t.type.shape);
    strides.push_back(t.strides);
  }
  for (size_t i = 0; i < facts.size(); ++i) {
    if (facts[i].is_view || facts[i].storage_offset) asked_.push_back({i, facts[i].is_view, facts[i].storage_offset});
    if (facts[i].has_no_hooks) unhooked_.push_back(i);
    if (const auto& of = facts[i].companion_of) companions_.push_back({i - given_, of->first, of->second});
    if (facts[i].version_steps > 0) version_steps_.emplace_back(i, facts[i].version_steps);
  }
}

// Whether neither what runs nor what is made of it, nor a guard behind the run, looks at an input.
bool CompiledProgram::is_unread(size_t input) const {
  auto is_it = [&](const auto& number) { return static_cast<size_t>(number) == input; };
  const Module& m = compiled_->module;
  for (size_t k = 0; k < m.stages.size(); ++k) {
    const auto& takes = m.stages[k].takes;
    for (size_t i = 0; i < takes.size(); ++i)
      if (is_it(takes[i]) && (!compiled_->executables[k] || is_touched(compiled_->executables[k]->schedule(), i))) return false;
  }
  return std::ranges::none_of(program_.results, is_it, &ResultSpec::index) && std::ranges::none_of(program_.mutated_inputs, is_it) &&
         std::ranges::none_of(version_steps_, [&](const auto& s) { return is_it(s.first); });
}

static void add_to(const ExecutableStats& more, ExecutableStats& to) {
  to.kernels += more.kernels;
  to.distinct_kernels += more.distinct_kernels;
  to.contractions += more.contractions;
  to.routines += more.routines;
  to.code_bytes += more.code_bytes;
  for (const auto& [schema, count] : more.externs) to.externs[schema] += count;
}

void CompiledProgram::add_stats() {
  for (const std::string& schema : stages_->calls()) ++stats_.code.externs[schema];
  for (const Executable* e : stages_->executables()) {
    add_to(e->stats(), stats_.code);
    stats_.arena_bytes = std::max(stats_.arena_bytes, e->arena_bytes(sizes_.hints()));
  }
}

// Which of several devices of the kind that its keys name. The host is one, whatever its number.
static bool is_on(const c10::TensorImpl& t, c10::Device d) { return d.is_cpu() || t.device() == d; }

// Tensors lie anywhere, and what a program does between two calls has taken their place in the cache.
static void fetch_ahead(const at::Tensor* held, size_t left) {
  constexpr size_t kTensor = 12, kStorage = 6, kLine = 64, kAddress = 16;  // how far ahead; bytes, the last of them within a storage
  if (left <= kTensor) return;
  const auto* tensor = reinterpret_cast<const std::byte*>(held[kTensor].unsafeGetTensorImpl());
  for (size_t at = 0; at < sizeof(c10::TensorImpl); at += kLine) __builtin_prefetch(tensor + at);
  __builtin_prefetch(tensor + sizeof(c10::TensorImpl) - 1);
  __builtin_prefetch(reinterpret_cast<const std::byte*>(held[kStorage].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()) +
                     kAddress);
}

// Runs for hundreds of parameters on each call: every instruction of its loop is worth its place. A tensor lies where its storage does,
// which says so in fewer.
bool CompiledProgram::holds_the_same(const void** addresses, std::string* why) const {
  const bool grad = c10::GradMode::is_enabled();
  const at::Tensor* const held = lifted_.data();
  const uint32_t* const guard_of = guard_of_held_.data();
  const HeldGuard* const guards = held_guards_.data();
  for (size_t i = 0, all = lifted_.size(); i < all; ++i) {
    fetch_ahead(held + i, all - i);
    const c10::TensorImpl& t = *held[i].unsafeGetTensorImpl();
    const c10::StorageImpl* memory = t.unsafe_storage().unsafeGetStorageImpl();
    const HeldGuard& g = guards[guard_of[i]];
    const c10::IntArrayRef sizes = t.sizes();
    const int64_t *size = sizes.data(), *stride = t.strides().data();
    bool same = t.key_set() == g.keys && t.dtype() == g.dtype && 2 * sizes.size() == g.window.size() &&
                (g.device.is_cpu() || memory->device() == g.device);
    for (const int64_t* expected = g.window.data(); same && size != sizes.end(); ++size, ++stride, expected += 2)
      same = *size == expected[0] && *stride == expected[1];
    if (!same || (grad && t.requires_grad() != g.required_grad && (backward_ || !g.required_grad))) {
      if (why)
        *why = cat("input ", given_ + i,
                   same ? ": whether a tensor that the program holds needs gradients has changed"
                        : ": a tensor that the program holds changed its type, sizes or device");
      return false;
    }
    addresses[i] = address_of(t, g.itemsize);
  }
  return true;
}

bool CompiledProgram::was_asked_the_same(at::TensorList inputs, std::string* why) const {
  for (const Asked& a : asked_) {
    const at::Tensor& t = a.input < given_ ? inputs[a.input] : lifted_[a.input - given_];
    const bool same_offset = !a.storage_offset || t.storage_offset() == *a.storage_offset;
    if (same_offset && (!a.is_view || t.is_view() == *a.is_view)) continue;
    if (why)
      *why = cat("input ", a.input,
                 same_offset ? ": whether it is a view has changed"
                             : cat(": its storage offset was ", *a.storage_offset, ", is ", t.storage_offset()));
    return false;
  }
  return true;
}

void CompiledProgram::add_devices(const Trace& trace) {
  devices_.emplace_back(c10::kCPU);
  for (const TraceTensor& t : trace.tensors) {
    const c10::Device d = device_of(t.type.device);
    auto is_like = [&](c10::Device known) { return known.type() == d.type(); };
    if (std::none_of(devices_.begin(), devices_.end(), is_like)) {
      if (auto current = current_device(d.type())) current_.push_back(*current);
      rules_.emplace_back(t.type.device.kind, contraction_rules(t.type.device.kind));
    }
    if (std::find(devices_.begin(), devices_.end(), d) == devices_.end()) devices_.push_back(d);
  }
}

// What contractions on devices go by, and which of several devices of a kind is the current one.
bool CompiledProgram::is_set_the_same(std::string* why) const {
  for (const auto& [kind, rules] : rules_)
    if (contraction_rules(kind) != rules) {
      if (why) *why = cat("the precision or another mode of contractions on ", name_of(kind), " differs");
      return false;
    }
  for (c10::Device d : current_)
    if (auto now = current_device(d.type()); now != d) {
      if (why) *why = cat("the current device was ", d.str(), ", is ", now ? now->str() : "none");
      return false;
    }
  return true;
}

bool CompiledProgram::has_the_same_companions(at::TensorList inputs, std::string* why) const {
  for (const auto& [lifted, what, i] : companions_) {
    if (companion_of(i < given_ ? inputs[i] : lifted_[i - given_], what).is_same(lifted_[lifted])) continue;
    if (why)
      *why = cat("input ", i, ": its ", what == Companion::gradient ? "gradient" : "base", ", which the program reads, is another tensor");
    return false;
  }
  return true;
}

bool CompiledProgram::accepts(const CallInputs& call, Binding& binding, std::string* why) const {
  at::TensorList inputs = call.tensors;
  auto differs = [&](size_t i, const auto&... what) {
    if (why) *why = cat("input ", i, what...);
    return false;
  };
  if (inputs.size() != given_) return differs(inputs.size(), ": the number of inputs differs");
  for (size_t i = 0; i < given_; ++i) {
    const c10::TensorImpl& t = *inputs[i].unsafeGetTensorImpl();
    const InputGuard& g = guards_[i];
    if (t.key_set() != g.keys) return differs(i, inputs[i].is_inference() ? " is an inference tensor now" : ": was another kind of tensor");
    if (!is_on(t, g.device)) return differs(i, ": its device was ", g.device.str(), ", is ", t.device().str());
    if (t.dtype() != g.dtype) return differs(i, ": element type was ", g.dtype.name(), ", is ", t.dtype().name());
    if (backward_ && t.requires_grad() != required_grad_[i]) return differs(i, ": whether it needs gradients has changed");
    if (!backward_ && t.requires_grad() && !required_grad_[i] && c10::GradMode::is_enabled()) return differs(i, " needs gradients now");
    if (g.is_leaf && t.autograd_meta() && (!t.requires_grad() || inputs[i].is_leaf()) != *g.is_leaf)
      return differs(i, *g.is_leaf ? " is no leaf now" : " is a leaf now");
  }
  c10::SmallVector<GivenTensor, 16> windows;
  auto add_window = [&](const at::Tensor& t) { windows.push_back({t.sizes().data(), t.strides().data(), t.sizes().size()}); };
  std::for_each(inputs.begin(), inputs.end(), add_window);
  if (!sizes_.match({windows.data(), windows.size()}, {call.ints.data(), call.ints.size()}, {call.floats.data(), call.floats.size()},
                    binding.values, why) ||
      !holds_the_same(binding.inputs.place(inputs, held_), why))
    return false;
  if (!asked_.empty() && !was_asked_the_same(inputs, why)) return false;
  if (!rules_.empty() && !is_set_the_same(why)) return false;
  for (size_t i : unhooked_)
    if (is_hooked(i < given_ ? inputs[i] : lifted_[i - given_])) return differs(i, " has a hook now");
  if (!companions_.empty() && !has_the_same_companions(inputs, why)) return false;
  for (const ValueRead& r : reads_) {
    auto i = static_cast<size_t>(r.input);
    std::string now = value_text(i < given_ ? inputs[i] : lifted_[i - given_]);
    if (now != str(r.value)) return differs(i, ": its element, which the program reads, was ", str(r.value), ", is ", now);
  }
  if (auto shared = shared_with_written(inputs))
    return differs(shared->first, " shares memory with input ", shared->second, ", which is written");
  return true;
}

// No input met one that is written when the program was captured, and two lifted ones do not begin to. Those of one memory may lie apart.
std::optional<std::pair<size_t, size_t>> CompiledProgram::shared_with_written(at::TensorList inputs) const {
  auto tensor = [&](size_t i) -> const at::Tensor& { return i < given_ ? inputs[i] : lifted_[i - given_]; };
  auto memory = [&](size_t i) { return tensor(i).unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); };
  const size_t all = given_ + lifted_.size();
  constexpr size_t kFew = 4;
  if (program_.mutated_inputs.size() <= kFew) {
    for (int written : program_.mutated_inputs) {
      const auto m = static_cast<size_t>(written);
      for (size_t i = 0; i < (m < given_ ? all : given_); ++i)
        if (i != m && memory(i) == memory(m) && meet(reach_in_storage(tensor(i)), reach_in_storage(tensor(m)))) return std::pair(i, m);
    }
    return std::nullopt;
  }
  std::vector<std::pair<const void*, size_t>> by_memory;
  for (size_t i = 0; i < all; ++i) by_memory.emplace_back(memory(i), i);
  std::sort(by_memory.begin(), by_memory.end());
  auto is_written = [&](size_t i) { return std::ranges::binary_search(program_.mutated_inputs, static_cast<int>(i)); };
  for (auto at = by_memory.begin(); at != by_memory.end();) {
    const auto end = std::find_if(at, by_memory.end(), [&](const auto& other) { return other.first != at->first; });
    std::vector<std::pair<Reach, size_t>> windows;
    for (auto it = at; at->first && end - at > 1 && it != end; ++it) windows.emplace_back(reach_in_storage(tensor(it->second)), it->second);
    std::sort(windows.begin(), windows.end());
    // Whichever of the windows before one reaches furthest meets it if any does.
    for (size_t w = 1, furthest = 0; w < windows.size(); ++w) {
      const auto [i, m] = std::pair(windows[w].second, windows[furthest].second);
      if (meet(windows[w].first, windows[furthest].first) && (is_written(i) || is_written(m)))
        return is_written(m) ? std::pair(i, m) : std::pair(m, i);
      if (windows[w].first.second > windows[furthest].first.second) furthest = w;
    }
    at = end;
  }
  return std::nullopt;
}

bool CompiledProgram::reads_numbers() const {
  auto is_number = [](const Scalar& s) { return std::holds_alternative<double>(s) || std::holds_alternative<int64_t>(s); };
  return std::any_of(reads_.begin(), reads_.end(), [&](const ValueRead& r) { return is_number(r.value); }) ||
         std::any_of(read_values_.begin(), read_values_.end(), is_number);
}

bool CompiledProgram::agrees(const std::vector<Scalar>& observed) const {
  return std::equal(observed.begin(), observed.begin() + static_cast<std::ptrdiff_t>(std::min(observed.size(), read_values_.size())),
                    read_values_.begin());
}

std::vector<at::Tensor> CompiledProgram::results(const RunInputs& inputs, const std::vector<at::Tensor>& made,
                                                 const SymbolValues& symbols) const {
  std::vector<at::Tensor> out = tensors_of(
      program_.results,
      [&](const ResultSpec& r) -> const at::Tensor& {
        const auto slot = static_cast<size_t>(r.index);
        return slot < all_inputs_ ? *inputs.tensors[slot] : made[slot - all_inputs_];
      },
      has_history_, symbols.sizes, shown_);
  for (size_t i = 0; i < has_history_.size(); ++i)
    if (!has_history_[i] && program_.results[i].kind == ResultSpec::Kind::view_of_input && out[i].requires_grad()) out[i] = out[i].detach();
  for (size_t i = 0; i < used_up_.size(); ++i)
    if (!used_up_[i].node.empty() && !out[i].requires_grad()) give_used_up_history(out[i], used_up_[i], inputs);
  return out;
}

static Scalar value_of(const at::Tensor& t) {
  if (t.is_cpu() && t.scalar_type() == at::kBool) return Scalar(*t.const_data_ptr<bool>());
  const c10::Scalar s = t.item();
  return s.isBoolean() ? Scalar(s.toBool()) : Scalar(s.toLong());
}

bool CompiledProgram::took_this_way(const std::function<Scalar(size_t)>& of_read, std::vector<Scalar>& observed) const {
  size_t alike = 0;
  while (alike < program_.reads && of_read(alike) == read_values_[alike]) ++alike;
  if (alike == program_.reads) return true;
  std::vector<Scalar> now(read_values_.begin(), read_values_.begin() + static_cast<std::ptrdiff_t>(alike));
  now.push_back(of_read(alike));
  if (now.size() > observed.size()) observed = std::move(now);
  return false;
}

// Where random numbers were, if the run may have to be forgotten.
RandomStates CompiledProgram::random_states(bool kept) const {
  RandomStates states;
  if (kept) std::for_each(devices_.begin(), devices_.end(), [&](c10::Device d) { states.add(d); });
  return states;
}

// Takes back what cannot be one of its results: nothing of a way that eager does not take is seen.
std::optional<std::vector<at::Tensor>> CompiledProgram::run_speculatively(const CallInputs& call, Binding& binding,
                                                                          std::vector<Scalar>& observed) const {
  auto& [symbols, inputs, integers] = binding;
  const RandomStates random = random_states(draws_);
  const auto found = backward_ ? backward_->rerun().found(inputs) : nullptr;
  std::vector<at::Tensor> made;
  try {
    if (!run_stages(binding, made)) return random.put_back(), std::nullopt;
  } catch (const IndexError&) {
    return random.put_back(), std::nullopt;  // on a way that eager might not have taken: a run that finds no other raises it
  } catch (const c10::Error&) {
    return random.put_back(), std::nullopt;
  } catch (const Error&) {  // a call of libtorch's gave other sizes, by a number that it was given
    return random.put_back(), std::nullopt;
  }
  std::vector<at::Tensor> out = results(inputs, made, symbols);
  const size_t first = out.size() - program_.reads;
  if (!took_this_way([&](size_t i) { return value_of(out[first + i]); }, observed)) return random.put_back(), std::nullopt;
  out.resize(first);
  commit(inputs, made);
  if (backward_) backward_->connect(call, out, inputs, made, symbols.sizes, found);
  return out;
}

// The same where the values come first: behind them a run is like any other.
std::optional<std::vector<at::Tensor>> CompiledProgram::run_decided(const CallInputs& call, Binding& binding,
                                                                    std::vector<Scalar>& observed) const {
  auto& [symbols, inputs, integers] = binding;
  const RandomStates random = random_states(draws_ && can_fail_);
  const size_t first = program_.results.size() - program_.reads;
  std::vector<at::Tensor> made;
  bool decided = false;
  auto decide = [&](const std::vector<at::Tensor>& so_far, std::span<const int64_t> elements) {
    auto of_read = [&](size_t i) {
      const size_t at = static_cast<size_t>(program_.results[first + i].index) - all_inputs_;
      if (so_far[at].defined()) return value_of(so_far[at]);
      return std::holds_alternative<bool>(read_values_[i]) ? Scalar(elements[at] != 0) : Scalar(elements[at]);
    };
    decided = took_this_way(of_read, observed);
    if (decided) let_go_of_gradients(call);
    return decided;
  };
  try {
    if (!run_stages(binding, made, decide)) return std::nullopt;
  } catch (const std::exception& e) {
    if (!decided) return std::nullopt;  // on a way that eager might not have taken: a run that finds no other raises it
    random.put_back();
    throw FailedRun(message_of(e));
  }
  commit(inputs, made);
  std::vector<at::Tensor> out = results(inputs, made, symbols);
  out.resize(first);
  return out;
}

bool CompiledProgram::run_stages(Binding& binding, std::vector<at::Tensor>& made, const Decide& decide) const {
  if (!stages_->run(binding.inputs, sizes_, binding.values.sizes, made, decide)) return false;
  if (finds_sizes_)
    for (const SymInt& i : binding.integers) i.eval(binding.values.sizes);  // throws where Python's goes beyond
  return true;
}

// Eager takes a step's gradients away before it makes those of the next, so that there is memory for one of each.
void CompiledProgram::let_go_of_gradients(const CallInputs& call) const {
  if (!call.own) return;
  for (const ReplacedGradient& r : unread_gradients_) {
    at::Tensor& gradient = r.leaf.mutable_grad();
    if (gradient.is_same((*call.own)[r.input])) gradient.reset(), (*call.own)[r.input].reset();
  }
}

// An error of any step, also one that an operation of the program's own raises, is eager's to raise.
std::vector<at::Tensor> CompiledProgram::run_directly(const CallInputs& call, Binding& binding) const {
  auto& [symbols, inputs, integers] = binding;
  const RandomStates random = random_states(draws_ && can_fail_);
  const auto found = backward_ ? backward_->rerun().found(inputs) : nullptr;
  std::vector<at::Tensor> made;
  let_go_of_gradients(call);
  try {
    check(run_stages(binding, made), "sizes that it finds out are others than those that it is compiled for");
  } catch (const std::exception& e) {
    random.put_back();
    throw FailedRun(message_of(e));
  }
  commit(inputs, made);
  std::vector<at::Tensor> out = results(inputs, made, symbols);
  if (backward_) backward_->connect(call, out, inputs, made, symbols.sizes, found);
  return out;
}

void CompiledProgram::commit(const RunInputs& inputs, const std::vector<at::Tensor>& made) const {
  // Windows of one tensor may have one counter.
  c10::SmallVector<int64_t, 8> versions;
  for (auto [i, steps] : version_steps_) versions.push_back(version_of(*inputs.tensors[i]) + steps);
  for (size_t k = 0; k < version_steps_.size(); ++k) {
    const auto [i, steps] = version_steps_[k];
    const at::Tensor& t = *inputs.tensors[i];
    for (int64_t n = 0; n < steps && version_of(t) < versions[k]; ++n) t.unsafeGetTensorImpl()->bump_version();
  }
  for (size_t i : lets_need_) inputs.tensors[i]->set_requires_grad(true);
  if (program_.commits.empty()) return;
  at::AutoDispatchBelowADInplaceOrView guard;
  for (auto [input, output] : program_.commits)
    inputs.tensors[static_cast<size_t>(input)]->copy_(made[static_cast<size_t>(output) - all_inputs_]);
}

std::optional<std::vector<at::Tensor>> CompiledProgram::run(const CallInputs& call, Binding& binding, std::vector<Scalar>& observed) const {
  SymbolValues& symbols = binding.values;
  RunInputs& inputs = binding.inputs;
  c10::SmallVector<at::Tensor, 4> numbers;
  for (HostFloats::Id n : numbers_) {
    numbers.push_back(at::empty({}, at::kDouble));
    *numbers.back().mutable_data_ptr<double>() = symbols.floats[static_cast<size_t>(n)];
  }
  for (const at::Tensor& t : numbers) inputs.add(t);
  auto out = program_.decides_first ? run_decided(call, binding, observed)
             : program_.speculative ? run_speculatively(call, binding, observed)
                                    : run_directly(call, binding);
  if (!out) return std::nullopt;
  const auto end = out->begin() + static_cast<std::ptrdiff_t>(has_history_.size());
  out->erase(end - static_cast<std::ptrdiff_t>(bases_), end);
  return out;
}

ProgramStats CompiledProgram::stats() const {
  ProgramStats s = stats_;
  const Module& m = compiled_->module;
  for (size_t i = 0; i < m.stages.size(); ++i)
    if (const auto& e = compiled_->executables[i]) s.graph_text += m.stages[i].graph->str(), s.schedule_text += e->schedule().str();
  s.kept = stages_->kept(sizes_.hints());
  for (const Executable* e : stages_->executables()) {
    for (std::string& pick : e->picks(sizes_.hints())) s.picks.push_back(std::move(pick));
    for (StepProfile& step : e->profile()) s.steps.push_back(std::move(step));
    s.recordings += e->recordings();
  }
  s.reruns = backward_ ? backward_->reruns() : 0;
  for (const CompiledBackward& b : backward_ ? backward_->compiled() : std::vector<CompiledBackward>()) {
    s.graph_text += "# gradients\n" + b.module.str();
    for (const auto& e : b.executables) {
      s.schedule_text += "# gradients\n" + e->schedule().str();
      add_to(e->stats(), s.code);
      s.recordings += e->recordings();
      for (StepProfile& step : e->profile()) s.steps.push_back(std::move(step));
    }
  }
  for (size_t i = 0; i < given_; ++i)
    s.guards.push_back(cat("input ", i, ": ", m.slots[i].type.str(), " strides ", list_text(m.slots[i].strides)));
  for (std::string& text : sizes_.text()) s.guards.push_back(std::move(text));
  return s;
}

}  // namespace broach
