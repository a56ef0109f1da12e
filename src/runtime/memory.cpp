#include "runtime/memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

namespace broach {

namespace {
int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }
}  // namespace

namespace {

// Memory that pieces have left, in gaps that do not touch.
class Gaps {
 public:
  void give(int64_t offset, int64_t length) {
    if (length == 0) return;
    if (auto next = by_offset_.find(offset + length); next != by_offset_.end()) length += remove(next);
    if (auto next = by_offset_.lower_bound(offset); next != by_offset_.begin())
      if (auto before = std::prev(next); before->first + before->second == offset) offset = before->first, length += remove(before);
    by_offset_.emplace(offset, length);
    by_length_.emplace(length, offset);
  }

  // From the smallest gap that is large enough.
  std::optional<int64_t> take(int64_t length) {
    auto fit = by_length_.lower_bound({length, 0});
    if (fit == by_length_.end()) return std::nullopt;
    const int64_t offset = fit->second;
    give(offset + length, remove(by_offset_.find(offset)) - length);
    return offset;
  }

 private:
  int64_t remove(std::map<int64_t, int64_t>::iterator gap) {
    const int64_t length = gap->second;
    by_length_.erase({length, gap->first});
    by_offset_.erase(gap);
    return length;
  }

  std::map<int64_t, int64_t> by_offset_;             // lengths
  std::set<std::pair<int64_t, int64_t>> by_length_;  // the same
};

std::vector<size_t> sorted_by(const std::vector<Lifetime>& lifetimes, int Lifetime::* key) {
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lifetimes[a].*key < lifetimes[b].*key; });
  return order;
}

// In the order of time.
MemoryPlan plan_earliest_first(const std::vector<Lifetime>& lifetimes) {
  MemoryPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  const std::vector<size_t> ends = sorted_by(lifetimes, &Lifetime::last);
  Gaps gaps;
  size_t done = 0;
  for (size_t i : sorted_by(lifetimes, &Lifetime::first)) {
    for (; lifetimes[ends[done]].last < lifetimes[i].first; ++done)
      gaps.give(plan.offsets[ends[done]], round_up(lifetimes[ends[done]].bytes));
    const int64_t length = round_up(lifetimes[i].bytes);
    plan.offsets[i] = gaps.take(length).value_or(plan.bytes);
    plan.bytes = std::max(plan.bytes, plan.offsets[i] + length);
  }
  return plan;
}

using Busy = std::vector<std::pair<int64_t, int64_t>>;  // from, to

int64_t lowest_free(Busy& busy, int64_t bytes) {
  std::sort(busy.begin(), busy.end());
  int64_t at = 0;
  for (auto [begin, end] : busy) {
    if (at + bytes <= begin) break;
    at = std::max(at, end);
  }
  return at;
}

bool meets(const Busy& busy, int64_t begin, int64_t end) {
  return std::ranges::any_of(busy, [&](auto b) { return b.first < end && begin < b.second; });
}

// Where what has the piece's place in lent memory leaves it, if nobody else is there.
std::optional<int64_t> inherited(const LentMemory& lent, size_t piece, const Lifetime& me, const Busy& placed) {
  for (const LentMemory::Use& u : lent.uses) {
    if (u.heir != static_cast<int>(piece) || u.last != me.first || u.bytes < round_up(me.bytes)) continue;
    const int64_t end = u.offset + round_up(me.bytes);
    auto is_another = [&](const LentMemory::Use& o) {
      return &o != &u && o.last >= me.first && o.offset < end && u.offset < o.offset + o.bytes;
    };
    if (end <= lent.bytes && !meets(placed, u.offset, end) && std::ranges::none_of(lent.uses, is_another)) return u.offset;
  }
  return std::nullopt;
}

MemoryPlan plan_largest_first(const std::vector<Lifetime>& lifetimes, const LentMemory& lent) {
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  MemoryPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  if (lent.bytes > 0) plan.is_lent.assign(lifetimes.size(), false);
  std::vector<size_t> placed;
  for (size_t i : order) {
    const Lifetime& me = lifetimes[i];
    const int64_t bytes = round_up(me.bytes);
    Busy arena, other;
    for (size_t j : placed)
      if (lifetimes[j].first <= me.last && me.first <= lifetimes[j].last)
        (lent.bytes > 0 && plan.is_lent[j] ? other : arena).push_back({plan.offsets[j], plan.offsets[j] + round_up(lifetimes[j].bytes)});
    const auto place = inherited(lent, i, me, other);
    for (const LentMemory::Use& u : lent.uses)
      if (u.last >= me.first) other.push_back({u.offset, u.offset + u.bytes});
    if (const int64_t at = place ? *place : lowest_free(other, bytes); lent.bytes > 0 && at + bytes <= lent.bytes) {
      plan.offsets[i] = at, plan.is_lent[i] = true;
    } else {
      plan.offsets[i] = lowest_free(arena, bytes);
      plan.bytes = std::max(plan.bytes, plan.offsets[i] + bytes);
    }
    placed.push_back(i);
  }
  return plan;
}

// Those in one place as one piece, by lifetime; `pieces` gets them.
std::vector<size_t> join_places(const std::vector<Lifetime>& lifetimes, std::vector<Lifetime>& pieces) {
  std::vector<size_t> piece(lifetimes.size());
  for (size_t i : sorted_by(lifetimes, &Lifetime::first)) {
    const Lifetime& me = lifetimes[i];
    if (me.over < 0) {
      piece[i] = pieces.size();
      pieces.push_back(me);
    } else {
      piece[i] = piece[static_cast<size_t>(me.over)];
      pieces[piece[i]].last = me.last;
    }
  }
  return piece;
}

}  // namespace

MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes, const LentMemory& lent) {
  constexpr size_t kMany = 1000;  // each of them is compared with all others
  std::vector<Lifetime> pieces;
  const std::vector<size_t> piece = join_places(lifetimes, pieces);
  LentMemory by_piece = lent;
  for (LentMemory::Use& u : by_piece.uses)
    if (u.heir >= 0) u.heir = static_cast<int>(piece[static_cast<size_t>(u.heir)]);
  const MemoryPlan plan = pieces.size() > kMany ? plan_earliest_first(pieces) : plan_largest_first(pieces, by_piece);
  MemoryPlan out;
  out.bytes = plan.bytes;
  for (size_t p : piece) {
    out.offsets.push_back(plan.offsets[p]);
    if (!plan.is_lent.empty()) out.is_lent.push_back(plan.is_lent[p]);
  }
  return out;
}

}  // namespace broach
