// What is known of Python's classes: whose they are, which are written in C, and what may be assumed of those.
//
// An object of a Python class consists of its attributes, which can be watched. What an object of a class written in C consists
// of cannot be seen, so such a class is admitted by its own name only, after its source was read.
#pragma once

#include <Python.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace broach {

// Whose code, module or class something is. `own` is Broach's package, whose frames are none of a program's.
enum class Owner { user, torch, library, own };
bool is_in_packages(std::string_view path);  // installed ones, which are the user's
Owner owner_of_file(PyObject* filename);
Owner owner_of_module(std::string_view name);
Owner owner_of_type(PyTypeObject* type);
// Folders and module names that are not the user's; set once by the package.
struct Library {
  std::string own_folder, torch_folder;
  std::vector<std::string> folders;
  std::unordered_set<std::string> modules;
};
void set_library(Library library);

bool is_heap(PyTypeObject* type);
// The class, or the nearest of its bases, that no class statement made: it lays out the instances, and acts on them by itself.
PyTypeObject* native_base(PyTypeObject* type);

// Names of types written in C; set once by the package.
struct NativeTypes {
  std::unordered_set<std::string> values;     // instances never change; what they refer to is part of them
  std::unordered_set<std::string> stateless;  // what a program computes does not depend on an instance: locks
  std::unordered_set<std::string> makers;     // what making an instance gives depends on the arguments only
};
void set_native_types(NativeTypes types);
bool is_numpy_scalar(PyTypeObject* type);
// Of types that `native_base` gives.
bool is_value_type(PyTypeObject* native);
bool is_stateless_type(PyTypeObject* native);
bool may_be_made(PyTypeObject* native);

// Whether a value can never change: numbers, strings, types of elements and the like, and tuples of them are not included.
bool is_atom(PyObject* o);
// Identical, or atoms that are equal in all their parts, tuples or bound methods of such.
bool same_value(PyObject* a, PyObject* b);

// Attributes and globals of a library that its results do not depend on (a cache of compiled patterns): by the class's or module's
// name; set once by the package.
void set_unwatched(std::unordered_map<std::string, std::unordered_set<std::string>> names);
const std::unordered_set<std::string>* unwatched_of(std::string_view owner);

// Text of a str, empty for anything else.
std::string_view text_of(PyObject* s);
// Whether code mentions one of these as a global, a builtin or an attribute.
bool names_any(PyCodeObject* code, std::initializer_list<std::string_view> names);

}  // namespace broach
