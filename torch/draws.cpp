#include "draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <span>

#include "externs.h"
#include "ops/random.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BROACH_VECTORS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define BROACH_VECTORS
#endif

namespace broach {

namespace {

constexpr size_t kWords = at::MERSENNE_STATE_N, kShift = at::MERSENNE_STATE_M;

// M. Matsumoto, T. Nishimura: Mersenne twister (ACM TOMACS 8, 1998). A word of the next state follows from two neighbours and from the
// word kShift further on, round the state.
constexpr uint32_t twisted(uint32_t upper, uint32_t lower, uint32_t further) {
  const uint32_t mixed = (upper & 0x80000000u) | (lower & 0x7fffffffu);
  return further ^ (mixed >> 1) ^ (-(lower & 1u) & 0x9908b0dfu);
}

// The second loop reads words that it has written itself, many vectors before.
BROACH_VECTORS void twist(uint32_t* state) {
  for (size_t i = 0; i < kWords - kShift; ++i) state[i] = twisted(state[i], state[i + 1], state[i + kShift]);
#pragma GCC ivdep
  for (size_t i = kWords - kShift; i < kWords - 1; ++i) state[i] = twisted(state[i], state[i + 1], state[i + kShift - kWords]);
  state[kWords - 1] = twisted(state[kWords - 1], state[0], state[kShift - 1]);
}

BROACH_VECTORS void temper(const uint32_t* state, uint32_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t y = state[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    out[i] = y ^ (y >> 18);
  }
}

// at::uniform_real_distribution<double> takes the lower 53 bits of two words, the upper first, by 2^-53.
constexpr double kValues = 9007199254740992.0;
constexpr uint32_t kUpperMask = (1u << 21) - 1;

// Of pairs of words, which are below `end`, that is at most kValues.
BROACH_VECTORS void compare(const uint32_t* words, bool* out, size_t count, uint64_t end) {
  const auto upper_end = static_cast<uint32_t>(end >> 32), lower_end = static_cast<uint32_t>(end);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t upper = words[2 * i] & kUpperMask, lower = words[2 * i + 1];
    out[i] = (upper < upper_end) | ((upper == upper_end) & (lower < lower_end));
  }
}

// What at::bernoulli_ does where it takes the numbers one after the other.
void choose(at::CPUGeneratorImpl& generator, bool* out, int64_t count, double p) {
  const auto end = static_cast<uint64_t>(std::ceil(p * kValues));
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data = engine.data();
  std::array<uint32_t, kWords + 1> words;
  size_t held = 0;  // words[0] is the upper word of a pair whose lower one comes with the next state
  for (auto left = static_cast<size_t>(count); left > 0;) {
    if (data.left_ == 1) {
      twist(data.state_.data());
      data.left_ = static_cast<int>(kWords) + 1;
      data.next_ = 0;
    }
    const size_t taken = std::min(static_cast<size_t>(data.left_ - 1), 2 * left - held);
    temper(data.state_.data() + data.next_, words.data() + held, taken);
    data.left_ -= static_cast<int>(taken);
    data.next_ += static_cast<uint32_t>(taken);
    const size_t pairs = (held + taken) / 2;
    compare(words.data(), out, pairs, end);
    out += pairs;
    left -= pairs;
    held = (held + taken) % 2;
    words[0] = words[2 * pairs];
  }
  engine.set_data(data);
  generator.set_engine(engine);
}

at::CPUGeneratorImpl& on_cpu(const at::Generator& g) { return *at::check_generator<at::CPUGeneratorImpl>(g); }

// Whether torch does take them so: on some processors it draws from a library's generator. Tried over several states.
bool is_serial() {
  static const bool serial = [] {
    constexpr int64_t kCount = 3 * kWords + 1;
    constexpr double kChance = 0.7;
    const at::Generator torchs = at::detail::createCPUGenerator(), own = at::detail::createCPUGenerator();
    at::Tensor expected = at::detail::empty_cpu({kCount}, at::kBool), drawn = at::detail::empty_cpu({kCount}, at::kBool);
    at::cpu::bernoulli_(expected, kChance, torchs);
    choose(on_cpu(own), drawn.mutable_data_ptr<bool>(), kCount, kChance);
    return std::ranges::equal(std::span(expected.const_data_ptr<bool>(), kCount), std::span(drawn.const_data_ptr<bool>(), kCount)) &&
           on_cpu(torchs).random64() == on_cpu(own).random64();
  }();
  return serial;
}

class Draw : public ExternRunner {
 public:
  explicit Draw(const ExternStep& step)
      : call_(step.operation.call()), chance_(std::get<double>(std::get<Scalar>(call_.args.at(1).value))), result_(step.results.at(0)) {}

  void run(Frame& frame) const override {
    at::Tensor drawn = at::detail::empty_cpu(evaluate(call_.results[0].shape, frame.symbols), at::kBool);
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    if (is_serial()) {
      const std::lock_guard lock(generator.mutex());
      choose(on_cpu(generator), drawn.mutable_data_ptr<bool>(), drawn.numel(), chance_);
    } else {
      at::cpu::bernoulli_(drawn, chance_, generator);
    }
    if (result_ < 0) return;  // what was drawn is not used
    const auto buffer = static_cast<size_t>(result_);
    frame.data[buffer] = drawn.data_ptr();
    static_cast<ExternState*>(frame.host)->tensors[buffer] = std::move(drawn);
  }

 private:
  const ExternCall& call_;
  double chance_;
  int result_;
};

}  // namespace

std::unique_ptr<ExternRunner> make_draw(const ExternStep& step) {
  return step.operation.call().schema == kHostBernoulli ? std::make_unique<Draw>(step) : nullptr;
}

}  // namespace broach
