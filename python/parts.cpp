#include "parts.h"

#include <ATen/SavedTensorHooks.h>

#include "ambient.h"
#include "reference.h"

namespace py = pybind11;

namespace broach {

namespace {

// A dict from modules' addresses to what is compiled for them; null outside of such programs. Whoever sets it keeps it alive.
thread_local PyObject* running = nullptr;

// What a checkpoint's hooks see, its second run must see again, and that one comes with the backward, when the program is over.
bool may_run_compiled() { return running && at::SavedTensorDefaultHooks::get_tls_state().stack.empty() && !must_run_plainly(); }

PyObject* compiled_for(PyObject*, PyObject* module, PyObject*) {
  if (!module || !may_run_compiled()) Py_RETURN_NONE;
  const Ref address = Ref::steal(PyLong_FromVoidPtr(module));
  if (!address) return nullptr;
  PyObject* compiled = PyDict_GetItemWithError(running, address.get());
  if (!compiled && PyErr_Occurred()) return nullptr;
  return Ref::borrow(compiled ? compiled : Py_None).release();
}

PyObject* make_type() {
  static PyType_Slot slots[] = {{Py_tp_descr_get, reinterpret_cast<void*>(&compiled_for)}, {0, nullptr}};
  static PyType_Spec spec{"broach_ext._C.CompiledPart", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
  return PyType_FromSpec(&spec);
}

}  // namespace

void add_parts(py::module_& m) {
  m.attr("CompiledPart") = py::reinterpret_steal<py::object>(make_type());
  // Gives what was there before.
  m.def("set_parts", [](const py::object& parts) {
    py::object before = running ? py::reinterpret_borrow<py::object>(running) : py::none();
    running = parts.is_none() ? nullptr : parts.ptr();
    return before;
  });
}

}  // namespace broach
