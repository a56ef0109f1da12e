#include "support/published.h"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

using broach::Published;

TEST_CASE("what is published stays for whoever reads it, and goes then") {
  auto first = std::make_shared<int>(1), second = std::make_shared<int>(2);
  Published<std::shared_ptr<int>> published(first);
  CHECK(first.use_count() == 2);
  {
    auto reader = published.read();
    published.publish(second);
    CHECK(**reader == 1);
    CHECK(*published.load() == 2);
    CHECK(first.use_count() == 2);
  }
  published.publish(nullptr);
  CHECK(first.use_count() == 1);
  CHECK(second.use_count() == 1);
}

TEST_CASE("readers beside a publisher see whole values that are alive") {
  struct Pair {
    int a = 0, b = 0;
    std::shared_ptr<int> alive = std::make_shared<int>(0);
    ~Pair() { a = -1; }
  };
  Published<Pair> published;
  std::atomic<bool> over = false;
  std::atomic<int> torn = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t)
    readers.emplace_back([&] {
      while (!over) {
        auto now = published.read();
        if (now->a != now->b || now->alive.use_count() < 1) ++torn;
      }
    });
  for (int i = 1; i < 20000; ++i) {
    Pair next;
    next.a = next.b = i;
    published.publish(next);
  }
  over = true;
  for (auto& t : readers) t.join();
  CHECK(torn == 0);
  CHECK(published.load().a == 19999);
}
