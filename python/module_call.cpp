#include "callable.h"

#include "cpython.h"
#include "reference.h"

#include <vector>

namespace py = pybind11;

namespace broach {

namespace {

// `__call__` of the module that wraps a compiled one: its own hooks, if it has any, are nn.Module's business, and so is a `forward` that
// somebody put in the place of the compiled call.
PyObject* call_module(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  static PyObject *call_name = PyUnicode_InternFromString("_compiled_call"), *forward_name = PyUnicode_InternFromString("forward");
  static PyObject* hooks[] = {PyUnicode_InternFromString("_forward_hooks"), PyUnicode_InternFromString("_forward_pre_hooks"),
                              PyUnicode_InternFromString("_backward_hooks"), PyUnicode_InternFromString("_backward_pre_hooks")};
  static PyObject* module_call = [] {
    py::object m = py::module_::import("torch.nn").attr("Module").attr("__call__");
    return m.release().ptr();
  }();
  PyObject** place = cpython::dict_place(self);
  bool hooked = false;
  for (PyObject* h : hooks) {
    PyObject* found = PyDict_GetItemWithError(*place, h);
    hooked = hooked || (found && PyDict_Size(found) > 0);
  }
  PyObject* compiled = PyDict_GetItemWithError(*place, call_name);
  if (hooked || PyDict_GetItemWithError(*place, forward_name) != compiled) {
    std::vector<PyObject*> all{self};
    all.insert(all.end(), args, args + n + (names ? PyTuple_GET_SIZE(names) : 0));
    return PyObject_Vectorcall(module_call, all.data(), static_cast<size_t>(n) + 1, names);
  }
  if (!compiled) return PyErr_SetString(PyExc_AttributeError, "_compiled_call"), nullptr;
  Ref held = Ref::borrow(compiled);
  return PyObject_Vectorcall(compiled, args, static_cast<size_t>(n), names);
}

PyMethodDef kModuleCall = {"__call__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_module)), METH_FASTCALL | METH_KEYWORDS,
                           nullptr};

}  // namespace

void add_module_call(py::module_& m) {
  m.def("install_module_call", [](py::type type) {
    type.attr("__call__") = py::reinterpret_steal<py::object>(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &kModuleCall));
  });
}

}  // namespace broach
