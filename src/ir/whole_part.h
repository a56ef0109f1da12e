// A number of the host's without its fraction, where that is an expression of the sizes behind it: `math.ceil(n / 2)`.
#pragma once

#include <optional>

#include "ir/floats.h"

namespace broach {

// Sizes between minus this and this, neither included, are exact in a number, and so is what little is done with them here.
inline constexpr int64_t kMostOfSize = int64_t{1} << 40;

// The next integer below a number, or above it, as Python's `math.floor` and `math.ceil` find it of the rounded number; an integer stays.
// Right for sizes within the bounds above, which the caller sees to. Nothing where roundings could matter, where numbers are behind it that
// are no sizes, or sizes that are known only while the program runs.
std::optional<SymInt> whole_part(const HostFloats& floats, HostFloats::Id id, bool up);

}  // namespace broach
