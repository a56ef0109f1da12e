// What is otherwise in the interpreter while a program is captured.
#pragma once

#include <ATen/core/Tensor.h>

#include "reference.h"
#include "stand_ins.h"
#include "state.h"

namespace broach {

// torch.compiler.is_compiling() is true while one of these lives. Several threads may capture at once, and end in any order: only the
// last takes back what the first has set.
class Compiling {
 public:
  Compiling() {
    if (alive_++ == 0) has_set_ = flag() == Py_False && set(Py_True);
  }
  ~Compiling() {
    if (--alive_ == 0 && has_set_) set(Py_False);
  }
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

  // Ahead of its time, where a capture is abandoned.
  static void end() { set(Py_False); }

 private:
  static constexpr const char* kFlag = "_is_compiling_flag";

  static PyObject* flag() {
    Ref module = import_module("torch.compiler");
    Ref value = module ? Ref::steal(PyObject_GetAttrString(module.get(), kFlag)) : Ref();
    if (!value) PyErr_Clear();
    return value.get();  // True and False never die
  }
  static bool set(PyObject* value) {
    Ref module = import_module("torch.compiler");
    const bool done = module && PyObject_SetAttrString(module.get(), kFlag, value) == 0;
    if (!done) PyErr_Clear();
    return done;
  }

  static inline int alive_ = 0;  // these two: whoever has the GIL
  static inline bool has_set_ = false;
};

// Where code that torch.compile has compiled calls the program, Dynamo would compile what that calls, and run it once with tensors of its own.
class WithoutDynamo {
 public:
  WithoutDynamo() : callback_(exchanged(Py_None)) {}
  ~WithoutDynamo() {
    if (callback_ && callback_.get() != Py_None) exchanged(callback_.get());
  }
  WithoutDynamo(const WithoutDynamo&) = delete;
  WithoutDynamo& operator=(const WithoutDynamo&) = delete;

 private:
  // Of this thread: what Dynamo is called with for each frame.
  static Ref exchanged(PyObject* callback) {
    Ref module = import_module("torch._C._dynamo.eval_frame");
    Ref previous = module ? Ref::steal(PyObject_CallMethod(module.get(), "set_eval_frame", "O", callback)) : Ref();
    if (!previous) PyErr_WriteUnraisable(nullptr);
    return previous;
  }

  Ref callback_;
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
