// Compiled kernels against the reference interpreter, on random graphs.
#include <cstring>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "passes/passes.h"
#include "random_graph.h"
#include "run_compiled.h"

namespace broach {

namespace {

using testing::Options;
using testing::run_compiled;

// Values of low precision are rounded as the interpreter rounds them; a function of some fewer bits may give the number next to its own.
void compare(uint32_t seed, const Options& how, const ScheduleOptions& options) {
  double tolerance = how.low_precision ? 2e-2 : 2e-5;
  Graph g = testing::random_graph(seed, how);
  auto inputs = testing::random_inputs(g, seed);
  auto expected = interpret(g, inputs);
  auto actual = run_compiled(g, inputs, options);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    std::string difference = testing::first_difference(actual[i], expected[i], tolerance, tolerance);
    INFO("seed ", seed, " output ", i, "\n", g.str());
    CHECK_MESSAGE(difference.empty(), difference);
  }
}

int count() { return std::getenv("BROACH_TEST_ALL") ? 3000 : 150; }

}  // namespace

TEST_CASE("codegen: a repeated dimension of no elements") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {2, 0, 3}, {}});
  Value y = b.reshape(b.expand(b.reshape(x, {2, 1, 0, 3}), {2, 4, 0, 3}), {8, 0, 3});
  Value z = b.reshape(b.expand(b.reshape(b.input({DType::f32, {5}, {}}), {1, 5}), {0, 5}), {0});
  Graph g = b.finish({b.unary(Op::neg, y), b.unary(Op::neg, z)});
  auto results = run_compiled(g, {HostTensor{g.inputs()[0].type(), {}}, HostTensor{g.inputs()[1].type(), std::vector<std::byte>(20)}});
  CHECK((results[0].bytes.empty() && results[1].bytes.empty()));
}

TEST_CASE("codegen: reshapes of no elements") {
  const std::vector<std::pair<Shape, Shape>> cases{{{0}, {1, 0}},
                                                   {{1, 0}, {0}},
                                                   {{0}, {0, 0}},
                                                   {{5, 0, 5}, {1, 5, 0, 5}},
                                                   {{5, 0, 5}, {5, 0}},
                                                   {{2, 0, 3}, {0, 7}},
                                                   {{1, 1, 0, 1}, {1, 1, 0, 1, 1, 1}}};
  for (const auto& [from, to] : cases) {
    GraphBuilder b;
    Graph g = b.finish({b.unary(Op::neg, b.reshape(b.input({DType::f32, from, {}}), to))});
    auto results = run_compiled(g, {HostTensor{g.inputs()[0].type(), {}}});
    CHECK(results[0].bytes.empty());
  }
}

TEST_CASE("codegen: a product and a sum rounded at once, as vectors and as the elements behind them") {
  for (DType t : {DType::f32, DType::f64, DType::bf16}) {
    GraphBuilder b;
    Value x = b.input({t, {77}, {}}), y = b.input({t, {77}, {}}), z = b.input({t, {}, {}});
    Graph g = b.finish({b.emit(Op::fma, {x, y, x}), b.emit(Op::fma, {b.binary(Op::mul, x, y), y, b.expand(z, {77})})});
    const auto inputs = testing::random_inputs(g, 7);
    const auto actual = run_compiled(g, inputs, {}), expected = interpret(g, inputs);
    for (size_t i = 0; i < actual.size(); ++i) CHECK(testing::first_difference(actual[i], expected[i], 0, 0) == "");
  }
}

// Of sizes that fill squares, and others.
TEST_CASE("codegen: what lies side by side along another axis is turned") {
  const std::vector<std::pair<int64_t, int64_t>> sizes{{16, 16}, {64, 48}, {9, 100}, {100, 9}, {33, 17}, {7, 7}, {1, 40}};
  for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::i32, DType::i8, DType::b1})
    for (const auto& [rows, columns] : sizes) {
      GraphBuilder b;
      Value x = b.input({t, {3, rows, columns}, {}}), y = b.input({t, {3, columns, rows}, {}});
      const Op add = t == DType::b1 ? Op::bit_xor : Op::add;
      Graph g = b.finish({b.binary(add, b.permute(x, {0, 2, 1}), y), b.binary(add, b.permute(y, {2, 0, 1}), b.permute(x, {1, 0, 2}))});
      const auto inputs = testing::random_inputs(g, 3);
      const auto actual = run_compiled(g, inputs, {}), expected = interpret(g, inputs);
      INFO(name_of(t), " ", rows, " ", columns);
      for (size_t i = 0; i < actual.size(); ++i) CHECK(testing::first_difference(actual[i], expected[i], 0, 0) == "");
    }
}

// Pieces of whole vectors and others, long enough to be loops of their own and too short; what each computes is read nowhere else.
TEST_CASE("codegen: pieces of a concatenation") {
  const std::vector<std::vector<int64_t>> pieces{{64, 64}, {40, 37, 100}, {3, 70, 2}, {100, 5}, {33, 33, 33, 33, 33}, {4100, 70}};
  for (DType t : {DType::f32, DType::bf16, DType::i64, DType::b1})
    for (const auto& widths : pieces) {
      GraphBuilder b;
      Value rows = b.input({DType::i64, {4}, {}}), joined;
      for (size_t i = 0; i < widths.size(); ++i) {
        Value x = b.input({t, {7, widths[i]}, {}});
        Value taken = b.emit(Op::take, {x, b.binary(Op::bit_and, rows, b.expand(b.reshape(b.constant(int64_t{3}, DType::i64), {1}), {4}))},
                             {{Attr::dim, int64_t{0}}});
        Value y = t == DType::b1 ? b.unary(Op::bit_not, taken) : i % 2 ? b.binary(Op::mul, taken, taken) : b.binary(Op::add, taken, taken);
        joined = joined ? b.emit(Op::cat, {joined, y}, {{Attr::dim, int64_t{1}}}) : y;
      }
      Graph g = b.finish({joined, t == DType::b1 ? b.unary(Op::bit_not, joined) : b.unary(Op::neg, joined)});
      const auto inputs = testing::random_inputs(g, 5);
      const auto actual = run_compiled(g, inputs, {}), expected = interpret(g, inputs);
      INFO(name_of(t), " ", widths.size(), " pieces, the first of ", widths[0]);
      for (size_t i = 0; i < actual.size(); ++i) CHECK(testing::first_difference(actual[i], expected[i], 0, 0) == "");
    }
}

TEST_CASE("random graphs, fused") {
  for (int seed = 0; seed < count(); ++seed) compare(static_cast<uint32_t>(seed), {}, {});
}

TEST_CASE("random graphs, with intermediates where inputs were") {
  int reused = 0;
  for (int seed = 0; seed < count() / 3; ++seed) {
    const Graph g = testing::random_graph(static_cast<uint32_t>(seed), {.low_precision = false});
    const auto inputs = testing::random_inputs(g, static_cast<uint32_t>(seed));
    std::vector<std::byte> piece;
    const ScheduleOptions options{.strict = false, .fuse = false};
    const auto expected = run_compiled(g, inputs, options);
    const auto actual = run_compiled(g, inputs, options, SerialThreads(), 0, "cpu", &piece);
    for (size_t i = 0; i < actual.size(); ++i) CHECK(testing::first_difference(actual[i], expected[i], 0, 0) == "");
    auto is_there = [&](const HostTensor& t) { return std::ranges::search(piece, t.bytes).begin() != piece.end(); };
    reused += !std::ranges::all_of(inputs, is_there);
  }
  CHECK(reused > count() / 12);
}

TEST_CASE("random graphs, one kernel an operation") {
  for (int seed = 0; seed < count() / 3; ++seed) compare(static_cast<uint32_t>(seed), {}, {.strict = false, .fuse = false});
}

TEST_CASE("random graphs with routines") {
  for (int seed = 2000; seed < 2000 + count(); ++seed) compare(static_cast<uint32_t>(seed), {.routines = true}, {});
}

TEST_CASE("random graphs of low precision, strict") {
  for (int seed = 1000; seed < 1000 + count(); ++seed) compare(static_cast<uint32_t>(seed), {}, {.strict = true, .fuse = true});
}

// Results this large are written past the caches where their rows are aligned, and as any other where they are not.
TEST_CASE("large results") {
  const int64_t rows = 4100;
  for (int64_t columns : {1040, 1041}) {
    GraphBuilder b;
    Value x = b.input({DType::f32, {SymInt(rows), SymInt(columns)}});
    Value most = b.reduce(Op::reduce_max, x, {1}, true);
    Graph g = b.finish({b.unary(Op::neg, x), b.binary(Op::sub, x, b.expand(most, x.shape()))});
    auto count = static_cast<size_t>(rows * columns);
    std::vector<float> in(count), negated(count), less(count);
    for (size_t i = 0; i < count; ++i) in[i] = static_cast<float>(i * 7919 % 104729);
    for (size_t r = 0; r < count; r += static_cast<size_t>(columns)) {
      float largest = *std::max_element(&in[r], &in[r] + columns);
      for (size_t i = r; i < r + static_cast<size_t>(columns); ++i) negated[i] = -in[i], less[i] = in[i] - largest;
    }
    HostTensor given{x.type(), std::vector<std::byte>(count * 4)};
    std::memcpy(given.bytes.data(), in.data(), count * 4);
    for (size_t offset : {size_t{0}, size_t{16}}) {
      auto actual = run_compiled(g, {given}, {}, SerialThreads(), offset);
      CHECK(std::memcmp(actual[0].bytes.data(), negated.data(), count * 4) == 0);
      CHECK(std::memcmp(actual[1].bytes.data(), less.data(), count * 4) == 0);
    }
  }
}

// Sums of columns of one tensor are one kernel, which stores what it sums as well.
TEST_CASE("sums of columns, and what they are of") {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t columns : {7, 40, 300}) {
      const int64_t rows = 50;
      GraphBuilder b;
      Value x = b.input({t, {SymInt(rows), SymInt(columns)}}), y = b.input(x.type());
      Value both = b.binary(Op::mul, x, y);
      Graph g = b.finish({both, b.reduce(Op::reduce_sum, both, {0}), b.reduce(Op::reduce_sum, y, {0})});
      CHECK(testing::scheduled(g, {}).steps.size() == 1);
      const int64_t sizes[] = {rows, columns};
      std::vector<HostTensor> in(2, zeros(t, sizes));
      for (int64_t i = 0; i < rows * columns; ++i) in[0].set(i, static_cast<double>(i % 3)), in[1].set(i, static_cast<double>(i / 5 % 2));
      const auto expected = interpret(g, in), actual = run_compiled(g, in);
      for (size_t i = 0; i < expected.size(); ++i) CHECK(actual[i].bytes == expected[i].bytes);
    }
}

namespace {

Value number_like(GraphBuilder& b, Value v, int64_t n) { return b.expand(b.constant(n, v.dtype()), v.shape()); }

// v in a wider type without its sign, shifted up, and two of them side by side.
std::vector<Value> widened(GraphBuilder& b, Value v, DType to) {
  Value wide = b.cast(v, to), low = b.binary(Op::bit_and, wide, number_like(b, wide, to == DType::i64 ? 0xffffffff : 0xffff));
  Value high = b.binary(Op::shl, wide, number_like(b, wide, to == DType::i64 ? 32 : 16));
  return {wide, low, high, b.binary(Op::bit_or, low, high)};
}

}  // namespace

// Computed integers widened in short vectors, of which some lanes are used only, as at the seams of what is joined. LLVM 19's x86
// backend makes of some such zero extensions nodes that it cannot select, and ends the process.
TEST_CASE("short vectors widen") {
  for (DType from : {DType::b1, DType::u8, DType::i8, DType::i16, DType::i32, DType::f32})
    for (int64_t n : {3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 17, 31, 33}) {
      GraphBuilder b;
      Value x = b.input({from, {SymInt(3), SymInt(2 * n)}});
      auto columns = [&](int64_t first, int64_t count, int64_t step) {
        return b.slice(x, {0, first}, {1, step}, {SymInt(3), SymInt(count)});
      };
      std::vector<Value> out;
      for (DType to : {DType::i16, DType::i32, DType::i64}) {
        std::vector<std::vector<Value>> parts;
        for (auto [first, count] : {std::pair{int64_t{0}, int64_t{1}}, {int64_t{1}, n - 2}, {n - 1, int64_t{1}}}) {
          Value v = b.binary(Op::mul, columns(2 * first, count, 2), columns(2 * first + 1, count, 2));
          if (from == DType::f32) v = b.emit(Op::bitcast, {b.binary(Op::div, v, columns(first, count, 1))}, {{Attr::dtype, DType::i32}});
          parts.push_back(widened(b, v, to));
        }
        for (size_t i = 0; i < parts[0].size(); ++i) {
          out.push_back(parts[1][i]);
          out.push_back(b.emit(Op::cat, {parts[0][i], parts[1][i], parts[2][i]}, {{Attr::dim, int64_t{1}}}));
          Value first = b.slice(parts[0][i], {0, 0}, {1, 1}, {SymInt(3), SymInt(1)}), zero = number_like(b, first, 0);
          for (Value left : {zero, first}) out.push_back(b.emit(Op::cat, {left, parts[1][i], zero}, {{Attr::dim, int64_t{1}}}));
        }
      }
      Graph g = b.finish(out);
      auto inputs = testing::random_inputs(g, 5);
      auto expected = interpret(g, inputs);
      for (bool fuse : {true, false}) {
        auto actual = run_compiled(g, inputs, {.strict = false, .fuse = fuse});
        for (size_t i = 0; i < actual.size(); ++i) {
          INFO(name_of(from), " ", n, " output ", i);
          CHECK(testing::first_difference(actual[i], expected[i], 0, 0).empty());
        }
      }
    }
}

// Integers, so that the order of summation cannot matter.
TEST_CASE("large reductions are cut into parts") {
  struct Case {
    std::vector<int64_t> shape, dims;
    int reductions;  // after the pass
  };
  for (const Case& c : {Case{{262147}, {0}, 3},
                        {{1 << 18}, {0}, 2},
                        {{4099, 70}, {0}, 3},
                        {{2, 2560, 3, 70}, {1, 3}, 2},
                        {{1024, 256}, {1}, 1},
                        {{100, 1000}, {0}, 1}})
    for (Op op : {Op::reduce_sum, Op::reduce_max, Op::reduce_min, Op::reduce_argmax}) {
      if (op == Op::reduce_argmax && c.dims.size() > 1) continue;
      GraphBuilder b;
      Value x = b.input({DType::i64, Shape(c.shape.begin(), c.shape.end())});
      Graph g = b.finish({b.reduce(op, x, c.dims)});
      Graph split = split_reductions(g, {});
      auto is_reduction = [](const Node& n) { return is_reduce(n.op); };
      CHECK(std::count_if(split.nodes().begin(), split.nodes().end(), is_reduction) == (op == Op::reduce_argmax ? 1 : c.reductions));
      auto inputs = testing::random_inputs(g, 3);
      auto expected = interpret(g, inputs);
      CHECK(run_compiled(split, inputs, {})[0].bytes == expected[0].bytes);
      CHECK(run_compiled(g, inputs, {})[0].bytes == expected[0].bytes);
    }
}

// A norm over groups of the last dimension, scaled behind the reshape that joins the groups: no point may reduce its group anew.
TEST_CASE("a group is reduced once for all of its points") {
  for (int64_t group : {64, 24}) {
    GraphBuilder b;
    const Shape whole{SymInt(3), SymInt(5 * group)}, apart{SymInt(3), SymInt(5), SymInt(group)};
    Value x = b.input({DType::f32, whole}), weight = b.input({DType::f32, {whole[1]}});
    Value parts = b.reshape(x, apart);
    Value largest = b.expand(b.reshape(b.reduce(Op::reduce_max, parts, {2}), {SymInt(3), SymInt(5), SymInt(1)}), apart);
    Value divided = b.reshape(b.binary(Op::div, parts, largest), whole);
    Graph g = b.finish({b.binary(Op::mul, divided, b.expand(b.reshape(weight, {SymInt(1), whole[1]}), whole))});
    auto schedule = testing::scheduled(g);
    int64_t points = 1;
    CHECK(schedule.kernels == 1);
    for (const auto& axis : std::get<KernelStep>(schedule.steps.at(0).work).kernel->axes) points *= axis.extent.constant();
    CHECK(points == 15 * group);
    auto inputs = testing::random_inputs(g, 7);
    CHECK(testing::first_difference(run_compiled(g, inputs, {})[0], interpret(g, inputs)[0], 1e-5, 1e-5).empty());
  }
}

// In bf16, which is multiplied by the inverse, divisors of no or a huge inverse too.
TEST_CASE("a row of bf16 is divided by one number") {
  const std::vector<float> divisors{3, -7, 1, 0, -0.0F, INFINITY, NAN, 1e-40F, -2e-39F, 0x1p-126F, 0x1p127F, 1e-20F};
  const std::vector<float> numbers{0,        -0.0F,     1,   -5,   1e-40F, -3e-39F, 1e-30F, 1e30F, 3e38F,
                                   INFINITY, -INFINITY, NAN, 0.3F, 17,     1e-3F,   1e3F,   2,     9};
  auto tensor = [](const Type& type, const std::vector<float>& values) {
    HostTensor t{type, {}};
    for (float v : values) {
      const uint32_t bits = std::bit_cast<uint32_t>(v);
      for (int shift : {16, 24}) t.bytes.push_back(static_cast<std::byte>(bits >> shift));
    }
    return t;
  };
  GraphBuilder b;
  const SymInt rows(static_cast<int64_t>(divisors.size())), columns(static_cast<int64_t>(numbers.size()));
  Value x = b.input({DType::bf16, {rows, columns}}), y = b.input({DType::bf16, {rows, SymInt(1)}});
  Graph g = b.finish({b.binary(Op::div, x, b.expand(y, x.shape()))});
  std::vector<float> table;
  for (size_t i = 0; i < divisors.size(); ++i) table.insert(table.end(), numbers.begin(), numbers.end());
  const std::vector<HostTensor> inputs{tensor(x.type(), table), tensor(y.type(), divisors)};
  const auto expected = interpret(g, inputs), actual = run_compiled(g, inputs, {});
  const std::string difference = testing::first_difference(actual[0], expected[0], 0x1p-8, 1e-39);
  CHECK_MESSAGE(difference.empty(), difference);
}

}  // namespace broach
