#include "weights.h"

#include <ATen/ops/_lazy_clone.h>

#include <algorithm>

namespace broach {

namespace {
// A source that is written this often is not worth packing.
constexpr int kMostRebuilds = 8;
}  // namespace

Weights::Weights(std::shared_ptr<const Executable> executable, const std::vector<bool>& constant) : executable_(std::move(executable)) {
  for (const auto& p : executable_->packables())
    if (static_cast<size_t>(p.input) < constant.size() && constant[static_cast<size_t>(p.input)]) packables_.push_back(p);
}

bool Weights::fresh(const State& s, at::TensorList inputs) {
  return std::all_of(s.sources.begin(), s.sources.end(), [&](const Source& x) {
    return inputs[static_cast<size_t>(x.input)].const_data_ptr() == x.address && x.clone.const_data_ptr() == x.address;
  });
}

std::shared_ptr<const Weights::Packs> Weights::current(at::TensorList inputs, std::span<const int64_t> symbols) {
  if (packables_.empty()) return nullptr;
  auto state = state_.load(std::memory_order_acquire);
  if (state && fresh(*state, inputs)) return state->packs;
  std::lock_guard lock(mutex_);
  state = state_.load();
  if (state && fresh(*state, inputs)) return state->packs;
  if (rebuilds_ >= kMostRebuilds) return nullptr;
  ++rebuilds_;
  state_.store(nullptr);  // first give back what the old copies hold
  state = build(inputs, symbols);
  state_.store(state, std::memory_order_release);
  return state->packs;
}

std::shared_ptr<const Weights::State> Weights::build(at::TensorList inputs, std::span<const int64_t> symbols) const {
  auto state = std::make_shared<State>();
  auto packs = std::make_shared<Packs>(static_cast<size_t>(executable_->contractions()));
  for (const auto& p : packables_) {
    const at::Tensor& t = inputs[static_cast<size_t>(p.input)];
    size_t bytes = 0;
    try {
      bool known = std::any_of(state->sources.begin(), state->sources.end(), [&](const Source& s) { return s.input == p.input; });
      if (!known) {
        at::Tensor clone = at::_lazy_clone(t.detach());
        const void* address = clone.const_data_ptr();
        if (address != t.const_data_ptr()) continue;  // memory that torch cannot share: not packed
        state->sources.push_back({p.input, std::move(clone), address});
      }
      (*packs)[static_cast<size_t>(p.contraction)] = executable_->pack(p.contraction, t.const_data_ptr(), symbols, &bytes);
    } catch (const c10::Error&) {
      continue;  // likewise
    }
    state->bytes += static_cast<int64_t>(bytes);
  }
  state->packs = std::move(packs);
  return state;
}

int64_t Weights::bytes() const {
  auto state = state_.load();
  return state ? state->bytes : 0;
}

}  // namespace broach
