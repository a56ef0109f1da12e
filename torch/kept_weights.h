// What a program keeps beside its weights, for `explain`: copies that are rearranged for the contractions that read them, and what is
// computed once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "broach/broach.h"
#include "target/packing.h"

namespace broach {

// Programs that read a weight alike share one copy.
struct KeptWeight {
  enum class Why : uint8_t { computed_once, measured, being_measured, not_measured };

  const void* address;
  int64_t bytes;
  std::string text;  // the contraction and its weight, or the type of what was computed
  Why why;
  std::optional<PackingGain> gain = {};  // of one contraction that reads it, where it was measured
};

const char* name_of(KeptWeight::Why why);

// Equal ones together, the largest first. The bytes of a shared copy count once.
std::vector<KeptWeights> grouped(const std::vector<KeptWeight>& kept);

}  // namespace broach
