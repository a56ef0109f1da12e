// The type of what `broach.compile` gives for a function, and of what Dynamo's generated code calls: a C type with
// vectorcall, so that a call passes no Python frame.
#pragma once

#include <pybind11/pybind11.h>

namespace broach {

// Adds `Callable` to the extension module.
void add_callable_type(pybind11::module_& m);
// Adds what gives the class of a compiled module its `__call__`.
void add_module_call(pybind11::module_& m);

}  // namespace broach
