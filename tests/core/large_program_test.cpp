// Programs of many operations: what a schedule makes of them grows with them, and no faster.
#include <doctest/doctest.h>

#include <random>

#include <algorithm>
#include <cmath>
#include <set>

#include "passes/passes.h"
#include "random_graph.h"
#include "run_compiled.h"
#include "runtime/memory.h"
#include "support/recently_used.h"
#include "trace/pieces.h"

namespace broach {

using testing::run_compiled;

namespace {

Schedule schedule_of(const Graph& source) { return testing::scheduled(source); }

struct Kernels {
  std::set<std::string> texts;
  size_t longest = 0, most_stores = 0;
};

Kernels kernels_of(const Schedule& s) {
  Kernels out;
  for (const Step& step : s.steps)
    if (auto* k = std::get_if<KernelStep>(&step.work)) {
      out.texts.insert(k->kernel->str());
      out.longest = std::max(out.longest, k->kernel->exprs.size());
      out.most_stores = std::max(out.most_stores, k->kernel->stores.size());
    }
  return out;
}

void check_results(const Graph& g) {
  auto inputs = testing::random_inputs(g, 3);
  auto expected = interpret(g, inputs), actual = run_compiled(g, inputs);
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string difference = testing::first_difference(actual[i], expected[i], 1e-5, 1e-5);
    CHECK_MESSAGE(difference.empty(), difference);
  }
}

}  // namespace

TEST_CASE("rows that are taken one by one are one kernel") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {SymInt(50), SymInt(20)}});
  std::vector<Value> sums;
  for (int64_t i = 0; i < 50; ++i)
    sums.push_back(b.reduce(Op::reduce_sum, b.slice(x, {SymInt(i), SymInt(i % 3)}, {1, 1}, {SymInt(1), SymInt(17)}), {0, 1}));
  Graph g = b.finish(sums);
  const Schedule s = schedule_of(g);
  CHECK(s.kernels == 50);
  CHECK(kernels_of(s).texts.size() == 1);
  check_results(g);
}

TEST_CASE("reads of one buffer at several distances keep them") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {SymInt(40)}});
  std::vector<Value> out;
  auto window = [&](int64_t at) { return b.slice(x, {SymInt(at)}, {1}, {SymInt(9)}); };
  for (int64_t i = 1; i < 30; ++i) out.push_back(b.binary(Op::sub, b.binary(Op::add, window(i - 1), window(i + 1)), window(i)));
  Graph g = b.finish(out);
  CHECK(kernels_of(schedule_of(g)).texts.size() == 1);
  check_results(g);
}

TEST_CASE("kernels that differ in numbers are one") {
  for (DType t : {DType::f32, DType::f64}) {
    const std::vector<double> numbers{0.1, -0.0, 3, 1e-40, INFINITY, NAN, 1e300, -7.25, 1.0 / 3};
    GraphBuilder b;
    Value x = b.input({t, {SymInt(21)}});
    std::vector<Value> out;
    for (double n : numbers) out.push_back(b.binary(Op::add, b.binary(Op::mul, x, b.constant(n, t)), b.constant(2.5, t)));
    Graph g = b.finish(out);
    const Schedule s = schedule_of(g);
    CHECK(kernels_of(s).texts.size() == 1);
    CHECK(std::get<KernelStep>(s.steps.at(0).work).kernel->parameters == 1);
    auto inputs = testing::random_inputs(g, 5);
    auto actual = run_compiled(g, inputs);
    for (size_t i = 0; i < numbers.size(); ++i) {  // alone it has the number in its code
      GraphBuilder one;
      Value y = one.input({t, {SymInt(21)}});
      Graph alone = one.finish({one.binary(Op::add, one.binary(Op::mul, y, one.constant(numbers[i], t)), one.constant(2.5, t))});
      CHECK(run_compiled(alone, inputs)[0].bytes == actual[i].bytes);
    }
  }
}

TEST_CASE("few kernels that differ in numbers keep them") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {SymInt(21)}});
  std::vector<Value> out;
  for (int i = 0; i < 3; ++i) out.push_back(b.binary(Op::mul, x, b.constant(0.5 + i, DType::f32)));
  CHECK(kernels_of(schedule_of(b.finish(out))).texts.size() == 3);
}

TEST_CASE("a long chain is cut where its rounds begin") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {SymInt(16)}}), y = x;
  for (int i = 0; i < 1000; ++i) y = b.binary(Op::sub, b.binary(Op::mul, b.unary(Op::tanh, y), b.constant(1.5, DType::f32)), x);
  Graph g = b.finish({y});
  const Schedule s = schedule_of(g);
  const Kernels k = kernels_of(s);
  CHECK(k.longest < 600);
  CHECK(s.kernels > 3000 / 600);
  CHECK(k.texts.size() <= 3);
  check_results(g);
}

TEST_CASE("a sum of many inputs is cut") {
  GraphBuilder b;
  std::vector<Value> inputs;
  for (int i = 0; i < 1000; ++i) inputs.push_back(b.input({DType::f32, {SymInt(8)}}));
  Value y = inputs[0];
  for (int i = 1; i < 1000; ++i) y = b.binary(Op::add, y, inputs[static_cast<size_t>(i)]);
  Graph g = b.finish({y});
  const Kernels k = kernels_of(schedule_of(g));
  CHECK(k.longest < 600);
  CHECK(k.texts.size() <= 3);
  check_results(g);
}

TEST_CASE("values that everything uses do not join everything") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {SymInt(8)}});
  std::vector<Value> all{x};
  for (size_t i = 0; i < 300; ++i) all.push_back(b.binary(Op::add, b.unary(Op::exp, all.back()), all[i / 2]));
  for (Value& v : all) v = b.unary(Op::sin, v);
  Graph g = b.finish(all);
  CHECK(kernels_of(schedule_of(g)).most_stores <= 32);
}

TEST_CASE("a plan of very many pieces shares memory") {
  std::vector<Lifetime> chain, together;
  for (int i = 0; i < 3000; ++i) {
    chain.push_back({100 + i % 5, i, i + 1});
    together.push_back({1 + i % 700, i % 40, 40 + i % 40});
  }
  CHECK(plan_memory(chain).bytes <= 4 * 128);
  for (const auto* lifetimes : {&chain, &together}) {
    const MemoryPlan plan = plan_memory(*lifetimes);
    for (size_t i = 0; i < lifetimes->size(); ++i)
      for (size_t k = 0; k < i; ++k) {
        const Lifetime &a = (*lifetimes)[i], &c = (*lifetimes)[k];
        const bool at_once = a.first <= c.last && c.first <= a.last;
        const bool apart = plan.offsets[i] + a.bytes <= plan.offsets[k] || plan.offsets[k] + c.bytes <= plan.offsets[i];
        if (at_once && !apart) FAIL("pieces ", i, " and ", k, " overlap");
      }
  }
}

TEST_CASE("a plan puts pieces where lent memory is not in use any more, and nowhere else") {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
    std::vector<Lifetime> lifetimes;
    for (int i = 0; i < 60; ++i) {
      const int first = static_cast<int>(below(100));
      lifetimes.push_back({below(700), first, first + static_cast<int>(below(20))});
    }
    LentMemory lent{64 * 40, {}};
    for (int64_t at = 0; at < lent.bytes; at += 64 * (1 + below(6)))
      lent.uses.push_back({at, 64 * (1 + below(4)), static_cast<int>(below(120))});
    const MemoryPlan plan = plan_memory(lifetimes, lent);
    CHECK(std::ranges::count(plan.is_lent, true) > 0);
    CHECK(plan.bytes < plan_memory(lifetimes).bytes);
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      const Lifetime& a = lifetimes[i];
      const int64_t begin = plan.offsets[i], end = begin + a.bytes;
      CHECK(begin % 64 == 0);
      CHECK(end <= (plan.is_lent[i] ? lent.bytes : plan.bytes));
      for (const LentMemory::Use& u : lent.uses)
        if (plan.is_lent[i] && a.first <= u.last) CHECK((end <= u.offset || u.offset + u.bytes <= begin));
      for (size_t k = 0; k < i; ++k) {
        const Lifetime& c = lifetimes[k];
        if (plan.is_lent[i] != plan.is_lent[k] || a.first > c.last || c.first > a.last) continue;
        CHECK((end <= plan.offsets[k] || plan.offsets[k] + c.bytes <= begin));
      }
    }
  }
}

TEST_CASE("a chain of kernels works in one place, but for what is read again") {
  const Targets targets;
  enum class Given { chain, sum };
  auto pieces = [&](bool reads_again, Given given) {
    GraphBuilder b;
    const Value x = b.input({DType::f32, {SymInt(100), SymInt(64)}}), first = b.unary(Op::sin, x);
    Value y = first;
    for (int i = 0; i < 6; ++i) y = b.unary(Op::sin, y);
    const Value last = b.unary(Op::exp, reads_again ? b.binary(Op::add, y, first) : y);
    const Graph g = b.finish({given == Given::chain ? last : b.reduce(Op::reduce_sum, last, {0, 1}, false)});
    ScheduleOptions options;
    options.fuse = false;
    const int64_t bytes = Executable(make_schedule(std::make_shared<const Graph>(g), options), targets, {}, nullptr).arena_bytes({});
    return bytes / (100 * 64 * 4);
  };
  if (!targets.has({})) return;  // no LLVM
  CHECK(pieces(false, Given::sum) == 1);
  CHECK(pieces(true, Given::sum) == 2);
  CHECK(pieces(false, Given::chain) == 0);  // the result's
  CHECK(pieces(true, Given::chain) == 1);
}

TEST_CASE("a plan lets a piece take the place of one that ends where it begins, and nobody else's") {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
    std::vector<Lifetime> lifetimes;
    std::vector<bool> has_heir;
    for (int i = 0; i < 60; ++i) {
      const int first = static_cast<int>(below(100));
      Lifetime me{1 + below(700), first, first + 1 + static_cast<int>(below(20))};
      for (size_t j = 0; j < lifetimes.size() && i % 2 == 1 && me.over < 0; ++j) {
        if (has_heir[j]) continue;
        me = {lifetimes[j].bytes, lifetimes[j].last, lifetimes[j].last + 1 + static_cast<int>(below(20)), static_cast<int>(j)};
        has_heir[j] = true;
      }
      lifetimes.push_back(me), has_heir.push_back(false);
    }
    LentMemory lent{64 * 40, {}};
    for (int64_t at = 0; at < lent.bytes; at += 64 * 8) lent.uses.push_back({at, 64 * 8, static_cast<int>(below(120))});
    const bool has_heirs = seed % 2 == 0;
    for (size_t i = 0; has_heirs && i < lent.uses.size(); ++i) {
      LentMemory::Use& u = lent.uses[i];
      u.heir = static_cast<int>(lifetimes.size());
      lifetimes.push_back({64 * 8 - below(64), u.last, u.last + 3});
    }
    const MemoryPlan plan = plan_memory(lifetimes, lent);
    size_t inherited = 0;
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      const Lifetime& a = lifetimes[i];
      const int64_t begin = plan.offsets[i], end = begin + a.bytes;
      CHECK(end <= (plan.is_lent[i] ? lent.bytes : plan.bytes));
      for (const LentMemory::Use& u : lent.uses) {
        const bool may = u.heir == static_cast<int>(i) && u.last == a.first && begin == u.offset;
        inherited += plan.is_lent[i] && may;
        if (plan.is_lent[i] && a.first <= u.last && !may) CHECK((end <= u.offset || u.offset + u.bytes <= begin));
      }
      for (size_t k = 0; k < lifetimes.size(); ++k) {
        const Lifetime& c = lifetimes[k];
        const bool is_place = a.over == static_cast<int>(k);
        if (is_place) CHECK((begin == plan.offsets[k] && plan.is_lent[i] == plan.is_lent[k]));
        if (k == i || is_place || c.over == static_cast<int>(i) || plan.is_lent[i] != plan.is_lent[k] || a.first > c.last ||
            c.first > a.last)
          continue;
        CHECK((end <= plan.offsets[k] || plan.offsets[k] + c.bytes <= begin));
      }
    }
    CHECK((inherited > 0) == has_heirs);
  }
}

TEST_CASE("concatenations of many operands, and of concatenations, are one call") {
  for (int64_t n : {16, 17, 100}) {
    GraphBuilder b;
    Value x = b.input({DType::f32, {SymInt(n), SymInt(3)}});
    auto row = [&](int64_t i) { return b.slice(x, {SymInt(i), SymInt(0)}, {1, 1}, {SymInt(1), SymInt(3)}); };
    Value y = row(0);
    for (int64_t i = 1; i < n; ++i) y = b.emit(Op::cat, {y, row(n - i)}, {{Attr::dim, int64_t{0}}});
    const Graph g = join_many(b.finish({y}), {});
    const auto calls = std::count_if(g.nodes().begin(), g.nodes().end(), [](const Node& m) { return m.op == Op::extern_call; });
    CHECK(calls == (n > 16));
    if (n > 16) CHECK(g.outputs()[0].node->inputs.size() == static_cast<size_t>(n));
    g.verify();
  }
}

TEST_CASE("a concatenation that others read is not taken apart") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {SymInt(1), SymInt(3)}}), y = x;
  for (int i = 1; i < 12; ++i) y = b.emit(Op::cat, {y, b.binary(Op::mul, x, b.constant(0.5 * i, DType::f32))}, {{Attr::dim, int64_t{0}}});
  Value half = y;
  for (int i = 1; i < 12; ++i) y = b.emit(Op::cat, {y, b.binary(Op::mul, x, b.constant(9.5 * i, DType::f32))}, {{Attr::dim, int64_t{0}}});
  const Graph g = join_many(b.finish({y, b.reduce(Op::reduce_sum, half, {0})}), {});
  CHECK(std::none_of(g.nodes().begin(), g.nodes().end(), [](const Node& m) { return m.op == Op::extern_call; }));
}

TEST_CASE("pieces keep what was written last") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {SymInt(10), SymInt(2)}}), y = b.input({DType::f32, {SymInt(3), SymInt(2)}});
  Pieces pieces(x, 0);
  pieces.replace(2, y);
  pieces.replace(4, y);  // over the end of the first
  pieces.replace(9, b.slice(y, {SymInt(0), SymInt(0)}, {1, 1}, {SymInt(1), SymInt(2)}));
  CHECK(pieces.window(b, 2, 2).has_value());
  CHECK(pieces.window(b, 4, 3) == std::optional(y));
  CHECK(!pieces.window(b, 3, 2));
  Graph g = b.finish({pieces.joined(b)});
  auto inputs = testing::random_inputs(g, 3);
  auto at = [](const HostTensor& t, size_t row) {
    return std::vector(t.bytes.begin() + static_cast<int64_t>(8 * row), t.bytes.begin() + static_cast<int64_t>(8 * row + 8));
  };
  const HostTensor out = interpret(g, inputs)[0];
  const std::vector<std::pair<int, size_t>> from{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 0}, {1, 1}, {1, 2}, {0, 7}, {0, 8}, {1, 0}};
  for (size_t row = 0; row < from.size(); ++row) CHECK(at(out, row) == at(inputs[static_cast<size_t>(from[row].first)], from[row].second));
}

TEST_CASE("what was not used for longest makes way") {
  RecentlyUsed<int, int> table(3);
  for (int i = 0; i < 3; ++i) table.insert(i, 10 * i);
  CHECK(*table.find(0) == 0);
  table.insert(3, 30);
  CHECK(table.size() == 3);
  CHECK(table.find(1) == nullptr);
  CHECK(*table.find(0) == 0);
  CHECK(table.insert(3, 99) == 30);
}

TEST_CASE("plans are kept for a bounded number of sizes") {
  GraphBuilder b;
  SymInt n = b.symbols().fresh({5, 2, 0, 0});
  Value x = b.input({DType::f32, {n, SymInt(8)}});
  Value y = b.reduce(Op::reduce_sum, b.unary(Op::exp, x), {0});
  Value z = b.emit(Op::scan_sum, {b.binary(Op::mul, x, b.expand(y, x.shape()))}, {{Attr::dim, int64_t{0}}});
  Graph g = b.finish({b.unary(Op::sin, z)});
  Executable executable(schedule_of(g), Targets(), {}, nullptr);
  const SerialThreads threads;
  std::vector<float> in(8 * 2000, 1), out(8 * 2000);
  for (int64_t size = 2; size < 1000; ++size) {
    Frame frame;
    frame.threads = &threads;
    frame.symbols = {size};
    const Schedule& s = executable.schedule();
    frame.data.assign(s.buffers.size(), nullptr);
    for (size_t i = 0; i < s.buffers.size(); ++i) {
      if (s.buffers[i].kind == Buffer::Kind::input) frame.data[i] = in.data();
      if (s.buffers[i].kind == Buffer::Kind::output) frame.data[i] = out.data();
    }
    executable.run(frame);
  }
  CHECK(executable.remembered_plans() > 0);
  CHECK(executable.remembered_plans() <= Executable::kMostSizes);
}

}  // namespace broach
