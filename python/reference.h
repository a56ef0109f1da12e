// An owned reference to a Python object. Needs the GIL for everything but moving.
#pragma once

#include <Python.h>

#include <utility>
#include <vector>

namespace broach {

class Ref {
 public:
  Ref() = default;
  Ref(const Ref& o) : p_(o.p_) { Py_XINCREF(p_); }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() { Py_XDECREF(p_); }

  static Ref steal(PyObject* p) {
    Ref r;
    r.p_ = p;
    return r;
  }
  static Ref borrow(PyObject* p) {
    Py_XINCREF(p);
    return steal(p);
  }

  PyObject* get() const { return p_; }
  PyObject* release() { return std::exchange(p_, nullptr); }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  PyObject* p_ = nullptr;
};

// A module, null with a Python error. Unlike PyImport_ImportModule it asks nothing of the frame under way, which may have no builtins: code
// that `collections.namedtuple` makes runs so.
inline Ref import_module(const char* name) {
  Ref module = Ref::steal(PyUnicode_FromString(name)), some = Ref::steal(Py_BuildValue("(s)", "__name__"));
  // One that is there is found without running code, in which a signal's handler could raise.
  if (Ref there = module ? Ref::steal(PyImport_GetModule(module.get())) : Ref(); there || PyErr_Occurred()) return there;
  return module && some ? Ref::steal(PyImport_ImportModuleLevelObject(module.get(), nullptr, nullptr, some.get(), 0)) : Ref();
}

// The keys of a dict that keeps an order besides, as a tuple; null with a Python error. Where keys have become equal the interpreter goes
// from one to the other for ever.
inline Ref ordered_keys(PyObject* dict) {
  Ref each = Ref::steal(PyODict_Type.tp_iter(dict)), keys = Ref::steal(PyTuple_New(PyDict_GET_SIZE(dict)));
  for (Py_ssize_t i = 0; each && keys && i < PyTuple_GET_SIZE(keys.get()); ++i) {
    PyObject* key = PyIter_Next(each.get());
    if (!key) return PyErr_Occurred() ? Ref() : (PyErr_SetString(PyExc_RuntimeError, "a dict without some of its keys"), Ref());
    PyTuple_SET_ITEM(keys.get(), i, key);
  }
  return each ? keys : Ref();
}

// The elements, in their order. False where it has none to give.
inline bool read_elements(PyObject* o, std::vector<Ref>& out) {
  // As they are, and not as a class of the program's may give them.
  const auto tuple_of = [](Ref list) { return list ? Ref::steal(PyList_AsTuple(list.get())) : Ref(); };
  Ref all = PyODict_Check(o) ? ordered_keys(o) : PyDict_Check(o) ? tuple_of(Ref::steal(PyDict_Keys(o))) : Ref::steal(PySequence_Tuple(o));
  if (!all) return PyErr_Clear(), false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) out.push_back(Ref::borrow(PyTuple_GET_ITEM(all.get(), i)));
  return true;
}

}  // namespace broach
