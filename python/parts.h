// Modules of a program that cannot be compiled as a whole: each is compiled by itself, for as long as that program runs.
#pragma once

#include <pybind11/pybind11.h>

namespace broach {

// Adds `CompiledPart`, the type of what stands in nn.Module for `_compiled_call_impl`, which a module's call asks for compiled code and
// which is none but while parts run; and `set_parts`, which says what these are on this thread.
void add_parts(pybind11::module_& m);

}  // namespace broach
