// Watches a program while it is captured: which of the user's code runs (its globals and closures are then part of the state)
// and whether anything happens that running a trace would not repeat.
#pragma once

#include "engine_on_this_thread.h"
#include "reference.h"
#include "state.h"
#include "while_capturing.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace broach {

// What is known of functions written in C, each by its own name: "module.function" or "Type.method".
struct NativeFunctions {
  std::unordered_set<std::string> pure;          // change nothing but their arguments, and depend on these only
  std::unordered_set<std::string> answers;       // depend on something besides, which can be asked again: it is compared on each call
  std::unordered_set<std::string> impure;        // whoever calls them; the name of a module or type stands for all of it
  std::unordered_set<std::string> of_libraries;  // called by Python's own library and torch, whose use of them leaves nothing behind
  std::unordered_set<std::string> operators;     // of torch: each call is an operation that is recorded
  std::unordered_set<std::string> eager;         // functions and types, likewise: Dynamo is known to answer otherwise than eager there
  std::unordered_set<std::string> optimizers;    // functions of torch/optim, by file and name, whose calls are seen as any other code's
  std::unordered_map<std::string, std::string> told;  // written in Python, with their modules: are told in every run that it is compiled
};
void set_native_functions(NativeFunctions functions);
// Who may run a program instead that calls a native function, or names a type, of this name.
Fallback fallback_for(const std::string& name);

// For its lifetime the thread's calls are watched. Needs the GIL.
class Watch {
 public:
  // `program`: for what gradients run, the state of the program that they are of. It leaves nothing behind: it ends before it has an effect.
  // `tells`: some code of libraries is told that it is compiled. `runs_again`: the program does, on the caller's own arguments, if this
  // run has an effect, and so it must end before.
  explicit Watch(State& state, const State* program = nullptr, bool tells = false, bool runs_again = false);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Why a trace cannot stand for the run; empty if it can.
  const std::vector<Reason>& effects() const { return effects_; }
  // Whether the error that is set is the end of a run, which had no effect.
  static bool has_ended() { return PyErr_Occurred() && PyErr_ExceptionMatches(end_of_program()); }
  // Whether the program has asked whether it is compiled, and was told no; and nobody asked who computes something else where it is.
  bool asked_whether_compiling() const { return asked_ && !computes_otherwise_; }
  // Symbols stand for numbers that it is given, which `is` tells apart. Of sizes no program asks so.
  void must_not_compare_numbers() { has_numbers_ = true; }
  // The program is over: what its frames still run, as they go, is watched, and ends by no error.
  void let_run() { lets_run_ = true; }
  // Whether the run was to end by an error, which code that catches errors may have lost.
  bool was_ended() const { return was_ended_; }
  // Whether code that only saves work by knowing was told yes.
  bool has_told_compiling() const { return has_told_; }
  // Whether the user's code has asked how a tensor lies in memory.
  bool goes_by_layout() const { return goes_by_layout_; }
  // The error by which runs on stand-ins end: programs do not catch it with others. Borrowed.
  static PyObject* end_of_program();

 private:
  static int on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* argument);
  void on_call(PyFrameObject* frame);
  void on_operation(PyFrameObject* frame);
  void on_own_call(PyFrameObject* frame, PyCodeObject* code);
  void tell_compiling(PyFrameObject* frame, PyCodeObject* code);
  bool is_called_by_user(PyFrameObject* frame);
  static bool is_called_by_encoder(PyFrameObject* frame);
  void on_library_call(PyFrameObject* frame, PyCodeObject* code);
  bool watch_processes(std::string_view function, std::string_view file);
  void on_torch_call(PyFrameObject* frame, PyCodeObject* code);
  void on_register_hook(PyFrameObject* frame);
  void on_backward(PyFrameObject* frame);
  void watch_logger(PyFrameObject* frame);
  void watch_hooks_of_state(PyFrameObject* frame);
  void watch_arguments(PyFrameObject* frame, PyCodeObject* code);
  void look_at_identity(PyFrameObject* frame, PyCodeObject* code, PyObject* globals);
  void on_builtin(PyFrameObject* frame, PyObject* function, bool raised);
  void set_line(PyFrameObject* frame, PyCodeObject* code);
  Owner owner(PyCodeObject* code);
  struct Verdict {
    enum class Kind { pure, answer, unknown, impure } kind;
    bool torch;
    std::string name;
  };
  const Verdict& judge(PyObject* function);
  void step_aside(PyFrameObject* frame, const std::string& function);
  // `first`: it decides what runs the program instead.
  void effect(PyFrameObject* frame, const Reason& what, bool first = false);
  void abandon(PyFrameObject* frame);
  bool is_leaving(PyFrameObject* frame, PyObject* function);
  void end_if_in_vain();
  static bool is_ending();
  int end_program();

  State& state_;
  std::unordered_map<PyCodeObject*, Owner> owners_;
  std::unordered_map<PyMethodDef*, Verdict> verdicts_;
  std::unordered_set<PyCodeObject*> torch_codes_;
  std::vector<Reason> effects_;
  bool asked_ = false, has_told_ = false, computes_otherwise_ = false, goes_by_layout_ = false;
  const bool tells_;
  PyFrameObject* told_ = nullptr;       // of code that is being told
  std::optional<Compiling> compiling_;  // meanwhile
  const State* program_;                // of gradients; null: the program itself is watched
  const bool ends_on_effects_;          // as a run on stand-ins does, too
  const bool runs_again_;
  bool has_numbers_ = false;
  std::optional<EngineOnThisThread> engine_;  // since it runs code of the program's own
  std::vector<Ref> keep_;
  Py_tracefunc before_ = nullptr;
  Ref before_argument_;
  PyCodeObject* line_code_ = nullptr;
  int line_ = 0;
  bool abandoned_ = false, ends_ = false;  // the capture; the program, by an error
  bool was_ended_ = false, lets_run_ = false;
  const void* caller_ = nullptr;  // the frame that calls the program
  // What is about to be called does something that others see, which no block that the error leaves has to do: the run has done nothing
  // that they see.
  bool is_seen_outside_ = false;
};

}  // namespace broach
