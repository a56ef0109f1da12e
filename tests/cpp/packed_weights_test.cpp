// Which copies of weights are kept, where the test says what was measured of packing instead of the CPU's target.
#include <ATen/ATen.h>
#include <broach/broach.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#undef CHECK  // c10's, which ends the process
#include <doctest/doctest.h>

#include <cstring>
#include <map>

#include "errors.h"
#include "like_cpu.h"
#include "target/packing.h"

using at::Tensor;

namespace {

// What is known of packing weights of so many bytes.
struct Known {
  bool is_measured = false, wins = false;
};
std::map<size_t, Known> all_known;

constexpr int64_t kWidth = 160, kNarrow = 96, kWeight = 4 * kWidth * kWidth, kSmallWeight = 4 * kWidth * kNarrow;

void learn(Known now, int64_t bytes = kWeight) {
  all_known[static_cast<size_t>(bytes)] = now;
  broach::PackingNews::announce();
}

// Packed copies are as the weights are, and nobody reads them.
class Contraction : public broach::CompiledContraction, private broach::WeightPacking {
 public:
  explicit Contraction(std::shared_ptr<const broach::CompiledContraction> by_cpu, size_t bytes)
      : by_cpu_(std::move(by_cpu)), bytes_(bytes), known_(all_known[bytes]) {}

  void run(const broach::ContractionArgs& args, const broach::RunContext& run) const override {
    broach::ContractionArgs plain = args;
    plain.packed = nullptr;
    by_cpu_->run(plain, run);
  }
  std::string pick(std::span<const int64_t>) const override { return "the test's"; }
  const broach::WeightPacking* packing() const override { return this; }

 private:
  size_t bytes(std::span<const int64_t>, bool trial) const override { return trial || (known_.is_measured && known_.wins) ? bytes_ : 0; }
  size_t layout(std::span<const int64_t>) const override { return 1; }
  void pack(std::span<const int64_t>, const void* weight, void* packed) const override { std::memcpy(packed, weight, bytes_); }
  size_t trial(std::span<const int64_t>) const override { return known_.is_measured ? 0 : bytes_; }
  std::optional<broach::PackingGain> gain(std::span<const int64_t>) const override {
    if (!known_.is_measured) return std::nullopt;
    return broach::PackingGain{known_.wins ? 0.001 : 0.003, 0.002};
  }
  bool is_settled(std::span<const int64_t>) const override { return known_.is_measured; }

  std::shared_ptr<const broach::CompiledContraction> by_cpu_;
  size_t bytes_;
  const Known& known_;
};

class Target : public LikeCpu {
 public:
  Target() { broach::set_target(broach::DeviceKind::cpu, this); }
  ~Target() override { broach::set_target(broach::DeviceKind::cpu, nullptr); }
  std::shared_ptr<const broach::CompiledContraction> contraction(const broach::ContractionStep& step,
                                                                 const broach::CompileSettings& settings) const override {
    auto by_cpu = LikeCpu::contraction(step, settings);
    const int64_t bytes = 4 * step.operands[1].type.numel().maybe_constant().value();
    return by_cpu ? std::make_shared<Contraction>(std::move(by_cpu), static_cast<size_t>(bytes)) : nullptr;
  }
};

template <class Program>
void call(const Program& f, const Tensor& x, int times = 3000) {  // enough for the pace, also where packing was interrupted
  for (int i = 0; i < times; ++i) f(x);
}

}  // namespace

TEST_CASE("packed weights: one is packed to be tried, and given back where packing loses") {
  at::NoGradGuard no_grad;
  const Target target;
  torch::nn::Sequential module(torch::nn::Linear(kWidth, kWidth), torch::nn::Linear(kWidth, kWidth), torch::nn::Linear(kWidth, kWidth));
  const Tensor x = at::randn({32, kWidth});
  all_known.clear();
  auto f = broach::compile(module);
  if (call(f, x); f.explain().contractions == 0) return;  // a build without oneDNN
  auto e = f.explain();
  REQUIRE(e.kept.size() == 1);
  CHECK(e.packed_bytes == kWeight);
  CHECK(e.kept[0].what == "dot f32[160, 160]");
  CHECK(e.kept[0].why == "being measured");

  learn({.is_measured = true, .wins = true});
  call(f, x);
  e = f.explain();
  REQUIRE(e.kept.size() == 1);
  CHECK(e.packed_bytes == 3 * kWeight);
  CHECK(e.kept[0].count == 3);
  CHECK(e.kept[0].bytes == 3 * kWeight);
  CHECK(e.kept[0].why == "measured");
  CHECK(e.kept[0].seconds == doctest::Approx(0.003));
  CHECK(e.kept[0].seconds_unpacked == doctest::Approx(0.006));
  CHECK(has(e.str(), "packed weights  0.3 MiB, 3.0 ms for 6.0 ms without"));
  CHECK(has(e.str(), "dot f32[160, 160]"));

  learn({.is_measured = true, .wins = false});  // measured again
  f(x);
  e = f.explain();
  CHECK(e.packed_bytes == 0);
  CHECK(e.kept.empty());

  learn({.is_measured = true, .wins = true});
  call(f, x);
  CHECK(f.explain().packed_bytes == 3 * kWeight);
}

TEST_CASE("packed weights: what loses is given back while others are still being measured") {
  at::NoGradGuard no_grad;
  const Target target;
  torch::nn::Sequential module(torch::nn::Linear(kWidth, kWidth), torch::nn::Linear(kWidth, kNarrow));
  const Tensor x = at::randn({32, kWidth});
  all_known.clear();
  auto f = broach::compile(module);
  if (call(f, x); f.explain().contractions == 0) return;
  CHECK(f.explain().packed_bytes == kWeight + kSmallWeight);
  learn({.is_measured = true, .wins = false});
  call(f, x, 1);
  CHECK(f.explain().packed_bytes == kSmallWeight);
  learn({});  // the pick became slow: it is measured anew
  call(f, x);
  CHECK(f.explain().packed_bytes == kWeight + kSmallWeight);
}

TEST_CASE("packed weights: copies that two programs share count once") {
  at::NoGradGuard no_grad;
  const Target target;
  torch::nn::Sequential module{torch::nn::Linear(kWidth, kWidth)};
  all_known.clear();
  learn({.is_measured = true, .wins = true});
  auto f = broach::compile(module);
  for (int64_t rows : {32, 33, 34}) call(f, at::randn({rows, kWidth}));
  auto e = f.explain();
  if (e.contractions == 0) return;
  CHECK(e.programs >= 2);
  CHECK(e.packed_bytes == kWeight);
}
