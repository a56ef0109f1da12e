// Packed copies of weights, shared by all programs of the process: a model compiled for several sizes or ways keeps one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "target/packing.h"

namespace broach {

// What is packed: the elements from `data` on, known by the address `name`. While `keeps` is held, the name stands for these
// elements.
struct PackSource {
  const void *data, *name;
  std::shared_ptr<const void> keeps;
};

// All that tells two packed copies of one source apart.
using PackForm = std::vector<int64_t>;

class SharedPacks {
 public:
  static SharedPacks& of_process();

  // Lives as long as its owners. `fill` writes that many bytes.
  std::shared_ptr<const std::byte[]> find_or_make(const PackSource& source, const PackForm& form, size_t bytes,
                                                  const std::function<void(std::byte*)>& fill);

 private:
  std::mutex mutex_;
  std::map<std::pair<const void*, PackForm>, std::weak_ptr<const std::byte[]>> entries_;
  // Entries whose memory is gone are removed when there are so many.
  static constexpr size_t kFewest = 64;
  size_t next_cleaning_ = kFewest;
};

}  // namespace broach
