// Programs whose sizes depend on data, cut into segments.
#include "passes/passes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "support/error.h"

using namespace broach;

namespace {

// x[x > 0] * 2 and what follows, in the form that a capture gives.
const char* kProgram = R"(symbol s0(hint=3, min=2)
symbol s1(hint=2, min=2)
%0 = input(index=0) : f32[8]
%1 = input(index=1) : f32[8]
%2 = exp(%1) : f32[8]
%3 = gt(%0, %2) : b1[8]
%4 = extern_call(%3, call="aten::nonzero"($0) strides [[1, 1]] effect binds [[s0, 0, 0]]) : i64[s0, 1]
%5 = reshape(%4, shape=[s0]) : i64[s0]
%6 = take(%0, %5, dim=0) : f32[s0]
%7 = reduce_sum(%6, dims=[0]) : f32[]
%8 = gt(%6, %6) : b1[s0]
%9 = extern_call(%8, call="aten::nonzero"($0) strides [[1, 1]] effect binds [[s1, 0, 0]]) : i64[s1, 1]
%10 = iota(shape=[s1], dim=0, dtype=i64) : i64[s1]
%11 = reshape(%9, shape=[s1]) : i64[s1]
%12 = add(%10, %11) : i64[s1]
return %7, %12, %2, %4
)";

// Running sums of what one selection gives, of which another gives some: the gradient reads those sums and the second one's positions.
const char* kWithGradient = R"(symbol s0(hint=3, min=2)
symbol s1(hint=2, min=2)
%0 = input(index=0) : f32[8]
%1 = input(index=1) : f32[8]
%2 = gt(%0, %0) : b1[8]
%3 = extern_call(%2, call="aten::nonzero"($0) strides [[1, 1]] effect binds [[s0, 0, 0]]) : i64[s0, 1]
%4 = reshape(%3, shape=[s0]) : i64[s0]
%5 = take(%0, %4, dim=0) : f32[s0]
%6 = exp(%5) : f32[s0]
%7 = tanh(%6) : f32[s0]
%8 = scan_sum(%7, dim=0) : f32[s0]
%9 = gt(%8, %5) : b1[s0]
%10 = extern_call(%9, call="aten::nonzero"($0) strides [[1, 1]] effect binds [[s1, 0, 0]]) : i64[s1, 1]
%11 = reshape(%10, shape=[s1]) : i64[s1]
%12 = take(%8, %11, dim=0) : f32[s1]
%13 = take(%1, %11, dim=0) : f32[s1]
%14 = mul(%13, %12) : f32[s1]
%15 = reduce_sum(%14, dims=[0]) : f32[]
%16 = reshape(%15, shape=[1]) : f32[1]
%17 = expand(%16, shape=[s0]) : f32[s0]
%18 = mul(%17, %8) : f32[s0]
return %12, %18
)";

// Of two inputs and two outputs: the last ones are the tangent and its gradient.
PassContext with_gradient() {
  PassContext out;
  out.joint = Joint{1, {false, true}, std::vector<bool>(2), std::vector<bool>(2), 1.0};
  return out;
}

size_t count(const Graph& g, Op op) {
  size_t n = 0;
  for (const Node& node : g.nodes()) n += node.op == op;
  return n;
}

}  // namespace

TEST_CASE("a graph is cut where sizes become known") {
  Graph g = Graph::parse(kProgram);
  CHECK(Graph::parse(g.str()).str() == g.str());
  Module m(std::make_shared<const Graph>(std::move(g)));
  m.stages = split_data_sizes(m, m.stages[0], {});
  m.verify();
  using Runs = Stage::Runs;
  std::vector<Runs> runs;
  for (const Stage& s : m.stages) runs.push_back(s.runs);
  REQUIRE(runs == std::vector<Runs>{Runs::in_call, Runs::for_sizes, Runs::in_call, Runs::for_sizes, Runs::in_call});
  for (const Stage& s : m.stages) CHECK(count(*s.graph, Op::extern_call) == (s.runs == Runs::for_sizes ? 1 : 0));
  // The sum is done as soon as its elements are there, the positions once they can be counted.
  CHECK(count(*m.stages[2].graph, Op::reduce_sum) == 1);
  CHECK(count(*m.stages[4].graph, Op::iota) == 1);
  CHECK(count(*m.stages[0].graph, Op::iota) == 0);
  // A result of a call that lies as it is wanted is given out as it is.
  REQUIRE(m.outputs.size() == 4);
  CHECK(m.stages[1].gives == std::vector<size_t>{m.outputs[3]});
  CHECK(m.stages[2].takes == std::vector<size_t>{0, m.outputs[3]});
  CHECK(Module::parse(m.str()).str() == m.str());
}

TEST_CASE("what gradients read is saved by the stages that find it") {
  Module m(std::make_shared<const Graph>(Graph::parse(kWithGradient)));
  const PassContext context = with_gradient();
  for (const char* name : {"split_gradients", "split_data_sizes"}) {
    std::ranges::find(passes(), std::string_view(name), &Pass::name)->run(m, context);
    m.verify();
  }
  using Runs = Stage::Runs;
  std::vector<Runs> runs;
  for (const Stage& s : m.stages) runs.push_back(s.runs);
  REQUIRE(runs == std::vector<Runs>{Runs::in_call, Runs::for_sizes, Runs::in_call, Runs::for_sizes, Runs::in_call, Runs::for_gradients});
  INFO(m.str());
  const Stage& later = m.stages.back();
  CHECK(count(*later.graph, Op::extern_call) == 0);
  CHECK(count(*later.graph, Op::scan_sum) == 0);
  // Each once: the sums that the next stage reads too, and the positions as they are counted.
  CHECK(m.stages[2].gives.size() == 2);
  for (size_t stage : {2, 3}) {
    bool taken = false;
    for (size_t slot : m.stages[stage].gives) taken |= std::ranges::find(later.takes, slot) != later.takes.end();
    CHECK(taken);
  }
}

TEST_CASE("gradients find out no sizes") {
  const char* program = R"(symbol s0(hint=3, min=2)
%0 = input(index=0) : f32[8]
%1 = input(index=1) : f32[8]
%2 = exp(%0) : f32[8]
%3 = gt(%1, %2) : b1[8]
%4 = extern_call(%3, call="aten::nonzero"($0) strides [[1, 1]] effect binds [[s0, 0, 0]]) : i64[s0, 1]
%5 = reshape(%4, shape=[s0]) : i64[s0]
%6 = take(%1, %5, dim=0) : f32[s0]
return %2, %6
)";
  Module m(std::make_shared<const Graph>(Graph::parse(program)));
  const PassContext context = with_gradient();
  CHECK_THROWS_AS(static_cast<void>(split_gradients(m, m.stages[0], context)), Unsupported);
}

TEST_CASE("no symbol is replaced by one that is known later") {
  Symbols symbols;
  SymInt given = symbols.fresh({8, 2, 0, 0}), early = symbols.fresh({4, 2}), late = symbols.fresh({8, 2});
  CHECK(symbols.equal(given, early * 2));
  CHECK(symbols.resolved(given) == given);
  CHECK(symbols.equal(late, given));
  CHECK(symbols.resolved(late) == given);
  CHECK(symbols.known_with(early + given) == early.as_symbol());
  CHECK_FALSE(symbols.is_late(given * 3));
}
