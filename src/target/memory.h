// Where devices' memory comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace broach {

// Memory of one kind of device. What lies at an address is the device's: only its target touches it.
class Memory {
 public:
  struct Piece {
    std::byte* data = nullptr;  // aligned to 64 bytes
    int64_t bytes = 0;          // at least as many as were asked for
  };
  virtual ~Memory() = default;
  // Throws std::bad_alloc.
  virtual Piece take(int64_t bytes, void* queue) = 0;
  // For longer than the run, which takes it once.
  virtual Piece take_lasting(int64_t bytes, void* queue) { return take(bytes, queue); }
  // To be taken again by work that comes later in the same queue.
  virtual void give(Piece piece, void* queue) = 0;
};

// For the length of a scope; nothing for no bytes.
class MemoryLease {
 public:
  MemoryLease(Memory& memory, int64_t bytes, void* queue)
      : memory_(memory), piece_(bytes > 0 ? memory.take(bytes, queue) : Memory::Piece{}), queue_(queue) {}
  ~MemoryLease() {
    if (piece_.data) memory_.give(piece_, queue_);
  }
  MemoryLease(const MemoryLease&) = delete;
  MemoryLease& operator=(const MemoryLease&) = delete;
  std::byte* data() const { return piece_.data; }

 private:
  Memory& memory_;
  Memory::Piece piece_;
  void* queue_;
};

// The host's: pieces that are not in use are kept, to be taken again, since fresh pages cost several times what writing to warm
// ones does.
class HostMemory : public Memory {
 public:
  static HostMemory& get();
  Piece take(int64_t bytes, void* queue = nullptr) override;
  void give(Piece piece, void* queue = nullptr) override;
  void clear();
  int64_t idle_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Piece> idle_;
};

}  // namespace broach
