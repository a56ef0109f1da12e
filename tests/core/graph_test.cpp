// The graph: builder shorthands, sharing of equal nodes, rewriting, guards, and a verifier that names the broken node.
#include "ir/graph.h"

#include <doctest/doctest.h>

#include <cmath>

#include "random_graph.h"
#include "support/error.h"

using namespace broach;

namespace {

Value f32(GraphBuilder& b, Shape shape) { return b.input({DType::f32, std::move(shape), {}}); }

std::shared_ptr<const ExternCall> call(std::vector<Type> results, bool effect, std::vector<ExternArg> args = {}) {
  auto c = std::make_shared<ExternCall>();
  c->schema = "mine::op";
  c->results = std::move(results);
  c->effect = effect;
  c->args = std::move(args);
  return c;
}

// The verifier's error for a graph of one input f32[2, 3], a permute of it and a sum, after `damage` of the node.
std::string verify_error(uint32_t node, const std::function<void(Node&, const Graph&)>& damage) {
  GraphBuilder b;
  Value x = f32(b, {2, 3});
  Value y = b.permute(x, {1, 0});
  Graph g = b.finish({b.reduce(Op::reduce_sum, y, {0})});
  g.verify();
  damage(const_cast<Node&>(g.nodes()[node]), g);
  try {
    g.verify();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string error_of(Op op, const std::vector<Type>& operands, Attrs attrs) {
  GraphBuilder b;
  std::vector<Value> inputs;
  for (const Type& t : operands) inputs.push_back(b.input(t));
  try {
    b.emit_all(op, inputs, std::move(attrs));
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

using Ints = std::vector<int64_t>;

}  // namespace

TEST_CASE("graph: equal pure nodes are one, effects are not") {
  GraphBuilder b;
  Value x = f32(b, {2}), y = f32(b, {2});
  CHECK(b.binary(Op::add, x, y) == b.binary(Op::add, x, y));
  CHECK(b.binary(Op::add, x, y) != b.binary(Op::add, y, x));
  CHECK(b.binary(Op::add, x, y) != b.binary(Op::sub, x, y));
  CHECK(b.constant(1.0, DType::f32) == b.constant(int64_t{1}, DType::f32));
  CHECK(b.constant(1.0, DType::f32) != b.constant(1.0, DType::f64));
  CHECK(b.constant(0.0, DType::f32) != b.constant(-0.0, DType::f32));
  CHECK(b.constant(std::nan(""), DType::f32) == b.constant(std::nan(""), DType::f32));
  CHECK(b.reduce(Op::reduce_sum, x, {0}) == b.reduce(Op::reduce_sum, x, {0}));
  auto emit = [&](bool effect, ExternArg a) { return b.emit(Op::extern_call, {x}, {{Attr::call, call({x.type()}, effect, {a})}}); };
  CHECK(emit(false, {Scalar(1.0)}) == emit(false, {Scalar(1.0)}));
  CHECK(emit(false, {Scalar(0.0)}) != emit(false, {Scalar(-0.0)}));
  CHECK(emit(false, {Scalar(NAN)}) == emit(false, {Scalar(NAN)}));
  CHECK(emit(false, {SymInt(1)}) != emit(false, {Scalar(int64_t{1})}));
  CHECK(emit(true, {}) != emit(true, {}));
}

TEST_CASE("graph: shorthands leave out what would do nothing") {
  GraphBuilder b;
  Value x = f32(b, {2, 3});
  CHECK(b.cast(x, DType::f32) == x);
  CHECK(b.reshape(x, {2, 3}) == x);
  CHECK(b.reshape(b.reshape(x, {6}), {2, 3}) == x);
  CHECK(b.reshape(b.reshape(x, {6}), {3, 2}).node->inputs[0] == x);
  CHECK(b.permute(x, {0, 1}) == x);
  CHECK(b.permute(b.permute(x, {1, 0}), {1, 0}) == x);
  CHECK(b.expand(x, {2, 3}) == x);
  CHECK(b.expand(x, {4, 2, 3}).shape() == Shape{4, 2, 3});
  CHECK(b.slice(x, {0, 0}, {1, 1}, {2, 3}) == x);
  CHECK(b.slice(x, {0, 0}, {1, 1}, {2, 2}) != x);
  CHECK(b.slice(x, {1, 0}, {-1, 1}, {2, 3}) != x);
  CHECK(b.reduce(Op::reduce_sum, x, {}) == x);
  CHECK(b.reduce(Op::reduce_argmax, x, {}).dtype() == DType::i64);
  CHECK(b.reduce(Op::reduce_sum, x, {1, 0}, true).shape() == Shape{1, 1});
  CHECK(b.reduce(Op::reduce_sum, x, {1, 0}).node->ints(Attr::dims) == Ints{0, 1});
  CHECK_THROWS_WITH_AS(b.reduce(Op::reduce_sum, x, {-1}, true), "reduce_sum: f32[2, 3] has no dimension -1", Error);
  // Three axes, where composing the wrong way round differs.
  Value y = f32(b, {2, 3, 4});
  CHECK(b.permute(b.permute(y, {1, 2, 0}), {1, 2, 0}).node->ints(Attr::dims) == Ints{2, 0, 1});
  CHECK(b.permute(b.permute(y, {1, 2, 0}), {1, 0, 2}).node->ints(Attr::dims) == Ints{2, 1, 0});
}

TEST_CASE("graph: a cast of a constant is folded only where that is exact") {
  GraphBuilder b;
  auto folded = [&](Scalar v, DType from, DType to) {
    Value c = b.cast(b.constant(v, from), to);
    return c.node->op == Op::scalar ? str(c.node->get<Scalar>(Attr::value)) : "no";
  };
  CHECK(folded(0.1, DType::f64, DType::i64) == "0");
  CHECK(folded(int64_t{3}, DType::i64, DType::f64) == "3.0");
  CHECK(folded(int64_t{3}, DType::i64, DType::i32) == "3");
  CHECK(folded(true, DType::b1, DType::i64) == "1");
  CHECK(folded(2.5, DType::f64, DType::b1) == "true");
  CHECK(folded(int64_t{3}, DType::i64, DType::f32) == "3.0");
  CHECK(folded(int64_t{7}, DType::i64, DType::bf16) == "7.0");
  CHECK(folded(int64_t{257}, DType::i64, DType::bf16) == "no");
  CHECK(folded(int64_t{257}, DType::i64, DType::f16) == "257.0");
  CHECK(folded(int64_t{17}, DType::i64, DType::f8_e4m3fn) == "no");
  CHECK(folded(int64_t{(1 << 24) + 1}, DType::i64, DType::f32) == "no");
  CHECK(folded(0.1, DType::f64, DType::f32) == "no");
  CHECK(folded(0.1, DType::f32, DType::f64) == "no");          // f32's 0.1 is another number
  CHECK(folded(int64_t{300}, DType::u8, DType::i64) == "no");  // is 44
  CHECK(folded(3e9, DType::f64, DType::i32) == "no");
  CHECK(folded(-1.0, DType::f64, DType::u8) == "no");
}

TEST_CASE("graph: every shorthand keeps the values that the reference gives") {
  // A constant folded and one that is not fold-able must be worth the same.
  for (DType from : {DType::f32, DType::f64, DType::f16, DType::u8, DType::i8, DType::i32, DType::i64, DType::b1})
    for (DType to : {DType::f32, DType::f64, DType::bf16, DType::u8, DType::i8, DType::i32, DType::i64, DType::b1})
      for (double v : {0.0, 1.0, 0.1, -3.7, 300.0, 127.5, 3e9, -1.0, 1e20}) {
        GraphBuilder b, plain;
        Graph g = b.finish({b.cast(b.constant(v, from), to)});
        Value c = plain.emit(Op::scalar, {}, {{Attr::value, b.constant(v, from).node->get<Scalar>(Attr::value)}, {Attr::dtype, from}});
        Graph h = plain.finish({from == to ? c : plain.emit(Op::cast, {c}, {{Attr::dtype, to}})});
        CHECK(testing::first_difference(interpret(g, {})[0], interpret(h, {})[0]) == "");
      }
}

TEST_CASE("graph: broadcasting") {
  GraphBuilder b;
  Value x = f32(b, {4, 1, 3}), y = f32(b, {2, 1}), one = f32(b, {});
  CHECK(b.binary(Op::add, x, y).shape() == Shape{4, 2, 3});
  CHECK(b.binary(Op::add, one, y).shape() == Shape{2, 1});
  CHECK(b.broadcast({0}, {1}) == Shape{0});
  CHECK(b.where(b.binary(Op::lt, x, x), y, one).shape() == Shape{4, 2, 3});
  CHECK_THROWS_WITH_AS(b.binary(Op::add, x, f32(b, {5, 1, 1})), "shapes do not broadcast: f32[4, 1, 3] and f32[5, 1, 1]", Error);
  CHECK_THROWS_WITH_AS(b.expand(x, {2, 3}), "expand: f32[4, 1, 3] has more dimensions than the result", Error);
  CHECK_THROWS_WITH_AS(b.expand(y, {3, 1}), "expand: f32[2, 1] cannot become f32[3, 1]", Error);
}

TEST_CASE("graph: sizes that a guard makes equal, or 1, broadcast") {
  auto build = [](int64_t hint0, int64_t hint1) {
    GraphBuilder b;
    SymInt s0 = b.symbols().fresh({hint0, 0, 0, 0}), s1 = b.symbols().fresh({hint1, 0, 1, 0});
    Value x = f32(b, {s0}), y = f32(b, {s1});
    return b.finish({b.binary(Op::add, x, y)});
  };
  Graph equal = build(4, 4);
  equal.verify();
  REQUIRE(equal.symbols()->guards().size() == 1);
  CHECK(equal.symbols()->guards()[0].str() == "s0 == s1");
  Graph one = build(4, 1);
  one.verify();
  CHECK(one.outputs()[0].shape() == Shape{SymInt::symbol(0)});
  std::vector<std::string> guards;
  for (const Guard& g : one.symbols()->guards()) guards.push_back(g.str());
  CHECK(guards == std::vector<std::string>{"s0 != s1", "s0 != 1", "s1 == 1"});
  for (const Graph* g : {&equal, &one}) {
    auto in = testing::random_inputs(*g, 1);
    HostTensor sum = interpret(*g, in)[0];
    CHECK(as_double(sum.at(3)) == static_cast<float>(as_double(in[0].at(3)) + as_double(in[1].at(g == &one ? 0 : 3))));
  }
}

TEST_CASE("graph: constants follow their operands to a device") {
  GraphBuilder b;
  Device gpu{DeviceKind::cuda, 0};
  Value x = b.input({DType::f32, {2}, gpu}), c = b.input({DType::b1, {2}, gpu});
  Value one = b.full({2}, 1.0, DType::f32);
  CHECK(b.binary(Op::sub, one, x).type().device == gpu);
  CHECK(b.where(c, one, one).type().device == gpu);
  CHECK(b.emit(Op::cat, {one, x}, {{Attr::dim, int64_t{0}}}).type().device == gpu);
  CHECK(b.unary(Op::neg, one).type().device == Device{});
}

TEST_CASE("graph: asking about symbols answers, or records what was assumed") {
  Symbols s;
  SymInt a = s.fresh({5, 2, 0, 0}), b = s.fresh({3, 0, 0, 1});
  CHECK(s.ask(3, Relation::lt, 4));
  CHECK(s.ask(a, Relation::le, a));
  CHECK(!s.ask(a, Relation::lt, a));
  CHECK(s.ask(a, Relation::ne, 1));  // the minimum is 2
  CHECK(!s.ask(a, Relation::eq, 0));
  CHECK(s.ask(SymInt(1), Relation::lt, a));
  CHECK(!s.ask(a, Relation::lt, 2));
  CHECK(!s.ask(a + b, Relation::le, 1));
  CHECK(s.ask(b, Relation::lt, a + b));
  CHECK(s.guards().empty());
  auto last = [&] { return s.guards().empty() ? "" : s.guards().back().str(); };
  CHECK(!s.ask(a, Relation::eq, b));
  CHECK(last() == "s0 != s1");
  CHECK(!s.ask(a, Relation::lt, b));
  CHECK(last() == "s1 <= s0");
  CHECK(!s.ask(a, Relation::le, b));
  CHECK(last() == "s1 < s0");
  CHECK(s.ask(a, Relation::eq, b + 2));
  CHECK(last() == "s0 == s1 + 2");
  CHECK(s.resolved(b * 3) == a * 3 - 6);
  CHECK(s.ask(a, Relation::lt, b + 3));  // follows from the equation
  CHECK(last() == "s0 == s1 + 2");
  CHECK(!s.ask(a, Relation::ne, 5));
  CHECK(last() == "s0 == 5");
  CHECK(s.ask(b, Relation::lt, a));
  CHECK(last() == "s0 == 5");  // known already: "s1 < s0" is there
  size_t count = s.guards().size();
  CHECK(!s.ask(a, Relation::eq, b));
  CHECK(s.guards().size() == count);
}

TEST_CASE("graph: every guard that is recorded holds for the hints") {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    Symbols s;
    for (int k = 0; k < 3; ++k) {
      int64_t min = random() % 3;
      s.fresh({min + static_cast<int64_t>(random() % 6), min, 0, k});
    }
    auto side = [&] {
      SymInt e(static_cast<int64_t>(random() % 7) - 3);
      for (SymbolId k = 0; k < 3; ++k) e = e + SymInt::symbol(k) * (static_cast<int64_t>(random() % 3) - 1);
      return random() % 4 ? e : floordiv(e, 2);
    };
    auto holds = [&](const SymInt& x, Relation r, const SymInt& y) {
      int64_t p = s.hint(x), q = s.hint(y);
      return r == Relation::eq ? p == q : r == Relation::ne ? p != q : r == Relation::lt ? p < q : p <= q;
    };
    SymInt x = side(), y = side();
    auto r = static_cast<Relation>(random() % 4);
    CHECK(s.ask(x, r, y) == holds(x, r, y));
    for (const Guard& g : s.guards()) CHECK(holds(g.lhs, g.relation, g.rhs));
  }
}

TEST_CASE("graph: a symbol is specialised by a guard") {
  Symbols s;
  SymInt a = s.fresh({5, 2, 0, 0});
  CHECK(s.specialize(7) == 7);
  CHECK(s.guards().empty());
  CHECK(s.specialize(a * 2 + 1) == 11);
  REQUIRE(s.guards().size() == 1);
  CHECK(s.guards()[0].str() == "2*s0 + 1 == 11");
}

TEST_CASE("graph: rewriting drops what is dead before and after") {
  GraphBuilder b;
  b.set_line("f.py:1");
  Value x = f32(b, {2}), unused = f32(b, {2});
  b.unary(Op::exp, unused);
  b.set_line("f.py:2");
  Value product = b.binary(Op::mul, x, b.unary(Op::neg, x));
  auto effect = b.emit_all(Op::extern_call, {b.unary(Op::sin, x)}, {{Attr::call, call({}, true)}});
  CHECK(effect.empty());
  Graph g = b.finish({product, x});
  Graph copy = rewrite(g, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; });
  copy.verify();
  CHECK(copy.nodes().size() == g.nodes().size() - 1);
  CHECK(copy.inputs().size() == 2);
  CHECK(copy.lines()[static_cast<size_t>(copy.outputs()[0].node->line)] == "f.py:2");

  // x * anything becomes x: the negation is then dead too, the effect and its operand stay.
  Graph shorter = rewrite(g, [](GraphBuilder&, const Node& n, std::span<const Value> in) {
    return n.op == Op::mul ? std::optional(std::vector{in[0]}) : std::nullopt;
  });
  shorter.verify();
  CHECK(shorter.str() ==
        "%0 = input(index=0) : f32[2]  # f.py:1\n"
        "%1 = input(index=1) : f32[2]  # f.py:1\n"
        "%2 = sin(%0) : f32[2]  # f.py:2\n"
        "%3 = extern_call(%2, call=\"mine::op\"() effect) : ()  # f.py:2\n"
        "return %0, %0\n");
  CHECK_THROWS_WITH_AS(
      rewrite(g, [](GraphBuilder&, const Node& n,
                    std::span<const Value>) { return n.op == Op::mul ? std::optional(std::vector<Value>{}) : std::nullopt; }),
      "rewrite: 0 values replace the 1 results of %4 (mul)", Error);
}

TEST_CASE("graph: rewriting random graphs changes no result") {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    testing::Options options;
    options.symbolic = seed % 2;
    options.routines = seed % 3 == 0;
    Graph g = testing::random_graph(seed, options);
    Graph copy = rewrite(g, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; });
    copy.verify();
    auto uses = copy.use_counts();
    for (const Node& n : copy.nodes()) CHECK((uses[n.id] > 0 || n.op == Op::input));
    auto in = testing::random_inputs(g, seed);
    auto before = interpret(g, in), after = interpret(copy, in);
    for (size_t i = 0; i < before.size(); ++i) CHECK(testing::first_difference(after[i], before[i]) == "");
  }
}

TEST_CASE("graph: use counts") {
  GraphBuilder b;
  Value x = f32(b, {2}), y = b.binary(Op::add, x, x);
  Graph g = b.finish({y, y, x});
  CHECK(g.use_counts() == std::vector<int>{3, 2});
}

TEST_CASE("graph: the verifier names the broken node") {
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.results[0].shape = {2, 3}; }) ==
        "node %1 (permute): is typed f32[2, 3], its operands give f32[3, 2]");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.results[0].dtype = DType::f64; }) ==
        "node %1 (permute): is typed f64[3, 2], its operands give f32[3, 2]");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.results.clear(); }) == "node %1 (permute): has 0 results, expected 1");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.attrs[Attr::dims] = Ints{0, 0}; }) ==
        "node %1 (permute): permute: dimension 0 is named twice");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.attrs[Attr::dims] = int64_t{1}; }) ==
        "node %1 (permute): attribute dims does not belong here");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.attrs[Attr::dim] = int64_t{1}; }) ==
        "node %1 (permute): attribute dim does not belong here");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.attrs.clear(); }) ==
        "node %1 (permute): permute: attribute dims is missing or of another type");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.inputs.clear(); }) == "node %1 (permute): permute: 0 operands, expected 1");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.inputs[0].index = 1; }) ==
        "node %1 (permute): reads a value that is not before it in the graph");
  CHECK(verify_error(1, [](Node& n, const Graph& g) { n.inputs[0].node = &g.nodes()[2]; }) ==
        "node %1 (permute): reads a value that is not before it in the graph");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.inputs[0].node = nullptr; }) ==
        "node %1 (permute): reads a value that is not before it in the graph");
  CHECK(verify_error(1, [](Node& n, const Graph&) { n.id = 2; }) == "node 2 (permute) is not where its id says");
  CHECK(verify_error(0, [](Node& n, const Graph&) { n.attrs[Attr::index] = int64_t{1}; }) ==
        "node %0 (input): is not input 1 of the graph");
  CHECK(verify_error(0, [](Node& n, const Graph&) { n.results[0].shape = {SymInt::symbol(0), 3}; }) ==
        "node %0 (input): symbol s0 is not one of the graph");
  CHECK(verify_error(2, [](Node& n, const Graph&) { n.attrs[Attr::dims] = Ints{2}; }) ==
        "node %2 (reduce_sum): reduce_sum: f32[3, 2] has no dimension 2");
  GraphBuilder other;
  Value stranger = f32(other, {2});
  GraphBuilder b;
  f32(b, {2});
  CHECK_THROWS_WITH_AS(b.finish({stranger}).verify(), "an output is not a value of the graph", Error);
}

TEST_CASE("graph: operands that do not fit are errors") {
  const Type a{DType::f32, {2, 3}, {}}, other{DType::f32, {3, 2}, {}}, half{DType::f16, {2, 3}, {}}, index{DType::i64, {4}, {}};
  CHECK(error_of(Op::add, {a, other}, {}) == "add: shapes differ: f32[2, 3] and f32[3, 2]");
  CHECK(error_of(Op::add, {a, half}, {}) == "add: element types differ: f32[2, 3] and f16[2, 3]");
  CHECK(error_of(Op::add, {a}, {}) == "add: 1 operands, expected 2");
  CHECK(error_of(Op::where, {a, a, a}, {}) == "where: the condition is f32[2, 3], not b1");
  CHECK(error_of(Op::fma, {a, a, half}, {}) == "fma: element types differ: f32[2, 3] and f16[2, 3]");
  CHECK(error_of(Op::fma, {index, index, index}, {}) == "fma: of i64[4], not of floating numbers");
  CHECK(error_of(Op::cast, {a}, {}) == "cast: attribute dtype is missing or of another type");
  CHECK(error_of(Op::reshape, {a}, {{Attr::shape, Shape{5}}}) == "reshape: f32[2, 3] has not the elements of f32[5]");
  CHECK(error_of(Op::expand, {a}, {{Attr::shape, Shape{4, 3}}}) == "expand: f32[2, 3] cannot become f32[4, 3]");
  CHECK(error_of(Op::permute, {a}, {{Attr::dims, Ints{0, 2}}}) == "permute: f32[2, 3] has no dimension 2");
  CHECK(error_of(Op::permute, {a}, {{Attr::dims, Ints{0}}}) == "permute: 1 dimensions given for f32[2, 3]");
  CHECK(error_of(Op::slice, {a}, {{Attr::shape, Shape{1}}, {Attr::starts, Shape{0}}, {Attr::steps, Ints{1}}})
            .starts_with("slice: the ranks"));
  CHECK(error_of(Op::pad, {a}, {{Attr::low, Shape{1}}, {Attr::high, Shape{1}}, {Attr::value, Scalar(0.0)}}).starts_with("pad: the ranks"));
  CHECK(error_of(Op::cat, {a, other}, {{Attr::dim, int64_t{0}}}) == "cat: f32[3, 2] does not fit f32[2, 3]");
  CHECK(error_of(Op::cat, {a}, {{Attr::dim, int64_t{-1}}}) == "cat: no operand, or no such dimension");
  CHECK(error_of(Op::take, {a, a}, {{Attr::dim, int64_t{0}}}).starts_with("take: bad dimension or index type"));
  CHECK(error_of(Op::take, {a, index}, {{Attr::dim, int64_t{2}}}).starts_with("take: bad dimension or index type"));
  CHECK(error_of(Op::scan_sum, {a}, {{Attr::dim, int64_t{2}}}) == "scan_sum: f32[2, 3] has no dimension 2");
  CHECK(error_of(Op::sort, {a}, {{Attr::dim, int64_t{0}}, {Attr::stable, int64_t{1}}}) ==
        "sort: attribute descending is missing or of another type");
  CHECK(error_of(Op::kth, {a}, {{Attr::dim, int64_t{0}}, {Attr::k, int64_t{1}}}) == "kth: attribute k is missing or of another type");
  CHECK(error_of(Op::scatter, {a, a, a}, {{Attr::dim, int64_t{0}}}) == "scatter: f32[2, 3] at f32[2, 3] does not fit f32[2, 3]");
  CHECK(error_of(Op::scatter_add, {a, Type{DType::i64, {2, 3}, {}}, half}, {{Attr::dim, int64_t{0}}})
            .starts_with("scatter_add: f16[2, 3] at i64[2, 3]"));
  CHECK(error_of(Op::search, {a, other}, {{Attr::right, int64_t{0}}}) == "search: f32[3, 2] in f32[2, 3]");
  CHECK(error_of(Op::dot, {a, a}, {{Attr::batch, int64_t{0}}}).starts_with("dot: f32[2, 3] and f32[2, 3] do not fit"));
  CHECK(error_of(Op::iota, {}, {{Attr::shape, Shape{2}}, {Attr::dim, int64_t{1}}, {Attr::dtype, DType::f32}}) == "iota: no dimension 1");
  CHECK(error_of(Op::scalar, {}, {{Attr::dtype, DType::f32}}) == "scalar: attribute value is missing or of another type");
  const Type x{DType::f32, {1, 4, 5}, {}}, w{DType::f32, {6, 2, 3}, {}}, bias{DType::f32, {5}, {}};
  auto conv = [](int64_t groups) {
    return Attrs{{Attr::stride, Ints{1}},        {Attr::padding, Shape{0}},        {Attr::dilation, Ints{1}},
                 {Attr::transposed, int64_t{0}}, {Attr::output_padding, Shape{0}}, {Attr::groups, groups}};
  };
  CHECK(error_of(Op::conv, {x, w}, conv(2)) == "no error");
  CHECK(error_of(Op::conv, {x, w}, conv(1)) == "conv: f32[1, 4, 5] and f32[6, 2, 3] do not fit with 1 groups");
  CHECK(error_of(Op::conv, {x, w, bias}, conv(2)) == "conv: the bias is f32[5]");
  const Type y{DType::f32, {1, 6, 3}, {}};
  auto to_weight = [](Shape shape) {
    return Attrs{
        {Attr::stride, Ints{1}}, {Attr::padding, Shape{0}}, {Attr::dilation, Ints{1}}, {Attr::groups, int64_t{2}}, {Attr::shape, shape}};
  };
  CHECK(error_of(Op::conv_weight_gradient, {x, y}, to_weight({6, 2, 3})) == "no error");
  CHECK(error_of(Op::conv_weight_gradient, {x, y}, to_weight({6, 4, 3})) ==
        "conv_weight_gradient: f32[1, 4, 5] and f32[1, 6, 3] do not fit with 2 groups");
  CHECK(error_of(Op::conv_weight_gradient, {x, y}, to_weight({6, 2, 2})) ==
        "conv_weight_gradient: f32[1, 6, 3] is no result of f32[1, 4, 5]");
}

TEST_CASE("graph: facts of operations agree with each other") {
  for (size_t i = 0; i <= static_cast<size_t>(Op::extern_call); ++i) {
    const Op op = static_cast<Op>(i);
    INFO(name_of(op));
    CHECK((!is_function(op) || is_costly(op)));
    CHECK((!is_costly(op) || is_elementwise(op)));
    CHECK((!is_activation(op) || kind_of(op) == OpKind::unary));
    CHECK((!moves_only(op) || is_view(op)));
    CHECK((!is_view(op) || carries(op)));
    CHECK((!is_reduce(op) || is_index_reduction(op) != fold_of(op).has_value()));
    CHECK((!writes_elements(op) || kind_of(op) == OpKind::routine));
  }
  CHECK(fold_of(Op::reduce_max) == Op::max);
  CHECK(fold_of(Op::scatter_mul) == Op::mul);
  CHECK(!is_costly(Op::sqrt));
  CHECK(is_function(Op::silu));
}

TEST_CASE("graph: numbers of one element type that another has") {
  CHECK(holds_all(DType::f16, DType::f8_e5m2));
  CHECK(holds_all(DType::bf16, DType::f8_e4m3fn));
  CHECK(!holds_all(DType::bf16, DType::f16));
  CHECK(!holds_all(DType::f8_e5m2, DType::f8_e4m3fn));
  CHECK(holds_all(DType::i16, DType::u8));
  CHECK(!holds_all(DType::i8, DType::u8));
  CHECK(!holds_all(DType::u8, DType::i8));
  CHECK(!holds_all(DType::f64, DType::i32));
  CHECK(str(lowest(DType::i8)) == "-128");
  CHECK(str(highest(DType::i64)) == "9223372036854775807");
  CHECK(str(highest(DType::u8)) == "255");
  CHECK(is_unsigned(DType::b1));
  CHECK(!is_unsigned(DType::i64));
}

TEST_CASE("graph: promotion of element types is PyTorch's") {
  using T = DType;
  struct Row {
    T a, b, want;
  };
  for (auto [a, b, want] : {Row{T::u8, T::i8, T::i16},
                            {T::i32, T::u8, T::i32},
                            {T::b1, T::u8, T::u8},
                            {T::f16, T::bf16, T::f32},
                            {T::i64, T::f16, T::f16},
                            {T::f32, T::f64, T::f64},
                            {T::c64, T::f64, T::c128},
                            {T::c64, T::f32, T::c64},
                            {T::c32, T::f32, T::c64},
                            {T::f16, T::f32, T::f32}}) {
    CHECK(promote(a, b) == want);
    CHECK(promote(b, a) == want);
  }
}
