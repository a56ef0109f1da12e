// Signals, whose handlers in Python may raise within any code of Python's that the main thread runs.
#pragma once

#include <Python.h>

#include <pthread.h>
#include <csignal>

#include "reference.h"

namespace broach {

// While it lives no signal reaches this thread: its handler in Python would run within code of ours, and what it raises be lost there. Another
// thread may take one meanwhile, whose handler runs as soon as this one runs code of Python's: see `undisturbed`.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

  // Runs the handlers of those that came before. False with what one of them raised.
  static bool run_handlers() { return PyErr_CheckSignals() == 0; }

 private:
  sigset_t before_;
};

// The signal whose handler has raised this, or called what has; 0 if it is none of a handler's, or this is not the main thread, which runs them.
int signal_of(PyObject* error);

// Raises the exception in the main thread as soon as that runs code of Python's, as a signal's handler does.
void raise_later(Ref exception);

// What `call` gives, a new reference, which calls code of ours in Python and can be repeated; null with its error. What the handler of a signal
// raises within comes again behind it.
template <class Call>
Ref undisturbed(Call call) {
  Ref result = Ref::steal(call());
  if (result) return result;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) PyException_SetTraceback(value, trace);
  if (!value || signal_of(value) == 0) return PyErr_Restore(type, value, trace), result;
  const Ref held[] = {Ref::steal(type), Ref::steal(trace)};
  result = Ref::steal(call());
  raise_later(Ref::steal(value));
  return result;
}

}  // namespace broach
