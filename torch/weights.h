// Copies of weights, rearranged for the kernels that read them, that notice exactly when their source is written.
//
// Each source keeps a copy-on-write clone here: whoever writes to the source, by any route through torch, numpy or DLPack,
// first moves it to memory of its own, so that one comparison of addresses per call tells. A raw pointer taken before and
// written through later, by foreign code, is not noticed.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/executable.h"

namespace broach {

class Weights {
 public:
  // `constant`: which graph inputs are passed unchanged from call to call.
  Weights(std::shared_ptr<const Executable> executable, const std::vector<bool>& constant);

  using Packs = std::vector<std::shared_ptr<const std::byte[]>>;
  // Packs that agree with the inputs' elements; null if nothing is packed.
  std::shared_ptr<const Packs> current(at::TensorList inputs, std::span<const int64_t> symbols);
  int64_t bytes() const;

 private:
  struct Source {
    int input;
    at::Tensor clone;
    const void* address;
  };
  struct State {
    std::vector<Source> sources;
    std::shared_ptr<const Packs> packs;
    int64_t bytes = 0;
  };
  std::shared_ptr<const State> build(at::TensorList inputs, std::span<const int64_t> symbols) const;
  static bool fresh(const State& s, at::TensorList inputs);

  std::shared_ptr<const Executable> executable_;
  std::vector<Executable::Packable> packables_;
  std::atomic<std::shared_ptr<const State>> state_;
  std::mutex mutex_;
  int rebuilds_ = 0;
};

}  // namespace broach
