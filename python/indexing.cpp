#include "indexing.h"

#include <vector>

#include "function.h"

namespace py = pybind11;

namespace broach {

namespace {

struct Replaced {
  std::vector<PyMappingMethods*> types;  // each has slots of its own
  binaryfunc get = nullptr;              // torch's own
  objobjargproc set = nullptr;
  py::function by_get, by_set;
};

Replaced& replaced() {
  static auto* all = new Replaced;  // never freed: it holds Python objects
  return *all;
}

// An error's text names sizes, which the program may catch and keep.
void refuse_symbols() { Function::reject_capture({Outcome::unsupported, {"an index is refused by an error", Fallback::eager}}); }

PyObject* get_item(PyObject* self, PyObject* index) {
  if (!Function::is_capturing_symbols()) return replaced().get(self, index);
  PyObject* item = PyObject_CallFunctionObjArgs(replaced().by_get.ptr(), self, index, nullptr);
  if (!item) refuse_symbols();
  return item;
}

int set_item(PyObject* self, PyObject* index, PyObject* value) {
  if (!value || !Function::is_capturing_symbols()) return replaced().set(self, index, value);
  py::object none = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(replaced().by_set.ptr(), self, index, value, nullptr));
  if (!none) refuse_symbols();
  return none ? 0 : -1;
}

}  // namespace

void set_indexing(const py::sequence& types, py::function get, py::function set) {
  Replaced& r = replaced();
  for (const py::handle type : types) r.types.push_back(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_as_mapping);
  r.get = r.types.at(0)->mp_subscript, r.set = r.types[0]->mp_ass_subscript;
  r.by_get = std::move(get), r.by_set = std::move(set);
}

// A method in the slots' place would make sequences of tensors, which torch takes for lists.
void replace_indexing() {
  const Replaced& r = replaced();
  for (PyMappingMethods* t : r.types)
    if (t->mp_subscript == r.get && t->mp_ass_subscript == r.set) t->mp_subscript = get_item, t->mp_ass_subscript = set_item;
}

void restore_indexing() {
  for (PyMappingMethods* t : replaced().types)
    if (t->mp_subscript == get_item) t->mp_subscript = replaced().get, t->mp_ass_subscript = replaced().set;
}

}  // namespace broach
