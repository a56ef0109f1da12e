// Halves that are only moved go through kernels as integers.
#include <doctest/doctest.h>

#include "scheduled.h"

using namespace broach;

namespace {

std::string kernel_of(const std::string& graph) {
  const Schedule s = testing::scheduled(Graph::parse(graph));
  for (const Step& step : s.steps)
    if (const auto* k = std::get_if<KernelStep>(&step.work)) return k->kernel->str();
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("carried bits: what is moved, but for its sign") {
  const std::string k = kernel_of(R"(%0 = input(index=0) : bf16[8]
%1 = slice(%0, shape=[8], starts=[7], steps=[-1]) : bf16[8]
%2 = neg(%1) : bf16[8]
return %2
)");
  CHECK(has(k, "bit_xor"));
  CHECK(!has(k, "bf16"));
}

TEST_CASE("carried bits: a value that is computed beside one that is moved is rounded first") {
  const std::string k = kernel_of(R"(%0 = input(index=0) : f16[8]
%1 = input(index=1) : b1[8]
%2 = exp(%0) : f16[8]
%3 = where(%1, %0, %2) : f16[8]
return %3
)");
  CHECK(has(k, "bitcast"));
  CHECK(has(k, ") : f16\n"));
  CHECK(!has(k, "buffer b0 : f16"));  // read once, as integers
}

TEST_CASE("carried bits: numbers stay what they are") {
  const std::string computed = kernel_of(R"(%0 = input(index=0) : bf16[8]
%1 = exp(%0) : bf16[8]
return %1
)");
  const std::string leaky = kernel_of(R"(%0 = input(index=0) : bf16[8]
%1 = scalar(value=0.0, dtype=bf16) : bf16[]
%2 = reshape(%1, shape=[1]) : bf16[1]
%3 = expand(%2, shape=[8]) : bf16[8]
%4 = gt(%0, %3) : b1[8]
%5 = exp(%0) : bf16[8]
%6 = where(%4, %0, %5) : bf16[8]
return %6
)");
  const std::string moved = kernel_of(R"(%0 = input(index=0) : f32[8]
%1 = slice(%0, shape=[8], starts=[7], steps=[-1]) : f32[8]
return %1
)");
  for (const std::string& k : {computed, leaky, moved}) CHECK(!has(k, "i16"));
}
