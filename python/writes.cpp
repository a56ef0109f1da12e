#include "writes.h"

#include <algorithm>

#include "cpython.h"
#include "state.h"

namespace broach {

namespace {

PyObject* instance_dict(PyObject* o) {
  if (!PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_HEAPTYPE)) return nullptr;
  PyObject** place = cpython::dict_place(o);
  return place ? *place : nullptr;
}

PyObject*& slot_at(PyObject* o, Py_ssize_t offset) { return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + offset); }

bool may_have_slots(PyObject* o) {
  return PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_HEAPTYPE) ? !PyTuple_Check(o) : PyDict_Check(o) && !PyDict_CheckExact(o);
}

}  // namespace

Shallow::Shallow(PyObject* o) : object(o), type(Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(o)))) {
  if (PyList_Check(o)) items = Ref::steal(PyList_GetSlice(o, 0, PyList_GET_SIZE(o)));
  if (PyDict_Check(o)) items = Ref::steal(PyDict_Copy(o));
  if (PyDict_Check(o)) read_elements(o, order);
  if (PySet_Check(o)) items = Ref::steal(PyFrozenSet_New(o));
  if (PyObject* dict = instance_dict(o)) attributes = Ref::steal(PyDict_Copy(dict));
  if (may_have_slots(o))
    for (Py_ssize_t offset : cpython::slots_of(Py_TYPE(o))) slots.push_back(Ref::borrow(slot_at(o, offset)));
}

// What a comparison of the program's raises is no answer.
static bool are_equal(PyObject* a, PyObject* b) {
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool keeps_order(PyObject* dict, std::vector<Ref> before) {
  std::vector<Ref> now;
  read_elements(dict, now);
  std::erase_if(before, [&](const Ref& k) { return PyDict_Contains(dict, k.get()) != 1; });
  return before.size() <= now.size() &&
         std::equal(before.begin(), before.end(), now.begin(), [](const Ref& a, const Ref& b) { return are_equal(a.get(), b.get()); });
}

bool Writes::find_in_dict(PyObject* now, PyObject* before, int container, Write::Kind set, Write::Kind remove, Form& form,
                          const Form::Rules& rules, Leaves& leaves) {
  PyObject *k, *v;
  for (Py_ssize_t at = 0; PyDict_Next(before, &at, &k, &v);)
    if (!PyDict_Contains(now, k)) writes_.push_back({remove, container, Ref::borrow(k)});
  std::vector<Ref> keys;
  read_elements(now, keys);
  for (const Ref& key : keys) {
    k = key.get(), v = PyDict_GetItemWithError(now, k);
    PyObject* old = PyDict_GetItemWithError(before, k);
    if (old && same_value(old, v)) continue;
    writes_.push_back({set, container, Ref::borrow(k)});
    if (!form.add(v, rules, leaves)) return false;
  }
  return true;
}

bool Writes::find(const std::vector<Shallow>& before, Form& form, const Form::Rules& rules, Leaves& leaves) {
  for (size_t i = 0; i < before.size(); ++i) {
    const Shallow& b = before[i];
    auto container = static_cast<int>(i);
    if (PyList_Check(b.object)) {
      Py_ssize_t n = PyList_GET_SIZE(b.object);
      bool same = n == PyList_GET_SIZE(b.items.get());
      for (Py_ssize_t k = 0; same && k < n; ++k) same = same_value(PyList_GET_ITEM(b.object, k), PyList_GET_ITEM(b.items.get(), k));
      if (same) continue;
      writes_.push_back({Write::Kind::elements, container, {}, n});
      for (Py_ssize_t k = 0; k < n; ++k)
        if (!form.add(PyList_GET_ITEM(b.object, k), rules, leaves)) return false;
      continue;
    }
    if (PySet_Check(b.object) && !are_equal(b.object, b.items.get())) return form.refuse(b.object);
    if (reinterpret_cast<PyObject*>(Py_TYPE(b.object)) != b.type.get()) return form.refuse({"another class", Fallback::eager});
    if (PyDict_Check(b.object) && !keeps_order(b.object, b.order)) return form.refuse({"items in another order", Fallback::eager});
    if (PyDict_Check(b.object) &&
        !find_in_dict(b.object, b.items.get(), container, Write::Kind::item, Write::Kind::no_item, form, rules, leaves))
      return false;
    if (b.attributes && !find_in_dict(instance_dict(b.object), b.attributes.get(), container, Write::Kind::attribute,
                                      Write::Kind::no_attribute, form, rules, leaves))
      return false;
    if (b.slots.empty()) continue;
    auto offsets = cpython::slots_of(Py_TYPE(b.object));
    for (size_t k = 0; k < offsets.size(); ++k) {
      PyObject* v = slot_at(b.object, offsets[k]);
      if (same_value(b.slots[k].get(), v)) continue;
      writes_.push_back({Write::Kind::slot, container, {}, offsets[k]});
      if (!form.add(v ? v : Py_None, rules, leaves)) return false;
    }
  }
  return true;
}

bool Writes::apply(const Form& form, size_t& at, const Leaves& leaves, const std::vector<PyObject*>& containers) const {
  for (const Write& w : writes_) {
    PyObject* o = containers[static_cast<size_t>(w.container)];
    if (w.kind == Write::Kind::elements) {
      Ref list = Ref::steal(PyList_New(w.at));
      for (Py_ssize_t k = 0; k < w.at; ++k) {
        PyObject* v = form.build(at, leaves);
        if (!v) return false;
        PyList_SET_ITEM(list.get(), k, v);
      }
      if (PyList_SetSlice(o, 0, PyList_GET_SIZE(o), list.get()) < 0) return false;
      continue;
    }
    if (w.kind == Write::Kind::no_item) {
      if ((PyODict_Check(o) ? PyODict_DelItem(o, w.key.get()) : PyDict_DelItem(o, w.key.get())) < 0) return false;
      continue;
    }
    if (w.kind == Write::Kind::no_attribute) {
      if (PyDict_DelItem(instance_dict(o), w.key.get()) < 0) return false;
      continue;
    }
    Ref v = Ref::steal(form.build(at, leaves));
    if (!v) return false;
    if (w.kind == Write::Kind::slot) {
      Ref old = Ref::steal(slot_at(o, w.at));
      slot_at(o, w.at) = v.release();
    } else if (w.kind == Write::Kind::attribute) {
      if (PyDict_SetItem(instance_dict(o), w.key.get(), v.get()) < 0) return false;
    } else if ((PyODict_Check(o) ? PyODict_SetItem(o, w.key.get(), v.get()) : PyDict_SetItem(o, w.key.get(), v.get())) < 0) {
      return false;
    }
  }
  return true;
}

}  // namespace broach
