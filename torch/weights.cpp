#include "weights.h"

#include <ATen/ops/_lazy_clone.h>

#include <algorithm>
#include <set>

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
  auto holds = [&](const std::shared_ptr<const State>& s) { return s && fresh(*s, inputs) && (s->settled || !main_->executable().is_settled(symbols)); };
  if (holds(state)) return state;
  std::unique_lock lock(mutex_);
  state = state_.load();
  if (holds(state)) return state;
  if (state && fresh(*state, inputs)) {  // what was measured says that other weights are to be packed than those that are
    if (auto next = build(inputs, symbols, state.get())) {
      state_.store(next, std::memory_order_release);
      return next;
    }
  }
  if (rebuilds_ < kMostRebuilds) {
    ++rebuilds_;
    state_.store(nullptr);  // first give back what the old copies hold
    state = build(inputs, symbols, nullptr);
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

// `old`: a state that agrees with the inputs, of which what is still wanted is kept.
std::shared_ptr<const Weights::State> Weights::build(const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const {
  auto state = std::make_shared<State>();
  for (int i : prologue_inputs_)
    if (!add_source(*state, i, inputs)) return nullptr;
  if (old) state->frozen = old->frozen;
  else if (prologue_) state->frozen = prologue_->run(inputs, {}, nullptr, {});
  pack(*state, inputs, symbols, old);
  for (const auto& t : state->frozen)
    if (t.defined()) state->bytes += static_cast<int64_t>(t.nbytes());
  return state;
}

void Weights::pack(State& state, const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const {
  const Executable& main = main_->executable();
  state.packs.resize(static_cast<size_t>(main.contractions()));
  state.settled = main.is_settled(symbols);
  std::set<size_t> trials;  // one weight packed for each
  auto given = static_cast<int>(inputs.tensors.size());
  for (const auto& p : packables_) {
    bool is_frozen = p.input >= given, trial = false;
    if (!main.wants_packed(p.contraction, symbols)) {
      size_t shape = main.packing_trial(p.contraction, symbols);
      trial = shape && trials.insert(shape).second;
      if (!trial) continue;
    }
    if (!is_frozen && !add_source(state, p.input, inputs)) continue;
    const at::Tensor& t = is_frozen ? state.frozen[static_cast<size_t>(p.input - given)] : *inputs.tensors[static_cast<size_t>(p.input)];
    PackedWeight& packed = state.packs[static_cast<size_t>(p.contraction)];
    if (old && old->packs[static_cast<size_t>(p.contraction)].data) packed = old->packs[static_cast<size_t>(p.contraction)];
    else packed = main.pack(p.contraction, t.const_data_ptr(), symbols, trial);
    state.bytes += static_cast<int64_t>(packed.bytes);
  }
  if (!symbols.empty() || !state.settled) return;  // other sizes, or candidates, may want them in other arrangements
  for (size_t i = 0; i < state.frozen.size(); ++i)
    if (!main_->reads_unpacked(given + static_cast<int>(i), state.packs)) state.frozen[i] = at::Tensor();
}

int64_t Weights::bytes() const {
  auto state = state_.load();
  return state ? state->bytes : 0;
}

}  // namespace broach
