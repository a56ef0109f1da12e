// Sorts and selections: elements become unsigned integers of the same order, with their positions beside them.
//
// What PyTorch leaves open (which of equal elements comes first) is decided by the algorithms that eager runs, so that the
// same ones run here wherever equal elements meet.
#include <algorithm>
#include <cstring>
#include <utility>

#include "support/error.h"
#include "target/cpu/routine.h"
#include "target/cpu/routine_elements.h"

namespace broach::cpu {

namespace {

// An element's key and position; `all` orders by both.
struct Narrow {  // keys of 32 bits, in lines of less than 2^32 elements
  uint64_t all;
  static Narrow of(uint64_t key, int64_t position) { return {key << 32 | static_cast<uint64_t>(position)}; }
  uint64_t key() const { return all >> 32; }
  int64_t position() const { return static_cast<int64_t>(all & 0xffffffff); }
  friend bool operator<(const Narrow& a, const Narrow& b) { return a.all < b.all; }
};
struct Broad {
  uint64_t first;
  int64_t second;
  static Broad of(uint64_t key, int64_t position) { return {key, position}; }
  uint64_t key() const { return first; }
  int64_t position() const { return second; }
  friend bool operator<(const Broad& a, const Broad& b) { return a.first != b.first ? a.first < b.first : a.second < b.second; }
};

template <class Item>
bool by_key(const Item& a, const Item& b) {
  return a.key() < b.key();
}

template <class Item>
using Items = std::vector<Item>;

// ---- stable sort ----

// Least digits first, 11 bits at a time; digits that all elements share cost nothing.
template <class Item>
void radix_sort(Items<Item>& items, Items<Item>& spare, int key_bits) {
  constexpr int kBits = 11;
  constexpr size_t kBuckets = size_t{1} << kBits;
  const int digits = (key_bits + kBits - 1) / kBits;
  std::vector<uint32_t> counts(static_cast<size_t>(digits) * kBuckets);
  auto digit = [](const Item& x, int d) { return x.key() >> (d * kBits) & (kBuckets - 1); };
  for (const Item& x : items)
    for (int d = 0; d < digits; ++d) ++counts[static_cast<size_t>(d) * kBuckets + digit(x, d)];
  spare.resize(items.size());
  for (int d = 0; d < digits; ++d) {
    uint32_t* count = &counts[static_cast<size_t>(d) * kBuckets];
    if (count[digit(items[0], d)] == items.size()) continue;
    uint32_t sum = 0;
    for (size_t b = 0; b < kBuckets; ++b) sum += std::exchange(count[b], sum);
    for (const Item& x : items) spare[count[digit(x, d)]++] = x;
    items.swap(spare);
  }
}

template <class Item>
void stable_sort(Items<Item>& items, Items<Item>& spare, int key_bits) {
  // Below this, the counts cost more than the comparisons.
  const size_t few = key_bits > 32 ? 3000 : 600;
  if (items.size() < few || items.size() >= UINT32_MAX) std::sort(items.begin(), items.end());
  else radix_sort(items, spare, key_bits);
}

// As std::sort leaves equal elements, which shows only where there are some.
template <class Item>
void unstable_sort(Items<Item>& items, Items<Item>& spare, int key_bits) {
  Items<Item> original = items;
  stable_sort(items, spare, key_bits);
  auto equal_keys = [](const Item& a, const Item& b) { return a.key() == b.key(); };
  if (std::adjacent_find(items.begin(), items.end(), equal_keys) == items.end()) return;
  items.swap(original);
  std::sort(items.begin(), items.end(), by_key<Item>);
}

// ---- selections ----

// Quickselect with the median of three as pivot, moving elements as eager's does.
template <class Item>
void quickselect(Items<Item>& v, int64_t k) {
  Item* x = v.data();
  auto order = [&](int64_t i, int64_t j) {
    if (by_key(x[j], x[i])) std::swap(x[i], x[j]);
  };
  int64_t first = 0, last = static_cast<int64_t>(v.size()) - 1;
  while (last > first + 1) {
    std::swap(x[(first + last) / 2], x[first + 1]);
    order(first + 1, last);
    order(first, last);
    order(first + 1, first);
    int64_t up = first + 1, down = last;
    const uint64_t pivot = x[first].key();
    for (;;) {
      do ++up;
      while (x[up].key() < pivot);
      do --down;
      while (x[down].key() > pivot);
      if (down < up) break;
      std::swap(x[up], x[down]);
    }
    std::swap(x[first], x[down]);
    if (down <= k) first = up;
    if (down >= k) last = down - 1;
  }
  if (last == first + 1) order(first, last);
}

template <class Item>
void topk(Items<Item>& items, int64_t k, bool sorted) {
  const auto n = static_cast<int64_t>(items.size());
  const auto begin = items.begin();
  if (k == 0) return;
  if (k * 64 <= n) return std::partial_sort(begin, begin + k, items.end(), by_key<Item>);
  std::nth_element(begin, begin + k - 1, items.end(), by_key<Item>);
  if (sorted) std::sort(begin, begin + k - 1, by_key<Item>);
}

// The position among the items, ordered by keys and positions, with NaN (the largest key; null: there is none) last.
template <class Item>
void median(Items<Item>& items, std::optional<uint64_t> nan, bool skip_nan) {
  const auto nans = nan ? std::count_if(items.begin(), items.end(), [&](const Item& x) { return x.key() == *nan; }) : 0;
  const auto numbers = static_cast<int64_t>(items.size()) - nans;
  if (nans > 0 && !skip_nan) {
    items[0] = *std::find_if(items.begin(), items.end(), [&](const Item& x) { return x.key() == *nan; });
    return;
  }
  const auto middle = items.begin() + std::max<int64_t>(numbers - 1, 0) / 2;
  std::nth_element(items.begin(), middle, items.end());
  items[0] = *middle;
}

// ---- lines ----

struct Choice {
  Op op;
  size_t dim;
  bool descending = false, stable = false, sorted = false, skip_nan = false;
  std::function<int64_t(const RoutineArgs&)> k;
};

// Brings the chosen items of a line to the front.
template <class E, class Item>
void choose(const Choice& c, int64_t k, Items<Item>& items, Items<Item>& spare) {
  using T = typename E::Computed;
  constexpr int key_bits = static_cast<int>(8 * sizeof(KeyOf<E>));
  switch (c.op) {
    case Op::sort:
      if (c.stable) stable_sort(items, spare, key_bits);
      else unstable_sort(items, spare, key_bits);
      return;
    case Op::topk: return topk(items, k, c.sorted);
    case Op::kth:
      quickselect(items, k);
      items[0] = items[static_cast<size_t>(k)];
      return;
    default: {
      std::optional<uint64_t> nan;
      if (is_floating_v<T>) nan = std::numeric_limits<KeyOf<E>>::max();
      return median(items, nan, c.skip_nan);
    }
  }
}

template <class E, class Item>
void order_run(const Choice& c, const RoutineArgs& args, int64_t length, int64_t kept, int64_t k, const LineRun& r) {
  const RoutineTensor &x = args.operands[0], &values = args.results[0], &positions = args.results[1];
  Items<Item> items(static_cast<size_t>(length)), spare;
  constexpr uint64_t ones = std::numeric_limits<KeyOf<E>>::max();
  for (int64_t j = 0; j < r.lines; ++j) {
    const auto* from = static_cast<const typename E::Stored*>(x.data) + r.offset[0] + j * r.across[0];
    items.resize(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) {
      const uint64_t key = order_key<E>(from[i * r.along[0]]);
      items[static_cast<size_t>(i)] = Item::of(c.descending ? ones - key : key, i);
    }
    choose<E>(c, k, items, spare);
    if (values.data) {
      auto* to = static_cast<typename E::Stored*>(values.data) + r.offset[1] + j * r.across[1];
      for (int64_t i = 0; i < kept; ++i) to[i * r.along[1]] = from[items[static_cast<size_t>(i)].position() * r.along[0]];
    }
    if (positions.data) {
      auto* to = static_cast<int64_t*>(positions.data) + r.offset[2] + j * r.across[2];
      for (int64_t i = 0; i < kept; ++i) to[i * r.along[2]] = items[static_cast<size_t>(i)].position();
    }
  }
}

// The most frequent element of a line, by eager's comparison, in which a NaN equals nothing.
template <class E>
void mode_run(const RoutineArgs& args, int64_t length, const LineRun& r) {
  using T = typename E::Computed;
  const RoutineTensor &x = args.operands[0], &values = args.results[0], &positions = args.results[1];
  std::vector<std::pair<T, int64_t>> items(static_cast<size_t>(length));
  for (int64_t j = 0; j < r.lines; ++j) {
    const auto* from = static_cast<const typename E::Stored*>(x.data) + r.offset[0] + j * r.across[0];
    for (int64_t i = 0; i < length; ++i) items[static_cast<size_t>(i)] = {E::widen(from[i * r.along[0]]), i};
    std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    int64_t most = 0, best = 0, run = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      ++run;
      if (i + 1 < items.size() && items[i].first == items[i + 1].first) continue;
      if (run > most) most = run, best = items[i].second;
      run = 0;
    }
    if (values.data) static_cast<typename E::Stored*>(values.data)[r.offset[1] + j * r.across[1]] = from[best * r.along[0]];
    if (positions.data) static_cast<int64_t*>(positions.data)[r.offset[2] + j * r.across[2]] = best;
  }
}

template <class E>
bool order_lines(const Choice& c, const RoutineArgs& args, const Threads& threads) {
  const RoutineTensor &x = args.operands[0], &values = args.results[0], &positions = args.results[1];
  const RoutineTensor* tensors[] = {&x, values.data ? &values : nullptr, positions.data ? &positions : nullptr};
  const int64_t length = x.sizes[c.dim];
  const bool whole = c.op == Op::sort, reduces = !whole && c.op != Op::topk;
  int64_t kept = whole ? length : reduces ? 1 : values.sizes[c.dim], k = c.op == Op::topk ? kept : c.k ? c.k(args) : 0;
  int64_t lines = 1;
  for (size_t d = 0; d < x.sizes.size(); ++d) lines *= d == c.dim ? 1 : x.sizes[d];
  if (lines == 0 || (length == 0 && whole)) return true;
  if (kept > length || k > length || (c.op == Op::kth && k == length))
    fail(name_of(c.op), ": ", std::max(k, kept), " of ", length, " elements");
  const int64_t work = length * std::max<int64_t>(1, std::bit_width(static_cast<uint64_t>(length)));
  for_each_run(tensors, c.dim, work, threads, [&](const LineRun& r) {
    if (c.op == Op::mode) return mode_run<E>(args, length, r);
    if (sizeof(KeyOf<E>) == 4 && length < int64_t{UINT32_MAX}) order_run<E, Narrow>(c, args, length, kept, k, r);
    else order_run<E, Broad>(c, args, length, kept, k, r);
  });
  return true;
}

// ---- search ----

template <class E>
bool search_lines(const RoutineArgs& args, const Threads& threads, bool right) {
  const RoutineTensor &x = args.operands[0], &values = args.operands[1], &out = args.results[0];
  const size_t rank = values.sizes.size();
  if (!out.data) return true;
  // A value without dimensions, or values that all look in one line: any dimension serves as the one to walk along.
  const int64_t one[] = {1}, zero[] = {0};
  RoutineTensor v = values, o = out, lines = x;
  if (rank == 0) v.sizes = o.sizes = one, v.strides = o.strides = zero;
  const size_t dim = rank ? rank - 1 : 0;
  std::vector<int64_t> strides(std::max<size_t>(rank, 1), 0);
  if (x.sizes.size() > 1) std::copy(x.strides.begin(), x.strides.end(), strides.begin());
  lines.strides = strides;
  const int64_t length = x.sizes.back(), step = x.strides.back(), count = v.sizes[dim];
  const RoutineTensor* tensors[] = {&v, &o, &lines};
  for_each_run(tensors, dim, count * 16, threads, [&](const LineRun& r) {
    for (int64_t j = 0; j < r.lines; ++j) {
      const auto* sorted = static_cast<const typename E::Stored*>(x.data) + r.offset[2] + j * r.across[2];
      for (int64_t i = 0; i < count; ++i) {
        const auto wanted = E::widen(static_cast<const typename E::Stored*>(values.data)[r.offset[0] + j * r.across[0] + i * r.along[0]]);
        int64_t low = 0, high = length;
        while (low < high) {
          const int64_t middle = low + (high - low) / 2;
          const auto m = E::widen(sorted[middle * step]);
          if (right ? !(m > wanted) : !(m >= wanted)) low = middle + 1;
          else high = middle;
        }
        static_cast<int64_t*>(out.data)[r.offset[1] + j * r.across[1] + i * r.along[1]] = low;
      }
    }
  });
  return true;
}

}  // namespace

RoutineFunction make_order(const Operation& operation) {
  auto flag = [&](Attr a) { return has_attr(operation.op, a) && operation.integer(a) != 0; };
  Choice c{operation.op,
           static_cast<size_t>(operation.integer(Attr::dim)),
           flag(Attr::descending),
           flag(Attr::stable),
           flag(Attr::sorted),
           flag(Attr::skip_nan),
           {}};
  if (operation.op == Op::kth) {
    auto k = operation.get<SymInt>(Attr::k).maybe_constant();
    if (!k) return {};
    c.k = [k = *k](const RoutineArgs&) { return k; };
  }
  return with_real_element(operation.operands[0].dtype, [&](auto element) -> RoutineFunction {
    return [c](const RoutineArgs& args, const Threads& threads) { return order_lines<decltype(element)>(c, args, threads); };
  });
}

RoutineFunction make_search(const Operation& operation) {
  const bool right = operation.integer(Attr::right) != 0;
  return with_real_element(operation.operands[0].dtype, [&](auto element) -> RoutineFunction {
    return [right](const RoutineArgs& args, const Threads& threads) { return search_lines<decltype(element)>(args, threads, right); };
  });
}

}  // namespace broach::cpu
