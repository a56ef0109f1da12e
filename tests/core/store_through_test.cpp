// What is stored and then copied into an input is stored there at once.
#include <doctest/doctest.h>

#include <set>

#include "random_graph.h"
#include "run_compiled.h"

using namespace broach;

namespace {

// m = exp(m) + g * g; w -= g / sqrt(m), and what `more` says.
Graph moments(const std::string& more = "", const std::string& outputs = "") {
  return Graph::parse(
      "%0 = input(index=0) : f32[4096]\n"
      "%1 = input(index=1) : f32[4096]\n"
      "%2 = input(index=2) : f32[4096]\n"
      "%3 = input(index=3) : i64[]\n"
      "%4 = mul(%0, %0) : f32[4096]\n"
      "%5 = exp(%1) : f32[4096]\n"
      "%6 = add(%5, %4) : f32[4096]\n"
      "%7 = sqrt(%6) : f32[4096]\n"
      "%8 = div(%0, %7) : f32[4096]\n"
      "%9 = sub(%2, %8) : f32[4096]\n" +
      more + "return %6 into 1, %9 into 2" + outputs + "\n");
}

// Whether the moment goes through memory of its own.
bool is_apart(const Schedule& s) {
  for (const Step& step : s.steps)
    for (int b : step.writes)
      if (s.buffers[static_cast<size_t>(b)].kind == Buffer::Kind::arena && s.buffers[static_cast<size_t>(b)].type.numel() == SymInt(4096))
        return true;
  return false;
}

// The program is run on inputs of its own, which it writes, and what it gives is compared with the interpreter's.
void check_results(const Graph& g) {
  std::vector<HostTensor> inputs = testing::random_inputs(g, 5);
  std::fill(inputs[3].bytes.begin(), inputs[3].bytes.end(), std::byte{0});
  const std::vector<HostTensor> want = interpret(g, inputs);
  const Targets targets("cpu");
  Executable executable(testing::scheduled(g), targets, {}, nullptr);
  const Schedule& s = executable.schedule();
  const SerialThreads threads;
  Frame frame;
  frame.threads = &threads;
  frame.data.assign(s.buffers.size(), nullptr);
  std::vector<HostTensor> out = want;
  for (size_t b = 0; b < s.buffers.size(); ++b)
    if (s.buffers[b].kind == Buffer::Kind::input) frame.data[b] = inputs[static_cast<size_t>(s.buffers[b].index)].bytes.data();
  for (size_t i = 2; i < out.size(); ++i) frame.data[static_cast<size_t>(s.output_buffers[i])] = out[i].bytes.data();
  executable.run(frame);
  out[0] = inputs[1], out[1] = inputs[2];
  for (size_t i = 0; i < out.size(); ++i) CHECK(testing::first_difference(out[i], want[i], 1e-5, 1e-6) == "");
}

int kernels_of(const Graph& g) {
  const Schedule s = testing::scheduled(g);
  return static_cast<int>(std::ranges::count_if(s.steps, [](const Step& step) { return std::holds_alternative<KernelStep>(step.work); }));
}

// Momentum: b = .9 b + g; w -= .1 b.
Graph momentum(int64_t elements, const std::string& read = "%1", const std::string& more = "") {
  const std::string t = " : f32[" + std::to_string(elements) + "]\n";
  return Graph::parse("%0 = input(index=0)" + t + "%1 = input(index=1)" + t + "%2 = input(index=2)" + t + "%3 = input(index=3) : i64[]\n" +
                      "%4 = scalar(value=0.9, dtype=f32) : f32[]\n%5 = reshape(%4, shape=[1]) : f32[1]\n" + "%6 = expand(%5, shape=[" +
                      std::to_string(elements) + "])" + t + more + "%8 = mul(" + read + ", %6)" + t + "%9 = add(%8, %0)" + t +
                      "%10 = sub(%2, %9)" + t + "%11 = mul(%1, %6)" + t + "%12 = add(%11, %0)" + t + "return %12 into 1, %10 into 2\n");
}

}  // namespace

TEST_CASE("joined kernels: one may write, at each point, what the other reads there") {
  CHECK(kernels_of(momentum(8192)) == 1);
  check_results(momentum(8192));
  // Not where it reads another element.
  const std::string flipped = "%7 = slice(%1, shape=[8192], starts=[8191], steps=[-1]) : f32[8192]\n";
  CHECK(kernels_of(momentum(8192, "%7", flipped)) > 1);
  check_results(momentum(8192, "%7", flipped));
}

// Of many like these, each is one kernel: what both of its parts read is still near.
TEST_CASE("order: what an input becomes is computed where it can be, and not behind all else") {
  constexpr int kMany = 40;
  std::string text, outputs;
  for (int i = 0; i < 4 * kMany; ++i) text += cat("%", i, " = input(index=", i, ") : f32[", i % 4 == 3 ? "" : "8192", "]\n");
  int next = 4 * kMany;
  for (int i = 0; i < kMany; ++i) {
    const int g = 4 * i, m = g + 1, w = g + 2, count = g + 3, first = next;
    auto emit = [&](const std::string& what, const std::string& shape) { text += cat("%", next++, " = ", what, " : ", shape, "\n"); };
    const auto at = [&](int k) { return cat("%", first + k); };
    emit(cat("cast(%", count, ", dtype=f64)"), "f64[]");
    emit(cat("exp(", at(0), ")"), "f64[]");
    emit(cat("cast(", at(1), ", dtype=f32)"), "f32[]");
    emit(cat("reshape(", at(2), ", shape=[1])"), "f32[1]");
    emit(cat("expand(", at(3), ", shape=[8192])"), "f32[8192]");
    emit(cat("mul(%", g, ", %", g, ")"), "f32[8192]");
    emit(cat("exp(%", m, ")"), "f32[8192]");
    emit(cat("add(", at(5), ", ", at(6), ")"), "f32[8192]");
    emit(cat("sqrt(", at(7), ")"), "f32[8192]");
    emit(cat("mul(", at(8), ", ", at(4), ")"), "f32[8192]");
    emit(cat("sub(%", w, ", ", at(9), ")"), "f32[8192]");
    outputs += cat(outputs.empty() ? "" : ", ", at(10), " into ", w, ", ", at(7), " into ", m);
  }
  CHECK(kernels_of(Graph::parse(text + "return " + outputs + "\n")) == 2 * kMany);
}

TEST_CASE("store_through: a moment that its own step reads is stored where it lies") {
  const Graph g = moments();
  const Schedule s = testing::scheduled(g);
  CHECK_FALSE(is_apart(s));
  CHECK(s.steps.size() == 1);
  check_results(g);
}

TEST_CASE("store_through: old elements stay until the last that reads them") {
  check_results(moments("%10 = reduce_sum(%1, dims=[0]) : f32[]\n", ", %10"));
  check_results(
      moments("%10 = reshape(%1, shape=[64, 64]) : f32[64, 64]\n%11 = permute(%10, dims=[1, 0]) : f32[64, 64]\n"
              "%12 = reshape(%6, shape=[64, 64]) : f32[64, 64]\n%13 = add(%11, %12) : f32[64, 64]\n",
              ", %13"));
}

TEST_CASE("store_through: nothing is written before what may fail") {
  const Graph g = moments("%10 = take(%9, %3, dim=0) : f32[]\n", ", %10");
  check_results(g);
  const Schedule s = testing::scheduled(g);
  size_t last_failing = 0, first_writing = s.steps.size();
  for (size_t i = 0; i < s.steps.size(); ++i) {
    if (can_fail(s.steps[i])) last_failing = i;
    for (int b : s.steps[i].writes)
      if (s.buffers[static_cast<size_t>(b)].kind == Buffer::Kind::input) first_writing = std::min(first_writing, i);
  }
  CHECK(last_failing < first_writing);
}
