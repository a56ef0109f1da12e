#include "runtime/replay.h"

#include <algorithm>
#include <set>

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
  kept_.push_back({source.take(bytes, queue), queue, &source, true});
  return kept_.back().piece;
}

void KeptMemory::give(const Memory::Piece& piece) {
  std::lock_guard lock(mutex_);
  for (Kept& k : kept_)
    if (k.piece.data == piece.data) k.is_taken = false;
}

namespace {

// As a recording sees it, whose own queue is not the one that it will be launched into.
class MemoryOfQueue : public Memory {
 public:
  MemoryOfQueue(KeptMemory& kept, const RunContext& context) : kept_(kept), source_(*context.memory), queue_(context.queue) {}
  Piece take(int64_t bytes, void*) override { return kept_.take(bytes, queue_, source_); }
  void give(Piece piece, void*) override { kept_.give(piece); }

 private:
  KeptMemory& kept_;
  Memory& source_;
  void* queue_;
};

constexpr size_t kMostKept = 4;
constexpr int kMostMade = 16;

size_t hash_of(const std::vector<uintptr_t>& key) {
  size_t h = key.size();
  for (uintptr_t n : key) h = (h ^ n) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
  return h | 1;  // 0 is none
}

}  // namespace

// ---- steps ----

ReplayedSteps::ReplayedSteps(size_t first, std::span<const StepUse> uses) : first_(first), uses_(uses.begin(), uses.end()) {
  std::set<int> fixed, loose;
  for (const StepUse& u : uses_) (u.is_kernel ? loose : fixed).insert(u.buffers.begin(), u.buffers.end());
  fixed_.assign(fixed.begin(), fixed.end()), loose_.assign(loose.begin(), loose.end());
}

bool ReplayedSteps::run(const Target& target, const RunContext& context, std::span<void* const> data, KeptMemory& memory,
                        const RunStep& step) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || is_hopeless_ || !target.may_replay(context)) return false;
  find_key(context, data);
  try {
    Kept* kept = find();
    if (kept) tell(*kept, context, data, step);
    else if (is_due()) kept = record(target, context, data, memory, step);
    if (!kept) return false;
    kept->recording->replay(context);
    kept->used = ++clock_;
    return true;
  } catch (const Error& e) {  // of the target: the steps run one by one, as they would without
    give_up(e.what());
    return false;
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

// The second time that these addresses come.
bool ReplayedSteps::is_due() {
  if (made_ >= kMostMade) return false;
  const size_t hash = hash_of(key_);
  if (std::ranges::find(seen_, hash) != seen_.end()) return true;
  std::ranges::rotate(seen_, seen_.end() - 1);
  seen_[0] = hash;
  return false;
}

ReplayedSteps::Kept* ReplayedSteps::record(const Target& target, const RunContext& context, std::span<void* const> data, KeptMemory& memory,
                                           const RunStep& step) {
  ++made_;
  MemoryOfQueue of_queue(memory, context);
  RunContext keeping = context;
  keeping.memory = &of_queue;
  Kept fresh{key_, target.record(keeping), {}, 0};
  for (size_t i = first_; i < end(); ++i) {
    keeping.step = static_cast<int>(i);
    step(i, keeping);
  }
  fresh.recording->finish();
  for (int b : loose_) fresh.told.push_back(data[static_cast<size_t>(b)]);
  log_debug("steps ", first_, " to ", end() - 1, " are launched at once");
  if (kept_.size() < kMostKept) return &kept_.emplace_back(std::move(fresh));
  Kept& oldest = *std::ranges::min_element(kept_, {}, &Kept::used);
  oldest = std::move(fresh);
  return &oldest;
}

// Kernels get the addresses and numbers of this call, where they are others than before.
void ReplayedSteps::tell(Kept& kept, const RunContext& context, std::span<void* const> data, const RunStep& step) {
  auto address = [&](int b) { return data[static_cast<size_t>(b)]; };
  auto is_told = [&](int b) { return kept.told[static_cast<size_t>(std::ranges::lower_bound(loose_, b) - loose_.begin())] == address(b); };
  bool same = true;
  for (size_t i = 0; same && i < loose_.size(); ++i) same = kept.told[i] == address(loose_[i]);
  RunContext telling = context;
  telling.recording = kept.recording.get();
  for (size_t i = 0; i < uses_.size(); ++i) {
    const StepUse& u = uses_[i];
    if (!u.is_kernel || (!u.has_numbers && (same || std::ranges::all_of(u.buffers, is_told)))) continue;
    telling.step = static_cast<int>(first_ + i);
    step(first_ + i, telling);
  }
  for (size_t i = 0; i < loose_.size(); ++i) kept.told[i] = address(loose_[i]);
}

void ReplayedSteps::give_up(const std::string& why) {
  log_debug("steps ", first_, " to ", end() - 1, " are launched one by one: ", why);
  is_hopeless_ = true;
  kept_.clear();
}

}  // namespace broach
