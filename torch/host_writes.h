// Whether elements change between the operations of a program, as host code writes them that nobody watches: data_ptr(), an accessor.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <unordered_map>
#include <vector>

#include "support/digest.h"

namespace broach {

class HostWrites {
 public:
  // The elements are what operations made of them up to now.
  void note(const at::Tensor& t);
  // Whether they are what was last noted, as far as they were.
  bool are_as_noted(const at::Tensor& t) const;

 private:
  // By block of a storage; nothing of a block that was never noted. Storages live as long as this, which their users see to.
  std::unordered_map<const c10::StorageImpl*, std::vector<std::optional<Digest>>> blocks_;
};

}  // namespace broach
