#include "types.h"

#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "cpython.h"
#include "reference.h"

namespace broach {

namespace {

Library& library() {
  static Library l;
  return l;
}

NativeTypes& native_types() {
  static NativeTypes t;
  return t;
}

std::unordered_map<std::string, std::unordered_set<std::string>>& unwatched() {
  static std::unordered_map<std::string, std::unordered_set<std::string>> u;
  return u;
}

// What ends an instance of a class that a class statement made.
destructor end_of_instance() {
  static const destructor end = [] {
    Ref probe = Ref::steal(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "probe"));
    return reinterpret_cast<PyTypeObject*>(probe.get())->tp_dealloc;
  }();
  return end;
}

// Types that C code makes by a specification are heap types as well: they have a module, an end or fields of their own.
bool is_made_by_statement(PyTypeObject* t) {
  bool end =
      t->tp_dealloc == end_of_instance() ||
      (THPVariableClass && t->tp_dealloc == reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_dealloc);  // torch sets that of tensors
  if (!is_heap(t) || !t->tp_base || !end || reinterpret_cast<PyHeapTypeObject*>(t)->ht_module) return false;
  constexpr Py_ssize_t kPointer = sizeof(PyObject*);
  Py_ssize_t fields = PyType_HasFeature(t, Py_TPFLAGS_HEAPTYPE) ? Py_SIZE(t) : 0;  // one for each of its `__slots__`
  return t->tp_basicsize <= t->tp_base->tp_basicsize + (fields + 2) * kPointer;    // and perhaps a dict and a list of weak references
}

// Of pybind11's, whose members are numbers with names and have no attributes.
bool is_enumeration(PyTypeObject* t) {
  if (!std::string_view(Py_TYPE(t)->tp_name).ends_with("pybind11_type") || t->tp_dictoffset != 0) return false;
  PyObject* dict = cpython::type_dict(t);
  return PyDict_GetItemString(dict, "__entries") && PyDict_GetItemString(dict, "__members__");
}

}  // namespace

std::string_view text_of(PyObject* s) {
  Py_ssize_t n = 0;
  const char* c = s && PyUnicode_Check(s) ? PyUnicode_AsUTF8AndSize(s, &n) : nullptr;
  if (!c) PyErr_Clear();
  return c ? std::string_view(c, static_cast<size_t>(n)) : std::string_view();
}

bool is_heap(PyTypeObject* t) { return PyType_HasFeature(t, Py_TPFLAGS_HEAPTYPE); }

void set_library(Library l) { library() = std::move(l); }

bool is_in_packages(std::string_view path) { return path.find("site-packages") != path.npos || path.find("dist-packages") != path.npos; }

Owner owner_of_file(PyObject* filename) {
  std::string_view f = text_of(filename);
  const Library& l = library();
  if (f.starts_with(l.torch_folder)) return Owner::torch;
  if (f.starts_with(l.own_folder)) return Owner::own;
  if (f.starts_with("<frozen importlib.")) return Owner::own;  // what import statements find is watched itself
  if (f.starts_with("<frozen ")) return Owner::library;
  // Installed packages lie below the standard library's folder, and are the user's.
  if (is_in_packages(f)) return Owner::user;
  for (const std::string& folder : l.folders)
    if (f.starts_with(folder)) return Owner::library;
  return Owner::user;
}

Owner owner_of_module(std::string_view name) {
  std::string_view root = name.substr(0, name.find('.'));
  if (root == "torch") return Owner::torch;
  if (root == "broach" || root == "broach_ext") return Owner::own;
  return library().modules.contains(std::string(root)) ? Owner::library : Owner::user;
}

Owner owner_of_type(PyTypeObject* type) {
  if (!is_heap(type)) {
    std::string_view name = type->tp_name;
    return name.find('.') == name.npos ? Owner::library : owner_of_module(name);
  }
  PyObject* dict = cpython::type_dict(type);
  PyObject* module = dict ? PyDict_GetItemString(dict, "__module__") : nullptr;
  return owner_of_module(text_of(module));
}

PyTypeObject* native_base(PyTypeObject* t) {
  while (is_made_by_statement(t)) t = t->tp_base;
  return t;
}

void set_native_types(NativeTypes t) { native_types() = std::move(t); }
void set_unwatched(std::unordered_map<std::string, std::unordered_set<std::string>> names) { unwatched() = std::move(names); }

const std::unordered_set<std::string>* unwatched_of(std::string_view owner) {
  auto it = unwatched().find(std::string(owner));
  return it == unwatched().end() ? nullptr : &it->second;
}

bool names_any(PyCodeObject* code, std::initializer_list<std::string_view> names) {
  PyObject* known = cpython::names_of(code);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(known); ++i)
    for (std::string_view name : names)
      if (text_of(PyTuple_GET_ITEM(known, i)) == name) return true;
  return false;
}

bool is_numpy_scalar(PyTypeObject* t) {
  if (!std::string_view(t->tp_name).starts_with("numpy.")) return false;
  while (t && std::string_view(t->tp_name) != "numpy.generic") t = t->tp_base;
  return t != nullptr;
}

bool is_value_type(PyTypeObject* t) { return native_types().values.contains(t->tp_name) || is_numpy_scalar(t); }
bool is_stateless_type(PyTypeObject* t) { return native_types().stateless.contains(t->tp_name) || is_enumeration(t); }

bool may_be_made(PyTypeObject* t) {
  if (is_value_type(t) || is_stateless_type(t) || native_types().makers.contains(t->tp_name)) return true;
  return PyType_IsSubtype(t, reinterpret_cast<PyTypeObject*>(PyExc_BaseException));
}

bool is_atom(PyObject* o) {
  return o == Py_None || PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyComplex_CheckExact(o) ||
         PyUnicode_CheckExact(o) || PyBytes_CheckExact(o) || o == Py_Ellipsis || PyType_Check(o) || PyCFunction_Check(o) ||
         PyCode_Check(o) || Py_TYPE(o) == &PyRange_Type || THPDtype_Check(o) || THPDevice_Check(o) || THPLayout_Check(o) ||
         THPMemoryFormat_Check(o) || is_numpy_scalar(Py_TYPE(o));
}

// Of numpy's scalars the bits, and of ranges all three numbers: equal ones may differ.
static bool same_parts(PyObject* a, PyObject* b) {
  auto same = [&](const auto& part) {
    const Ref x = part(a), y = x ? part(b) : Ref();
    const bool answer = y && PyObject_RichCompareBool(x.get(), y.get(), Py_EQ) == 1;
    return PyErr_Clear(), answer;
  };
  auto attribute = [&](const char* name) { return same([&](PyObject* o) { return Ref::steal(PyObject_GetAttrString(o, name)); }); };
  if (Py_TYPE(a) == &PyRange_Type) return attribute("start") && attribute("stop") && attribute("step");
  return attribute("dtype") && same([](PyObject* o) { return Ref::steal(PyObject_CallMethod(o, "tobytes", nullptr)); });
}

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!a || !b || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyTuple_Check(a)) {
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
      if (!same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    return true;
  }
  if (PyFloat_CheckExact(a)) {  // bits: a NaN is itself, and the zeros differ
    double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyMethod_Check(a)) return PyMethod_GET_SELF(a) == PyMethod_GET_SELF(b) && PyMethod_GET_FUNCTION(a) == PyMethod_GET_FUNCTION(b);
  if (PyType_Check(a) || PyComplex_CheckExact(a) || !is_atom(a)) return false;
  if (Py_TYPE(a) == &PyRange_Type || is_numpy_scalar(Py_TYPE(a))) return same_parts(a, b);
  int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

}  // namespace broach
