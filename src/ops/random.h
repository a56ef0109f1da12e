// Operations that draw random numbers, where a number follows from a seed and the place of the element: such numbers fuse with what
// reads them, in any order, and are computed anew instead of being kept. A call draws its seed from the host's generator, in the
// order of the program's calls, so that seeding, saving and restoring the generator mean what they mean for eager.
#pragma once

#include "ops/lower.h"

namespace broach {

// The entry of an operation that draws; null for others. It may emit a call with an effect, and has no lowering where the call names a
// generator, or probabilities by element.
const OpEntry* find_drawing(std::string_view schema);

// The same where the numbers are those that the host's generator gives one after the other, for results without gaps: a call of the
// front's, whose one result are the elements that are chosen (b1), is what is left of it.
const OpEntry* find_host_drawing(std::string_view schema);
constexpr std::string_view kHostBernoulli = "broach::bernoulli";  // (sizes, p)

}  // namespace broach
