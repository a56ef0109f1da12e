#include "runtime/replay.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "runtime/executable.h"
#include "support/error.h"
#include "support/log.h"

namespace broach {

// ---- memory ----

KeptMemory::~KeptMemory() {
  for (Kept& k : kept_) k.source->give(k.piece, k.queue);
}

Memory::Piece KeptMemory::take(int64_t bytes, void* queue, Memory& source) {
  std::lock_guard lock(mutex_);
  for (Kept& k : kept_)
    if (!k.is_taken && k.queue == queue && k.source == &source && k.piece.bytes >= bytes) {
      k.is_taken = true;
      return k.piece;
    }
  kept_.push_back({source.take_lasting(bytes, queue), queue, &source, true});
  return kept_.back().piece;
}

void KeptMemory::give(const Memory::Piece& piece) {
  std::lock_guard lock(mutex_);
  for (Kept& k : kept_)
    if (k.piece.data == piece.data) k.is_taken = false;
}

namespace {

// What steps that run at the same time take: nobody else's until all of them are done.
class MemoryBeside : public Memory {
 public:
  explicit MemoryBeside(Memory& source, void* queue) : source_(source), queue_(queue) {}
  ~MemoryBeside() override {
    for (const Piece& p : taken_) source_.give(p, queue_);
  }
  Piece take(int64_t bytes, void* queue) override { return taken_.emplace_back(source_.take(bytes, queue)); }
  void give(Piece, void*) override {}

 private:
  Memory& source_;
  void* queue_;
  std::vector<Piece> taken_;
};

// Whether one must have ended before the other begins.
bool conflict(const StepUse& a, const StepUse& b, std::span<void* const> data) {
  auto meet = [&](const MemoryUse& x, const MemoryUse& y) {
    if (!x.is_written && !y.is_written) return false;
    if (x.own >= 0 && y.own >= 0) return x.own == y.own;  // intermediates may lie in what is spent
    const auto *p = static_cast<const std::byte*>(data[static_cast<size_t>(x.buffer)]),
               *q = static_cast<const std::byte*>(data[static_cast<size_t>(y.buffer)]);
    return x.bytes < 0 || y.bytes < 0 || (p < q + y.bytes && q < p + x.bytes);
  };
  return std::ranges::any_of(
      a.memory, [&](const MemoryUse& x) { return std::ranges::any_of(b.memory, [&](const MemoryUse& y) { return meet(x, y); }); });
}

bool may_replay(const Target& target, const RunContext& context) {
  return context.may_replay ? *context.may_replay : target.may_replay(context);
}

constexpr size_t kMostBeside = 4;
constexpr size_t kMostKept = 4;
constexpr int kMostMade = 16;

size_t hash_of(const std::vector<uintptr_t>& key) {
  size_t h = key.size();
  for (uintptr_t n : key) h = (h ^ n) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
  return h | 1;  // 0 is none
}

}  // namespace

// ---- steps ----

ReplayedSteps::ReplayedSteps(size_t first, std::span<const StepUse> uses, size_t part, int64_t made_bytes)
    : first_(first), part_(part), made_bytes_(made_bytes), uses_(uses.begin(), uses.end()) {
  std::set<int> fixed, loose;
  for (const StepUse& u : uses_) (u.is_kernel ? loose : fixed).insert(u.buffers.begin(), u.buffers.end());
  for (const StepUse& u : uses_)
    for (int b : u.made) fixed.erase(b), loose.erase(b), made_by_calls_.push_back(b);
  fixed_.assign(fixed.begin(), fixed.end()), loose_.assign(loose.begin(), loose.end());
  find_tellable();
}

void ReplayedSteps::find_tellable() {
  for (size_t i = 0; i < loose_.size(); ++i)
    if (i > 0 && loose_[i] == loose_[i - 1] + 1) ++runs_of_loose_.back().count;
    else runs_of_loose_.push_back({i, 1});
  for (size_t i = 0; i < uses_.size(); ++i) {
    if (!uses_[i].is_kernel) continue;
    Told& told = told_.emplace_back(first_ + i, uses_[i].has_numbers);
    for (int b : uses_[i].buffers)  // but those that calls make, which stay where they are
      if (const auto at = std::ranges::lower_bound(loose_, b); at != loose_.end() && *at == b)
        told.buffers.push_back(static_cast<size_t>(at - loose_.begin()));
  }
}

bool ReplayedSteps::has_calls() const { return std::ranges::any_of(uses_, &StepUse::is_call); }

bool ReplayedSteps::makes(int buffer) const { return std::ranges::find(made_by_calls_, buffer) != made_by_calls_.end(); }

bool ReplayedSteps::run(const Target& target, const RunContext& context, Frame& frame, KeptMemory& memory, const RunStep& step) {
  ++runs_;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || is_hopeless_ || !may_replay(target, context)) return false;
  forget_idle();
  find_key(context, frame.data);
  Kept* kept = find();
  try {
    if (kept) place_made(*kept, frame), tell(*kept, context, frame.data, step);
    else if (is_due()) kept = record(target, context, frame, memory, step);
    if (!kept) return false;
    kept->recording->replay(context);
  } catch (const Error& e) {  // of the target: the steps run one by one, as they would without
    forget_made(frame);
    give_up(e.what());
    return false;
  }
  kept->used = ++clock_;
  ++kept->uses;
  ++replays_;
  if (kept->calls) kept->calls->give(frame);
  return true;
}

void ReplayedSteps::place_made(const Kept& kept, Frame& frame) const {
  for (size_t i = 0; i < made_by_calls_.size(); ++i) frame.data[static_cast<size_t>(made_by_calls_[i])] = kept.made[i];
}

// What was recorded before the error lies in memory that is gone.
void ReplayedSteps::forget_made(Frame& frame) const {
  for (int b : made_by_calls_) {
    frame.data[static_cast<size_t>(b)] = nullptr;
    if (frame.release) frame.release(frame, b);
  }
}

void ReplayedSteps::find_key(const RunContext& context, std::span<void* const> data) {
  key_.assign(1, reinterpret_cast<uintptr_t>(context.queue));
  for (int64_t n : context.symbols) key_.push_back(static_cast<uintptr_t>(n));
  for (int b : fixed_) key_.push_back(reinterpret_cast<uintptr_t>(data[static_cast<size_t>(b)]));
}

ReplayedSteps::Kept* ReplayedSteps::find() {
  auto at = std::ranges::find(kept_, key_, &Kept::key);
  return at == kept_.end() ? nullptr : &*at;
}

// A program moves once or twice before it settles, and recordings from before hold memory.
void ReplayedSteps::forget_idle() {
  constexpr uint64_t kPatience = 16;  // runs for each that it served
  if (kept_.size() > 1) std::erase_if(kept_, [&](const Kept& k) { return clock_ - k.used > kPatience * k.uses; });
}

// The second time that these addresses come.
bool ReplayedSteps::is_due() {
  if (made_ >= kMostMade) return false;
  const size_t hash = hash_of(key_);
  if (std::ranges::find(seen_, hash) != seen_.end()) return true;
  std::ranges::rotate(seen_, seen_.end() - 1);
  seen_[0] = hash;
  return false;
}

ReplayedSteps::Kept* ReplayedSteps::record(const Target& target, const RunContext& context, Frame& frame, KeptMemory& memory,
                                           const RunStep& step) {
  ++made_;
  MemoryOfQueue of_queue(memory, context.queue, *context.memory);
  RunContext keeping = context;
  keeping.memory = &of_queue;
  Kept fresh;
  fresh.key = key_;
  if (has_calls()) {
    fresh.calls = frame.record_calls ? frame.record_calls(context.device, context.queue, made_bytes_) : nullptr;
    if (!fresh.calls) unsupported("calls of the host's library cannot be recorded");
  }
  fresh.recording = target.record(keeping);
  for (size_t i = 0, end; i < uses_.size(); i = end) {
    end = steps_beside(i, frame.data);
    if (end > i + 1) record_beside(i, end, fresh, keeping, frame, step);
    else record_step(i, fresh, keeping, frame, step);
  }
  fresh.recording->finish();
  if (fresh.calls) fresh.calls->finish();
  for (int b : made_by_calls_) fresh.made.push_back(frame.data[static_cast<size_t>(b)]);
  for (int b : loose_) fresh.told.push_back(frame.data[static_cast<size_t>(b)]);
  log_debug("steps ", first_, " to ", end() - 1, " are launched at once");
  if (kept_.size() < kMostKept) return &kept_.emplace_back(std::move(fresh));
  Kept& oldest = *std::ranges::min_element(kept_, {}, &Kept::used);
  oldest = std::move(fresh);
  return &oldest;
}

void ReplayedSteps::record_step(size_t i, Kept& fresh, RunContext& keeping, Frame& frame, const RunStep& step) const {
  keeping.step = static_cast<int>(first_ + i);
  auto run = [&] { step(first_ + i, keeping); };
  if (!uses_[i].is_call) return run();
  fresh.calls->run(keeping.queue, run);
  for (int b : uses_[i].given) fresh.calls->keep(frame, b);
}

// The end of the steps from here on that may run at the same time. A launch beside others costs more than one behind them, so there have
// to be two products, which take longer.
size_t ReplayedSteps::steps_beside(size_t i, std::span<void* const> data) const {
  size_t end = i, products = 0;
  for (; end < uses_.size() && end < i + kMostBeside && uses_[end].is_small; ++end) {
    bool is_free = true;
    for (size_t j = i; j < end; ++j) is_free = is_free && !conflict(uses_[j], uses_[end], data);
    if (!is_free) break;
    products += uses_[end].is_product;
  }
  return products >= 2 ? end : i + 1;
}

void ReplayedSteps::record_beside(size_t i, size_t end, Kept& fresh, RunContext& keeping, Frame& frame, const RunStep& step) const {
  if (!fresh.recording->fork(static_cast<int>(end - i))) {
    for (; i < end; ++i) record_step(i, fresh, keeping, frame, step);
    return;
  }
  Memory* const memory = keeping.memory;
  MemoryBeside beside(*memory, keeping.queue);
  keeping.memory = &beside;
  for (size_t k = i; k < end; ++k) {
    fresh.recording->enter(static_cast<int>(k - i), keeping);
    record_step(k, fresh, keeping, frame, step);
  }
  fresh.recording->join(keeping);
  keeping.memory = memory;
}

// Kernels get the addresses and numbers of this call, where they are others than before. Few change, of hundreds.
void ReplayedSteps::tell(Kept& kept, const RunContext& context, std::span<void* const> data, const RunStep& step) {
  std::vector<size_t> changed;
  for (auto [first, count] : runs_of_loose_) {
    void* const* const now = &data[static_cast<size_t>(loose_[first])];
    if (std::memcmp(now, &kept.told[first], count * sizeof *now) == 0) continue;
    for (size_t i = 0; i < count; ++i)
      if (now[i] != kept.told[first + i]) kept.told[first + i] = now[i], changed.push_back(first + i);
  }
  RunContext telling = context;
  telling.recording = kept.recording.get();
  for (const Told& t : told_) {
    auto is_changed = [&](size_t b) { return std::ranges::binary_search(changed, b); };
    if (!t.always && (changed.empty() || std::ranges::none_of(t.buffers, is_changed))) continue;
    telling.step = static_cast<int>(t.step);
    step(t.step, telling);
  }
}

void ReplayedSteps::give_up(const std::string& why) {
  log_debug("steps ", first_, " to ", end() - 1, " are launched one by one: ", why);
  is_hopeless_ = true;
  kept_.clear();
}

}  // namespace broach
