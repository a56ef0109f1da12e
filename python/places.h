// Where a program keeps what it computes from call to call: an attribute, a dict item, a global, a closure variable, a list, a tensor's
// gradient.
// Such a place is given to the compiled version like an argument, and written back like a result.
#pragma once

#include <string>
#include <vector>

#include "reference.h"

namespace broach {

struct StatePlace {
  enum class Kind : uint8_t { item, cell, whole, tail, gradient };
  Kind kind;
  Ref owner;  // a dict, a cell, a list as a whole or only what is appended to it, or a leaf of autograd's
  Ref key;    // item
  std::string path;
  std::vector<std::string> names;  // tail: by which code finds the list, a variable or an attribute, and perhaps a key of what that holds

  // What is there, borrowed; a marker if there is nothing. None for a tail, of which nothing is read.
  PyObject* value() const;
  // False with a Python error. A list gets the elements of the given one, a tail gets them behind its own.
  bool set(PyObject* value) const;
  // Of a list, the elements from one on.
  Ref since(Py_ssize_t length) const { return Ref::steal(PyList_GetSlice(owner.get(), length, PyList_GET_SIZE(owner.get()))); }
  Py_ssize_t length() const { return kind == Kind::tail ? PyList_GET_SIZE(owner.get()) : 0; }
  friend bool operator==(const StatePlace& a, const StatePlace& b) { return a.owner.get() == b.owner.get() && a.key.get() == b.key.get(); }
};

// The values of places, to be put back.
class KeptPlaces {
 public:
  explicit KeptPlaces(const std::vector<StatePlace>& places);
  // What is there now; the values of before are there again afterwards.
  std::vector<Ref> swap_back();

 private:
  const std::vector<StatePlace>& places_;
  std::vector<Ref> values_;
  std::vector<Py_ssize_t> lengths_;  // of tails
};

}  // namespace broach
