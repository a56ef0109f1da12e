// What stands in classes and modules of Python's while programs are captured, so that what a program may ask of a number knows those that stand
// for others (_numbers.py), a checkpoint runs once (_checkpoint.py), and so on.
#pragma once

#include <pybind11/pybind11.h>

namespace broach {

// `stand_ins`, by name: for what the owner, a class or module, has or inherits now. To be told once for each owner and group, when the
// package is imported.
void add_stand_ins(const std::string& group, const pybind11::object& owner, const pybind11::dict& stand_ins);

// While one of these lives, those of its group are in place: but where somebody else, as a test that mocks a function, has put something there,
// before or meanwhile. Several threads may capture at once, of which the first begins it and the last ends it. All of it happens without running
// code of Python's, within which another thread or a signal's handler could run. Needs the interpreter's lock.
class StandIns {
 public:
  explicit StandIns(const char* group);
  ~StandIns();
  StandIns(const StandIns&) = delete;
  StandIns& operator=(const StandIns&) = delete;

 private:
  struct Group;
  friend void add_stand_ins(const std::string& group, const pybind11::object& owner, const pybind11::dict& stand_ins);
  static Group& group(const std::string& name);
  Group& group_;
};

}  // namespace broach
