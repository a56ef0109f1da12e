#include "rerun.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "capture.h"
#include "nodes.h"
#include "tensors.h"

namespace broach {

namespace {

bool draws(const TraceOp& op) { return op.effect && may_draw(op.schema); }

// Whether the library's call may write to what it is given.
bool may_write(const Node& n) { return n.has_effect() && !may_draw(n.call().schema); }

// By slot: whether what lies there depends on the elements that an input has before the call.
std::vector<bool> dependent(const Module& forward, size_t input) {
  std::vector<bool> slots(forward.slots.size());
  slots[input] = true;
  for (const Stage& stage : forward.stages) {
    if (stage.runs == Stage::Runs::for_gradients) continue;
    const Graph& graph = *stage.graph;
    std::vector<bool> nodes(graph.nodes().size());
    for (size_t i = 0; i < stage.takes.size(); ++i)
      if (slots[stage.takes[i]]) nodes[graph.inputs()[i].node->id] = true;
    for (const Node& n : graph.nodes())
      if (may_write(n) || std::ranges::any_of(n.inputs, [&](const Value& v) { return nodes[v.node->id]; })) nodes[n.id] = true;
    for (size_t i = 0; i < stage.gives.size(); ++i)
      if (nodes[graph.outputs()[i].node->id]) slots[stage.gives[i]] = true;
  }
  return slots;
}

// What is kept of each call for this alone is little.
constexpr int64_t kMostKept = 1 << 20;  // bytes

int64_t bytes_at_hints(const TraceTensor& t, const Symbols& symbols) {
  int64_t bytes = size_of(t.type.dtype);
  for (const SymInt& size : t.type.shape) bytes *= symbols.hint(size);
  return bytes;
}

class AutocastAsItWas {
 public:
  explicit AutocastAsItWas(const Autocast& wanted) : cache_(at::autocast::is_autocast_cache_enabled()) {
    for (size_t i = 0; i < Autocast::kDevices.size(); ++i) {
      const auto device = Autocast::kDevices[i];
      now_[i] = {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
      const bool is_on = wanted.types[i] != c10::ScalarType::Undefined;
      set(i, {is_on, is_on ? wanted.types[i] : now_[i].second});
    }
    at::autocast::set_autocast_cache_enabled(false);  // whose tensors would be found by a block that begins later
  }
  ~AutocastAsItWas() {
    for (size_t i = 0; i < now_.size(); ++i) set(i, now_[i]);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  AutocastAsItWas(const AutocastAsItWas&) = delete;
  AutocastAsItWas& operator=(const AutocastAsItWas&) = delete;

 private:
  using OfDevice = std::pair<bool, c10::ScalarType>;
  static void set(size_t device, OfDevice to) {
    at::autocast::set_autocast_enabled(Autocast::kDevices[device], to.first);
    at::autocast::set_autocast_dtype(Autocast::kDevices[device], to.second);
  }
  bool cache_;
  std::array<OfDevice, Autocast::kDevices.size()> now_;
};

class RandomAsItWas {
 public:
  explicit RandomAsItWas(const RandomStates& wanted) : now_(wanted) {
    now_.renew();
    wanted.put_back();
  }
  ~RandomAsItWas() { now_.put_back(); }
  RandomAsItWas(const RandomAsItWas&) = delete;
  RandomAsItWas& operator=(const RandomAsItWas&) = delete;

 private:
  RandomStates now_;
};

// What the program writes. Its versions go the way that they went in the call, so that whatever holds the tensor for its gradients sees
// it written as often as in eager.
class ElementsAsTheyWere {
 public:
  ElementsAsTheyWere() = default;
  ~ElementsAsTheyWere() {
    at::AutoDispatchBelowADInplaceOrView below;
    for (const Kept& k : kept_) {
      k.tensor.copy_(k.elements);
      set_version(k.tensor, k.version);
    }
  }
  ElementsAsTheyWere(const ElementsAsTheyWere&) = delete;
  ElementsAsTheyWere& operator=(const ElementsAsTheyWere&) = delete;

  // `before`: may be undefined, where the elements do not matter. `version`: before any was put back, as several may share a counter.
  void put_back(const at::Tensor& t, const at::Tensor& before, int64_t version, int64_t steps) {
    at::AutoDispatchBelowADInplaceOrView below;
    kept_.push_back({t, t.clone(), version});
    if (before.defined()) t.copy_(before);
    set_version(t, std::max<int64_t>(0, version - steps));
  }

 private:
  struct Kept {
    at::Tensor tensor, elements;
    int64_t version;
  };
  static void set_version(const at::Tensor& t, int64_t to) {
    if (t.is_inference()) return;
    c10::VariableVersion counter = t.unsafeGetTensorImpl()->version_counter();  // the same one
    counter.set_version(to);
  }
  std::vector<Kept> kept_;
};

}  // namespace

Rerun::Rerun(const Trace& trace, const Program& program, const Module& forward, const std::vector<InputFacts>& facts,
             const std::vector<size_t>& differentiable, bool eager_random)
    : autocast_(Autocast::now()), draws_(std::ranges::any_of(trace.ops, draws)) {
  auto is_off_the_cpu = [](const TraceTensor& t) { return t.type.device.kind != DeviceKind::cpu; };
  if (draws_ && !eager_random) why_not_ = "it draws random numbers by a counter (options={'rng': 'counter'})";
  else if (draws_ && std::ranges::any_of(trace.tensors, is_off_the_cpu))
    why_not_ = "it draws random numbers on another device than the CPU";
  int64_t kept = 0;
  for (int i : program.mutated_inputs) {
    const auto input = static_cast<size_t>(i);
    const std::vector<bool> depends = dependent(forward, input);
    auto is_dependent = [&](const ResultSpec& r) { return r.kind != ResultSpec::Kind::none && depends[static_cast<size_t>(r.index)]; };
    const auto reads = std::span(program.results).last(program.reads);
    const bool is_read = std::ranges::any_of(trace.reads, [i](const ValueRead& r) { return r.input == i; });
    const bool is_needed = is_read || std::ranges::any_of(reads, is_dependent) ||
                           std::ranges::any_of(differentiable, [&](size_t r) { return is_dependent(program.results[r]); });
    written_.push_back({input, facts[input].version_steps, is_needed});
    const TraceTensor& t = trace.tensors[static_cast<size_t>(trace.inputs[input])];
    if (is_needed) kept += bytes_at_hints(t, *trace.symbols);
  }
  if (kept > kMostKept && why_not_.empty()) why_not_ = "its results depend on what it writes, which is too much to be kept at each call";
}

std::shared_ptr<const FoundByCall> Rerun::found(const RunInputs& inputs) const {
  auto is_needed = [](const Written& w) { return w.is_needed; };
  if (!why_not_.empty() || !(draws_ || std::ranges::any_of(written_, is_needed))) return nullptr;
  auto out = std::make_shared<FoundByCall>();
  if (draws_) out->random.add(c10::kCPU);
  at::AutoDispatchBelowADInplaceOrView below;
  for (const Written& w : written_) out->elements.push_back(w.is_needed ? inputs.tensors[w.input]->clone() : at::Tensor());
  return out;
}

bool Rerun::writes(size_t input) const {
  return std::ranges::any_of(written_, [input](const Written& w) { return w.input == input; });
}

std::vector<int64_t> Rerun::versions(at::TensorList held, size_t given) const {
  std::vector<int64_t> out;
  out.reserve(held.size());
  for (const at::Tensor& t : held) out.push_back(version_of(t));
  for (const Written& w : written_)
    if (w.input >= given && w.input - given < out.size()) out[w.input - given] = 0;
  return out;
}

std::vector<at::Tensor> Rerun::run(const ProgramAgain& program, const CallInputs& call, at::TensorList held,
                                   const FoundByCall* found) const {
  ElementsAsTheyWere elements;
  auto tensor = [&](size_t input) -> const at::Tensor& {
    return input < call.tensors.size() ? call.tensors[input] : held[input - call.tensors.size()];
  };
  std::vector<int64_t> versions;
  for (const Written& w : written_) versions.push_back(version_of(tensor(w.input)));
  for (size_t k = 0; k < written_.size(); ++k) {
    const auto& [input, steps, is_needed] = written_[k];
    elements.put_back(tensor(input), is_needed ? found->elements[k] : at::Tensor(), versions[k], steps);
  }
  std::optional<RandomAsItWas> random;
  if (draws_) random.emplace(found->random);
  AutocastAsItWas autocast(autocast_);
  at::AutoGradMode on(true);
  // Gradients may be asked for in batches, or seen by a mode of torch's: these are theirs, and not the program's, whose random numbers none
  // of a batch share.
  const c10::DispatchKeySet theirs(
      {c10::DispatchKey::VmapMode, c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  c10::impl::ExcludeDispatchKeyGuard outside(c10::impl::tls_local_dispatch_key_set().included_ & theirs);
  return program.run(call.tensors, call.ints, call.floats);
}

}  // namespace broach
