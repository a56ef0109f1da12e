#include "devices.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>

#include "compat.h"
#include "support/error.h"

namespace broach {

namespace {

// As tensors of a backend are made outside of inference mode, and within.
std::array<c10::DispatchKeySet, 2> plain_keys(c10::BackendComponent backend) {
  c10::DispatchKeySet dense(c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, backend));
  auto inference = dense | c10::getAutocastRelatedKeySetFromBackend(backend);
  return {inference | c10::getAutogradRelatedKeySetFromBackend(backend), inference};
}

bool has_keys_of(const at::Tensor& t, c10::BackendComponent backend) {
  const auto keys = plain_keys(backend);
  return t.key_set() == keys[0] || t.key_set() == keys[1];
}

}  // namespace

bool is_compiled_for(c10::Device d) { return d.is_cpu() || target_for(device_of(d).kind) != nullptr; }

bool is_plain(const at::Tensor& t) {
  static const auto on_cpu = plain_keys(c10::BackendComponent::CPUBit);
  if (!t.defined() || is_named(t)) return false;
  if (t.key_set() == on_cpu[0] || t.key_set() == on_cpu[1]) return true;
  return !t.device().is_cpu() && is_compiled_for(t.device()) && has_keys_of(t, t.key_set().highestBackendKey());
}

std::string why_not_compiled(const at::Tensor& t) {
  if (t.defined() && !is_compiled_for(t.device()))
    return cat("it is given a tensor on ", t.device().str(), ", a device that this build has no target for");
  return cat("it is given a tensor of a kind that Broach does not compile yet: ", t.defined() ? t.toString() : "an undefined one");
}

namespace {

// A copy to the host that is not waited for is complete when the caller says so, by means that are not recorded.
void check_copies(const Trace& trace) {
  auto device = [&](TensorId id) { return trace.tensors[static_cast<size_t>(id)].type.device.kind; };
  for (const TraceOp& op : trace.ops) {
    if (op.schema != "aten::_to_copy" && op.schema != "aten::copy_") continue;
    const size_t position = op.schema == "aten::copy_" ? 2 : 5;
    const auto* flag = op.args.size() > position ? std::get_if<Scalar>(&op.args[position].value) : nullptr;
    bool to_host = false, from_device = false;
    for (const auto* written : {&op.results, &op.mutated})
      for (TensorId id : *written) to_host = to_host || (id != kNoTensor && device(id) == DeviceKind::cpu);
    for_each_tensor(op.args, [&](TensorId id) { from_device = from_device || device(id) != DeviceKind::cpu; });
    if (to_host && from_device && (!flag || *flag != Scalar(false))) unsupported("a copy to the host with non_blocking=True");
  }
}

}  // namespace

Targets targets_for(const Trace& trace, const PipelineOptions& options) {
  Targets targets(options.target);
  std::optional<Device> first;  // that is not the host
  bool on_host = false;
  for (const TraceTensor& t : trace.tensors) {
    const Device d = t.type.device;
    on_host = on_host || d.kind == DeviceKind::cpu;
    if (d.kind == DeviceKind::cpu) continue;
    if (d.kind == DeviceKind::other || !targets.has(d)) unsupported("a tensor on ", d.str(), ": this build has no target for that device");
    if (first && &targets.on(*first) != &targets.on(d))
      unsupported("tensors on ", first->str(), " and on ", d.str(), ": no target serves both");
    if (!first) first = d;
  }
  if (first && targets.host_runs_on() != Device{})
    unsupported("a tensor on ", first->str(), ": the target '", options.target, "' takes the host's");
  if (first && on_host) check_copies(trace);
  if (!targets.has({})) {
    if (!first) unsupported("a tensor on cpu: this build has no target for that device");
    targets.run_host_on(*first);  // constants lie on the host
  }
  return targets;
}

std::optional<c10::Device> current_device(c10::DeviceType type) {
  if (type == c10::kCPU || type == c10::kMeta || !c10::impl::hasDeviceGuardImpl(type)) return std::nullopt;
  return c10::impl::getDeviceGuardImpl(type)->getDevice();
}

Autocast Autocast::now() {
  Autocast out;
  out.types.fill(c10::ScalarType::Undefined);
  if (c10::impl::tls_local_dispatch_key_set().excluded_.isSupersetOf(c10::autocast_dispatch_keyset)) return out;
  for (size_t i = 0; i < kDevices.size(); ++i)
    if (at::autocast::is_autocast_enabled(kDevices[i])) out.types[i] = at::autocast::get_autocast_dtype(kDevices[i]);
  return out;
}

bool Autocast::is_on() const {
  return std::any_of(types.begin(), types.end(), [](c10::ScalarType t) { return t != c10::ScalarType::Undefined; });
}

// ---- random numbers ----

namespace {

// Nothing if the device's library has no default generator.
std::optional<at::Generator> generator_of(c10::Device d) {
  if (!is_compiled_for(d)) return std::nullopt;
  try {
    return at::globalContext().defaultGenerator(d);
  } catch (const c10::Error&) {  // "register PrivateUse1HooksInterface first"
    return std::nullopt;
  }
}

at::Tensor state_of(c10::Device d) {
  at::Generator generator = *generator_of(d);
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

bool is_default(const at::Generator& generator) { return generator_of(generator.device()) == generator; }

bool RandomStates::add(c10::Device d) {
  auto is_same = [&](const auto& state) { return state.first == d; };
  if (std::any_of(states_.begin(), states_.end(), is_same)) return true;
  if (!generator_of(d)) return false;
  states_.emplace_back(d, state_of(d));
  return true;
}

void RandomStates::renew() {
  for (auto& [device, state] : states_) state = state_of(device);
}

bool RandomStates::are_kept() const {
  return std::all_of(states_.begin(), states_.end(), [](const auto& kept) {
    at::Tensor now = state_of(kept.first);
    return std::memcmp(now.const_data_ptr(), kept.second.const_data_ptr(), now.nbytes()) == 0;
  });
}

void RandomStates::put_back() const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = *generator_of(device);
    std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace broach
