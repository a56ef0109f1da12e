#include "gradient_code.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string_view>
#include <typeinfo>

#include "function.h"
#include "support/error.h"
#include "watch.h"
#include "while_capturing.h"

namespace py = pybind11;
namespace ag = torch::autograd;

namespace broach {

namespace {

// Their types are not exported, so that they are told by name.
template <class T>
std::string_view type_name(const T& o) {
  return typeid(o).name();
}
constexpr std::string_view kPyNode = "N5torch8autograd6PyNodeE", kTensorHook = "N5torch8autograd23PyFunctionTensorPreHookE",
                           kPreHook = "N5torch8autograd17PyFunctionPreHookE", kPostHook = "N5torch8autograd18PyFunctionPostHookE";

class StateRead : public ReadByCode {
 public:
  StateRead(std::shared_ptr<State> state, bool goes_by_layout) : state_(std::move(state)), goes_by_layout_(goes_by_layout) {}
  std::string changed() const override {
    py::gil_scoped_acquire gil;
    std::string what;
    return state_->holds(&what) ? "" : what.empty() ? "a value that it reads" : what;
  }

  bool goes_by_layout() const override { return goes_by_layout_; }

 private:
  std::shared_ptr<State> state_;
  bool goes_by_layout_;
};

std::vector<Ref> values_of(PyObject* dict) {
  std::vector<Ref> out;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) out.push_back(Ref::borrow(value));
  return out;
}

// What Python's hooks of a node are kept in; null for a hook that is not Python's.
template <class Hook>
PyObject* dict_of(Hook& hook) {
  const std::string_view type = type_name(hook);
  if constexpr (std::is_same_v<Hook, ag::FunctionPreHook>) {
    if (type == kTensorHook) return static_cast<ag::PyFunctionTensorPreHook&>(hook).dict;
    if (type == kPreHook) return static_cast<ag::PyFunctionPreHook&>(hook).dict;
  } else if (type == kPostHook) {
    return static_cast<ag::PyFunctionPostHook&>(hook).dict;
  }
  return nullptr;
}

}  // namespace

// What autograd's threads may be the last to hold.
static std::shared_ptr<State> shared_state() {
  return {new State, [](State* s) {
            if (!Py_IsInitialized()) return;  // its objects are gone
            py::gil_scoped_acquire gil;
            delete s;
          }};
}

PythonGradients::PythonGradients(const State& state, const std::vector<StatePlace>& places, std::vector<PyObject*> reached)
    : state_(state), own_(shared_state()), places_(places), reached_(std::move(reached)) {
  for (const StatePlace& place : places_) own_->leave_out(place);
}

std::string why_no_python(ag::Node& node, bool is_formula, std::vector<Ref>* hooks) {
  bool known = true;
  auto look = [&](auto& of_kind) {
    for (auto& hook : of_kind) {
      PyObject* dict = hook ? dict_of(*hook) : nullptr;
      known = known && dict;
      if (!dict || !hooks) continue;
      std::vector<Ref> of_node = values_of(dict);
      hooks->insert(hooks->end(), of_node.begin(), of_node.end());
    }
  };
  look(node.tensor_pre_hooks());
  look(node.pre_hooks());
  look(node.post_hooks());
  if (!known) return cat(node.name(), " has a hook that is not Python's");
  if (!is_formula && (type_name(node) != kPyNode || node.is_aot_backward()))
    return cat("gradients by ", node.name(), ", whose code is not torch's own");
  return "";
}

std::string PythonGradients::obstacle(ag::Node& node, bool is_formula, size_t results) {
  py::gil_scoped_acquire gil;
  if (std::string why = why_no_python(node, is_formula, &hooks_); !why.empty()) return why;
  for (const StatePlace& place : places_)
    if (place.kind == StatePlace::Kind::whole || place.kind == StatePlace::Kind::tail)
      return cat(node.name(), " runs code of a program that keeps a list from call to call: ", place.path);
  if (is_formula) return "";
  py::object function = py::reinterpret_steal<py::object>(ag::functionToPyObject(node.getptr()));
  if (!reinterpret_cast<THPFunction*>(function.ptr())->materialize_grads && results > 1)
    return cat(node.name(), " goes by which of its results have a gradient");
  contexts_.push_back(Ref::borrow(function.ptr()));
  return "";
}

// What is there changes from call to call, and need not be what it was when gradients are computed: code that reads it gets an error.
Ref PythonGradients::hide_places() const {
  py::object unreadable = py::module_::import("broach._numbers").attr("UNREADABLE");
  for (const StatePlace& place : places_)
    if (place.kind != StatePlace::Kind::gradient && !place.set(unreadable.ptr())) throw py::error_already_set();
  return Ref::borrow(unreadable.ptr());
}

// A run ends before an effect that would be seen, and what it wrote to the state is put back.
std::string PythonGradients::run(const std::function<void()>& engine) {
  py::gil_scoped_acquire gil;
  State reached;
  for (PyObject* o : reached_) reached.watch(o, "what the program was given or gives");
  for (const Ref& hook : hooks_) reached.watch(hook.get(), "a hook"), own_->watch_known(state_, hook.get(), "a hook");
  for (const Ref& context : contexts_)
    if (Ref kept = Ref::steal(PyObject_GetAttrString(context.get(), "__dict__"))) own_->watch_known(state_, kept.get(), "a context");
    else PyErr_Clear();
  std::optional<std::string> error;
  std::vector<Reason> effects;
  KeptPlaces kept(places_);
  const Ref unreadable = hide_places();
  {
    const WithoutDynamo dynamo;
    Compiling compiling;
    const StandIns gradients("gradients");
    std::optional<StandIns> numbers;
    if (Function::is_capturing_symbols()) numbers.emplace("numbers");
    Watch watch(*own_, &state_);
    try {
      py::gil_scoped_release release;
      engine();
    } catch (const std::exception& e) {
      error = e.what();
    }
    PyErr_Clear();
    effects = watch.effects();
    goes_by_layout_ = goes_by_layout_ || watch.goes_by_layout();
  }
  own_->find_weakly_held();
  std::string why;
  const std::vector<Ref> now = kept.swap_back();
  for (size_t i = 0; i < now.size(); ++i)
    if (places_[i].kind != StatePlace::Kind::gradient && now[i].get() != unreadable.get())
      why = cat("the code of a gradient writes ", places_[i].path);
  for (const State* s : {&state_, static_cast<const State*>(own_.get()), static_cast<const State*>(&reached)})
    if (auto changes = s->changes(); !changes.empty()) {
      why = cat("the code of a gradient writes ", changes.front().path);
      if (!s->restore()) why += ", which cannot be put back";
    }
  if (!effects.empty()) return cat("the code of a gradient ", effects.front().text);
  if (!own_->problems().empty()) return cat("the code of a gradient reads ", own_->problems().front().text);
  if (!why.empty()) return why;
  return error ? cat("eager has no gradients: ", *error) : "";
}

std::shared_ptr<const ReadByCode> PythonGradients::read() const { return std::make_shared<StateRead>(own_, goes_by_layout_); }

}  // namespace broach
