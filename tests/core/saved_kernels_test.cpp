// Kernels that were compiled are saved as bytes, and loaded.
#include <doctest/doctest.h>

#include "run_compiled.h"
#include "support/error.h"

namespace broach {

namespace {

Schedule schedule_of(int64_t n) {
  GraphBuilder b;
  Value x = b.input({DType::f32, {n}, {}});
  Graph g = b.finish({b.unary(Op::exp, x), b.reduce(Op::reduce_sum, b.unary(Op::tanh, x), {0})});
  return testing::scheduled(g, {.strict = false, .fuse = false});
}

std::vector<std::shared_ptr<const Kernel>> kernels_of(const Schedule& s) {
  std::vector<std::shared_ptr<const Kernel>> out;
  for (const Step& step : s.steps)
    if (auto* k = std::get_if<KernelStep>(&step.work)) out.push_back(k->kernel);
  return out;
}

std::vector<float> launch(const CompiledKernel& kernel) {
  std::vector<float> in{0.5F, -1, 2}, out(3);
  void* buffers[2] = {in.data(), out.data()};
  ErrorFlag errors;
  const SerialThreads threads;
  kernel.launch(buffers, nullptr, {.errors = &errors, .threads = &threads});
  return out;
}

}  // namespace

TEST_CASE("saved kernels: what is loaded does the same, equal kernels stay one") {
  auto kernels = kernels_of(schedule_of(3));
  kernels.push_back(kernels[0]);
  const Target& cpu = *cpu_target();
  const CompiledKernels compiled = cpu.compile(kernels, {.save = true});
  const std::string bytes = cpu.save(compiled);
  const CompiledKernels loaded = cpu.load(bytes);
  REQUIRE(loaded.size() == kernels.size());
  CHECK(loaded.front() == loaded.back());
  CHECK(loaded[0] != loaded[1]);
  CHECK(launch(*loaded[0]) == launch(*compiled[0]));
}

TEST_CASE("saved kernels: bytes of another machine, or damaged ones, are refused") {
  const Target& cpu = *cpu_target();
  const std::string bytes = cpu.save(cpu.compile(kernels_of(schedule_of(4)), {.save = true}));
  std::string other = bytes;
  other[12] ^= 1;  // within the fingerprint
  CHECK_THROWS_AS(cpu.load(other), Unsupported);
  for (size_t length : {size_t{0}, size_t{5}, bytes.size() / 2, bytes.size() - 3})
    CHECK_THROWS_AS(cpu.load(std::string_view(bytes).substr(0, length)), Unsupported);
  CHECK_THROWS_AS(cpu.save(cpu.compile(kernels_of(schedule_of(5)), {})), Error);
}

}  // namespace broach
