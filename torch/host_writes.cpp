#include "host_writes.h"

#include <algorithm>

#include "tensors.h"

namespace broach {

namespace {

constexpr size_t kBlock = 1 << 16;  // bytes

// Whether its elements lie in memory that this process may read.
bool is_seen(const at::Tensor& t) { return t.defined() && t.is_cpu() && t.has_storage() && t.numel() > 0 && t.storage().data(); }

// Calls `look` for each block in which the tensor has elements: its number, and the digest of its bytes.
template <class Look>
void for_each_block(const at::Tensor& t, Look look) {
  const auto* memory = static_cast<const char*>(t.storage().data());
  const size_t all = t.storage().nbytes();
  const Reach reach = reach_in_storage(t);
  for (size_t block = static_cast<size_t>(reach.first) / kBlock; block * kBlock < std::min(static_cast<size_t>(reach.second), all); ++block)
    look(block, digest(memory + block * kBlock, std::min(kBlock, all - block * kBlock)));
}

}  // namespace

void HostWrites::note(const at::Tensor& t) {
  if (!is_seen(t)) return;
  std::vector<std::optional<Digest>>& blocks = blocks_[t.storage().unsafeGetStorageImpl()];
  for_each_block(t, [&](size_t block, const Digest& d) {
    if (block >= blocks.size()) blocks.resize(block + 1);
    blocks[block] = d;
  });
}

bool HostWrites::are_as_noted(const at::Tensor& t) const {
  if (!is_seen(t)) return true;
  const auto known = blocks_.find(t.storage().unsafeGetStorageImpl());
  if (known == blocks_.end()) return true;
  bool out = true;
  for_each_block(t, [&](size_t block, const Digest& d) {
    if (block < known->second.size() && known->second[block]) out = out && *known->second[block] == d;
  });
  return out;
}

}  // namespace broach
