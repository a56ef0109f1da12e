#include "stand_ins.h"

#include <map>
#include <string>
#include <vector>

#include "indexing.h"
#include "reference.h"

namespace py = pybind11;

namespace broach {

namespace {

struct StandIn {
  Ref owner, name, original, stand_in;  // no original: the owner inherits it
};

// Of a class or module itself, without what it inherits. Borrowed; null if there is none.
PyObject* own_value(PyObject* owner, PyObject* name) {
  if (PyType_Check(owner) && PyType_HasFeature(reinterpret_cast<PyTypeObject*>(owner), Py_TPFLAGS_HEAPTYPE)) {
    const auto* type = reinterpret_cast<PyHeapTypeObject*>(owner);
    if (PyUnicode_CompareWithASCIIString(name, "__name__") == 0) return type->ht_name;
    if (PyUnicode_CompareWithASCIIString(name, "__qualname__") == 0) return type->ht_qualname;
  }
  PyObject* dict = PyType_Check(owner) ? reinterpret_cast<PyTypeObject*>(owner)->tp_dict : PyModule_GetDict(owner);
  return PyDict_GetItem(dict, name);
}

// A class attribute that the metaclass would take for its own.
int set_class(PyObject* owner, PyObject* name, PyObject* value) {
  auto* type = reinterpret_cast<PyTypeObject*>(owner);
  const int failed = value ? PyDict_SetItem(type->tp_dict, name, value) : PyDict_DelItem(type->tp_dict, name);
  PyType_Modified(type);
  return failed;
}

void put(const StandIn& s, PyObject* from, PyObject* to) {
  if (own_value(s.owner.get(), s.name.get()) != from) return;
  const bool is_class = PyType_Check(s.owner.get()) && PyUnicode_CompareWithASCIIString(s.name.get(), "__class__") == 0;
  const int failed = is_class ? set_class(s.owner.get(), s.name.get(), to) : PyObject_SetAttr(s.owner.get(), s.name.get(), to);
  if (failed) PyErr_WriteUnraisable(s.owner.get());
}

}  // namespace

struct StandIns::Group {
  std::vector<StandIn> stand_ins;
  bool replaces_indexing = false;
  int alive = 0;  // captures

  void exchange(bool in) const {
    const py::error_scope of_the_program;
    for (const StandIn& s : stand_ins) in ? put(s, s.original.get(), s.stand_in.get()) : put(s, s.stand_in.get(), s.original.get());
    if (replaces_indexing) in ? replace_indexing() : restore_indexing();
  }
};

StandIns::Group& StandIns::group(const std::string& name) {
  static auto* groups = new std::map<std::string, Group>;  // never freed: it holds Python objects
  return (*groups)[name];
}

void add_stand_ins(const std::string& name, const py::object& owner, const py::dict& stand_ins) {
  StandIns::Group& group = StandIns::group(name);
  group.replaces_indexing = name == "numbers";
  for (const auto& [key, value] : stand_ins)
    group.stand_ins.push_back(
        {Ref::borrow(owner.ptr()), Ref::borrow(key.ptr()), Ref::borrow(own_value(owner.ptr(), key.ptr())), Ref::borrow(value.ptr())});
}

StandIns::StandIns(const char* name) : group_(group(name)) {
  if (group_.alive++ == 0) group_.exchange(true);
}

StandIns::~StandIns() {
  if (--group_.alive == 0) group_.exchange(false);
}

}  // namespace broach
