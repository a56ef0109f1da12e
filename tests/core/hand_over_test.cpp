// Stages that give their outputs in parts, between which what they were given may change.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "passes/passes.h"
#include "random_graph.h"

using namespace broach;

namespace {

// Runs the parts one after another. What a part was the last to be allowed to read is other elements from then on.
std::vector<HostTensor> run_in_parts(const Module& m, const Parts& parts, const Graph& whole, const std::vector<HostTensor>& inputs) {
  std::vector<HostTensor> slots = inputs, others = broach::testing::random_inputs(whole, 99), out;
  slots.resize(m.slots.size());
  for (size_t k = 0; k < m.stages.size(); ++k) {
    std::vector<HostTensor> taken;
    for (size_t slot : m.stages[k].takes) taken.push_back(slots.at(slot));
    std::vector<HostTensor> given = interpret(*m.stages[k].graph, taken);
    for (size_t i = 0; i < given.size(); ++i) slots.at(m.stages[k].gives[i]) = std::move(given[i]);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (parts.reads[i] == k) slots[i] = others[i];
  }
  for (size_t slot : m.outputs) out.push_back(slots.at(slot));
  return out;
}

}  // namespace

TEST_CASE("hand over: random programs compute the same in parts, whatever is written once it may be") {
  size_t divided = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Graph g = broach::testing::random_graph(seed, {.steps = 25, .contractions = true, .routines = true});
    std::mt19937 random(seed);
    PassContext context;
    for (size_t i = 0; i < g.outputs().size(); ++i) context.parts.gives.push_back(random() % 3);
    for (size_t i = 0; i < g.inputs().size(); ++i) context.parts.reads.push_back(random() % 4);
    Module m(std::make_shared<const Graph>(g));
    auto pass = std::ranges::find(passes(), std::string_view("hand_over"), &Pass::name);
    pass->run(m, context);
    m.verify();
    divided += m.stages.size() > 1;
    INFO("seed ", seed, "\n", m.str());
    std::vector<HostTensor> inputs = broach::testing::random_inputs(g, seed), want = interpret(g, inputs);
    std::vector<HostTensor> have = run_in_parts(m, context.parts, g, inputs);
    REQUIRE(have.size() == want.size());
    for (size_t i = 0; i < want.size(); ++i) CHECK(broach::testing::first_difference(have[i], want[i]) == "");
  }
  CHECK(divided > 50);
}

TEST_CASE("hand over: outputs are divided by their bytes, in the order in which they are computed") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {64}, {}});
  std::vector<Value> out;
  for (int i = 0; i < 6; ++i) out.push_back(x = b.unary(i % 2 ? Op::exp : Op::neg, x));
  std::ranges::reverse(out);
  Graph g = b.finish(std::move(out));
  CHECK(parts_by_readiness(g, 3) == std::vector<size_t>{2, 2, 1, 1, 0, 0});
  CHECK(parts_by_readiness(g, 1) == std::vector<size_t>(6, 0));
}
