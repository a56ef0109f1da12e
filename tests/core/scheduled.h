// The schedule of a graph as it is, without the passes that change what it computes.
#pragma once

#include "passes/passes.h"
#include "schedule/schedule.h"

namespace broach::testing {

inline Schedule scheduled(const Graph& source, const ScheduleOptions& options = {}) {
  Module m{std::make_shared<const Graph>(drop_unused(source, {})), nullptr, nullptr};
  run_passes(m, Pass::Part::stage, {.constant = {}, .strict = options.strict, .fuse = options.fuse}, {}, nullptr, nullptr);
  m.verify();
  return make_schedule(m.graph, options);
}

}  // namespace broach::testing
