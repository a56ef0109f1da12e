// From a trace to something that runs.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/partition.h"
#include "passes/segments.h"
#include "runtime/executable.h"
#include "trace/functionalize.h"

namespace broach {

struct PipelineOptions {
  // Which sizes become symbols: those that were seen to change, none, or all from the first call on.
  enum class Dynamic : uint8_t { automatic, never, always };
  Dynamic dynamic = Dynamic::automatic;
  std::vector<uint64_t> symbolic_dims;  // by input, a bit for each dimension that is a symbol from the first call on
  int branches = 0;                     // most programs kept for different values read on the host; 0: none is compiled
  bool whole = false;                   // what the program itself decides by computed values is refused
  bool freeze = true;                   // compute what depends on constant inputs once
  double memory_budget = 1.0;           // at most this part of what is saved for gradients by default (0..1)
  bool eager_random = false;            // random numbers are the host's own, element by element
  bool fuse = true;
  bool lower = true;                         // false: every op a call of the host's library
  std::vector<std::string> disabled_passes;  // by name
  std::string target = "cpu";                // of target_names()
  CompileSettings settings;
};

// A trace that goes on with the gradients of what the program gives: what is its own, and what theirs.
struct TracedGradients {
  size_t first_op = 0;                 // of those that compute them
  size_t tangents = 0, gradients = 0;  // the trace's last inputs, and its last outputs; none: it has no gradients
};

// What is computed once the gradients of a call are asked for.
struct BackwardStage {
  std::shared_ptr<const Graph> graph;  // inputs: `inputs`, then `saved`, then the tangents; outputs: of the gradients
  std::vector<int> inputs;             // positions among those of the program
  std::vector<int> saved;              // outputs of the main graph
  size_t tangents = 0;
  int64_t saved_bytes = 0;          // in memory of its own, at the sizes' hints
  std::vector<ResultSpec> results;  // by gradient, of the graph's inputs and outputs
};
// Of some gradients, where some tangents are known to be zero.
struct CompiledBackward {
  std::shared_ptr<const Graph> graph;
  std::shared_ptr<const Executable> executable;
  std::vector<int> outputs;  // by output of the stage: that of the graph; -1 if it is not wanted
};

struct CompiledTrace {
  Program program;  // how results are made; its graph is the main one
  std::shared_ptr<const Executable> main;
  // Where sizes depend on data, `main` is the first segment only, and these are the others.
  std::shared_ptr<const Segments> segments;  // null: there is one
  std::vector<std::shared_ptr<const Executable>> later;
  // Computes, from the same inputs, the inputs that `main` has behind them. Null if there are none.
  std::shared_ptr<const Executable> prologue;
  std::shared_ptr<const BackwardStage> backward;        // of a trace with gradients
  std::vector<std::pair<std::string, double>> seconds;  // by stage, in order
  // What was built, in the order in which it runs, for showing.
  std::vector<std::pair<std::shared_ptr<const Graph>, std::shared_ptr<const Executable>>> stages;
};

// `constant`, by input: its elements are the same from call to call, or a change is noticed and answered by a new prologue.
// Throws Unsupported where the program, or the target, has something that cannot be compiled.
// BROACH_DUMP names stages to print on standard error, separated by commas: trace, graph, passes, schedule, llvm.
CompiledTrace compile_trace(const Trace& trace, std::vector<bool> constant, const Targets& targets, const ExternFactory& externs,
                            const PipelineOptions& options, const TracedGradients& gradients = {});

// `wanted` by gradient, `given` by tangent.
CompiledBackward compile_backward(const BackwardStage& stage, const std::vector<bool>& wanted, const std::vector<bool>& given,
                                  const Targets& targets, const ExternFactory& externs, const PipelineOptions& options);

}  // namespace broach
