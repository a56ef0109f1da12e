#include "form.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include <algorithm>
#include <utility>

#include "cpython.h"
#include "instances.h"
#include "state.h"
#include "support/error.h"

namespace broach {

namespace {

using Kind = Part::Kind;
constexpr size_t kMostParts = 20000;

PyObject* imported(const char* module, const char* name) {
  Ref m = import_module(module);
  PyObject* o = m ? PyObject_GetAttrString(m.get(), name) : nullptr;
  if (!o) throw py::error_already_set();
  return o;
}

// A symbolic number as the program sees it.
PyObject* number_of(const char* type, const c10::SymNode& node) {
  return py::module_::import("broach._numbers").attr(type)(py::cast(node)).release().ptr();
}

PyTypeObject* parameter_type() {
  static PyObject* type = imported("torch.nn", "Parameter");
  return reinterpret_cast<PyTypeObject*>(type);
}

bool is_parameter(PyObject* o) {
  static PyObject* buffer = imported("torch.nn", "Buffer");
  return Py_TYPE(o) == parameter_type() || reinterpret_cast<PyObject*>(Py_TYPE(o)) == buffer;
}

// One that the program made is made in every call.
PyObject* new_parameter(const Part& p, PyObject* tensor) {
  Ref data = Ref::steal(tensor);
  return PyObject_CallMethod(THPVariableClass, "_make_subclass", "OOO", parameter_type(), data.get(), p.requires_grad ? Py_True : Py_False);
}

bool is_plain_tensor(PyObject* o) { return reinterpret_cast<PyObject*>(Py_TYPE(o)) == THPVariableClass || is_parameter(o); }

bool is_enum_member(PyObject* o) {
  static PyObject* enumeration = imported("enum", "Enum");
  return is_instance(o, enumeration);
}

// What a program keeps beside its tensors and steps from call to call: one of each lives as long as the program, and what it holds is the
// program's state, wherever the program finds it.
bool is_kept_state(PyObject* o) {
  static PyObject* const types[] = {imported("torch.nn", "Module"), imported("torch.optim", "Optimizer"),
                                    imported("torch.optim.lr_scheduler", "LRScheduler"), imported("torch.amp", "GradScaler")};
  return std::any_of(std::begin(types), std::end(types), [&](PyObject* type) { return is_instance(o, type); });
}

bool by_identity(PyObject* o) {
  static PyObject* partial = imported("functools", "partial");
  return PyFunction_Check(o) || PyMethod_Check(o) || PyModule_Check(o) || PyType_Check(o) || is_kept_state(o) || is_enum_member(o) ||
         is_instance(o, partial);
}

// Whether a class or a module is what its module's name, and its own, say to everybody.
bool is_found_by_name(PyObject* o) {
  Ref module = Ref::steal(PyObject_GetAttrString(o, PyModule_Check(o) ? "__name__" : "__module__"));
  PyObject* found = module ? PyDict_GetItem(PyImport_GetModuleDict(), module.get()) : nullptr;
  if (!found || PyModule_Check(o)) return PyErr_Clear(), found == o;
  Ref at = Ref::borrow(found), name = Ref::steal(PyObject_GetAttrString(o, "__qualname__"));
  for (std::string_view rest = name ? text_of(name.get()) : ""; at && !rest.empty();) {
    const size_t end = std::min(rest.find('.'), rest.size());
    at = Ref::steal(PyObject_GetAttrString(at.get(), std::string(rest.substr(0, end)).c_str()));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return PyErr_Clear(), at.get() == o;
}

// A class, a module, or a method in C of something, that a call has made is another one in the next, with what that one makes in it.
bool is_made_by_call(PyObject* o, const std::function<bool(PyObject*)>& was_there) {
  if (PyCFunction_Check(o)) {
    PyObject* self = cpython::self_of(o);
    if (!self || PyModule_Check(self)) return false;
    return PyType_Check(self) ? is_made_by_call(self, was_there) : !was_there(self);
  }
  const bool can_be = PyModule_Check(o) || (PyType_Check(o) && is_heap(reinterpret_cast<PyTypeObject*>(o)));
  return can_be && !was_there(o) && !is_found_by_name(o);
}

bool same_key(PyObject* a, PyObject* b) {
  return a == b || (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b) && PyUnicode_Compare(a, b) == 0) || same_value(a, b);
}

// Attributes that Python code gave a tensor; null if there are none.
PyObject* attributes_of(PyObject* tensor) {
  PyObject** place = cpython::dict_place_if_any(tensor);
  return place && *place && PyDict_GET_SIZE(*place) ? *place : nullptr;
}

// Those of the recorded tensor, for one that stands for it.
PyObject* with_attributes(Ref tensor, PyObject* attributes) {
  if (!tensor || !attributes || attributes_of(tensor.get())) return tensor.release();
  PyObject *k, *v;
  for (Py_ssize_t at = 0; PyDict_Next(attributes, &at, &k, &v);)
    if (PyObject_SetAttr(tensor.get(), k, v) < 0) return nullptr;
  return tensor.release();
}

// Whether nothing can change in it without its being another object. Functions are looked at as they run, a tensor's elements are the trace's.
bool is_fixed(PyObject* o) {
  if (PyTuple_Check(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
      if (!is_fixed(PyTuple_GET_ITEM(o, i))) return false;
    return native_base(Py_TYPE(o)) == Py_TYPE(o);
  }
  return is_atom(o) || is_plain_tensor(o) || PyFunction_Check(o);
}

bool same_attributes(PyObject* before, PyObject* now) {
  if (!before || !now) return before == now;
  if (PyDict_GET_SIZE(before) != PyDict_GET_SIZE(now)) return false;
  PyObject *k, *v;
  for (Py_ssize_t at = 0; PyDict_Next(before, &at, &k, &v);)
    if (!same_value(v, PyDict_GetItemWithError(now, k))) return false;
  return true;
}

bool has_instance_dict(PyObject* o) { return PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_HEAPTYPE) && cpython::dict_place(o); }

// What fills a defaultdict lies where a class's slots do.
bool is_defaultdict(PyTypeObject* layout) { return std::string_view(layout->tp_name) == "collections.defaultdict"; }

// A defaultdict may have no factory, which reads as None.
PyObject* in_slot(PyObject* o, Py_ssize_t offset) {
  PyObject* v = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + offset);
  return v || !PyDict_Check(o) ? v : Py_None;
}

// The items of a dict in the order in which a program meets them.
class Items {
 public:
  explicit Items(PyObject* dict) : dict_(dict), keys_(PyODict_Check(dict) ? ordered_keys(dict) : Ref()) {}
  bool next(PyObject*& key, PyObject*& value) {
    if (!keys_) return PyDict_Next(dict_, &at_, &key, &value);
    if (at_ == PyTuple_GET_SIZE(keys_.get())) return false;
    key = PyTuple_GET_ITEM(keys_.get(), at_++);
    return (value = PyDict_GetItemWithError(dict_, key)) != nullptr;
  }

 private:
  PyObject* dict_;
  Ref keys_;
  Py_ssize_t at_ = 0;
};

// No container is given twice; empty tuples and frozen sets are one object each.
bool all_distinct(std::vector<PyObject*> containers) {
  std::erase_if(containers, [](PyObject* o) { return (PyTuple_Check(o) || PyFrozenSet_Check(o)) && PyObject_Size(o) == 0; });
  if (containers.size() < 2) return true;
  std::sort(containers.begin(), containers.end());
  return std::adjacent_find(containers.begin(), containers.end()) == containers.end();
}

}  // namespace

// What runs later, as its caller drives it. Dynamo does not take it either (before 3.12 it may crash).
static bool is_suspended(PyObject* o) { return PyGen_CheckExact(o) || PyCoro_CheckExact(o) || PyAsyncGen_CheckExact(o); }

bool Form::fail(PyObject* o) {
  if (!problem_.empty()) return false;
  PyTypeObject* type = Py_TYPE(o);
  // Dynamo looks at such tensors by operations of its own, and turns what C code made into something else (numpy's scalars into arrays).
  if (is_tensor(o)) problem_ = {cat("a tensor of the class ", type->tp_name), Fallback::eager};
  else if (native_base(type) == type && type->tp_base == &PyBaseObject_Type)
    problem_ = {cat("a value of the native type ", type->tp_name), is_suspended(o) ? Fallback::nothing : Fallback::eager};
  else problem_ = cat("a value of type ", type->tp_name);
  return false;
}

bool Form::add_tensor(PyObject* o, const Rules& rules, Leaves& leaves) {
  if (!rules.any_tensor && !is_plain_tensor(o)) return fail(o);
  const at::Tensor& t = THPVariable_Unpack(o);
  if (rules.results && attributes_of(o) && !(rules.was_there && rules.was_there(o)) &&
      std::none_of(rules.given.begin(), rules.given.end(), [&](const at::Tensor& g) { return g.is_same(t); })) {
    problem_ = "a tensor with attributes of its own";
    return false;
  }
  PyObject *key, *value, *attributes = rules.results ? nullptr : attributes_of(o);
  for (Py_ssize_t at = 0; attributes && PyDict_Next(attributes, &at, &key, &value);)
    if (!is_fixed(value)) {
      problem_ = {cat("a tensor whose attribute ", text_of(key), " holds an object that can change"), Fallback::eager};
      return false;
    }
  auto [it, fresh] = tensors_.emplace(t.unsafeGetTensorImpl(), static_cast<int>(leaves.tensors.size()));
  Part p{fresh ? Kind::tensor : Kind::same};
  p.index = it->second;
  p.requires_grad = t.requires_grad();
  p.type = Py_TYPE(o);
  if (attributes && fresh) p.keep = Ref::steal(PyDict_Copy(attributes));
  p.parameter = rules.results && Py_TYPE(o) == parameter_type();
  p.is_argument = !rules.results && is_plain_tensor(o);
  if (fresh) leaves.tensors.push_back(t);
  parts_.push_back(std::move(p));
  return true;
}

// The node of one of torch's symbolic numbers.
static c10::SymNode node_in(PyObject* number) { return py::handle(number).attr("node").cast<c10::SymNode>(); }

// Larger ones are constants: sums and products of symbols must not wrap around, and torch keeps the least 64-bit integers apart.
static bool fits_symbols(int64_t value) { return value > -(int64_t{1} << 31) && value < (int64_t{1} << 31); }

// False if it is none that may differ from call to call.
bool Form::add_number(PyObject* o, const Rules& rules, Leaves& leaves) {
  auto add = [&](Kind kind, size_t index) {
    Part p{kind};
    p.index = static_cast<int>(index);
    parts_.push_back(std::move(p));
    return true;
  };
  bool integer = PyLong_CheckExact(o), floating = PyFloat_CheckExact(o);
  if (rules.results && !integer && !floating) {
    if (is_instance(o, torch::get_symint_class().ptr()))
      return leaves.program_ints.emplace_back(node_in(o)), add(Kind::integer, leaves.program_ints.size() - 1);
    if (is_instance(o, torch::get_symbool_class().ptr()))
      return add(Kind::constant, 0), parts_.back().value = Ref::borrow(node_in(o)->bool_() ? Py_True : Py_False), true;
    if (is_instance(o, torch::get_symfloat_class().ptr()))
      return leaves.program_floats.emplace_back(node_in(o)), add(Kind::floating, leaves.program_floats.size() - 1);
  }
  if (integer && (rules.results || rules.numbers)) {
    int overflow = 0;
    int64_t value = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow || !fits_symbols(value)) return false;
    if (rules.results) leaves.program_ints.emplace_back(value);
    else leaves.ints.push_back(value);
    return add(Kind::integer, (rules.results ? leaves.program_ints.size() : leaves.ints.size()) - 1);
  }
  if (!floating || rules.results || !rules.numbers) return false;
  leaves.floats.push_back(PyFloat_AS_DOUBLE(o));
  return add(Kind::floating, leaves.floats.size() - 1);
}

bool Form::add(PyObject* o, const Rules& rules, Leaves& leaves) {
  if (parts_.size() > kMostParts) return fail(o);
  if (is_tensor(o)) return add_tensor(o, rules, leaves);
  if (add_number(o, rules, leaves)) return true;
  if (rules.was_there)
    for (PyObject* each : {o, reinterpret_cast<PyObject*>(Py_TYPE(o))})
      if (is_made_by_call(each, rules.was_there))
        return refuse({cat("what it makes anew in every call, a ", Py_TYPE(each)->tp_name), Fallback::eager});
  if (add_whole(o, rules)) return true;
  if (PyTuple_Check(o) && has_instance_dict(o)) return add_keyed(o, Kind::tuple, rules, leaves);
  if (PyTuple_Check(o) || PyList_CheckExact(o)) return add_sequence(o, rules, leaves);
  if (PySet_CheckExact(o) || PyFrozenSet_CheckExact(o)) return add_set(o, leaves);
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    begin(Kind::slice, o, leaves);
    return add(s->start, rules, leaves) && add(s->stop, rules, leaves) && add(s->step, rules, leaves);
  }
  if (PyDict_Check(o)) {
    PyTypeObject* layout = native_base(Py_TYPE(o));
    if (layout != &PyDict_Type && layout != &PyODict_Type && !is_defaultdict(layout)) return fail(o);  // with state of their own
    if (Py_TYPE(o) == &PyODict_Type && attributes_of(o)) return refuse({"an OrderedDict with attributes", Fallback::eager});
    return add_keyed(o, Kind::dict, rules, leaves);
  }
  if (!by_identity(o) && native_base(Py_TYPE(o)) == &PyBaseObject_Type) return add_keyed(o, Kind::object, rules, leaves);
  return fail(o);
}

// What is described as it is, or as a container that is known already. False if it is neither.
bool Form::add_whole(PyObject* o, const Rules& rules) {
  auto add_one = [&](Kind kind, ptrdiff_t index = -1) {
    Part p{kind};
    p.index = static_cast<int>(index);
    if (index < 0) p.value = Ref::borrow(o), p.type = Py_TYPE(o);
    parts_.push_back(std::move(p));
    return true;
  };
  if (is_atom(o) && !(PyType_Check(o) && !rules.results)) return add_one(Kind::constant);
  const bool was_there = rules.results && rules.was_there && rules.was_there(o);
  const bool made_here = rules.results && !was_there && !PyType_Check(o) && !PyModule_Check(o);
  if (by_identity(o) && !(made_here && (PyFunction_Check(o) || PyMethod_Check(o) || !is_enum_member(o)))) return add_one(Kind::identity);
  if (rules.results && rules.arguments) {
    auto found = std::find(rules.arguments->begin(), rules.arguments->end(), o);
    if (found != rules.arguments->end()) return add_one(Kind::argument, found - rules.arguments->begin());
  }
  if (was_there) return add_one(Kind::identity);
  auto known = containers_.find(o);
  return known != containers_.end() && add_one(Kind::repeated, known->second);
}

Part& Form::begin(Kind kind, PyObject* o, Leaves& leaves) {
  containers_.emplace(o, static_cast<int>(leaves.containers.size()));
  leaves.containers.push_back(o);
  Part p{kind};
  p.type = Py_TYPE(o);
  p.keep = Ref::borrow(reinterpret_cast<PyObject*>(p.type));
  parts_.push_back(std::move(p));
  return parts_.back();
}

bool Form::add_sequence(PyObject* o, const Rules& rules, Leaves& leaves) {
  begin(PyTuple_Check(o) ? Kind::tuple : Kind::list, o, leaves).items = static_cast<uint32_t>(PySequence_Fast_GET_SIZE(o));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
    if (!add(PySequence_Fast_GET_ITEM(o, i), rules, leaves)) return false;
  return true;
}

bool Form::add_set(PyObject* o, Leaves& leaves) {
  Ref elements = Ref::steal(PySequence_Tuple(o));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(elements.get()); ++i)
    if (PyObject* e = PyTuple_GET_ITEM(elements.get(), i); !is_atom(e)) return fail(o);
  Part& p = begin(Kind::set, o, leaves);
  p.value = std::move(elements);
  p.frozen = PyFrozenSet_CheckExact(o);
  return true;
}

// A dict by its items, and what has attributes by these.
bool Form::add_keyed(PyObject* o, Kind kind, const Rules& rules, Leaves& leaves) {
  size_t at = parts_.size();
  begin(kind, o, leaves);
  Ref keys = Ref::steal(PyList_New(0));
  std::vector<Ref> values;
  auto take = [&](PyObject* dict) {
    PyObject *k, *v;
    uint32_t n = 0;
    for (Items all(dict); all.next(k, v);) {
      if (!is_atom(k) && !PyTuple_Check(k) && !by_identity(k)) return fail(k), n;
      PyList_Append(keys.get(), k);
      values.push_back(Ref::borrow(v));
      ++n;
    }
    return n;
  };
  uint32_t items = kind == Kind::dict ? take(o) : 0, attributes = 0;
  if (kind == Kind::tuple) {
    items = static_cast<uint32_t>(PyTuple_GET_SIZE(o));
    for (uint32_t i = 0; i < items; ++i) values.push_back(Ref::borrow(PyTuple_GET_ITEM(o, i)));
  }
  if (has_instance_dict(o)) attributes = take(*cpython::dict_place(o));
  if (!problem_.empty()) return false;
  Part& p = parts_[at];
  p.items = items;
  p.attributes = attributes;
  p.value = Ref::steal(PyList_AsTuple(keys.get()));
  if (kind == Kind::object || is_defaultdict(native_base(Py_TYPE(o)))) p.slots = cpython::slots_of(Py_TYPE(o));
  auto slots = p.slots;
  for (const Ref& v : values)
    if (!add(v.get(), rules, leaves)) return false;
  for (Py_ssize_t offset : slots) {
    PyObject* v = in_slot(o, offset);
    if (!v) return fail(o);
    if (!add(v, rules, leaves)) return false;
  }
  return true;
}

bool Form::match(size_t& at, PyObject* o, Leaves& leaves) const {
  const Part& p = parts_[at++];
  switch (p.kind) {
    case Kind::tensor: {
      if (Py_TYPE(o) != p.type) return false;
      const at::Tensor& t = THPVariable_Unpack(o);
      if (t.requires_grad() != p.requires_grad || !same_attributes(p.keep.get(), attributes_of(o))) return false;
      leaves.tensors.push_back(t);
      return true;
    }
    case Kind::same: return Py_TYPE(o) == p.type && THPVariable_Unpack(o).is_same(leaves.tensors[static_cast<size_t>(p.index)]);
    case Kind::integer: {
      if (!PyLong_CheckExact(o)) return false;
      int overflow = 0;
      leaves.ints.push_back(PyLong_AsLongLongAndOverflow(o, &overflow));
      return !overflow && fits_symbols(leaves.ints.back());
    }
    case Kind::floating:
      if (!PyFloat_CheckExact(o)) return false;
      leaves.floats.push_back(PyFloat_AS_DOUBLE(o));
      return true;
    case Kind::constant: return o == p.value.get() || same_value(p.value.get(), o);
    case Kind::identity: return o == p.value.get() || (PyMethod_Check(o) && same_value(p.value.get(), o));
    case Kind::tuple: return match_tuple(p, at, o, leaves);
    case Kind::list:
      if (Py_TYPE(o) != p.type || PyList_GET_SIZE(o) != static_cast<Py_ssize_t>(p.items)) return false;
      leaves.containers.push_back(o);
      for (uint32_t i = 0; i < p.items; ++i)
        if (!match(at, PyList_GET_ITEM(o, i), leaves)) return false;
      return true;
    case Kind::set: return match_set(p, o, leaves);
    case Kind::slice: {
      if (!PySlice_Check(o)) return false;
      auto* s = reinterpret_cast<PySliceObject*>(o);
      leaves.containers.push_back(o);
      return match(at, s->start, leaves) && match(at, s->stop, leaves) && match(at, s->step, leaves);
    }
    case Kind::dict:
    case Kind::object: return match_keyed(p, at, o, leaves);
    case Kind::repeated:
      return static_cast<size_t>(p.index) < leaves.containers.size() && leaves.containers[static_cast<size_t>(p.index)] == o;
    case Kind::argument: return false;
  }
  return false;
}

bool Form::match_tuple(const Part& p, size_t& at, PyObject* o, Leaves& leaves) const {
  if (Py_TYPE(o) != p.type || PyTuple_GET_SIZE(o) != static_cast<Py_ssize_t>(p.items)) return false;
  leaves.containers.push_back(o);
  for (uint32_t i = 0; i < p.items; ++i)
    if (!match(at, PyTuple_GET_ITEM(o, i), leaves)) return false;
  if (!p.value) return true;
  PyObject *k, *v, *dict = *cpython::dict_place(o);
  if (PyDict_GET_SIZE(dict) != static_cast<Py_ssize_t>(p.attributes)) return false;
  Py_ssize_t position = 0;
  for (Py_ssize_t key = 0; PyDict_Next(dict, &position, &k, &v); ++key)
    if (!same_key(PyTuple_GET_ITEM(p.value.get(), key), k) || !match(at, v, leaves)) return false;
  return true;
}

bool Form::match_set(const Part& p, PyObject* o, Leaves& leaves) {
  if (Py_TYPE(o) != p.type || PySet_GET_SIZE(o) != PyTuple_GET_SIZE(p.value.get())) return false;
  leaves.containers.push_back(o);
  // What the program does in the order of the elements depends on that order.
  Ref elements = Ref::steal(PySequence_Tuple(o));
  return elements && same_value(elements.get(), p.value.get());
}

bool Form::match_keyed(const Part& p, size_t& at, PyObject* o, Leaves& leaves) const {
  if (Py_TYPE(o) != p.type) return false;
  leaves.containers.push_back(o);
  Py_ssize_t key = 0;
  auto agree = [&](PyObject* dict, uint32_t n) {
    if (PyDict_GET_SIZE(dict) != static_cast<Py_ssize_t>(n)) return false;
    PyObject *k, *v;
    for (Items all(dict); all.next(k, v);)
      if (!same_key(PyTuple_GET_ITEM(p.value.get(), key++), k) || !match(at, v, leaves)) return false;
    return true;
  };
  if (p.kind == Kind::dict && !agree(o, p.items)) return false;
  PyObject** place = PyType_HasFeature(p.type, Py_TPFLAGS_HEAPTYPE) ? cpython::dict_place(o) : nullptr;
  if (place && !agree(*place, p.attributes)) return false;
  for (Py_ssize_t offset : p.slots) {
    PyObject* v = in_slot(o, offset);
    if (!v || !match(at, v, leaves)) return false;
  }
  return true;
}

PyObject* Form::build(size_t& at, const Leaves& leaves) const {
  const Part& p = parts_[at++];
  switch (p.kind) {
    case Kind::tensor:
    case Kind::same: {
      Ref tensor = Ref::steal(THPVariable_Wrap(leaves.tensors[static_cast<size_t>(p.index)]));
      if (tensor && p.parameter && Py_TYPE(tensor.get()) != parameter_type()) return new_parameter(p, tensor.release());
      // What stands for an argument is of its class, which the program may ask for.
      if (tensor && p.is_argument && Py_TYPE(tensor.get()) != p.type &&
          PyObject_SetAttrString(tensor.get(), "__class__", reinterpret_cast<PyObject*>(p.type)) < 0)
        return nullptr;
      return with_attributes(std::move(tensor), p.keep.get());
    }
    case Kind::integer: {
      const c10::SymInt& s = leaves.program_ints[static_cast<size_t>(p.index)];
      if (const auto n = s.maybe_as_int()) return PyLong_FromLongLong(*n);  // large ones are on the heap
      return number_of("Int", s.toSymNode());
    }
    case Kind::floating: {
      const c10::SymFloat& s = leaves.program_floats[static_cast<size_t>(p.index)];
      if (!s.is_symbolic()) return PyFloat_FromDouble(s.expect_float());
      return number_of("Float", s.toSymNodeImpl());
    }
    case Kind::constant:
    case Kind::identity: return Ref(p.value).release();
    case Kind::argument: return Ref::borrow(leaves.containers[static_cast<size_t>(p.index)]).release();
    case Kind::tuple: return build_tuple(p, at, leaves);
    case Kind::list: {
      Ref list = Ref::steal(PyList_New(p.items));
      leaves.made.push_back(list.get());
      for (uint32_t i = 0; i < p.items; ++i) {
        PyObject* v = build(at, leaves);
        if (!v) return nullptr;
        PyList_SET_ITEM(list.get(), i, v);
      }
      return list.release();
    }
    case Kind::set: {
      PyObject* set = p.frozen ? PyFrozenSet_New(p.value.get()) : PySet_New(p.value.get());
      leaves.made.push_back(set);
      return set;
    }
    case Kind::slice: {
      size_t place = leaves.made.size();
      leaves.made.push_back(nullptr);
      Ref a = Ref::steal(build(at, leaves)), b = Ref::steal(build(at, leaves)), c = Ref::steal(build(at, leaves));
      return leaves.made[place] = a && b && c ? PySlice_New(a.get(), b.get(), c.get()) : nullptr;
    }
    case Kind::dict:
    case Kind::object: return build_keyed(p, at, leaves);
    case Kind::repeated:
      // Null while the container is being made: a tuple that holds itself.
      if (PyObject* made = leaves.made[static_cast<size_t>(p.index)]) return Ref::borrow(made).release();
      break;
  }
  PyErr_SetString(PyExc_RuntimeError, "broach: a tuple holds itself");
  return nullptr;
}

PyObject* Form::build_tuple(const Part& p, size_t& at, const Leaves& leaves) const {
  size_t place = leaves.made.size();
  leaves.made.push_back(nullptr);
  Ref tuple = Ref::steal(PyTuple_New(p.items));
  for (uint32_t i = 0; i < p.items; ++i) {
    PyObject* v = build(at, leaves);
    if (!v) return nullptr;
    PyTuple_SET_ITEM(tuple.get(), i, v);
  }
  if (p.type == &PyTuple_Type) return leaves.made[place] = tuple.release();
  Ref arguments = Ref::steal(PyTuple_Pack(1, tuple.get()));
  // As unpickling does: a class's own constructor does not run. A struct sequence is made of all its fields.
  bool of_python = native_base(p.type) == &PyTuple_Type;
  Ref made = Ref::steal(of_python ? PyTuple_Type.tp_new(p.type, arguments.get(), nullptr)
                                  : PyObject_Call(reinterpret_cast<PyObject*>(p.type), arguments.get(), nullptr));
  for (uint32_t i = 0; made && i < p.attributes; ++i) {
    Ref v = Ref::steal(build(at, leaves));
    if (!v || PyDict_SetItem(*cpython::dict_place(made.get()), PyTuple_GET_ITEM(p.value.get(), i), v.get()) < 0) return nullptr;
  }
  return leaves.made[place] = made.release();
}

PyObject* Form::build_keyed(const Part& p, size_t& at, const Leaves& leaves) const {
  Ref made;
  if (p.type == &PyDict_Type) {
    made = Ref::steal(PyDict_New());
  } else {
    // As unpickling does: the class's own constructor does not run, its attributes are set.
    static PyObject* none = PyTuple_New(0);
    newfunc make = p.kind == Kind::object ? PyBaseObject_Type.tp_new : native_base(p.type)->tp_new;
    made = Ref::steal(make(p.type, none, nullptr));
  }
  if (!made) return nullptr;
  leaves.made.push_back(made.get());
  Py_ssize_t key = 0;
  for (uint32_t i = 0; i < p.items; ++i) {
    Ref v = Ref::steal(build(at, leaves));
    PyObject* k = PyTuple_GET_ITEM(p.value.get(), key++);
    if (!v || (PyODict_Check(made.get()) ? PyODict_SetItem(made.get(), k, v.get()) : PyDict_SetItem(made.get(), k, v.get())) < 0)
      return nullptr;
  }
  PyObject** place = p.attributes ? cpython::dict_place(made.get()) : nullptr;
  for (uint32_t i = 0; i < p.attributes; ++i) {
    Ref v = Ref::steal(build(at, leaves));
    if (!v || PyDict_SetItem(*place, PyTuple_GET_ITEM(p.value.get(), key++), v.get()) < 0) return nullptr;
  }
  for (Py_ssize_t offset : p.slots) {
    PyObject* v = build(at, leaves);
    if (!v) return nullptr;
    *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(made.get()) + offset) = v;
  }
  return made.release();
}

std::vector<PyObject*> Form::roots() const {
  std::vector<PyObject*> out;
  for (const Part& p : parts_)
    if (p.kind == Kind::identity) out.push_back(p.value.get());
    else if (p.type && (p.kind == Kind::object || p.kind == Kind::dict || p.kind == Kind::tuple))
      out.push_back(reinterpret_cast<PyObject*>(p.type));
  return out;
}

int Form::traverse(visitproc visit, void* arg) const {
  for (const Part& p : parts_) {
    Py_VISIT(p.value.get());
    Py_VISIT(p.keep.get());
  }
  return 0;
}

TensorAttributes::TensorAttributes(at::TensorList tensors) {
  for (const at::Tensor& t : tensors) {
    Ref o = Ref::steal(THPVariable_Wrap(t));
    PyObject* attributes = attributes_of(o.get());
    before_.emplace_back(std::move(o), attributes ? Ref::steal(PyDict_Copy(attributes)) : Ref());
  }
}

bool TensorAttributes::changed() const {
  return std::any_of(before_.begin(), before_.end(),
                     [](const auto& b) { return !same_attributes(b.second.get(), attributes_of(b.first.get())); });
}

void TensorAttributes::put_back() const {
  for (const auto& [tensor, before] : before_) {
    if (PyObject* now = attributes_of(tensor.get())) PyDict_Clear(now);
    PyObject *key, *value;
    for (Py_ssize_t at = 0; before && PyDict_Next(before.get(), &at, &key, &value);)
      if (PyObject_SetAttr(tensor.get(), key, value) < 0) throw py::error_already_set();
  }
}

// ---- arguments ----

// Whether no tensor is there twice: a call that gives one tensor in two places is another version.
static bool are_distinct(const std::vector<at::Tensor>& tensors) {
  constexpr size_t kFew = 16;
  if (tensors.size() <= kFew) {
    for (size_t i = 1; i < tensors.size(); ++i)
      for (size_t k = 0; k < i; ++k)
        if (tensors[i].is_same(tensors[k])) return false;
    return true;
  }
  thread_local std::vector<const void*> table;  // open addressing, at most half full
  size_t size = 2 * kFew;
  while (size < 2 * tensors.size()) size *= 2;
  table.assign(size, nullptr);
  for (const at::Tensor& t : tensors) {
    const void* impl = t.unsafeGetTensorImpl();
    size_t at = (reinterpret_cast<uintptr_t>(impl) >> 4) * 0x9e3779b97f4a7c15ull >> 32;
    while (table[at &= size - 1] && table[at] != impl) ++at;
    if (std::exchange(table[at], impl)) return false;
  }
  return true;
}

bool ArgumentsForm::make(const Arguments& a, const Form::Rules& rules, Leaves& leaves) {
  positional_ = a.positional;
  names_ = Ref::borrow(a.names && PyTuple_GET_SIZE(a.names) ? a.names : nullptr);
  for (size_t i = 0; i < a.all(); ++i)
    if (!form_.add(a.values[i], rules, leaves)) return false;
  Form::Rules with_numbers = rules;  // counters change from call to call
  with_numbers.numbers = true;
  for (const StatePlace& p : places_)
    if (!form_.add(p.value(), with_numbers, leaves)) return false;
  return true;
}

bool ArgumentsForm::match(const Arguments& a, Leaves& leaves) const {
  if (a.positional != positional_) return false;
  PyObject* names = a.names && PyTuple_GET_SIZE(a.names) ? a.names : nullptr;
  if (names != names_.get() && (!names || !names_ || !same_value(names, names_.get()))) return false;
  size_t at = 0;
  for (size_t i = 0; i < a.all(); ++i)
    if (!form_.match(at, a.values[i], leaves)) return false;
  if (!all_distinct(leaves.containers)) return false;
  for (const StatePlace& p : places_)
    if (!form_.match(at, p.value(), leaves)) return false;
  return are_distinct(leaves.tensors);
}

int ArgumentsForm::traverse(visitproc visit, void* arg) const {
  for (const StatePlace& p : places_) {
    Py_VISIT(p.owner.get());
    Py_VISIT(p.key.get());
  }
  return form_.traverse(visit, arg);
}

std::vector<Ref> ArgumentsForm::build(const Leaves& leaves) const {
  std::vector<Ref> out;
  for (size_t at = 0; at < form_.parts().size();) {
    Ref v = Ref::steal(form_.build(at, leaves));
    if (!v) throw py::error_already_set();
    out.push_back(std::move(v));
  }
  return out;
}

}  // namespace broach
