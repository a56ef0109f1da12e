#include "version.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "ambient.h"
#include "capture.h"
#include "gradient_code.h"
#include "instances.h"
#include "rerun.h"
#include "signals.h"
#include "support/error.h"
#include "watch.h"
#include "while_capturing.h"

namespace py = pybind11;

namespace broach {

// How results are made of tensors and integers: kept by Function with each compiled version.
struct ResultForm {
  Form form;
  Writes writes;
  std::vector<size_t> places;  // numbers of those written, whose values come last in `form`
};

namespace {

thread_local Pending* pending = nullptr;

std::shared_ptr<ResultForm> new_result_form() {
  return std::shared_ptr<ResultForm>(new ResultForm, [](ResultForm* f) {
    py::gil_scoped_acquire gil;  // the last version may be dropped on any thread
    delete f;
  });
}

PyObject* call(PyObject* f, const Arguments& a) { return PyObject_Vectorcall(f, a.values, a.positional, a.names); }

Ref checked(Ref o) {
  if (!o) throw py::error_already_set();
  return o;
}
Ref checked(PyObject* o) { return checked(Ref::steal(o)); }

// Watches torch's own switches that its Python code keeps.
void watch_torch(State& state) {
  for (auto [module, name] : {std::pair{"torch.nn.modules.module", "_global_forward_hooks"},
                              {"torch.nn.modules.module", "_global_forward_pre_hooks"},
                              {"torch.nn.modules.module", "_global_backward_hooks"},
                              {"torch.nn.modules.module", "_global_backward_pre_hooks"}}) {
    Ref m = import_module(module);
    Ref o = m ? Ref::steal(PyObject_GetAttrString(m.get(), name)) : Ref();
    if (o) state.watch(o.get(), cat(module, ".", name));
    else PyErr_Clear();
  }
  state.watch(THPVariableClass, "torch.Tensor");
  Ref os = import_module("os");
  Ref environment = Ref::steal(PyObject_GetAttrString(os.get(), "environ"));
  Ref data = environment ? Ref::steal(PyObject_GetAttrString(environment.get(), "_data")) : Ref();
  if (data) state.watch(data.get(), "os.environ");
  else PyErr_Clear();
}

// While it lives, a run is watched; afterwards `verdict` says whether a recording of it may be used.
// Numpy's functions are of a kind that the interpreter does not tell about.
Ref numpy_random_state() {
  // Importing lets other threads run, which must not wait for it with Python's lock, as they would for the making of a static.
  static std::atomic<PyObject*> known{nullptr};
  PyObject* ask = known.load();
  if (!ask) known = ask = py::object(py::module_::import("broach._codes").attr("numpy_random_state")).release().ptr();
  return checked(undisturbed([&] { return PyObject_CallNoArgs(ask); }));
}

// Looks for doubted names in what a run does (_names_found.py).
class DoubtsInRun {
 public:
  explicit DoubtsInRun(const State& state) : doubts_(state.doubts()) {
    if (doubts_.empty()) return;
    const bool symbolic = Function::is_capturing_symbols();
    py::tuple names(doubts_.size());
    for (size_t i = 0; i < doubts_.size(); ++i) names[i] = py::reinterpret_borrow<py::object>(doubts_[i].name.get());
    py::object ends = symbolic ? py::reinterpret_borrow<py::object>(Watch::end_of_program()) : py::none();
    search_ = py::module_::import("broach._names_found").attr("NamesFound")(names, ends);
    const Ref started = checked(undisturbed([&] { return PyObject_CallMethod(search_.ptr(), "start", nullptr); }));
    is_looking_ = started.get() == Py_True;
    if (!is_looking_ && symbolic) stop(), unsupported(kNotLooking);
  }
  ~DoubtsInRun() { stop(); }
  DoubtsInRun(const DoubtsInRun&) = delete;
  DoubtsInRun& operator=(const DoubtsInRun&) = delete;

  void stop() {
    if (!search_) return;
    const py::error_scope of_the_program;
    const py::object search = std::exchange(search_, {});
    const Ref found = undisturbed([&] { return PyObject_CallMethod(search.ptr(), "stop", nullptr); });
    if (found) found_ = py::reinterpret_borrow<py::object>(found.get());
    else PyErr_WriteUnraisable(search.ptr());
  }

  // What speaks against the run, if anything does.
  std::optional<Verdict> verdict() const {
    if (doubts_.empty()) return std::nullopt;
    if (!is_looking_) return Verdict{Outcome::spoilt, kNotLooking};
    for (const Doubt& d : doubts_)
      if (found_.contains(py::handle(d.name.get()))) return Verdict{Outcome::rejected, d.reason};
    return std::nullopt;
  }

 private:
  static constexpr const char* kNotLooking =
      "names what cannot be watched, and a debugger or tracer keeps it from being known whether it runs";
  const std::vector<Doubt>& doubts_;
  py::object search_, found_;
  bool is_looking_ = false;
};

class WatchedRun {
 public:
  WatchedRun(Subject& subject, State& state, bool runs_again, bool has_numbers)
      : subject_(subject), state_(state), ambient_(ambient_settings()), random_(numpy_random_state()) {
    dynamo_.emplace();
    if (subject.says_compiling == Subject::SaysCompiling::yes) compiling_.emplace();
    checkpoints_.emplace("checkpoints");
    gradients_.emplace("gradients");
    optimizers_.emplace("optimizers");
    if (Function::is_capturing_symbols()) numbers_.emplace("numbers");
    doubts_.emplace(state);
    watch_.emplace(state, nullptr, subject.says_compiling != Subject::SaysCompiling::never, runs_again);
    if (has_numbers) watch_->must_not_compare_numbers();
  }

  void stop() {
    PyObject *type, *value, *trace;  // of the program, which ending the watch must not lose
    PyErr_Fetch(&type, &value, &trace);
    watch_.reset();
    doubts_->stop();
    numbers_.reset();
    optimizers_.reset();
    gradients_.reset();
    checkpoints_.reset();
    compiling_.reset();
    dynamo_.reset();
    PyErr_Restore(type, value, trace);
  }

  Verdict verdict() {
    state_.find_weakly_held();
    if (!state_.problems().empty()) return subject_.note_problems(state_);
    if (const std::optional<Verdict> found = doubts_->verdict()) return *found;
    if (!effects_.empty()) return {Outcome::spoilt, effects_.front()};
    if (const std::optional<Verdict> read = subject_.note_read_lists(state_)) return *read;
    state_.meet_new_gradients();
    if (!state_.gradients().empty()) return subject_.note_gradients(state_.gradients());
    if (auto changed = state_.changes(); !changed.empty()) {
      if (Function::is_capturing_symbols()) state_.settle_numbers(changed);
      return subject_.note_written(state_, changed);
    }
    if (std::string set = state_.changed_gradients(); !set.empty())
      return {Outcome::spoilt, {cat("sets requires_grad of ", set), Fallback::eager}};
    if (ambient_settings() != ambient_) return {Outcome::spoilt, "changes a setting of torch"};
    const Ref random = numpy_random_state();
    const Ref is_same = undisturbed([&] { return PyObject_RichCompare(random_.get(), random.get(), Py_EQ); });
    if (checked(is_same).get() != Py_True) return {Outcome::spoilt, {"draws numpy's random numbers", Fallback::eager}};
    // What the bytecode that ran does to tensors without an operation's showing it.
    std::string invisible = in_code("invisible", Owner::user);
    if (invisible.empty()) invisible = in_code("invisible_in_torch", Owner::torch);
    works_invisibly_ = !invisible.empty();
    return {invisible.empty() ? Outcome::compiled : Outcome::spoilt, {std::move(invisible), Fallback::eager}};
  }

  // Whether that is all that the verdict is by.
  bool works_invisibly() const { return works_invisibly_; }

  // A program that can tell its stand-ins from numbers may have gone another way than with these.
  void must_not_tell_numbers() const {
    if (std::string asks = in_code("asks_for_type_of_number", Owner::user); !asks.empty()) unsupported(asks);
  }

  void let_run() { watch_->let_run(); }
  bool has_asked() const { return asked_; }
  bool was_ended() const { return was_ended_; }
  bool has_effects() const { return !effects_.empty(); }
  Verdict why_ended() const { return {Outcome::spoilt, effects_.front()}; }
  // Whether the program knows that it is compiled, and has done nothing that its end does not undo.
  bool has_only_asked() const { return told_ && effects_.empty(); }
  bool sees_handled() const { return !in_code("sees_handled", Owner::user).empty(); }
  // A `with` is no call that the interpreter tells about.
  bool may_have_taken_lock() const { return state_.holds_lock() && !in_code("enters_block", Owner::user).empty(); }

  void finish() {
    effects_ = watch_->effects();
    asked_ = watch_->asked_whether_compiling();
    was_ended_ = watch_->was_ended();
    told_ = watch_->has_told_compiling() || (compiling_ && asked_);
    stop();
  }

 private:
  // What a function of `_codes` finds first in the code of theirs that ran.
  std::string in_code(const char* function, Owner whose) const {
    const py::error_scope of_the_program;
    py::object find = py::module_::import("broach._codes").attr(function);
    for (PyCodeObject* code : state_.entered()) {
      if (owner_of_file(code->co_filename) != whose) continue;
      Ref found = checked(undisturbed([&] { return PyObject_CallFunctionObjArgs(find.ptr(), code, nullptr); }));
      if (PyUnicode_GetLength(found.get()) > 0) return py::reinterpret_borrow<py::str>(found.get());
    }
    return "";
  }

  Subject& subject_;
  State& state_;
  bool works_invisibly_ = false;
  AmbientSettings ambient_;
  Ref random_;
  std::optional<WithoutDynamo> dynamo_;
  std::optional<Compiling> compiling_;
  std::optional<StandIns> checkpoints_, gradients_, optimizers_, numbers_;
  std::optional<DoubtsInRun> doubts_;
  std::optional<Watch> watch_;
  std::vector<Reason> effects_;
  bool asked_ = false, told_ = false, was_ended_ = false;
};

}  // namespace

Pending* Pending::current() { return pending; }

void Pending::reject(Reason why) {
  // Of two reasons the one counts that leaves less to Dynamo.
  const bool is_stricter = verdict.reason.fallback <= Fallback::dynamo && why.fallback > verdict.reason.fallback;
  if (verdict.is_good() || is_stricter) verdict.reason = std::move(why);
  verdict.outcome = Outcome::rejected;
}

void Pending::take_back_or_reject(Reason why) {
  if (Function::is_capturing_symbols()) unsupported(why.text);
  reject(std::move(why));
}

void Version::watch(const Subject& subject) {
  ambient = ambient_settings();
  modes = Function::Modes::now();
  state = std::shared_ptr<State>(new State, [](State* s) {
    py::gil_scoped_acquire gil;  // compiled gradients may hold it last
    delete s;
  });
  for (const StatePlace& place : subject.places) state->leave_out(place);
  state->leave_out(subject.doubts);
  PyObject* program = subject.program.get();
  handled_ = cpython::handled_exception();
  state->watch(program, PyFunction_Check(program) ? "" : "self");
  for (PyObject* root : form.form().roots()) state->watch(root, "an argument");
  watch_torch(*state);
}

bool are_numbers_alike(PyObject* a, PyObject* b) {
  if (!a || !b || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (!PyTuple_CheckExact(a)) return PyFloat_CheckExact(a) || PyLong_CheckExact(a);
  bool alike = PyTuple_GET_SIZE(a) == PyTuple_GET_SIZE(b);
  for (Py_ssize_t i = 0; alike && i < PyTuple_GET_SIZE(a); ++i) alike = are_numbers_alike(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
  return alike;
}

// What the state has of its own, but for a tuple of numbers, which is what these are, and for a list that is a place by itself: it is the
// same one in any call.
bool Version::is_of_state(PyObject* container) const {
  return state->knows(container) && !are_numbers_alike(container, container) &&
         std::ranges::none_of(form.places(), [&](const StatePlace& place) {
           return place.kind == StatePlace::Kind::whole && place.owner.get() == container;
         });
}

bool Version::reads_replaced(const Leaves& leaves, at::TensorList inputs) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (const at::Tensor& own = leaves.tensors[i]; !inputs[i].is_same(own) && state->holds_tensor(own.unsafeGetTensorImpl())) return true;
  return std::ranges::any_of(leaves.containers, [this](PyObject* o) { return is_of_state(o); });
}

bool Version::holds_the_same(const Leaves& leaves) const {
  for (size_t i = 0; i < own_tensors_.size(); ++i) {
    auto* t = leaves.tensors[i].unsafeGetTensorImpl();
    if (t != own_tensors_[i] && (own_tensors_[i] || state->holds_tensor(t))) return false;
  }
  for (size_t i = 0; i < own_containers_.size(); ++i) {
    PyObject* o = leaves.containers[i];
    if (o != own_containers_[i] && (own_containers_[i] || is_of_state(o))) return false;
  }
  return true;
}

void Version::note_own(const Leaves& leaves) {
  noted_own_ = true;
  for (const at::Tensor& t : leaves.tensors)
    own_tensors_.push_back(state->holds_tensor(t.unsafeGetTensorImpl()) ? t.unsafeGetTensorImpl() : nullptr);
  for (PyObject* o : leaves.containers) own_containers_.push_back(is_of_state(o) ? o : nullptr);
}

// What a run of the program is given: the caller's own arguments, or others made like them.
class Version::Given {
 public:
  Given(const Version& version, const Pending& p, at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats)
      : arguments(p.arguments),
        containers(p.leaves.containers),
        own(are_own(p, inputs, ints, floats)),
        has_symbols(are_symbols(ints, floats)),
        places_(version.form.places()) {
    if (!own) make(version.form, inputs, ints, floats);
    for (const StatePlace& place : places_) {
      kept.push_back(Ref::borrow(place.value()));
      lengths.push_back(place.length());
      if (place.kind != StatePlace::Kind::item || !Capture::current()) continue;
      if (auto [order, is_new] = orders_.try_emplace(place.owner.get()); is_new) read_elements(order->first, order->second);
    }
  }
  ~Given() {  // what a run on stand-ins or copies wrote comes from its results
    if (before_) before_->swap_back();
  }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  // Whether a dict of the places has an item behind others that it was in front of: setting it again would leave it where it is.
  bool has_moved_items() const {
    return std::ranges::any_of(orders_, [](const auto& o) { return !keeps_order(o.first, o.second); });
  }

  Arguments arguments;
  std::vector<PyObject*> containers;
  const bool own;
  const bool has_symbols;           // for numbers
  std::vector<Ref> kept;            // what was in the places
  std::vector<Py_ssize_t> lengths;  // of those that only grow

 private:
  static bool are_own(const Pending& p, at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats) {
    const bool replaced = Capture::current() && Capture::current()->is_replaced();
    return !p.copies && !replaced && !Function::is_capturing_symbols() && inputs.size() == p.leaves.tensors.size() &&
           std::equal(inputs.begin(), inputs.end(), p.leaves.tensors.begin(),
                      [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }) &&
           std::equal(ints.begin(), ints.end(), p.leaves.ints.begin(), p.leaves.ints.end(),
                      [](const c10::SymInt& a, int64_t b) { return !a.is_heap_allocated() && a.as_int_unchecked() == b; }) &&
           std::none_of(floats.begin(), floats.end(), [](const c10::SymFloat& f) { return f.is_symbolic(); });
  }

  static bool are_symbols(c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats) {
    return std::any_of(ints.begin(), ints.end(), [](const c10::SymInt& i) { return i.is_heap_allocated(); }) ||
           std::any_of(floats.begin(), floats.end(), [](const c10::SymFloat& f) { return f.is_symbolic(); });
  }

  void make(const ArgumentsForm& form, at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats) {
    Leaves given;
    given.tensors = inputs.vec();
    given.program_ints.assign(ints.begin(), ints.end());
    given.program_floats.assign(floats.begin(), floats.end());
    made_ = form.build(given);
    for (const Ref& r : made_) values_.push_back(r.get());
    arguments.values = values_.data();
    containers = given.made;
    before_.emplace(places_);
    for (size_t i = 0; i < places_.size(); ++i) {
      PyObject* made = values_[arguments.all() + i];
      if (!places_[i].set(made)) throw py::error_already_set();
      if (places_[i].kind == StatePlace::Kind::whole) std::replace(containers.begin(), containers.end(), made, places_[i].owner.get());
    }
  }

  const std::vector<StatePlace>& places_;
  std::map<PyObject*, std::vector<Ref>> orders_;  // of the places' dicts: their keys
  std::vector<Ref> made_;
  std::vector<PyObject*> values_;
  std::optional<KeptPlaces> before_;
};

// What a run was given, containers and places that it writes itself.
bool Version::has_written(const std::vector<Shallow>& before, const Given& given) const {
  auto made = new_result_form();
  Form::Rules rules;
  rules.results = rules.any_tensor = true;
  Leaves leaves;
  if (!made->writes.find(before, made->form, rules, leaves) || !made->writes.empty()) return true;
  for (size_t i = 0; i < given.kept.size(); ++i)
    if (!same_value(given.kept[i].get(), form.places()[i].value())) return true;
  return false;
}

// A program that raised may do so only because `torch.compiler.is_compiling()` was true: the next capture does without, and if nothing
// shows this run, the program gets another one. Throws what it raises.
Ref Version::run_again(Pending& p, const Given& given, const std::vector<Shallow>& before, bool may_depend_on_it) {
  using Says = Subject::SaysCompiling;
  auto& says = p.subject->says_compiling;
  const bool was_told_all = says == Says::yes;
  if (Function::is_capturing_symbols() || (!may_depend_on_it && !was_told_all)) throw py::error_already_set();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (!type || !may_depend_on_it || Capture::current()->has_written() || !state->changes().empty() || has_written(before, given)) {
    if (was_told_all) says = Says::never;
    PyErr_Restore(type, value, trace);
    throw py::error_already_set();
  }
  std::string error = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
  Ref result = checked(call(p.subject->program.get(), given.arguments));
  says = Says::never;
  p.verdict = {Outcome::learnt, cat("raises ", error, " while torch.compiler.is_compiling() is true")};
  return result;
}

static bool has_own_gradient(const at::Tensor& t) {
  return t.defined() && t.is_leaf() && t.grad().defined() && Capture::current()->has_made(t);
}

static constexpr const char* kReadByItself = "is given a tensor or container that it also reads by itself";

// What a recorded run has read, to be compared from here on. Tensors that the program holds are compared by it.
static void settle(const std::shared_ptr<State>& own, std::span<const std::shared_ptr<State>> of_gradients) {
  std::unordered_set<const c10::TensorImpl*> lifted;
  for (const at::Tensor& t : Capture::current()->lifted()) lifted.insert(t.unsafeGetTensorImpl());
  auto begin = [&](State& s) {
    s.stamp();
    s.watch_tensors([&](const at::Tensor& t) { return lifted.contains(t.unsafeGetTensorImpl()); });
  };
  begin(*own);
  for (const std::shared_ptr<State>& s : of_gradients) begin(*s);
}

// Of the error of a run on stand-ins, the frames: what they hold goes while the run is watched, as does what it leaves by `return`.
static void let_go_of_frames(Pending& p) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) {
    PyException_SetTraceback(value, trace);
    {
      const cpython::Untraced none_of_the_programs_code;
      p.signal = signal_of(value);
    }
    PyException_SetTraceback(value, Py_None);
    PyException_SetContext(value, nullptr);
    PyException_SetCause(value, nullptr);
    Py_CLEAR(trace);
  }
  PyErr_Restore(type, value, trace);
}

// Such a run is as if it had not run: a signal whose handler raised comes again in the next.
[[noreturn]] static void end_attempt(Pending& p, const py::error_already_set& e) {
  if (e.trace()) PyException_SetTraceback(e.value().ptr(), e.trace().ptr());
  if (!p.signal) p.signal = signal_of(e.value().ptr());
  const std::string what = e.what();
  throw Error(what.substr(0, what.find("\n\nAt:")));
}

Function::Results Version::run_program(at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats) {
  py::gil_scoped_acquire gil;
  try {
    return run_once(*pending, inputs, ints, floats);
  } catch (const py::error_already_set& e) {
    if (!Function::is_capturing_symbols()) throw;
    end_attempt(*pending, e);
  }
}

Function::Results Version::run_once(Pending& p, at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats) {
  if (p.is_trial) {  // of code that fails
    p.ran = Pending::Ran::nothing;
    throw Error("broach: a trial does not run the program itself");
  }
  std::optional<Turns::OwnCode> turn;
  take_turn(p, turn);
  if (p.runs++ > 0 && state) {
    if (!state->restore()) throw Error("broach: what the program changed in a run that did not bear symbols for sizes cannot be put back");
    if (p.numpy_random.get() != Py_None) checked(PyObject_CallMethod(p.numpy_random.get(), "put_back", nullptr));
  } else if (state) {
    p.numpy_random = numpy_random_state();
    state->note_gradients();
  }
  if (const int signal = std::exchange(p.signal, 0)) {
    PyErr_SetInterruptEx(signal);
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  p.written_again = {};
  p.met_checkpoint = p.may_go_otherwise = false;
  if (Capture::current() && p.subject->has_checkpoints && at::GradMode::is_enabled()) Capture::current()->replace_run();
  Given given(*this, p, inputs, ints, floats);
  if (!Capture::current()) {
    p.ran = p.verdict.is_good() ? Pending::Ran::eagerly : Pending::Ran::captured;  // in vain
    const bool in_parts = p.subject->in_parts && function.leaves_gradients() && at::GradMode::is_enabled();
    p.result = checked(call((in_parts ? p.subject->in_parts : p.subject->program).get(), given.arguments));
    return {};
  }
  p.verdict = {};  // there may be one of an attempt with symbols
  p.ran = Pending::Ran::captured;
  std::vector<Shallow> before(given.containers.begin(), given.containers.end());
  TensorAttributes attributes(inputs);
  Ref result = state ? run_watched(p, given, before) : checked(call(p.subject->program.get(), given.arguments));
  // While what the program holds can still be put back.
  if (Function::is_capturing_symbols()) Capture::current()->must_not_give_gradients();
  // In the place of one that the program also reaches by itself it was given another, or a copy.
  if (state && !given.own && reads_replaced(p.leaves, inputs)) p.take_back_or_reject(kReadByItself);
  if (state && attributes.changed()) {
    if (Function::is_capturing_symbols()) attributes.put_back();
    p.take_back_or_reject("writes an attribute of a tensor that it is given");
  }
  Function::Results out = described(result.get(), inputs, before, given, p);
  if (state && std::ranges::any_of(out.tensors, has_own_gradient)) p.take_back_or_reject("gives a tensor of its own that has a gradient");
  if (p.may_go_otherwise) say_compiling_next(p);
  note_writes(*static_cast<const ResultForm*>(out.form.get()), given, p.since ? p.since->met() : turn ? turn->met() : Turns::Met(), p);
  const size_t recorded = states_of_gradients.size();
  if (state && p.verdict.is_good() && at::GradMode::is_enabled()) differentiate(out, result.get(), given);
  if (state && p.verdict.is_good()) settle(state, std::span(states_of_gradients).subspan(recorded));
  if (state && !noted_own_) note_own(p.leaves);
  else if (state && !holds_the_same(p.leaves)) {
    p.verdict.outcome = p.verdict.is_good() ? Outcome::spoilt : Outcome::rejected;
    p.verdict.reason = kReadByItself;
  }
  if (!p.verdict.is_good()) Function::reject_capture(p.verdict);
  // What stood for an input is where the input should be.
  if (state && !given.own && !p.verdict.is_good() && !p.has_effects && !state->changes().empty()) Capture::current()->take_back();
  if (given.own) p.result = std::move(result);
  return out;
}

std::optional<Turns::Objects> Version::writes(const Leaves& leaves) const {
  if (!writes_state_ && !writes_arguments_) return std::nullopt;
  return subject_->objects(writes_arguments_ ? leaves.containers : std::vector<PyObject*>(), writes_state_);
}

static constexpr const char* kOthersRunIt = "writes objects of Python's while another thread runs it";

// For a run of the program. A recording of what is known to write goes alone: all others wait, also those that would look at places with
// stand-ins in them. It ends, as it is not known to wait for anybody.
void Version::take_turn(Pending& p, std::optional<Turns::OwnCode>& own) {
  p.turn.reset();
  Subject& subject = *p.subject;
  Turns::Objects objects = subject.objects(p.leaves.containers);
  const bool stands_in = Function::is_capturing_symbols() && !form.places().empty();
  const bool may_write = !subject.written.empty() || writes(p.leaves) || stands_in;
  if (Capture::current() && may_write && !subject.reaches_lock && Turns::get().ask(objects) == Turns::May::go)
    return void(p.turn.emplace(std::move(objects), true));
  if (stands_in) unsupported(kOthersRunIt);
  own.emplace(std::move(objects));
  p.waited = p.waited || own->has_waited();
}

// What a recording writes must be its own, and nothing that others wait for. `met`: what others may have written meanwhile.
void Version::note_writes(const ResultForm& made, const Given& given, Turns::Met met, Pending& p) {
  const bool to_state = !made.places.empty(), to_arguments = !made.writes.empty();
  if (p.waited && p.verdict.is_good())
    p.verdict = {Outcome::spoilt, {"other threads wrote objects of Python's meanwhile", Fallback::eager}};
  if (!to_state && !to_arguments) return;
  writes_state_ = writes_state_ || to_state;
  writes_arguments_ = writes_arguments_ || to_arguments;
  const bool beside_others = (to_state && met.state) || (to_arguments && met.given) || (p.turn && p.turn->is_passed());
  if (p.may_have_lock) p.reject({"writes objects of Python's and may hold a lock while it does so", Fallback::eager});
  else if (beside_others && Function::is_capturing_symbols()) unsupported(kOthersRunIt);
  else if (beside_others && p.verdict.is_good()) p.verdict = {Outcome::spoilt, {kOthersRunIt, Fallback::eager}};
  // Of a run on others than its own, which is written back at the end of the call.
  if (!given.own && !p.turn) p.turn.emplace(*writes(p.leaves));
}

// Here, where what the program was given is still in its place.
void Version::differentiate(const Function::Results& results, PyObject* result, const Given& given) {
  auto needs = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  if (std::none_of(results.tensors.begin(), results.tensors.end(), needs)) return;
  {
    py::gil_scoped_release release;
    if (Capture::current()->has_released(results.tensors)) return;
  }
  std::vector<PyObject*> reached{result};
  reached.insert(reached.end(), given.containers.begin(), given.containers.end());
  PythonGradients code(*state, form.places(), std::move(reached));
  {
    py::gil_scoped_release release;
    Capture::current()->differentiate(results.tensors, &code);
  }
  if (code.own_state()->size() > 0) states_of_gradients.push_back(code.own_state());
}

bool Version::reads_the_same(std::string* why) const {
  auto holds = [why](const std::shared_ptr<State>& s) { return s->holds(why); };
  return (!state || state->holds(why)) && std::ranges::all_of(states_of_gradients, holds);
}

// A program that asks may go a way that can be recorded where it is compiled: one that reads no elements, for instance, to check them.
void Version::say_compiling_next(Pending& p) const {
  auto& says = p.subject->says_compiling;
  const Verdict& recorded = p.verdict.is_good() ? Capture::current()->verdict() : p.verdict;
  const bool goes_on = recorded.is_good() || (recorded.outcome == Outcome::wants_stand_ins && !function.refuses_stand_ins());
  if (says != Subject::SaysCompiling::no || Function::is_capturing_symbols() || goes_on) return;
  says = Subject::SaysCompiling::yes;
  p.verdict = {Outcome::learnt, recorded.reason.within("asks whether it is compiled, which the next attempt says, as ")};
  Capture::current()->overrule(p.verdict);
}

Ref Version::run_watched(Pending& p, const Given& given, const std::vector<Shallow>& before) {
  std::optional<SignalsHeld> held(std::in_place);
  if (!held->run_handlers()) throw py::error_already_set();
  WatchedRun run(*p.subject, *state, !given.own && !p.copies, given.has_symbols);
  Capture::current()->set_places([this](const at::Tensor& t) { return found(*state, t); }, is_in_hand);
  held.reset();
  Ref result = Ref::steal(call(p.subject->program.get(), given.arguments));
  held.emplace();
  run.let_run();
  if (!result && Function::is_capturing_symbols()) let_go_of_frames(p);
  run.finish();
  p.may_have_lock = run.may_have_taken_lock();
  p.subject->reaches_lock = p.subject->reaches_lock || state->holds_lock();
  if (result && Function::is_capturing_symbols()) run.must_not_tell_numbers();
  if (result && Function::is_capturing_symbols() && run.was_ended())
    unsupported("what ends the run was lost, as in a weak reference's callback");
  if (!result && !Function::is_capturing_symbols() && Watch::has_ended()) {
    p.verdict = run.why_ended();
    Function::abandon_capture(p.verdict);
    throw py::error_already_set();
  }
  if (!result) return run_again(p, given, before, run.has_only_asked());
  p.verdict = run.verdict();
  const Verdict& recorded = Capture::current()->verdict();
  if (p.verdict.is_good() && recorded.outcome == Outcome::wants_stand_ins) p.verdict = p.subject->note_read_values().value_or(p.verdict);
  const bool may_pass = p.verdict.is_good() || p.verdict.outcome == Outcome::spoilt || p.verdict.outcome == Outcome::learnt;
  if (may_pass && recorded.outcome == Outcome::spoilt) p.verdict = recorded;
  p.has_effects = run.has_effects();
  goes_by_handled_ = run.sees_handled();
  // What stands for an argument has not its hooks.
  if (!given.own && p.verdict.outcome == Outcome::spoilt && run.works_invisibly()) p.verdict.outcome = Outcome::rejected;
  if (p.met_checkpoint) {  // whatever torch's own checkpoint has done
    p.subject->has_checkpoints = true;
    p.verdict = {Outcome::learnt, Pending::kMetCheckpoint};
  }
  if (p.verdict.is_good() && !p.written_again.empty()) p.verdict = {Outcome::spoilt, p.written_again};
  p.may_go_otherwise = run.has_asked() && p.verdict.is_good();
  return result;
}

// The program's results, and what it wrote into its arguments, as tensors and integers with their form.
Function::Results Version::described(PyObject* result, at::TensorList inputs, const std::vector<Shallow>& before, const Given& given,
                                     Pending& p) {
  Function::Results out;
  auto made = new_result_form();
  Form::Rules rules;
  rules.results = true;
  rules.any_tensor = !state;
  if (state) rules.was_there = [this](PyObject* o) { return state->knows(o) && !state->has_made_class(o); };
  rules.arguments = &given.containers;
  rules.given = inputs;
  Leaves leaves;
  if (!made->form.add(result, rules, leaves)) {
    p.take_back_or_reject(made->form.problem().within("returns "));
  } else if (!made->writes.find(before, made->form, rules, leaves)) {
    p.take_back_or_reject(made->form.problem_beside_results().within("writes ", " into an argument"));
  }
  if (given.has_moved_items()) p.reject({"moves an item to the end of a dict", Fallback::eager});
  std::vector<Ref> written;
  for (size_t i = 0; i < given.kept.size(); ++i) {
    const StatePlace& place = form.places()[i];
    const bool grows = place.kind == StatePlace::Kind::tail;
    written.push_back(grows ? place.since(given.lengths[i]) : Ref::borrow(place.value()));
    if (grows ? PyList_GET_SIZE(written[i].get()) == 0 : same_value(given.kept[i].get(), written[i].get())) continue;
    made->places.push_back(i);
    if (place.kind == StatePlace::Kind::gradient && is_tensor(given.kept[i].get())) {
      auto is_it = [&](const at::Tensor& t) { return t.is_same(THPVariable_Unpack(given.kept[i].get())); };
      const auto input = std::ranges::find_if(inputs, is_it);
      if (input != inputs.end())
        out.replaced.push_back({static_cast<size_t>(input - inputs.begin()), THPVariable_Unpack(place.owner.get())});
    }
    if (!made->form.add(written[i].get(), rules, leaves))
      p.take_back_or_reject(made->form.problem_beside_results().within("writes ", " to " + place.path));
  }
  out.tensors = std::move(leaves.tensors);
  out.ints = std::move(leaves.program_ints);
  out.floats = std::move(leaves.program_floats);
  out.form = std::move(made);
  return out;
}

// Knows the version as long as its callable keeps it.
class VersionAgain : public ProgramAgain {
 public:
  explicit VersionAgain(std::weak_ptr<Version> version) : version_(std::move(version)) {}
  std::vector<at::Tensor> run(at::TensorList inputs, at::IntArrayRef ints, at::ArrayRef<double> floats) const override {
    py::gil_scoped_acquire gil;
    std::shared_ptr<Version> version = version_.lock();
    if (!version) throw Error("broach: gradients of gradients need the program to be run again, and its compiled function is gone");
    return version->run_again(inputs, ints, floats);
  }

 private:
  std::weak_ptr<Version> version_;
};

// What a program reads is for a while what it was in the call. Others would see it, too.
class AsInCall {
 public:
  explicit AsInCall(State* state) : state_(state) {
    std::string changed;
    if (!state_ || state_->holds(&changed)) return;
    const bool is_seen = py::module_::import("broach._threads").attr("others_may_look")().cast<bool>();
    if (!is_seen) present_ = state_->put_back_for_a_while();
    if (!present_)
      throw Error(cat("broach: the program has to be run again for gradients, and what it reads has changed since the call",
                      is_seen ? ", which other threads may read" : "", ": ", changed));
  }
  ~AsInCall() {
    if (present_) state_->put_forward(std::move(*present_));
  }
  AsInCall(const AsInCall&) = delete;
  AsInCall& operator=(const AsInCall&) = delete;

 private:
  State* state_;
  std::optional<std::vector<State::Present>> present_;
};

std::vector<at::Tensor> Version::run_again(at::TensorList inputs, at::IntArrayRef ints, at::ArrayRef<double> floats) {
  const AsInCall as_in_call(state.get());
  Pending p;
  p.subject = subject_;
  p.version = this;
  p.arguments = {nullptr, form.positional(), form.names()};
  p.copies = true;
  std::optional<Turns::OwnCode> turn;
  if (!Capture::current()) turn.emplace(subject_->objects(std::vector<PyObject*>()));
  std::vector<c10::SymFloat> numbers(floats.begin(), floats.end());
  const std::vector<c10::SymInt> symbolic = as_sym_ints(ints);
  Given given(*this, p, inputs, symbolic, numbers);
  std::vector<Shallow> before(given.containers.begin(), given.containers.end());
  Ref result = checked(call(subject_->program.get(), given.arguments));
  Function::Results out = described(result.get(), inputs, before, given, p);
  if (!p.verdict.is_good()) throw Error("broach: run again, the program does not give the same results");
  return std::move(out.tensors);
}

PyObject* Version::run(Pending& p) {
  subject_ = p.subject;
  if (!again_) again_ = std::make_shared<const VersionAgain>(weak_from_this());
  Pending* before = std::exchange(pending, &p);
  Function::Results results;
  HANDLE_TH_ERRORS
  try {
    py::gil_scoped_release release;
    const CallInputs call{p.leaves.tensors, p.leaves.ints, p.leaves.floats, &again_, &p.leaves.tensors};
    if (!p.is_trial) results = function(call, state ? modes : Function::Modes::now());
    else if (auto tried = function.run_compiled(call)) results = std::move(*tried);
    else p.ran = Pending::Ran::nothing;
  } catch (const IndexError& e) {
    pending = before;
    PyErr_SetString(PyExc_IndexError, e.what());
    return nullptr;
  } catch (...) {
    pending = before;
    throw;
  }
  pending = before;
  if (p.ran == Pending::Ran::nothing) return nullptr;
  if (state && p.runs > 0) state->forget_gradients();
  return p.result ? p.result.release() : made_of(std::move(results), p).release();
  END_HANDLE_TH_ERRORS
}

// The program's result, as the version's form says; null with a Python error.
Ref Version::made_of(Function::Results results, Pending& p) const {
  Leaves leaves;
  leaves.tensors = std::move(results.tensors);
  leaves.program_ints = std::move(results.ints);
  leaves.program_floats = std::move(results.floats);
  leaves.containers = std::move(p.leaves.containers);
  // One that is written into another place may be held by none between two writes; and what goes may run code that waits for other threads.
  std::vector<Ref>& alive = p.alive;
  for (PyObject* o : leaves.containers) alive.push_back(Ref::borrow(o));
  size_t at = 0;
  const auto& made = *static_cast<const ResultForm*>(results.form.get());
  Ref result = Ref::steal(made.form.build(at, leaves));
  if (!made.writes.empty() && p.turn) p.replaced = std::vector<Shallow>(leaves.containers.begin(), leaves.containers.end());
  if (!result || !made.writes.apply(made.form, at, leaves, leaves.containers)) return {};
  for (size_t i : made.places) {
    Ref value = Ref::steal(made.form.build(at, leaves));
    alive.push_back(Ref::borrow(form.places()[i].value()));
    if (!value || !form.places()[i].set(value.get())) return {};
  }
  return result;
}

}  // namespace broach
