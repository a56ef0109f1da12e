// How Python values are made of tensors, integers and constants: what a call's arguments must look like for a compiled
// version, and how its results are put together again.
#pragma once

#include "attempts.h"
#include "places.h"
#include "reference.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymFloat.h>
#include <c10/core/SymInt.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace broach {

// One value in preorder, its parts behind it.
struct Part {
  enum class Kind : uint8_t {
    tensor,    // number `index`
    same,      // tensor number `index` once more
    integer,   // number `index`: may differ from call to call
    floating,  // likewise
    constant,  // `value` or one equal to it
    identity,  // exactly `value`; what it holds is watched
    tuple,
    list,
    dict,
    object,  // an instance of a Python class, by its attributes
    slice,
    set,       // of numbers, strings and the like: `value` is a tuple of them, in their order
    argument,  // in results: container number `index` of the arguments
    repeated,  // container number `index` once more
  };
  explicit Part(Kind kind) : kind(kind) {}

  Kind kind;
  bool requires_grad = false;
  bool frozen = false;       // set: a frozenset
  bool parameter = false;    // tensor, in results: an nn.Parameter
  bool is_argument = false;  // tensor, of one of torch's own classes
  int index = -1;
  uint32_t items = 0, attributes = 0;
  PyTypeObject* type = nullptr;  // kept alive by `value` or by `keep`
  Ref value;                     // constant, or the keys of items and then attributes
  std::vector<Py_ssize_t> slots;
  Ref keep;  // tensor: its attributes, if it has any
};

// What matching or flattening collects.
struct Leaves {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::vector<c10::SymInt> program_ints;  // what the program is given, and its results
  std::vector<c10::SymFloat> program_floats;
  std::vector<PyObject*> containers;    // borrowed
  mutable std::vector<PyObject*> made;  // by `build`, borrowed, in the order of `containers`
  void clear() { tensors.clear(), ints.clear(), floats.clear(), program_ints.clear(), program_floats.clear(), containers.clear(); }
};

class Form {
 public:
  // How flattening decides about what it cannot know itself.
  struct Rules {
    bool numbers = false;                               // ints and floats become parts that may differ
    bool any_tensor = false;                            // tensors of every Python type
    bool results = false;                               // symbolic numbers too; whole objects by the maps below
    std::function<bool(PyObject*)> was_there;           // results: an object that exists independently of the call
    const std::vector<PyObject*>* arguments = nullptr;  // results: the containers of the arguments
    at::TensorList given;                               // results: the tensors of the arguments
  };

  // Adds a value. False if it has a part that cannot be described; `problem` says which.
  bool add(PyObject* o, const Rules& rules, Leaves& leaves);
  bool match(size_t& at, PyObject* o, Leaves& leaves) const;
  // A new reference, or null with a Python error.
  PyObject* build(size_t& at, const Leaves& leaves) const;

  // Says that a value cannot be described; false.
  bool refuse(PyObject* o) { return fail(o); }
  bool refuse(Reason why) {
    if (problem_.empty()) problem_ = std::move(why);
    return false;
  }

  const std::vector<Part>& parts() const { return parts_; }
  const Reason& problem() const { return problem_; }
  // The same for what is no result: the code of the call runs, whatever it is given and keeps.
  Reason problem_beside_results() const {
    return {problem_.text, problem_.fallback == Fallback::nothing ? Fallback::eager : problem_.fallback};
  }
  // Objects matched by identity: what they hold is part of the state.
  std::vector<PyObject*> roots() const;
  int traverse(visitproc visit, void* arg) const;

 private:
  bool add_tensor(PyObject* o, const Rules& rules, Leaves& leaves);
  bool add_number(PyObject* o, const Rules& rules, Leaves& leaves);
  bool add_whole(PyObject* o, const Rules& rules);
  bool add_sequence(PyObject* o, const Rules& rules, Leaves& leaves);
  bool add_set(PyObject* o, Leaves& leaves);
  bool add_keyed(PyObject* o, Part::Kind kind, const Rules& rules, Leaves& leaves);
  Part& begin(Part::Kind kind, PyObject* o, Leaves& leaves);  // a container
  bool fail(PyObject* o);
  bool match_tuple(const Part& p, size_t& at, PyObject* o, Leaves& leaves) const;
  static bool match_set(const Part& p, PyObject* o, Leaves& leaves);
  bool match_keyed(const Part& p, size_t& at, PyObject* o, Leaves& leaves) const;
  PyObject* build_tuple(const Part& p, size_t& at, const Leaves& leaves) const;
  PyObject* build_keyed(const Part& p, size_t& at, const Leaves& leaves) const;

  std::vector<Part> parts_;
  std::unordered_map<PyObject*, int> containers_;
  std::unordered_map<const void*, int> tensors_;
  Reason problem_;
};

// The arguments of a call as vectorcall gives them.
struct Arguments {
  PyObject* const* values;
  size_t positional;
  PyObject* names;  // null or a tuple

  size_t all() const { return positional + (names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0); }
};

// Attributes that Python code gave tensors, to find those that a program gives them.
class TensorAttributes {
 public:
  explicit TensorAttributes(at::TensorList tensors);
  bool changed() const;
  void put_back() const;

 private:
  std::vector<std::pair<Ref, Ref>> before_;  // a tensor and a copy of its attributes, null for none
};

class ArgumentsForm {
 public:
  // Places whose values are matched and made behind the arguments; to be set before `make`.
  void set_places(std::vector<StatePlace> places) { places_ = std::move(places); }
  const std::vector<StatePlace>& places() const { return places_; }
  bool make(const Arguments& a, const Form::Rules& rules, Leaves& leaves);
  bool match(const Arguments& a, Leaves& leaves) const;
  // The arguments, and values for the places, made of other tensors and integers: in order.
  std::vector<Ref> build(const Leaves& leaves) const;
  const Form& form() const { return form_; }
  PyObject* names() const { return names_.get(); }
  size_t positional() const { return positional_; }
  int traverse(visitproc visit, void* arg) const;

 private:
  Form form_;
  size_t positional_ = 0;
  Ref names_;
  std::vector<StatePlace> places_;
};

}  // namespace broach
