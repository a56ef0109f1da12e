// The text of a schedule. That every schedule which the tests run reads back as the same is checked where they run (run_compiled.h).
#include <doctest/doctest.h>

#include "random_graph.h"
#include "scheduled.h"
#include "support/error.h"

using namespace broach;

namespace {

const std::string kSchedule =
    "symbol s0(hint=5, min=2, input=0, dim=0)\n"
    "buffer m0 : f32[s0, 2] strides [2, 1] elements 2*s0 input 0\n"
    "buffer m1 : f32[s0, 2]@cuda:0 strides [2, 1] elements 2*s0 input 0 version 1\n"
    "buffer m2 : f32[2, 4] strides [4, 1] elements 8 external\n"
    "buffer m3 : f32[s0, 4] strides [4, 1] elements 4*s0 output 1\n"
    "buffer m4 : i64[2] strides [1] elements 2 arena\n"
    "outputs [3, 3]\n"
    "launch [0, 4] symbols [s0] starts [0, 1] numbers [bits -9223372036854775808, input 3] reads [0] writes [4]  # f.py:3\n"
    "kernel symbols 1 parameters 2\n"
    "  axis i0 < s0\n"
    "  buffer b0 : f32\n"
    "  buffer b1 : i64\n"
    "  e0 = load b0[2*i0] : f32\n"
    "  e1 = cast(e0) : i64\n"
    "  b1[0] = e1\n"
    "call extern_call(call=\"my::op\"($0, <opaque 0>) effect mutates [0]) : (f32[s0, 2]) -> (f32[2, 4], f32[]) of f32[s0, 2] m0[0][2, 1] "
    "into [2, -1] reads [0] writes [2]\n"
    "contraction dot(batch=0) : (f32[s0, 2], f32[2, 4]) -> (f32[s0, 4]) of f32[s0, 2] m0[0][2, 1], f32[2, 4] m2[0][4, 1] weights [0, -1] "
    "bias f32[4] m2[4][1] then relu then add with f32[s0, 4] m2[0][0, 1] side 1 f32[s0, 4] m3[0][4, 1] into f32[s0, 4] m3[0][4, 1] "
    "reads [0, 2] writes [3]\n"
    "routine sort(dim=0, descending=1, stable=0) : (f32[s0]) -> (f32[s0], i64[s0]) of f32[s0] m0[1][2] into f32[s0] m3[0][4], i64[s0] none "
    "reads [0] writes [3]\n"
    "copy m0 to m1 reads [0] writes [1] on cuda:0 early\n";

std::string error_with(const std::string& part, const std::string& by) {
  std::string text = kSchedule;
  try {
    Schedule::parse(text.replace(text.find(part), part.size(), by)).verify();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("schedule text: steps of every kind read back as they were printed") {
  const Schedule s = Schedule::parse(kSchedule);
  s.verify();
  CHECK(s.str() == kSchedule);
  CHECK((s.kernels == 1 && s.contractions == 1 && s.routines == 1 && s.externs == 1 && s.copies == 1));
  const auto& launch = std::get<KernelStep>(s.steps[0].work);
  CHECK(launch.numbers[1] == KernelNumber{0, 3});
  CHECK(s.graph->lines().at(static_cast<size_t>(s.steps[0].line)) == "f.py:3");
  const auto& call = std::get<ExternStep>(s.steps[1].work);
  CHECK(call.operation.call().results == call.operation.results);
  CHECK(call.results == std::vector<int>{2, -1});
}

TEST_CASE("schedule text: schedules of random graphs read back as the same") {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    testing::Options how;
    how.symbolic = seed % 2;
    how.routines = how.contractions = true;
    const Schedule s = testing::scheduled(testing::random_graph(seed, how));
    s.verify();
    const Schedule read = Schedule::parse(s.str());
    read.verify();
    CHECK(read.str() == s.str());
    CHECK((read.kernels == s.kernels && read.contractions == s.contractions && read.routines == s.routines));
  }
}

TEST_CASE("schedule text: errors name the line, or the part") {
  CHECK(error_with("outputs [3, 3]", "outputs [5]") == "line 7, column 10: expected a number from 0 to 4, found 5");
  CHECK(error_with("buffer m1", "buffer m2") == "line 3, column 8: expected buffer m1");
  CHECK(error_with(" external", " internal") == "line 4, column 49: expected input, output, arena or external");
  CHECK(error_with("launch [0", "lunch [0") == "line 8, column 1: expected a step: launch, contraction, routine, call or copy");
  CHECK(error_with("2*i0", "2*i1") == "line 13, column 16: axis i1 is not declared");
  CHECK(error_with("copy m0 to", "copy m9 to") == "line 19, column 7: expected a number from 0 to 4, found 9");
  CHECK(error_with("reads [0] writes [4]", "reads [1] writes [4]") ==
        "schedule, step 0: reads m0, which is not among the buffers that it reads");
  CHECK(error_with("launch [0, 4]", "launch [0]") == "schedule, step 0: the kernel has 2 buffers, not 1");
  CHECK(error_with("bias f32[4] m2[4][1]", "bias f32[4] m2[4][]") == "schedule, step 2: 0 strides of f32[4]");
}

TEST_CASE("schedule text: a damaged text is an error and never a crash") {
  std::mt19937 random(1);
  int errors = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t at = random() % kSchedule.size();
    errors += error_with(kSchedule.substr(at, 1 + random() % 4), std::string(random() % 2, "m0:,[]=\n"[random() % 8])) != "no error";
  }
  CHECK(errors > 1000);
}
