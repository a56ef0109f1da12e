// What a user of the C++ API can do about a program that cannot be compiled.
#pragma once

#include <string>

namespace broach {

// A sentence for this failure, behind a full stop; empty if there is none that would help.
std::string way_out(const std::string& failure);

}  // namespace broach
