// Graphs that compute gradients too, cut into what a call computes and what is computed later.
#include "passes/partition.h"

#include <doctest/doctest.h>

#include <random>

#include "random_graph.h"
#include "support/error.h"
#include "support/min_cut.h"

using namespace broach;

namespace {

// tanh(x * w), and the gradient of x for the tangent that is its last input.
const char* kProgram = R"(%0 = input(index=0) : f32[64]
%1 = input(index=1) : f32[64]
%2 = input(index=2) : f32[64]
%3 = mul(%0, %1) : f32[64]
%4 = tanh(%3) : f32[64]
%5 = mul(%4, %4) : f32[64]
%6 = neg(%5) : f32[64]
%7 = mul(%6, %2) : f32[64]
%8 = add(%7, %2) : f32[64]
%9 = mul(%8, %1) : f32[64]
return %4, %9
)";

Joint joint_of(const Graph& g, size_t tangents) {
  Joint j;
  j.tangents = tangents;
  j.input_kept.resize(g.inputs().size());
  std::vector<bool> late(g.nodes().size());
  for (const Node& n : g.nodes()) {
    late[n.id] = n.op == Op::input && static_cast<size_t>(n.integer(Attr::index)) + tangents >= g.inputs().size();
    for (const Value& v : n.inputs) late[n.id] = late[n.id] || late[v.node->id];
  }
  for (const Value& v : g.outputs()) j.is_gradient.push_back(late[v.node->id]);
  j.output_kept.resize(g.outputs().size());
  return j;
}

std::vector<HostTensor> run_in_two(const Graph& whole, const Joint& joint, const Partition& p, const std::vector<HostTensor>& inputs) {
  p.forward->verify();
  p.backward->verify();
  std::vector<HostTensor> given(inputs.begin(), inputs.end() - static_cast<std::ptrdiff_t>(joint.tangents));
  std::vector<HostTensor> first = interpret(*p.forward, given), later;
  for (int i : p.inputs) later.push_back(inputs[static_cast<size_t>(i)]);
  for (int s : p.saved) later.push_back(first[static_cast<size_t>(s)]);
  later.insert(later.end(), inputs.end() - static_cast<std::ptrdiff_t>(joint.tangents), inputs.end());
  std::vector<HostTensor> gradients = interpret(*p.backward, later), out;
  size_t a = 0, b = 0;
  for (size_t i = 0; i < whole.outputs().size(); ++i) out.push_back(joint.is_gradient[i] ? gradients.at(b++) : first.at(a++));
  return out;
}

void check_same(const Graph& g, const Joint& joint, uint32_t seed) {
  std::vector<HostTensor> inputs = broach::testing::random_inputs(g, seed), want = interpret(g, inputs);
  std::vector<HostTensor> have = run_in_two(g, joint, partition(g, joint), inputs);
  REQUIRE(have.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) CHECK(broach::testing::first_difference(have[i], want[i]) == "");
}

}  // namespace

TEST_CASE("min cut: the cheapest edges that part the source from the sink") {
  FlowNetwork net(6);
  for (auto [from, to, capacity] : {std::array<int64_t, 3>{0, 1, 16},
                                    {0, 2, 13},
                                    {1, 2, 10},
                                    {2, 1, 4},
                                    {1, 3, 12},
                                    {3, 2, 9},
                                    {2, 4, 14},
                                    {4, 3, 7},
                                    {3, 5, 20},
                                    {4, 5, 4}})
    net.connect(static_cast<size_t>(from), static_cast<size_t>(to), capacity);
  CHECK(net.source_side(0, 5) == std::vector<bool>{true, true, true, false, true, false});
  FlowNetwork open(2);
  open.connect(0, 1, FlowNetwork::kUnlimited);
  CHECK(open.source_side(0, 1) == std::vector<bool>{true, true});
}

TEST_CASE("partition: what is held in any case is not saved again") {
  Graph g = Graph::parse(kProgram);
  Joint joint = joint_of(g, 1);
  joint.input_kept[1] = true;
  joint.output_kept[0] = true;
  Partition p = partition(g, joint);
  CHECK(p.inputs == std::vector<int>{1});
  CHECK(p.saved == std::vector<int>{0});  // the result
  CHECK(p.forward->outputs().size() == 1);
  check_same(g, joint, 1);
}

TEST_CASE("partition: a result that may be written is saved apart from it") {
  Graph g = Graph::parse(kProgram);
  Joint joint = joint_of(g, 1);
  Partition p = partition(g, joint);
  CHECK(p.inputs.empty());
  for (int s : p.saved) CHECK(s > 0);
  check_same(g, joint, 2);
}

TEST_CASE("partition: pointwise work is repeated where its operands are held") {
  Graph g = Graph::parse(kProgram);
  Joint joint = joint_of(g, 1);
  joint.input_kept.assign(3, true);
  Partition p = partition(g, joint);
  CHECK(p.inputs == std::vector<int>{0, 1});
  CHECK(p.saved.empty());
  check_same(g, joint, 3);
}

TEST_CASE("partition: what is computed of many elements of one value is computed once") {
  for (int64_t taps : {4, 9})
    for (bool of_sum : {false, true}) {
      GraphBuilder b;
      Value x = b.input({DType::f32, {64}, {}}), y = b.input({DType::f32, {64}, {}}), tangent = b.input({DType::f32, {50}, {}}), most;
      Value tapped = of_sum ? b.binary(Op::add, x, y) : x;
      for (int64_t i = 0; i < taps; ++i) {
        Value tap = b.slice(tapped, {i}, {1}, {50});
        most = most ? b.binary(Op::max, most, tap) : tap;
      }
      Graph g = b.finish({b.unary(Op::exp, most), b.binary(Op::mul, tangent, most)});
      Joint joint = joint_of(g, 1);
      joint.input_kept[0] = joint.input_kept[1] = true;
      CHECK(partition(g, joint).saved.size() == (taps < 9 ? 0 : 1));
      check_same(g, joint, 4);
    }
}

TEST_CASE("partition: what is computed of some elements and read in several places is computed once") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {64}, {}}), tangent = b.input({DType::f32, {50}, {}}), most, sum = tangent;
  for (int64_t i = 0; i < 5; ++i) {
    Value tap = b.slice(x, {i}, {1}, {60});
    most = most ? b.binary(Op::max, most, tap) : tap;
  }
  for (int64_t i : {0, 10}) sum = b.binary(Op::mul, sum, b.slice(most, {i}, {1}, {50}));
  Graph g = b.finish({b.unary(Op::exp, most), sum});
  Joint joint = joint_of(g, 1);
  joint.input_kept[0] = true;
  Partition p = partition(g, joint);
  REQUIRE(p.saved.size() == 1);
  CHECK(p.inputs.empty());
  check_same(g, joint, 5);
}

TEST_CASE("partition: what a product reads later is not written anew for it") {
  GraphBuilder b;
  Value x = b.input({DType::f32, {8, 4}, {}}), tangent = b.input({DType::f32, {8, 2}, {}});
  Value y = b.unary(Op::relu, x), transposed = b.permute(y, {1, 0});
  Graph g = b.finish({b.unary(Op::exp, y), b.dot(transposed, tangent)});
  Joint joint = joint_of(g, 1);
  joint.input_kept[0] = true;
  Partition p = partition(g, joint);
  CHECK(p.inputs.empty());
  CHECK(p.saved.size() == 1);
  check_same(g, joint, 6);
}

// Layers that add to what they are given: each sum is read behind the next product, and lies in memory.
TEST_CASE("partition: sums along a chain of layers are saved, not what they are made of") {
  Graph g = Graph::parse(R"(%0 = input(index=0) : f32[4, 4]
%1 = input(index=1) : f32[4, 4]
%2 = input(index=2) : f32[4, 4]
%3 = input(index=3) : f32[4, 4]
%4 = dot(%0, %1, batch=0) : f32[4, 4]
%5 = add(%0, %4) : f32[4, 4]
%6 = dot(%5, %2, batch=0) : f32[4, 4]
%7 = add(%5, %6) : f32[4, 4]
%8 = dot(%7, %2, batch=0) : f32[4, 4]
%9 = sin(%5) : f32[4, 4]
%10 = sin(%7) : f32[4, 4]
%11 = mul(%3, %9) : f32[4, 4]
%12 = mul(%11, %10) : f32[4, 4]
return %8, %12
)");
  Joint joint = joint_of(g, 1);
  Partition p = partition(g, joint);
  CHECK(p.saved.size() == 2);
  for (const Node& n : p.backward->nodes()) CHECK(n.op != Op::add);
  check_same(g, joint, 5);
}

TEST_CASE("partition: what is computed only to be saved is computed behind what it reads") {
  // Positions of maxima, of which the gradient wants half the bytes.
  const Graph g = Graph::parse(R"(%0 = input(index=0) : f32[4, 64]
%1 = input(index=1) : f32[4]
%2 = reduce_max(%0, dims=[1]) : f32[4]
%3 = reduce_argmax(%0, dims=[1]) : i64[4]
%4 = exp(%2) : f32[4]
%5 = reduce_sum(%4, dims=[0]) : f32[]
%6 = cast(%3, dtype=i32) : i32[4]
%7 = scalar(value=0.0, dtype=f32) : f32[]
%8 = reshape(%7, shape=[1, 1]) : f32[1, 1]
%9 = expand(%8, shape=[4, 64]) : f32[4, 64]
%10 = reshape(%6, shape=[4, 1]) : i32[4, 1]
%11 = reshape(%1, shape=[4, 1]) : f32[4, 1]
%12 = scatter_add(%9, %10, %11, dim=1) : f32[4, 64]
return %2, %5, %12
)");
  const Joint joint = joint_of(g, 1);
  const Partition p = partition(g, joint);
  size_t cast = 0, last = 0;
  for (const Node& n : p.forward->nodes()) {
    if (n.op == Op::cast) cast = n.id;
    if (n.op == Op::reduce_sum) last = n.id;
  }
  CHECK(cast > 0);
  CHECK(cast < last);
  check_same(g, joint, 3);
}

TEST_CASE("partition: a program without anything that gradients need saves nothing") {
  Graph g = Graph::parse(
      "%0 = input(index=0) : f32[4]\n%1 = input(index=1) : f32[4]\n%2 = exp(%0) : f32[4]\n%3 = neg(%1) : f32[4]\nreturn %2, %3\n");
  Partition p = partition(g, joint_of(g, 1));
  CHECK(p.saved.empty());
  CHECK(p.inputs.empty());
  CHECK(p.forward->outputs().size() == 1);
}

TEST_CASE("partition: only what is asked for is computed, with zeros for tangents that are not given") {
  Graph g = Graph::parse(
      "%0 = input(index=0) : f32[4]\n%1 = input(index=1) : f32[4]\n%2 = input(index=2) : f32[4]\n"
      "%3 = mul(%0, %1) : f32[4]\n%4 = add(%3, %2) : f32[4]\n%5 = exp(%2) : f32[4]\nreturn %4, %5\n");
  Graph part = part_of(g, {true, false}, {true, false}, {{1}, {1}, {1}}, false);
  part.verify();
  CHECK(part.inputs().size() == 3);
  CHECK(part.outputs().size() == 1);
  CHECK(part.str().find("exp(") == std::string::npos);
  auto inputs = broach::testing::random_inputs(g, 4), zeroed = inputs;
  zeroed[2] = zeros(DType::f32, std::vector<int64_t>{4});
  CHECK(broach::testing::first_difference(interpret(part, inputs)[0], interpret(g, zeroed)[0]) == "");
}

TEST_CASE("partition: what depends on no tangent that is given is zero beside infinite values") {
  Graph g = Graph::parse(
      "%0 = input(index=0) : f32[4]\n%1 = input(index=1) : f32[4]\n%2 = input(index=2) : f32[4]\n"
      "%3 = mul(%1, %0) : f32[4]\n%4 = exp(%0) : f32[4]\n%5 = mul(%2, %4) : f32[4]\n%6 = add(%3, %5) : f32[4]\nreturn %6, %3\n");
  for (bool is_linear : {true, false}) {
    Graph part = part_of(g, {true, true}, {false, true}, {{1}, {1}, {1}}, is_linear);
    part.verify();
    const auto products = std::ranges::count_if(part.nodes(), [](const Node& n) { return n.op == Op::mul; });
    CHECK(products == (is_linear ? 1 : 2));
  }
}

TEST_CASE("partition: a zero that no kernel reads lies on the device of the tangent that it stands for") {
  const std::string type = " : f32[2, 2]@cuda:0\n";
  const Graph g = Graph::parse("%0 = input(index=0)" + type + "%1 = input(index=1)" + type + "%2 = dot(%0, %1, batch=0)" + type +
                               "%3 = neg(%1)" + type + "return %2, %3\n");
  const Graph part = part_of(g, {true, true}, {true, false}, {{2, 1}, {2, 1}}, true);
  part.verify();
  for (const Node& n : part.nodes())
    if (n.op == Op::dot) CHECK(n.inputs[1].type() == g.inputs()[1].type());
  for (const Value& v : part.outputs()) CHECK(v.type() == g.inputs()[1].type());
}

TEST_CASE("partition: random programs compute the same in two as in one") {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Graph g = broach::testing::random_graph(seed, {.steps = 25, .contractions = true, .routines = true});
    if (g.inputs().size() < 2) continue;
    Joint joint = joint_of(g, 1);
    std::mt19937 random(seed);  // what is kept moves the cut
    for (size_t i = 0; i + 1 < joint.input_kept.size(); ++i) joint.input_kept[i] = random() % 2;
    for (size_t i = 0; i < joint.is_gradient.size(); ++i) joint.output_kept[i] = !joint.is_gradient[i] && random() % 2;
    INFO("seed ", seed);
    check_same(g, joint, seed);
  }
}

TEST_CASE("partition: the smaller the budget, the less is saved, and the same is computed") {
  // Three layers, tanh(h w), and the gradients of the first operand.
  std::string text = "%0 = input(index=0) : f32[8, 8]\n%1 = input(index=1) : f32[8, 8]\n%2 = input(index=2) : f32[8, 8]\n";
  int next = 3;
  std::vector<int> made;
  for (int h = 0, layer = 0; layer < 3; ++layer) {
    text += "%" + std::to_string(next) + " = dot(%" + std::to_string(h) + ", %1, batch=0) : f32[8, 8]\n";
    text += "%" + std::to_string(next + 1) + " = tanh(%" + std::to_string(next) + ") : f32[8, 8]\n";
    made.push_back(h = next + 1);
    next += 2;
  }
  int gradient = 2;
  for (int layer = 3; layer-- > 0;) {
    auto line = [&](const std::string& what) { text += "%" + std::to_string(next++) + " = " + what + " : f32[8, 8]\n"; };
    const std::string h = "%" + std::to_string(made[static_cast<size_t>(layer)]);
    line("mul(" + h + ", " + h + ")");
    line("neg(%" + std::to_string(next - 1) + ")");
    line("mul(%" + std::to_string(next - 1) + ", %" + std::to_string(gradient) + ")");
    line("add(%" + std::to_string(next - 1) + ", %" + std::to_string(gradient) + ")");
    line("permute(%1, dims=[1, 0])");
    line("dot(%" + std::to_string(next - 2) + ", %" + std::to_string(next - 1) + ", batch=0)");
    gradient = next - 1;
  }
  text += "return %" + std::to_string(made.back()) + ", %" + std::to_string(gradient) + "\n";
  Graph g = Graph::parse(text);
  Joint joint = joint_of(g, 1);
  joint.input_kept = {true, true, false};
  const int64_t all = partition(g, joint).saved_bytes;
  CHECK(all == 3 * 8 * 8 * 4);
  int64_t before = all;
  for (double budget : {0.9, 0.67, 0.5, 0.34, 0.1, 0.0}) {
    joint.memory_budget = budget;
    Partition p = partition(g, joint);
    CHECK(static_cast<double>(p.saved_bytes) <= budget * static_cast<double>(all));
    CHECK(p.saved_bytes <= before);
    before = p.saved_bytes;
    check_same(g, joint, 5);
  }
  CHECK(before == 0);
}

TEST_CASE("partition: the extremes and sums of a product that is computed again are computed again") {
  const Graph g = Graph::parse(R"(%0 = input(index=0) : f32[8, 8]
%1 = input(index=1) : f32[8, 8]
%2 = input(index=2) : f32[8, 8]
%3 = dot(%0, %1, batch=0) : f32[8, 8]
%4 = reduce_max(%3, dims=[1]) : f32[8]
%5 = reshape(%4, shape=[8, 1]) : f32[8, 1]
%6 = expand(%5, shape=[8, 8]) : f32[8, 8]
%7 = sub(%3, %6) : f32[8, 8]
%8 = exp(%7) : f32[8, 8]
%9 = reduce_sum(%8, dims=[1]) : f32[8]
%10 = reshape(%9, shape=[8, 1]) : f32[8, 1]
%11 = expand(%10, shape=[8, 8]) : f32[8, 8]
%12 = div(%8, %11) : f32[8, 8]
%13 = mul(%12, %2) : f32[8, 8]
return %12, %13
)");
  Joint joint = joint_of(g, 1);
  joint.input_kept = {true, true, false};
  CHECK(partition(g, joint).saved_bytes == 8 * 8 * 4);
  joint.memory_budget = 0.5;  // enough for the two of a row
  const Partition p = partition(g, joint);
  CHECK(p.saved_bytes == 0);
  CHECK(std::ranges::count(p.backward->nodes(), Op::dot, &Node::op) == 1);
  check_same(g, joint, 3);
}

TEST_CASE("partition: a large operand of a later product is written anew where the target says so") {
  // gelu(x w) v, and the gradients of v and of what goes into the gelu.
  const Graph g = Graph::parse(R"(%0 = input(index=0) : f32[16, 16]
%1 = input(index=1) : f32[16, 16]
%2 = input(index=2) : f32[16, 16]
%3 = input(index=3) : f32[16, 16]
%4 = dot(%0, %1, batch=0) : f32[16, 16]
%5 = gelu_erf(%4) : f32[16, 16]
%6 = dot(%5, %2, batch=0) : f32[16, 16]
%7 = permute(%5, dims=[1, 0]) : f32[16, 16]
%8 = dot(%7, %3, batch=0) : f32[16, 16]
%9 = mul(%4, %3) : f32[16, 16]
return %6, %8, %9
)");
  Joint joint = joint_of(g, 1);
  joint.input_kept = {true, true, true, false};
  CHECK(partition(g, joint).saved_bytes == 2 * 16 * 16 * 4);
  for (auto [elements, work, saved] : {std::tuple{256, 4.0, 1}, {257, 4.0, 2}, {256, 4.1, 2}}) {
    joint.repeated_operands = {elements, work};
    CHECK(partition(g, joint).saved_bytes == saved * 16 * 16 * 4);
    check_same(g, joint, 4);
  }
}
