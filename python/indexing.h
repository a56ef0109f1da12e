// Indexing of tensors while programs are captured with symbols: torch's own, which is no method that a class could be given, takes every
// integer as a plain number.
#pragma once

#include <pybind11/pybind11.h>

namespace broach {

// What `t[index]` and `t[index] = value`, of tensors of these types, are while the two are replaced: `get(t, index)` and `set(t, index, value)` in
// threads that capture with symbols, and torch's own in all others. The types are classes of tensors, torch.Tensor the first. To be told when
// the package is imported.
void set_indexing(const pybind11::sequence& types, pybind11::function get, pybind11::function set);
// To be called with the interpreter's lock held.
void replace_indexing();
void restore_indexing();

}  // namespace broach
