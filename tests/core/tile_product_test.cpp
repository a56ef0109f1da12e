// Products on AMX tiles against plain fp64 loops. Every case does nothing on a machine without tiles, or without oneDNN, which packs.
#include "target/cpu/tile_product.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>
#include <vector>

#include "target/cpu/attention.h"

using namespace broach;
using namespace broach::cpu;

namespace {

uint16_t bf16_bits(double x) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
double value_of(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

std::vector<uint16_t> elements(size_t n, double seed) {
  std::vector<uint16_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = bf16_bits(std::sin(seed + static_cast<double>(i) * 1.7));
  return out;
}

struct Threaded : Threads {
  explicit Threaded(int count) : count_(count) {}
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& body) const override {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < n; ++i) threads.emplace_back([&, i] { body(i, i + 1); });
    for (auto& t : threads) t.join();
  }
  int count() const override { return count_; }
  int count_;
};

Operand of_step(DType t, Shape shape) { return {{t, shape, {}}, {0, 0, contiguous_strides(shape)}}; }

struct Case {
  int64_t rows, depth, columns, source_row, result_row;
  bool bias = true;
  int threads = 1;
};

// relu(x w + bias + operand) * vector, in bf16 with a vector in f32.
void check_product(const Case& c) {
  const onednn::DType bf16 = onednn::DType::bf16;
  const Dims bias_dims{1, c.columns}, full{c.rows, c.columns};
  onednn::MatmulDesc desc{{.dims = {c.rows, c.depth}, .dtype = bf16, .strides = {c.source_row, 1}},
                          {.dims = {c.depth, c.columns}, .dtype = bf16, .strides = {1, c.depth}},
                          {.dims = full, .dtype = bf16, .strides = {c.result_row, 1}}};
  if (c.bias) desc.bias = onednn::Operand{.dims = bias_dims, .dtype = bf16, .strides = {c.columns, 1}};
  desc.post = {{.kind = onednn::PostOp::add, .operand = {.dims = full, .dtype = bf16, .strides = {c.columns, 1}}},
               {.kind = onednn::PostOp::relu},
               {.kind = onednn::PostOp::mul, .operand = {.dims = bias_dims, .dtype = onednn::DType::f32, .strides = {c.columns, 1}}}};
  onednn::MatmulDesc packing{desc.a, desc.b, desc.c};
  packing.b.layout = onednn::matmul_weight_layout(desc.b, 64);
  const auto primitive = primitive_for(packing);
  REQUIRE(primitive);
  ContractionStep step;
  step.operation.op = Op::dot;
  step.result = of_step(DType::bf16, {c.rows, c.columns});
  if (c.bias) step.bias = of_step(DType::bf16, {c.columns});
  step.epilogue = {{Op::add, step.result}, {Op::relu, {}}, {Op::mul, of_step(DType::f32, {c.columns})}};
  const auto product = TileProduct::create(desc, primitive->weight_layout(), step, {});
  REQUIRE(product);

  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  auto x = elements(at(c.rows * c.source_row), 1), w = elements(at(c.columns * c.depth), 2), bias = elements(at(c.columns), 3),
       operand = elements(at(c.rows * c.columns), 4);
  for (int64_t r = 0; r < c.rows; ++r)  // what lies between rows is nobody's
    for (int64_t i = c.depth; i < c.source_row; ++i) x[at(r * c.source_row + i)] = bf16_bits(NAN);
  std::vector<float> scale(at(c.columns));
  for (size_t i = 0; i < scale.size(); ++i) scale[i] = std::cos(static_cast<float>(i));
  constexpr uint16_t kUntouched = 0x1234;
  std::vector<uint16_t> result(at(c.rows * c.result_row), kUntouched);
  std::vector<std::byte> packed(primitive->packed_weight_bytes() + 64);
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(packed.data()) + 63) & ~uintptr_t{63});
  primitive->pack_weight(w.data(), aligned);
  void* operands[] = {operand.data(), nullptr, scale.data()};
  void* given[] = {operands[0], operands[2]};
  product->run(x.data(), aligned, bias.data(), given, result.data(), Threaded(c.threads));

  int wrong = 0;
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t j = 0; j < c.result_row; ++j) {
      const uint16_t found = result[at(r * c.result_row + j)];
      if (j >= c.columns) {
        wrong += found != kUntouched;
        continue;
      }
      double sum = value_of(operand[at(r * c.columns + j)]) + (c.bias ? value_of(bias[at(j)]) : 0);
      for (int64_t k = 0; k < c.depth; ++k) sum += value_of(x[at(r * c.source_row + k)]) * value_of(w[at(j * c.depth + k)]);
      const double want = std::max(sum, 0.0) * scale[at(j)];
      wrong += !(std::abs(value_of(found) - want) <= std::abs(want) / 200 + 1e-3);
    }
  CHECK(wrong == 0);
}

bool has_tiles() { return may_use_amx() && onednn::available(); }

}  // namespace

TEST_CASE("tile product: rows, columns and depths that are no multiples of a block, and rows that lie apart") {
  if (!has_tiles()) return;
  for (const Case& c : {Case{17, 32, 64, 32, 64}, Case{32, 64, 128, 64, 128}, Case{48, 96, 128, 96, 128}, Case{49, 320, 192, 328, 200},
                        Case{65, 544, 100, 544, 100}, Case{300, 96, 1000, 100, 1003}, Case{513, 64, 64, 64, 64, false}}) {
    CAPTURE(c.rows);
    check_product(c);
  }
}

TEST_CASE("tile product: more rows than are worked on together, sums that wait for their epilogue behind others") {
  if (!has_tiles()) return;
  for (const Case& c : {Case{1100, 64, 64, 64, 64}, Case{1300, 1024, 192, 1024, 192}, Case{1100, 256, 192, 256, 192},
                        Case{1100, 320, 64, 320, 64}, Case{1090, 544, 192, 544, 192}, Case{33, 320, 320, 320, 320},
                        Case{800, 1056, 192, 1056, 192}, Case{20, 2080, 320, 2080, 320}, Case{450, 2080, 64, 2080, 64}}) {
    CAPTURE(c.rows);
    CAPTURE(c.depth);
    check_product(c);
  }
}

TEST_CASE("tile product: divided among threads") {
  if (!has_tiles()) return;
  for (int threads : {2, 3, 7, 16}) {
    CAPTURE(threads);
    check_product({200, 320, 384, 320, 384, true, threads});
    check_product({1000, 64, 64, 64, 64, true, threads});
    check_product({33, 512, 1024, 512, 1024, true, threads});
  }
}

TEST_CASE("tile product: what it does not take") {
  if (!has_tiles()) return;
  const onednn::DType bf16 = onednn::DType::bf16;
  auto made = [&](Dims a, Dims a_strides, Dims b, int64_t columns = 64) {
    onednn::MatmulDesc desc{{.dims = a, .dtype = bf16, .strides = a_strides},
                            {.dims = b, .dtype = bf16, .strides = {1, b[0]}},
                            {.dims = {a[0], b[1]}, .dtype = bf16, .strides = {b[1], 1}}};
    onednn::MatmulDesc packing = desc;
    packing.b.layout = onednn::matmul_weight_layout(desc.b, columns);
    const auto primitive = primitive_for(packing);
    ContractionStep step;
    step.operation.op = Op::dot;
    step.result = of_step(DType::bf16, {a[0], b[1]});
    return primitive && TileProduct::create(desc, primitive->weight_layout(), step, {});
  };
  CHECK(made({64, 64}, {64, 1}, {64, 128}));
  CHECK_FALSE(made({16, 64}, {64, 1}, {64, 128}));  // bound by reading the weight
  CHECK_FALSE(made({64, 40}, {40, 1}, {40, 128}));  // no whole tiles
  CHECK_FALSE(made({64, 64}, {1, 64}, {64, 128}));  // elements of a row lie apart
  CHECK_FALSE(made({64, 64}, {64, 1}, {64, 128}, 32));
}
