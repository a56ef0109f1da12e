#include "target/reference/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "support/error.h"

namespace broach::reference {

ProtectedMemory& ProtectedMemory::get() {
  static ProtectedMemory* memory = new ProtectedMemory;  // never destroyed: calls may be under way while the process ends
  return *memory;
}

Memory::Piece ProtectedMemory::take(int64_t bytes, void*) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t rounded = (bytes + page - 1) / page * page;
  void* data = mmap(nullptr, static_cast<size_t>(rounded), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  std::lock_guard lock(mutex_);
  pieces_.emplace(static_cast<std::byte*>(data), rounded);
  return {static_cast<std::byte*>(data), rounded};
}

void ProtectedMemory::give(Piece piece, void*) {
  std::lock_guard lock(mutex_);
  pieces_.erase(piece.data);
  munmap(piece.data, static_cast<size_t>(piece.bytes));
}

void ProtectedMemory::protect(int access) {
  for (auto [data, bytes] : pieces_)
    check(mprotect(data, static_cast<size_t>(bytes), access) == 0, "reference: memory cannot be protected");
}

void ProtectedMemory::open(const std::function<void()>& work) {
  std::lock_guard lock(mutex_);
  struct Closing {
    ProtectedMemory& memory;
    ~Closing() { memory.protect(PROT_NONE); }
  };
  protect(PROT_READ | PROT_WRITE);
  Closing closing{*this};
  work();
}

Queue& Queue::of_thread() {
  thread_local Queue queue;
  return queue;
}

void Queue::finish() {
  if (work_.empty()) return;
  auto all = std::exchange(work_, {});
  ProtectedMemory::get().open([&] {
    for (const auto& work : all) work();
  });
}

}  // namespace broach::reference
