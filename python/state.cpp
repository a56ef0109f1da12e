#include "state.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>

#include "instances.h"
#include "signals.h"
#include "support/error.h"
#include "support/log.h"
#include "tensors.h"
#include "writes.h"

namespace broach {

namespace {

std::string short_repr(PyObject* o) {
  if (!o) return "nothing";
  if (!is_atom(o) || PyType_Check(o)) return cat("a ", Py_TYPE(o)->tp_name);
  Ref r = undisturbed([&] { return PyObject_Repr(o); });  // what makes a text runs the handlers of signals
  if (!r) PyErr_Clear();
  std::string s(r ? text_of(r.get()) : "?");
  return s.size() > 60 ? s.substr(0, 57) + "..." : s;
}

// What the interpreter itself adds to a class when it is asked for it.
bool is_interpreters_own(std::string_view key) {
  static const std::unordered_set<std::string_view> names = {
      "__annotations__", "_abc_impl", "__annotations_cache__", "__annotate_func__", "__static_attributes__", "__firstlineno__",
      "__weakref__",     "__dict__",  "__qualname__",          "__slotnames__"};
  return names.contains(key);
}

PyObject* contextvar_value(PyObject* var) {
  PyObject* value = nullptr;
  if (PyContextVar_Get(var, nullptr, &value) < 0) PyErr_Clear();
  return value;
}

}  // namespace

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
  switch (kind) {
    case Kind::set:
    case Kind::sequence:
    case Kind::context:
    case Kind::weak:
    case Kind::buffer:
    case Kind::fields:
    case Kind::answer: n.every_call = true; break;
    default: break;
  }
  n.of_torch = parent >= 0 && nodes_[static_cast<size_t>(parent)].of_torch;
  bool dict = kind == Kind::dict || kind == Kind::ordered || kind == Kind::names || kind == Kind::cache;
  if (dict && !cpython::kDictVersions) {
    if (cpython::watch_dict(o, &announce)) watchers().emplace(o, Watcher{this, id});
    else n.every_call = true;
  }
  nodes_.push_back(std::move(n));
  return id;
}

void State::leave_out(const StatePlace& place) {
  if (place.kind == StatePlace::Kind::gradient) {
    met_gradients_.insert(place.owner.get());
    given_gradients_.insert(THPVariable_Unpack(place.owner.get()).unsafeGetTensorImpl());
    return;
  }
  left_out_.push_back(place);
  if (place.kind != StatePlace::Kind::item) known_.emplace(place.owner.get(), -1);
}

bool State::meets_gradient(PyObject* tensor) {
  const auto it = tensors_.find(THPVariable_Unpack(tensor).unsafeGetTensorImpl());
  if (it == tensors_.end() || !it->second.tensor.is_leaf()) return false;
  if (met_gradients_.insert(tensor).second)
    gradients_.push_back({StatePlace::Kind::gradient, Ref::borrow(tensor), {}, cat(it->second.path, ".grad")});
  return true;
}

void State::meet_new_gradients() {
  for (const auto& [impl, held] : tensors_) {
    if (!held.gradient || !held.tensor.is_leaf()) continue;
    const at::Tensor now = gradient_of(held.tensor);
    if (now.is_same(*held.gradient) && (!now.defined() || version_of(now) == held.version_of_gradient)) continue;
    meets_gradient(Ref::steal(THPVariable_Wrap(held.tensor)).get());
  }
}

bool State::is_left_out(PyObject* owner, PyObject* key) const {
  return std::any_of(left_out_.begin(), left_out_.end(), [&](const StatePlace& p) {
    return p.kind == StatePlace::Kind::item && p.owner.get() == owner && same_value(p.key.get(), key);
  });
}

std::optional<StatePlace> State::place_of(const Change& change) const {
  const Node& n = nodes_[static_cast<size_t>(change.node)];
  if (n.kind == Kind::list && PyList_CheckExact(n.object.get()))
    return StatePlace{StatePlace::Kind::whole, n.object, {}, path(change.node)};
  if (n.kind == Kind::cell) return StatePlace{StatePlace::Kind::cell, n.object, {}, change.path};
  bool keyed = (n.kind == Kind::dict && !n.type) || n.kind == Kind::names;
  if (!keyed || !change.key) return std::nullopt;
  return StatePlace{StatePlace::Kind::item, n.object, change.key, change.path};
}

// A variable or an attribute by which code finds an object that the state has found within `holder`; empty if neither.
std::string State::name_within(const Node& holder, PyObject* o) const {
  if (holder.kind == Kind::cell) {
    const size_t at = holder.label.rfind(' ');
    return at == std::string::npos ? "" : holder.label.substr(at + 1);
  }
  const bool is_of_instance =
      holder.kind == Kind::dict && holder.parent >= 0 && nodes_[static_cast<size_t>(holder.parent)].kind == Kind::instance;
  if (holder.kind != Kind::names && !is_of_instance) return "";
  for (size_t i = 0; i < holder.keys.size(); ++i)
    if (holder.values[i].get() == o) return std::string(text_of(holder.keys[i].get()));
  return "";
}

int State::times_met(PyObject* o) const {
  const auto found = met_.find(o);
  return found == met_.end() ? 0 : found->second;
}

std::vector<std::string> State::names_of_grown(const Change& change) const {
  const Node& n = nodes_[static_cast<size_t>(change.node)];
  PyObject* list = n.object.get();
  if (n.kind != Kind::list || !PyList_CheckExact(list) || n.parent < 0 || times_met(list) != 1) return {};
  bool has_grown = static_cast<size_t>(PyList_GET_SIZE(list)) > n.values.size();
  for (size_t i = 0; has_grown && i < n.values.size(); ++i)
    has_grown = n.values[i].get() == PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i));
  if (!has_grown) return {};
  const Node& holder = nodes_[static_cast<size_t>(n.parent)];
  if (std::string name = name_within(holder, list); !name.empty()) return {std::move(name)};
  PyObject* dict = holder.object.get();
  if (holder.kind != Kind::dict || !PyDict_CheckExact(dict) || holder.parent < 0) return {};
  std::string name = name_within(nodes_[static_cast<size_t>(holder.parent)], dict);
  if (times_met(dict) != 1 || name.empty()) return {};
  for (size_t i = 0; i < holder.keys.size(); ++i)
    if (holder.values[i].get() == list && PyUnicode_CheckExact(holder.keys[i].get()))
      return {std::move(name), std::string(text_of(holder.keys[i].get()))};
  return {};
}

bool State::is_met_once(const StatePlace& place) const {
  if (times_met(place.owner.get()) > 1) return false;
  return place.names.size() == 1 || std::ranges::all_of(nodes_, [&](const Node& n) {
           const bool holds =
               n.kind == Kind::dict && std::ranges::any_of(n.values, [&](const Ref& v) { return v.get() == place.owner.get(); });
           return !holds || times_met(n.object.get()) <= 1;
         });
}

void State::fill(int id) {
  std::vector<Ref> keys, values;
  if (!read(nodes_[static_cast<size_t>(id)], keys, values)) add_problem(path(id) + " cannot be read");
  nodes_[static_cast<size_t>(id)].keys = std::move(keys);
  nodes_[static_cast<size_t>(id)].values = std::move(values);
  note_order(nodes_[static_cast<size_t>(id)]);
}

// What is left out is given by value, and says nothing of the order in which a program meets it.
void State::note_order(Node& n) const {
  n.order.clear();
  auto is_its = [&](const StatePlace& p) { return p.owner.get() == n.object.get(); };
  if (n.kind == Kind::dict && std::ranges::any_of(left_out_, is_its)) read_elements(n.object.get(), n.order);
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

void State::note_gradients() {
  for (auto& [impl, held] : tensors_) {
    held.requires_grad = held.tensor.requires_grad();
    held.gradient = gradient_of(held.tensor);
    held.version_of_gradient = held.gradient->defined() ? version_of(*held.gradient) : 0;
  }
}

const Reason* State::strictest_problem() const {
  return problems_.empty() ? nullptr : &*std::ranges::max_element(problems_, {}, &Reason::fallback);
}

void State::forget_gradients() {
  for (auto& [impl, held] : tensors_) held.gradient.reset();
}

std::string State::changed_gradients() const {
  auto changed = std::ranges::find_if(tensors_, [](const auto& t) { return t.second.tensor.requires_grad() != t.second.requires_grad; });
  return changed == tensors_.end() ? "" : changed->second.path;
}

State::TensorFacts::TensorFacts(const Held& h, bool guarded)
    : held(&h),
      requires_grad(h.tensor.requires_grad()),
      is_leaf(h.tensor.is_leaf()),
      is_guarded(guarded || h.tensor.layout() != c10::kStrided),
      dtype(h.tensor.scalar_type()) {
  if (is_guarded) return;
  sizes = h.tensor.sizes().vec();
  strides = h.tensor.strides().vec();
}

bool State::TensorFacts::hold() const {
  const at::Tensor& t = held->tensor;
  return t.requires_grad() == requires_grad && t.is_leaf() == is_leaf &&
         (is_guarded || (t.layout() == c10::kStrided && t.scalar_type() == dtype && t.sizes() == sizes && t.strides() == strides));
}

void State::watch_tensors(const std::function<bool(const at::Tensor&)>& is_guarded) {
  const bool asks = std::ranges::any_of(entered_, [](PyCodeObject* code) { return names_any(code, {"requires_grad", "is_leaf"}); });
  facts_.clear();
  for (const auto& [impl, held] : tensors_)
    if (const bool guarded = is_guarded(held.tensor); asks || !guarded) facts_.emplace_back(held, guarded);
}

// ---- reading and comparing ----

// In the order in which they are read.
static constexpr const char* kFieldsOfFunctions[] = {"__code__",     "__defaults__", "__kwdefaults__", "__dict__",       "__name__",
                                                     "__qualname__", "__doc__",      "__module__",     "__annotations__"};

static void read_all(PyObject* dict, std::vector<Ref>& keys, std::vector<Ref>& values) {
  PyObject *k, *v;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &k, &v);) {
    keys.push_back(Ref::borrow(k));
    values.push_back(Ref::borrow(v));
  }
}

// A value that was asked for.
static bool read_answer(PyObject* answer, std::vector<Ref>& values) {
  values.push_back(Ref::steal(answer));
  return answer || (PyErr_Clear(), false);
}

// In os.environ, where torch's compiler sets it as it is first imported. Operations that torch has in Python do that, in any capture.
static bool is_set_by_importing(PyObject* key) {
  return PyBytes_CheckExact(key) &&
         std::string_view(PyBytes_AS_STRING(key), static_cast<size_t>(PyBytes_GET_SIZE(key))) == "TORCHINDUCTOR_CACHE_DIR";
}

bool State::read_dict(const Node& n, std::vector<Ref>& keys, std::vector<Ref>& values) const {
  PyObject *k, *v, *o = n.object.get();
  Py_ssize_t at = 0;
  while (PyDict_Next(o, &at, &k, &v)) {
    if (n.type && is_interpreters_own(text_of(k))) continue;
    if (n.unwatched && n.unwatched->contains(std::string(text_of(k)))) continue;
    if (!left_out_.empty() && is_left_out(o, k)) continue;
    if (is_set_by_importing(k)) continue;
    keys.push_back(Ref::borrow(k));
    values.push_back(Ref::borrow(v));
  }
  return true;
}

// Copying a tensor, and asking for its attributes, gives it a dict.
static bool is_empty_of_tensor(PyObject* o, PyObject* dict) { return dict && is_tensor(o) && PyDict_GET_SIZE(dict) == 0; }

bool State::read(const Node& n, std::vector<Ref>& keys, std::vector<Ref>& values) const {
  PyObject* o = n.object.get();
  auto value = [&](PyObject* v) { return values.push_back(Ref::borrow(v)), true; };
  auto value_of_each_key = [&] {
    for (const Ref& k : keys) value(PyDict_GetItemWithError(o, k.get()));
    return true;
  };
  switch (n.kind) {
    case Kind::dict: return read_dict(n, keys, values);
    case Kind::cache:
      if (n.keys.empty()) return read_all(o, keys, values), true;
      keys = n.keys;
      return value_of_each_key();
    case Kind::ordered: return read_elements(o, keys) && value_of_each_key();
    case Kind::names: keys = n.keys; return value_of_each_key();
    case Kind::list:
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i) value(PyList_GET_ITEM(o, i));
      return true;
    case Kind::sequence:
    case Kind::set: return read_elements(o, values);
    case Kind::cell: return value(PyCell_GET(o));
    case Kind::function: {
      auto* f = reinterpret_cast<PyFunctionObject*>(o);
      // Whoever asks for its dict, or its annotations, gives it one.
      auto unless_empty = [](PyObject* dict) { return dict && PyDict_CheckExact(dict) && PyDict_GET_SIZE(dict) == 0 ? nullptr : dict; };
      for (PyObject* v : {f->func_code, f->func_defaults, f->func_kwdefaults, unless_empty(f->func_dict), f->func_name, f->func_qualname,
                          f->func_doc, f->func_module, unless_empty(f->func_annotations)})
        value(v);
      return true;
    }
    case Kind::instance:
      value(reinterpret_cast<PyObject*>(Py_TYPE(o)));
      value(n.place && !is_empty_of_tensor(o, *n.place) ? *n.place : nullptr);
      for (Py_ssize_t offset : n.slots) value(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + offset));
      return true;
    case Kind::mro:
      value(reinterpret_cast<PyTypeObject*>(o)->tp_mro);
      if (is_heap(reinterpret_cast<PyTypeObject*>(o)))
        value(reinterpret_cast<PyHeapTypeObject*>(o)->ht_name), value(reinterpret_cast<PyHeapTypeObject*>(o)->ht_qualname);
      return true;
    case Kind::weak: return value(PyWeakref_GET_OBJECT(o) == Py_None ? Py_False : Py_True);
    case Kind::context: return values.push_back(Ref::steal(contextvar_value(o))), true;
    case Kind::fields:
      for (const char* field : {"func", "args", "keywords"})
        if (!read_answer(PyObject_GetAttrString(o, field), values)) return false;
      return true;
    case Kind::answer: return read_answer(PyObject_CallNoArgs(o), values);
    case Kind::buffer: return read_answer(PyBytes_FromObject(o), values);
  }
  return false;
}

// Compares a node with its snapshot; `take` keeps the present (equal) values instead.
bool State::same(Node& n, bool take, std::string* why) const {
  if (n.left) return true;
  std::vector<Ref> keys, values;
  bool fine = read(n, keys, values) && keys.size() == n.keys.size() && values.size() == n.values.size();
  if (!fine && why) *why = cat(path(static_cast<int>(&n - nodes_.data())), " has other entries than before");
  if (fine && !n.order.empty() && !keeps_order(n.object.get(), n.order)) {
    fine = false;
    if (why) *why = cat(path(static_cast<int>(&n - nodes_.data())), " has its keys in another order than before");
  }
  for (size_t i = 0; fine && i < keys.size(); ++i) {
    fine = same_value(n.keys[i].get(), keys[i].get()) ||
           (PyUnicode_Check(keys[i].get()) && PyUnicode_Check(n.keys[i].get()) && PyUnicode_Compare(keys[i].get(), n.keys[i].get()) == 0);
    if (!fine && why) *why = cat(path(static_cast<int>(&n - nodes_.data())), " has other keys than before");
  }
  for (size_t i = 0; fine && i < values.size(); ++i) {
    fine = same_value(n.values[i].get(), values[i].get());
    if (!fine && why) *why = cat(path(n, i), " was ", short_repr(n.values[i].get()), ", is ", short_repr(values[i].get()));
  }
  if (fine && take) {
    n.keys = std::move(keys);
    n.values = std::move(values);
    note_order(n);
  }
  return fine;
}

namespace {

// Makes a dict hold these items, in their order; those of keys that are none of a state's stay.
// `now`: the keys that it has. Where those of before are all there in their order, they keep their places between keys that the state has
// not.
bool put_back_items(PyObject* dict, const std::vector<Ref>& now, const std::vector<Ref>& keys, const std::vector<Ref>& values) {
  const bool ordered = PyODict_Check(dict);
  size_t met = 0;
  for (const Ref& k : now) met += met < keys.size() && k.get() == keys[met].get();
  for (size_t i = 0; i < keys.size(); ++i) {
    PyObject *k = keys[i].get(), *v = values[i].get(), *is = PyDict_GetItemWithError(dict, k);
    const bool stays = met == keys.size() && v;
    if (is && !stays && (ordered ? PyODict_DelItem(dict, k) : PyDict_DelItem(dict, k)) < 0) return false;
    if (v && !(stays && is == v) && (ordered ? PyODict_SetItem(dict, k, v) : PyDict_SetItem(dict, k, v)) < 0) return false;
  }
  return true;
}

Ref list_of(const std::vector<Ref>& values) {
  Ref list = Ref::steal(PyList_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) PyList_SET_ITEM(list.get(), i, Ref(values[i]).release());
  return list;
}

// The elements of one of numpy's, as `bytes` has them; false where they cannot be written.
bool put_back_array(PyObject* array, PyObject* bytes) {
  Ref numpy = import_module("numpy");
  Ref type = Ref::steal(PyObject_GetAttrString(array, "dtype")), shape = Ref::steal(PyObject_GetAttrString(array, "shape"));
  if (!numpy || !type || !shape) return false;
  Ref flat = Ref::steal(PyObject_CallMethod(numpy.get(), "frombuffer", "OO", bytes, type.get()));
  Ref elements = flat ? Ref::steal(PyObject_CallMethod(flat.get(), "reshape", "O", shape.get())) : Ref();
  return elements && Ref::steal(PyObject_CallMethod(numpy.get(), "copyto", "OO", array, elements.get()));
}

bool call_method(PyObject* o, const char* name, PyObject* argument) {
  return static_cast<bool>(Ref::steal(argument ? PyObject_CallMethod(o, name, "O", argument) : PyObject_CallMethod(o, name, nullptr)));
}

}  // namespace

bool State::put_back(const Node& n) const {
  PyObject* o = n.object.get();
  switch (n.kind) {
    case Kind::dict:
      if (n.type) return put_back_class(n);
      [[fallthrough]];
    case Kind::ordered: {
      std::vector<Ref> now;
      const bool all = read_elements(o, now);
      for (const Ref& each : now) {
        PyObject* k = each.get();
        const bool kept = std::any_of(n.keys.begin(), n.keys.end(), [&](const Ref& key) { return same_value(key.get(), k); });
        const bool ours = !(n.unwatched && n.unwatched->contains(std::string(text_of(k)))) && !is_left_out(o, k);
        if (!kept && ours && (PyODict_Check(o) ? PyODict_DelItem(o, k) : PyDict_DelItem(o, k)) < 0) return false;
      }
      return all && put_back_items(o, now, n.keys, n.values);
    }
    case Kind::names:
      for (size_t i = 0; i < n.keys.size(); ++i) {
        PyObject *k = n.keys[i].get(), *now = PyDict_GetItemWithError(o, k), *v = n.values[i].get();
        if (now != v && (v ? PyDict_SetItem(o, k, v) : PyDict_DelItem(o, k)) < 0) return false;
      }
      return true;
    case Kind::answer:
    case Kind::weak: return true;  // no program's to write
    case Kind::cache: {            // what the run has computed is computed again, with what that does
      std::vector<Ref> now, values;
      read_all(o, now, values);
      for (const Ref& k : now)
        if (std::ranges::none_of(n.keys, [&](const Ref& kept) { return kept.get() == k.get(); }) && PyDict_DelItem(o, k.get()) < 0)
          return false;
      return true;
    }
    case Kind::function: return put_back_function(n);
    case Kind::list: return PyList_SetSlice(o, 0, PyList_GET_SIZE(o), list_of(n.values).get()) == 0;
    case Kind::set: return call_method(o, "clear", nullptr) && call_method(o, "update", list_of(n.values).get());
    case Kind::sequence: return call_method(o, "clear", nullptr) && call_method(o, "extend", list_of(n.values).get());
    case Kind::cell: return PyCell_Set(o, n.values[0].get()) == 0;
    case Kind::context: return n.values[0] && static_cast<bool>(Ref::steal(PyContextVar_Set(o, n.values[0].get())));
    case Kind::buffer: {
      if (!PyByteArray_Check(o)) return put_back_array(o, n.values[0].get());
      const Py_ssize_t size = PyBytes_GET_SIZE(n.values[0].get());
      if (PyByteArray_Resize(o, size) < 0) return false;
      std::memcpy(PyByteArray_AS_STRING(o), PyBytes_AS_STRING(n.values[0].get()), static_cast<size_t>(size));
      return true;
    }
    case Kind::instance:
      if (reinterpret_cast<PyObject*>(Py_TYPE(o)) != n.values[0].get() && PyObject_SetAttrString(o, "__class__", n.values[0].get()) < 0)
        return false;
      if (n.place && *n.place != n.values[1].get()) Ref::steal(std::exchange(*n.place, Ref(n.values[1]).release()));
      for (size_t i = 0; i < n.slots.size(); ++i) {
        auto* slot = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + n.slots[i]);
        Ref old = Ref::steal(std::exchange(*slot, Ref(n.values[i + 2]).release()));
      }
      return true;
    default: return false;
  }
}

// By its attributes, so that what is cached of them is forgotten.
bool State::put_back_class(const Node& n) const {
  std::vector<Ref> now, values;
  read_dict(n, now, values);
  for (const Ref& k : now)
    if (std::ranges::none_of(n.keys, [&](const Ref& kept) { return same_value(kept.get(), k.get()); }) &&
        PyObject_DelAttr(n.type.get(), k.get()) < 0)
      return false;
  for (size_t i = 0; i < n.keys.size(); ++i)
    if (PyObject* is = PyDict_GetItemWithError(n.object.get(), n.keys[i].get());
        is != n.values[i].get() && PyObject_SetAttr(n.type.get(), n.keys[i].get(), n.values[i].get()) < 0)
      return false;
  return true;
}

bool State::put_back_function(const Node& n) const {
  PyObject* f = n.object.get();
  std::vector<Ref> keys, now;
  if (!read(n, keys, now)) return false;
  for (size_t i = 0; i < now.size(); ++i) {
    PyObject* before = n.values[i].get();
    if (now[i].get() == before) continue;
    const bool is_dict = std::string_view(kFieldsOfFunctions[i]) == "__dict__";
    if (is_dict && !before) PyDict_Clear(now[i].get());
    else if (PyObject_SetAttrString(f, kFieldsOfFunctions[i], before ? before : Py_None) < 0) return false;
  }
  return true;
}

bool State::restore() const {
  PyObject *type, *value, *trace;  // of a program that raised
  PyErr_Fetch(&type, &value, &trace);
  bool whole = true;
  for (const Node& n : nodes_)
    if (std::string why; (!same(const_cast<Node&>(n), false, &why) || n.kind == Kind::cache) && !put_back(n)) {
      log_info("cannot be put back: ", why);
      whole = false;
    }
  for (const auto& [impl, held] : tensors_) {
    if (!held.tensor.is_leaf()) continue;
    if (held.tensor.requires_grad() != held.requires_grad) held.tensor.requires_grad_(held.requires_grad);
    if (held.gradient && !given_gradients_.contains(impl) && !held.tensor.grad().is_same(*held.gradient))
      held.tensor.mutable_grad() = *held.gradient;  // its elements are the capture's to put back
  }
  PyErr_Clear();
  PyErr_Restore(type, value, trace);
  return whole;
}

std::optional<std::vector<State::Present>> State::put_back_for_a_while() {
  std::vector<Present> present;
  // What answers, and what the interpreter keeps, is not put back by what it gives.
  auto may = [](Kind k) { return k != Kind::answer && k != Kind::weak && k != Kind::cache && k != Kind::mro && k != Kind::fields; };
  bool whole = true;
  for (size_t i = 0; whole && i < nodes_.size(); ++i) {
    Node& n = nodes_[i];
    if (same(n, false, nullptr)) continue;
    Present now{i, {}, {}};
    whole = may(n.kind) && read(n, now.keys, now.values);
    if (!whole) break;
    present.push_back(std::move(now));
    whole = put_back(n);
  }
  PyErr_Clear();
  if (whole && holds(nullptr)) return present;
  put_forward(std::move(present));
  return std::nullopt;
}

void State::put_forward(std::vector<Present> present) {
  PyObject *type, *value, *trace;  // of a program that raised
  PyErr_Fetch(&type, &value, &trace);
  for (size_t i = present.size(); i-- > 0;) {
    Node& n = nodes_[present[i].node];
    std::swap(n.keys, present[i].keys), std::swap(n.values, present[i].values);
    if (!put_back(n))
      log_warning("broach: what has changed since a call cannot be written again: ", path(static_cast<int>(present[i].node)));
    std::swap(n.keys, present[i].keys), std::swap(n.values, present[i].values);
  }
  PyErr_Clear();
  PyErr_Restore(type, value, trace);
}

void State::settle_numbers(const std::vector<Change>& changes) const {
  static PyObject* settle = py::object(py::module_::import("broach._numbers").attr("settle")).release().ptr();
  for (const Change& c : changes) {
    const Node& n = nodes_[static_cast<size_t>(c.node)];
    PyObject* owner = n.kind == Kind::dict && n.type ? n.type.get() : n.object.get();
    PyObject *key = c.key ? c.key.get() : Py_None, *now = c.now ? c.now.get() : Py_None;
    if (!Ref::steal(PyObject_CallFunctionObjArgs(settle, owner, key, now, nullptr))) throw py::error_already_set();
  }
}

std::vector<State::Change> State::changes() const {
  std::vector<Change> out;
  for (size_t id = 0; id < nodes_.size(); ++id) {
    const Node& n = nodes_[id];
    if (same(const_cast<Node&>(n), false, nullptr)) continue;
    std::vector<Ref> keys, values;
    if (!read(n, keys, values)) continue;
    auto changed = [&](Ref key, Ref before, Ref now, std::string where) {
      out.push_back({static_cast<int>(id), std::move(key), std::move(before), std::move(now), std::move(where)});
    };
    if (n.kind == Kind::dict || n.kind == Kind::ordered) {
      bool same_order = keys.size() == n.keys.size();
      for (size_t i = 0; i < keys.size(); ++i) {
        auto old = std::find_if(n.keys.begin(), n.keys.end(), [&](const Ref& k) { return same_value(k.get(), keys[i].get()); });
        same_order = same_order && old != n.keys.end() && static_cast<size_t>(old - n.keys.begin()) == i;
        if (old == n.keys.end()) changed(keys[i], {}, values[i], cat(path(static_cast<int>(id)), "[", short_repr(keys[i].get()), "]"));
        else if (auto at = static_cast<size_t>(old - n.keys.begin()); !same_value(n.values[at].get(), values[i].get()))
          changed(keys[i], n.values[at], values[i], path(n, at));
      }
      if (!same_order && (out.empty() || out.back().node != static_cast<int>(id))) changed({}, {}, {}, path(static_cast<int>(id)));
      continue;
    }
    if (values.size() != n.values.size()) {
      changed({}, {}, {}, path(static_cast<int>(id)));
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i)
      if (!same_value(n.values[i].get(), values[i].get()))
        changed(i < n.keys.size() ? n.keys[i] : Ref(), n.values[i], values[i], path(n, i));
  }
  return out;
}

void State::add_words(Node& n) {
  n.first = static_cast<uint32_t>(words_.size());
  auto word = [&](const void* at) { words_.push_back({at, *static_cast<const uint64_t*>(at)}); };
  PyObject* o = n.object.get();
  switch (n.kind) {
    case Kind::dict:
    case Kind::ordered:
    case Kind::names:
    case Kind::cache:
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
      for (PyObject** field : {&f->func_code, &f->func_defaults, &f->func_kwdefaults, &f->func_dict, &f->func_name, &f->func_qualname,
                               &f->func_doc, &f->func_module, &f->func_annotations})
        word(field);
      break;
    }
    case Kind::instance:
      if (!is_tensor(o)) word(&o->ob_type);  // models have hundreds of parameters, whose class nobody changes
      if (n.place) word(n.place);
      for (Py_ssize_t offset : n.slots) word(reinterpret_cast<char*>(o) + offset);
      break;
    case Kind::mro:
      word(&reinterpret_cast<PyTypeObject*>(o)->tp_mro);
      if (is_heap(reinterpret_cast<PyTypeObject*>(o)))
        word(&reinterpret_cast<PyHeapTypeObject*>(o)->ht_name), word(&reinterpret_cast<PyHeapTypeObject*>(o)->ht_qualname);
      break;
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
    if (n.kind == Kind::cache) {  // what it found in its place from now on is a hit
      n.keys.clear();
      fill(static_cast<int>(id));
    }
    // Dicts are compared by version: several nodes of one dict need one word.
    add_words(n);
    const bool may_be_reordered = n.kind == Kind::ordered && n.keys.size() > 1;  // without the dict's knowing
    if (n.every_call || may_be_reordered) every_call_.push_back(static_cast<int>(id));
  }
  touched_.clear();
}

// The present words of one node, whose values are those of the snapshot. False if it has others than before.
bool State::take_words(const Node& n) {
  if (n.kind == Kind::list && PyList_GET_SIZE(n.object.get()) + 2 != static_cast<Py_ssize_t>(n.words)) return false;
  if (n.kind == Kind::list &&
      words_[n.first + 1].expected != reinterpret_cast<uint64_t>(reinterpret_cast<PyListObject*>(n.object.get())->ob_item))
    return false;
  for (uint32_t i = n.first; i < n.first + n.words; ++i) words_[i].expected = *static_cast<const uint64_t*>(words_[i].at);
  return true;
}

// Of the words from `i` on. A model has thousands: each instruction of its loop is felt in a call.
size_t State::first_changed(size_t i) const {
  const Word* const begin = words_.data();
  const Word *w = begin + i, *const end = begin + words_.size();
  while (w != end && *static_cast<const uint64_t*>(w->at) == w->expected) ++w;
  return static_cast<size_t>(w - begin);
}

// One pass over the words; only where one differs are values compared.
bool State::holds(std::string* why) {
  for (const TensorFacts& f : facts_) {
    if (f.hold()) continue;
    if (why) *why = f.held->path + " has other attributes than before";
    return false;
  }
  bool again = false;
  auto compare = [&](Node& n) {
    if (!same(n, true, why)) return false;
    again = !take_words(n) || again;
    return true;
  };
  for (size_t i = 0; i < words_.size(); ++i) {
    i = first_changed(i);
    if (i == words_.size()) break;
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
    case Kind::ordered:
      return n.label.empty() || n.parent < 0 ? cat(base, ".", key)
                                             : cat(base, "[", i < n.keys.size() ? short_repr(n.keys[i].get()) : "", "]");
    case Kind::names: return cat(base, " ", key);
    case Kind::cache: return base + ", a cached result";
    case Kind::fields: return base + (i == 0 ? ".func" : i == 1 ? ".args" : ".keywords");
    case Kind::list:
    case Kind::sequence: return cat(base, "[", i, "]");
    case Kind::function: return cat(base, ".", kFieldsOfFunctions[i]);
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
    for (const Ref& k : n.order) Py_VISIT(k.get());
  }
  for (const Ref& k : keep_) Py_VISIT(k.get());
  return 0;
}

}  // namespace broach
