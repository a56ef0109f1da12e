#include "support/digest.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

using namespace broach;

TEST_CASE("a digest tells every byte, bit and length apart") {
  for (size_t n : {1u, 7u, 32u, 40u, 2047u, 2048u, 2049u, 5000u}) {
    std::vector<unsigned char> memory(n, 0);
    const Digest zeros = digest(memory.data(), n);
    CHECK(digest(memory.data(), n) == zeros);
    CHECK_FALSE(digest(memory.data(), n - 1) == zeros);
    std::set<std::pair<uint64_t, uint64_t>> seen{{zeros.low, zeros.high}};
    for (size_t i = 0; i < n; ++i)
      for (unsigned char bit : {1, 128}) {
        memory[i] ^= bit;
        Digest d = digest(memory.data(), n);
        CHECK_MESSAGE(seen.emplace(d.low, d.high).second, n, " bytes, byte ", i);
        memory[i] ^= bit;
      }
  }
}

TEST_CASE("a digest sees what is exchanged, and does not depend on the address") {
  std::vector<unsigned char> memory(8192 + 1);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<unsigned char>(i * 37 + i / 251);
  const Digest before = digest(memory.data(), 8192);
  std::vector<unsigned char> moved(memory.size());
  std::copy(memory.begin(), memory.end() - 1, moved.begin() + 1);
  CHECK(digest(moved.data() + 1, 8192) == before);
  for (size_t distance : {4u, 8u, 32u, 2048u, 4096u}) {
    std::vector<unsigned char> swapped = memory;
    for (size_t i = 0; i < 4; ++i) std::swap(swapped[i], swapped[i + distance]);
    CHECK_FALSE(digest(swapped.data(), 8192) == before);
  }
}
