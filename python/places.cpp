#include "places.h"

#include <torch/csrc/autograd/python_variable.h>

namespace broach {

namespace {

// Stands for the value of a place that holds nothing.
PyObject* nothing() {
  static PyObject* marker = PyUnicode_FromString("<nothing>");
  return marker;
}

// Borrowed: what holds the gradient keeps its object.
PyObject* gradient_of(PyObject* tensor) {
  const at::Tensor& gradient = THPVariable_Unpack(tensor).unsafeGetTensorImpl()->grad();
  return gradient.defined() ? Ref::steal(THPVariable_Wrap(gradient)).get() : Py_None;
}

// The value, or a copy of the list that is a place as a whole.
Ref held(const StatePlace& p) {
  if (p.kind == StatePlace::Kind::whole) return Ref::steal(PyList_GetSlice(p.owner.get(), 0, PyList_GET_SIZE(p.owner.get())));
  return Ref::borrow(p.value());
}

}  // namespace

PyObject* StatePlace::value() const {
  if (kind == Kind::gradient) return gradient_of(owner.get());
  if (kind == Kind::tail) return Py_None;
  PyObject* v = kind == Kind::whole  ? owner.get()
                : kind == Kind::cell ? PyCell_GET(owner.get())
                                     : PyDict_GetItemWithError(owner.get(), key.get());
  return v ? v : nothing();
}

bool StatePlace::set(PyObject* value) const {
  if (kind == Kind::whole) return value == owner.get() || PyList_SetSlice(owner.get(), 0, PyList_GET_SIZE(owner.get()), value) == 0;
  if (kind == Kind::tail) return value == Py_None || PyList_SetSlice(owner.get(), length(), length(), value) == 0;
  if (kind == Kind::gradient) {  // what may be one was asked where it was made
    const bool is_none = value == Py_None;
    return THPVariable_Unpack(owner.get()).unsafeGetTensorImpl()->mutable_grad() = is_none ? at::Tensor() : THPVariable_Unpack(value), true;
  }
  bool remove = value == nothing();
  if (kind == Kind::cell) return PyCell_Set(owner.get(), remove ? nullptr : value) == 0;
  if (!remove)
    return (PyODict_Check(owner.get()) ? PyODict_SetItem(owner.get(), key.get(), value) : PyDict_SetItem(owner.get(), key.get(), value)) ==
           0;
  if (!PyDict_GetItemWithError(owner.get(), key.get())) return !PyErr_Occurred();
  return (PyODict_Check(owner.get()) ? PyODict_DelItem(owner.get(), key.get()) : PyDict_DelItem(owner.get(), key.get())) == 0;
}

KeptPlaces::KeptPlaces(const std::vector<StatePlace>& places) : places_(places) {
  for (const StatePlace& p : places) values_.push_back(held(p)), lengths_.push_back(p.length());
}

std::vector<Ref> KeptPlaces::swap_back() {
  PyObject *type, *value, *trace;  // of a program that raised
  PyErr_Fetch(&type, &value, &trace);
  std::vector<Ref> now;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].kind == StatePlace::Kind::tail) {
      now.push_back(places_[i].since(lengths_[i]));
      if (PyList_SetSlice(places_[i].owner.get(), lengths_[i], places_[i].length(), nullptr) < 0) PyErr_Clear();
      continue;
    }
    now.push_back(held(places_[i]));
    if (now.back().get() != values_[i].get() && !places_[i].set(values_[i].get())) PyErr_Clear();
  }
  PyErr_Restore(type, value, trace);
  return now;
}

}  // namespace broach
