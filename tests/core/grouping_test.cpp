// The decisions that lead to a schedule, each by itself: epilogues, what fits a kernel, writes into inputs, and the order.
#include <doctest/doctest.h>

#include "passes/passes.h"
#include "random_graph.h"
#include "run_compiled.h"
#include "schedule/decisions.h"
#include "support/error.h"

using namespace broach;

namespace {

Graph product_and_activation() {
  return Graph::parse(R"(%0 = input(index=0) : f32[4, 8]
%1 = input(index=1) : f32[8, 6]
%2 = input(index=2) : f32[6]
%3 = dot(%0, %1, batch=0) : f32[4, 6]
%4 = reshape(%2, shape=[1, 6]) : f32[1, 6]
%5 = expand(%4, shape=[4, 6]) : f32[4, 6]
%6 = add(%3, %5) : f32[4, 6]
%7 = relu(%6) : f32[4, 6]
%8 = silu(%7) : f32[4, 6]
return %8
)");
}

// What is computed behind the one contraction.
std::string epilogue_of(const Graph& g, const Capabilities& capabilities, bool strict) {
  const Epilogues e = epilogues_of(match_epilogues(g, {.constant = {}, .strict = strict, .capabilities = &capabilities}));
  const Contraction& c = e.contractions.begin()->second;
  std::string out = c.bias ? "bias" : "";
  for (const auto& [op, v] : c.epilogue) out += cat(out.empty() ? "" : " ", name_of(op));
  return out;
}

// One kernel that stores this value, and what of the values below it does not fit.
struct Grown {
  Fit fit;
  std::vector<uint32_t> left;
};
Grown grow(const Graph& g, uint32_t root, const Storage& storage) {
  Grown out{Fit(storage), {}};
  CHECK(out.fit.add_root(g.nodes()[root]));
  for (size_t i = root; i-- > 0;)
    if (const Node& n = g.nodes()[i]; is_fusible(n, storage) && !out.fit.add(n)) out.left.push_back(n.id);
  return out;
}

Storage nothing_stored(const Graph& g) {
  Storage s{std::vector<bool>(g.nodes().size()), std::vector<bool>(g.nodes().size()), {}};
  for (const Node& n : g.nodes())
    s.windows.push_back(n.op == Op::input ? std::optional(MemoryWindow{&n, 0, contiguous_strides(n.results[0].shape)}) : std::nullopt);
  return s;
}

// Runs a program whose outputs are written into inputs, and gives what is in these then.
std::vector<std::vector<double>> written(const std::string& text, std::vector<std::vector<double>> values, int most_kernels,
                                         const ScheduleOptions& options = {}) {
  const Graph graph = Graph::parse(text);
  std::vector<HostTensor> memory;
  for (size_t i = 0; i < values.size(); ++i) {
    memory.push_back({graph.inputs()[i].type(), std::vector<std::byte>(values[i].size() * 4)});
    for (size_t j = 0; j < values[i].size(); ++j) memory[i].set(static_cast<int64_t>(j), Scalar(values[i][j]));
  }
  Executable executable(testing::scheduled(graph, options), Targets(), {}, nullptr);
  CHECK(executable.schedule().kernels <= most_kernels);
  Frame frame;
  SerialThreads threads;
  frame.threads = &threads;
  for (const Buffer& b : executable.schedule().buffers)
    frame.data.push_back(b.kind == Buffer::Kind::input ? memory[static_cast<size_t>(b.index)].bytes.data() : nullptr);
  executable.run(frame);
  for (size_t i = 0; i < values.size(); ++i)
    for (size_t j = 0; j < values[i].size(); ++j) values[i][j] = as_double(memory[i].at(static_cast<int64_t>(j)));
  return values;
}

}  // namespace

TEST_CASE("epilogues: what the target has, and no more") {
  const Graph g = product_and_activation();
  Capabilities c = all_capabilities();
  CHECK(epilogue_of(g, c, false) == "bias relu silu");
  CHECK(epilogue_of(g, c, true) == "bias relu silu");
  c.contractions.at({Op::dot, DType::f32}).exact_activations.erase(Op::relu);  // makes 0 of NaN
  CHECK(epilogue_of(g, c, true) == "bias");
  c.contractions.at({Op::dot, DType::f32}).most_epilogues = 1;
  CHECK(epilogue_of(g, c, false) == "bias relu");
  c.contractions.clear();
  CHECK(epilogue_of(g, c, false).empty());
}

TEST_CASE("epilogues: behind a convolution a library may have a sum and then an activation only, and only behind a bias") {
  auto behind = [](const std::string& operations, bool transposed = false) {
    const Graph g = Graph::parse(cat(R"(%0 = input(index=0) : bf16[2, 8, 6, 6]
%1 = input(index=1) : bf16[8, 8, 3, 3]
%2 = input(index=2) : bf16[1, 8, 1, 1]
%3 = input(index=3) : bf16[2, 8, 6, 6]
%4 = expand(%2, shape=[2, 8, 6, 6]) : bf16[2, 8, 6, 6]
%5 = conv(%0, %1, stride=[1, 1], padding=[1, 1], dilation=[1, 1], transposed=)",
                                     transposed, ", output_padding=[0, 0], groups=1) : bf16[2, 8, 6, 6]\n", operations));
    return epilogue_of(g, cuda_target()->capabilities(), false);
  };
  const std::string bias = "%6 = add(%5, %4) : bf16[2, 8, 6, 6]\n";
  CHECK(behind(bias + "return %6\n") == "bias");
  CHECK(behind(bias + "%7 = relu(%6) : bf16[2, 8, 6, 6]\nreturn %7\n") == "bias relu");
  CHECK(behind(bias + "%7 = add(%3, %6) : bf16[2, 8, 6, 6]\nreturn %7\n") == "bias");
  const std::string sum = bias + "%7 = add(%6, %3) : bf16[2, 8, 6, 6]\n", relu = bias + "%7 = relu(%6) : bf16[2, 8, 6, 6]\n";
  CHECK(behind(sum + "%8 = relu(%7) : bf16[2, 8, 6, 6]\nreturn %8\n") == "bias add relu");
  CHECK(behind(sum + "%8 = add(%7, %0) : bf16[2, 8, 6, 6]\nreturn %8\n") == "bias");
  CHECK(behind(relu + "%8 = add(%7, %3) : bf16[2, 8, 6, 6]\nreturn %8\n") == "bias relu");
  CHECK(behind(relu + "%8 = add(%7, %4) : bf16[2, 8, 6, 6]\nreturn %8\n") == "bias relu");
  CHECK(behind("%6 = relu(%5) : bf16[2, 8, 6, 6]\nreturn %6\n").empty());
  CHECK(behind(bias + "%7 = relu(%6) : bf16[2, 8, 6, 6]\nreturn %7\n", true).empty());
}

TEST_CASE("fit: a reduction over the axes that stay does not") {
  const Graph g = Graph::parse(R"(%0 = input(index=0) : f32[4, 8]
%1 = reduce_sum(%0, dims=[0]) : f32[8]
%2 = reshape(%1, shape=[1, 8]) : f32[1, 8]
%3 = expand(%2, shape=[4, 8]) : f32[4, 8]
%4 = reduce_sum(%0, dims=[1]) : f32[4]
%5 = reshape(%4, shape=[4, 1]) : f32[4, 1]
%6 = expand(%5, shape=[4, 8]) : f32[4, 8]
%7 = add(%3, %6) : f32[4, 8]
return %7
)");
  const Storage storage = nothing_stored(g);
  CHECK(grow(g, 7, storage).left == std::vector<uint32_t>{1});
  CHECK(grow(g, 6, storage).left.empty());
}

// The statistics of rows that a kernel normalises are stored by it, and nothing is where it wants but some of what is to be stored.
TEST_CASE("groups: what is the same for a row is stored by the kernel that reads the row") {
  const std::string norm = R"(%0 = input(index=0) : f32[6, 8]
%1 = reduce_sum(%0, dims=[1]) : f32[6]
%2 = reshape(%1, shape=[6, 1]) : f32[6, 1]
%3 = exp(%2) : f32[6, 1]
%4 = expand(%3, shape=[6, 8]) : f32[6, 8]
%5 = mul(%0, %4) : f32[6, 8]
)";
  auto check_kernels = [](const std::string& text, int kernels) {
    const Graph g = Graph::parse(text);
    CHECK(testing::scheduled(g).kernels == kernels);
    for (const char* target : {"cpu", "reference"}) {
      const auto inputs = testing::random_inputs(g, 1);
      const auto want = interpret(g, inputs), have = testing::run_compiled(g, inputs, {}, SerialThreads(), 0, target);
      for (size_t i = 0; i < want.size(); ++i) CHECK(testing::first_difference(have[i], want[i], 2e-5, 2e-5) == "");
    }
  };
  check_kernels(norm + "return %5, %3\n", 1);
  check_kernels(norm + "return %5, %1\n", 1);
  check_kernels(norm + R"(%6 = slice(%3, starts=[4, 0], steps=[1, 1], shape=[1, 1]) : f32[1, 1]
%7 = neg(%6) : f32[1, 1]
return %7, %3
)",
                2);
  check_kernels(R"(%0 = input(index=0) : f32[2, 2]
%1 = reduce_sum(%0, dims=[0]) : f32[2]
%2 = slice(%1, starts=[1], steps=[1], shape=[1]) : f32[1]
%3 = exp(%2) : f32[1]
return %3, %1
)",
                2);
}

TEST_CASE("fit: an axis is cut where a reduction depends on a part of it") {
  const Graph g = Graph::parse(R"(%0 = input(index=0) : f32[8, 5]
%1 = reshape(%0, shape=[2, 4, 5]) : f32[2, 4, 5]
%2 = reduce_sum(%1, dims=[1, 2]) : f32[2]
%3 = reshape(%2, shape=[2, 1]) : f32[2, 1]
%4 = expand(%3, shape=[2, 4]) : f32[2, 4]
%5 = reshape(%4, shape=[8, 1]) : f32[8, 1]
%6 = expand(%5, shape=[8, 5]) : f32[8, 5]
%7 = div(%0, %6) : f32[8, 5]
return %7
)");
  const Storage storage = nothing_stored(g);
  const Grown k = grow(g, 7, storage);
  CHECK(k.left.empty());
  CHECK(k.fit.space().axes().size() == 3);
  CHECK(k.fit.space().splits().size() == 1);
}

TEST_CASE("fit: nothing is reduced under a condition") {
  const Graph g = Graph::parse(R"(%0 = input(index=0) : f32[4, 8]
%1 = reduce_sum(%0, dims=[1]) : f32[4]
%2 = pad(%1, low=[1], high=[0], value=0.0) : f32[5]
return %2
)");
  CHECK(grow(g, 2, nothing_stored(g)).left == std::vector<uint32_t>{1});
}

TEST_CASE("writes: inputs that are written from each other's old elements, or from others of their own") {
  const std::string swap = R"(%0 = input(index=0) : f32[3]
%1 = input(index=1) : f32[3]
%2 = neg(%1) : f32[3]
%3 = neg(%0) : f32[3]
return %2 into 0, %3 into 1
)";
  CHECK(written(swap, {{1, 2, 3}, {4, 5, 6}}, 4) == std::vector<std::vector<double>>{{-4, -5, -6}, {-1, -2, -3}});
  const std::string turn = R"(%0 = input(index=0) : f32[2, 2]
%1 = permute(%0, dims=[1, 0]) : f32[2, 2]
%2 = neg(%1) : f32[2, 2]
return %2 into 0
)";
  CHECK(written(turn, {{1, 2, 3, 4}}, 2) == std::vector<std::vector<double>>{{-1, -3, -2, -4}});
  const std::string same = R"(%0 = input(index=0) : f32[3]
%1 = neg(%0) : f32[3]
return %1 into 0
)";
  CHECK(written(same, {{1, 2, 3}}, 1) == std::vector<std::vector<double>>{{-1, -2, -3}});
}

TEST_CASE("writes: kernels that are joined read what they read apart") {
  // The sums are of old elements and of new ones.
  const std::string sums = R"(%0 = input(index=0) : f32[2, 2]
%1 = input(index=1) : f32[2]
%2 = input(index=2) : f32[2]
%3 = reduce_sum(%0, dims=[1]) : f32[2]
%4 = exp2(%0) : f32[2, 2]
%5 = reduce_prod(%4, dims=[0]) : f32[2]
return %3 into 1, %4 into 0, %5 into 2
)";
  for (int64_t points : {0, 1 << 18})
    CHECK(written(sums, {{1, 2, 3, 4}, {0, 0}, {0, 0}}, 4, {.launch_points = points}) ==
          std::vector<std::vector<double>>{{2, 4, 8, 16}, {3, 7}, {16, 64}});
}

TEST_CASE("writes: a call that fails leaves its inputs as they were") {
  // A read that fails beside the write, behind it, in the kernel that writes, and in an update.
  const char* programs[] = {R"(%0 = input(index=0) : f32[3]
%1 = input(index=1) : i64[3]
%2 = neg(%0) : f32[3]
%3 = take(%0, %1, dim=0) : f32[3]
return %3, %2 into 0
)",
                            R"(%0 = input(index=0) : f32[3]
%1 = input(index=1) : i64[3]
%2 = slice(%0, starts=[1], steps=[1], shape=[1]) : f32[1]
%3 = update(%0, %2, starts=[0]) : f32[3]
%4 = take(%3, %1, dim=0) : f32[3]
return %4, %3 into 0
)",
                            R"(%0 = input(index=0) : f32[3]
%1 = input(index=1) : i64[3]
%2 = take(%0, %1, dim=0) : f32[3]
%3 = neg(%2) : f32[3]
return %3 into 0
)",
                            R"(%0 = input(index=0) : f32[3]
%1 = input(index=1) : i64[3]
%2 = scatter_add(%0, %1, %0, dim=0) : f32[3]
%3 = exp(%0) : f32[3]
return %3, %2 into 0
)"};
  for (const char* text : programs)
    for (const char* name : {"cpu", "reference"}) {
      INFO(std::string(name), "\n", std::string(text));
      if (name == std::string("cpu") && !cpu_target()) continue;
      const Targets targets(name);
      Schedule schedule = testing::scheduled(Graph::parse(text));
      if (targets.host_runs_on() != Device{}) schedule = offload(std::move(schedule), targets.host_runs_on());
      Executable executable(std::move(schedule), targets, {}, nullptr);
      float x[3] = {1, 2, 3}, out[3];
      int64_t index[3] = {0, 1, 7};
      Frame frame;
      SerialThreads threads;
      frame.threads = &threads;
      for (const Buffer& b : executable.schedule().buffers)
        frame.data.push_back(b.kind == Buffer::Kind::output  ? static_cast<void*>(out)
                             : b.kind != Buffer::Kind::input ? nullptr
                             : b.index == 0                  ? static_cast<void*>(x)
                                                             : index);
      CHECK_THROWS_AS(executable.run(frame), IndexError);
      CHECK((x[0] == 1 && x[1] == 2 && x[2] == 3));
      index[2] = 2;
      executable.run(frame);
      CHECK(x[0] != 1);
    }
}

TEST_CASE("grouping: functions of a row that each row of a matrix meets are computed once, those of a row's own number within the row") {
  const std::string matrix = "%0 = input(index=0) : f32[128, 256]\n";
  const std::string rest = " : f32[128, 256]\n%5 = mul(%0, %4) : f32[128, 256]\n%6 = reduce_sum(%5, dims=[1]) : f32[128]\nreturn %6\n";
  auto kernels = [&](const std::string& function, const std::string& size, const std::string& shape) {
    return testing::scheduled(Graph::parse(matrix + "%1 = input(index=1) : f32[" + size + "]\n%2 = " + function + "(%1) : f32[" + size +
                                           "]\n%3 = reshape(%2, shape=" + shape + ") : f32" + shape +
                                           "\n%4 = expand(%3, shape=[128, 256])" + rest))
        .kernels;
  };
  CHECK(kernels("silu", "256", "[1, 256]") == 2);
  CHECK(kernels("neg", "256", "[1, 256]") == 1);
  CHECK(kernels("rsqrt", "128", "[128, 1]") == 1);
}

TEST_CASE("grouping: what a kernel would compute many times over is stored, each part of a value on its own is not") {
  // f(x, y) seen from `ways` places, a sum of all: an unrolled stencil.
  auto kernels = [](int ways, bool apart) {
    const int length = apart ? 64 / ways : 64 - ways;
    std::string text = "%0 = input(index=0) : f32[64]\n%1 = input(index=1) : f32[64]\n%2 = mul(%0, %1) : f32[64]\n";
    for (int i = 0; i < ways; ++i)
      text += cat("%", 3 + i, " = slice(%2, shape=[", length, "], starts=[", apart ? i * length : i, "], steps=[1]) : f32[", length, "]\n");
    for (int i = 1; i < ways; ++i)
      text += cat("%", 2 + ways + i, " = add(%", i == 1 ? 3 : 1 + ways + i, ", %", 3 + i, ") : f32[", length, "]\n");
    return testing::scheduled(Graph::parse(text + cat("return %", 1 + 2 * ways, "\n"))).kernels;
  };
  CHECK(kernels(3, false) == 1);
  CHECK(kernels(4, false) == 2);
  CHECK(kernels(8, true) == 1);
}

TEST_CASE(
    "storage: what rows would read along another axis is turned before them, and rows of a product that lie apart are laid side by side") {
  auto kernels = [](int64_t turned_points) {
    return testing::scheduled(Graph::parse(R"(%0 = input(index=0) : f32[2, 64, 96]
%1 = input(index=1) : f32[2, 96, 64]
%2 = permute(%1, dims=[0, 2, 1]) : f32[2, 64, 96]
%3 = add(%0, %2) : f32[2, 64, 96]
%4 = reduce_sum(%3, dims=[2]) : f32[2, 64]
return %3, %4
)"),
                              {.turned_points = turned_points})
        .kernels;
  };
  CHECK(kernels(0) == 1);
  CHECK(kernels(1 << 20) == 1);
  CHECK(kernels(1 << 10) == 2);
  auto windows = [](int size) {  // of an image of 2 x 2 of them
    const std::string s = cat(size), all = cat(2 * size);
    const Schedule schedule = testing::scheduled(Graph::parse(
        "%0 = input(index=0) : f32[3, " + all + ", " + all + ", 8]\n%1 = input(index=1) : f32[8, 8]\n" + "%2 = reshape(%0, shape=[3, 2, " +
        s + ", 2, " + s + ", 8]) : f32[3, 2, " + s + ", 2, " + s + ", 8]\n%3 = permute(%2, dims=[0, 1, 3, 2, 4, 5]) : f32[3, 2, 2, " + s +
        ", " + s + ", 8]\n%4 = dot(%3, %1, batch=0) : f32[3, 2, 2, " + s + ", " + s + ", 8]\nreturn %4\n"));
    return schedule.kernels;
  };
  CHECK(windows(7) == 1);
  CHECK(windows(64) == 0);
}

TEST_CASE("order: what is named comes before, and a circle has none") {
  CHECK(order_of({0, 1, 2}, {{2}, {}, {1}}) == std::vector<int>{1, 2, 0});
  CHECK(!order_of({0, 1}, {{1}, {0}}));
}
