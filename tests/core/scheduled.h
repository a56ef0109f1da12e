// The schedule of a graph as it is, without the passes that change what it computes.
#pragma once

#include "passes/passes.h"
#include "schedule/schedule.h"

namespace broach::testing {

inline Schedule scheduled(const Graph& source, const ScheduleOptions& options = {}) {
  Module m(std::make_shared<const Graph>(drop_unused(source, {})));
  run_passes(passes("separate_outputs"), m, {.constant = {}, .strict = options.strict, .fuse = options.fuse}, {}, nullptr, nullptr);
  m.verify();
  return make_schedule(m.stages[0].graph, options);
}

}  // namespace broach::testing
