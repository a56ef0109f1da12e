#include "watch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "capture.h"
#include "compat.h"
#include "cpython.h"
#include "function.h"
#include "support/error.h"
#include "while_capturing.h"

namespace broach {

namespace {

PureNames& names() {
  static PureNames n;
  return n;
}

std::string attribute(PyObject* o, const char* name) {
  Ref v = Ref::steal(PyObject_GetAttrString(o, name));
  if (!v || !PyUnicode_Check(v.get())) return PyErr_Clear(), "";
  const char* text = PyUnicode_AsUTF8(v.get());
  return text ? text : (PyErr_Clear(), "");
}

std::string place(PyFrameObject* frame) {
  Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename);
  return cat(file ? file : "?", ":", PyFrame_GetLineNumber(frame));
}

// The nearest frame of the user's, from here outwards.
std::string users_place(PyFrameObject* frame) {
  Ref f = Ref::borrow(reinterpret_cast<PyObject*>(frame));
  while (f) {
    auto* at = reinterpret_cast<PyFrameObject*>(f.get());
    Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(at)));
    if (owner_of_file(reinterpret_cast<PyCodeObject*>(code.get())->co_filename) == Owner::user) return place(at);
    f = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
  }
  return place(frame);
}

bool is_container(PyObject* o) {
  return PyList_Check(o) || PyDict_Check(o) || PyTuple_Check(o) || PyUnicode_Check(o) || PyLong_Check(o) || PyFloat_Check(o) || PyBytes_Check(o) || PyAnySet_Check(o) || PySlice_Check(o) || PyRange_Check(o);
}

// What every object has: __reduce_ex__, __dir__, __format__ and the like.
bool is_object_method(const PyMethodDef* method) {
  for (const PyMethodDef* m = PyBaseObject_Type.tp_methods; m->ml_name; ++m)
    if (m == method) return true;
  return false;
}

}  // namespace

void set_pure_names(PureNames n) { names() = std::move(n); }

Watch::Watch(State& state) : state_(state) {
  auto before = cpython::current_profiler();
  before_ = before.function;
  before_argument_ = Ref::steal(before.argument);
  Ref self = Ref::steal(PyCapsule_New(this, "broach.Watch", nullptr));
  PyEval_SetProfile(&on_event, self.get());
}

Watch::~Watch() { PyEval_SetProfile(before_, before_argument_.get()); }

int Watch::on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* argument) {
  // Inside an operation that is written in Python: the operation is recorded, not its parts.
  if (c10::impl::tls_is_dispatch_key_excluded(kCaptureKey)) return 0;
  auto* w = static_cast<Watch*>(PyCapsule_GetPointer(self, "broach.Watch"));
  if (w->abandoned_) return 0;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (what == PyTrace_CALL) w->on_call(frame);
  else if (what == PyTrace_C_CALL) w->on_builtin(frame, argument, false);
  else if (what == PyTrace_C_EXCEPTION) w->on_builtin(frame, argument, true);
  PyErr_Restore(type, value, trace);
  return w->ends_ ? w->end_program() : 0;
}

// By an error that programs do not catch with others.
int Watch::end_program() {
  static PyObject* error = PyErr_NewException("broach.EndsSymbolicCapture", PyExc_BaseException, nullptr);
  ends_ = false;
  PyErr_SetString(error, "a function that torch.compile compiles is called with tensors that stand for others");
  return -1;
}

Owner Watch::owner(PyCodeObject* code) {
  auto [it, fresh] = owners_.emplace(code, Owner::user);
  if (fresh) {
    keep_.push_back(Ref::borrow(reinterpret_cast<PyObject*>(code)));
    it->second = owner_of_file(code->co_filename);
  }
  return it->second;
}

void Watch::on_call(PyFrameObject* frame) {
  Ref held = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  auto* code = reinterpret_cast<PyCodeObject*>(held.get());
  Owner whose = owner(code);
  if (whose == Owner::torch) return on_torch_call(frame, code);
  if (whose != Owner::user) return;
  Ref globals = Ref::steal(cpython::globals_of(frame));
  state_.enter(code, globals.get(), cpython::function_of(frame));
}

// Of torch's own Python code, what works on attributes of tensors that no operation shows.
void Watch::on_torch_call(PyFrameObject* frame, PyCodeObject* code) {
  if (!torch_codes_.insert(code).second) return;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  std::string_view name = file ? file : "";
  for (std::string_view folder : {"/torch/optim/", "/torch/distributed/", "/torch/multiprocessing/", "/torch/_subclasses/"})
    if (name.find(folder) != name.npos) effect(frame, cat("runs code of ", folder.substr(1, folder.size() - 2)));
  if (name.ends_with("/torch/_dynamo/eval_frame.py") && attribute(reinterpret_cast<PyObject*>(code), "co_name") == "compile_wrapper") return abandon(frame);
  if (name.ends_with("/torch/_prims/rng_prims.py")) effect(frame, "reads or sets the state of random numbers");
  if (name.ends_with("/torch/_tensor_str.py")) effect(frame, "makes text of a tensor");
}

// What torch.compile compiles, eager's higher-order operators among it, is not made for running under a capture, and may compute
// without operations. Dynamo takes it for a part of the program.
void Watch::abandon(PyFrameObject* frame) {
  abandoned_ = true;
  effects_.clear();
  ends_ = !Function::abandon_capture(cat("calls a function that torch.compile compiles at ", users_place(frame)));
  Compiling::end();
}

const Watch::Verdict& Watch::judge(PyObject* function) {
  PyMethodDef* method = cpython::method_of(function);
  auto it = verdicts_.find(method);
  if (it == verdicts_.end()) {
    Verdict v{false, false, ""};
    keep_.push_back(Ref::borrow(function));
    PyObject* self = cpython::self_of(function);
    std::string module = attribute(function, "__module__"), qualified = attribute(function, "__qualname__");
    // A class method says where it is from by its class.
    if (module.empty() && self && PyType_Check(self) && owner_of_type(reinterpret_cast<PyTypeObject*>(self)) != Owner::torch) module = attribute(self, "__module__");
    const auto& n = names();
    auto listed = [&](const std::unordered_set<std::string>& set) {
      for (std::string key = v.name;;) {
        if (set.contains(key)) return true;
        size_t dot = key.rfind('.');
        if (dot == key.npos) return false;
        key.resize(dot);
      }
    };
    if (self && THPVariable_Check(self)) {
      v.name = cat("Tensor.", method->ml_name);
      v.torch = true;
      v.pure = !listed(n.impure);
    } else if (self && !PyModule_Check(self) && !PyType_Check(self) && module.empty()) {
      v.name = cat(Py_TYPE(self)->tp_name, ".", method->ml_name);
      v.torch = owner_of_type(Py_TYPE(self)) == Owner::torch;
      v.pure = is_container(self) || is_object_method(method) || (listed(n.pure) && !listed(n.impure));
    } else {
      v.name = module.empty() ? qualified : cat(module, ".", qualified);
      v.torch = owner_of_module(module) == Owner::torch;
      v.pure = listed(n.pure) && !listed(n.impure);
    }
    it = verdicts_.emplace(method, std::move(v)).first;
  }
  return it->second;
}

void Watch::on_builtin(PyFrameObject* frame, PyObject* function, bool raised) {
  if (!PyCFunction_Check(function)) return;
  Ref held = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  auto* code = reinterpret_cast<PyCodeObject*>(held.get());
  Owner whose = owner(code);
  if (!raised && whose == Owner::user) {
    int line = PyFrame_GetLineNumber(frame);
    if (code != line_code_ || line != line_) {
      line_code_ = code;
      line_ = line;
      Function::set_line(place(frame));
    }
  }
  const Verdict& v = judge(function);
  if (raised) {
    if (v.torch) effect(frame, cat("an error in ", v.name, " is caught"));
    return;
  }
  if (v.pure) return;
  if (v.name == "Tensor.tolist" && Capture::current() && Capture::current()->read_elements(THPVariable_Unpack(cpython::self_of(function)))) return;
  // torch's own Python code is trusted with what is not listed as impure; nobody else's is.
  if (whose == Owner::torch && !names().impure.contains(v.name)) return;
  effect(frame, cat("calls ", v.name));
}

void Watch::effect(PyFrameObject* frame, const std::string& what) {
  std::string text = cat(what, " at ", users_place(frame));
  if (effects_.size() < 20 && std::find(effects_.begin(), effects_.end(), text) == effects_.end()) effects_.push_back(std::move(text));
}

}  // namespace broach
