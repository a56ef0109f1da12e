// Runs an executable on tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "allocator.h"
#include "runtime/executable.h"

namespace broach {

using WeightPacks = std::vector<PackedWeight>;  // by contraction

// By output, which of a runner's may lie in one piece of memory: those of one block. Else one of these.
constexpr int kByItself = -1;
constexpr int kElement = -2;  // one element on the host, of which nobody needs a tensor

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
  static constexpr unsigned kMany = 512;  // memory for as many is felt in a call
  c10::SmallVector<const at::Tensor*, kMany> tensors;
  c10::SmallVector<const void*, kMany> addresses;

  void add(const at::Tensor& t) {
    tensors.push_back(&t);
    addresses.push_back(address_of(t));
  }
  // In place of all others; the addresses of `held` are the caller's to write, to where this says.
  const void** place(at::TensorList given, std::span<const at::Tensor* const> held) {
    tensors.clear(), addresses.clear();
    for (const at::Tensor& t : given) add(t);
    tensors.append(held.begin(), held.end());
    addresses.resize_for_overwrite(tensors.size());
    return addresses.data() + given.size();
  }
  void resize(size_t size) {
    tensors.resize(size);
    addresses.resize(size);
  }
  void set(size_t at, const at::Tensor& t) {
    tensors[at] = &t;
    addresses[at] = address_of(t);
  }
  void set(size_t at, const int64_t& element) {
    static const at::Tensor none;
    tensors[at] = &none;
    addresses[at] = &element;
  }
  void set(size_t first, const RunInputs& more) {
    std::copy(more.tensors.begin(), more.tensors.end(), tensors.begin() + first);
    std::copy(more.addresses.begin(), more.addresses.end(), addresses.begin() + first);
  }
};

class Runner {
 public:
  // Takes these of the values that it is given, by input of its graph; its outputs go to these places among what is made. `written`:
  // values that it writes to in place. `steady`: it is run again and again, with gradients, and what it makes shall come to lie where it
  // did (step_allocator; on a GPU, SteadyMemory). `blocks`, by output: see kByItself. Empty: there are none.
  Runner(std::shared_ptr<const Executable> executable, std::vector<size_t> takes, std::vector<size_t> gives,
         const std::vector<int>& written = {}, bool steady = false, const std::vector<int>& blocks = {});
  // Whoever runs it sees to it that these devices are current: to make its own so and to put back another is felt in a small call.
  void rely_on(std::span<const c10::Device> current) { is_current_ = device_ && std::ranges::find(current, *device_) != current.end(); }

  // An output that is written into an input stays undefined in `made`. An undefined input is one that the executable does not read (a
  // weight of which only the packed copy is kept).
  // `spent`, by value: tensors whose memory nobody else may want. Each is let go, where that can be, as soon as it has been read for the
  // last time. What is steady on the host gets memory for outputs, too, only then when they are written.
  // `elements`, by place among what is made: where outputs that are mere elements go, whose tensors stay undefined.
  void run(const RunInputs& values, const std::vector<int64_t>& symbols, const WeightPacks* packs, std::vector<at::Tensor>& made,
           std::span<at::Tensor> spent = {}, std::span<int64_t> elements = {}) const;
  const Executable& executable() const { return *executable_; }
  const std::vector<size_t>& takes() const { return takes_; }
  size_t outputs() const { return gives_.size(); }
  // Whether something reads this value besides the contractions that read its packed copies. Ask once these are settled.
  bool reads_unpacked(size_t taken, const WeightPacks& packs) const;

 private:
  class ByStep;
  // Outputs that lie in a few pieces of a device's memory, since to take and to give back hundreds of them is felt in a step.
  struct Together {
    struct Place {
      size_t block;
      int64_t offset;  // in bytes
    };
    std::vector<std::optional<Place>> places;  // by output
    std::vector<int64_t> bytes;                // by block
  };
  static Together placed_together(const Schedule& schedule, c10::Device device, const std::vector<int>& blocks);
  c10::Allocator& allocator() const;
  at::Tensor new_output(size_t output, std::span<const int64_t> symbols, bool is_current) const;
  at::Tensor output_within(size_t output, std::span<const c10::Storage> blocks) const;

  std::shared_ptr<const Executable> executable_;
  std::optional<StepMemoryUser> steps_;  // steady, on the host
  std::optional<c10::Device> device_;    // of the values that do not lie on the CPU
  bool is_current_ = false;              // whenever it runs
  bool calls_aten_ = false;              // or may do so
  bool is_steady_ = false;
  Together together_;
  std::vector<size_t> takes_, gives_;
  std::vector<size_t> order_;       // in which outputs get memory
  std::vector<bool> is_element_;    // by output
  std::vector<int> input_buffers_;  // by graph input; -1 if nothing touches it
  // Consecutive values that are consecutive buffers.
  struct Touched {
    size_t value, buffer, count;
  };
  std::vector<Touched> touched_;
  std::vector<std::pair<size_t, size_t>> written_;  // values and their buffers
};

}  // namespace broach
