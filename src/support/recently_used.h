// A table of bounded size: what was not used for longest makes way.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

namespace broach {

// Any number of threads may `find` at once; `insert` needs the table for itself.
template <class Key, class T>
class RecentlyUsed {
 public:
  explicit RecentlyUsed(size_t most) : most_(most) {}

  // Null if it is not there (any more).
  const T* find(const Key& key) const {
    auto it = entries_.find(key);
    if (it == entries_.end()) return nullptr;
    it->second.used.store(++clock_, std::memory_order_relaxed);
    return &it->second.value;
  }

  // What is there already stays.
  const T& insert(Key key, T value) {
    if (const T* known = find(key)) return *known;
    if (entries_.size() >= most_)
      entries_.erase(
          std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    Entry& e = entries_.try_emplace(std::move(key), std::move(value)).first->second;
    e.used = ++clock_;
    return e.value;
  }

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    explicit Entry(T v) : value(std::move(v)) {}
    T value;
    mutable std::atomic<uint64_t> used = 0;
  };
  const size_t most_;
  std::map<Key, Entry> entries_;
  mutable std::atomic<uint64_t> clock_ = 0;
};

}  // namespace broach
