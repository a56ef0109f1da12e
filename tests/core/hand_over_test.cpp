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

Module divided(const Graph& g, const PassContext& context) {
  Module m(std::make_shared<const Graph>(g));
  auto pass = std::ranges::find(passes(), std::string_view("hand_over"), &Pass::name);
  pass->run(m, context);
  m.verify();
  return m;
}

void check_parts(const Module& m, const Parts& parts, const Graph& whole, uint32_t seed) {
  std::vector<HostTensor> inputs = broach::testing::random_inputs(whole, seed), want = interpret(whole, inputs);
  std::vector<HostTensor> have = run_in_parts(m, parts, whole, inputs);
  REQUIRE(have.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) CHECK(broach::testing::first_difference(have[i], want[i]) == "");
}

}  // namespace

TEST_CASE("hand over: random programs compute the same in parts, whatever is written once it may be") {
  size_t in_several = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Graph g = broach::testing::random_graph(seed, {.steps = 25, .contractions = true, .routines = true});
    std::mt19937 random(seed);
    PassContext context;
    for (size_t i = 0; i < g.outputs().size(); ++i) context.parts.gives.push_back(random() % 3);
    for (size_t i = 0; i < g.inputs().size(); ++i) context.parts.reads.push_back(random() % 4);
    const Module m = divided(g, context);
    in_several += m.stages.size() > 1;
    INFO("seed ", seed, "\n", m.str());
    check_parts(m, context.parts, g, seed);
  }
  CHECK(in_several > 50);
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

TEST_CASE("hand over: without somebody between the parts operations stay in their order, and what the parts read last is known before") {
  size_t in_several = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Graph g = broach::testing::random_graph(seed, {.steps = 25, .contractions = true, .routines = true});
    PassContext context;
    context.parts.gives = parts_by_readiness(g, 4);
    const Module m = divided(g, context);
    in_several += m.stages.size() > 1;
    INFO("seed ", seed, "\n", m.str());
    const std::vector<size_t> readers = last_readers(g, context.parts);
    for (size_t k = 0; k < m.stages.size(); ++k) {
      const std::vector<int> uses = m.stages[k].graph->use_counts();
      for (size_t i = 0; i < m.stages[k].takes.size(); ++i) {
        const size_t slot = m.stages[k].takes[i];
        if (slot < m.inputs && uses[m.stages[k].graph->inputs()[i].node->id] > 0) CHECK(readers[slot] >= k);
      }
    }
    Parts all_read{context.parts.gives, std::vector<size_t>(g.inputs().size(), m.stages.size())};
    check_parts(m, all_read, g, seed);
  }
  CHECK(in_several > 50);
}

TEST_CASE("hand over: what is saved is let go part by part, the more of it there is") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {1 << 24}, {}}), y = b.input({DType::f32, {1 << 24}, {}});
  std::vector<Value> out;
  for (int i = 0; i < 7; ++i) out.push_back(x = b.unary(Op::exp, x));
  out.push_back(b.binary(Op::mul, x, y));
  Module m(std::make_shared<const Graph>(b.finish(std::move(out))));
  CHECK(parts_for_memory(m).gives.empty());
  m.stages[0].runs = Stage::Runs::for_gradients;
  CHECK(parts_for_memory(m).gives.empty());
  CHECK(parts_for_memory(m, 2).gives == std::vector<size_t>{0, 0, 0, 0, 1, 1, 1, 1});
  m.saved_bytes = int64_t{17} << 20;
  CHECK(parts_for_memory(m).gives == std::vector<size_t>{0, 0, 0, 0, 1, 1, 1, 1});
  m.saved_bytes = int64_t{1} << 30;
  CHECK(parts_for_memory(m).gives == std::vector<size_t>{0, 0, 1, 1, 2, 3, 3, 4});
  m.saved_bytes = int64_t{1} << 40;  // beside which the gradients are small
  CHECK(parts_for_memory(m).gives.empty());
  const Parts parts = parts_for_memory(m, 8);
  CHECK(parts.gives == std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(last_readers(*m.stages[0].graph, parts) == std::vector<size_t>{4, 7});  // four exponentials are computed anew for the fifth
}
