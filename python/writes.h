// What a program writes into the containers it is given (a list, a dict, an object such as a key-value cache): found by
// comparing them before and after the captured run, described like results, and done again after each compiled run.
#pragma once

#include "form.h"

namespace broach {

// One container as it was before the run.
struct Shallow {
  explicit Shallow(PyObject* o);
  PyObject* object;
  Ref type;
  Ref items;       // of a list or dict: a copy
  Ref attributes;  // a copy of the instance dict
  std::vector<Ref> slots;
  std::vector<Ref> order;  // of a dict: its keys, which the copy of an OrderedDict has in another order
};

// Whether a dict's keys are those of before that are left, in their order, and then new ones: setting and removing items gives no other order.
bool keeps_order(PyObject* dict, std::vector<Ref> before);

struct Write {
  enum class Kind : uint8_t { elements, item, attribute, slot, no_item, no_attribute };
  Kind kind;
  int container;      // number among the arguments' containers
  Ref key;            // of items and attributes
  Py_ssize_t at = 0;  // elements: how many; slot: its offset
};

class Writes {
 public:
  // Compares containers with what they were, and adds what was written to `form` behind what it has. False if a written
  // value cannot be described; the form says why.
  bool find(const std::vector<Shallow>& before, Form& form, const Form::Rules& rules, Leaves& leaves);
  // Does them again. `at` is where the form's values for them begin. False with a Python error.
  bool apply(const Form& form, size_t& at, const Leaves& leaves, const std::vector<PyObject*>& containers) const;
  bool empty() const { return writes_.empty(); }

 private:
  bool find_in_dict(PyObject* now, PyObject* before, int container, Write::Kind set, Write::Kind remove, Form& form,
                    const Form::Rules& rules, Leaves& leaves);
  std::vector<Write> writes_;
};

}  // namespace broach
