// Options from Python, and what `explain` shows of functions.
#pragma once

#include <pybind11/pybind11.h>

#include "function.h"

namespace broach {

ProgramOptions options_from(const pybind11::dict& d);
pybind11::dict stats_of(const std::vector<Function*>& functions, const std::vector<Attempt>& attempts);

}  // namespace broach
