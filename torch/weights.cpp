#include "weights.h"

#include <algorithm>
#include <limits>
#include <set>

#include "support/error.h"

namespace broach {

namespace {

constexpr int kMostCalm = 15;

const at::Tensor& tensor(const RunInputs& inputs, int input) { return *inputs.tensors[static_cast<size_t>(input)]; }

// Whether nobody found one of the state's watches written since it was asked last.
bool is_unwritten(const Weights::State& s) {
  uint64_t found = Watches::of_process().found_written();
  if (found == s.found_written.load(std::memory_order_relaxed)) return true;
  if (std::any_of(s.watches.begin(), s.watches.end(), [](const auto& w) { return w->written(); })) return false;
  s.found_written.store(found, std::memory_order_relaxed);
  return true;
}

// Runs for hundreds of weights on each call. What lies at the address is the storage's while that is alive and has not moved.
bool is_fresh(const Weights::State& s, const RunInputs& inputs) {
  auto is_marked_still = [&](const auto& x) {
    const c10::StorageImpl& storage = *x.storage._unsafe_get_target();
    return inputs.addresses[static_cast<size_t>(x.input)] == x.address && !x.storage.expired() && storage.data() == x.memory &&
           is_marked(storage);
  };
  auto has_digest = [&](const auto& x) { return digest_of(tensor(inputs, x.input)) == x.digest; };
  return is_unwritten(s) && std::all_of(s.sources.begin(), s.sources.end(), is_marked_still) &&
         std::all_of(s.digested.begin(), s.digested.end(), has_digest);
}

// What was computed once is dropped where only packed copies of it are read.
bool has_all_frozen(const Weights::State& s) {
  return std::ranges::all_of(s.frozen, [](const at::Tensor& t) { return t.defined(); });
}

}  // namespace

double Upkeep::idle() const {
  return last_ ? std::chrono::duration<double>(Clock::now() - *last_).count() : std::numeric_limits<double>::infinity();
}

Weights::Weights(std::shared_ptr<const Runner> main, std::shared_ptr<const Runner> once, size_t first_frozen,
                 const std::vector<bool>& constant, bool by_rule)
    : main_(std::move(main)), once_(std::move(once)), first_frozen_(first_frozen), by_rule_(by_rule), upkeep_(by_rule) {
  if (once_) sources_.assign(once_->takes().begin(), once_->takes().end());
  std::set<int> weights(sources_.begin(), sources_.end());
  for (Executable::Packable p : main_->executable().packables()) {
    const size_t slot = main_->takes()[static_cast<size_t>(p.input)];
    const bool frozen = is_frozen(slot);
    if (!frozen && !constant[slot]) continue;
    packables_.push_back({p.contraction, static_cast<int>(slot)});
    if (!frozen) weights.insert(static_cast<int>(slot));
  }
  weights_.assign(weights.begin(), weights.end());
}

Weights::StatePointer Weights::current(const RunInputs& inputs, const std::vector<int64_t>& symbols) {
  if (packables_.empty() && !once_) return nullptr;
  StatePointer state = state_.load();
  std::unique_lock lock(mutex_, std::defer_lock);
  if (state && is_fresh(*state, inputs)) {
    if (is_complete(*state, inputs, symbols) || !lock.try_lock()) return state;  // another thread is packing more
  } else {
    lock.lock();
  }
  state = renewed(inputs, symbols);
  lock.unlock();
  return state ? state : once(inputs);
}

std::vector<at::Tensor> Weights::compute_frozen(const RunInputs& inputs) const {
  std::vector<at::Tensor> frozen(once_ ? once_->outputs() : 0);
  if (once_) once_->run(inputs, {}, nullptr, frozen);
  return frozen;
}

// What is to be packed, if all could be at once.
std::vector<Executable::Packable> Weights::wanted(const std::vector<int64_t>& symbols) const {
  const Executable& main = main_->executable();
  std::vector<Executable::Packable> out;
  std::set<size_t> trials;  // one weight packed for each
  for (const auto& p : packables_) {
    bool wants = main.wants_packed(p.contraction, symbols);
    size_t shape = wants ? 0 : main.packing_trial(p.contraction, symbols);
    if (wants || (shape && trials.insert(shape).second)) out.push_back(p);
  }
  return out;
}

bool Weights::affords(const Executable::Packable& p, const std::vector<int64_t>& symbols) const {
  const Executable& main = main_->executable();
  return !main.pace() || main.pace()->affords_packing(main.packed_bytes(p.contraction, symbols));
}

// Whether this call can add no copy, as the pace allows none of those that are wanted, and give none back.
bool Weights::has_what_is_wanted(const State& state, const std::vector<int64_t>& symbols) const {
  const uint64_t news = PackingNews::count();
  if (state.settled && (!symbols.empty() || state.news.load(std::memory_order_relaxed) == news)) return true;
  const Executable& main = main_->executable();
  bool lacks = false;
  std::set<int> known;
  for (const auto& p : wanted(symbols)) {
    known.insert(p.contraction);
    if (state.packs[static_cast<size_t>(p.contraction)].data || state.unwatched.contains(p.input)) continue;
    if (affords(p, symbols)) return false;
    lacks = true;
  }
  // A weight that was packed for a trial, and lost it; while another is packed for the same trial, each keeps its own. At other sizes it
  // may be wanted.
  auto is_held_in_vain = [&](const auto& p) {
    return state.packs[static_cast<size_t>(p.contraction)].data && !known.contains(p.contraction) &&
           !main.packing_trial(p.contraction, symbols);
  };
  if (symbols.empty() && std::ranges::any_of(packables_, is_held_in_vain)) return false;
  if (!lacks && !state.settled && main.is_settled(symbols)) return false;
  if (!lacks && state.settled) state.news.store(news, std::memory_order_relaxed);
  return true;
}

// Whether this call has nothing to add or to give back, and nobody let go of a weight.
bool Weights::is_complete(const State& state, const RunInputs& inputs, const std::vector<int64_t>& symbols) const {
  if (!has_what_is_wanted(state, symbols)) return false;
  return std::none_of(state.denied.begin(), state.denied.end(), [&](const auto& d) { return d.most.allow(tensor(inputs, d.input)); });
}

// Null if looking after the weights would take too much of the time.
Weights::StatePointer Weights::renewed(const RunInputs& inputs, const std::vector<int64_t>& symbols) {
  StatePointer state = state_.load();
  std::vector<std::shared_ptr<const Watch>> now;
  Packs kept;
  bool goes_on = state && has_all_frozen(*state);
  bool may_build = (goes_on && !has_what_is_wanted(*state, symbols)) || upkeep_.affords(building_);
  if (state && !is_fresh(*state, inputs)) {
    if (!upkeep_.affords(comparing_)) return nullptr;
    double idle = upkeep_.idle();
    bool same = false;
    comparing_ = upkeep_.spend([&] { same = is_unchanged(*state, inputs, now); });
    if (!same) {
      note_change(idle);
      kept = packs_that_hold(*state, now);
      state_.publish(nullptr);  // gives back what the other copies hold
      state = nullptr;
      goes_on = false;
      may_build = upkeep_.affords(building_);
    }
  }
  if (state && (is_complete(*state, inputs, symbols) || !may_build)) return state;
  if (!state && (!stays_the_same(inputs) || !may_build)) return nullptr;
  StatePointer next;
  double took = upkeep_.spend([&] { next = build(inputs, symbols, goes_on ? state.get() : nullptr); });
  building_ = goes_on ? building_ + took : took;
  state_.publish(next);
  return next;
}

// Written again and again: computes what the program needs for this call, and packs nothing.
Weights::StatePointer Weights::once(const RunInputs& inputs) const {
  auto state = std::make_shared<State>();
  state->frozen = compute_frozen(inputs);
  for (const at::Tensor& t : state->frozen) state->frozen_values.add(t);
  state->packs.resize(static_cast<size_t>(main_->executable().contractions()));
  return state;
}

// Watches all sources again; `now` gets their watches.
bool Weights::is_unchanged(const State& state, const RunInputs& inputs, std::vector<std::shared_ptr<const Watch>>& now) const {
  bool same = std::all_of(state.digested.begin(), state.digested.end(),
                          [&](const auto& x) { return digest_of(tensor(inputs, x.input)) == x.digest; });
  for (const State::Source& s : state.sources) now.push_back(Watches::of_process().watch(tensor(inputs, s.input)));
  return same && now == state.watches;
}

// Of sources that are as they were, so that nothing packs them again.
Weights::Packs Weights::packs_that_hold(const State& state, const std::vector<std::shared_ptr<const Watch>>& now) const {
  Packs out;
  for (const auto& p : packables_)
    for (size_t i = 0; i < now.size(); ++i)
      if (state.sources[i].input == p.input && now[i] == state.watches[i])
        out.push_back(state.packs[static_cast<size_t>(p.contraction)].data);
  return out;
}

// What changes soon after it was packed must be found unchanged by ever more calls before it is packed again.
void Weights::note_change(double kept) {
  bool soon = !by_rule_ && kept < building_ * Upkeep::kShare;
  calm_needed_ = soon ? std::min(2 * calm_needed_ + 1, kMostCalm) : 0;
  calm_ = 0;
  seen_.clear();
}

bool Weights::stays_the_same(const RunInputs& inputs) {
  if (calm_needed_ == 0) return true;
  bool same = true;
  std::vector<Seen> now;
  for (int i : weights_) {
    const at::Tensor& t = tensor(inputs, i);
    bool marked = is_marked(*storage_of(t)), watched = Watches::of_process().mark(t);
    bool folded = std::binary_search(sources_.begin(), sources_.end(), i);
    now.push_back({storage_of(t), !watched && folded ? digest_of(t) : Digest()});
    same = same && (marked || !watched);
  }
  calm_ = same && now == seen_ ? calm_ + 1 : 0;
  seen_ = std::move(now);
  return calm_ >= calm_needed_;
}

std::shared_ptr<const Watch> Weights::add_source(State& state, int input, const RunInputs& inputs) const {
  for (size_t i = 0; i < state.sources.size(); ++i)
    if (state.sources[i].input == input) return state.watches[i];
  const at::Tensor& t = tensor(inputs, input);
  auto watch = Watches::of_process().watch(t);
  if (watch) {
    state.sources.push_back({input, inputs.addresses[static_cast<size_t>(input)], storage_of(t)->data(), watch->storage()});
    state.watches.push_back(watch);
  } else if (Holders most = Watches::of_process().most_holders(t); most.storage > 0) {
    state.denied.push_back({input, most});
  }
  return watch;
}

std::optional<PackSource> Weights::source_of(State& state, int input, const RunInputs& inputs) const {
  if (is_frozen(static_cast<size_t>(input))) {
    const size_t i = static_cast<size_t>(input) - first_frozen_;
    return PackSource{state.frozen[i].const_data_ptr(), &state.frozen_names[static_cast<std::ptrdiff_t>(i)], state.frozen_names};
  }
  auto watch = add_source(state, input, inputs);
  if (!watch) return std::nullopt;
  return PackSource{inputs.addresses[static_cast<size_t>(input)], watch.get(), watch};
}

// `old`: a state that agrees with the inputs and lacks copies.
Weights::StatePointer Weights::build(const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const {
  auto state = std::make_shared<State>();
  state->found_written = Watches::of_process().found_written();
  state->news = PackingNews::count();
  for (int i : weights_) Watches::of_process().most_holders(tensor(inputs, i));  // long before one that is measured late is packed
  for (int i : sources_)
    if (!add_source(*state, i, inputs)) state->digested.push_back({i, digest_of(tensor(inputs, i))});
  if (old) {
    state->frozen = old->frozen;
    state->frozen_names = old->frozen_names;
  } else if (once_) {
    state->frozen = compute_frozen(inputs);
    state->frozen_names = std::make_shared<std::byte[]>(state->frozen.size());
  }
  pack(*state, inputs, symbols, old);
  for (const at::Tensor& t : state->frozen) state->frozen_values.add(t);
  return state;
}

// As many of the copies that are wanted as the program's pace allows in this call. What `old` has is found again.
void Weights::pack(State& state, const RunInputs& inputs, const std::vector<int64_t>& symbols, const State* old) const {
  const Executable& main = main_->executable();
  state.packs.resize(static_cast<size_t>(main.contractions()));
  state.settled = main.is_settled(symbols);
  for (const auto& p : wanted(symbols)) {
    const auto at = static_cast<size_t>(p.contraction);
    if (!(old && old->packs[at].data) && !affords(p, symbols)) state.settled = false;
    else if (auto source = source_of(state, p.input, inputs)) state.packs[at] = main.pack(p.contraction, *source, symbols);
    else state.unwatched.insert(p.input);
  }
  if (!symbols.empty() || !state.settled) return;  // other sizes, or candidates, may want them in other arrangements
  for (size_t i = 0; i < state.frozen.size(); ++i)
    if (!main_->reads_unpacked(first_frozen_ + i, state.packs)) state.frozen[i] = at::Tensor();
}

std::vector<KeptWeight> Weights::kept(const std::vector<int64_t>& symbols) const {
  using Why = KeptWeight::Why;
  std::vector<KeptWeight> out;
  auto state = state_.load();
  if (!state) return out;
  const Executable& main = main_->executable();
  for (const auto& p : packables_) {
    const PackedWeight& packed = state->packs[static_cast<size_t>(p.contraction)];
    if (!packed.data) continue;
    auto gain = main.packing_gain(p.contraction, symbols);
    const Why why = gain ? Why::measured : main.packing_trial(p.contraction, symbols) ? Why::being_measured : Why::not_measured;
    out.push_back({packed.data.get(), static_cast<int64_t>(packed.bytes), main.weight_text(p.contraction), why, gain});
  }
  for (const at::Tensor& t : state->frozen)
    if (t.defined())
      out.push_back(
          {address_of(t), static_cast<int64_t>(t.nbytes()), cat(c10::toString(t.scalar_type()), c10::str(t.sizes())), Why::computed_once});
  return out;
}

}  // namespace broach
