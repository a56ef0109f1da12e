#include "weights.h"

#include <ATen/ops/_lazy_clone.h>

#include <algorithm>
#include <chrono>
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
  if (prologue_) {
    // Every input has a buffer; those that nothing reads, the caller's arguments among them, say nothing of the values.
    const Schedule& schedule = prologue_->executable().schedule();
    std::set<int> read;
    for (const Step& s : schedule.steps) read.insert(s.reads.begin(), s.reads.end());
    for (int b : read)
      if (const Buffer& buffer = schedule.buffers[static_cast<size_t>(b)]; buffer.kind == Buffer::Kind::input) prologue_inputs_.push_back(buffer.index);
  }
  for (const auto& p : main_->executable().packables())
    if (static_cast<size_t>(p.input) >= constant_.size() || constant_[static_cast<size_t>(p.input)]) packables_.push_back(p);
}

std::shared_ptr<const Weights::State> Weights::current(const RunInputs& inputs, const std::vector<int64_t>& symbols) {
  if (packables_.empty() && !prologue_) return nullptr;
  auto state = state_.load(std::memory_order_acquire);
  auto holds = [&](const std::shared_ptr<const State>& s) { return s && fresh(*s, inputs) && (s->settled || !may_go_on(*s, symbols)); };
  if (holds(state)) return state;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!lock.try_lock()) {
    if (state && fresh(*state, inputs)) return state;  // another thread is packing more
    lock.lock();
  }
  state = state_.load();
  if (holds(state)) return state;
  if (state && fresh(*state, inputs)) {  // other weights are to be packed than those that are
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
  for (const at::Tensor& t : once->frozen) once->frozen_inputs.add(t);
  once->packs.resize(static_cast<size_t>(main_->executable().contractions()));
  return once;
}

std::shared_ptr<const at::Tensor> Weights::add_source(State& state, int input, const RunInputs& inputs, const State* old) const {
  for (size_t i = 0; i < state.sources.size(); ++i)
    if (state.sources[i].input == input) return state.clones[i];
  for (size_t i = 0; old && i < old->sources.size(); ++i) {
    if (old->sources[i].input != input) continue;
    state.sources.push_back(old->sources[i]);
    return state.clones.emplace_back(old->clones[i]);
  }
  const at::Tensor& t = *inputs.tensors[static_cast<size_t>(input)];
  try {
    std::shared_ptr<const at::Tensor> clone = std::make_shared<at::Tensor>(at::_lazy_clone(t.detach()));
    const void* address = address_of(*clone);
    if (address != inputs.addresses[static_cast<size_t>(input)]) return nullptr;
    state.sources.push_back({input, address});
    state.clones.push_back(clone);
    return clone;
  } catch (const c10::Error&) {
    return nullptr;  // memory that torch cannot share
  }
}

std::optional<PackSource> Weights::source_of(State& state, int input, const RunInputs& inputs, const State* old) const {
  if (size_t given = inputs.tensors.size(); static_cast<size_t>(input) >= given) {
    size_t i = static_cast<size_t>(input) - given;
    return PackSource{state.frozen[i].const_data_ptr(), &state.frozen_names[static_cast<std::ptrdiff_t>(i)], state.frozen_names};
  }
  auto clone = add_source(state, input, inputs, old);
  if (!clone) return std::nullopt;
  return PackSource{address_of(*clone), address_of(*clone), clone};
}

// `old`: a state that agrees with the inputs; what is packed alike in both is shared.
std::shared_ptr<const Weights::State> Weights::build(const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const {
  auto state = std::make_shared<State>();
  for (int i : prologue_inputs_)
    if (!add_source(*state, i, inputs, old)) return nullptr;
  if (old) {
    state->frozen = old->frozen;
    state->frozen_names = old->frozen_names;
  } else if (prologue_) {
    state->frozen = prologue_->run(inputs, {}, nullptr, {});
    state->frozen_names = std::make_shared<std::byte[]>(state->frozen.size());
  }
  pack(*state, inputs, symbols, old);
  for (const at::Tensor& t : state->frozen) state->frozen_inputs.add(t);
  return state;
}

std::vector<Executable::Packable> Weights::wanted(const std::vector<int64_t>& symbols) const {
  const Executable& main = main_->executable();
  std::vector<Executable::Packable> out;
  std::set<size_t> trials;  // one weight packed for each
  for (const auto& p : packables_) {
    size_t shape = main.wants_packed(p.contraction, symbols) ? 0 : main.packing_trial(p.contraction, symbols);
    if (shape ? trials.insert(shape).second : main.wants_packed(p.contraction, symbols)) out.push_back(p);
  }
  return out;
}

bool Weights::may_go_on(const State& state, const std::vector<int64_t>& symbols) const {
  const Executable& main = main_->executable();
  bool lacks = false;
  for (const auto& p : wanted(symbols)) {
    if (state.packs[static_cast<size_t>(p.contraction)].data || state.unwatched.contains(p.input)) continue;
    if (!main.pace() || main.pace()->affords_packing(main.packed_bytes(p.contraction, symbols))) return true;
    lacks = true;
  }
  return !lacks && main.is_settled(symbols);
}

// As many of the copies that are wanted as the program's pace allows in this call.
void Weights::pack(State& state, const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const {
  const Executable& main = main_->executable();
  state.packs.resize(static_cast<size_t>(main.contractions()));
  if (old) state.unwatched = old->unwatched;
  state.settled = main.is_settled(symbols);
  for (const auto& p : wanted(symbols)) {
    const auto at = static_cast<size_t>(p.contraction);
    const bool made = old && old->packs[at].data;
    if (state.unwatched.contains(p.input)) continue;
    if (!made && main.pace() && !main.pace()->affords_packing(main.packed_bytes(p.contraction, symbols))) {
      state.settled = false;
      continue;
    }
    if (auto source = source_of(state, p.input, inputs, old)) state.packs[at] = made ? old->packs[at] : pack_one(p.contraction, *source, symbols);
    else state.unwatched.insert(p.input);
  }
  if (!symbols.empty() || !state.settled) return;  // other sizes, or candidates, may want them in other arrangements
  for (size_t i = 0; i < state.frozen.size(); ++i)
    if (!main_->reads_unpacked(static_cast<int>(inputs.tensors.size() + i), state.packs)) state.frozen[i] = at::Tensor();
}

PackedWeight Weights::pack_one(int contraction, const PackSource& source, const std::vector<int64_t>& symbols) const {
  const Executable& main = main_->executable();
  auto start = std::chrono::steady_clock::now();
  PackedWeight packed = main.pack(contraction, source, symbols, true);
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (main.pace()) main.pace()->packed(packed.bytes, took.count());
  return packed;
}

std::map<const void*, int64_t> Weights::bytes() const {
  std::map<const void*, int64_t> out;
  auto state = state_.load();
  if (!state) return out;
  for (const PackedWeight& p : state->packs)
    if (p.data) out[p.data.get()] = static_cast<int64_t>(p.bytes);
  for (const at::Tensor& t : state->frozen)
    if (t.defined()) out[address_of(t)] = static_cast<int64_t>(t.nbytes());
  return out;
}

}  // namespace broach
