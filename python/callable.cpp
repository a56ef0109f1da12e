#include "callable.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>
#include <structmember.h>

#include <algorithm>
#include <optional>

#include "ambient.h"
#include "capture.h"
#include "form.h"
#include "places.h"
#include "state.h"
#include "stats.h"
#include "support/error.h"
#include "watch.h"
#include "while_capturing.h"
#include "writes.h"

namespace py = pybind11;

namespace broach {

namespace {

constexpr size_t kMostVersions = 16;  // kept at once
constexpr int kMostCaptures = 32;     // ever
constexpr size_t kMostPlaces = 32;    // that a program writes computed values to
constexpr int kMostAttempts = 3;      // of captures that something spoils: what happens once only (a lazily filled cache) then passes

// How results are made of tensors and integers: kept by Function with each compiled version.
struct ResultForm {
  Form form;
  Writes writes;
  std::vector<size_t> places;  // numbers of those written, whose values come last in `form`
};
std::shared_ptr<ResultForm> new_result_form() {
  return std::shared_ptr<ResultForm>(new ResultForm, [](ResultForm* f) {
    py::gil_scoped_acquire gil;  // the last version may be dropped on any thread
    delete f;
  });
}

struct Callable;
class Recorded;

// A call under way on this thread.
struct Pending {
  Callable* callable;
  struct Version* version;
  Arguments arguments;
  Leaves leaves;
  Ref result;  // of a run of the program itself on the caller's own arguments
  bool captured = false, ran_eagerly = false;
  std::string rejected;  // why the capture must not be used
  bool final = false;    // no other attempt will fare better
  bool again = false;    // the next attempt knows more: where the program keeps what it computes
  bool copies = false;   // the arguments are copies: the program's own places are not to be touched
  int runs = 0;          // of the program, for this call
};
thread_local Pending* pending = nullptr;

// What the arguments of a call look like, the state that the program then read, and its compiled versions by sizes.
struct Version {
  Version(const std::vector<bool>& constant, const ProgramOptions& options)
      : function([this](at::TensorList inputs, c10::SymIntArrayRef ints,
                        c10::ArrayRef<c10::SymFloat> floats) { return run_program(inputs, ints, floats); },
                 constant, options) {}

  Function::Results run_program(at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats);
  Ref run_again(Pending& p, const Arguments& arguments, const Recorded& first);
  Function::Results described(PyObject* result, at::TensorList inputs, const std::vector<Shallow>& before,
                              const std::vector<PyObject*>& containers, const std::vector<Ref>& kept, Pending& p);

  // An argument may be a tensor or container that the program also reaches by itself: then it must be that one, as it was when
  // captured.
  bool holds_the_same(const Leaves& leaves) const;
  void note_own(const Leaves& leaves);

  ArgumentsForm form;
  bool noted_own = false;
  std::vector<const c10::TensorImpl*> own_tensors;  // for each input, null unless it was one of the state's
  std::vector<const PyObject*> own_containers;      // likewise
  uint64_t ambient = 0;
  std::unique_ptr<State> state;  // null: nothing but the arguments counts
  Function function;
};

struct Callable {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* dict;
  PyObject* weak;
  struct Data {
    Ref program, policy, fallback;
    bool strict = false;         // one attempt only
    bool guarded = true;         // false: a program without state or effects, as Dynamo hands over
    bool says_compiling = true;  // torch.compiler.is_compiling() is true in captured runs, until the program has raised because of it
    std::vector<bool> constant;
    ProgramOptions options;
    std::vector<std::shared_ptr<Version>> versions;  // the last one used first
    int captures = 0, attempts = 0;
    std::vector<StatePlace> written, places;  // where captured runs wrote once, and where they did so again: kept values
    bool busy = false;                        // some thread captures
    int64_t plain_calls = 0, fallback_calls = 0;
    int64_t verify = 0, verify_next = 0, verify_seen = 0, verified = 0;  // option; when next, of how many calls; how many were
    std::vector<std::string> reasons;
  }* data;
};

PyObject* call(PyObject* f, const Arguments& a) { return PyObject_Vectorcall(f, a.values, a.positional, a.names); }

void note(Callable::Data& d, const std::string& why) {
  if (std::find(d.reasons.begin(), d.reasons.end(), why) == d.reasons.end()) d.reasons.push_back(why);
}

// Watches torch's own switches that its Python code keeps.
void watch_torch(State& state) {
  for (auto [module, name] : {std::pair{"torch.nn.modules.module", "_global_forward_hooks"},
                              {"torch.nn.modules.module", "_global_forward_pre_hooks"},
                              {"torch.nn.modules.module", "_global_backward_hooks"},
                              {"torch.nn.modules.module", "_global_backward_pre_hooks"}}) {
    Ref m = Ref::steal(PyImport_ImportModule(module));
    Ref o = m ? Ref::steal(PyObject_GetAttrString(m.get(), name)) : Ref();
    if (o) state.watch(o.get(), cat(module, ".", name));
    else PyErr_Clear();
  }
  state.watch(THPVariableClass, "torch.Tensor");
  Ref os = Ref::steal(PyImport_ImportModule("os"));
  Ref environment = Ref::steal(PyObject_GetAttrString(os.get(), "environ"));
  Ref data = environment ? Ref::steal(PyObject_GetAttrString(environment.get(), "_data")) : Ref();
  if (data) state.watch(data.get(), "os.environ");
  else PyErr_Clear();
}

// ---- a run of the program itself ----

Ref checked(PyObject* o) {
  if (!o) throw py::error_already_set();
  return Ref::steal(o);
}

// While it lives, a run is watched; afterwards `verdict` says whether a recording of it may be used.
class Recorded {
 public:
  Recorded(Pending& p, State& state) : p_(p), state_(state), ambient_(ambient_settings()), random_(random_state()) {
    if (p.callable->data->says_compiling) compiling_.emplace();
    if (Function::is_capturing_symbols()) numbers_.emplace();
    watch_.emplace(state);
  }

  void stop() {
    PyObject *type, *value, *trace;  // of the program, which ending the watch must not lose
    PyErr_Fetch(&type, &value, &trace);
    watch_.reset();
    numbers_.reset();
    compiling_.reset();
    PyErr_Restore(type, value, trace);
  }

  std::string verdict() {
    state_.find_weakly_held();
    if (!state_.problems().empty()) {
      p_.final = true;
      return state_.problems().front();
    }
    if (!watch_effects_.empty()) return watch_effects_.front();
    if (auto changed = state_.changes(); !changed.empty()) return written(changed);
    if (ambient_settings() != ambient_) return "changes a setting of torch";
    if (PyObject_RichCompareBool(random_.get(), random_state().get(), Py_EQ) != 1) return "draws numpy's random numbers";
    return invisible_work();
  }

  // What a program writes once it may not write again (a cache that is filled); what it writes again is to be repeated.
  std::string written(const std::vector<State::Change>& changes) {
    auto& d = *p_.callable->data;
    std::vector<StatePlace> found;
    for (const State::Change& c : changes) {
      auto place = state_.place_of(c);
      if (!place) return cat("writes ", c.path, state_.is_deque(c) ? ", a deque" : "");
      if (std::find(found.begin(), found.end(), *place) == found.end()) found.push_back(std::move(*place));
    }
    auto contains = [](const std::vector<StatePlace>& in, const StatePlace& p) { return std::find(in.begin(), in.end(), p) != in.end(); };
    for (StatePlace& place : found) {
      if (contains(d.places, place) || d.places.size() >= kMostPlaces) return cat("writes ", place.path);
      (contains(d.written, place) ? d.places : d.written).push_back(place);
    }
    p_.again = true;
    return cat("writes ", changes.front().path);
  }

  // Numpy's functions are of a kind that the interpreter does not tell about.
  static Ref random_state() {
    static PyObject* ask = py::object(py::module_::import("broach._codes").attr("numpy_random_state")).release().ptr();
    return checked(PyObject_CallNoArgs(ask));
  }

  // A program that can tell its stand-ins from numbers may have gone another way than with these.
  void must_not_tell_numbers() const {
    static PyObject* find = py::object(py::module_::import("broach._codes").attr("asks_for_type_of_number")).release().ptr();
    for (PyCodeObject* code : state_.codes()) {
      if (owner_of_file(code->co_filename) != Owner::user) continue;
      Ref found = checked(PyObject_CallFunctionObjArgs(find, code, nullptr));
      if (PyUnicode_GetLength(found.get()) > 0) unsupported(std::string(py::reinterpret_borrow<py::str>(found.get())));
    }
  }

  // What the bytecode that ran does to tensors without an operation's showing it.
  std::string invisible_work() const {
    static PyObject* find = py::object(py::module_::import("broach._codes").attr("invisible")).release().ptr();
    for (PyCodeObject* code : state_.codes()) {
      if (owner_of_file(code->co_filename) != Owner::user) continue;
      Ref found = checked(PyObject_CallFunctionObjArgs(find, code, nullptr));
      if (PyUnicode_GetLength(found.get()) > 0) return py::reinterpret_borrow<py::str>(found.get());
    }
    return "";
  }

  // Whether the program knows that it is compiled, and has done nothing that its end does not undo.
  bool has_only_asked() const { return asked_ && watch_effects_.empty(); }

  void finish() {
    watch_effects_ = watch_->effects();
    asked_ = watch_->asked_whether_compiling();
    stop();
  }

 private:
  Pending& p_;
  State& state_;
  uint64_t ambient_;
  Ref random_;
  std::optional<Compiling> compiling_;
  std::optional<StandingNumbers> numbers_;
  std::optional<Watch> watch_;
  std::vector<std::string> watch_effects_;
  bool asked_ = false;
};

// No other attempt will fare better.
void reject(Pending& p, std::string why) {
  if (p.rejected.empty()) p.rejected = std::move(why);
  p.final = true;
}

bool are(at::TensorList a, const std::vector<at::Tensor>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

bool Version::holds_the_same(const Leaves& leaves) const {
  for (size_t i = 0; i < own_tensors.size(); ++i) {
    auto* t = leaves.tensors[i].unsafeGetTensorImpl();
    if (t != own_tensors[i] && (own_tensors[i] || state->holds_tensor(t))) return false;
  }
  for (size_t i = 0; i < own_containers.size(); ++i) {
    PyObject* o = leaves.containers[i];
    if (o != own_containers[i] && (own_containers[i] || state->knows(o))) return false;
  }
  return true;
}

void Version::note_own(const Leaves& leaves) {
  noted_own = true;
  for (const at::Tensor& t : leaves.tensors)
    own_tensors.push_back(state->holds_tensor(t.unsafeGetTensorImpl()) ? t.unsafeGetTensorImpl() : nullptr);
  for (size_t i = 0; i < form.containers(); ++i)
    own_containers.push_back(state->knows(leaves.containers[i]) ? leaves.containers[i] : nullptr);
}

// A program that raised may do so only because `torch.compiler.is_compiling()` was true: if nothing shows its first run, it
// gets another one, and the next capture does without. Throws what it raises.
Ref Version::run_again(Pending& p, const Arguments& arguments, const Recorded& first) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  bool& says = p.callable->data->says_compiling;
  if (!type || !says || !first.has_only_asked() || Function::is_capturing_symbols() || Capture::current()->has_written() ||
      !state->changes().empty()) {
    PyErr_Restore(type, value, trace);
    throw py::error_already_set();
  }
  std::string error = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
  Ref result = checked(call(p.callable->data->program.get(), arguments));
  p.rejected = cat("raises ", error, " while torch.compiler.is_compiling() is true");
  p.again = true;
  says = false;
  return result;
}

Function::Results Version::run_program(at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats) {
  py::gil_scoped_acquire gil;
  Pending& p = *pending;
  p.rejected.clear();  // of an attempt with symbols for sizes
  if (p.runs++ > 0 && state && !state->restore())
    throw Error("broach: what the program changed in a run that did not bear symbols for sizes cannot be put back");
  p.final = false;
  p.again = false;
  bool own = !p.copies && !Function::is_capturing_symbols() && are(inputs, p.leaves.tensors) &&
             std::equal(ints.begin(), ints.end(), p.leaves.ints.begin(), p.leaves.ints.end(),
                        [](const c10::SymInt& a, int64_t b) { return !a.is_heap_allocated() && a.as_int_unchecked() == b; }) &&
             std::none_of(floats.begin(), floats.end(), [](const c10::SymFloat& f) { return f.is_symbolic(); });
  std::vector<Ref> replaced;
  std::vector<PyObject*> values, containers = p.leaves.containers;
  Arguments arguments = p.arguments;
  std::optional<KeptPlaces> places;
  if (!own) {
    Leaves given;
    given.tensors = inputs.vec();
    given.program_ints.assign(ints.begin(), ints.end());
    given.program_floats.assign(floats.begin(), floats.end());
    replaced = form.build(given);
    for (const Ref& r : replaced) values.push_back(r.get());
    arguments.values = values.data();
    containers = given.made;
    places.emplace(form.places());
    for (size_t i = 0; i < form.places().size(); ++i) {
      const StatePlace& place = form.places()[i];
      PyObject* made = values[arguments.all() + i];
      if (!place.set(made)) throw py::error_already_set();
      if (place.kind == StatePlace::Kind::whole) std::replace(containers.begin(), containers.end(), made, place.owner.get());
    }
  }
  std::vector<Ref> kept;
  for (const StatePlace& place : form.places()) kept.push_back(Ref::borrow(place.value()));
  struct Restore {  // what a run on stand-ins or copies wrote comes from its results
    std::optional<KeptPlaces>& places;
    ~Restore() {
      if (places) places->swap_back();
    }
  } restore{places};
  PyObject* program = p.callable->data->program.get();
  if (!Capture::current()) {
    p.ran_eagerly = true;
    p.result = checked(call(program, arguments));
    return {};
  }
  p.captured = true;
  std::vector<Shallow> before(containers.begin(), containers.end());
  TensorAttributes attributes(inputs);
  Ref result;
  if (state) {
    Recorded recorded(p, *state);
    Capture::current()->set_places([this](const at::Tensor& t) { return found(*state, t); }, is_in_hand);
    result = Ref::steal(call(program, arguments));
    recorded.finish();
    if (result && Function::is_capturing_symbols()) recorded.must_not_tell_numbers();
    if (!result) result = run_again(p, arguments, recorded);
    else p.rejected = recorded.verdict();
  } else {
    result = checked(call(program, arguments));
  }
  if (state && attributes.changed()) reject(p, "writes an attribute of a tensor that it is given");
  Function::Results out = described(result.get(), inputs, before, containers, kept, p);
  if (!p.rejected.empty()) Function::reject_capture(p.rejected);
  else if (state) state->stamp();
  if (state && !noted_own) note_own(p.leaves);
  else if (state && !holds_the_same(p.leaves))
    Function::reject_capture(p.rejected = "is given a tensor or container that it also reads by itself");
  if (own) p.result = std::move(result);
  return out;
}

// The program's results, and what it wrote into its arguments, as tensors and integers with their form.
Function::Results Version::described(PyObject* result, at::TensorList inputs, const std::vector<Shallow>& before,
                                     const std::vector<PyObject*>& containers, const std::vector<Ref>& kept, Pending& p) {
  Function::Results out;
  auto made = new_result_form();
  Form::Rules rules;
  rules.results = true;
  rules.any_tensor = !state;
  if (state) rules.was_there = [this](PyObject* o) { return state->knows(o); };
  rules.arguments = &containers;
  rules.given = inputs;
  Leaves leaves;
  if (!made->form.add(result, rules, leaves)) {
    reject(p, cat("returns ", made->form.problem()));
  } else if (!made->writes.find(before, made->form, rules, leaves)) {
    reject(p, cat("writes ", made->form.problem(), " into an argument"));
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    const StatePlace& place = form.places()[i];
    if (same_value(kept[i].get(), place.value())) continue;
    made->places.push_back(i);
    if (!made->form.add(place.value(), rules, leaves)) reject(p, cat("writes ", made->form.problem(), " to ", place.path));
  }
  out.tensors = std::move(leaves.tensors);
  out.ints = std::move(leaves.program_ints);
  out.floats = std::move(leaves.program_floats);
  out.form = std::move(made);
  return out;
}

// ---- calls ----

// Runs a version; afterwards `p` says what happened.
PyObject* run(Pending& p) {
  Pending* before = std::exchange(pending, &p);
  Function::Results results;
  HANDLE_TH_ERRORS
  try {
    py::gil_scoped_release release;
    results = p.version->function({p.leaves.tensors, p.leaves.ints, p.leaves.floats});
  } catch (const IndexError& e) {
    pending = before;
    PyErr_SetString(PyExc_IndexError, e.what());
    return nullptr;
  } catch (...) {
    pending = before;
    throw;
  }
  pending = before;
  if (p.result) return p.result.release();
  Leaves leaves;
  leaves.tensors = std::move(results.tensors);
  leaves.program_ints = std::move(results.ints);
  leaves.program_floats = std::move(results.floats);
  leaves.containers = std::move(p.leaves.containers);
  size_t at = 0;
  const auto& made = *static_cast<const ResultForm*>(results.form.get());
  Ref result = Ref::steal(made.form.build(at, leaves));
  if (!result || !made.writes.apply(made.form, at, leaves, leaves.containers)) return nullptr;
  for (size_t i : made.places) {
    Ref value = Ref::steal(made.form.build(at, leaves));
    if (!value || !p.version->form.places()[i].set(value.get())) return nullptr;
  }
  return result.release();
  END_HANDLE_TH_ERRORS
}

// No more attempts: the policy says what runs from now on, or raises.
bool give_up(Callable& c, const std::string& why) {
  auto& d = *c.data;
  note(d, why);
  PyObject* fallback = PyObject_CallMethod(d.policy.get(), "give_up", "s", why.c_str());
  if (!fallback) return false;
  d.fallback = Ref::steal(fallback);
  d.versions.clear();
  return true;
}

PyObject* call_plainly(Callable& c, const Arguments& a) {
  ++c.data->plain_calls;
  return call(c.data->program.get(), a);
}

// What follows from a call that captured. False with a Python error.
bool after_capture(Callable& c, Pending& p, const std::shared_ptr<Version>& v) {
  auto& d = *c.data;
  ++d.captures;
  auto drop = [&] { d.versions.erase(std::remove(d.versions.begin(), d.versions.end(), v), d.versions.end()); };
  if (!d.guarded) return true;
  std::string why = p.rejected;
  bool last = p.final;
  if (std::string failure = v->function.stats().capture_failure; !failure.empty() && failure != why) {
    if (why.empty() || d.strict) why = failure;
    last = true;
  }
  if (why.empty()) {
    d.attempts = 0;
    return true;
  }
  drop();
  if (!last && p.again) return true;
  note(d, why);
  if (!last && !d.strict && ++d.attempts < kMostAttempts) return true;
  return give_up(c, why);
}

// Where a version would fit but for numbers of the state that the caller has changed (a learning rate, a step count), they are
// given to the versions to come like arguments.
void find_changed_numbers(Callable::Data& d, const Arguments& a) {
  auto is_number = [](const Ref& r) { return r && (PyFloat_CheckExact(r.get()) || PyLong_CheckExact(r.get())); };
  for (const auto& v : d.versions) {
    Leaves leaves;
    if (!v->state || !v->form.match(a, leaves)) continue;
    std::vector<StatePlace> found;
    std::vector<State::Change> changes = v->state->changes();
    for (const State::Change& change : changes) {
      auto place = is_number(change.before) && is_number(change.now) && Py_TYPE(change.before.get()) == Py_TYPE(change.now.get())
                       ? v->state->place_of(change)
                       : std::nullopt;
      if (place && place->kind != StatePlace::Kind::whole) found.push_back(std::move(*place));
    }
    if (found.size() != changes.size() || d.places.size() + found.size() > kMostPlaces) continue;
    for (StatePlace& place : found)
      if (std::find(d.places.begin(), d.places.end(), place) == d.places.end()) d.places.push_back(std::move(place));
    return;
  }
}

// A call that fits no version.
PyObject* call_anew(Callable& c, const Arguments& a) {
  auto& d = *c.data;
  if (d.busy) return call_plainly(c, a);
  if (d.guarded) find_changed_numbers(d, a);
  auto v = std::make_shared<Version>(d.constant, d.options);
  Pending p;
  p.callable = &c;
  p.version = v.get();
  p.arguments = a;
  Form::Rules rules;
  rules.numbers = true;
  rules.any_tensor = !d.guarded;
  if (d.guarded) v->form.set_places(d.places);
  bool described = v->form.make(a, rules, p.leaves);
  if (!described && !d.guarded) return call_plainly(c, a);
  if (!described || (d.guarded && d.captures >= kMostCaptures)) {
    std::string why = v->form.form().problem().empty() ? cat("more than ", kMostCaptures, " captures would be needed")
                                                       : cat("is given ", v->form.form().problem());
    if (!give_up(c, why)) return nullptr;
    return call(d.fallback.get(), a);
  }
  if (d.guarded) {
    v->ambient = ambient_settings();
    v->state = std::make_unique<State>();
    for (const StatePlace& place : d.places) v->state->leave_out(place);
    v->state->watch(d.program.get(), PyFunction_Check(d.program.get()) ? "" : "self");
    for (PyObject* root : v->form.form().roots()) v->state->watch(root, "an argument");
    watch_torch(*v->state);
  }
  d.busy = true;
  Ref result = Ref::steal(run(p));
  d.busy = false;
  if (!result) return nullptr;
  if (p.captured || !d.guarded) {
    if (d.versions.size() >= kMostVersions && d.guarded) d.versions.pop_back();
    d.versions.insert(d.versions.begin(), v);
    if (!after_capture(c, p, v)) return nullptr;
  } else if (v->function.stats().eager_reasons.empty() == false) {
    // Gradients are needed by an argument: nothing was captured, and nothing is to be checked next time but the arguments.
    if (d.versions.size() >= kMostVersions) d.versions.pop_back();
    v->state->stamp();
    d.versions.insert(d.versions.begin(), v);
  }
  return result.release();
}

// ---- the option `verify` ----

bool must_verify(Callable::Data& d) {
  if (!d.verify || ++d.verify_seen < d.verify_next) return false;
  d.verify_next = d.verify_seen < d.verify ? d.verify_seen + 1 : 2 * d.verify_seen;
  return true;
}

Ref tuple_of(const Arguments& a, const std::vector<Ref>& more) {
  Ref out = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(a.all() + more.size())));
  for (size_t i = 0; i < more.size(); ++i) PyTuple_SET_ITEM(out.get(), a.all() + i, Ref(more[i]).release());
  for (size_t i = 0; i < a.all(); ++i) PyTuple_SET_ITEM(out.get(), i, Ref::borrow(a.values[i]).release());
  return out;
}

// Runs a version on copies of the arguments, then the program itself on the real ones, and compares. The caller gets eager's.
PyObject* run_verified(Callable& c, Pending& p, const std::shared_ptr<Version>& v) {
  HANDLE_TH_ERRORS
  auto& d = *c.data;
  py::object trial = py::module_::import("broach._verify").attr("Trial")(p.leaves.tensors, v->state->tensors());
  Leaves given;
  given.tensors = trial.attr("copies").cast<std::vector<at::Tensor>>();
  given.program_ints.assign(p.leaves.ints.begin(), p.leaves.ints.end());
  given.program_floats.assign(p.leaves.floats.begin(), p.leaves.floats.end());
  std::vector<Ref> built = v->form.build(given);
  std::vector<PyObject*> values;
  for (const Ref& b : built) values.push_back(b.get());
  Pending q;
  q.callable = &c;
  q.version = v.get();
  q.arguments = {values.data(), p.arguments.positional, p.arguments.names};
  q.leaves.tensors = given.tensors;
  q.leaves.ints = p.leaves.ints;
  q.leaves.floats = p.leaves.floats;
  q.leaves.containers = given.made;
  q.copies = true;
  KeptPlaces places(v->form.places());
  Ref got = Ref::steal(run(q));
  std::string error;
  if (!got) {
    py::error_already_set e;
    error = cat("raises ", e.what());
  }
  std::vector<std::string> written = v->state->written();
  trial.attr("rewind")();
  std::vector<Ref> tried = places.swap_back(), now;
  if (q.captured && got && !after_capture(c, q, v)) return nullptr;
  Ref want = Ref::steal(call(d.program.get(), p.arguments));
  if (q.captured) return want.release();
  ++d.verified;
  std::optional<py::error_already_set> raised;
  if (!want) raised.emplace();
  std::string why = error;
  if (want && got) {
    for (const StatePlace& place : v->form.places()) now.push_back(Ref::borrow(place.value()));
    for (size_t i = 0; i < tried.size(); ++i)  // a list as a whole: the trial wrote to its copy
      if (v->form.places()[i].kind == StatePlace::Kind::whole) tried[i] = built[p.arguments.all() + i];
    py::tuple mine = py::reinterpret_steal<py::tuple>(tuple_of(p.arguments, now).release()),
              copies = py::reinterpret_steal<py::tuple>(tuple_of(q.arguments, tried).release());
    why = trial.attr("difference")(py::handle(want.get()), py::handle(got.get()), mine, copies).cast<std::string>();
  } else if (!want && got) {
    why = cat("the program raises ", raised->what());
  } else if (!want) {
    why.clear();  // both raise
  }
  if (!why.empty()) {
    std::string changed;
    v->state->holds(&changed);
    d.fallback = Ref::borrow(py::object(py::reinterpret_borrow<py::object>(d.policy.get()).attr("differs")(why, changed, written)).ptr());
    note(d, cat("differs from eager: ", why));
    d.versions.clear();
  }
  if (raised) throw *raised;
  return want.release();
  END_HANDLE_TH_ERRORS
}

PyObject* call_callable(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  auto& c = *reinterpret_cast<Callable*>(self);
  auto& d = *c.data;
  Arguments a{args, static_cast<size_t>(PyVectorcall_NARGS(flags)), names};
  if (must_run_plainly()) return call_plainly(c, a);
  if (d.fallback) {
    ++d.fallback_calls;
    return call(d.fallback.get(), a);
  }
  uint64_t ambient = d.guarded ? ambient_settings() : 0;
  Pending p;
  p.callable = &c;
  p.arguments = a;
  for (size_t i = 0; i < d.versions.size(); ++i) {
    std::shared_ptr<Version> v = d.versions[i];
    p.leaves.clear();
    if (v->ambient != ambient || !v->form.match(a, p.leaves) || !v->holds_the_same(p.leaves)) continue;
    if (v->state && !v->state->holds(nullptr)) continue;
    if (i > 0 && i < d.versions.size())
      std::rotate(d.versions.begin(), d.versions.begin() + static_cast<std::ptrdiff_t>(i),
                  d.versions.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    p.version = v.get();
    if (v->state && must_verify(d)) return run_verified(c, p, v);
    Ref result = Ref::steal(run(p));
    if (result && p.captured && !after_capture(c, p, v)) return nullptr;
    if (result && p.ran_eagerly && !p.captured && d.guarded && !d.fallback)
      if (std::string why = v->function.stats().capture_failure; !why.empty() && !give_up(c, why)) return nullptr;
    return result.release();
  }
  return call_anew(c, a);
}

// ---- the type ----

PyObject* new_callable(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"program", "policy", "constant", "options", "guarded", nullptr};
  PyObject *program, *policy, *constant, *options;
  int guarded;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOp", const_cast<char**>(keywords), &program, &policy, &constant, &options, &guarded))
    return nullptr;
  HANDLE_TH_ERRORS
  auto data = std::make_unique<Callable::Data>();
  data->program = Ref::borrow(program);
  data->policy = Ref::borrow(policy);
  data->guarded = guarded;
  Ref full = Ref::steal(PyObject_GetAttrString(policy, "fullgraph"));
  PyErr_Clear();
  data->strict = full && full.get() == Py_True;
  for (auto each : py::reinterpret_borrow<py::object>(constant)) data->constant.push_back(each.cast<bool>());
  if (auto given = py::reinterpret_borrow<py::dict>(options); given.contains("verify")) data->verify = given["verify"].cast<int64_t>();
  data->options = options_from(py::reinterpret_borrow<py::dict>(options));
  auto* c = reinterpret_cast<Callable*>(type->tp_alloc(type, 0));
  if (!c) return nullptr;
  c->vectorcall = &call_callable;
  c->dict = PyDict_New();
  c->data = data.release();
  return reinterpret_cast<PyObject*>(c);
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  auto* c = reinterpret_cast<Callable*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(c->dict);
  if (!c->data) return 0;
  Py_VISIT(c->data->program.get());
  Py_VISIT(c->data->policy.get());
  Py_VISIT(c->data->fallback.get());
  for (const auto* places : {&c->data->written, &c->data->places})
    for (const StatePlace& p : *places) {
      Py_VISIT(p.owner.get());
      Py_VISIT(p.key.get());
    }
  for (const auto& v : c->data->versions) {
    if (v->state)
      if (int stop = v->state->traverse(visit, arg)) return stop;
    if (int stop = v->form.traverse(visit, arg)) return stop;
  }
  return 0;
}

int clear(PyObject* self) {
  auto* c = reinterpret_cast<Callable*>(self);
  Py_CLEAR(c->dict);
  if (c->data) {
    // What this destroys may come back here.
    auto versions = std::exchange(c->data->versions, {});
    auto written = std::exchange(c->data->written, {}), places = std::exchange(c->data->places, {});
    Ref program = std::exchange(c->data->program, Ref::borrow(Py_None)), policy = std::exchange(c->data->policy, Ref::borrow(Py_None)),
        fallback = std::exchange(c->data->fallback, Ref());
  }
  return 0;
}

void deallocate(PyObject* self) {
  auto* c = reinterpret_cast<Callable*>(self);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (c->weak) PyObject_ClearWeakRefs(self);
  clear(self);
  delete std::exchange(c->data, nullptr);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_descriptor(PyObject* self, PyObject* object, PyObject*) {
  if (!object || object == Py_None) return Ref::borrow(self).release();
  return PyMethod_New(self, object);
}

Callable::Data& data_of(PyObject* self) { return *reinterpret_cast<Callable*>(self)->data; }

PyObject* stats(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto& d = data_of(self);
  std::vector<Function*> functions;
  py::list state;
  for (const auto& v : d.versions) {
    functions.push_back(&v->function);
    if (v->state) state.append(py::cast(v->state->describe()));
  }
  py::dict s = stats_of(functions);
  s["plain_calls"] = d.plain_calls;
  s["fallback_calls"] = d.fallback_calls;
  s["captures"] = d.captures;
  s["verified"] = d.verified;
  s["reasons"] = d.reasons;
  py::list places;
  for (const StatePlace& p : d.places) places.append(p.path);
  s["places"] = places;
  s["state"] = state;
  s["settled"] = !d.guarded || d.fallback || !d.versions.empty();
  s["front"] = !d.guarded ? "dynamo" : d.fallback ? "fallback" : "native";
  return s.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* reset(PyObject* self, PyObject*) {
  auto& d = data_of(self);
  auto versions = std::exchange(d.versions, {});
  Ref fallback = std::exchange(d.fallback, Ref());
  d.captures = d.attempts = 0;
  d.says_compiling = true;
  d.written.clear();
  d.places.clear();
  d.reasons.clear();
  Py_RETURN_NONE;
}

PyObject* reduce(PyObject* self, PyObject*) { return PyObject_CallMethod(data_of(self).policy.get(), "reduce", "O", self); }
PyObject* represent(PyObject* self) { return PyUnicode_FromFormat("<broach compiled %R>", data_of(self).program.get()); }

PyObject* get_program(PyObject* self, void*) { return Ref(data_of(self).program).release(); }
PyObject* get_policy(PyObject* self, void*) { return Ref(data_of(self).policy).release(); }
PyObject* get_fallback(PyObject* self, void*) {
  auto& f = data_of(self).fallback;
  return f ? Ref(f).release() : Ref::borrow(Py_None).release();
}

PyMethodDef kMethods[] = {{"stats", stats, METH_NOARGS, nullptr},
                          {"reset", reset, METH_NOARGS, nullptr},
                          {"__reduce__", reduce, METH_NOARGS, nullptr},
                          {nullptr, nullptr, 0, nullptr}};
PyGetSetDef kFields[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                         {"program", get_program, nullptr, nullptr, nullptr},
                         {"policy", get_policy, nullptr, nullptr, nullptr},
                         {"fallback", get_fallback, nullptr, nullptr, nullptr},
                         {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMemberDef kMembers[] = {{"__dictoffset__", T_PYSSIZET, offsetof(Callable, dict), READONLY, nullptr},
                          {"__weaklistoffset__", T_PYSSIZET, offsetof(Callable, weak), READONLY, nullptr},
                          {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, vectorcall), READONLY, nullptr},
                          {nullptr, 0, 0, 0, nullptr}};

// ---- the type's making ----

template <class F>
void* slot(F* f) {
  return reinterpret_cast<void*>(f);
}

PyObject* make_type() {
  static PyType_Slot slots[] = {{Py_tp_new, slot(&new_callable)},
                                {Py_tp_call, slot(&PyVectorcall_Call)},
                                {Py_tp_traverse, slot(&traverse)},
                                {Py_tp_clear, slot(&clear)},
                                {Py_tp_dealloc, slot(&deallocate)},
                                {Py_tp_descr_get, slot(&get_descriptor)},
                                {Py_tp_methods, kMethods},
                                {Py_tp_getset, kFields},
                                {Py_tp_members, kMembers},
                                {Py_tp_repr, slot(&represent)},
                                {0, nullptr}};
  static PyType_Spec spec{"broach_ext._C.Callable", sizeof(Callable), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  return PyType_FromSpec(&spec);
}

}  // namespace

void add_callable_type(py::module_& m) {
  m.attr("Callable") = py::reinterpret_steal<py::object>(make_type());
  using Strings = std::unordered_set<std::string>;
  m.def("set_library", [](std::string own, std::string torch, std::vector<std::string> folders, Strings modules) {
    set_library({std::move(own), std::move(torch), std::move(folders), std::move(modules)});
  });
  m.def("set_native_functions", [](Strings pure, Strings answers, Strings impure, Strings libraries, Strings operators) {
    set_native_functions({std::move(pure), std::move(answers), std::move(impure), std::move(libraries), std::move(operators)});
  });
  m.def("set_native_types", [](Strings values, Strings stateless, Strings makers) {
    set_native_types({std::move(values), std::move(stateless), std::move(makers)});
  });
  m.def("set_unwatched", &set_unwatched);
}

}  // namespace broach
