// Each pass against text files, one for each function: graphs before and after it, and graphs in which it must do nothing. What it gives must
// also compute the same, by the reference interpreter.
#include "passes/passes.h"

#include <doctest/doctest.h>

#include <sstream>

#include "random_graph.h"
#include "support/error.h"
#include "text_cases.h"

using namespace broach;

namespace {

// A pass that runs again has the file of its first time.
std::filesystem::path file_of(const Pass& pass) {
  std::string name = pass.name;
  return std::filesystem::path(BROACH_TESTS) / "core" / "passes" / cat(name.substr(0, name.find("_again")), ".txt");
}

std::vector<size_t> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<size_t> out;
  for (size_t n; in >> n;) out.push_back(n);
  return out;
}

std::vector<bool> bits(const std::string& positions, size_t size) {
  std::vector<bool> out(size);
  for (size_t i : numbers(positions)) out.at(i) = true;
  return out;
}

PassContext context_of(const testing::TextCase& c, const Graph& g) {
  PassContext context{bits(c.constant, g.inputs().size())};
  context.parts.gives = numbers(c.parts);
  context.parts.reads = c.reads.empty() ? std::vector<size_t>(g.inputs().size(), ~size_t{0}) : numbers(c.reads);
  const size_t outputs = g.outputs().size();
  if (!c.decides.empty()) context.decides = bits(c.decides, outputs);
  if (c.gradients.empty()) return context;
  context.joint = Joint{1, bits(c.gradients, outputs), std::vector<bool>(g.inputs().size()), std::vector<bool>(outputs), 1.0};
  return context;
}

bool has_calls(const Module& m) {
  auto is_call = [](const Node& n) { return n.op == Op::extern_call; };
  return std::ranges::any_of(m.stages, [&](const Stage& s) { return std::ranges::any_of(s.graph->nodes(), is_call); });
}

std::vector<HostTensor> run(const Module& m, const std::vector<HostTensor>& inputs) {
  std::vector<HostTensor> slots = inputs, out;
  slots.resize(m.slots.size());
  for (const Stage& s : m.stages) {
    std::vector<HostTensor> taken;
    for (size_t slot : s.takes) taken.push_back(slots.at(slot));
    std::vector<HostTensor> given = interpret(*s.graph, taken);
    for (size_t i = 0; i < given.size(); ++i) slots.at(s.gives[i]) = std::move(given[i]);
  }
  for (size_t slot : m.outputs) out.push_back(slots.at(slot));
  return out;
}

void check_same_results(const Graph& before, const Module& after) {
  std::vector<HostTensor> inputs = broach::testing::random_inputs(before, 7);
  auto want = interpret(before, inputs), have = run(after, inputs);
  REQUIRE(want.size() == have.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const bool is_low = is_low_precision(before.outputs()[i].dtype());  // of which a pass may leave roundings out
    CHECK(broach::testing::first_difference(have[i], want[i], is_low ? 2e-2 : 1e-4, is_low ? 1e-2 : 1e-5) == "");
  }
}

void check_pass(const Pass& pass) {
  std::vector<testing::TextCase> cases = testing::read_cases(file_of(pass));
  bool changes = false, does_nothing = false;
  for (testing::TextCase& c : cases) {
    INFO(std::string(pass.name), ": ", c.title);
    auto before = std::make_shared<const Graph>(Graph::parse(c.before));
    Module m(before);
    CHECK(before->str() == c.before);  // as it is printed
    pass.run(m, context_of(c, *before));
    m.verify();
    if (testing::records()) c.after = m.str();
    CHECK(m.str() == c.after);
    CHECK(Module::parse(m.str()).str() == m.str());
    if (!has_calls(m)) check_same_results(*before, m);
    (m.str() == c.before ? does_nothing : changes) = true;
  }
  if (testing::records()) testing::write_cases(file_of(pass), cases);
  INFO(std::string(pass.name), " has a case that it changes, and one in which it must do nothing");
  CHECK(changes);
  CHECK(does_nothing);
}

}  // namespace

TEST_CASE("fold_scales: a target that scales weights once leaves what is added in fp32, and weights that change") {
  const Graph g = Graph::parse(R"(%0 = input(index=0) : bf16[1, 2, 2, 2]
%1 = input(index=1) : bf16[2, 2, 1, 1]
%2 = input(index=2) : f32[1, 2, 1, 1]
%3 = input(index=3) : f32[1, 2, 1, 1]
%4 = conv(%0, %1, stride=[1, 1], padding=[0, 0], dilation=[1, 1], transposed=0, output_padding=[0, 0], groups=1) : bf16[1, 2, 2, 2]
%5 = cast(%4, dtype=f32) : f32[1, 2, 2, 2]
%6 = expand(%2, shape=[1, 2, 2, 2]) : f32[1, 2, 2, 2]
%7 = mul(%5, %6) : f32[1, 2, 2, 2]
%8 = expand(%3, shape=[1, 2, 2, 2]) : f32[1, 2, 2, 2]
%9 = add(%7, %8) : f32[1, 2, 2, 2]
%10 = cast(%9, dtype=bf16) : bf16[1, 2, 2, 2]
return %10
)");
  Capabilities c = all_capabilities();
  c.contractions.at({Op::conv, DType::bf16}).scales_weights = ScalesWeights::once;
  auto folded = [&](std::vector<bool> constant) { return fold_scales(g, {.constant = std::move(constant), .capabilities = &c}); };
  CHECK(folded({false, false, true, true}).str() == g.str());
  const Graph once = folded({false, true, true, false});
  check_same_results(g, Module(std::make_shared<const Graph>(once)));
  auto count = [&](Op op) { return std::ranges::count_if(once.nodes(), [&](const Node& n) { return n.op == op; }); };
  CHECK(count(Op::add) == 1);
  for (const Node& n : once.nodes())
    if (n.op == Op::mul) CHECK(n.results[0].shape[2] == SymInt(1));  // the weight's
}

TEST_CASE("passes: every row of the list does what its file says") {
  for (const Pass& pass : passes()) check_pass(pass);
}

TEST_CASE("biases: a target without them behind dilated convolutions is given none there") {
  const auto graph_of = [](const char* dilation, const char* size) {
    const std::string y = cat("bf16[1, 2, ", size, "]");
    return Graph::parse(
        cat("%0 = input(index=0) : bf16[1, 2, 9]\n%1 = input(index=1) : bf16[2, 2, 2]\n%2 = input(index=2) : bf16[1, 2, 1]\n",
            "%3 = conv(%0, %1, stride=[1], padding=[0], dilation=[", dilation, "], transposed=0, output_padding=[0], groups=1) : ", y,
            "\n%4 = expand(%2, shape=[1, 2, ", size, "]) : ", y, "\n%5 = add(%3, %4) : ", y, "\nreturn %5\n"));
  };
  Capabilities c = all_capabilities();
  auto takes = [&](const char* dilation, const char* size) {
    const Graph g = match_epilogues(graph_of(dilation, size), {.capabilities = &c});
    return std::ranges::any_of(g.placements(), [](const Placement& p) { return p.within >= 0; });
  };
  CHECK(takes("1", "8"));
  CHECK(takes("3", "6"));
  c.contractions.at({Op::conv, DType::bf16}).bias_of_dilated = false;
  CHECK(takes("1", "8"));
  CHECK(!takes("3", "6"));
}
