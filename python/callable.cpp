#include "callable.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>

#include <pybind11/stl.h>
#include <structmember.h>

#include <algorithm>
#include <optional>

#include "ambient.h"
#include "stats.h"
#include "support/error.h"
#include "support/log.h"
#include "version.h"
#include "watch.h"

namespace py = pybind11;

namespace broach {

namespace {

constexpr size_t kMostVersions = 16;  // kept at once
constexpr int kMostCaptures = 32;     // ever
constexpr int kMostOfPart = 8;        // where the program around it was given up
struct Callable {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* dict;
  PyObject* weak;
  struct Data {
    Subject subject;
    Ref policy, fallback;
    bool only_with_gradients = false;  // the fallback: calls without them may be compiled
    bool strict = false;               // one attempt only
    bool guarded = true;               // false: a program without state or effects, as Dynamo hands over
    std::vector<bool> constant;
    ProgramOptions options;
    std::vector<std::shared_ptr<Version>> versions;  // the last one used first
    int captures = 0, spoilt = 0;                    // in a row
    bool busy = false;                               // some thread captures
    bool is_part = false;                            // of a program that was given up
    int most_captures() const { return is_part ? kMostOfPart : kMostCaptures; }
    int64_t plain_calls = 0, fallback_calls = 0;
    int64_t verify = 0, verify_next = 0, verify_seen = 0, verified = 0;  // option; when next, of how many calls; how many were
    std::vector<std::string> reasons;
  }* data;
};

PyObject* call(PyObject* f, const Arguments& a) { return PyObject_Vectorcall(f, a.values, a.positional, a.names); }

void note(Callable::Data& d, const std::string& why) {
  if (std::find(d.reasons.begin(), d.reasons.end(), why) == d.reasons.end()) d.reasons.push_back(why);
}

// ---- calls ----

// Whether calls under these settings go to what runs in the program's place.
bool has_given_up(const Callable::Data& d) { return d.fallback && (!d.only_with_gradients || at::GradMode::is_enabled()); }

// No more attempts: the policy says what runs from now on, or raises. What is refused for what the program computes, and not for what its
// code does, may be refused for its gradients.
bool give_up(Callable& c, const Reason& why, Outcome outcome = Outcome::rejected) {
  auto& d = *c.data;
  note(d, why.text);
  d.subject.is_known = true;
  PyObject* fallback = PyObject_CallMethod(d.policy.get(), "give_up", "ss", why.text.c_str(), name_of(why.fallback));
  if (!fallback) return false;
  d.fallback = Ref::steal(fallback);
  const bool is_of_front = outcome == Outcome::rejected || outcome == Outcome::spoilt || outcome == Outcome::learnt;
  const Ref is_eager = Ref::steal(PyObject_GetAttrString(d.policy.get(), "runs_eagerly"));
  if (!is_eager) return false;
  d.only_with_gradients = !is_of_front && at::GradMode::is_enabled() && is_eager.get() == Py_True;
  d.versions.clear();
  return true;
}

// The containers that a call is given; nothing where that cannot be told.
std::optional<std::vector<PyObject*>> containers_of(const Arguments& a) {
  Form::Rules rules;
  rules.numbers = true;
  Leaves leaves;
  if (ArgumentsForm().make(a, rules, leaves)) return std::move(leaves.containers);
  return std::nullopt;
}

PyObject* call_plainly(Callable& c, const Arguments& a) {
  auto& d = *c.data;
  ++d.plain_calls;
  const bool is_alone = !d.guarded || (!d.busy && d.versions.empty());
  const Turns::OwnCode turn(d.subject.objects(is_alone ? std::nullopt : containers_of(a)));
  return call(d.subject.program.get(), a);
}

// False with a Python error.
bool find_parts(Callable& c, const Version& v) {
  auto& d = *c.data;
  if (!d.guarded || d.subject.in_parts || !v.function.leaves_gradients()) return true;
  d.subject.in_parts = Ref::steal(PyObject_CallMethod(d.policy.get(), "in_parts", nullptr));
  return static_cast<bool>(d.subject.in_parts);
}

// Whether a version that ran eagerly may be tried again, or else something runs from now on. False with a Python error.
bool goes_on(Callable& c, const Version& v) {
  Reason why = v.function.failure();
  return why.empty() ? find_parts(c, v) : give_up(c, why, Outcome::unsupported);
}

// What follows from a call that captured. False with a Python error.
bool after_capture(Callable& c, Pending& p, const std::shared_ptr<Version>& v) {
  auto& d = *c.data;
  ++d.captures;
  if (!d.guarded) return true;
  Verdict verdict = p.verdict;
  if (Reason failure = v->function.failure(); !failure.empty() && failure.text != verdict.reason.text) {
    if (verdict.is_good() || d.strict) verdict.reason = std::move(failure);
    verdict.outcome = Outcome::unsupported;
  }
  if (verdict.is_good()) {
    d.subject.is_known = true;
    d.spoilt = 0;
    return find_parts(c, *v);
  }
  std::erase(d.versions, v);
  // Of a part, what happens once has happened before: the program has run.
  const int before = d.spoilt + d.is_part;
  const char* because = d.strict && verdict.outcome == Outcome::spoilt ? nullptr : why_anew(verdict.outcome, before);
  if (verdict.outcome != Outcome::learnt) note(d, verdict.reason.text);
  if (!because) return give_up(c, verdict.reason, verdict.outcome);
  d.spoilt += verdict.outcome == Outcome::spoilt;
  log_info("captured anew with the next call: ", because);
  return true;
}

// Where a version would fit but for numbers of the state that the caller has changed (a learning rate, a step count), they are
// given to the versions to come like arguments.
void find_changed_numbers(Callable::Data& d, const Arguments& a) {
  for (const auto& v : d.versions) {
    Leaves leaves;
    if (!v->state || !v->form.match(a, leaves)) continue;
    std::vector<StatePlace> found;
    std::vector<State::Change> changes = v->state->changes();
    for (const State::Change& change : changes) {
      auto place = are_numbers_alike(change.before.get(), change.now.get()) ? v->state->place_of(change) : std::nullopt;
      if (place && place->kind != StatePlace::Kind::whole) found.push_back(std::move(*place));
    }
    auto& places = d.subject.places;
    if (found.size() != changes.size() || !d.subject.has_room(found.size())) continue;
    for (StatePlace& place : found)
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(std::move(place));
    return;
  }
}

// A call that fits no version. `waited`: for another thread, and nothing was done.
PyObject* call_anew(Callable& c, const Arguments& a, bool& waited) {
  auto& d = *c.data;
  if (d.busy || cpython::is_finalizing()) return call_plainly(c, a);
  Pending p;  // what it keeps alive goes after the turns
  // Before anything is looked at.
  const Turns::Objects objects = d.subject.objects(d.guarded ? containers_of(a) : std::nullopt);
  std::optional<Turns::OwnCode> own;
  std::optional<Turns::Compiled> alone;
  if (!d.subject.written.empty() && !d.subject.reaches_lock) {
    const Turns::May may = Turns::get().ask(objects);
    waited = may == Turns::May::waited;
    if (waited) return nullptr;
    if (may == Turns::May::not_now) return call_plainly(c, a);
    alone.emplace(objects, true);
  } else {
    own.emplace(objects);
    if (d.busy) return call_plainly(c, a);
  }
  if (d.guarded) find_changed_numbers(d, a);
  auto v = std::make_shared<Version>(d.subject, d.constant, d.options);
  if (d.subject.has_checkpoints) v->function.keep_inputs_apart();  // see Version::run_program
  p.subject = &d.subject;
  p.version = v.get();
  p.arguments = a;
  Form::Rules rules;
  rules.numbers = true;
  rules.any_tensor = !d.guarded;
  p.since = own ? &*own : nullptr;
  if (d.guarded) v->form.set_places(d.subject.places);
  bool described = v->form.make(a, rules, p.leaves);
  if (!described && !d.guarded) return call_plainly(c, a);
  if (!described || (d.guarded && d.captures >= d.most_captures())) {
    // Dynamo would compile again and again, too, and each time for seconds.
    Reason why = described ? Reason(cat("more than ", d.most_captures(), " captures would be needed"), Fallback::eager)
                           : v->form.form().problem_beside_results().within("is given ");
    alone.reset();  // what runs now may wait for others
    return give_up(c, why) ? call(d.fallback.get(), a) : nullptr;
  }
  if (d.guarded) v->watch(d.subject);
  d.busy = true;
  Ref result = Ref::steal(v->run(p));
  d.busy = false;
  if (!result) return nullptr;
  const bool captured = p.ran == Pending::Ran::captured || !d.guarded;
  const bool in_vain = p.runs > 1;  // recorded, undone and run eagerly: the next attempt is made with what this one found
  if (!captured && !in_vain && v->function.stats().eager_reasons.empty()) return result.release();
  // Where gradients are needed by an argument nothing was captured, and nothing is to be checked next time but the arguments.
  if (!captured) v->state->stamp();
  if (d.versions.size() >= kMostVersions && d.guarded) d.versions.pop_back();
  d.versions.insert(d.versions.begin(), v);
  if (captured ? !after_capture(c, p, v) : !goes_on(c, *v)) return nullptr;
  return result.release();
}

// ---- the option `verify` ----

// Not where hooks, as those of a checkpoint around the call, would see what both runs save for gradients.
bool must_verify(Callable::Data& d) {
  if (!d.verify || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty() || ++d.verify_seen < d.verify_next) return false;
  d.verify_next = d.verify_seen < d.verify ? d.verify_seen + 1 : 2 * d.verify_seen;
  return true;
}

Ref tuple_of(const Arguments& a, const std::vector<Ref>& more) {
  Ref out = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(a.all() + more.size())));
  for (size_t i = 0; i < more.size(); ++i) PyTuple_SET_ITEM(out.get(), a.all() + i, Ref(more[i]).release());
  for (size_t i = 0; i < a.all(); ++i) PyTuple_SET_ITEM(out.get(), i, Ref::borrow(a.values[i]).release());
  return out;
}

void give_up_differing(Callable::Data& d, Version& v, const std::string& why, const std::vector<std::string>& written) {
  std::string changed;
  v.reads_the_same(&changed);
  d.fallback = Ref::borrow(py::object(py::reinterpret_borrow<py::object>(d.policy.get()).attr("differs")(why, changed, written)).ptr());
  d.only_with_gradients = false;
  note(d, cat("differs from eager: ", why));
  d.versions.clear();
}

// Runs a version on copies of the arguments, then the program itself on the real ones, and compares. The caller gets eager's. `ran`: false
// where no compiled code stands for the call, for which nothing was done then.
PyObject* run_verified(Callable& c, Pending& p, const std::shared_ptr<Version>& v, bool& ran) {
  HANDLE_TH_ERRORS
  auto& d = *c.data;
  const Turns::OwnCode turn(d.subject.objects(p.leaves.containers));
  py::object trial = py::module_::import("broach._verify").attr("Trial")(p.leaves.tensors, v->state->tensors());
  Leaves given;
  given.tensors = trial.attr("copies").cast<std::vector<at::Tensor>>();
  given.program_ints.assign(p.leaves.ints.begin(), p.leaves.ints.end());
  given.program_floats.assign(p.leaves.floats.begin(), p.leaves.floats.end());
  std::vector<Ref> built = v->form.build(given);
  std::vector<PyObject*> values;
  for (const Ref& b : built) values.push_back(b.get());
  Pending q;
  q.subject = &d.subject;
  q.version = v.get();
  q.arguments = {values.data(), p.arguments.positional, p.arguments.names};
  q.leaves.tensors = given.tensors;
  q.leaves.ints = p.leaves.ints;
  q.leaves.floats = p.leaves.floats;
  q.leaves.containers = given.made;
  q.copies = q.is_trial = true;
  KeptPlaces places(v->form.places());
  Ref got = Ref::steal(v->run(q));
  std::string error;
  if (PyErr_Occurred()) {
    py::error_already_set e;
    error = cat("raises ", e.what());
  }
  std::vector<std::string> written = v->state->written();
  trial.attr("rewind")();
  std::vector<Ref> tried = places.swap_back(), now;
  ran = q.ran != Pending::Ran::nothing;
  if (!ran) {
    d.verify_next = d.verify_seen + 1;  // the next call instead
    return nullptr;
  }
  Ref want = Ref::steal(call(d.subject.program.get(), p.arguments));
  ++d.verified;
  std::optional<py::error_already_set> raised;
  if (!want) raised.emplace();
  std::string why = error;
  if (want && got) {
    for (const StatePlace& place : v->form.places()) now.push_back(Ref::borrow(place.value()));
    for (size_t i = 0; i < tried.size(); ++i)  // a list as a whole: the trial wrote to its copy
      if (v->form.places()[i].kind == StatePlace::Kind::whole) tried[i] = built[p.arguments.all() + i];
      else if (v->form.places()[i].kind == StatePlace::Kind::tail) tried[i] = Ref::borrow(now[i].get());
    py::tuple mine = py::reinterpret_steal<py::tuple>(tuple_of(p.arguments, now).release()),
              copies = py::reinterpret_steal<py::tuple>(tuple_of(q.arguments, tried).release());
    why = trial.attr("difference")(py::handle(want.get()), py::handle(got.get()), mine, copies).cast<std::string>();
  } else if (!want && got) {
    why = cat("the program raises ", raised->what());
  } else if (!want) {
    why.clear();  // both raise
  }
  if (!why.empty()) give_up_differing(d, *v, why, written);
  if (raised) throw *raised;
  return want.release();
  END_HANDLE_TH_ERRORS
}

// `waited`: for another thread, and nothing was done.
PyObject* call_compiled(Callable& c, const Arguments& a, bool& waited, bool verifies = true) {
  auto& d = *c.data;
  const AmbientSettings ambient = d.guarded ? ambient_settings() : AmbientSettings();
  Pending p;
  p.subject = &d.subject;
  p.arguments = a;
  for (size_t i = 0; i < d.versions.size(); ++i) {
    std::shared_ptr<Version> v = d.versions[i];
    p.leaves.clear();
    if (!v->fits(a, ambient, p.leaves)) continue;
    if (auto writes = v->writes(p.leaves)) {
      const Turns::May may = Turns::get().ask(*writes);
      waited = may == Turns::May::waited;
      if (waited) return nullptr;
      if (may == Turns::May::not_now) return call_plainly(c, a);
      p.turn.emplace(std::move(*writes));  // before the state is compared
    }
    if (!v->reads_the_same(nullptr)) {
      p.turn.reset();
      continue;
    }
    if (i > 0 && i < d.versions.size())
      std::rotate(d.versions.begin(), d.versions.begin() + static_cast<std::ptrdiff_t>(i),
                  d.versions.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    p.version = v.get();
    if (verifies && v->state && must_verify(d)) {
      p.turn.reset();
      bool ran = true;
      PyObject* verified = run_verified(c, p, v, ran);
      return ran ? verified : call_compiled(c, a, waited, false);
    }
    Ref result = Ref::steal(v->run(p));
    p.turn.reset();
    if (result && p.ran == Pending::Ran::captured && !after_capture(c, p, v)) return nullptr;
    if (result && p.ran == Pending::Ran::eagerly && d.guarded && !has_given_up(d) && !goes_on(c, *v)) return nullptr;
    return result.release();
  }
  return call_anew(c, a, waited);
}

PyObject* call_callable(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  auto& c = *reinterpret_cast<Callable*>(self);
  auto& d = *c.data;
  Arguments a{args, static_cast<size_t>(PyVectorcall_NARGS(flags)), names};
  for (;;) {
    if (must_run_plainly()) {  // within a recording, perhaps on a thread of the engine's that the recording's turn waits for
      ++d.plain_calls;
      return call(d.subject.program.get(), a);
    }
    Turns::get().wait_for_stand_ins([&] { return d.subject.objects(std::nullopt); });
    if (has_given_up(d)) {
      ++d.fallback_calls;
      const Turns::OwnCode turn(d.subject.objects(std::nullopt));  // a compiled call may be under way
      return call(d.fallback.get(), a);
    }
    bool waited = false;
    PyObject* result = call_compiled(c, a, waited);
    if (!waited) return result;
  }
}

// Where there is one attempt only, it is the one that is told that it compiles.
Subject::SaysCompiling first_says(bool strict) { return strict ? Subject::SaysCompiling::yes : Subject::SaysCompiling::no; }

// ---- the type ----

PyObject* new_callable(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"program", "policy", "constant", "options", "guarded", nullptr};
  PyObject *program, *policy, *constant, *options;
  int guarded;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOp", const_cast<char**>(keywords), &program, &policy, &constant, &options, &guarded))
    return nullptr;
  HANDLE_TH_ERRORS
  auto data = std::make_unique<Callable::Data>();
  data->subject.program = Ref::borrow(program);
  data->policy = Ref::borrow(policy);
  data->guarded = guarded;
  Ref full = Ref::steal(PyObject_GetAttrString(policy, "fullgraph"));
  PyErr_Clear();
  data->strict = full && full.get() == Py_True;
  data->subject.says_compiling = first_says(data->strict);
  for (auto each : py::reinterpret_borrow<py::object>(constant)) data->constant.push_back(each.cast<bool>());
  auto given = py::reinterpret_borrow<py::dict>(options);
  if (given.contains("verify")) data->verify = given["verify"].cast<int64_t>();
  if (given.contains("is_part")) data->is_part = given["is_part"].cast<bool>();
  data->options = options_from(given);
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
  Py_VISIT(c->data->subject.program.get());
  Py_VISIT(c->data->subject.in_parts.get());
  Py_VISIT(c->data->policy.get());
  Py_VISIT(c->data->fallback.get());
  for (const auto* places : {&c->data->subject.written, &c->data->subject.places})
    for (const StatePlace& p : *places) {
      Py_VISIT(p.owner.get());
      Py_VISIT(p.key.get());
    }
  for (const auto& v : c->data->versions) {
    if (v->state)
      if (int stop = v->state->traverse(visit, arg)) return stop;
    for (const auto& s : v->states_of_gradients)
      if (int stop = s->traverse(visit, arg)) return stop;
    if (int stop = v->form.traverse(visit, arg)) return stop;
  }
  return 0;
}

int clear(PyObject* self) {
  auto* c = reinterpret_cast<Callable*>(self);
  Py_CLEAR(c->dict);
  if (c->data) {
    // What this destroys may come back here.
    Subject& subject = c->data->subject;
    auto versions = std::exchange(c->data->versions, {});
    auto written = std::exchange(subject.written, {}), places = std::exchange(subject.places, {});
    Ref in_parts = std::exchange(subject.in_parts, Ref());
    Ref program = std::exchange(subject.program, Ref::borrow(Py_None)), policy = std::exchange(c->data->policy, Ref::borrow(Py_None)),
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
  py::dict s = stats_of(functions, d.subject.log->list());
  s["plain_calls"] = d.plain_calls;
  s["fallback_calls"] = d.fallback_calls;
  s["captures"] = d.captures;
  s["verified"] = d.verified;
  s["reasons"] = d.reasons;
  py::list places;
  size_t gradients = 0;
  for (const StatePlace& p : d.subject.places)
    if (p.kind == StatePlace::Kind::gradient) ++gradients;
    else places.append(p.path);
  s["places"] = places;
  s["gradients"] = gradients;
  s["state"] = state;
  s["settled"] = !d.guarded || d.fallback || !d.versions.empty();
  s["is_part"] = d.is_part;
  s["front"] = !d.guarded ? "dynamo" : d.fallback && d.versions.empty() ? "fallback" : "native";
  return s.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* reset(PyObject* self, PyObject*) {
  auto& d = data_of(self);
  auto versions = std::exchange(d.versions, {});
  Ref fallback = std::exchange(d.fallback, Ref()), in_parts = std::exchange(d.subject.in_parts, Ref());
  d.only_with_gradients = false;
  d.captures = d.spoilt = 0;
  d.subject.says_compiling = first_says(d.strict);
  d.subject.has_checkpoints = d.subject.is_known = false;
  d.subject.written.clear();
  d.subject.places.clear();
  d.subject.doubts.clear();
  d.subject.log->clear();
  d.reasons.clear();
  Py_RETURN_NONE;
}

PyObject* reduce(PyObject* self, PyObject*) { return PyObject_CallMethod(data_of(self).policy.get(), "reduce", "O", self); }
PyObject* represent(PyObject* self) { return PyUnicode_FromFormat("<broach compiled %R>", data_of(self).subject.program.get()); }

PyObject* get_program(PyObject* self, void*) { return Ref(data_of(self).subject.program).release(); }
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
  m.def("set_native_functions", [](Strings pure, Strings answers, Strings impure, Strings libraries, Strings operators, Strings eager,
                                   Strings optimizers, std::unordered_map<std::string, std::string> told) {
    set_native_functions({std::move(pure), std::move(answers), std::move(impure), std::move(libraries), std::move(operators),
                          std::move(eager), std::move(optimizers), std::move(told)});
  });
  m.def("set_native_types", [](Strings values, Strings stateless, Strings makers) {
    set_native_types({std::move(values), std::move(stateless), std::move(makers)});
  });
  m.def("set_unwatched", &set_unwatched);
}

}  // namespace broach
