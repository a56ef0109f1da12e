// What a program's values lead to: everything reachable that can change becomes a node of the state, and what cannot be looked
// into is a problem.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "instances.h"
#include "signals.h"
#include "state.h"
#include "support/error.h"
#include "tensors.h"
#include "watch.h"

namespace broach {

namespace {

constexpr size_t kMostNodes = 200000;

// torch.nn.Module, once it is imported.
PyTypeObject* module_type() {
  static PyTypeObject* type = [] {
    Ref m = import_module("torch.nn");
    return reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(m.get(), "Module"));
  }();
  return type;
}

bool starts_with_dunder(std::string_view s) { return s.size() > 4 && s.starts_with("__") && s.ends_with("__"); }

// Fields of every nn.Module that only saving, loading and gradients read.
bool is_bookkeeping(std::string_view field) {
  static const std::unordered_set<std::string_view> names = {"_non_persistent_buffers_set", "_forward_hooks_with_kwargs",
                                                             "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
                                                             "_is_full_backward_hook"};
  return names.contains(field) || std::ranges::find(kHooksOfState, field) != std::end(kHooksOfState);
}

bool is_c_iterator(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return PyGen_Check(o) || PyCoro_CheckExact(o) || (!is_heap(t) && t->tp_iternext && t->tp_iter == PyObject_SelfIter);
}

std::vector<PyObject*> referents_of(PyObject* o) {
  std::vector<PyObject*> out;
  auto add = [](PyObject* each, void* to) {
    static_cast<std::vector<PyObject*>*>(to)->push_back(each);
    return 0;
  };
  if (traverseproc traverse = Py_TYPE(o)->tp_traverse; traverse && PyObject_IS_GC(o)) traverse(o, add, &out);
  return out;
}

// Of torch, one that somebody has registered or one of its own.
bool is_operator(PyObject* o) {
  const Ref module = Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "__module__"));
  const std::string_view name = module ? text_of(module.get()) : "";
  return PyErr_Clear(), name == "torch._library.custom_ops" || name == "torch._ops";
}

std::string_view name_of_module(PyObject* dict) { return text_of(PyDict_GetItemString(dict, "__name__")); }

// What stands in the place of a function of Python's or torch's own while sizes are symbols is none of the program's.
PyObject* without_stand_ins(PyObject* value) {
  if (!value || !PyFunction_Check(value)) return value;
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(value));
  if (owner_of_file(code->co_filename) != Owner::own) return value;
  PyObject* dict = reinterpret_cast<PyFunctionObject*>(value)->func_dict;
  PyObject* wrapped = dict ? PyDict_GetItemString(dict, "__wrapped__") : nullptr;
  return wrapped ? wrapped : value;
}

}  // namespace

void State::watch(PyObject* root, const std::string& name) {
  visit(root, -1, name);
  visit_queued();
}

void State::watch_known(const State& other, PyObject* root, const std::string& name) {
  std::vector<Ref> left{Ref::borrow(root)};
  std::unordered_set<PyObject*> seen;
  while (!left.empty()) {
    const Ref v = std::move(left.back());
    left.pop_back();
    if (!v || is_atom(v.get()) || !seen.insert(v.get()).second) continue;
    if (other.knows(v.get())) watch(v.get(), name);
    else if (PyTuple_Check(v.get()) || PyList_Check(v.get()) || PyDict_Check(v.get()))
      for (PyObject* each : referents_of(v.get())) left.push_back(Ref::borrow(each));
  }
}

void State::visit_queued() {
  while (!queue_.empty()) {
    int id = queue_.back();
    queue_.pop_back();
    children(id);
  }
}

void State::problem(PyObject* o, int parent, const std::string& label, Reason what) {
  if (parent >= 0 && nodes_[static_cast<size_t>(parent)].of_torch) return;  // torch's own affair: the program has its Python methods only
  if (in_library_) return void(known_.erase(o));  // whose calls of C functions are judged; the program may still come to it by itself
  add_problem(what.within((parent >= 0 ? path(parent) : "") + label));
}

void State::add_problem(Reason why) {
  if (name_) named_problems_.push_back({Ref::borrow(dict_), Ref::borrow(name_), why});
  problems_.push_back(std::move(why));
}

std::vector<Doubt> State::problems_of_names() const {
  return named_problems_.size() == problems_.size() ? named_problems_ : std::vector<Doubt>();
}

// What is found by one name of a module, with all that it leads to.
void State::visit_named(PyObject* dict, PyObject* name, const std::function<void()>& visit) {
  const auto outer = std::pair(std::exchange(dict_, dict), std::exchange(name_, name));
  auto queue = std::exchange(queue_, {});
  visit();
  visit_queued();
  queue_ = std::move(queue);
  std::tie(dict_, name_) = outer;
}

bool State::is_doubted(PyObject* dict, PyObject* name) const {
  return std::ranges::any_of(doubts_, [&](const Doubt& d) { return d.is_of(dict, name); });
}

// It is immutable itself.
void State::has_seen(PyObject* o) {
  known_.emplace(o, -1);
  keep_.push_back(Ref::borrow(o));
}

int State::node_of(Kind kind, PyObject* o, int parent, const std::string& label) {
  int id = add(kind, o, parent, label);
  known_.emplace(o, id);
  fill(id);
  queue_.push_back(id);
  return id;
}

// What a node's values lead to.
void State::children(int id) {
  // By copy: visiting adds nodes.
  auto keys = nodes_[static_cast<size_t>(id)].keys;
  auto values = nodes_[static_cast<size_t>(id)].values;
  Kind kind = nodes_[static_cast<size_t>(id)].kind;
  bool module_dict = nodes_[static_cast<size_t>(id)].module_dict;
  std::string_view label = nodes_[static_cast<size_t>(id)].label;
  bool of_instance = kind == Kind::dict && label.empty();
  if (kind == Kind::dict || kind == Kind::ordered)
    for (const Ref& k : keys)
      if (!is_atom(k.get()) || PyType_Check(k.get())) visit(k.get(), id, " key");
  for (size_t i = 0; i < values.size(); ++i) {
    PyObject* v = values[i].get();
    if (!v || (is_atom(v) && !PyType_Check(v) && !PyCFunction_Check(v))) continue;
    std::string_view key = i < keys.size() ? text_of(keys[i].get()) : std::string_view();
    if (module_dict && is_bookkeeping(key)) continue;
    bool members = module_dict && (key == "_modules" || key == "_parameters" || key == "_buffers");
    if (kind == Kind::cache && std::string_view(Py_TYPE(v)->tp_name) == "functools._lru_list_elem")
      continue;                                      // what it holds has been visited
    if (kind == Kind::function && i == 0) continue;  // its code
    if (kind == Kind::instance && i < 2) continue;   // its type and dict are nodes of their own
    std::string step = kind == Kind::cell || kind == Kind::instance ? (i < keys.size() && keys[i] ? cat(".", key) : std::string())
                       : members                                    ? std::string()
                       : of_instance                                ? cat(".", key)
                       : i < keys.size()                            ? (key.empty() ? "[...]" : cat("['", key, "']"))
                                                                    : cat("[", i, "]");
    if (kind == Kind::names) step = cat(" ", key);
    visit(v, id, step);
  }
}

void State::visit(PyObject* o, int parent, const std::string& label) {
  if (o && (PyList_CheckExact(o) || PyDict_CheckExact(o))) ++met_[o];
  if (!o || known_.contains(o)) return;
  if (nodes_.size() > kMostNodes) {
    if (problems_.empty()) add_problem(cat("more than ", kMostNodes, " objects are reachable"));
    return;
  }
  if (PyType_Check(o)) return visit_type(reinterpret_cast<PyTypeObject*>(o), parent, label);
  if (PyCFunction_Check(o)) return visit_builtin_method(o, parent, label);
  if (is_atom(o)) return;
  if (is_tensor(o)) return visit_tensor(o, parent, label);
  if (PyFunction_Check(o)) return visit_function(o, parent, label);
  if (PyModule_Check(o)) return visit_module(o, nullptr);
  if (is_instance(o, torch::get_symint_class().ptr()) || is_instance(o, torch::get_symfloat_class().ptr()) ||
      is_instance(o, torch::get_symbool_class().ptr()))
    return void(add_problem({"a number that stands for another is kept in globals or objects that are not watched yet", Fallback::eager}));
  PyTypeObject* native = native_base(Py_TYPE(o));
  if (native == &PyBaseObject_Type) return visit_instance(o, parent, label, -1);
  if (!visit_builtin(o, native, parent, label)) visit_native(o, native, parent, label);
  // What a class of the program's adds to one written in C, and attributes of what is no class's but has some.
  auto seen = known_.find(o);
  const std::string_view type = native->tp_name;
  const bool has_more = Py_TYPE(o) != native || type == "functools.partial" || type == "functools._lru_cache_wrapper";
  if (has_more && seen != known_.end()) visit_instance(o, parent, label, seen->second < 0 ? -2 : seen->second);
}

// A bound method written in C. That of a container may change it without a trace; any other's calls are judged by their names.
void State::visit_builtin_method(PyObject* o, int parent, const std::string& label) {
  PyObject* self = cpython::self_of(o);
  if (self && (PyList_Check(self) || PyDict_Check(self) || PySet_Check(self) || PyByteArray_Check(self)))
    visit(self, parent, cat(label, ".__self__"));
}

// To look at what a weak reference refers to would keep it alive. What others refer to is looked at anyway; classes and functions
// live on.
void State::find_weakly_held() {
  for (const auto& [reference, where] : weak_) {
    PyObject* o = PyWeakref_GET_OBJECT(reference);
    if (o != Py_None && !PyType_Check(o) && !PyFunction_Check(o) && !PyModule_Check(o) && !known_.contains(o))
      problems_.emplace_back(where + " is a weak reference to what nothing else that the program names refers to");
  }
  weak_.clear();
  for (Node& n : nodes_) n.left = n.left || (n.its_own && !same(n, false, nullptr));
}

// Python's own containers, and what refers to others. False for anything else.
bool State::visit_builtin(PyObject* o, PyTypeObject* native, int parent, const std::string& label) {
  if (PyTuple_Check(o)) {
    has_seen(o);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) visit(PyTuple_GET_ITEM(o, i), parent, cat(label, "[", i, "]"));
    return true;
  }
  if (PyMethod_Check(o)) {
    has_seen(o);
    visit(PyMethod_GET_SELF(o), parent, cat(label, ".__self__"));
    visit(PyMethod_GET_FUNCTION(o), parent, label);
    return true;
  }
  std::string_view type = native->tp_name;
  if (native == &PyLong_Type || native == &PyFloat_Type || native == &PyComplex_Type || native == &PyUnicode_Type ||
      native == &PyBytes_Type)
    return has_seen(o), true;
  if (native == &PyFrozenSet_Type) {
    has_seen(o);
    visit_referents(o, parent, label);
    return true;
  }
  auto node = [&](Kind kind) { return node_of(kind, o, parent, label), true; };
  if (native == &PyDict_Type) return node(Kind::dict);
  if (type == "collections.defaultdict") {
    const int id = node_of(Kind::dict, o, parent, label);
    if (Py_TYPE(o) == native) visit_instance(o, parent, label, id);  // its factory
    return true;
  }
  if (native == &PyODict_Type) return node(Kind::ordered);
  if (native == &PyList_Type) return node(Kind::list);
  if (native == &PySet_Type) return node(Kind::set);
  if (native == &PyCell_Type) return node(Kind::cell);
  if (PyContextVar_CheckExact(o)) return node(Kind::context);
  if (PyWeakref_CheckRef(o)) {
    if (!in_library_) weak_.emplace_back(o, cat(parent >= 0 ? path(parent) : "", label));
    return node(Kind::weak);
  }
  if (type == "collections.deque") return node(Kind::sequence);
  if (type == "functools.partial") return node(Kind::fields);
  return false;
}

// Of a numpy array.
static bool holds_objects(PyObject* array) {
  Ref dtype = Ref::steal(PyObject_GetAttrString(array, "dtype"));
  Ref holds = dtype ? Ref::steal(PyObject_GetAttrString(dtype.get(), "hasobject")) : Ref();
  return !holds ? (PyErr_Clear(), true) : holds.get() != Py_False;
}

// What C code consists of is known by its type's name only.
void State::visit_native(PyObject* o, PyTypeObject* native, int parent, const std::string& label) {
  std::string_view type = native->tp_name;
  if (owner_of_type(native) == Owner::own) {  // a compiled program
    has_seen(o);
    Ref program = Ref::steal(PyObject_GetAttrString(o, "program"));
    return program ? visit(program.get(), parent, label) : PyErr_Clear();
  }
  if (type == "functools._lru_cache_wrapper") return visit_cache(o, parent, label);
  if (type == "types.SimpleNamespace") return visit_instance(o, parent, label, -1);
  if (type == "numpy.ndarray" && holds_objects(o)) return problem(o, parent, label, {" is an array of objects", Fallback::eager});
  if (type == "numpy.ndarray" || native == &PyByteArray_Type) return void(node_of(Kind::buffer, o, parent, label));
  if (is_value_type(native)) {
    has_seen(o);
    return visit_referents(o, parent, label);
  }
  has_seen(o);
  if (is_stateless_type(native)) {
    holds_lock_ = holds_lock_ || std::string_view(native->tp_name).starts_with("_thread.");
    return;
  }
  if (is_c_iterator(o)) return problem(o, parent, label, " is an iterator from outside the program");
  problem(o, parent, label, {cat(" is an object of the type ", type, ", whose state cannot be watched"), Fallback::eager});
}

void State::visit_referents(PyObject* o, int parent, const std::string& label) {
  for (PyObject* each : referents_of(o))
    if (!PyType_Check(each)) visit(each, parent, label);
}

// A hit of functools.lru_cache runs no code: that the results which it has are still there is part of the state. A library's own
// caches hold what computing it again would give.
void State::visit_cache(PyObject* wrapper, int parent, const std::string& label) {
  has_seen(wrapper);
  Ref wrapped = Ref::steal(PyObject_GetAttrString(wrapper, "__wrapped__"));
  if (!wrapped) PyErr_Clear();
  PyObject* o = wrapper;
  if (wrapped && PyFunction_Check(wrapped.get()))
    if (owner_of_file(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(wrapped.get()))->co_filename) != Owner::user) return;
  auto parts = referents_of(wrapper);
  auto function = std::find(parts.begin(), parts.end(), wrapped.get());  // behind the dict
  if (!wrapped || function == parts.begin() || function == parts.end() || !PyDict_CheckExact(function[-1]))
    return problem(o, parent, label, " is a cache whose entries cannot be found");
  PyObject* cache = function[-1];
  for (auto each = parts.begin(); each != function; ++each)
    if (*each != cache && !PyType_Check(*each)) visit(*each, parent, label);
  node_of(Kind::cache, cache, parent, label);
  visit(wrapped.get(), parent, label);
}

// `name`: by which code finds it; null for any.
void State::visit_module(PyObject* o, PyObject* name) {
  if (known_.emplace(o, -1).second) {
    keep_.push_back(Ref::borrow(o));
    if (Py_TYPE(o) != &PyModule_Type) visit_type(Py_TYPE(o), -1, cat("module ", name_of_module(PyModule_GetDict(o)), ","));
  }
  if (owner_of_module(name_of_module(PyModule_GetDict(o))) == Owner::own) return;
  auto& names = modules_[o];
  if (!names.insert(name).second) return;
  for (PyCodeObject* c : entered_)
    if (const bool named = may_name(c, name); named || may_be_given(c, o)) visit_module_names(o, c, named);
  static PyObject* fallback = Py_BuildValue("(N)", PyUnicode_InternFromString("__getattr__"));
  watch_names(PyModule_GetDict(o), fallback, cat("module ", name_of_module(PyModule_GetDict(o)), ","), Names::found);
}

// Code of the user's may be handed a module of the user's by other code.
bool State::may_be_given(PyCodeObject* code, PyObject* module) {
  return owner_of_file(code->co_filename) == Owner::user && owner_of_module(name_of_module(PyModule_GetDict(module))) == Owner::user;
}

bool State::may_name(PyCodeObject* code, PyObject* name) {
  if (!name) return true;
  auto contains = [&](PyObject* names) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i)
      if (PyTuple_GET_ITEM(names, i) == name) return true;  // names are interned
    return false;
  };
  return contains(cpython::names_of(code)) || contains(cpython::free_names(code).get());
}

void State::visit_function(PyObject* f, int parent, const std::string& label) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(f));
  Owner whose = owner_of_file(code->co_filename);
  PyObject* closure = PyFunction_GET_CLOSURE(f);
  if (whose == Owner::torch || whose == Owner::own) {
    has_seen(f);
    // A wrapper (no_grad, a hook) may hold a user's function.
    if (closure)
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i)
        if (PyObject* v = PyCell_GET(PyTuple_GET_ITEM(closure, i)); v && (PyFunction_Check(v) || PyMethod_Check(v)))
          visit(v, parent, label);
        else if (v && PyWeakref_CheckRef(v)) visit(PyWeakref_GET_OBJECT(v), parent, label);  // an optimizer, by its scheduler's wrapper
    return;
  }
  if (cpython::kPlainAnnotations) PyFunction_GetAnnotations(f);
  int id = add(Kind::function, f, parent, cat(label.empty() ? "" : label, "<", text_of(code->co_name), ">"));
  known_.emplace(f, id);
  fill(id);
  if (closure)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i) {
      PyObject* cell = PyTuple_GET_ITEM(closure, i);
      if (known_.contains(cell)) continue;  // left out, too
      node_of(Kind::cell, cell, id, cat(", closure variable ", text_of(PyTuple_GET_ITEM(cpython::free_names(code).get(), i))));
    }
  if (PyObject* defaults = PyFunction_GET_DEFAULTS(f)) visit(defaults, id, " default ");
  if (PyObject* defaults = PyFunction_GET_KW_DEFAULTS(f)) visit(defaults, id, " keyword default ");
  if (PyObject* dict = reinterpret_cast<PyFunctionObject*>(f)->func_dict) visit(dict, id, "");
  watch_annotations(reinterpret_cast<PyFunctionObject*>(f)->func_annotations, id);
}

// What they name, and not what that consists of.
void State::watch_annotations(PyObject* names, int parent) {
  if (!names || !PyDict_CheckExact(names) || known_.contains(names)) return;
  const int id = add(Kind::dict, names, parent, ".__annotations__");
  known_.emplace(names, id);
  fill(id);
}

// Its elements are the trace's business; attributes that Python code gave it are state.
void State::visit_tensor(PyObject* o, int parent, const std::string& label) {
  const at::Tensor& t = THPVariable_Unpack(o);
  const at::Tensor gradient = gradient_of(t);
  tensors_.emplace(t.unsafeGetTensorImpl(), Held{t, (parent >= 0 ? path(parent) : "") + label, version_of(t), t.requires_grad(), gradient,
                                                 gradient.defined() ? version_of(gradient) : 0});
  int id = add(Kind::instance, o, parent, label);
  known_.emplace(o, id);
  Node& n = nodes_.back();
  n.place = cpython::dict_place_if_any(o);
  PyObject** const place = n.place;
  fill(id);
  visit_type(Py_TYPE(o), id, label);
  if (place && *place && !known_.contains(*place)) node_of(Kind::dict, *place, id, "");
}

// ---- classes ----

void State::visit_type(PyTypeObject* type, int parent, const std::string& label) {
  auto* o = reinterpret_cast<PyObject*>(type);
  if (known_.contains(o)) return;
  has_seen(o);
  PyTypeObject* native = native_base(type);
  if (!may_be_made(native))
    return problem(o, parent, label,
                   {cat(" names the type ", native->tp_name, ", whose instances cannot be watched"), fallback_for(native->tp_name)});
  if (type == native || !type->tp_mro) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i)
    visit_class_dict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i)));
  fill(add(Kind::mro, o, parent, type->tp_name));
  if (Py_TYPE(type) != &PyType_Type) visit_type(Py_TYPE(type), parent, label);
}

// Of a class of torch's that a program names, such as what a user has set on it.
void State::visit_class_dicts(PyTypeObject* type) {
  if (native_base(type) != &PyBaseObject_Type || !type->tp_mro) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i)
    visit_class_dict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i)));
}

// Attributes of one class; of one of torch's what they are, and not what that consists of.
void State::visit_class_dict(PyTypeObject* base) {
  PyObject* dict = cpython::type_dict(base);
  Owner whose = owner_of_type(base);
  if (native_base(base) == base || whose == Owner::own || !dict || known_.contains(dict)) return;
  int id = add(Kind::dict, dict, -1, base->tp_name);
  known_.emplace(dict, id);
  nodes_[static_cast<size_t>(id)].type = Ref::borrow(reinterpret_cast<PyObject*>(base));
  nodes_[static_cast<size_t>(id)].unwatched = unwatched_of(cat(text_of(PyDict_GetItemString(dict, "__module__")), ".", base->tp_name));
  fill(id);
  if (whose == Owner::torch) return;
  auto keys = nodes_[static_cast<size_t>(id)].keys;
  auto values = nodes_[static_cast<size_t>(id)].values;
  for (size_t k = 0; k < keys.size(); ++k)
    if (std::string_view key = text_of(keys[k].get()); PyFunction_Check(values[k].get()) || !starts_with_dunder(key))
      visit_class_value(values[k].get(), id, cat(".", key));
  watch_annotations(PyDict_GetItemString(dict, "__annotations__"), id);
}

void State::visit_class_value(PyObject* v, int parent, const std::string& label) {
  PyTypeObject* type = Py_TYPE(v);
  if (PyFunction_Check(v)) return visit_class_function(v, parent, label);
  if (type == &PyProperty_Type || type == &PyStaticMethod_Type || type == &PyClassMethod_Type) {
    for (PyObject* each : referents_of(v))
      if (PyFunction_Check(each)) visit_class_function(each, parent, label);
    return has_seen(v);
  }
  const bool is_users = PyType_Check(v) && (owner_of_type(type) == Owner::user ||  // one with a class of its own
                                            owner_of_type(reinterpret_cast<PyTypeObject*>(v)) == Owner::user);
  if (!is_atom(v) || is_users) visit(v, parent, label);
}

// By the module's file: what dataclasses make has none of its own.
static bool is_of_packages(PyFunctionObject* f) {
  PyObject* file = PyDict_GetItemString(f->func_globals, "__file__");
  return is_in_packages(text_of(file && PyUnicode_Check(file) ? file : reinterpret_cast<PyCodeObject*>(f->func_code)->co_filename));
}

// What they consist of is looked at when they run. What is set on one may be read without: on those of packages, which are many, programs
// set nothing, and what is there is a word or two.
void State::visit_class_function(PyObject* f, int parent, const std::string& label) {
  if (!candidates_.insert(f).second || known_.contains(f)) return;
  auto* function = reinterpret_cast<PyFunctionObject*>(f);
  if (owner_of_file(reinterpret_cast<PyCodeObject*>(function->func_code)->co_filename) != Owner::user) return;
  PyObject* dict = function->func_dict;
  if (is_of_packages(function)) {
    if (dict && PyDict_GET_SIZE(dict) > 0 && known_.emplace(dict, static_cast<int>(nodes_.size())).second)
      fill(add(Kind::dict, dict, parent, label));
    return;
  }
  if (cpython::kPlainAnnotations) PyFunction_GetAnnotations(f);
  const int id = add(Kind::function, f, parent, label);
  fill(id);
  if (dict) visit(dict, id, "");
}

// `self_node`: -1 where the object is no node yet, -2 where it is known without one.
void State::visit_instance(PyObject* o, int parent, const std::string& label, int self_node) {
  PyTypeObject* type = Py_TYPE(o);
  int id = add(Kind::instance, o, parent, label);
  if (self_node == -1) known_.emplace(o, id);
  bool module = PyType_IsSubtype(type, module_type());
  Node* n = &nodes_.back();
  n->place = cpython::dict_place(o);
  n->slots = cpython::slots_of(type);
  n->of_torch = n->of_torch || (!module && owner_of_type(type) == Owner::torch);
  fill(id);
  n = &nodes_[static_cast<size_t>(id)];
  if (n->place && *n->place && !known_.contains(*n->place)) {
    PyObject* dict = *n->place;
    int d = add(Kind::dict, dict, id, "");
    known_.emplace(dict, d);
    nodes_[static_cast<size_t>(d)].module_dict = module;
    Ref name = Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__module__"));
    nodes_[static_cast<size_t>(d)].unwatched = name ? unwatched_of(cat(text_of(name.get()), ".", type->tp_name)) : (PyErr_Clear(), nullptr);
    fill(d);
    queue_.push_back(d);
  }
  if (!nodes_[static_cast<size_t>(id)].slots.empty()) queue_.push_back(id);
  visit_type(type, id, label);
}

// ---- names in code ----

void State::watch_names(PyObject* dict, PyObject* names, const std::string& label, Names which) {
  auto it = names_.find(dict);
  int id = it == names_.end() ? -1 : it->second;
  std::string_view module = name_of_module(dict);
  auto* unwatched = unwatched_of(module);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (!PyUnicode_Check(name)) continue;  // a constant
    PyObject* value = without_stand_ins(PyDict_GetItemWithError(dict, name));
    if (!value && which != Names::all && which != Names::all_shallow) continue;
    if (!named_.emplace(dict, name).second) continue;  // names are interned
    if (!left_out_.empty() && is_left_out(dict, name)) continue;
    if (unwatched && unwatched->contains(std::string(text_of(name)))) continue;
    if (is_doubted(dict, name)) continue;
    if (id < 0) names_.emplace(dict, id = add(Kind::names, dict, -1, label));
    nodes_[static_cast<size_t>(id)].keys.push_back(Ref::borrow(name));
    nodes_[static_cast<size_t>(id)].values.push_back(Ref::borrow(value));
    if (!value) continue;
    visit_named(dict, name, [&] {
      if (PyModule_Check(value)) visit_module(value, name);
      else if (which != Names::shallow && which != Names::all_shallow) visit(value, id, cat(" ", text_of(name)));
      else if (which == Names::all_shallow && PyType_Check(value)) visit_class_dicts(reinterpret_cast<PyTypeObject*>(value));
      else watch_entries(value, id, cat(" ", text_of(name)));
    });
  }
}

// What torch's own code keeps in a container of its module (parametrised weights, while they are cached) is state. What it reads
// of the tables that it never writes is not: those are large.
void State::watch_entries(PyObject* container, int parent, const std::string& label) {
  constexpr Py_ssize_t kLargestCache = 64;
  const bool dict = PyDict_CheckExact(container), list = PyList_CheckExact(container);
  if ((!dict && !list && !PyODict_CheckExact(container)) || PyObject_Size(container) > kLargestCache || known_.contains(container)) return;
  const int id = add(dict ? Kind::dict : list ? Kind::list : Kind::ordered, container, parent, label);
  fill(id);
  const auto values = nodes_[static_cast<size_t>(id)].values;  // by copy: visiting adds nodes
  for (const Ref& v : values)
    if (v && is_tensor(v.get())) visit(v.get(), id, "[...]");
}

// Whether it asks for attributes by names that are no constants of its own.
static bool computes_names(PyCodeObject* code) {
  return names_any(code, {"getattr", "setattr", "hasattr", "delattr", "vars", "__dict__", "attrgetter"});
}

// `named`: it can find the module by itself.
void State::visit_module_names(PyObject* module, PyCodeObject* code, bool named) {
  PyObject* dict = PyModule_GetDict(module);
  std::string_view name = name_of_module(dict);
  const Owner whose = owner_of_module(name), reader = owner_of_file(code->co_filename);
  // Whether a name is there is asked by programs alone.
  const bool shallow = whose == Owner::torch || reader == Owner::torch || !named;
  const Names which = reader != Owner::user ? (shallow ? Names::shallow : Names::found) : shallow ? Names::all_shallow : Names::all;
  watch_names(dict, cpython::names_of(code), cat("module ", name, ","), which);
  watch_names(dict, cpython::constants_of(code), cat("module ", name, ","), which);  // getattr(module, "name")
  if (reader != Owner::user || !computes_names(code)) return;
  if (whose == Owner::user) {
    if (named_.emplace(dict, nullptr).second) fill(add(Kind::dict, dict, -1, cat("module ", name, ",")));
    return;
  }
  Ref every = Ref::steal(PyDict_Keys(dict)), all = every ? Ref::steal(PyList_AsTuple(every.get())) : Ref();
  if (all) watch_names(dict, all.get(), cat("module ", name, ","), Names::shallow);
  else PyErr_Clear();
}

// Names that are no globals.
void State::watch_builtins(PyCodeObject* code, PyObject* globals) {
  PyObject* builtins = PyDict_GetItemString(globals, "__builtins__");
  if (builtins && PyModule_Check(builtins)) builtins = PyModule_GetDict(builtins);
  if (builtins && PyDict_Check(builtins)) watch_names(builtins, cpython::names_of(code), "builtin", Names::shallow);
}

// What import statements of the code find: modules that are there already, or that are not.
void State::watch_imports(PyCodeObject* code, PyObject* globals) {
  static PyObject* find = [] {
    Ref m = import_module("broach._codes");
    return PyObject_GetAttrString(m.get(), "imported");
  }();
  Ref names = undisturbed([&] { return PyObject_CallFunctionObjArgs(find, code, globals, nullptr); });
  if (!names) return PyErr_Clear(), void(problems_.emplace_back(cat("the imports of ", text_of(code->co_name), " cannot be resolved")));
  if (PyTuple_GET_SIZE(names.get()) > 0) watch_names(PyImport_GetModuleDict(), names.get(), "sys.modules,", Names::all);
}

void State::watch_all_modules(PyCodeObject* code) {
  static PyObject* name = PyUnicode_InternFromString("modules");
  Ref sys = import_module("sys");
  PyObject* dict = PyModule_GetDict(sys.get());
  if (is_doubted(dict, name)) return;
  visit_named(dict, name, [&] { add_problem(cat("the modules that there are are asked for by ", text_of(code->co_name))); });
}

// Code names attributes and globals alike. Where a global that changes, as a script's own variables do, has the name of an attribute, it
// is none of the code's: then a tuple of the other names; null if there is no such global.
static Ref names_beside_attributes(PyCodeObject* code, PyObject* globals) {
  PyObject* names = cpython::names_of(code);
  bool may_change = false;
  for (Py_ssize_t i = 0; !may_change && i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* v = PyDict_GetItemWithError(globals, PyTuple_GET_ITEM(names, i));
    may_change = v && !PyFunction_Check(v) && !PyModule_Check(v) && !PyType_Check(v) && !PyCFunction_Check(v);
  }
  if (!may_change) return {};
  Ref codes = import_module("broach._codes");
  Ref found = codes ? undisturbed([&] { return PyObject_CallMethod(codes.get(), "names_beside_attributes", "O", code); }) : Ref();
  if (!found) PyErr_Clear();
  return found;
}

void State::enter(PyCodeObject* code, PyObject* globals, PyFunctionObject* function) {
  auto* c = reinterpret_cast<PyObject*>(code);
  Owner whose = owner_of_file(code->co_filename);
  bool torchs = whose == Owner::torch;
  in_library_ = whose == Owner::library;
  bool fresh = entered_.insert(code).second;
  if (fresh) {
    keep_.push_back(Ref::borrow(c));
    PyObject* constants = cpython::constants_of(code);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); ++i)
      if (PyObject* k = PyTuple_GET_ITEM(constants, i); PyCode_Check(k)) made_here_.insert(reinterpret_cast<PyCodeObject*>(k));
    if (!torchs) watch_imports(code, globals);
    if (whose == Owner::user && names_any(code, {"sys"}) && names_any(code, {"modules"})) watch_all_modules(code);
    std::vector<std::pair<PyObject*, bool>> modules;  // more may come
    for (const auto& [module, names] : modules_) {
      const bool named = std::any_of(names.begin(), names.end(), [&](PyObject* name) { return may_name(code, name); });
      if (named || may_be_given(code, module)) modules.emplace_back(module, named);
    }
    for (const auto& [module, named] : modules) visit_module_names(module, code, named);
  }
  if (fresh || !names_.contains(globals)) {
    const Ref chosen = whose == Owner::user ? names_beside_attributes(code, globals) : Ref();
    watch_names(globals, chosen ? chosen.get() : cpython::names_of(code), cat("module ", name_of_module(globals), ", global"),
                torchs ? Names::shallow : Names::all);
    watch_builtins(code, globals);
  }
  auto* f = reinterpret_cast<PyObject*>(function);
  // A function that the program made itself has only what the program gave it.
  if (f && !torchs && !known_.contains(f) && (!made_here_.contains(code) || candidates_.contains(f))) visit(f, -1, "");
  visit_queued();
  in_library_ = false;
}

bool State::has_made_class(PyObject* o) const {
  if (!PyType_Check(o)) return false;
  const Ref name = Ref::steal(PyObject_GetAttrString(o, "__name__"));
  return std::ranges::any_of(made_here_,
                             [&](PyCodeObject* body) { return entered_.contains(body) && same_value(body->co_name, name.get()); });
}

std::string State::shared_with(PyCodeObject* code, PyObject* globals, PyFunctionObject* function) const {
  auto is_another = [&](PyObject* now, int node, size_t at) {
    if (!now || PyFunction_Check(now) || PyModule_Check(now) || PyType_Check(now) || is_operator(now)) return false;
    if (!is_atom(now)) return knows(now) || node < 0;
    return node < 0 || !same_value(now, nodes_[static_cast<size_t>(node)].values[at].get());
  };
  PyObject* closure = function ? PyFunction_GET_CLOSURE(reinterpret_cast<PyObject*>(function)) : nullptr;
  const Ref free = cpython::free_names(code);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i)
    if (const auto known = known_.find(PyTuple_GET_ITEM(closure, i)); known != known_.end())  // left out without a node
      if (is_another(PyCell_GET(known->first), known->second, 0)) return std::string(text_of(PyTuple_GET_ITEM(free.get(), i)));
  PyObject* names = cpython::names_of(code);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    PyObject* now = PyDict_GetItemWithError(globals, name);
    const auto of_module = names_.find(globals);
    const bool is_named = of_module != names_.end() && named_.contains({globals, name});
    if (!is_named && !is_left_out(globals, name)) continue;
    const int node = is_named ? of_module->second : -1;
    const auto& keys = is_named ? nodes_[static_cast<size_t>(node)].keys : std::vector<Ref>();
    const auto at = std::ranges::find(keys, name, &Ref::get);
    if (is_another(now, at == keys.end() ? -1 : node, static_cast<size_t>(at - keys.begin()))) return std::string(text_of(name));
  }
  return "";
}

void State::watch_answer(PyObject* function, bool its_own) {
  if (!asked_.insert(function).second) return;
  const std::string_view name = PyCFunction_Check(function) ? std::string_view(cpython::method_of(function)->ml_name)
                                                            : text_of(reinterpret_cast<PyFunctionObject*>(function)->func_name);
  int id = node_of(Kind::answer, function, -1, cat(name, "()"));
  nodes_[static_cast<size_t>(id)].its_own = its_own;
  visit_queued();
}

void State::watch_globals(const char* module, std::initializer_list<const char*> names) {
  Ref m = import_module(module), tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
  if (!m || !tuple) return PyErr_Clear();
  Py_ssize_t at = 0;
  for (const char* name : names) PyTuple_SET_ITEM(tuple.get(), at++, PyUnicode_InternFromString(name));
  watch_names(PyModule_GetDict(m.get()), tuple.get(), cat("module ", module, ","), Names::all);
  visit_queued();
}

}  // namespace broach
