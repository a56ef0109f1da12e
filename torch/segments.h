// Runs a program whose sizes depend on data, segment by segment.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "compile.h"
#include "runner.h"
#include "runtime/guards.h"
#include "weights.h"

namespace broach {

class SegmentedRun {
 public:
  // The caller runs the first segment. `inputs`: those of the whole graph. `constant`: which of the program's own stay the same from call to
  // call; those behind them, which a prologue makes, do.
  SegmentedRun(const CompiledTrace& compiled, size_t inputs, std::vector<bool> constant, const PipelineOptions& options);
  ~SegmentedRun();

  // The rest of a call whose first segment gave `first`. `inputs` are the whole graph's. Gives the whole graph's outputs, and in
  // `symbols` the sizes; nothing if these are none that the program was compiled for.
  std::optional<std::vector<at::Tensor>> run(const RunInputs& inputs, std::vector<at::Tensor> first, const SizeGuards& guards,
                                             std::vector<int64_t>& symbols) const;

  // All segments behind the first.
  std::vector<const Executable*> executables() const;
  const std::vector<std::string>& calls() const { return calls_; }  // by schema
  std::map<const void*, int64_t> packed() const;                    // bytes, by address

 private:
  class Call;
  using Slots = std::vector<at::Tensor>;
  bool make_calls(size_t segment, const RunInputs& inputs, Slots& slots, const SizeGuards& guards, std::vector<bool>& known,
                  std::vector<int64_t>& symbols) const;

  std::shared_ptr<const Segments> segments_;
  std::vector<std::shared_ptr<const Runner>> later_;
  std::vector<std::unique_ptr<Weights>> weights_;         // of these; null where nothing is packed
  std::vector<std::vector<std::unique_ptr<Call>>> made_;  // by segment
  std::vector<std::string> calls_;
};

}  // namespace broach
