// Blocks of one range of addresses.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <vector>

#include "target/region.h"

using broach::Region;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Whether the page of an address is there.
bool is_resident(std::byte* at) {
  const auto address = reinterpret_cast<uintptr_t>(at) / 4096 * 4096;
  unsigned char is_there = 0;
  REQUIRE(mincore(reinterpret_cast<void*>(address), 4096, &is_there) == 0);
  return is_there & 1;
}

}  // namespace

TEST_CASE("region: what is given is taken again, the smallest gap that has room first, and of several the lowest") {
  Region region(64 * kMiB);
  std::byte *a = region.take(1000), *b = region.take(5000), *c = region.take(70);
  CHECK(reinterpret_cast<uintptr_t>(a) % 64 == 0);
  CHECK(b == a + 1024);
  CHECK(c == b + 5056);
  region.give(a);
  region.give(c);
  CHECK(region.used_bytes() == 5056);
  CHECK(region.take(2000) == c);  // does not fit below
  CHECK(region.take(1024) == a);
  region.give(b);
  region.give(a);
  CHECK(region.take(6000) == a);  // of two joined
}

TEST_CASE("region: a small block leaves a large gap as it is") {
  Region region(64 * kMiB);
  std::byte* blocks[7];
  for (size_t i = 0; i < 7; ++i) blocks[i] = region.take(i == 1 ? 4096 : 1024);
  for (size_t i : {1, 3, 5}) region.give(blocks[i]);
  CHECK(region.take(1000) == blocks[3]);
  CHECK(region.take(1000) == blocks[5]);
  CHECK(region.take(1000) == blocks[1]);
  CHECK(region.take(3072) == blocks[1] + 1024);
}

TEST_CASE("region: there is no room for more than there is") {
  Region region(2 * kMiB);
  CHECK(region.take(3 * kMiB) == nullptr);
  std::byte* all = region.take(2 * kMiB);
  REQUIRE(all);
  CHECK(region.take(1) == nullptr);
  region.give(all);
  CHECK(region.take(2 * kMiB) == all);
  CHECK(Region(size_t{1} << 62).take(1) == nullptr);  // more addresses than there are
}

TEST_CASE("region: blocks keep what is written to them") {
  Region region(64 * kMiB);
  std::mt19937 random(3);
  struct Block {
    std::byte* at;
    size_t bytes;
    int value;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 20'000; ++i) {
    if (blocks.size() < 40 && random() % 2) {
      const size_t bytes = 1 + random() % (random() % 8 ? 5000 : kMiB);
      auto* at = region.take(bytes);
      REQUIRE(at);
      blocks.push_back({at, bytes, static_cast<int>(random() % 256)});
      std::memset(at, blocks.back().value, bytes);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const Block b = blocks.back();
      blocks.pop_back();
      for (size_t k : {size_t{0}, b.bytes / 2, b.bytes - 1}) REQUIRE(static_cast<int>(b.at[k]) == b.value);
      region.give(b.at);
    }
    if (i % 100 == 0) region.begin_run();
    if (i % 5000 == 0) region.trim();
  }
  for (const Block& b : blocks) region.give(b.at);
  CHECK(region.used_bytes() == 0);
  CHECK(region.take(64 * kMiB));  // all is one block again
}

TEST_CASE("region: pages that no run has used for long are given back") {
  Region region(64 * kMiB);
  auto run = [&](size_t bytes) {
    region.begin_run();
    std::byte* block = region.take(bytes);
    std::memset(block, 1, bytes);
    region.give(block);
    return block;
  };
  std::byte* base = run(32 * kMiB);
  for (int i = 0; i < Region::kWindow - 1; ++i) run(4 * kMiB);
  CHECK(is_resident(base + 31 * kMiB));  // used in the window that has just ended
  for (int i = 0; i < 2 * Region::kWindow; ++i) run(4 * kMiB);
  CHECK_FALSE(is_resident(base + 31 * kMiB));
  CHECK(is_resident(base + 3 * kMiB));
  CHECK(region.idle_bytes() == 4 * kMiB);
  region.trim();
  CHECK_FALSE(is_resident(base + 3 * kMiB));
  CHECK(region.idle_bytes() == 0);
}
