#include "target/region.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "support/host_allocation.h"

namespace broach {

namespace {

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

Region::Region(size_t bytes) {
  bytes = round_up(std::max(bytes, kHugePage), kHugePage);
  void* base = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return;
  const auto address = reinterpret_cast<uintptr_t>(base);
  const size_t skipped = round_up(address, kHugePage) - address;
  if (skipped > 0) munmap(base, skipped);
  base_ = static_cast<std::byte*>(base) + skipped;
  size_ = bytes;
  munmap(base_ + bytes, kHugePage - skipped);
  madvise(base_, size_, MADV_HUGEPAGE);  // where it fails, pages are small
  free_[0] = size_;
}

Region::~Region() {
  if (base_) munmap(base_, size_);
}

std::byte* Region::take(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), 64);
  std::lock_guard lock(mutex_);
  auto at = free_.end();  // what lies above everything is larger than any gap
  for (auto it = free_.begin(); it != free_.end(); ++it)
    if (it->second >= bytes && (at == free_.end() || it->second < at->second)) at = it;
  if (at == free_.end()) return nullptr;
  const auto [offset, room] = *at;
  used_[offset] = bytes;  // first, as it may throw
  auto rest = free_.extract(at);
  if (room > bytes) {
    rest.key() += bytes;
    rest.mapped() -= bytes;
    free_.insert(std::move(rest));
  }
  used_bytes_ += bytes;
  high_ = std::max(high_, top());
  touched_ = std::max(touched_, high_);
  return base_ + offset;
}

void Region::give(std::byte* block) {
  std::lock_guard lock(mutex_);
  const auto at = used_.find(static_cast<size_t>(block - base_));
  auto [offset, bytes] = *at;
  used_.erase(at);
  used_bytes_ -= bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == offset) std::prev(next)->second += bytes;
  else free_.emplace_hint(next, offset, bytes);
}

size_t Region::top() const {
  if (free_.empty()) return size_;
  const auto& [offset, bytes] = *free_.rbegin();
  return offset + bytes == size_ ? offset : size_;
}

void Region::give_back(size_t begin, size_t end) {
  begin = round_up(begin, kHugePage);
  end = end / kHugePage * kHugePage;
  if (begin < end) madvise(base_ + begin, end - begin, MADV_DONTNEED);
}

void Region::begin_run() {
  std::lock_guard lock(mutex_);
  if (++runs_ < kWindow) return;
  runs_ = 0;
  const size_t used = std::max(high_, before_);
  if (used < touched_) give_back(used, round_up(touched_, kHugePage));
  touched_ = used;
  before_ = std::exchange(high_, top());
}

void Region::trim() {
  std::lock_guard lock(mutex_);
  for (auto [offset, bytes] : free_)
    if (offset < touched_) give_back(offset, std::min(offset + bytes, round_up(touched_, kHugePage)));
  touched_ = high_ = before_ = top();
}

size_t Region::used_bytes() const {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}

size_t Region::idle_bytes() const {
  std::lock_guard lock(mutex_);
  return touched_ - used_bytes_;
}

}  // namespace broach
