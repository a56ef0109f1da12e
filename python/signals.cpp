#include "signals.h"

namespace broach {

int signal_of(PyObject* error) {
  const Ref codes = import_module("broach._codes");
  const Ref number = codes ? Ref::steal(PyObject_CallMethod(codes.get(), "signal_of", "O", error)) : Ref();
  if (!number) return PyErr_Clear(), 0;
  return static_cast<int>(PyLong_AsLong(number.get()));
}

void raise_later(Ref exception) {
  const auto raise = [](void* e) {
    const Ref held = Ref::steal(static_cast<PyObject*>(e));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(held.get())), held.get());
    return -1;
  };
  if (Py_AddPendingCall(raise, exception.get()) == 0) exception.release();
}

}  // namespace broach
