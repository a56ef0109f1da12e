#include "target/memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "support/host_allocation.h"

namespace broach {

HostMemory& HostMemory::get() {
  static HostMemory* memory = new HostMemory;  // never destroyed: calls may be under way while the process ends
  return *memory;
}

Memory::Piece HostMemory::take(int64_t bytes, void*) {
  Piece dropped;
  {
    std::lock_guard lock(mutex_);
    // The smallest that fits; if none does, the largest makes way for the new one. So programs that run one after the other
    // share one arena, as large as the largest of them needs.
    auto better = [&](const Piece& x, const Piece& y) {
      const bool fits = x.bytes >= bytes;
      if (fits != (y.bytes >= bytes)) return fits;
      return fits ? x.bytes < y.bytes : x.bytes > y.bytes;
    };
    if (auto best = std::min_element(idle_.begin(), idle_.end(), better); best != idle_.end()) {
      Piece fit = *best;
      idle_.erase(best);
      if (fit.bytes >= bytes) return fit;
      dropped = fit;
    }
  }
  std::free(dropped.data);
  const int64_t rounded = (std::max<int64_t>(bytes, 64) + 63) / 64 * 64;
  auto* data = static_cast<std::byte*>(allocate_host(static_cast<size_t>(rounded)));
  if (!data) throw std::bad_alloc();
  return {data, rounded};
}

void HostMemory::give(Piece piece, void*) {
  constexpr size_t kMostIdle = 8;
  Piece dropped;
  {
    std::lock_guard lock(mutex_);
    idle_.push_back(piece);
    if (idle_.size() > kMostIdle) {
      dropped = idle_.front();
      idle_.erase(idle_.begin());
    }
  }
  std::free(dropped.data);
}

void HostMemory::clear() {
  std::vector<Piece> all;
  {
    std::lock_guard lock(mutex_);
    all.swap(idle_);
  }
  for (Piece& p : all) std::free(p.data);
}

int64_t HostMemory::idle_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const Piece& p : idle_) sum += p.bytes;
  return sum;
}

}  // namespace broach
