// Watches a program while it is captured: which of the user's code runs (its globals and closures are then part of the state)
// and whether anything happens that running a trace would not repeat.
#pragma once

#include "reference.h"
#include "state.h"

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace broach {

// Which functions written in C change nothing and depend on their arguments only. Names are "module.function" and
// "Type.method"; a module's or type's name alone stands for all of it.
struct PureNames {
  std::unordered_set<std::string> pure, impure;
};
void set_pure_names(PureNames names);

// For its lifetime the thread's calls are watched. Needs the GIL.
class Watch {
 public:
  explicit Watch(State& state);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Why a trace cannot stand for the run; empty if it can.
  const std::vector<std::string>& effects() const { return effects_; }

 private:
  static int on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* argument);
  void on_call(PyFrameObject* frame);
  void on_torch_call(PyFrameObject* frame, PyCodeObject* code);
  void on_builtin(PyFrameObject* frame, PyObject* function, bool raised);
  Owner owner(PyCodeObject* code);
  struct Verdict {
    bool pure, torch;
    std::string name;
  };
  const Verdict& judge(PyObject* function);
  void effect(PyFrameObject* frame, const std::string& what);
  void abandon(PyFrameObject* frame);
  int end_program();

  State& state_;
  std::unordered_map<PyCodeObject*, Owner> owners_;
  std::unordered_map<PyMethodDef*, Verdict> verdicts_;
  std::unordered_set<PyCodeObject*> torch_codes_;
  std::vector<std::string> effects_;
  std::vector<Ref> keep_;
  Py_tracefunc before_ = nullptr;
  Ref before_argument_;
  PyCodeObject* line_code_ = nullptr;
  int line_ = 0;
  bool abandoned_ = false, ends_ = false;  // the capture; the program, by an error
};

}  // namespace broach
