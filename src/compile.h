// From a trace to something that runs.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/passes.h"
#include "pipeline_options.h"
#include "runtime/executable.h"
#include "trace/functionalize.h"

namespace broach {

struct CompiledTrace {
  Program program;                                             // how results are made: an index is a slot. Without a graph
  Module module;                                               // its graphs as they run
  std::vector<std::shared_ptr<const Executable>> executables;  // by stage; null where it is not compiled
  size_t tangents = 0;                                         // the program's last inputs
  bool is_linear = true;                                       // in these, the gradients
  std::vector<bool> read_anew;                                 // by input: gradients read what it holds by then, whoever has written to it
  std::vector<ResultSpec> gradients;                    // an index is one of the inputs, or of the outputs, of the last stage's graph
  std::vector<std::pair<std::string, double>> seconds;  // by what was done, in order
};

// Some gradients, where some tangents are known to be zero.
struct CompiledBackward {
  Module module;  // its inputs are what the stage takes, its stages the parts, one behind another
  std::vector<std::shared_ptr<const Executable>> executables;  // by stage
  std::vector<size_t> outputs;                                 // by output of the module: that of the stage
};

// `constant`, by input: its elements are the same from call to call, or a change is noticed and answered by a new run of what is run once.
// Throws Unsupported where the program, or the target, has something that cannot be compiled.
// BROACH_DUMP names stages to print on standard error, separated by commas: trace, graph, passes, schedule, llvm.
CompiledTrace compile_trace(const Trace& trace, std::vector<bool> constant, const Targets& targets, const ExternFactory& externs,
                            const PipelineOptions& options, const TracedGradients& gradients = {});

// The last stage of a trace with gradients: `wanted` by gradient, `given` by tangent, `parts` of the stage.
CompiledBackward compile_backward(const CompiledTrace& trace, const std::vector<bool>& wanted, const std::vector<bool>& given,
                                  const Parts& parts, const Targets& targets, const ExternFactory& externs, const PipelineOptions& options);

}  // namespace broach
