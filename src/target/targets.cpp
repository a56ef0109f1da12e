#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

#include "support/error.h"
#include "target/target.h"

namespace broach {

#define TARGET(name, kind) const Target* name##_target();
#include "target/targets.def"
#undef TARGET

namespace {

// A target whose devices are no kind of the host's own programs runs what lies on the host, moved to its first device.
struct Row {
  std::string_view name;
  DeviceKind kind;
  const Target* (*get)();
};
constexpr Row kTargets[] = {
#define TARGET(name, kind) {#name, DeviceKind::kind, name##_target},
#include "target/targets.def"
#undef TARGET
};

std::array<std::atomic<const Target*>, 128> brought;  // by kind of device

}  // namespace

const Target* target_for(DeviceKind kind) {
  if (const Target* t = brought[static_cast<size_t>(kind)].load(std::memory_order_acquire)) return t;
  for (const Row& row : kTargets)
    if (row.kind == kind && kind != DeviceKind::other) return row.get();
  return nullptr;
}

void set_target(DeviceKind kind, const Target* target) { brought[static_cast<size_t>(kind)].store(target, std::memory_order_release); }

std::vector<std::string> target_names() {
  std::vector<std::string> out;
  for (const Row& row : kTargets) out.emplace_back(row.name);
  return out;
}

Targets::Targets(const std::string& name) {
  const auto* named = std::find_if(std::begin(kTargets), std::end(kTargets), [&](const Row& row) { return row.name == name; });
  if (named == std::end(kTargets)) fail("'", name, "' is no target");
  // Without the host's own, programs of other devices still run.
  if (!named->get() && named->kind != DeviceKind::cpu) unsupported("this build has no target '", name, "'");
  for (size_t kind = 0; kind < brought.size(); ++kind)
    if (const Target* target = brought[kind].load(std::memory_order_acquire)) by_kind_.emplace_back(static_cast<DeviceKind>(kind), target);
  for (const Row& row : kTargets)
    if (row.kind != DeviceKind::other || &row == named)
      if (const Target* target = row.get()) by_kind_.emplace_back(row.kind, target);
  if (named->kind == DeviceKind::other) host_runs_on_ = {named->kind, 0};
}

bool Targets::has(Device device) const {
  return std::any_of(by_kind_.begin(), by_kind_.end(), [&](const auto& t) { return t.first == device.kind; });
}

const Target& Targets::on(Device device) const {
  for (const auto& [kind, target] : by_kind_)
    if (kind == device.kind) return *target;
  unsupported("this build has no target for ", device.str());
}

}  // namespace broach
