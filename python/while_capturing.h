// What is otherwise in the interpreter while a program is captured.
#pragma once

#include "reference.h"

namespace broach {

// torch.compiler.is_compiling() is true while this lives.
class Compiling {
 public:
  Compiling() {
    module_ = Ref::steal(PyImport_ImportModule("torch.compiler"));
    if (module_) before_ = Ref::steal(PyObject_GetAttrString(module_.get(), "_is_compiling_flag"));
    PyErr_Clear();
    if (before_) PyObject_SetAttrString(module_.get(), "_is_compiling_flag", Py_True);
  }
  ~Compiling() {
    if (before_) PyObject_SetAttrString(module_.get(), "_is_compiling_flag", before_.get());
  }

  // Ahead of its time, where a capture is abandoned.
  static void end() {
    Ref module = Ref::steal(PyImport_ImportModule("torch.compiler"));
    if (!module || PyObject_SetAttrString(module.get(), "_is_compiling_flag", Py_False)) PyErr_Clear();
  }

 private:
  Ref module_, before_;
};

// While it lives, what a program may ask of a number knows those that stand for others.
class StandingNumbers {
 public:
  StandingNumbers() { tell("enter"); }
  ~StandingNumbers() { tell("leave"); }

 private:
  static void tell(const char* what) {
    PyObject *type, *value, *trace;  // of the program
    PyErr_Fetch(&type, &value, &trace);
    Ref module = Ref::steal(PyImport_ImportModule("broach._numbers"));
    Ref result = module ? Ref::steal(PyObject_CallMethod(module.get(), what, nullptr)) : Ref();
    if (!result) PyErr_WriteUnraisable(nullptr);
    PyErr_Restore(type, value, trace);
  }
};

}  // namespace broach
