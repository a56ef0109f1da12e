// What is computed once from weights: values that depend on constant inputs only, and copies of weights rearranged for the
// kernels that read them. Both notice exactly when a source is written.
//
// Each source keeps a copy-on-write clone here: whoever writes to the source, by any route through torch, numpy or DLPack,
// first moves it to memory of its own, so that one comparison of addresses per call tells. A raw pointer taken before and
// written through later, by foreign code, is not noticed.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "runner.h"

namespace broach {

class Weights {
 public:
  struct State {
    struct Source {
      int input;
      const void* address;
    };
    std::vector<Source> sources;
    std::vector<std::shared_ptr<const at::Tensor>> clones;  // of the sources
    std::vector<at::Tensor> frozen;  // inputs of the main program behind the others; undefined where only packs are read
    RunInputs frozen_inputs;         // the same, as a run takes them
    std::shared_ptr<const std::byte[]> frozen_names;  // one byte each, whose address stands for the elements
    WeightPacks packs;
    bool settled = true;             // it is known which contractions want their weights packed, and they are
    std::set<int> unwatched;         // inputs whose memory cannot be watched
  };

  // `constant`: which inputs are passed unchanged from call to call. `prologue` may be null.
  Weights(std::shared_ptr<const Runner> main, std::shared_ptr<const Runner> prologue, std::vector<bool> constant);

  // What agrees with the inputs' elements now.
  std::shared_ptr<const State> current(const RunInputs& inputs, const std::vector<int64_t>& symbols);
  std::map<const void*, int64_t> bytes() const;  // of what is packed or computed, by address

 private:
  // What is to be packed, if all could be at once.
  std::vector<Executable::Packable> wanted(const std::vector<int64_t>& symbols) const;
  // Whether a copy that this state lacks may be made now, or none is wanted any more that it lacks.
  bool may_go_on(const State& state, const std::vector<int64_t>& symbols) const;
  std::shared_ptr<const State> build(const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const;
  // The input's copy-on-write clone; null if its memory cannot be watched. That of `old` will do.
  std::shared_ptr<const at::Tensor> add_source(State& state, int input, const RunInputs& inputs, const State* old) const;
  std::optional<PackSource> source_of(State& state, int input, const RunInputs& inputs, const State* old) const;
  void pack(State& state, const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const;
  PackedWeight pack_one(int contraction, const PackSource& source, const std::vector<int64_t>& symbols) const;

  std::shared_ptr<const Runner> main_, prologue_;
  std::vector<bool> constant_;
  std::vector<int> prologue_inputs_;
  std::vector<Executable::Packable> packables_;
  std::atomic<std::shared_ptr<const State>> state_;
  std::mutex mutex_;
  int rebuilds_ = 0;
};

}  // namespace broach
