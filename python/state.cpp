#include "state.h"

#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>

#include "support/error.h"

namespace broach {

namespace {

constexpr size_t kMostNodes = 200000;

struct Library {
  std::string torch_folder;
  std::vector<std::string> folders;
  std::unordered_set<std::string> modules;
};
Library& library() {
  static Library l;
  return l;
}

std::string_view text_of(PyObject* s) {
  Py_ssize_t n = 0;
  const char* c = s && PyUnicode_Check(s) ? PyUnicode_AsUTF8AndSize(s, &n) : nullptr;
  if (!c) PyErr_Clear();
  return c ? std::string_view(c, static_cast<size_t>(n)) : std::string_view();
}

std::string short_repr(PyObject* o) {
  if (!o) return "nothing";
  if (!is_atom(o) || PyType_Check(o)) return cat("a ", Py_TYPE(o)->tp_name);
  Ref r = Ref::steal(PyObject_Repr(o));
  if (!r) PyErr_Clear();
  std::string s(r ? text_of(r.get()) : "?");
  return s.size() > 60 ? s.substr(0, 57) + "..." : s;
}

bool is_heap(PyTypeObject* t) { return PyType_HasFeature(t, Py_TPFLAGS_HEAPTYPE); }

// torch.nn.Module, once it is imported.
PyTypeObject* module_type() {
  static PyTypeObject* type = [] {
    Ref m = Ref::steal(PyImport_ImportModule("torch.nn"));
    return reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(m.get(), "Module"));
  }();
  return type;
}

bool starts_with_dunder(std::string_view s) { return s.size() > 4 && s.starts_with("__") && s.ends_with("__"); }

// Fields of every nn.Module that only saving, loading and gradients read.
bool is_bookkeeping(std::string_view field) {
  static const std::unordered_set<std::string_view> names = {
      "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_non_persistent_buffers_set",
      "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called", "_is_full_backward_hook"};
  return names.contains(field);
}

// What the interpreter itself adds to a class when it is asked for it.
bool is_interpreters_own(std::string_view key) {
  static const std::unordered_set<std::string_view> names = {"__annotations__", "__doc__", "__abstractmethods__", "_abc_impl", "__annotations_cache__",
                                                             "__annotate_func__", "__static_attributes__", "__firstlineno__", "__weakref__", "__dict__", "__qualname__"};
  return names.contains(key);
}

bool is_c_iterator(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return PyGen_Check(o) || PyCoro_CheckExact(o) || (!is_heap(t) && t->tp_iternext && t->tp_iter == PyObject_SelfIter);
}

int64_t version_of(const at::Tensor& t) { return t.is_inference() ? 0 : t._version(); }

PyObject* contextvar_value(PyObject* var) {
  PyObject* value = nullptr;
  if (PyContextVar_Get(var, nullptr, &value) < 0) PyErr_Clear();
  return value;
}

}  // namespace

void set_library(std::string torch_folder, std::vector<std::string> folders, std::unordered_set<std::string> modules) {
  library() = {std::move(torch_folder), std::move(folders), std::move(modules)};
}

Owner owner_of_file(PyObject* filename) {
  std::string_view f = text_of(filename);
  if (f.starts_with(library().torch_folder)) return Owner::torch;
  if (f.starts_with("<frozen ")) return Owner::library;
  // Installed packages lie below the standard library's folder, and are the user's.
  if (f.find("site-packages") != f.npos || f.find("dist-packages") != f.npos) return Owner::user;
  for (const std::string& folder : library().folders)
    if (f.starts_with(folder)) return Owner::library;
  return Owner::user;
}

Owner owner_of_module(std::string_view name) {
  std::string_view root = name.substr(0, name.find('.'));
  if (root == "torch") return Owner::torch;
  return library().modules.contains(std::string(root)) ? Owner::library : Owner::user;
}

Owner owner_of_type(PyTypeObject* type) {
  if (!is_heap(type)) {
    std::string_view name = type->tp_name;
    return name.find('.') == name.npos ? Owner::library : owner_of_module(name);
  }
  PyObject* dict = cpython::type_dict(type);
  PyObject* module = dict ? PyDict_GetItemString(dict, "__module__") : nullptr;
  return owner_of_module(text_of(module));
}

bool is_atom(PyObject* o) {
  return o == Py_None || PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) || PyBytes_CheckExact(o) || o == Py_Ellipsis ||
         PyType_Check(o) || PyCFunction_Check(o) || PyCode_Check(o) || Py_TYPE(o) == &PyRange_Type || THPDtype_Check(o) || THPDevice_Check(o) || THPLayout_Check(o) || THPMemoryFormat_Check(o);
}

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!a || !b || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyTuple_Check(a)) {
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
      if (!same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    return true;
  }
  if (PyFloat_CheckExact(a)) {  // bits: a NaN is itself, and the zeros differ
    double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyMethod_Check(a)) return PyMethod_GET_SELF(a) == PyMethod_GET_SELF(b) && PyMethod_GET_FUNCTION(a) == PyMethod_GET_FUNCTION(b);
  if (PyType_Check(a) || PyComplex_CheckExact(a) || !is_atom(a)) return false;
  int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

// ---- dicts that announce their changes ----

namespace {

// By dict: the states that watch it, and their nodes of it.
struct Watcher {
  State* state;
  int node;
};
std::unordered_multimap<PyObject*, Watcher>& watchers() {
  static auto* map = new std::unordered_multimap<PyObject*, Watcher>;
  return *map;
}

void announce(PyObject* dict) {
  auto [from, to] = watchers().equal_range(dict);
  for (; from != to; ++from) from->second.state->touched(from->second.node);
}

}  // namespace

State::~State() {
  if constexpr (!cpython::kDictVersions)
    for (const Node& n : nodes_) {
      auto [from, to] = watchers().equal_range(n.object.get());
      if (from == to) continue;
      while (from != to) from = from->second.state == this ? watchers().erase(from) : std::next(from);
      if (!watchers().contains(n.object.get())) cpython::unwatch_dict(n.object.get());
    }
}

// ---- what is watched ----

int State::add(Kind kind, PyObject* o, int parent, std::string label) {
  int id = static_cast<int>(nodes_.size());
  Node n;
  n.kind = kind;
  n.object = Ref::borrow(o);
  n.parent = parent;
  n.label = std::move(label);
  n.every_call = kind == Kind::set || kind == Kind::ordered || kind == Kind::sequence || kind == Kind::weak || kind == Kind::buffer;
  bool dict = kind == Kind::dict || kind == Kind::names;
  if (dict && !cpython::kDictVersions) {
    if (cpython::watch_dict(o, &announce)) watchers().emplace(o, Watcher{this, id});
    else n.every_call = true;
  }
  nodes_.push_back(std::move(n));
  return id;
}

void State::leave_out(const StatePlace& place) {
  left_out_.push_back(place);
  if (place.kind != StatePlace::Kind::item) known_.emplace(place.owner.get(), -1);
}

bool State::is_left_out(PyObject* owner, PyObject* key) const {
  return std::any_of(left_out_.begin(), left_out_.end(), [&](const StatePlace& p) { return p.kind == StatePlace::Kind::item && p.owner.get() == owner && same_value(p.key.get(), key); });
}

std::optional<StatePlace> State::place_of(const Change& change) const {
  const Node& n = nodes_[static_cast<size_t>(change.node)];
  if (n.kind == Kind::list && PyList_CheckExact(n.object.get())) return StatePlace{StatePlace::Kind::whole, n.object, {}, path(change.node)};
  if (n.kind == Kind::cell) return StatePlace{StatePlace::Kind::cell, n.object, {}, change.path};
  bool keyed = (n.kind == Kind::dict && !n.class_dict) || n.kind == Kind::names;
  if (!keyed || !change.key) return std::nullopt;
  return StatePlace{StatePlace::Kind::item, n.object, change.key, change.path};
}

void State::fill(int id) {
  std::vector<Ref> keys, values;
  if (!read(nodes_[static_cast<size_t>(id)], keys, values)) problems_.push_back(path(id) + " cannot be read");
  nodes_[static_cast<size_t>(id)].keys = std::move(keys);
  nodes_[static_cast<size_t>(id)].values = std::move(values);
}

void State::watch(PyObject* root, const std::string& name) {
  visit(root, -1, name);
  while (!queue_.empty()) {
    int id = queue_.back();
    queue_.pop_back();
    children(id);
  }
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
  for (size_t i = 0; i < values.size(); ++i) {
    PyObject* v = values[i].get();
    if (!v || is_atom(v)) {
      if (v && PyType_Check(v)) visit(v, id, "");
      continue;
    }
    std::string_view key = i < keys.size() ? text_of(keys[i].get()) : std::string_view();
    if (module_dict && is_bookkeeping(key)) continue;
    bool members = module_dict && (key == "_modules" || key == "_parameters" || key == "_buffers");
    if (kind == Kind::function && i == 0) continue;  // its code
    if (kind == Kind::instance && i < 2) continue;   // its type and dict are nodes of their own
    std::string step = kind == Kind::cell || kind == Kind::instance ? (i < keys.size() && keys[i] ? cat(".", key) : std::string())
                       : members                                     ? std::string()
                       : of_instance                                 ? cat(".", key)
                       : i < keys.size()                             ? (key.empty() ? "[...]" : cat("['", key, "']"))
                                                                     : cat("[", i, "]");
    if (kind == Kind::names) step = cat(" ", key);
    visit(v, id, step);
  }
}

void State::visit(PyObject* o, int parent, const std::string& label) {
  if (!o || known_.contains(o)) return;
  if (nodes_.size() > kMostNodes) {
    if (problems_.empty()) problems_.push_back(cat("more than ", kMostNodes, " objects are reachable"));
    return;
  }
  if (PyType_Check(o)) return visit_type(reinterpret_cast<PyTypeObject*>(o), parent);
  if (is_atom(o)) return;
  if (THPVariable_Check(o)) return visit_tensor(o, parent, label);
  auto node = [&](Kind kind) {
    int id = add(kind, o, parent, label);
    known_.emplace(o, id);
    fill(id);
    queue_.push_back(id);
    return id;
  };
  auto seen = [&] {  // immutable itself: its elements are looked at now
    known_.emplace(o, -1);
    keep_.push_back(Ref::borrow(o));
  };
  if (PyTuple_Check(o)) {
    seen();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) visit(PyTuple_GET_ITEM(o, i), parent, cat(label, "[", i, "]"));
    return;
  }
  if (PyFunction_Check(o)) return visit_function(o, parent, label);
  if (PyMethod_Check(o)) {
    seen();
    visit(PyMethod_GET_SELF(o), parent, cat(label, ".__self__"));
    return visit(PyMethod_GET_FUNCTION(o), parent, label);
  }
  if (PyCell_Check(o)) return void(node(Kind::cell));
  if (PyModule_Check(o)) {
    seen();
    PyObject* name = PyDict_GetItemString(PyModule_GetDict(o), "__name__");
    if (owner_of_module(text_of(name)) != Owner::user) return;
    modules_.push_back(o);
    for (PyCodeObject* c : codes_) visit_module_names(o, c);
    return;
  }
  if (PyDict_Check(o)) {
    // An OrderedDict's order can change without its dict's knowing; a module's own are only ever appended to.
    bool own = parent >= 0 && nodes_[static_cast<size_t>(parent)].module_dict && label.starts_with("._");
    int id = node(PyODict_Check(o) && !own ? Kind::ordered : Kind::dict);
    if (is_heap(Py_TYPE(o)) && owner_of_type(Py_TYPE(o)) == Owner::user) visit_instance(o, parent, label, id);
    return;
  }
  if (PyList_Check(o)) {
    int id = node(Kind::list);
    if (is_heap(Py_TYPE(o))) visit_instance(o, parent, label, id);
    return;
  }
  if (PyAnySet_Check(o)) {
    if (!PyFrozenSet_Check(o)) return void(node(Kind::set));
    return seen();
  }
  if (PyWeakref_Check(o)) return void(node(Kind::weak));
  if (PyContextVar_CheckExact(o)) return void(node(Kind::weak));
  std::string_view type = Py_TYPE(o)->tp_name;
  if (type == "collections.deque") return void(node(Kind::sequence));
  if (type == "functools.partial") {
    seen();
    for (const char* field : {"func", "args", "keywords"}) {
      Ref v = Ref::steal(PyObject_GetAttrString(o, field));
      if (v) visit(v.get(), parent, cat(label, ".", field));
      else PyErr_Clear();
    }
    return;
  }
  if (is_c_iterator(o)) {
    seen();
    problems_.push_back(cat((parent >= 0 ? path(parent) : ""), label, " is an iterator from outside the program"));
    return;
  }
  if (is_heap(Py_TYPE(o))) {
    Owner owner = owner_of_type(Py_TYPE(o));
    if (owner == Owner::library && type != "Namespace") return seen();  // loggers, locks, enum's machinery
    return visit_instance(o, parent, label, -1);
  }
  if (PyObject_CheckBuffer(o)) return void(node(Kind::buffer));
  Owner owner = owner_of_type(Py_TYPE(o));
  // A type written in C whose instances have attributes too: SimpleNamespace, what functools.lru_cache makes.
  if (PyObject** place = cpython::dict_place_if_any(o); place && *place) return visit_instance(o, parent, label, -1);
  seen();
  bool numpy = type.starts_with("numpy.") && !type.starts_with("numpy.random");
  if ((owner == Owner::user && !numpy) || type.starts_with("numpy.random")) problems_.push_back(cat((parent >= 0 ? path(parent) : ""), label, " is an object of the foreign type ", type));
}

void State::visit_function(PyObject* f, int parent, const std::string& label) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(f));
  if (owner_of_file(code->co_filename) != Owner::user) {
    known_.emplace(f, -1);
    keep_.push_back(Ref::borrow(f));
    // A library's wrapper (functools.wraps, no_grad) may hold a user's function.
    if (PyObject* closure = PyFunction_GET_CLOSURE(f))
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i)
        if (PyObject* v = PyCell_GET(PyTuple_GET_ITEM(closure, i)); v && (PyFunction_Check(v) || PyMethod_Check(v))) visit(v, parent, label);
    return;
  }
  int id = add(Kind::function, f, parent, cat(label.empty() ? "" : label, "<", text_of(code->co_name), ">"));
  known_.emplace(f, id);
  fill(id);
  if (PyObject* closure = PyFunction_GET_CLOSURE(f))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i) {
      PyObject* cell = PyTuple_GET_ITEM(closure, i);
      if (known_.contains(cell)) continue;  // left out, too
      int c = add(Kind::cell, cell, id, cat(", closure variable ", text_of(PyTuple_GET_ITEM(cpython::free_names(code).get(), i))));
      known_.emplace(cell, c);
      fill(c);
      queue_.push_back(c);
    }
  if (PyObject* defaults = PyFunction_GET_DEFAULTS(f)) visit(defaults, id, " default ");
  if (PyObject* defaults = PyFunction_GET_KW_DEFAULTS(f)) visit(defaults, id, " keyword default ");
  if (PyObject* dict = reinterpret_cast<PyFunctionObject*>(f)->func_dict) visit(dict, id, "");
}

std::vector<at::Tensor> State::tensors() const {
  std::vector<at::Tensor> out;
  for (const auto& [impl, held] : tensors_) out.push_back(held.tensor);
  return out;
}

std::vector<std::string> State::written() const {
  std::vector<std::string> out;
  for (const auto& [impl, held] : tensors_)
    if (version_of(held.tensor) != held.version) out.push_back(held.path);
  std::sort(out.begin(), out.end());
  return out;
}

// Its elements are the trace's business; attributes that Python code gave it are state.
void State::visit_tensor(PyObject* o, int parent, const std::string& label) {
  const at::Tensor& t = THPVariable_Unpack(o);
  tensors_.emplace(t.unsafeGetTensorImpl(), Held{t, (parent >= 0 ? path(parent) : "") + label, version_of(t)});
  int id = add(Kind::instance, o, parent, label);
  known_.emplace(o, id);
  Node& n = nodes_.back();
  n.place = cpython::dict_place_if_any(o);
  fill(id);
  if (!n.place || !*n.place || known_.contains(*n.place)) return;
  int d = add(Kind::dict, *n.place, id, "");
  known_.emplace(nodes_[static_cast<size_t>(d)].object.get(), d);
  fill(d);
  queue_.push_back(d);
}

void State::visit_type(PyTypeObject* type, int parent) {
  auto* o = reinterpret_cast<PyObject*>(type);
  if (known_.contains(o)) return;
  known_.emplace(o, -1);
  keep_.push_back(Ref::borrow(o));
  if (!is_heap(type) || !type->tp_mro) return;
  bool users = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    if (!is_heap(base) || owner_of_type(base) != Owner::user) continue;
    users = true;
    PyObject* dict = cpython::type_dict(base);
    if (!dict || known_.contains(dict)) continue;
    int id = add(Kind::dict, dict, -1, base->tp_name);
    keep_.push_back(Ref::borrow(reinterpret_cast<PyObject*>(base)));
    known_.emplace(dict, id);
    nodes_[static_cast<size_t>(id)].class_dict = true;
    fill(id);
    auto keys = nodes_[static_cast<size_t>(id)].keys;
    auto values = nodes_[static_cast<size_t>(id)].values;
    for (size_t k = 0; k < keys.size(); ++k) {
      PyObject* v = values[k].get();
      std::string_view key = text_of(keys[k].get());
      if (PyFunction_Check(v)) candidates_.insert(v);
      else if (!starts_with_dunder(key) && !is_atom(v)) visit(v, id, cat(".", key));
    }
  }
  if (!users) return;
  int id = add(Kind::mro, o, parent, type->tp_name);
  fill(id);
}

void State::visit_instance(PyObject* o, int parent, const std::string& label, int self_node) {
  int id = add(Kind::instance, o, parent, label);
  if (self_node < 0) known_.emplace(o, id);
  Node* n = &nodes_.back();
  PyTypeObject* type = Py_TYPE(o);
  n->place = cpython::dict_place(o);
  n->slots = cpython::slots_of(type);
  fill(id);
  n = &nodes_[static_cast<size_t>(id)];
  if (n->place && *n->place && !known_.contains(*n->place)) {
    PyObject* dict = *n->place;
    int d = add(Kind::dict, dict, id, "");
    known_.emplace(dict, d);
    nodes_[static_cast<size_t>(d)].module_dict = PyType_IsSubtype(type, module_type());
    fill(d);
    queue_.push_back(d);
  }
  if (!nodes_[static_cast<size_t>(id)].slots.empty()) queue_.push_back(id);
  visit_type(type, id);
}

// Globals that a piece of code may load: those that it names. A name that is not there now could come later.
void State::watch_names(PyObject* dict, PyCodeObject* code, const std::string& label) {
  auto [it, fresh] = names_.emplace(dict, -1);
  if (fresh) it->second = add(Kind::names, dict, -1, label);
  int id = it->second;
  PyObject* names = cpython::names_of(code);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (!named_.emplace(dict, name).second) continue;  // names are interned
    if (!left_out_.empty() && is_left_out(dict, name)) continue;
    PyObject* value = PyDict_GetItemWithError(dict, name);
    nodes_[static_cast<size_t>(id)].keys.push_back(Ref::borrow(name));
    nodes_[static_cast<size_t>(id)].values.push_back(Ref::borrow(value));
    if (value) visit(value, id, cat(" ", text_of(name)));
  }
}

void State::visit_module_names(PyObject* module, PyCodeObject* code) {
  PyObject* dict = PyModule_GetDict(module);
  watch_names(dict, code, cat("module ", text_of(PyDict_GetItemString(dict, "__name__")), ","));
}

void State::enter(PyCodeObject* code, PyObject* globals, PyFunctionObject* function) {
  auto* c = reinterpret_cast<PyObject*>(code);
  if (codes_.insert(code).second) {
    keep_.push_back(Ref::borrow(c));
    PyObject* constants = cpython::constants_of(code);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); ++i)
      if (PyObject* k = PyTuple_GET_ITEM(constants, i); PyCode_Check(k)) made_here_.insert(reinterpret_cast<PyCodeObject*>(k));
    watch_names(globals, code, cat("module ", text_of(PyDict_GetItemString(globals, "__name__")), ", global"));
    auto modules = modules_;
    for (PyObject* m : modules) visit_module_names(m, code);
  } else if (!names_.contains(globals)) {
    watch_names(globals, code, "another module's globals,");
  }
  auto* f = reinterpret_cast<PyObject*>(function);
  // A function that the program made itself has only what the program gave it.
  if (f && !known_.contains(f) && (!made_here_.contains(code) || candidates_.contains(f))) visit(f, -1, "");
  while (!queue_.empty()) {
    int id = queue_.back();
    queue_.pop_back();
    children(id);
  }
}

// ---- reading and comparing ----

bool State::read(const Node& n, std::vector<Ref>& keys, std::vector<Ref>& values) const {
  PyObject* o = n.object.get();
  auto value = [&](PyObject* v) { values.push_back(Ref::borrow(v)); };
  switch (n.kind) {
    case Kind::dict: {
      PyObject *k, *v;
      Py_ssize_t at = 0;
      while (PyDict_Next(o, &at, &k, &v)) {
        if (n.class_dict && is_interpreters_own(text_of(k))) continue;
        if (!left_out_.empty() && is_left_out(o, k)) continue;
        keys.push_back(Ref::borrow(k));
        value(v);
      }
      return true;
    }
    case Kind::ordered: {
      Ref order = Ref::steal(PySequence_List(o));
      if (!order) return PyErr_Clear(), false;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(order.get()); ++i) {
        PyObject* k = PyList_GET_ITEM(order.get(), i);
        keys.push_back(Ref::borrow(k));
        value(PyDict_GetItemWithError(o, k));
      }
      return true;
    }
    case Kind::names:
      keys = n.keys;
      for (const Ref& k : keys) value(PyDict_GetItemWithError(o, k.get()));
      return true;
    case Kind::list:
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i) value(PyList_GET_ITEM(o, i));
      return true;
    case Kind::sequence: {
      Ref list = Ref::steal(PySequence_List(o));
      if (!list) return PyErr_Clear(), false;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list.get()); ++i) value(PyList_GET_ITEM(list.get(), i));
      return true;
    }
    case Kind::set: {
      Ref list = Ref::steal(PySequence_List(o));
      if (!list) return PyErr_Clear(), false;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list.get()); ++i) value(PyList_GET_ITEM(list.get(), i));
      return true;
    }
    case Kind::cell: value(PyCell_GET(o)); return true;
    case Kind::function: {
      auto* f = reinterpret_cast<PyFunctionObject*>(o);
      for (PyObject* v : {f->func_code, f->func_defaults, f->func_kwdefaults, f->func_dict}) value(v);
      return true;
    }
    case Kind::instance:
      value(reinterpret_cast<PyObject*>(Py_TYPE(o)));
      value(n.place ? *n.place : nullptr);
      for (Py_ssize_t offset : n.slots) value(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + offset));
      return true;
    case Kind::mro: value(reinterpret_cast<PyTypeObject*>(o)->tp_mro); return true;
    case Kind::weak:
      if (PyContextVar_CheckExact(o)) values.push_back(Ref::steal(contextvar_value(o)));
      else value(PyWeakref_GET_OBJECT(o));
      return true;
    case Kind::buffer: {
      Ref bytes = Ref::steal(PyBytes_FromObject(o));
      if (!bytes) return PyErr_Clear(), false;
      values.push_back(std::move(bytes));
      return true;
    }
  }
  return false;
}

// Compares a node with its snapshot; `take` keeps the present (equal) values instead.
bool State::same(Node& n, bool take, std::string* why) const {
  std::vector<Ref> keys, values;
  bool fine = read(n, keys, values) && keys.size() == n.keys.size() && values.size() == n.values.size();
  if (!fine && why) *why = cat(path(static_cast<int>(&n - nodes_.data())), " has other entries than before");
  for (size_t i = 0; fine && i < keys.size(); ++i) {
    fine = same_value(n.keys[i].get(), keys[i].get()) || (PyUnicode_Check(keys[i].get()) && PyUnicode_Check(n.keys[i].get()) && PyUnicode_Compare(keys[i].get(), n.keys[i].get()) == 0);
    if (!fine && why) *why = cat(path(static_cast<int>(&n - nodes_.data())), " has other keys than before");
  }
  for (size_t i = 0; fine && i < values.size(); ++i) {
    fine = same_value(n.values[i].get(), values[i].get());
    if (!fine && why) *why = cat(path(n, i), " was ", short_repr(n.values[i].get()), ", is ", short_repr(values[i].get()));
  }
  if (fine && take) {
    n.keys = std::move(keys);
    n.values = std::move(values);
  }
  return fine;
}

std::vector<State::Change> State::changes() const {
  std::vector<Change> out;
  for (size_t id = 0; id < nodes_.size(); ++id) {
    const Node& n = nodes_[id];
    if (same(const_cast<Node&>(n), false, nullptr)) continue;
    std::vector<Ref> keys, values;
    if (!read(n, keys, values)) continue;
    auto changed = [&](Ref key, Ref before, Ref now, std::string where) { out.push_back({static_cast<int>(id), std::move(key), std::move(before), std::move(now), std::move(where)}); };
    if (n.kind == Kind::dict || n.kind == Kind::ordered) {
      bool same_order = keys.size() == n.keys.size();
      for (size_t i = 0; i < keys.size(); ++i) {
        auto old = std::find_if(n.keys.begin(), n.keys.end(), [&](const Ref& k) { return same_value(k.get(), keys[i].get()); });
        same_order = same_order && old != n.keys.end() && static_cast<size_t>(old - n.keys.begin()) == i;
        if (old == n.keys.end()) changed(keys[i], {}, values[i], cat(path(static_cast<int>(id)), "[", short_repr(keys[i].get()), "]"));
        else if (auto at = static_cast<size_t>(old - n.keys.begin()); !same_value(n.values[at].get(), values[i].get())) changed(keys[i], n.values[at], values[i], path(n, at));
      }
      if (!same_order && (out.empty() || out.back().node != static_cast<int>(id))) changed({}, {}, {}, path(static_cast<int>(id)));
      continue;
    }
    if (values.size() != n.values.size()) {
      changed({}, {}, {}, path(static_cast<int>(id)));
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i)
      if (!same_value(n.values[i].get(), values[i].get())) changed(i < n.keys.size() ? n.keys[i] : Ref(), n.values[i], values[i], path(n, i));
  }
  return out;
}

void State::add_words(Node& n) {
  n.first = static_cast<uint32_t>(words_.size());
  auto word = [&](const void* at) { words_.push_back({at, *static_cast<const uint64_t*>(at)}); };
  PyObject* o = n.object.get();
  switch (n.kind) {
    case Kind::dict:
    case Kind::names:
      if (const uint64_t* version = cpython::version_word(o)) word(version);
      break;
    case Kind::list: {
      auto* list = reinterpret_cast<PyListObject*>(o);
      word(&reinterpret_cast<PyVarObject*>(o)->ob_size);
      word(&list->ob_item);
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i) word(&list->ob_item[i]);
      break;
    }
    case Kind::cell: word(&reinterpret_cast<PyCellObject*>(o)->ob_ref); break;
    case Kind::function: {
      auto* f = reinterpret_cast<PyFunctionObject*>(o);
      for (PyObject** field : {&f->func_code, &f->func_defaults, &f->func_kwdefaults, &f->func_dict}) word(field);
      break;
    }
    case Kind::instance:
      if (!THPVariable_Check(o)) word(&o->ob_type);  // models have hundreds of parameters, whose class nobody changes
      if (n.place) word(n.place);
      for (Py_ssize_t offset : n.slots) word(reinterpret_cast<char*>(o) + offset);
      break;
    case Kind::mro: word(&reinterpret_cast<PyTypeObject*>(o)->tp_mro); break;
    default: break;
  }
  n.words = static_cast<uint32_t>(words_.size()) - n.first;
}

void State::stamp() {
  for (auto& [impl, held] : tensors_) held.version = version_of(held.tensor);
  words_.clear();
  every_call_.clear();
  for (size_t id = 0; id < nodes_.size(); ++id) {
    Node& n = nodes_[id];
    // Dicts are compared by version: several nodes of one dict need one word.
    add_words(n);
    if (n.every_call) every_call_.push_back(static_cast<int>(id));
  }
  touched_.clear();
}

// The present words of one node, whose values are those of the snapshot. False if it has others than before.
bool State::take_words(const Node& n) {
  if (n.kind == Kind::list && PyList_GET_SIZE(n.object.get()) + 2 != static_cast<Py_ssize_t>(n.words)) return false;
  if (n.kind == Kind::list && words_[n.first + 1].expected != reinterpret_cast<uint64_t>(reinterpret_cast<PyListObject*>(n.object.get())->ob_item)) return false;
  for (uint32_t i = n.first; i < n.first + n.words; ++i) words_[i].expected = *static_cast<const uint64_t*>(words_[i].at);
  return true;
}

// One pass over the words; only where one differs are values compared.
bool State::holds(std::string* why) {
  bool again = false;
  auto compare = [&](Node& n) {
    if (!same(n, true, why)) return false;
    again = !take_words(n) || again;
    return true;
  };
  for (size_t i = 0; i < words_.size(); ++i) {
    if (*static_cast<const uint64_t*>(words_[i].at) == words_[i].expected) continue;
    auto behind = std::upper_bound(nodes_.begin(), nodes_.end(), i, [](size_t word, const Node& n) { return word < n.first; });
    Node& n = *std::prev(behind);
    if (!compare(n)) return false;
    i = n.first + n.words - 1;  // a list's elements are only looked at while its length and place are what they were
  }
  for (int id : every_call_)
    if (!compare(nodes_[static_cast<size_t>(id)])) return false;
  for (size_t i = 0; i < touched_.size(); ++i)  // more may come: dropping a value can run code
    if (!compare(nodes_[static_cast<size_t>(touched_[i])])) return false;
  touched_.clear();
  if (again) stamp();
  return true;
}

// ---- names for people ----

std::string State::path(int id) const {
  const Node& n = nodes_[static_cast<size_t>(id)];
  return n.parent < 0 ? n.label : path(n.parent) + n.label;
}

std::string State::path(const Node& n, size_t i) const {
  std::string base = path(static_cast<int>(&n - nodes_.data()));
  std::string_view key = i < n.keys.size() ? text_of(n.keys[i].get()) : std::string_view();
  switch (n.kind) {
    case Kind::dict:
    case Kind::ordered: return n.label.empty() || n.parent < 0 ? cat(base, ".", key) : cat(base, "[", i < n.keys.size() ? short_repr(n.keys[i].get()) : "", "]");
    case Kind::names: return cat(base, " ", key);
    case Kind::list:
    case Kind::sequence: return cat(base, "[", i, "]");
    case Kind::function: return cat(base, i == 0 ? ".__code__" : i == 1 ? ".__defaults__" : i == 2 ? ".__kwdefaults__" : ".__dict__");
    case Kind::instance: return i == 0 ? base + ".__class__" : i == 1 ? base + ".__dict__" : cat(base, ", slot ", i - 2);
    default: return base;
  }
}

std::vector<std::string> State::describe() const {
  std::vector<std::string> out;
  for (size_t id = 0; id < nodes_.size(); ++id) {
    const Node& n = nodes_[id];
    if (n.kind == Kind::instance || n.kind == Kind::mro) continue;
    out.push_back(cat(path(static_cast<int>(id)), ": ", n.values.size(), n.values.size() == 1 ? " value" : " values"));
  }
  return out;
}

int State::traverse(visitproc visit, void* arg) const {
  for (const Node& n : nodes_) {
    Py_VISIT(n.object.get());
    for (const Ref& k : n.keys) Py_VISIT(k.get());
    for (const Ref& v : n.values) Py_VISIT(v.get());
  }
  for (const Ref& k : keep_) Py_VISIT(k.get());
  return 0;
}

}  // namespace broach
