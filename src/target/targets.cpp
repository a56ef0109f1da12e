#include <algorithm>
#include <string_view>

#include "support/error.h"
#include "target/target.h"

namespace broach {

namespace {

// A target whose devices are no kind of the host's own programs runs what lies on the host, moved to its first device.
struct Row {
  std::string_view name;
  DeviceKind kind;
  const Target* (*get)();
};
constexpr Row kTargets[] = {{"cpu", DeviceKind::cpu, cpu_target}, {"reference", DeviceKind::other, reference_target}};

}  // namespace

std::vector<std::string> target_names() {
  std::vector<std::string> out;
  for (const Row& row : kTargets) out.emplace_back(row.name);
  return out;
}

Targets::Targets(const std::string& name) {
  const auto* named = std::find_if(std::begin(kTargets), std::end(kTargets), [&](const Row& row) { return row.name == name; });
  if (named == std::end(kTargets)) fail("'", name, "' is no target");
  if (!named->get()) unsupported("this build has no target '", name, "'");
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
