// Memory that a thread keeps for the steps that it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace broach::cpu {

// At least so many bytes, aligned to 64; null for none.
inline void* aligned_scratch(std::vector<char>& memory, size_t bytes) {
  if (bytes == 0) return nullptr;
  if (memory.size() < bytes + 64) memory.resize(bytes + 64);
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
}

}  // namespace broach::cpu
