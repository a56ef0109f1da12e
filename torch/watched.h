// Memory whose writes are noticed.
//
// A mark on a storage goes away at any mutable access through torch: operations in place, `.data` and views, numpy, DLPack, a
// mere data_ptr(). Asking for the mark costs one comparison. Where it is gone, a digest of the elements tells whether they
// changed. Nothing is moved and nothing is held.
//
// A mark says nothing of pointers that were given out before it. So memory that is not torch's own (numpy's, shared, mapped) is not
// watched, nor is a storage that anything but the tensor holds: numpy's arrays and what DLPack gives out hold it, and write unseen; another
// tensor on it would be seen, but looks alike. DLPack may hold the tensor instead: there may be no more holders of it than the fewest that
// were seen. A raw pointer that foreign code keeps is not noticed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "compat.h"
#include "support/digest.h"

namespace broach {

inline const c10::StorageImpl* storage_of(const at::Tensor& t) { return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); }

// Who holds a tensor and its storage besides their own Python objects; or up to how many there may be for that nobody foreign is
// among them (no storage: never).
struct Holders {
  size_t storage = 0, tensor = 0;

  Holders() = default;
  explicit Holders(const at::Tensor& t)
      : storage(references(*storage_of(t), t.unsafeGetTensorImpl()->unsafe_storage().use_count())),
        tensor(references(*t.unsafeGetTensorImpl(), t.use_count())) {}
  // What computes gradients holds a tensor too; and DLPack takes none that needs them.
  bool allow(const at::Tensor& t) const {
    Holders now(t);
    return now.storage <= storage && (t.requires_grad() || now.tensor <= tensor);
  }
};
Digest digest_of(const at::Tensor& t);  // of the memory from its first to its last element

// What a tensor's elements were. Says so as long as nobody found them changed.
class Watch {
 public:
  const c10::weak_intrusive_ptr<c10::StorageImpl>& storage() const { return storage_; }
  bool written() const { return written_.load(std::memory_order_acquire); }

 private:
  friend class Watches;
  Watch(c10::weak_intrusive_ptr<c10::StorageImpl> storage, const void* address, size_t bytes)
      : storage_(std::move(storage)), address_(address), bytes_(bytes) {}

  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* address_;
  size_t bytes_;
  Digest digest_;
  std::atomic<bool> written_ = false;
};

// One for all programs of the process, since a storage has one mark.
class Watches {
 public:
  static Watches& of_process();

  // Marks the storage. The same watch as before if the elements are the same; null where somebody may write unseen.
  std::shared_ptr<const Watch> watch(const at::Tensor& t);
  bool mark(const at::Tensor& t);  // without a watch
  // With which `watch` gives no null. Who holds the tensor now is taken for nobody foreign unless fewer did before: to be asked as
  // early as may be.
  Holders most_holders(const at::Tensor& t);
  // A compiled program holds the tensor, or not any more.
  void add_program(const at::Tensor& t, int programs);
  // How often a watch was found written.
  uint64_t found_written() const { return found_written_.load(std::memory_order_acquire); }

 private:
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::map<const c10::TensorImpl*, size_t> tensors = {};  // the fewest holders of each, without programs
    std::vector<std::weak_ptr<Watch>> watches = {};
  };
  Memory& memory_of(const at::Tensor& t);
  bool mark(const at::Tensor& t, Memory& memory);
  void compare(Memory& memory);
  size_t programs(const at::Tensor& t) const;
  Holders most_holders(const at::Tensor& t, Memory& memory) const;

  std::mutex mutex_;
  std::map<const c10::StorageImpl*, Memory> memories_;
  size_t sweep_at_ = 64;
  std::map<const c10::TensorImpl*, size_t> programs_;  // that hold a tensor
  std::atomic<uint64_t> found_written_ = 0;
};

}  // namespace broach
