// A value that many threads read at each call and one replaces now and then.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace broach {

// Reading takes no lock, so that a process which is forked off while other threads read or replace the value can go on reading;
// an atomic shared pointer is a spin lock, which the child would find taken for ever. What is replaced is freed by a later
// replacement that no reader is beside: in such a child, whose readers of before never end, not at all.
template <class T>
class Published {
 public:
  // The value as it was when this was made, for as long as this lives.
  class Reader {
   public:
    explicit Reader(const Published& from) : from_(from) {
      ++from_.readers_;
      value_ = from_.now_.load();
    }
    ~Reader() { from_.readers_.fetch_sub(1, std::memory_order_release); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    const T& operator*() const { return *value_; }
    const T* operator->() const { return value_; }

   private:
    const Published& from_;
    const T* value_;
  };

  explicit Published(T first = {}) { publish(std::move(first)); }
  Published(const Published&) = delete;
  Published& operator=(const Published&) = delete;

  Reader read() const { return Reader(*this); }
  T load() const { return *read(); }

  // One thread at a time.
  void publish(T next) {
    values_.push_back(std::make_unique<const T>(std::move(next)));
    now_.store(values_.back().get());
    // Whoever begins to read behind this question reads the newest: both sides are sequentially consistent.
    if (readers_.load() == 0) values_.erase(values_.begin(), values_.end() - 1);
  }

 private:
  std::vector<std::unique_ptr<const T>> values_;  // the newest last
  std::atomic<const T*> now_{nullptr};
  mutable std::atomic<int64_t> readers_{0};
};

}  // namespace broach
