#include <string_view>

#include "support/error.h"
#include "target/target.h"

namespace broach {

namespace {

struct Row {
  std::string_view name;
  const Target* (*get)();
};
constexpr Row kTargets[] = {{"cpu", cpu_target}, {"reference", reference_target}};

}  // namespace

std::vector<std::string> target_names() {
  std::vector<std::string> out;
  for (const Row& row : kTargets) out.emplace_back(row.name);
  return out;
}

const Target& target_named(const std::string& name) {
  for (const Row& row : kTargets) {
    if (row.name != name) continue;
    const Target* target = row.get();
    if (!target) unsupported("this build has no target '", name, "'");
    return *target;
  }
  fail("'", name, "' is no target");
}

}  // namespace broach
