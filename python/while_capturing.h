// What is otherwise in the interpreter while a program is captured.
#pragma once

#include <ATen/core/Tensor.h>

#include "reference.h"
#include "state.h"

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

// Whether Python has the tensor in hand. Versions of torch ask it in different ways.
template <class Slot>
bool is_taken(const Slot& slot) {
  if constexpr (requires { slot.load_pyobj(); }) return slot.load_pyobj() != nullptr;
  else return slot.check_pyobj().value_or(nullptr) != nullptr;
}

inline bool is_in_hand(const at::Tensor& t) { return is_taken(*t.unsafeGetTensorImpl()->pyobj_slot()); }

// A tensor as the state holds it, or one of the state's in the same memory.
inline at::Tensor found(const State& state, const at::Tensor& t) {
  if (state.holds_tensor(t.unsafeGetTensorImpl())) return t;
  for (const at::Tensor& held : state.tensors())
    if (held.layout() == c10::kStrided && held.has_storage() && t.has_storage() &&
        held.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl())
      return held;
  return {};
}

}  // namespace broach
