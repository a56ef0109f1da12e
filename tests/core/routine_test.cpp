// Routines: the reference against values computed by hand, and the CPU target against the reference.
#include <doctest/doctest.h>

#include <random>

#include "random_graph.h"
#include "run_compiled.h"
#include "runtime/executable.h"
#include "support/error.h"

using namespace broach;
using broach::testing::first_difference;
using broach::testing::run_compiled;

namespace {

using Numbers = std::vector<double>;
using Sizes = std::vector<int64_t>;
const double nan_ = std::nan(""), inf = HUGE_VAL;

HostTensor tensor(DType t, const Sizes& sizes, const Numbers& values) {
  HostTensor x = zeros(t, sizes);
  REQUIRE(x.numel() == static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) x.set(static_cast<int64_t>(i), values[i]);
  return x;
}
HostTensor line(const Numbers& values, DType t = DType::f32) { return tensor(t, {static_cast<int64_t>(values.size())}, values); }

Numbers numbers(const HostTensor& t) {
  Numbers out;
  for (int64_t i = 0; i < t.numel(); ++i) out.push_back(as_double(t.at(i)));
  return out;
}
bool same(const Numbers& a, const Numbers& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y)); });
}

// Pieces of one element, the last first, so that what depends on the order of pieces shows.
class Backwards : public Threads {
 public:
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& body) const override {
    for (int64_t i = n; i-- > 0;) body(i, i + 1);
  }
  int count() const override { return 5; }
};

Graph graph_of(Op op, const std::vector<HostTensor>& operands, const Attrs& attrs, const std::vector<int64_t>& order = {}) {
  GraphBuilder b;
  std::vector<Value> inputs;
  for (const HostTensor& t : operands) {
    Value v = b.input(t.type);
    // Stored in another order of dimensions, so that the routine sees strides.
    inputs.push_back(order.empty() ? v : b.permute(v, order));
  }
  Graph g = b.finish(b.emit_all(op, inputs, attrs));
  g.verify();
  return g;
}

std::vector<Numbers> by_hand(Op op, const std::vector<HostTensor>& operands, const Attrs& attrs) {
  std::vector<Numbers> out;
  for (const HostTensor& t : interpret(graph_of(op, operands, attrs), operands)) out.push_back(numbers(t));
  return out;
}

void check_target(Op op, const std::vector<HostTensor>& operands, const Attrs& attrs, const std::vector<int64_t>& order = {},
                  double tolerance = 0) {
  Graph g = graph_of(op, operands, attrs, order);
  INFO(g.str());
  auto want = interpret(g, operands);
  for (const Threads* threads : {static_cast<const Threads*>(new SerialThreads), static_cast<const Threads*>(new Backwards)}) {
    auto have = run_compiled(g, operands, {}, *threads);
    for (size_t i = 0; i < want.size(); ++i) {
      std::string difference = first_difference(have[i], want[i], tolerance, tolerance);
      CHECK_MESSAGE(difference.empty(), "result ", i, ": ", difference);
    }
    delete threads;
  }
}

const std::vector<DType> kReal = {DType::u8,  DType::i8,   DType::i16, DType::i32, DType::i64,
                                  DType::f16, DType::bf16, DType::f32, DType::f64, DType::b1};

// Few distinct values, so that equals meet, and special ones among those of floating types.
HostTensor random_tensor(DType t, const Sizes& sizes, uint32_t seed, int64_t distinct = 7, bool special = true) {
  std::mt19937 random(seed);
  HostTensor x = zeros(t, sizes);
  for (int64_t i = 0; i < x.numel(); ++i) {
    auto n = static_cast<int64_t>(random() % static_cast<uint32_t>(distinct));
    if (t == DType::b1) x.set(i, n % 2 == 1);
    else if (is_integral(t)) x.set(i, t == DType::u8 ? n : n - distinct / 2);
    else if (special && n == 1) x.set(i, random() % 2 ? nan_ : -0.0);
    else if (special && n == 2) x.set(i, random() % 2 ? inf : -inf);
    else x.set(i, static_cast<double>(n) - static_cast<double>(distinct) / 2 + 0.5);
  }
  return x;
}

Attrs along(int64_t dim) { return {{Attr::dim, dim}}; }
Attrs sorting(int64_t dim, bool descending, bool stable) {
  return {{Attr::dim, dim}, {Attr::descending, int64_t{descending}}, {Attr::stable, int64_t{stable}}};
}

}  // namespace

TEST_CASE("routines: scans by hand") {
  CHECK(same(by_hand(Op::scan_sum, {line({1, 2, -4})}, along(0))[0], {1, 3, -1}));
  CHECK(same(by_hand(Op::scan_prod, {tensor(DType::f32, {2, 2}, {1, 2, 3, 4})}, along(0))[0], {1, 2, 3, 8}));
  CHECK(same(by_hand(Op::scan_sum, {line({100, 100}, DType::i8)}, along(0))[0], {100, -56}));
  // In a wider type: f32 would stay at 2^24; rounded to the element type only when stored.
  CHECK(same(by_hand(Op::scan_sum, {line({16777216, 1, 1, 1, 1})}, along(0))[0], {16777216, 16777216, 16777218, 16777220, 16777220}));
  CHECK(same(by_hand(Op::scan_sum, {line({256, 1, 1}, DType::bf16)}, along(0))[0], {256, 256, 258}));
  CHECK(same(by_hand(Op::scan_logsumexp, {line({0, 0, inf, -inf, nan_})}, along(0))[0], {0, 0.6931471824645996, inf, inf, nan_}));
  CHECK(same(by_hand(Op::scan_logsumexp, {line({-inf, -inf, 2})}, along(0))[0], {-inf, -inf, 2}));
  auto most = by_hand(Op::scan_max, {line({1, 3, 3, nan_, 2, nan_})}, along(0));
  CHECK(same(most[0], {1, 3, 3, nan_, nan_, nan_}));
  CHECK(same(most[1], {0, 1, 2, 3, 3, 5}));
  auto least = by_hand(Op::scan_min, {line({3, 1, 2, 1})}, along(0));
  CHECK(same(least[0], {3, 1, 1, 1}));
  CHECK(same(least[1], {0, 1, 1, 3}));
}

TEST_CASE("routines: order by hand") {
  const HostTensor x = line({2, nan_, -0.0, 0.0, -inf, inf, nan_});
  auto up = by_hand(Op::sort, {x}, sorting(0, false, true)), down = by_hand(Op::sort, {x}, sorting(0, true, true));
  CHECK(same(up[0], {-inf, -0.0, 0.0, 2, inf, nan_, nan_}));
  CHECK(same(up[1], {4, 2, 3, 0, 5, 1, 6}));
  CHECK(same(down[0], {nan_, nan_, inf, 2, -0.0, 0.0, -inf}));
  CHECK(same(down[1], {1, 6, 5, 0, 2, 3, 4}));
  auto top = by_hand(Op::topk, {tensor(DType::i64, {2, 3}, {5, 7, 6, -1, -3, -2})},
                     {{Attr::dim, int64_t{1}}, {Attr::k, SymInt(2)}, {Attr::descending, int64_t{1}}, {Attr::sorted, int64_t{1}}});
  CHECK(same(top[0], {7, 6, -1, -2}));
  CHECK(same(top[1], {1, 2, 0, 2}));
  auto second = by_hand(Op::kth, {line({3, 1, 2, nan_})}, {{Attr::dim, int64_t{0}}, {Attr::k, SymInt(1)}});
  CHECK(same(second[0], {2}));
  CHECK(same(second[1], {2}));
  auto middle = [](const Numbers& values, bool skip_nan) {
    return by_hand(Op::median, {line(values)}, {{Attr::dim, int64_t{0}}, {Attr::skip_nan, int64_t{skip_nan}}});
  };
  CHECK(same(middle({4, 1, 3, 1}, false)[1], {3}));  // the lower middle is the second 1
  CHECK(same(middle({4, nan_, 3}, false)[1], {1}));
  CHECK(same(middle({4, nan_, 3}, true)[0], {3}));
  CHECK(same(middle({nan_, nan_}, true)[1], {0}));
  CHECK(same(by_hand(Op::mode, {line({2, 1, 2, 1, 3})}, along(0))[0], {1}));
  CHECK_THROWS_WITH_AS(by_hand(Op::median, {line({})}, {{Attr::dim, int64_t{0}}, {Attr::skip_nan, int64_t{0}}}),
                       "%1 (median): not defined for no elements", Error);
}

TEST_CASE("routines: search by hand") {
  auto f = [](const HostTensor& x, const HostTensor& values, bool right) {
    return by_hand(Op::search, {x, values}, {{Attr::right, int64_t{right}}})[0];
  };
  const HostTensor x = line({1, 3, 3, 5}), values = tensor(DType::f32, {2, 3}, {0, 1, 3, 4, 5, nan_});
  CHECK(same(f(x, values, false), {0, 0, 1, 3, 3, 4}));
  CHECK(same(f(x, values, true), {0, 1, 3, 3, 4, 4}));
  CHECK(same(f(x, tensor(DType::f32, {}, {3}), true), {3}));
  CHECK(same(f(tensor(DType::i32, {2, 2}, {1, 2, 3, 4}), tensor(DType::i32, {2, 1}, {2, 2}), false), {1, 0}));
}

TEST_CASE("routines: scattered writes by hand") {
  const HostTensor x = tensor(DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
  auto f = [&](Op op, const Numbers& index, const Numbers& source, int64_t dim) {
    const Sizes sizes{2, static_cast<int64_t>(index.size()) / 2};
    return by_hand(op, {x, tensor(DType::i64, sizes, index), tensor(DType::f32, sizes, source)}, along(dim))[0];
  };
  CHECK(same(f(Op::scatter, {2, 2, 0, 1}, {10, 20, 30, 40}, 1), {1, 2, 20, 30, 40, 6}));  // the last of two writes stays
  CHECK(same(f(Op::scatter_add, {2, 2, 0, 1}, {10, 20, 30, 40}, 1), {1, 2, 33, 34, 45, 6}));
  CHECK(same(f(Op::scatter_add, {1, 1, 1, 0}, {10, 20, 30, 40}, 0), {1, 42, 3, 44, 25, 6}));  // an index smaller than x
  CHECK(same(f(Op::scatter_mul, {0, 0, 0, 0}, {2, 3, 4, nan_}, 1), {6, 2, 3, nan_, 5, 6}));
  CHECK(same(f(Op::scatter_min, {0, 1, 2, 2}, {-1, nan_, 8, 7}, 1), {-1, nan_, 3, 4, 5, 6}));
  CHECK(same(f(Op::scatter_max, {0, 1, 2, 2}, {-1, nan_, 8, 7}, 1), {1, nan_, 3, 4, 5, 8}));
  CHECK_THROWS_WITH_AS(f(Op::scatter, {3, 0}, {1, 2}, 1), "%3 (scatter): index 3 is outside dimension 1, whose size is 3", Error);
  CHECK_THROWS_WITH_AS(f(Op::scatter, {0, -1}, {1, 2}, 1), "%3 (scatter): index -1 is outside dimension 1, whose size is 3", Error);
}

TEST_CASE("routines: scans on the target") {
  for (DType t : kReal)
    for (int64_t dim : {0, 1, 2})
      for (const std::vector<int64_t>& order : {std::vector<int64_t>{}, {2, 0, 1}, {1, 2, 0}}) {
        const HostTensor x = random_tensor(t, {3, 70, 5}, 1, 7), tame = random_tensor(t, {3, 70, 5}, 2, 5, false);
        check_target(Op::scan_max, {x}, along(dim), order);
        check_target(Op::scan_min, {x}, along(dim), order);
        if (t == DType::b1) continue;
        check_target(Op::scan_sum, {x}, along(dim), order);
        check_target(Op::scan_prod, {tame}, along(dim), order);
        if (is_floating(t)) check_target(Op::scan_logsumexp, {x}, along(dim), order, size_of(t) == 2 ? 1e-2 : 1e-6);
      }
  check_target(Op::scan_sum, {zeros(DType::f32, Sizes{0, 3})}, along(0));
  check_target(Op::scan_sum, {zeros(DType::f32, Sizes{3, 0})}, along(0));
}

TEST_CASE("routines: sorts and selections on the target") {
  for (DType t : kReal)
    for (int64_t dim : {0, 1})
      for (const std::vector<int64_t>& order : {std::vector<int64_t>{}, {1, 0}}) {
        // Long enough for the algorithms to change equal elements' places.
        const HostTensor x = random_tensor(t, {40, 33}, 3);
        for (bool descending : {false, true}) {
          for (bool stable : {false, true}) check_target(Op::sort, {x}, sorting(dim, descending, stable), order);
          for (int64_t k : {0, 1, 7, 33})
            for (bool sorted : {false, true})
              check_target(
                  Op::topk, {x},
                  {{Attr::dim, dim}, {Attr::k, SymInt(k)}, {Attr::descending, int64_t{descending}}, {Attr::sorted, int64_t{sorted}}},
                  order);
        }
        for (int64_t k : {0, 5, 32}) check_target(Op::kth, {x}, {{Attr::dim, dim}, {Attr::k, SymInt(k)}}, order);
        for (bool skip_nan : {false, true}) check_target(Op::median, {x}, {{Attr::dim, dim}, {Attr::skip_nan, int64_t{skip_nan}}}, order);
        check_target(Op::mode, {random_tensor(t, {40, 33}, 4, 9, false)}, along(dim), order);
      }
}

TEST_CASE("routines: long lines are sorted by digits") {
  for (DType t : kReal)
    for (int64_t distinct : {20, 1 << 30}) {
      const HostTensor x = random_tensor(t, {5000}, 5, distinct);
      for (bool descending : {false, true})
        for (bool stable : {false, true}) check_target(Op::sort, {x}, sorting(0, descending, stable));
      check_target(Op::topk, {x},
                   {{Attr::dim, int64_t{0}}, {Attr::k, SymInt(9)}, {Attr::descending, int64_t{1}}, {Attr::sorted, int64_t{1}}});
    }
}

TEST_CASE("routines: searches on the target") {
  for (DType t : kReal)
    for (bool right : {false, true}) {
      const Attrs attrs{{Attr::right, int64_t{right}}};
      const HostTensor sorted = interpret(graph_of(Op::sort, {random_tensor(t, {4, 50}, 6, 30)}, sorting(1, false, true)),
                                          std::vector{random_tensor(t, {4, 50}, 6, 30)})[0];
      check_target(Op::search, {sorted, random_tensor(t, {4, 9}, 7)}, attrs);
      HostTensor first = zeros(t, Sizes{50});
      std::copy_n(sorted.bytes.begin(), first.bytes.size(), first.bytes.begin());
      check_target(Op::search, {first, random_tensor(t, {3, 4, 5}, 8)}, attrs);
      check_target(Op::search, {first, random_tensor(t, {}, 9)}, attrs);
      check_target(Op::search, {zeros(t, Sizes{0}), random_tensor(t, {3}, 9)}, attrs);
    }
}

TEST_CASE("routines: scattered writes on the target") {
  auto index = [](const Sizes& sizes, int64_t limit) {
    std::mt19937 random(10);
    HostTensor x = zeros(DType::i64, sizes);
    for (int64_t i = 0; i < x.numel(); ++i) x.set(i, static_cast<int64_t>(random() % static_cast<uint32_t>(limit)));
    return x;
  };
  for (DType t : kReal)
    for (Op op : {Op::scatter, Op::scatter_add, Op::scatter_mul, Op::scatter_min, Op::scatter_max})
      for (int64_t dim : {0, 1, 2})
        for (const std::vector<int64_t>& order : {std::vector<int64_t>{}, {2, 1, 0}, {1, 2, 0}}) {
          const Sizes sizes{6, 5, 4}, part{4, 5, 3};
          const int64_t limit =
              order.empty() ? sizes[static_cast<size_t>(dim)] : sizes[static_cast<size_t>(order[static_cast<size_t>(dim)])];
          check_target(op, {random_tensor(t, sizes, 11), index(part, limit), random_tensor(t, part, 12)}, along(dim), order,
                       size_of(t) == 2 ? 1e-2 : 1e-6);
        }
  // Whole rows at one index: the index is repeated along the row.
  GraphBuilder b;
  Value x = b.input({DType::f32, {7, 40}, {}}), rows = b.input({DType::i32, {20}, {}}), source = b.input({DType::f32, {20, 40}, {}});
  Graph g = b.finish({b.emit(Op::scatter_add, {x, b.expand(b.reshape(rows, {20, 1}), {20, 40}), source}, along(0))});
  HostTensor at = zeros(DType::i32, Sizes{20});
  for (int64_t i = 0; i < 20; ++i) at.set(i, i * 3 % 7);
  std::vector<HostTensor> in{random_tensor(DType::f32, {7, 40}, 13, 9, false), at, random_tensor(DType::f32, {20, 40}, 14, 9, false)};
  CHECK(first_difference(run_compiled(g, in)[0], interpret(g, in)[0], 1e-6, 1e-6) == "");
  at.set(3, int64_t{7});
  in[1] = at;
  CHECK_THROWS_AS(run_compiled(g, in), IndexError);
}

TEST_CASE("routines: elements are added to one number without a tensor of it") {
  for (double number : {0.0, 2.5}) {
    GraphBuilder b;
    Value rows = b.input({DType::i64, {20}, {}}), source = b.input({DType::f32, {20, 40}, {}});
    Value none = b.full({7, 40}, number, DType::f32);
    Graph g = b.finish({b.emit(Op::scatter_add, {none, b.expand(b.reshape(rows, {20, 1}), {20, 40}), source}, along(0))});
    CHECK(testing::scheduled(g).str().find("of f32[7, 40] m2[0][0, 0]") != std::string::npos);
    HostTensor at = zeros(DType::i64, Sizes{20});
    for (int64_t i = 0; i < 20; ++i) at.set(i, i * 3 % 7);
    std::vector<HostTensor> in{at, random_tensor(DType::f32, {20, 40}, 14, 9, false)};
    CHECK(first_difference(run_compiled(g, in)[0], interpret(g, in)[0], 1e-6, 1e-6) == "");
  }
}

TEST_CASE("routines: rows are summed by an index, and rounded once") {
  auto index = [](DType t, int64_t n, int64_t rows) {
    HostTensor at = zeros(t, Sizes{n});
    for (int64_t i = 0; i < n; ++i) at.set(i, i % 5 == 3 ? int64_t{-1} : i * i % rows);
    return at;
  };
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (DType i : {DType::i64, DType::i32})
      for (const Sizes& s : {Sizes{20, 7, 33}, Sizes{300, 50, 1}, Sizes{0, 4, 8}, Sizes{9, 3, 2500}, Sizes{5, 2, 0}}) {
        const Attrs attrs{{Attr::shape, Shape{s[1], s[2]}}};
        for (const Sizes& order : {Sizes{}, Sizes{1, 0}}) {
          if (!order.empty() && s[0] == 0) continue;
          GraphBuilder b;
          Value x = b.input({t, order.empty() ? Shape{s[0], s[2]} : Shape{s[2], s[0]}, {}}), at = b.input({i, {s[0]}, {}});
          Graph g = b.finish({b.emit(Op::sum_rows, {order.empty() ? x : b.permute(x, {1, 0}), at}, attrs)});
          const std::vector in{random_tensor(t, order.empty() ? Sizes{s[0], s[2]} : Sizes{s[2], s[0]}, 3), index(i, s[0], s[1])};
          CHECK(first_difference(run_compiled(g, in)[0], interpret(g, in)[0], 1e-6, 1e-6) == "");
        }
      }
  for (int64_t outside : {7, -2}) {
    HostTensor at = index(DType::i64, 20, 7);
    at.set(4, outside);
    const std::vector in{random_tensor(DType::f32, {20, 40}, 3), at};
    const Graph g = graph_of(Op::sum_rows, in, {{Attr::shape, Shape{7, 40}}});
    CHECK_THROWS_AS(run_compiled(g, in), IndexError);
    CHECK_THROWS(interpret(g, in));
  }
}

TEST_CASE("routines: rows are added to what has another type, and lies otherwise") {
  HostTensor at = zeros(DType::i64, Sizes{40});
  for (int64_t i = 0; i < 40; ++i) at.set(i, i % 5 == 3 ? int64_t{-1} : i * i % 11);
  for (DType t : {DType::f32, DType::bf16, DType::f64})
    for (DType start : {DType::f32, DType::bf16, DType::f16})
      for (int64_t width : {1, 33, 2500}) {
        const std::vector in{random_tensor(start, Sizes{11, width}, 3), at, random_tensor(t, Sizes{40, width}, 4)};
        const Graph g = graph_of(Op::add_rows, in, {});
        CHECK(first_difference(run_compiled(g, in)[0], interpret(g, in)[0], 1e-6, 1e-6) == "");
        GraphBuilder b;
        Value x = b.input({start, {width, 11}, {}}), i = b.input({DType::i64, {40}, {}}), y = b.input({t, {40, width}, {}});
        const Graph turned = b.finish({b.emit(Op::add_rows, {b.permute(x, {1, 0}), i, y}, {})});
        const std::vector other{random_tensor(start, Sizes{width, 11}, 5), at, in[2]};
        CHECK(first_difference(run_compiled(turned, other)[0], interpret(turned, other)[0], 1e-6, 1e-6) == "");
      }
  // In the place of an intermediate, which needs no memory of its own then; not of one that is read again.
  const Targets targets;
  for (bool is_read_again : {false, true}) {
    GraphBuilder b;
    Value x = b.input({DType::f32, {11, 33}, {}}), i = b.input({DType::i64, {40}, {}}), y = b.input({DType::f32, {40, 33}, {}});
    const Value start = b.dot(x, b.input({DType::f32, {33, 33}, {}})), sum = b.emit(Op::add_rows, {start, i, y}, {});
    const Graph g = b.finish({sum, b.reduce(Op::reduce_sum, is_read_again ? start : y, {0})});
    const std::vector in{random_tensor(DType::f32, {11, 33}, 6), at, random_tensor(DType::f32, {40, 33}, 7),
                         random_tensor(DType::f32, {33, 33}, 8)};
    CHECK(first_difference(run_compiled(g, in)[0], interpret(g, in)[0], 1e-5, 1e-5) == "");
    if (!targets.has({})) continue;  // no LLVM
    const Executable e(make_schedule(std::make_shared<const Graph>(g), {}), targets, {}, nullptr);
    CHECK((e.arena_bytes({}) > 0) == is_read_again);
  }
  at.set(4, int64_t{11});
  const std::vector in{random_tensor(DType::f32, {11, 8}, 3), at, random_tensor(DType::f32, {40, 8}, 3)};
  CHECK_THROWS_AS(run_compiled(graph_of(Op::add_rows, in, {}), in), IndexError);
  CHECK_THROWS(interpret(graph_of(Op::add_rows, in, {}), in));
}

TEST_CASE("routines: complex elements are moved, not computed") {
  Graph g = graph_of(Op::scatter, {zeros(DType::c64, Sizes{4}), zeros(DType::i64, Sizes{2}), zeros(DType::c64, Sizes{2})}, along(0));
  CHECK(cpu_target()->routine(operation_of(*g.outputs()[0].node)) != nullptr);
  Graph sum = graph_of(Op::scan_sum, {zeros(DType::c64, Sizes{4})}, along(0));
  CHECK(cpu_target()->routine(operation_of(*sum.outputs()[0].node)) == nullptr);
}

TEST_CASE("routines: symbolic sizes, fused neighbours, results that nobody reads") {
  GraphBuilder b;
  SymInt n = b.symbols().fresh({5, 2, 0, 1});
  Value x = b.input({DType::f32, {3, n}, {}});
  Value y = b.binary(Op::mul, x, x);
  auto top =
      b.emit_all(Op::topk, {y}, {{Attr::dim, int64_t{1}}, {Attr::k, n - 1}, {Attr::descending, int64_t{1}}, {Attr::sorted, int64_t{1}}});
  Value sums = b.emit(Op::scan_sum, {b.unary(Op::neg, top[0])}, along(1));
  Graph g = b.finish({b.unary(Op::exp, sums)});
  auto schedule = testing::scheduled(g);
  CHECK(schedule.routines == 2);
  CHECK(schedule.str().find("into f32[3, s0 - 1] m2[0][s0 - 1, 1], i64[3, s0 - 1] none") != std::string::npos);
  Executable e(std::move(schedule), Targets(), {}, nullptr);
  CHECK(e.stats().routines == 2);
  for (int64_t size : {5, 2, 9}) {
    HostTensor in = random_tensor(DType::f32, {3, size}, 15, 50, false);
    auto want = interpret(g, std::vector{in})[0];
    HostTensor out = zeros(DType::f32, Sizes{3, size - 1});
    Frame frame;
    SerialThreads threads;
    frame.threads = &threads;
    frame.symbols = {size};
    frame.data.assign(e.schedule().buffers.size(), nullptr);
    for (size_t m = 0; m < e.schedule().buffers.size(); ++m)
      if (e.schedule().buffers[m].kind == Buffer::Kind::input) frame.data[m] = in.bytes.data();
    frame.data[static_cast<size_t>(e.schedule().output_buffers[0])] = out.bytes.data();
    e.run(frame);
    CHECK(first_difference(out, want, 1e-5, 1e-6) == "");
  }
}

TEST_CASE("attention and its gradient: the target agrees with the reference") {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  auto filled = [&](DType t, const Sizes& sizes) {
    HostTensor x = zeros(t, sizes);
    for (int64_t i = 0; i < x.numel(); ++i) x.set(i, normal(random));
    return x;
  };
  struct Case {
    int64_t heads, rows, keys, depth, values;
    bool causal, mask;
  };
  // Tiles that are whole and not, several blocks of rows and of keys, one row, nothing to see.
  for (const Case& c : {Case{2, 6, 64, 64, 64, false, false}, Case{3, 7, 5, 3, 3, false, true}, Case{2, 200, 530, 8, 8, true, false},
                        Case{1, 13, 77, 40, 24, true, true}, Case{2, 1, 600, 64, 64, false, false}, Case{2, 2, 33, 32, 80, false, true},
                        Case{1, 1, 1, 1, 1, true, false}, Case{1, 5, 0, 4, 4, false, false}, Case{1, 300, 20, 16, 130, true, true}})
    for (DType t : {DType::f32, DType::bf16}) {
      std::vector<HostTensor> operands{filled(t, {2, c.heads, c.rows, c.depth}), filled(t, {2, c.heads, c.keys, c.depth}),
                                       filled(t, {2, c.heads, c.keys, c.values})};
      if (c.mask) {
        operands.push_back(filled(DType::f32, {2, c.heads, c.rows, c.keys}));
        for (int64_t i = 0; i < operands[3].numel(); ++i)
          if (i % 3 == 0 || i < c.keys) operands[3].set(i, -inf);  // the first row sees nothing
      }
      const Attrs attrs{{Attr::scale, Scalar(0.3)}, {Attr::causal, int64_t{c.causal}}};
      check_target(Op::attention, operands, attrs, {}, t == DType::f32 ? 2e-5 : 2e-2);
      const std::vector<HostTensor> given = interpret(graph_of(Op::attention, operands, attrs), operands);
      operands.insert(operands.begin() + 3, {filled(t, {2, c.heads, c.rows, c.values}), given[0], given[1]});
      check_target(Op::attention_gradient, operands, attrs, {}, t == DType::f32 ? 1e-4 : 4e-2);
    }
}

TEST_CASE("attention: NaN reaches the rows that see it, and no others") {
  HostTensor q = zeros(DType::f32, Sizes{1, 1, 3, 4}), k = q, v = q;
  for (int64_t i = 0; i < 12; ++i) v.set(i, 1.0);
  k.set(4, nan_);  // of key 1
  const Attrs attrs{{Attr::scale, Scalar(1.0)}, {Attr::causal, int64_t{1}}};
  check_target(Op::attention, {q, k, v}, attrs);
  Numbers out = by_hand(Op::attention, {q, k, v}, attrs)[0];
  CHECK(out[0] == 1);
  CHECK(std::isnan(out[4]));
}

TEST_CASE("update replaces a window") {
  const Attrs attrs{{Attr::starts, Shape{1, 2}}};
  HostTensor x = tensor(DType::f32, {3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), source = tensor(DType::f32, {2, 2}, {-1, -2, -3, -4});
  CHECK(by_hand(Op::update, {x, source}, attrs)[0] == Numbers{0, 1, 2, 3, 4, 5, -1, -2, 8, 9, -3, -4});
  for (DType t : kReal) check_target(Op::update, {tensor(t, {3, 4}, numbers(x)), tensor(t, {2, 2}, {1, 0, 2, 1})}, attrs);
  check_target(Op::update, {tensor(DType::f32, {4, 3}, numbers(x)), source}, {{Attr::starts, Shape{0, 2}}}, {1, 0});
}
