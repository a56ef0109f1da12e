#include <doctest/doctest.h>

#include <cstdlib>

#include "target/memory.h"

using broach::HostMemory;

TEST_CASE("arenas: calls one after the other share one, as large as the largest needs") {
  HostMemory pool;
  for (int64_t bytes : {1000, 100'000, 64, 2'000'000, 500, 100'000}) pool.give(pool.take(bytes));
  CHECK(pool.idle_bytes() >= 2'000'000);
  CHECK(pool.idle_bytes() < 2'001'000);
  pool.clear();
}

TEST_CASE("arenas: calls at once have their own, and the closest fit") {
  HostMemory pool;
  auto small = pool.take(1000), large = pool.take(1'000'000);
  CHECK(small.data != large.data);
  CHECK(large.bytes >= 1'000'000);
  pool.give(large);
  pool.give(small);
  auto again = pool.take(900);
  CHECK(again.data == small.data);
  CHECK(pool.take(900).data == large.data);
  pool.give(again);
  CHECK(pool.idle_bytes() == again.bytes);
  std::free(large.data);
  pool.clear();
}
