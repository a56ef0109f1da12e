// Kernels as text: what graphs become, from files; that what is printed reads back as the same kernel; and errors.
#include <doctest/doctest.h>

#include "random_graph.h"
#include "run_compiled.h"
#include "schedule/kernel_facts.h"
#include "support/error.h"
#include "text_cases.h"

using namespace broach;

namespace {

std::vector<Kernel> kernels_of(const Graph& source, const ScheduleOptions& options = {}) {
  std::vector<Kernel> out;
  for (const Step& s : testing::scheduled(source, options).steps)
    if (auto k = std::get_if<KernelStep>(&s.work)) out.push_back(*k->kernel);
  return out;
}

// On the CPU, or, in a build without LLVM, interpreted.
std::vector<HostTensor> run(const Graph& g, const std::vector<HostTensor>& inputs) {
  return testing::run_compiled(g, inputs, {}, SerialThreads(), 0, cpu_target() ? "cpu" : "reference");
}

void round_trip(const Kernel& k) {
  const std::string text = k.str();
  INFO(text);
  k.verify();
  const Kernel back = Kernel::parse(text);
  CHECK(back.str() == text);
  CHECK(back == k);
}

std::string text_of(const std::vector<Kernel>& kernels) {
  std::string out;
  for (const Kernel& k : kernels) out += k.str();
  return out;
}

const std::string kKernel =
    "kernel strict symbols 1 parameters 1\n"
    "  axis i0 < s0\n"
    "  reduce i1 < 64\n"
    "  buffer b0 : f32\n"
    "  buffer b1 : i64\n"
    "  e0 = load b1[i0] : i64\n"
    "  e1 = position 2*i0 + 1 : i64\n"
    "  e2 = constant 5 : i64\n"
    "  e3 = lt(e1, e2) : b1\n"
    "  e4 = bounds e0 < s0 if e3 : i64\n"
    "  e5 = load b0[i1, e4*(64)] if e3 : f32\n"
    "  e6 = parameter 0 : f32\n"
    "  e7 = mul(e5, e6) : f32\n"
    "  e8 = constant nan0xfff8000000000000 : f32\n"
    "  e9 = add(e7, e8) : f32\n"
    "  e10 = reduce_argmax(e9, position=i1) : i64\n"
    "  b1[i0] = e10\n";

std::string error_of(const std::string& text) {
  try {
    Kernel::parse(text).verify();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// The kernel above with a part of its text replaced.
std::string error_with(const std::string& part, const std::string& by) {
  std::string text = kKernel;
  return error_of(text.replace(text.find(part), part.size(), by));
}

}  // namespace

TEST_CASE("kernels: what graphs become") {
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(BROACH_TESTS) / "core" / "kernels")) {
    auto cases = testing::read_cases(file.path());
    for (auto& c : cases) {
      INFO(file.path().string(), ": ", c.title);
      Graph g = Graph::parse(c.before);
      CHECK(g.str() == c.before);  // as it is printed
      auto kernels = kernels_of(g);
      if (testing::records()) c.after = text_of(kernels);
      CHECK(text_of(kernels) == c.after);
      for (const Kernel& k : kernels) round_trip(k);
      if (!g.symbols()->infos().empty()) continue;  // what is interpreted has numbers for sizes
      auto inputs = testing::random_inputs(g, 3);
      auto want = interpret(g, inputs), have = run(g, inputs);
      for (size_t i = 0; i < want.size(); ++i) CHECK(testing::first_difference(have[i], want[i], 1e-4, 1e-5) == "");
    }
    if (testing::records()) testing::write_cases(file.path(), cases);
    ++files;
  }
  CHECK(files > 4);
}

TEST_CASE("kernels: those of random graphs read back as the same") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    testing::Options how;
    how.symbolic = seed % 2;
    for (bool fuse : {true, false})
      for (const Kernel& k : kernels_of(testing::random_graph(seed, how), {.strict = seed % 3 == 0, .fuse = fuse})) round_trip(k);
  }
}

TEST_CASE("kernels: every part reads back as it was printed") {
  Kernel k = Kernel::parse(kKernel);
  CHECK(k.str() == kKernel);
  round_trip(k);
  Kernel other = k;
  other.exprs[8].value = -0.0;
  Kernel zero = other;
  zero.exprs[8].value = 0.0;
  CHECK(!(other == zero));
  CHECK(other.str() != zero.str());
}

// Code is shared among kernels of one text: these two read the same elements in the same order, and number them otherwise.
TEST_CASE("kernels: the position that an argmax gives is part of the text") {
  auto position = [](bool transposed) {
    GraphBuilder b;
    Value x = b.slice(b.input({DType::i64, {4, 7}, {}}), {0, 0}, {1, 1}, {4, 3});
    if (transposed) x = b.permute(x, {1, 0});
    return b.finish({b.reduce(Op::reduce_argmax, x, {0, 1})});
  };
  Graph plain = position(false), transposed = position(true);
  CHECK(text_of(kernels_of(plain)) != text_of(kernels_of(transposed)));
  for (uint32_t seed = 0; seed < 5; ++seed)
    for (const Graph* g : {&plain, &transposed}) {
      auto inputs = testing::random_inputs(*g, seed);
      CHECK(run(*g, inputs)[0].bytes == interpret(*g, inputs)[0].bytes);
    }
}

TEST_CASE("kernels: errors name the line and what was expected") {
  CHECK(error_of("") == "line 1, column 1: expected 'kernel'");
  CHECK(error_of("axis i0 < 2") == "line 1, column 1: expected 'kernel'");
  CHECK(error_with("symbols 1", "symbols x") == "line 1, column 23: expected an integer, found 'x'");
  CHECK(error_with("i1 < 64", "i0 < 64") == "line 3, column 10: expected an axis that is not there yet, found 'i0'");
  CHECK(error_with("i0 < s0", "i0 < s1") == "line 2, column 13: symbol s1 is not declared");
  CHECK(error_with("2*i0", "2*i7") == "line 7, column 17: axis i7 is not declared");
  CHECK(error_with("buffer b1", "buffer b2") == "line 5, column 10: b2 is not defined above");
  CHECK(error_with(": i64", ": i65") == "line 5, column 15: unknown element type \"i65\"");
  CHECK(error_with("load b1", "load b3") == "line 6, column 13: b3 is not defined above");
  CHECK(error_with("lt(e1, e2)", "lt(e1, e3)") == "line 9, column 15: e3 is not defined above");
  CHECK(error_with("lt(e1, e2)", "scan_sum(e1)") == "line 9, column 8: no expression of a kernel is called 'scan_sum'");
  CHECK(error_with("e6 = ", "e5 = ") == "line 12, column 3: expected e6");
  CHECK(error_with("b1[i0] = ", "b1[i0] ") == "line 17, column 10: expected '=', found 'e10'");
}

TEST_CASE("kernels: the verifier names the part") {
  CHECK(error_with("lt(e1, e2) : b1", "lt(e1, e2) : i64") == "kernel, e3: compares and is not b1");
  CHECK(error_with("mul(e5, e6)", "mul(e5, e0)") == "kernel, e7: operand 1 is i64, not f32");
  CHECK(error_with("mul(e5, e6)", "mul(e5)") == "kernel, e7: mul has 1 operands");
  CHECK(error_with("parameter 0", "parameter 1") == "kernel, e6: is none of the parameters");
  CHECK(error_with("e4*(64)", "e5*(64)") == "line 11, column 20: e5 is not defined above");
  CHECK(error_with("< s0 if e3", "< s0 if e2") == "kernel, e4: its predicate is not b1");
  CHECK(error_with("load b1[i0] : i64", "load b0[i0] : i64") == "kernel, e0: is i64, b0 is f32");
  CHECK(error_with("b1[i0] = e10", "b0[i0] = e10") == "kernel, store 0: is i64, b0 is f32");
  Kernel k = Kernel::parse(kKernel);
  k.exprs[7].args[0] = 9;
  CHECK_THROWS_WITH(k.verify(), "kernel, e7: e9 is not computed before it");
}

TEST_CASE("kernels: a damaged text is an error and never a crash") {
  std::mt19937 random(1);
  int errors = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = kKernel;
    for (int n = 0; n < 2; ++n) {
      size_t at = random() % damaged.size();
      if (random() % 2) damaged.erase(at, 1 + random() % 4);
      else damaged[at] = "()[]:=,.\"s0-9eib\n"[random() % 17];
    }
    errors += error_of(damaged) != "no error";
  }
  CHECK(errors > 1000);
}

TEST_CASE("kernel: what its result may be written over is read once for each element, there and by no reduction") {
  auto over = [](const std::string& axes, const std::string& exprs, const std::string& stores) {
    return overwritable(
        Kernel::parse("kernel symbols 0\n" + axes + "  buffer b0 : f32\n  buffer b1 : f32\n  buffer b2 : f32\n" + exprs + stores));
  };
  const std::string flat = "  axis i0 < 64\n", rows = "  axis i0 < 8\n  reduce i1 < 64\n";
  const std::string two = "  e0 = load b0[i0] : f32\n  e1 = load b1[i0] : f32\n  e2 = mul(e0, e1) : f32\n";
  CHECK(over(flat, two, "  b2[i0] = e2\n") == std::vector<size_t>{0, 1});
  CHECK(over(flat, two, "  b2[i0 + 1] = e2\n").empty());
  CHECK(over(flat, two, "  b2[i0] = e2\n  b2[i0 + 64] = e0\n").empty());
  const std::string shifted = "  e0 = load b0[i0] : f32\n  e1 = load b1[63 - i0] : f32\n  e2 = mul(e0, e1) : f32\n";
  CHECK(over(flat, shifted, "  b2[i0] = e2\n") == std::vector<size_t>{0});
  const std::string neighbours = "  e0 = load b0[i0] : f32\n  e1 = load b0[63 - i0] : f32\n  e2 = mul(e0, e1) : f32\n";
  CHECK(over(flat, neighbours, "  b2[i0] = e2\n").empty());
  CHECK(overwritable(Kernel::parse("kernel symbols 0\n" + flat +
                                   "  buffer b0 : bf16\n  buffer b1 : f32\n  buffer b2 : f32\n"
                                   "  e0 = load b0[i0] : bf16\n  e1 = cast(e0) : f32\n  b2[i0] = e1\n"))
            .empty());
  const std::string normalised =
      "  e0 = load b0[64*i0 + i1] : f32\n  e1 = load b1[64*i0 + i1] : f32\n  e2 = reduce_sum(e0) : f32\n  e3 = mul(e0, e2) : f32\n"
      "  e4 = mul(e3, e1) : f32\n";
  CHECK(over(rows, normalised, "  b2[64*i0 + i1] = e4\n") == std::vector<size_t>{1});
}
