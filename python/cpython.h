// The one place that knows what differs between versions of CPython (3.10 to 3.14).
#pragma once

#include <Python.h>
#include <frameobject.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference.h"

namespace broach::cpython {

// Up to 3.11 a dict carries a number that is new after every change; from 3.12 on changes are announced to a callback.
inline constexpr bool kDictVersions = PY_VERSION_HEX < 0x030C0000;
// A function's annotations are a dict once they are asked for; later versions run code for them.
inline constexpr bool kPlainAnnotations = PY_VERSION_HEX < 0x030E0000;

#if PY_VERSION_HEX < 0x030C0000
inline const uint64_t* version_word(PyObject* dict) { return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }
#else
inline const uint64_t* version_word(PyObject*) { return nullptr; }
#endif

// While it lives no profiler or tracer is told what this thread runs.
class Untraced {
 public:
#if PY_VERSION_HEX >= 0x030B0000
  Untraced() { PyThreadState_EnterTracing(PyThreadState_Get()); }
  ~Untraced() { PyThreadState_LeaveTracing(PyThreadState_Get()); }
#else
  Untraced() { ++PyThreadState_Get()->tracing; }
  ~Untraced() { --PyThreadState_Get()->tracing; }
#endif
  Untraced(const Untraced&) = delete;
  Untraced& operator=(const Untraced&) = delete;
};

// The type of the exception that this thread is handling; null if there is none.
inline Ref handled_exception() {
  PyObject *type, *value, *trace;
  PyErr_GetExcInfo(&type, &value, &trace);
  const Ref held[] = {Ref::steal(type), Ref::steal(value), Ref::steal(trace)};
  return value && value != Py_None ? Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(value))) : Ref();
}

// Whether the interpreter is taking its modules down: nothing can be imported then.
inline bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Asks to be told about changes of a dict, where there are no versions. `changed` is called with the GIL held.
using DictChanged = void (*)(PyObject* dict);
#if PY_VERSION_HEX >= 0x030C0000
inline DictChanged dict_changed = nullptr;
inline int on_dict_event(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  if (dict_changed) dict_changed(dict);
  return 0;
}
inline int watcher(DictChanged changed) {
  static const int id = (dict_changed = changed, PyDict_AddWatcher(&on_dict_event));
  return id;
}
// Since 3.13 the values of an instance's dict lie in the instance, and an attribute that is set there is announced to nobody.
// Taking the last item out gives the dict a table of its own for good, with the same items in the same order.
inline bool own_table(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  if (!reinterpret_cast<PyDictObject*>(dict)->ma_values) return true;
  if (PyDict_GET_SIZE(dict) == 0) {
    Ref name = Ref::steal(PyUnicode_InternFromString("_"));
    if (!name || PyDict_SetItem(dict, name.get(), Py_None) < 0) return false;
    return static_cast<bool>(Ref::steal(PyObject_CallMethod(dict, "popitem", nullptr)));
  }
  Ref item = Ref::steal(PyObject_CallMethod(dict, "popitem", nullptr));
  return item && PyDict_SetItem(dict, PyTuple_GET_ITEM(item.get(), 0), PyTuple_GET_ITEM(item.get(), 1)) == 0;
#else
  return dict != nullptr;
#endif
}
// False if the interpreter has no watcher left: then the dict has to be compared on every call.
inline bool watch_dict(PyObject* dict, DictChanged changed) {
  int id = watcher(changed);
  if (id >= 0 && own_table(dict) && PyDict_Watch(id, dict) == 0) return true;
  PyErr_Clear();
  return false;
}
inline void unwatch_dict(PyObject* dict) {
  if (PyDict_Unwatch(watcher(dict_changed), dict) < 0) PyErr_Clear();
}
#else
inline bool watch_dict(PyObject*, DictChanged) { return true; }
inline void unwatch_dict(PyObject*) {}
#endif

// The place that holds an object's `__dict__`, which is made if need be; null for an object without one.
inline PyObject** dict_place(PyObject* o) {
#if PY_VERSION_HEX >= 0x030C0000
  if (PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_MANAGED_DICT)) {
    PyObject* made = PyObject_GenericGetDict(o, nullptr);
    if (!made) {
      PyErr_Clear();
      return nullptr;
    }
    Py_DECREF(made);
#ifdef Py_GIL_DISABLED
    return reinterpret_cast<PyObject**>(o) - 1;
#else
    return reinterpret_cast<PyObject**>(o) - 3;
#endif
  }
#endif
  PyObject** place = _PyObject_GetDictPtr(o);
  if (place && !*place) {
    PyObject* made = PyObject_GenericGetDict(o, nullptr);
    if (!made) {
      PyErr_Clear();
      return nullptr;
    }
    Py_DECREF(made);
    place = _PyObject_GetDictPtr(o);
  }
  return place;
}

// The same without making one: what it points to may be null.
inline PyObject** dict_place_if_any(PyObject* o) {
#if PY_VERSION_HEX >= 0x030C0000
  if (PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_MANAGED_DICT)) return dict_place(o);
#endif
  return _PyObject_GetDictPtr(o);
}

// The function whose call made a frame; null where the interpreter does not say, and for module and class bodies.
inline PyFunctionObject* function_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  struct Frame {
    PyObject_HEAD PyFrameObject* back;
    struct Interpreter {
      void* words[3];
    }* interpreter;
  };
  // 3.11 has the function first; later versions have code, previous frame, function. 3.14 tags the pointer's low bits.
  constexpr size_t at = PY_VERSION_HEX < 0x030C0000 ? 0 : 2;
  void* word = reinterpret_cast<Frame*>(frame)->interpreter->words[at];
  auto* f = reinterpret_cast<PyObject*>(reinterpret_cast<uintptr_t>(word) & ~uintptr_t{3});
  return f && PyFunction_Check(f) ? reinterpret_cast<PyFunctionObject*>(f) : nullptr;
#else
  // By its name, in the frame's globals or in the type of its first argument.
  PyObject* found = PyDict_GetItem(frame->f_globals, frame->f_code->co_name);
  if (!found && frame->f_code->co_argcount > 0 && frame->f_localsplus[0])
    found = _PyType_Lookup(Py_TYPE(frame->f_localsplus[0]), frame->f_code->co_name);
  bool same = found && PyFunction_Check(found) && PyFunction_GET_CODE(found) == reinterpret_cast<PyObject*>(frame->f_code);
  return same ? reinterpret_cast<PyFunctionObject*>(found) : nullptr;
#endif
}

inline PyObject* globals_of(PyFrameObject* frame) {  // a new reference
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetGlobals(frame);
#else
  return Py_NewRef(frame->f_globals);
#endif
}

inline PyObject* type_dict(PyTypeObject* type) {  // borrowed; null for a builtin type that has none of its own
  return type->tp_dict;
}

// Where the objects named by `__slots__` lie in an instance.
inline std::vector<Py_ssize_t> slots_of(PyTypeObject* type) {
  std::vector<Py_ssize_t> out;
  for (Py_ssize_t i = 0; type->tp_mro && i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    const bool has_factory = std::string_view(base->tp_name) == "collections.defaultdict";
    if (!(PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) || has_factory) || !base->tp_members) continue;
    for (PyMemberDef* m = base->tp_members; m->name; ++m)
      if (m->type == T_OBJECT_EX || has_factory) out.push_back(m->offset);
  }
  return out;
}

inline PyObject* names_of(PyCodeObject* code) { return code->co_names; }
inline PyObject* constants_of(PyCodeObject* code) { return code->co_consts; }
inline Ref free_names(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030B0000
  return Ref::steal(PyCode_GetFreevars(code));
#else
  return Ref::borrow(code->co_freevars);
#endif
}
// The profile function that the thread had, to be set again afterwards.
struct Profiler {
  Py_tracefunc function;
  PyObject* argument;
};
inline Profiler current_profiler() {
  PyThreadState* t = PyThreadState_Get();
  Py_XINCREF(t->c_profileobj);
  return {t->c_profilefunc, t->c_profileobj};
}

inline Py_tracefunc current_profiler_function() { return PyThreadState_Get()->c_profilefunc; }

// The method table entry of a built-in function: what identifies it.
inline PyMethodDef* method_of(PyObject* builtin) { return reinterpret_cast<PyCFunctionObject*>(builtin)->m_ml; }
inline PyObject* self_of(PyObject* builtin) { return PyCFunction_GET_SELF(builtin); }

}  // namespace broach::cpython
