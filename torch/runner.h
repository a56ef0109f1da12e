// Runs an executable on tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/executable.h"

namespace broach {

using WeightPacks = std::vector<PackedWeight>;  // by contraction
// The address of the first element; null for an undefined tensor. Makes no copy of memory that is shared until it is written.
inline const void* address_of(const c10::TensorImpl& t, int64_t itemsize) {
  auto memory = static_cast<const std::byte*>(t.unsafe_storage().unsafeGetStorageImpl()->data());
  return memory ? memory + t.storage_offset() * itemsize : nullptr;
}
inline const void* address_of(const at::Tensor& t) {
  return t.defined() ? address_of(*t.unsafeGetTensorImpl(), static_cast<int64_t>(t.itemsize())) : nullptr;
}

// Tensors that somebody holds for the length of a call (counting references to hundreds of parameters takes microseconds), and
// where their elements are.
struct RunInputs {
  c10::SmallVector<const at::Tensor*, 32> tensors;
  c10::SmallVector<const void*, 32> addresses;

  void add(const at::Tensor& t) {
    tensors.push_back(&t);
    addresses.push_back(address_of(t));
  }
  void append(const RunInputs& more) {
    tensors.append(more.tensors);
    addresses.append(more.addresses);
  }
};

class Runner {
 public:
  Runner(std::shared_ptr<const Executable> executable, size_t inputs);

  // One tensor for each graph output; for those written into inputs, undefined. `mutated`: inputs that are written.
  // An undefined input is one that the executable does not read (a weight of which only the packed copy is kept).
  std::vector<at::Tensor> run(const RunInputs& inputs, const std::vector<int64_t>& symbols, const WeightPacks* packs,
                              const std::vector<int>& mutated) const;
  const Executable& executable() const { return *executable_; }
  // Whether something reads this input besides the contractions that read its packed copies. Ask once these are settled.
  bool reads_unpacked(int input, const WeightPacks& packs) const;

 private:
  std::shared_ptr<const Executable> executable_;
  std::optional<c10::Device> device_;                   // of the values that do not lie on the CPU
  bool calls_aten_ = false;                             // or may do so
  std::vector<int> input_buffers_;                      // by graph input; -1 if nothing touches it
  std::vector<std::pair<uint32_t, uint32_t>> touched_;  // inputs and their buffers
};

}  // namespace broach
