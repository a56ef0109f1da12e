#include "weights.h"

#include <ATen/ops/_lazy_clone.h>

#include <algorithm>

namespace broach {

namespace {

// While the clone shares its source's memory, any write moves the source, and nothing else can come to lie there.
bool fresh(const Weights::State& s, const RunInputs& inputs) {
  return std::all_of(s.sources.begin(), s.sources.end(), [&](const auto& x) { return inputs.addresses[static_cast<size_t>(x.input)] == x.address; });
}

// Sources that are written this often are not worth packing.
constexpr int kMostRebuilds = 8;

}  // namespace

Weights::Weights(std::shared_ptr<const Runner> main, std::shared_ptr<const Runner> prologue, std::vector<bool> constant)
    : main_(std::move(main)), prologue_(std::move(prologue)), constant_(std::move(constant)) {
  if (prologue_)
    for (const Buffer& b : prologue_->executable().schedule().buffers)
      if (b.kind == Buffer::Kind::input) prologue_inputs_.push_back(b.index);
  for (const auto& p : main_->executable().packables())
    if (static_cast<size_t>(p.input) >= constant_.size() || constant_[static_cast<size_t>(p.input)]) packables_.push_back(p);
}

std::shared_ptr<const Weights::State> Weights::current(const RunInputs& inputs, const std::vector<int64_t>& symbols) {
  if (packables_.empty() && !prologue_) return nullptr;
  auto state = state_.load(std::memory_order_acquire);
  if (state && fresh(*state, inputs)) return state;
  std::unique_lock lock(mutex_);
  state = state_.load();
  if (state && fresh(*state, inputs)) return state;
  if (rebuilds_ < kMostRebuilds) {
    ++rebuilds_;
    state_.store(nullptr);  // first give back what the old copies hold
    state = build(inputs, symbols);
    if (state) {
      state_.store(state, std::memory_order_release);
      return state;
    }
    rebuilds_ = kMostRebuilds;  // memory that cannot be watched stays so
  }
  lock.unlock();
  // Written again and again: compute what the program needs for this call, and pack nothing.
  auto once = std::make_shared<State>();
  if (prologue_) once->frozen = prologue_->run(inputs, {}, nullptr, {});
  once->packs.resize(static_cast<size_t>(main_->executable().contractions()));
  return once;
}

bool Weights::add_source(State& state, int input, const RunInputs& inputs) const {
  if (std::any_of(state.sources.begin(), state.sources.end(), [&](const auto& s) { return s.input == input; })) return true;
  const at::Tensor& t = *inputs.tensors[static_cast<size_t>(input)];
  try {
    at::Tensor clone = at::_lazy_clone(t.detach());
    const void* address = address_of(clone);
    if (address != inputs.addresses[static_cast<size_t>(input)]) return false;
    state.sources.push_back({input, address});
    state.clones.push_back(std::move(clone));
    return true;
  } catch (const c10::Error&) {
    return false;  // memory that torch cannot share
  }
}

std::shared_ptr<const Weights::State> Weights::build(const RunInputs& inputs, const std::vector<int64_t>& symbols) const {
  auto state = std::make_shared<State>();
  for (int i : prologue_inputs_)
    if (!add_source(*state, i, inputs)) return nullptr;
  if (prologue_) state->frozen = prologue_->run(inputs, {}, nullptr, {});
  pack(*state, inputs, symbols);
  for (const auto& t : state->frozen)
    if (t.defined()) state->bytes += static_cast<int64_t>(t.nbytes());
  return state;
}

void Weights::pack(State& state, const RunInputs& inputs, const std::vector<int64_t>& symbols) const {
  const Executable& main = main_->executable();
  state.packs.resize(static_cast<size_t>(main.contractions()));
  auto given = static_cast<int>(inputs.tensors.size());
  for (const auto& p : packables_) {
    bool is_frozen = p.input >= given;
    if (!is_frozen && !add_source(state, p.input, inputs)) continue;
    const at::Tensor& t = is_frozen ? state.frozen[static_cast<size_t>(p.input - given)] : *inputs.tensors[static_cast<size_t>(p.input)];
    PackedWeight& packed = state.packs[static_cast<size_t>(p.contraction)];
    packed = main.pack(p.contraction, t.const_data_ptr(), symbols);
    state.bytes += static_cast<int64_t>(packed.bytes);
  }
  if (!symbols.empty()) return;  // other sizes may want other arrangements of them
  for (size_t i = 0; i < state.frozen.size(); ++i)
    if (!main_->reads_unpacked(given + static_cast<int>(i), state.packs)) state.frozen[i] = at::Tensor();
}

int64_t Weights::bytes() const {
  auto state = state_.load();
  return state ? state->bytes : 0;
}

}  // namespace broach
