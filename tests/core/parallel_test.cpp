// How work is divided among threads, by its size and their number.
#include "support/parallel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "run_compiled.h"
#include "target/cpu/attention_pieces.h"
#include "target/cpu/one_thread.h"

using namespace broach;

namespace {

// As libtorch's: equal pieces, one to a thread. Pieces begin one after the other, so that results can be compared.
class Team : public Threads {
 public:
  explicit Team(int count) : count_(count) {}
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) const override {
    if (n <= 0) return;
    const int64_t pieces = std::min<int64_t>(count_, (n + grain - 1) / grain), size = (n + pieces - 1) / pieces;
    for (int64_t begin = 0; begin < n; begin += size) body(begin, std::min(n, begin + size));
  }
  int count() const override { return count_; }

 private:
  int count_;
};

int64_t pieces_of(int64_t n, int64_t operations, int threads) {
  const int64_t grain = grain_for(n, operations, threads);
  return std::min<int64_t>(threads, (n + grain - 1) / grain);
}

}  // namespace

TEST_CASE("parallel: what is not worth waking threads stays in one piece") {
  CHECK(pieces_of(1000, 300, 16) == 1);
  CHECK(pieces_of(1, 1'000'000'000, 16) == 1);
  CHECK(pieces_of(1000, 1'000'000, 1) == 1);
  CHECK(pieces_of(0, 1'000'000, 16) == 0);
  CHECK(pieces_of(48, 20'000, 16) > 1);   // 24 us
  CHECK(pieces_of(48, 20'000, 64) == 1);  // as many threads take longer to wake
}

TEST_CASE("parallel: what is worth waking threads is shared by as many as can have a piece") {
  CHECK(pieces_of(64, 20'000, 2) == 2);
  CHECK(pieces_of(64, 20'000, 16) == 13);  // 32 us in pieces of 2.5 us
  CHECK(pieces_of(64, 100'000, 16) == 16);
  CHECK(pieces_of(6, 1'000'000, 16) == 6);
  CHECK(pieces_of(int64_t{1} << 60, 1 << 20, 16) == 16);
}

TEST_CASE("parallel: each piece of work is taken once, by whoever is free") {
  for (bool are_alike : {false, true})
    for (int workers : {1, 2, 5})
      for (int64_t n : {0, 1, 4, 37}) {
        std::vector<int> taken(static_cast<size_t>(n));
        share(Team(workers), workers, n, are_alike, [&](int64_t i) { ++taken[static_cast<size_t>(i)]; });
        CHECK(std::ranges::all_of(taken, [](int n) { return n == 1; }));
      }
  struct Threaded : Threads {
    void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& body) const override {
      std::vector<std::jthread> threads;
      for (int64_t i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i, i + 1); });
    }
    int count() const override { return 6; }
  };
  for (bool are_alike : {false, true}) {
    std::vector<std::atomic<int>> taken(1000);
    share(Threaded(), 6, 1000, are_alike, [&](int64_t i) { ++taken[static_cast<size_t>(i)]; });
    CHECK(std::ranges::all_of(taken, [](const auto& n) { return n == 1; }));
  }
}

TEST_CASE("parallel: threads begin with the largest of different pieces, and of like ones with as many that follow each other") {
  struct LastOne : Threads {  // is free
    void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& body) const override { body(n - 1, n); }
    int count() const override { return 3; }
  };
  for (bool are_alike : {false, true}) {
    std::vector<int64_t> taken;
    share(LastOne(), 3, 6, are_alike, [&](int64_t i) { taken.push_back(i); });
    CHECK(taken == (are_alike ? std::vector<int64_t>{4, 5, 0, 1, 2, 3} : std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  }
}

namespace {

using cpu::attention_piece;
using cpu::attention_pieces;
using cpu::AttentionPieces;

// When the last thread is done, where all are done at once at 1: each piece goes to the thread that is free first.
double span_of_attention(int64_t heads, int64_t rows, bool causal, int threads, bool on_tiles = false) {
  const AttentionPieces pieces = on_tiles ? attention_pieces(heads, rows, 16, cpu::kAmxAttentionRows, threads)
                                          : attention_pieces(heads, rows, 6, cpu::kAttentionRows, threads);
  std::vector<double> busy(static_cast<size_t>(threads));
  for (int64_t i = 0; i < heads * pieces.blocks; ++i) {
    const int64_t first = attention_piece(i, heads, pieces.blocks, causal).block * pieces.rows, last = std::min(rows, first + pieces.rows);
    double work = 0;
    for (int64_t r = first; r < last; ++r) work += static_cast<double>(causal ? r + 1 : rows);
    *std::ranges::min_element(busy) += work;
  }
  double all = 0;
  for (double b : busy) all += b;
  return std::ranges::max(busy) * threads / all;
}

}  // namespace

TEST_CASE("parallel: pieces of attention cover all rows and are no smaller than needed") {
  for (int64_t heads : {1, 5, 12, 48})
    for (int64_t rows : {0, 1, 2, 47, 128, 193, 197, 1024})
      for (const auto& [step, at_most] : {std::pair<int64_t, int64_t>{6, cpu::kAttentionRows}, {16, cpu::kAmxAttentionRows}})
        for (int threads : {1, 2, 7, 16, 64}) {
          const AttentionPieces pieces = attention_pieces(heads, rows, step, at_most, threads);
          CHECK(pieces.rows <= at_most);
          CHECK(pieces.rows % step == 0);
          CHECK(pieces.rows * pieces.blocks >= rows);
          CHECK((pieces.blocks == 0 || pieces.rows * (pieces.blocks - 1) < rows));
          if (threads == 1) CHECK(pieces.blocks == (rows + at_most - 1) / at_most);
        }
}

TEST_CASE("parallel: attention keeps 16 threads busy") {
  for (bool on_tiles : {false, true}) {
    CAPTURE(on_tiles);
    CHECK(span_of_attention(12, 256, true, 16, on_tiles) < 1.15);                      // GPT-2
    CHECK(span_of_attention(12, 1024, true, 16, on_tiles) < (on_tiles ? 1.1 : 1.05));  // in fewer pieces, as each rearranges keys anew
    CHECK(span_of_attention(48, 128, false, 16, on_tiles) < 1.01);                     // BERT
    CHECK(span_of_attention(48, 197, false, 16, on_tiles) < 1.05);                     // ViT
    CHECK(span_of_attention(16, 64, true, 16, on_tiles) < 1.01);
    CHECK(span_of_attention(12, 256, true, 2, on_tiles) < 1.05);
    CHECK(span_of_attention(12, 256, true, 8, on_tiles) < 1.15);
  }
}

TEST_CASE("parallel: attention has the same bits however its rows are divided") {
  for (int64_t rows : {67, 193, 250}) {
    std::vector<HostTensor> inputs;
    for (int t = 0; t < 3; ++t) {
      HostTensor x = zeros(DType::f32, std::vector<int64_t>{1, 3, rows, 64});
      for (int64_t i = 0; i < x.numel(); ++i) x.set(i, static_cast<double>((i * 7919 + t * 104729) % 1000) / 500 - 1);
      inputs.push_back(std::move(x));
    }
    GraphBuilder b;
    std::vector<Value> values;
    for (const HostTensor& x : inputs) values.push_back(b.input(x.type));
    const Graph g = b.finish(b.emit_all(Op::attention, values, Attrs{{Attr::scale, Scalar(0.125)}, {Attr::causal, int64_t{1}}}));
    const auto alone = testing::run_compiled(g, inputs, {}, Team(1));
    for (int threads : {2, 5, 16})
      for (size_t i = 0; const HostTensor& result : testing::run_compiled(g, inputs, {}, Team(threads)))
        CHECK(result.bytes == alone[i++].bytes);
  }
}

TEST_CASE("parallel: products of few rows and columns are for one thread") {
  auto product = [](int64_t m, int64_t k, int64_t n) {
    const cpu::onednn::MatmulDesc d{{.dims = {m, k}}, {.dims = {k, n}}, {.dims = {m, n}}};
    return cpu::is_for_one_thread(cpu::flops(d), cpu::bytes(d));
  };
  CHECK(product(4, 64, 64));
  CHECK(product(16, 128, 128));
  CHECK_FALSE(product(64, 256, 256));
  CHECK_FALSE(product(1, 512, 512));  // reads a megabyte
}

TEST_CASE("parallel: a small product wakes no thread") {
  if (!cpu::onednn::available()) return;
  auto threads = [] {
    auto tasks = std::filesystem::directory_iterator("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  auto multiply = [](int64_t n) {
    const auto p = cpu::onednn::Primitive::create(cpu::onednn::MatmulDesc{{.dims = {n, n}}, {.dims = {n, n}}, {.dims = {n, n}}});
    REQUIRE(p);
    std::vector<float> a(static_cast<size_t>(n * n), 1), c(a), scratch(p->scratchpad_bytes() / 4 + 16);
    p->run(a.data(), a.data(), nullptr, c.data(), {}, scratch.data());
    CHECK(c[0] == static_cast<float>(n));
  };
  // On a thread of its own, whose team of OpenMP's begins with it.
  std::jthread([&] {
    const auto before = threads();
    multiply(64);
    CHECK(threads() == before);
    multiply(768);
    if (std::thread::hardware_concurrency() > 1 && !std::getenv("OMP_NUM_THREADS")) CHECK(threads() > before);
  }).join();
}
