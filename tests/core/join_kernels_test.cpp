// Small kernels that become one: which do, and that what they compute stays what it was.
#include <doctest/doctest.h>

#include "random_graph.h"
#include "run_compiled.h"

using namespace broach;

namespace {

constexpr int64_t kPoints = 1 << 18;

int kernels_of(const Schedule& s) {
  return static_cast<int>(std::ranges::count_if(s.steps, [](const Step& step) { return std::holds_alternative<KernelStep>(step.work); }));
}

int kernels_of(const std::string& text, int64_t points) {
  return kernels_of(testing::scheduled(Graph::parse(text), {.launch_points = points}));
}

void check_results(const Graph& g, uint32_t seed, const ScheduleOptions& options, const std::string& target = "cpu") {
  const auto inputs = testing::random_inputs(g, seed);
  const auto want = interpret(g, inputs), have = testing::run_compiled(g, inputs, options, SerialThreads(), 0, target);
  REQUIRE(have.size() == want.size());
  for (size_t i = 0; i < have.size(); ++i) {
    INFO("seed ", seed, " output ", i, "\n", g.str());
    CHECK(testing::first_difference(have[i], want[i], 2e-5, 2e-5) == "");
  }
}

// Two sums of different operands, each a kernel of its own: a reduction is not computed twice.
const std::string kSums = R"(%0 = input(index=0) : f32[8, 64]
%1 = input(index=1) : f32[8, 64]
%2 = reduce_sum(%0, dims=[1]) : f32[8]
%3 = reduce_max(%1, dims=[1]) : f32[8]
return %2, %3
)";

}  // namespace

TEST_CASE("joined kernels: those that do not need each other, and are small") {
  CHECK(kernels_of(kSums, 0) == 2);
  CHECK(kernels_of(kSums, kPoints) == 1);
  CHECK(kernels_of(kSums, 8 * 64) == 1);
  CHECK(kernels_of(kSums, 8 * 64 - 1) == 2);
}

TEST_CASE("joined kernels: not those over other axes") {
  CHECK(kernels_of(R"(%0 = input(index=0) : f32[8, 64]
%1 = input(index=1) : f32[64, 8]
%2 = reduce_sum(%0, dims=[1]) : f32[8]
%3 = reduce_sum(%1, dims=[1]) : f32[64]
return %2, %3
)",
                   kPoints) == 2);
}

TEST_CASE("joined kernels: not what needs the other, nor what needs a step that does") {
  CHECK(kernels_of(R"(%0 = input(index=0) : f32[8, 8]
%1 = reduce_sum(%0, dims=[1]) : f32[8]
%2 = reshape(%1, shape=[1, 8]) : f32[1, 8]
%3 = expand(%2, shape=[8, 8]) : f32[8, 8]
%4 = mul(%0, %3) : f32[8, 8]
%5 = reduce_sum(%4, dims=[1]) : f32[8]
return %1, %5
)",
                   kPoints) == 2);
  CHECK(kernels_of(R"(%0 = input(index=0) : f32[8, 8]
%1 = reduce_sum(%0, dims=[1]) : f32[8]
%2 = reshape(%1, shape=[8, 1]) : f32[8, 1]
%3 = dot(%0, %2, batch=0) : f32[8, 1]
%4 = expand(%3, shape=[8, 8]) : f32[8, 8]
%5 = reduce_max(%4, dims=[1]) : f32[8]
return %1, %5
)",
                   kPoints) == 2);
}

// Of weights, one for each of two products: the first cannot wait for the second, which goes up to it unless its result would lie there for
// too long, or what it reads is made in between.
TEST_CASE("joined kernels: what is computed of inputs alone, where the first is read in between") {
  auto program = [](const std::string& size, const std::string& read) {
    const std::string type = " : f32[" + size + ", " + size + "]\n";
    return "%0 = input(index=0)" + type + "%1 = input(index=1)" + type + "%2 = neg(%0)" + type + "%3 = dot(%1, %2, batch=0)" + type +
           "%4 = neg(" + read + ")" + type + "%5 = dot(%3, %4, batch=0)" + type + "return %5\n";
  };
  CHECK(kernels_of(program("8", "%1"), 0) == 2);
  CHECK(kernels_of(program("8", "%1"), kPoints) == 1);
  CHECK(kernels_of(program("512", "%1"), kPoints) == 2);
  CHECK(kernels_of(program("8", "%3"), kPoints) == 2);
  check_results(Graph::parse(program("8", "%1")), 5, {.launch_points = kPoints});
}

// The variance around a mean of parts, as batch norm has it: the sum, the mean, and what depends on it.
TEST_CASE("joined kernels: what reads each element where it is stored") {
  const std::string chain = R"(%0 = input(index=0) : f32[8, 64]
%1 = input(index=1) : f32[8, 64]
%2 = reduce_sum(%0, dims=[1]) : f32[8]
%3 = scalar(value=512.0, dtype=f32) : f32[]
%4 = reshape(%3, shape=[1]) : f32[1]
%5 = expand(%4, shape=[8]) : f32[8]
%6 = div(%2, %5) : f32[8]
%7 = reshape(%6, shape=[8, 1]) : f32[8, 1]
%8 = expand(%7, shape=[8, 64]) : f32[8, 64]
%9 = sub(%1, %8) : f32[8, 64]
%10 = mul(%9, %9) : f32[8, 64]
%11 = reduce_sum(%10, dims=[1]) : f32[8]
return %2, %6, %11
)";
  CHECK(kernels_of(chain, 0) > 1);
  CHECK(kernels_of(chain, kPoints) == 1);
  check_results(Graph::parse(chain), 1, {.launch_points = kPoints});
}

// The gradients of both factors of a product, as a program of eager's leaves them: each is made of the other factor and of what both
// have in common, which is not stored then.
TEST_CASE("joined kernels: large ones that are computed of the same") {
  const std::string gradients = R"(%0 = input(index=0) : f32[64, 96]
%1 = input(index=1) : f32[64, 96]
%2 = input(index=2) : f32[64, 96]
%3 = mul(%0, %1) : f32[64, 96]
%4 = tanh(%3) : f32[64, 96]
%5 = mul(%4, %2) : f32[64, 96]
%6 = mul(%5, %0) : f32[64, 96]
%7 = mul(%5, %1) : f32[64, 96]
return %6, %7
)";
  const Schedule s = testing::scheduled(Graph::parse(gradients));
  REQUIRE(kernels_of(s) == 1);
  CHECK(s.steps[0].writes.size() == 2);
  CHECK(s.steps[0].reads.size() == 3);
  check_results(Graph::parse(gradients), 3, {});
}

TEST_CASE("joined kernels: not large ones that read nothing of each other's, nor the same backwards, nor few elements") {
  const auto sums = [](const std::string& rows, const std::string& second) {
    return "%0 = input(index=0) : f32[" + rows + ", 96]\n%1 = input(index=1) : f32[" + rows + ", 96]\n" + "%2 = tanh(%0) : f32[" + rows +
           ", 96]\n" + second + "return %2, %4\n";
  };
  const std::string other = "%3 = neg(%1) : f32[64, 96]\n%4 = exp(%3) : f32[64, 96]\n";
  const std::string same = "%3 = neg(%0) : f32[64, 96]\n%4 = exp(%3) : f32[64, 96]\n";
  const std::string flipped = "%3 = slice(%0, shape=[64, 96], starts=[63, 0], steps=[-1, 1]) : f32[64, 96]\n%4 = exp(%3) : f32[64, 96]\n";
  const std::string few = "%3 = neg(%0) : f32[2, 96]\n%4 = exp(%3) : f32[2, 96]\n";
  CHECK(kernels_of(sums("64", other), 0) == 2);
  CHECK(kernels_of(sums("64", same), 0) == 1);
  CHECK(kernels_of(sums("64", flipped), 0) == 2);
  CHECK(kernels_of(sums("2", few), 0) == 2);
}

TEST_CASE("joined kernels: random graphs give what they gave") {
  int apart = 0, joined = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Graph g = testing::random_graph(seed, {.steps = 40, .low_precision = false, .max_elements = 64});
    apart += kernels_of(testing::scheduled(g));
    joined += kernels_of(testing::scheduled(g, {.launch_points = kPoints}));
    check_results(g, seed, {.launch_points = kPoints});
  }
  CHECK(joined < apart);
}

// A bias's gradient beside the elementwise gradient that it sums, cut into parts, as GPUs have it.
TEST_CASE("joined kernels: a sum takes along what stores its operand") {
  // What else reads it is a kernel, behind which the first can go, or a routine, before which the second can.
  for (const char* reader : {"exp(%6)", "scan_sum(%6, dim=1)"}) {
    const Graph g = Graph::parse(cat(R"(%0 = input(index=0) : f32[64, 1024]
%1 = input(index=1) : f32[64, 1024]
%2 = input(index=2) : f32[1024]
%3 = mul(%0, %1) : f32[64, 1024]
%4 = reshape(%2, shape=[1, 1024]) : f32[1, 1024]
%5 = expand(%4, shape=[64, 1024]) : f32[64, 1024]
%6 = add(%3, %5) : f32[64, 1024]
%7 = )",
                                     reader, R"( : f32[64, 1024]
%8 = reshape(%6, shape=[16, 4, 1024]) : f32[16, 4, 1024]
%9 = reduce_sum(%8, dims=[1]) : f32[16, 1024]
%10 = reduce_sum(%9, dims=[0]) : f32[1024]
return %6, %7, %10
)"));
    CHECK(kernels_of(testing::scheduled(g, {})) == 3);
    CHECK(kernels_of(testing::scheduled(g, {.launch_points = kPoints})) == 2);
    for (uint32_t seed = 0; seed < 3; ++seed) check_results(g, seed, {.launch_points = kPoints});
  }
}

namespace {

// Three parts of rows, however few there are.
const ScheduleOptions kAdding{.launch_points = kPoints, .row_adder = {DeviceKind::cpu, 2, 4096, 2, 3}};

// The gradients of a layer norm, whose operand is centred and scaled, or of some rows of them: of the operand, the weight and the bias.
std::string norm_gradients(const std::string& rows, const std::string& row_dims, const std::string& returned) {
  const std::string all = "[" + rows + ", 16]", kept = "[" + rows + "]", last = row_dims == "0" ? "1" : "2";
  const std::string ones = row_dims == "0" ? "[1, 16]" : "[1, 1, 16]", beside = "[" + rows + ", 1]";
  return "%0 = input(index=0) : f32" + all + "\n%1 = input(index=1) : f32" + all + "\n%2 = input(index=2) : f32[16]\n" +
         "%3 = reshape(%2, shape=" + ones + ") : f32" + ones + "\n%4 = expand(%3, shape=" + all + ") : f32" + all + "\n" +
         "%5 = mul(%0, %4) : f32" + all + "\n%6 = mul(%5, %1) : f32" + all + "\n" + "%7 = reduce_sum(%6, dims=[" + last + "]) : f32" +
         kept + "\n%8 = reduce_sum(%5, dims=[" + last + "]) : f32" + kept + "\n" + "%9 = reshape(%7, shape=" + beside + ") : f32" + beside +
         "\n%10 = expand(%9, shape=" + all + ") : f32" + all + "\n" + "%11 = reshape(%8, shape=" + beside + ") : f32" + beside +
         "\n%12 = expand(%11, shape=" + all + ") : f32" + all + "\n" + "%13 = mul(%1, %10) : f32" + all + "\n%14 = sub(%5, %13) : f32" +
         all + "\n%15 = sub(%14, %12) : f32" + all + "\n" + "%16 = mul(%0, %1) : f32" + all + "\n%17 = reduce_sum(%16, dims=[" + row_dims +
         "]) : f32[16]\n" + "%18 = reduce_sum(%0, dims=[" + row_dims + "]) : f32[16]\n%19 = neg(%18) : f32[16]\n" + "%20 = tanh(%0) : f32" +
         all + "\n%21 = reduce_sum(%15, dims=[" + row_dims + "]) : f32[16]\nreturn " + returned + "\n";
}

int adding(const Schedule& s) {
  return static_cast<int>(std::ranges::count_if(s.steps, [](const Step& step) {
    const auto* k = std::get_if<KernelStep>(&step.work);
    return k && rows_added(*k->kernel) > 0;
  }));
}

}  // namespace

// Of a layer norm: one reading of its two operands, and a kernel for the sums of parts.
TEST_CASE("joined kernels: what is summed along rows and along columns is read once") {
  const Graph g = Graph::parse(norm_gradients("50", "0", "%15, %17, %19"));
  const Schedule s = testing::scheduled(g, kAdding);
  INFO(s.str());
  CHECK(adding(s) == 1);
  CHECK(kernels_of(s) == 2);
  CHECK(adding(testing::scheduled(g, {.launch_points = kPoints})) == 0);
}

TEST_CASE("joined kernels: what is summed where it lies side by side has no columns") {
  const std::string x = "%0 = input(index=0) : f32[40, 16]\n";
  CHECK(adding(testing::scheduled(Graph::parse(x + "%1 = reduce_sum(%0, dims=[0]) : f32[16]\nreturn %1\n"), kAdding)) == 1);
  CHECK(adding(testing::scheduled(Graph::parse(x + "%1 = reduce_sum(%0, dims=[1]) : f32[40]\nreturn %1\n"), kAdding)) == 0);
}

TEST_CASE("joined kernels: rows that are added up give what sums of columns give") {
  const std::pair<std::string, std::string> shapes[] = {{"50", "0"}, {"13", "0"}, {"8", "0"}, {"5, 7", "0, 1"}, {"3, 40", "0, 1"}};
  for (const auto& [rows, dims] : shapes)
    for (const char* returned : {"%15, %17, %19", "%17, %15", "%19", "%17, %18, %19, %20", "%15, %21, %17", "%21, %20"})
      for (int64_t parts : {3, 100}) {
        const Graph g = Graph::parse(norm_gradients(rows, dims, returned));
        ScheduleOptions options = kAdding;
        options.row_adder.processors = parts;
        CHECK(adding(testing::scheduled(g, options)) > 0);
        check_results(g, 1, options, "reference");
      }
}

TEST_CASE("joined kernels: random graphs give what they gave where rows are added up") {
  int adders = 0;
  for (uint32_t seed = 500; seed < 580; ++seed) {  // some of which have rows to add up
    const Graph g = testing::random_graph(seed, {.steps = 40, .low_precision = seed % 2 == 0, .max_elements = 64});
    adders += adding(testing::scheduled(g, kAdding));
    check_results(g, seed, kAdding, "reference");
  }
  CHECK(adders > 0);
}
