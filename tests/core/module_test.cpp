// Programs as stages: their text, and what their verifier finds.
#include "passes/module.h"

#include <doctest/doctest.h>

#include "support/error.h"

using namespace broach;

namespace {

const char* kProgram = R"(inputs 2
stage once [1] -> [3]
  %0 = input(index=0) : f32[4]
  %1 = exp(%0) : f32[4]
  return %1
stage in_call [0, 3] -> [2, 4]
  %0 = input(index=0) : f32[4]
  %1 = input(index=1) : f32[4]
  %2 = mul(%0, %1) : f32[4]  # model.py:3
  %3 = neg(%2) : f32[4]
  return %2, %3
stage for_gradients [4] -> [5]
  %0 = input(index=0) : f32[4]
  %1 = tanh(%0) : f32[4]
  return %1
outputs [2, 5]
)";

std::string with(const std::string& part, const std::string& other) {
  std::string text = kProgram;
  text.replace(text.find(part), part.size(), other);
  return text;
}

void check_refused(const std::string& text, const char* why) {
  CHECK_THROWS_WITH_AS(Module::parse(text).verify(), doctest::Contains(why), Error);
}

}  // namespace

TEST_CASE("module: its text reads back as it is") {
  const Module m = Module::parse(kProgram);
  m.verify();
  CHECK(m.str() == kProgram);
  CHECK(m.inputs == 2);
  CHECK(m.slots[4].type.str() == "f32[4]");
  CHECK_FALSE(m.stages[2].is_compiled());
  const std::string graph = "%0 = input(index=0) : f32[4]\nreturn %0\n";
  const Module one = Module::parse(graph);
  one.verify();
  CHECK(one.str() == graph);
  CHECK(one.outputs == std::vector<size_t>{1});
}

TEST_CASE("module: a text that is none says where") {
  check_refused(with("stage once", "stage twice"), "line 2, column 7: expected once, in_call");
  check_refused(with("outputs [2, 5]\n", ""), "ends without outputs");
  check_refused(with("[3]", "[3, 4]"), "the graph gives 1 values");
  check_refused(with("inputs 2", "inputs 99999999"), "fewer than");
  check_refused(with("exp(%0)", "exp(%7)"), "not defined above");
}

TEST_CASE("module: what a stage takes is what was given") {
  check_refused(with("[0, 3]", "[0, 4]"), "stage 1: takes slot 4, which nothing was given to");
  check_refused(with("[0, 3]", "[0]"), "stage 1: takes 1 values, its graph has 2 inputs");
  check_refused(with("[4] -> [5]", "[4] -> [2]"), "stage 2: gives slot 2, which something was given to");
  check_refused(with("[2, 5]", "[2, 6]"), "nothing was given to the output in slot 6");
  check_refused(with("stage for_gradients", "stage for_sizes"), "is no call that finds out sizes");
  std::string other = kProgram;
  for (const char* line : {"%0 = input(index=0) : f32[4]\n  %1 = exp(%0) : f32[4]"})
    other.replace(other.find(line), std::string(line).size(), "%0 = input(index=0) : f32[8]\n  %1 = exp(%0) : f32[8]");
  check_refused(other, "stage 1: takes slot 3 as f32[4], not f32[8]");
}
