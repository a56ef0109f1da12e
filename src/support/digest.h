// A fast digest of memory: of all its bytes, to tell later whether they are what they were.
#pragma once

#include <cstddef>
#include <cstdint>

namespace broach {

struct Digest {
  uint64_t low = 0, high = 0;
  bool operator==(const Digest&) const = default;
};

// NH (Black, Halevi, Krawczyk, Krovetz and Rogaway, "UMAC", 1999; RFC 4418) twice over blocks, as two polynomials modulo
// 2^61 - 1 of the blocks' values. Two memories that differ agree in a block with a probability of 2^-64 for keys drawn at
// random; the keys are fixed, since nobody is to be fended off.
Digest digest(const void* memory, size_t bytes);

}  // namespace broach
