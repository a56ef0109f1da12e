#include "watched.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "runner.h"
#include "tensors.h"

namespace broach {

namespace {

constexpr size_t kPiece = size_t{1} << 18;  // digested by one thread
constexpr size_t kMostTensors = 64;         // of one storage that are told apart

Digest digest_in_pieces(const void* memory, size_t bytes) {
  if (bytes <= kPiece) return digest(memory, bytes);
  std::vector<Digest> pieces((bytes + kPiece - 1) / kPiece);
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 4, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      pieces[i] = digest(static_cast<const std::byte*>(memory) + i * kPiece, std::min(kPiece, bytes - i * kPiece));
  });
  return digest(pieces.data(), pieces.size() * sizeof(Digest));
}

// Memory that torch's allocator gave out for this storage alone.
bool is_torchs_own(const c10::StorageImpl& s) {
  const c10::DataPtr& p = s.data_ptr();
  if (!s.device().is_cpu() || !p.get()) return false;
  bool allocated = p.get() == p.get_context() && p.get_deleter() == c10::GetCPUAllocator()->raw_deleter();
  return allocated || is_marked(s);
}

}  // namespace

Digest digest_of(const at::Tensor& t) { return digest_in_pieces(address_of(t), bytes_of(t)); }

Watches& Watches::of_process() {
  static auto* watches = new Watches;  // programs that are static objects outlive others
  return *watches;
}

Watches::Memory& Watches::memory_of(const at::Tensor& t) {
  if (memories_.size() >= sweep_at_) {
    std::erase_if(memories_, [](const auto& m) { return m.second.storage.expired(); });
    sweep_at_ = 2 * memories_.size() + 64;
  }
  const c10::StorageImpl* s = storage_of(t);
  auto it = memories_.find(s);
  if (it == memories_.end()) it = memories_.emplace(s, Memory{t.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl()}).first;
  return it->second;
}

void Watches::compare(Memory& memory) {
  std::erase_if(memory.watches, [&](const std::weak_ptr<Watch>& weak) {
    auto w = weak.lock();
    if (!w) return true;
    const c10::StorageImpl* s = memory.storage._unsafe_get_target();
    auto begin = static_cast<const std::byte*>(s->data()), at = static_cast<const std::byte*>(w->address_);
    bool inside = at >= begin && at + w->bytes_ <= begin + s->nbytes();
    if (inside && digest_in_pieces(w->address_, w->bytes_) == w->digest_) return false;
    w->written_.store(true, std::memory_order_release);
    found_written_.fetch_add(1, std::memory_order_acq_rel);
    return true;
  });
}

// The mark comes first: whoever gets a pointer while memory is compared takes it away again.
bool Watches::mark(const at::Tensor& t, Memory& memory) {
  const c10::StorageImpl& s = *storage_of(t);
  if (!most_holders(t, memory).allow(t)) return false;
  if (is_marked(s)) return true;
  broach::mark(t);
  compare(memory);
  return true;
}

bool Watches::mark(const at::Tensor& t) {
  std::lock_guard lock(mutex_);
  return mark(t, memory_of(t));
}

size_t Watches::programs(const at::Tensor& t) const {
  auto it = programs_.find(t.unsafeGetTensorImpl());
  return it == programs_.end() ? 0 : it->second;
}

void Watches::add_program(const at::Tensor& t, int programs) {
  std::lock_guard lock(mutex_);
  auto it = programs_.emplace(t.unsafeGetTensorImpl(), 0).first;
  if ((it->second += static_cast<size_t>(programs)) == 0) programs_.erase(it);
}

Holders Watches::most_holders(const at::Tensor& t, Memory& memory) const {
  if (!is_torchs_own(*storage_of(t))) return {};
  if (memory.tensors.size() > kMostTensors) memory.tensors.clear();  // of which most are gone
  const Holders now(t);
  const size_t own = programs(t);
  size_t& tensor = memory.tensors.emplace(t.unsafeGetTensorImpl(), now.tensor - own).first->second;
  tensor = std::min(tensor, now.tensor - own);
  Holders most;
  most.tensor = own + tensor;
  most.storage = 1;
  return most;
}

Holders Watches::most_holders(const at::Tensor& t) {
  std::lock_guard lock(mutex_);
  return most_holders(t, memory_of(t));
}

std::shared_ptr<const Watch> Watches::watch(const at::Tensor& t) {
  std::lock_guard lock(mutex_);
  Memory& memory = memory_of(t);
  if (!mark(t, memory)) return nullptr;
  const void* address = address_of(t);
  size_t bytes = bytes_of(t);
  for (const std::weak_ptr<Watch>& weak : memory.watches)
    if (auto w = weak.lock(); w && w->address_ == address && w->bytes_ == bytes) return w;
  std::shared_ptr<Watch> made(new Watch(memory.storage, address, bytes));
  made->digest_ = digest_in_pieces(address, bytes);
  memory.watches.push_back(made);
  return made;
}

}  // namespace broach
