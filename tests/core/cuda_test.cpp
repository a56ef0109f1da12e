// Code for GPUs, without one: what is generated, and that NVIDIA's compiler takes it (where there is one: NVRTC needs no device).
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "random_graph.h"
#include "schedule/schedule.h"
#include "support/error.h"
#include "target/cuda/emit_kernel.h"
#include "target/cuda/kernels.h"
#include "target/cuda/libraries.h"
#include "target/cuda/product_form.h"

namespace broach {

namespace {

using Kernels = std::vector<std::shared_ptr<const Kernel>>;

Kernels kernels_of(const Schedule& schedule) {
  Kernels out;
  for (const Step& s : schedule.steps)
    if (const auto* k = std::get_if<KernelStep>(&s.work)) out.push_back(k->kernel);
  return out;
}

Kernels kernels_of(const Graph& source) {
  auto graph =
      std::make_shared<const Graph>(rewrite(source, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; }));
  std::vector<Shape> strides;
  for (const Value& v : graph->inputs()) strides.push_back(contiguous_strides(v.shape()));
  std::vector<OutputRequest> requests;
  for (const Value& v : graph->outputs()) requests.push_back({contiguous_strides(v.shape()), -1});
  return kernels_of(make_schedule(graph, strides, requests, {}));
}

void compile(const Kernels& kernels, const cuda::Variant& variant) {
  const std::string source = cuda::emit_unit(kernels, variant);
  try {
    CHECK(!cuda::Nvrtc::get().machine_code(source, variant.architecture, true).empty());
  } catch (const Unsupported& e) {
    std::string texts;
    for (const auto& k : kernels) texts += k->str();
    FAIL(e.what(), "\n", texts, source.substr(source.find("extern \"C\" __global__")));
  }
}

bool has_compiler() {
  if (cuda::Nvrtc::is_available()) return true;
  MESSAGE("skipped: libnvrtc.so is not here (BROACH_NVRTC_LIBRARY names one)");
  return false;
}

std::string emitted(const char* text) { return cuda::emit_kernel(cuda::plan_kernel(Kernel::parse(text), {90}), "k0"); }

}  // namespace

TEST_CASE("cuda: NVIDIA's compiler takes the kernels of random graphs") {
  if (!has_compiler()) return;
  Kernels all;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const Kernels some = kernels_of(testing::random_graph(seed, {.steps = 16, .symbolic = seed % 2 == 1, .max_elements = 1 << 16}));
    all.insert(all.end(), some.begin(), some.end());
  }
  for (const cuda::Variant& v : {cuda::Variant{90}, cuda::Variant{75, false, true}}) compile(all, v);
}

// A file with schedules, as BROACH_DUMP=schedule prints them, one behind the other.
TEST_CASE("cuda: NVIDIA's compiler takes the kernels of a file of schedules") {
  const char* path = std::getenv("BROACH_TEST_SCHEDULES");
  if (!path || !has_compiler()) return;
  std::ifstream file(path);
  std::string line, text;
  Kernels all;
  auto add = [&] {
    if (!text.empty()) all.push_back(std::make_shared<const Kernel>(Kernel::parse(text)));
    text.clear();
  };
  while (std::getline(file, line)) {
    if (line.starts_with("kernel ")) add();
    else if (!line.starts_with("  ")) {
      add();
      continue;
    }
    if (line.starts_with("kernel ") || !text.empty()) text += line + "\n";
  }
  add();
  compile(all, {90});
  if (std::getenv("BROACH_TEST_SHOW")) std::cout << cuda::emit_unit(all, {90});
}

}  // namespace broach
