// The reference target's device: memory that is not addressable but while its work is done, and a queue of such work for each thread.
// What works here does not rely on the host reading a device's memory, or on work being done when it has been asked for.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "target/memory.h"

namespace broach::reference {

class ProtectedMemory : public Memory {
 public:
  static ProtectedMemory& get();
  Piece take(int64_t bytes, void* queue) override;
  void give(Piece piece, void* queue) override;

  // Calls `work` with all pieces addressable; others wait meanwhile.
  void open(const std::function<void()>& work);

 private:
  void protect(int access);
  std::recursive_mutex mutex_;
  std::map<std::byte*, int64_t> pieces_;
};

class Queue {
 public:
  static Queue& of_thread();
  void push(std::function<void()> work) { work_.push_back(std::move(work)); }
  // Does all that was put in. Of an exception, what comes behind it is dropped.
  void finish();
  void drop() { work_.clear(); }

 private:
  std::vector<std::function<void()>> work_;
};

}  // namespace broach::reference
