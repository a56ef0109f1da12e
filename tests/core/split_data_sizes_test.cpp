// Programs whose sizes depend on data, cut into segments.
#include "passes/passes.h"

#include <doctest/doctest.h>

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
