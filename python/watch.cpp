#include "watch.h"

#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "autocast_cache.h"
#include "capture.h"
#include "cpython.h"
#include "function.h"
#include "gradient_code.h"
#include "instances.h"
#include "keys.h"
#include "signals.h"
#include "support/error.h"

namespace py = pybind11;

namespace broach {

namespace {

NativeFunctions& known() {
  static NativeFunctions f;
  return f;
}

// A name, or that of a module or type that it belongs to.
bool is_within(const std::unordered_set<std::string>& set, std::string name) {
  for (;;) {
    if (set.contains(name)) return true;
    size_t dot = name.rfind('.');
    if (dot == name.npos) return false;
    name.resize(dot);
  }
}

std::string attribute(PyObject* o, const char* name) {
  Ref v = undisturbed([&] { return PyObject_GetAttrString(o, name); });  // what makes a text runs the handlers of signals
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

// Python's own containers, numbers and texts: their methods change nothing but themselves, which is found by comparing.
bool is_builtin_value(PyObject* o) {
  PyTypeObject* t = native_base(Py_TYPE(o));
  for (PyTypeObject* known :
       {&PyList_Type, &PyDict_Type, &PyODict_Type, &PyTuple_Type, &PyUnicode_Type, &PyLong_Type, &PyBool_Type, &PyFloat_Type,
        &PyComplex_Type, &PyBytes_Type, &PyByteArray_Type, &PySet_Type, &PyFrozenSet_Type, &PySlice_Type, &PyRange_Type})
    if (t == known) return true;
  return false;
}

// Whether an import statement that found no module runs this code: it will find one the next time.
bool is_importing(PyFrameObject* frame) {
  for (Ref f = Ref::borrow(reinterpret_cast<PyObject*>(frame)); f;
       f = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(f.get()))))) {
    Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(f.get()))));
    if (text_of(reinterpret_cast<PyCodeObject*>(code.get())->co_filename).starts_with("<frozen importlib.")) return true;
  }
  return false;
}

// Says whether a class was registered with an abstract one since.
PyObject* registrations() {
  static PyObject* token = [] {
    Ref m = import_module("_abc");
    return PyObject_GetAttrString(m.get(), "get_cache_token");
  }();
  return token;
}

// Whether torch tells autograd that an operation written in Python has written to its arguments, as its schema says: a replay does too.
bool tells_of_operation(PyFrameObject* frame) {
  constexpr int kDeep = 3;  // frames up to the operation's kernel for writes
  Ref f = Ref::borrow(reinterpret_cast<PyObject*>(frame));
  for (int i = 0; f && i < kDeep; ++i) {
    Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(f.get()))));
    const auto* c = reinterpret_cast<PyCodeObject*>(code.get());
    if (text_of(c->co_name) == "adinplaceorview_impl" && text_of(c->co_filename).ends_with("/torch/_library/custom_ops.py")) return true;
    f = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(f.get()))));
  }
  return false;
}

bool is_question(std::string_view function) {
  for (std::string_view start : {"get_", "_get_", "is_", "_is_", "has_", "_has_"})
    if (function.starts_with(start)) return true;
  return false;
}

// Views that not every layout allows do, too.
bool asks_for_layout(std::string_view function) {
  for (std::string_view name : {".stride", ".is_contiguous", ".storage_offset", ".dim_order", ".is_non_overlapping_and_dense", ".data_ptr",
                                ".untyped_storage", ".view", ".view_as", ".as_strided"})
    if (function.ends_with(name)) return true;
  return false;
}

// What every object has: __reduce_ex__, __dir__, __format__ and the like.
bool is_object_method(const PyMethodDef* method) {
  for (const PyMethodDef* m = PyBaseObject_Type.tp_methods; m->ml_name; ++m)
    if (m == method) return true;
  return false;
}

}  // namespace

void set_native_functions(NativeFunctions f) { known() = std::move(f); }

Fallback fallback_for(const std::string& name) { return is_within(known().eager, name) ? Fallback::eager : Fallback::dynamo; }

Watch::Watch(State& state, const State* program, bool tells, bool runs_again)
    : state_(state),
      tells_(tells),
      program_(program),
      ends_on_effects_(program || Function::is_capturing_symbols()),
      runs_again_(runs_again) {
  auto before = cpython::current_profiler();
  before_ = before.function;
  before_argument_ = Ref::steal(before.argument);
  caller_ = reinterpret_cast<PyObject*>(PyEval_GetFrame());
  Ref self = Ref::steal(PyCapsule_New(this, "broach.Watch", nullptr));
  PyEval_SetProfile(&on_event, self.get());
}

Watch::~Watch() {
  if (cpython::current_profiler_function() == &on_event) PyEval_SetProfile(before_, before_argument_.get());
}

int Watch::on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* argument) {
  auto* w = static_cast<Watch*>(PyCapsule_GetPointer(self, "broach.Watch"));
  // Inside an operation that is written in Python: the operation is recorded, not its parts.
  if (c10::impl::tls_is_dispatch_key_excluded(capture_keys().record)) return what == PyTrace_CALL ? w->on_operation(frame) : void(), 0;
  if (what == PyTrace_RETURN && frame == w->told_) w->told_ = nullptr, w->compiling_.reset();
  const bool begins = what == PyTrace_CALL || what == PyTrace_C_CALL;
  if (w->abandoned_ || (!begins && what != PyTrace_C_EXCEPTION)) return 0;
  const SignalsHeld held;
  if (begins && !held.run_handlers()) return -1;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (what == PyTrace_CALL) w->on_call(frame);
  else if (what == PyTrace_C_CALL) w->on_builtin(frame, argument, false);
  else if (what == PyTrace_C_EXCEPTION) w->on_builtin(frame, argument, true);
  PyErr_Restore(type, value, trace);
  if (begins) w->end_if_in_vain();
  // A run on stand-ins ends before it has an effect.
  const bool may = w->ends_ && !w->lets_run_ && begins && !w->is_leaving(frame, what == PyTrace_C_CALL ? argument : nullptr);
  const bool ends = may && (w->is_seen_outside_ || !is_ending());
  return ends ? w->end_program() : 0;
}

// Whether a lock is given back, a checkpoint ends, or a mode that torch or Python's library has set: a run that ends, too, leaves its blocks.
// `function`: written in C, which the frame is about to call; null if the frame begins.
bool Watch::is_leaving(PyFrameObject* frame, PyObject* function) {
  if (function && PyCFunction_Check(function)) {
    const std::string_view name = cpython::method_of(function)->ml_name;
    if (name == "__exit__" || name == "end_checkpoint") return true;
  }
  bool is_users = false;
  Ref at = Ref::borrow(reinterpret_cast<PyObject*>(frame));
  while (at && at.get() != Py_None && at.get() != caller_) {
    auto* f = reinterpret_cast<PyFrameObject*>(at.get());
    Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    auto* c = reinterpret_cast<PyCodeObject*>(code.get());
    if (text_of(c->co_name) == "__del__") return true;  // which would lose the error
    const Owner whose = owner(c);
    is_users = is_users || whose == Owner::user || whose == Owner::own;
    if (!is_users && text_of(c->co_name) == "__exit__") return true;
    at = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return false;
}

// What cannot be recorded with stand-ins will run once more without.
void Watch::end_if_in_vain() {
  const Capture* c = ends_on_effects_ && !program_ && !ends_ ? Capture::current() : nullptr;
  if (!c || c->verdict().outcome != Outcome::unsupported) return;
  effects_.push_back(c->verdict().reason);
  ends_ = true;
}

PyObject* Watch::end_of_program() {
  static PyObject* error = [] {
    const py::error_scope of_the_program;
    return PyErr_NewException("broach.EndsCapture", PyExc_BaseException, nullptr);
  }();
  return error;
}

// Whether what runs is the end of a block that the error leaves, which puts back what it has set.
bool Watch::is_ending() { return cpython::handled_exception().get() == end_of_program(); }

// Nothing of the run has happened, so that the program can run again.
int Watch::end_program() {
  ends_ = is_seen_outside_ = false;
  was_ended_ = true;
  PyErr_SetString(end_of_program(), effects_.empty() ? "a function that torch.compile compiles is called with tensors that stand for others"
                                                     : effects_.back().text.c_str());
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

// What a function of `_codes` says of code.
static std::string answer_of_codes(const char* question, PyCodeObject* code) {
  Ref module = import_module("broach._codes");
  Ref answer = module ? undisturbed([&] { return PyObject_CallMethod(module.get(), question, "O", code); }) : Ref();
  if (!answer) return PyErr_Clear(), cat("runs code that cannot be read: ", text_of(code->co_name));
  return std::string(text_of(answer.get()));
}

void Watch::on_call(PyFrameObject* frame) {
  Ref held = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  auto* code = reinterpret_cast<PyCodeObject*>(held.get());
  Owner whose = owner(code);
  if (whose == Owner::own) return on_own_call(frame, code);
  if (tells_ && !told_) tell_compiling(frame, code);
  if (whose == Owner::torch) on_torch_call(frame, code);
  else if (whose == Owner::library) on_library_call(frame, code);
  if (!state_.has_entered(code) && is_importing(frame)) return effect(frame, "imports a module");
  Ref globals = Ref::steal(cpython::globals_of(frame));
  state_.enter(code, globals.get(), cpython::function_of(frame));
  if (program_ && whose == Owner::user) watch_arguments(frame, code);
  if (has_numbers_ && whose == Owner::user) look_at_identity(frame, code, globals.get());
  // Which cannot be put back, should the code write to it.
  if (ends_on_effects_ && !state_.problems().empty()) effect(frame, state_.problems().front());
  if (!(ends_on_effects_ || runs_again_) || (whose != Owner::user && (program_ || whose != Owner::torch))) return;
  // Nothing must have happened by then.
  std::vector<const char*> questions{whose == Owner::user ? "invisible" : "invisible_in_torch"};
  if (program_) questions.push_back("uses_context_up");
  if (program_ && Function::is_capturing_symbols()) questions.push_back("asks_for_type_of_number");
  for (const char* question : questions)
    if (std::string why = answer_of_codes(question, code); !why.empty()) effect(frame, {why, Fallback::eager});
}

// Its code runs in every call, where a replay has not written the program's state yet and numbers of it do not stand for others.
void Watch::on_operation(PyFrameObject* frame) {
  const Ref held = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  auto* code = reinterpret_cast<PyCodeObject*>(held.get());
  if (abandoned_ || owner(code) != Owner::user) return;
  const Ref globals = Ref::steal(cpython::globals_of(frame));
  const std::string name = state_.shared_with(code, globals.get(), cpython::function_of(frame));
  if (!name.empty()) effect(frame, {cat("calls an operation whose own code reads ", name, ", as the program does"), Fallback::eager});
}

void Watch::tell_compiling(PyFrameObject* frame, PyCodeObject* code) {
  const auto told = known().told.find(std::string(text_of(code->co_name)));
  if (told == known().told.end()) return;
  const Ref globals = Ref::steal(cpython::globals_of(frame));
  if (text_of(PyDict_GetItemString(globals.get(), "__name__")) != told->second) return;
  told_ = frame;
  has_told_ = true;
  compiling_.emplace();
}

bool Watch::is_called_by_user(PyFrameObject* frame) {
  Ref caller = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)));
  Ref code = caller ? Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(caller.get())))) : Ref();
  return code && owner(reinterpret_cast<PyCodeObject*>(code.get())) == Owner::user;
}

// Whose elements at padded places are zero in eager, on a way through nested tensors that it does not take where it is compiled.
bool Watch::is_called_by_encoder(PyFrameObject* frame) {
  const Ref caller = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)));
  if (!caller) return false;
  auto* of_caller = reinterpret_cast<PyFrameObject*>(caller.get());
  const Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(of_caller)));
  const Ref globals = Ref::steal(cpython::globals_of(of_caller));
  return text_of(reinterpret_cast<PyCodeObject*>(code.get())->co_name) == "forward" &&
         text_of(PyDict_GetItemString(globals.get(), "__name__")) == "torch.nn.modules.transformer";
}

void Watch::on_library_call(PyFrameObject* frame, PyCodeObject* code) {
  std::string_view function = text_of(code->co_name), file = text_of(code->co_filename);
  // One that nobody sees, or saw before, is shown no more by a run that does not warn.
  if (function == "_showwarnmsg" && file.ends_with("warnings.py")) effect(frame, {"shows a warning", Fallback::eager}, true);
  if (file.find("/asyncio/") != file.npos) effect(frame, {"runs a loop of asyncio", Fallback::eager}, true);
  if (function == "getLogger" && file.ends_with("logging/__init__.py")) watch_logger(frame);
  if (function == "_log" && file.ends_with("logging/__init__.py")) effect(frame, {"writes to a log", Fallback::eager}, true);
  // What it gives is found by no name.
  if (function == "import_module" && file.ends_with("importlib/__init__.py") && is_called_by_user(frame))
    effect(frame, {"asks importlib for a module", Fallback::eager});
}

static Ref locals_of(PyFrameObject* frame) { return Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_locals")); }

// Null if there is none.
static Ref local(PyFrameObject* frame, const char* name) {
  const Ref locals = locals_of(frame);
  Ref found = locals ? Ref::steal(PyMapping_GetItemString(locals.get(), name)) : Ref();
  if (!found) PyErr_Clear();
  return found;
}

// What stands for Tensor.grad (_gradients.py).
void Watch::on_own_call(PyFrameObject* frame, PyCodeObject* code) {
  const std::string_view function = text_of(code->co_name);
  const bool reads = function == "read_gradient";
  if (!reads && function != "write_gradient") return;
  const Ref self = local(frame, "self");
  if (!program_ && self && is_tensor(self.get())) {
    const at::Tensor& t = THPVariable_Unpack(self.get());
    if (Capture* c = Capture::current(); state_.meets_gradient(self.get()) || (c && t.is_leaf() && c->has_made(t))) return;
  }
  effect(frame, {reads ? "reads an attribute .grad" : "writes an attribute .grad", Fallback::eager});
}

void Watch::look_at_identity(PyFrameObject* frame, PyCodeObject* code, PyObject* globals) {
  const Ref codes = import_module("broach._codes");
  Ref found = codes ? undisturbed([&] { return PyObject_CallMethod(codes.get(), "identities", "O", code); }) : Ref();
  if (found && PyObject_Size(found.get()) == 0) return;
  const Ref locals = found ? locals_of(frame) : Ref();
  if (locals) found = undisturbed([&] { return PyObject_CallMethod(codes.get(), "compares_numbers", "OOO", code, locals.get(), globals); });
  if (!locals || !found) PyErr_Clear();
  const std::string why = locals && found ? std::string(text_of(found.get())) : "runs code that cannot be read";
  if (!why.empty()) effect(frame, {why, Fallback::eager});
}

// Code of gradients is handed what the program reached, too: a module by its hook, say.
void Watch::watch_arguments(PyFrameObject* frame, PyCodeObject* code) {
  const Ref locals = locals_of(frame);
  const Ref values = locals ? Ref::steal(PyMapping_Values(locals.get())) : Ref();
  if (!values) return PyErr_Clear();
  state_.watch_known(*program_, values.get(), cat("an argument of ", text_of(code->co_name)));
}

// Which is found by no name of the program's.
void Watch::watch_logger(PyFrameObject* frame) {
  const Ref name = local(frame, "name"), logging = import_module("logging");
  Ref logger = name && logging ? Ref::steal(PyObject_CallMethod(logging.get(), "getLogger", "O", name.get())) : Ref();
  if (!logger) return PyErr_Clear();  // its error is the program's to raise
  if (!state_.knows(logger.get())) state_.watch(logger.get(), cat("logger ", text_of(name.get())));
}

// Whether code only asks if there is a group of processes; the answer is then part of the state. These were read: the first says what
// torch was built with, the others are the second's.
bool Watch::watch_processes(std::string_view function, std::string_view file) {
  if (function == "is_available" && file.ends_with("/torch/distributed/__init__.py")) return true;
  if (!file.ends_with("/torch/distributed/distributed_c10d.py")) return false;
  if (function == "WORLD" || function == "default_pg") return true;
  if (function != "is_initialized") return false;
  Ref module = import_module("torch.distributed.distributed_c10d");
  Ref asks = module ? Ref::steal(PyObject_GetAttrString(module.get(), "is_initialized")) : Ref();
  if (!asks) return PyErr_Clear(), false;
  state_.watch_answer(asks.get());
  return true;
}

static std::string_view name_of_file(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  return path.substr(0, path.rfind(".py"));
}

// Which are left out of a module's state, as no other results depend on them.
void Watch::watch_hooks_of_state(PyFrameObject* frame) {
  const Ref self = local(frame, "self");
  for (const char* name : kHooksOfState) {
    Ref hooks = self ? Ref::steal(PyObject_GetAttrString(self.get(), name)) : Ref();
    if (hooks) state_.watch(hooks.get(), name);
    else PyErr_Clear();
  }
}

// Of torch's own Python code, what works on attributes of tensors that no operation shows.
void Watch::on_torch_call(PyFrameObject* frame, PyCodeObject* code) {
  std::string_view function = text_of(code->co_name);
  if (function == "register_hook" && text_of(code->co_filename).ends_with("/torch/_tensor.py")) on_register_hook(frame);
  if (function == "register_post_accumulate_grad_hook" && text_of(code->co_filename).ends_with("/torch/_tensor.py"))
    effect(frame, {"registers a hook for an accumulated gradient", Fallback::eager});
  if (function == "_engine_run_backward" && text_of(code->co_filename).ends_with("/torch/autograd/graph.py")) on_backward(frame);
  if (function.ends_with("state_dict") && text_of(code->co_filename).ends_with("/torch/nn/modules/module.py")) watch_hooks_of_state(frame);
  if (!torch_codes_.insert(code).second) return;
  if (function == "__hash__" && text_of(code->co_filename).ends_with("/torch/_tensor.py")) {
    torch_codes_.erase(code);  // whoever asks next
    const Ref self = local(frame, "self");
    const bool is_held = self && is_tensor(self.get()) && state_.holds_tensor(THPVariable_Unpack(self.get()).unsafeGetTensorImpl());
    if (!is_held && is_called_by_user(frame)) effect(frame, {"asks for the identity of a tensor", Fallback::eager});
  }
  if (function == "is_compiling" || function == "is_dynamo_compiling" || function == "is_exporting") {
    torch_codes_.erase(code);  // whoever asks next
    asked_ = asked_ || !told_;
    computes_otherwise_ = computes_otherwise_ || is_called_by_encoder(frame);
  }
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  std::string_view name = file ? file : "";
  if (name.find("/torch/optim/") != name.npos && !known().optimizers.contains(cat(name_of_file(name), ".", function)))
    effect(frame, cat("runs ", function, " of torch/optim"));
  for (std::string_view folder : {"/torch/distributed/", "/torch/multiprocessing/", "/torch/_subclasses/"})
    if (name.find(folder) != name.npos && !watch_processes(function, name))
      effect(frame, cat("runs code of ", folder.substr(1, folder.size() - 2)));
  if (name.find("/torch/optim/") != name.npos) Compiling::end();  // they leave out checks, and count otherwise, where they are compiled
  if (name.ends_with("/torch/_dynamo/eval_frame.py") && attribute(reinterpret_cast<PyObject*>(code), "co_name") == "compile_wrapper")
    return abandon(frame);
  if (name.ends_with("/torch/_prims/rng_prims.py")) effect(frame, "reads or sets the state of random numbers");
  if (name.ends_with("/torch/_tensor_str.py")) effect(frame, "makes text of a tensor");
  // Which are watched only where the state is asked for.
  if (name.ends_with("/torch/nn/modules/module.py") && function.find("register") < 2 && function.find("state_dict") != function.npos)
    effect(frame, {cat("calls ", function), Fallback::eager});
}

// What it begins at are tensors, or edges of autograd's graph, which stay eager's.
void Watch::on_backward(PyFrameObject* frame) {
  Capture* c = Capture::current();
  const Ref given = local(frame, "t_outputs");
  const Ref list = given ? Ref::steal(PySequence_Tuple(given.get())) : Ref();
  if (!list) return PyErr_Clear();
  std::vector<at::Tensor> outputs;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list.get()); ++i)
    if (PyObject* o = PyTuple_GET_ITEM(list.get(), i); is_tensor(o)) outputs.push_back(THPVariable_Unpack(o));
    else return effect(frame, {"runs a backward from an edge of autograd's graph", Fallback::eager});
  if (!c || c->is_abandoned() || program_) return;
  c->will_run_backward(outputs, [this](torch::autograd::Node& node, bool is_formula) {
    if (!engine_) engine_.emplace();
    return why_no_python(node, is_formula);
  });
}

// A tensor of the program's own is gone with the call, and its hook with it: what that does is part of the gradients.
void Watch::on_register_hook(PyFrameObject* frame) {
  const Ref self = local(frame, "self");
  Capture* c = Capture::current();
  if (!self || !is_tensor(self.get()) || !c || !c->has_made(THPVariable_Unpack(self.get())))
    effect(frame, {"registers a hook on a tensor that it has not made", Fallback::eager});
}

// What torch.compile compiles, eager's higher-order operators among it, is not made for running under a capture, and may compute
// without operations. Dynamo takes it for a part of the program.
void Watch::abandon(PyFrameObject* frame) {
  abandoned_ = true;
  effects_.clear();
  ends_ = !Function::abandon_capture(
      {Outcome::rejected, {cat("calls a function that torch.compile compiles at ", users_place(frame)), Fallback::torch_compile}});
  Compiling::end();
}

// Whether a function written in C is a method of this object's type, with which it lives: the object itself may be gone before the run is over.
static bool is_of_type(const PyMethodDef* method, PyObject* self) {
  if (!self || PyModule_Check(self) || PyType_Check(self)) return false;
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(self), Ref::steal(PyUnicode_FromString(method->ml_name)).get());
  return descriptor && Py_IS_TYPE(descriptor, &PyMethodDescr_Type) &&
         reinterpret_cast<PyMethodDescrObject*>(descriptor)->d_method == method;
}

const Watch::Verdict& Watch::judge(PyObject* function) {
  using Kind = Verdict::Kind;
  PyMethodDef* method = cpython::method_of(function);
  auto it = verdicts_.find(method);
  if (it != verdicts_.end()) return it->second;
  Verdict v{Kind::unknown, false, ""};
  PyObject* self = cpython::self_of(function);
  keep_.push_back(Ref::borrow(is_of_type(method, self) ? reinterpret_cast<PyObject*>(Py_TYPE(self)) : function));
  std::string module = attribute(function, "__module__"), qualified = attribute(function, "__qualname__");
  // Up to torch 2.14 this is written in Python.
  if (self && PyType_Check(self) && std::string_view(method->ml_name) == "apply" && PyObject_IsSubclass(self, THPFunctionClass) == 1)
    module = "torch._C._FunctionBase", qualified = method->ml_name;
  // A class method says where it is from by its class.
  if (module.empty() && self && PyType_Check(self) && owner_of_type(reinterpret_cast<PyTypeObject*>(self)) != Owner::torch)
    module = attribute(self, "__module__");
  bool of_object = self && !PyModule_Check(self) && !PyType_Check(self) && module.empty();
  bool tensors = self && is_tensor(self);
  v.name = tensors     ? cat("Tensor.", method->ml_name)
           : of_object ? cat(native_base(Py_TYPE(self))->tp_name, ".", method->ml_name)
           : module.empty() || (module == "builtins" && qualified.find('.') != qualified.npos) ? qualified
                                                                                               : cat(module, ".", qualified);
  v.torch = tensors || (of_object ? owner_of_type(Py_TYPE(self)) == Owner::torch : owner_of_module(v.name) == Owner::torch);
  const NativeFunctions& f = known();
  bool pure = f.pure.contains(v.name) || qualified.ends_with(".__class_getitem__") ||
              (v.torch && f.operators.contains(method->ml_name) && (tensors || v.name.starts_with("torch."))) ||
              (of_object && !tensors && (is_builtin_value(self) || is_object_method(method)));
  // Settings that torch's own code asks for.
  bool setting = v.torch && (method->ml_flags & METH_NOARGS) && !of_object && is_question(method->ml_name);
  if (setting && !pure && !is_within(f.impure, v.name)) v.kind = Kind::answer;
  else v.kind = is_within(f.impure, v.name) ? Kind::impure : f.answers.contains(v.name) ? Kind::answer : pure ? Kind::pure : Kind::unknown;
  return verdicts_.emplace(method, std::move(v)).first->second;
}

void Watch::set_line(PyFrameObject* frame, PyCodeObject* code) {
  int line = PyFrame_GetLineNumber(frame);
  if (code == line_code_ && line == line_) return;
  line_code_ = code;
  line_ = line;
  Function::set_line(place(frame));
}

// Of a tensor's methods, whether the recording bears what this one tells the program.
static bool answers_for(std::string_view name, PyObject* function) {
  constexpr std::string_view tensors = "Tensor.";
  if (!name.starts_with(tensors) || !Capture::current()) return true;
  return Capture::current()->asks(THPVariable_Unpack(cpython::self_of(function)), name.substr(tensors.size()));
}

void Watch::on_builtin(PyFrameObject* frame, PyObject* function, bool raised) {
  using Kind = Verdict::Kind;
  if (!PyCFunction_Check(function)) return;
  Ref held = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  auto* code = reinterpret_cast<PyCodeObject*>(held.get());
  Owner whose = owner(code);
  if (whose == Owner::own) return;
  if (!raised && whose == Owner::user) set_line(frame, code);
  const Verdict& v = judge(function);
  if (raised) {
    if (v.torch) effect(frame, {cat("an error in ", v.name, " is caught"), Fallback::eager});
    return;
  }
  goes_by_layout_ = goes_by_layout_ || (whose == Owner::user && asks_for_layout(v.name));
  if (v.name == "_abc._abc_instancecheck" || v.name == "_abc._abc_subclasscheck") return state_.watch_answer(registrations());
  if (v.name == "sys.getprofile" || v.name == "sys.setprofile") return step_aside(frame, v.name);
  if (v.name == "torch._C._increment_version" && tells_of_operation(frame)) return;
  if (whose == Owner::user && v.name.ends_with("_autocast_cache_enabled")) {
    WithoutAutocastCache::end_here();
    return effect(frame, {cat("calls ", v.name), Fallback::eager});
  }
  if (v.name == "_warnings.warn") state_.watch_globals("warnings", {"filters", "defaultaction"});
  auto called = [&] { return Reason(cat("calls ", v.name), fallback_for(v.name)); };
  // Layers of torch's take another way by it.
  const bool may_matter = whose == Owner::user || text_of(code->co_filename).find("/torch/nn/") != std::string_view::npos;
  if (may_matter && v.name.ends_with(".is_grad_enabled"))
    Capture::must_not_go_by_modes("a checkpoint with use_reentrant=True asks whether gradients are enabled");
  // Torch's own code does not leave its level where it is ended within.
  if (ends_on_effects_ && v.name.ends_with("._func_increment_nesting")) return effect(frame, called());
  if (program_ && v.name.ends_with(".run_backward")) return effect(frame, {"computes gradients", Fallback::eager});
  if (!answers_for(v.name, function)) return effect(frame, called());
  if (v.kind == Kind::pure || (whose != Owner::user && known().of_libraries.contains(v.name))) return;
  if (v.kind == Kind::answer) return state_.watch_answer(function, whose == Owner::torch);
  if (v.name == "Tensor.tolist" && Capture::current() && Capture::current()->read_list(THPVariable_Unpack(cpython::self_of(function))))
    return;
  // torch's own Python code is trusted with what is not listed as impure; nobody else's is.
  if (whose == Owner::torch && v.kind == Kind::unknown) return;
  effect(frame, called());
  is_seen_outside_ = whose == Owner::user && !v.torch && !v.name.ends_with(".release");
}

// A program that asks for the profile function, or sets one, is to find what would be there without a capture.
void Watch::step_aside(PyFrameObject* frame, const std::string& function) {
  effect(frame, {cat("calls ", function), fallback_for(function)});
  abandoned_ = true;
  PyEval_SetProfile(before_, before_argument_.get());
}

void Watch::effect(PyFrameObject* frame, const Reason& what, bool first) {
  Reason reason = what.within("", cat(" at ", users_place(frame)));
  auto said = [&](const Reason& r) { return r.text == reason.text; };
  if (effects_.size() < 20 && std::none_of(effects_.begin(), effects_.end(), said))
    effects_.insert(first ? effects_.begin() : effects_.end(), std::move(reason));
  ends_ = ends_ || ends_on_effects_ || runs_again_;
}

}  // namespace broach
