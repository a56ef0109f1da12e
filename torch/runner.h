// Runs an executable on tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "runtime/executable.h"

namespace broach {

using WeightPacks = std::vector<PackedWeight>;  // by contraction
// Tensors that somebody holds for the length of a call: counting references to hundreds of parameters takes microseconds.
using TensorRefs = std::span<const at::Tensor* const>;

class Runner {
 public:
  Runner(std::shared_ptr<const Executable> executable, size_t inputs);

  // One tensor for each graph output; for those written into inputs, undefined. `mutated`: inputs that are written.
  // An undefined input is one that the executable does not read (a weight of which only the packed copy is kept).
  std::vector<at::Tensor> run(TensorRefs inputs, const std::vector<int64_t>& symbols, const WeightPacks* packs, const std::vector<int>& mutated) const;
  const Executable& executable() const { return *executable_; }
  // Whether something reads this input besides the contractions that read its packed copies. Ask once these are settled.
  bool reads_unpacked(int input, const WeightPacks& packs) const;

 private:
  std::shared_ptr<const Executable> executable_;
  std::vector<int> input_buffers_;  // by graph input; -1 if nothing touches it
};

}  // namespace broach
