// Checkpoints of a captured program: what they compute is recorded as a region, and what they write is found.
#pragma once

#include <pybind11/pybind11.h>

namespace broach {

// For `_checkpoint.py`: meets_checkpoint(), begin_checkpoint(function, arguments, given, is_reentrant, keeps_random), check_results_of_checkpoint(results),
// end_checkpoint().
void add_checkpoints(pybind11::module_& m);

}  // namespace broach
