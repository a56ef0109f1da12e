// What an object is, by its type alone: isinstance also asks the object for its class, by code of the program's, and believes the answer.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

namespace broach {

inline bool is_instance(PyObject* o, PyObject* type) { return PyObject_TypeCheck(o, reinterpret_cast<PyTypeObject*>(type)); }
inline bool is_tensor(PyObject* o) { return is_instance(o, THPVariableClass); }

}  // namespace broach
