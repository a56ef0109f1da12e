// The Python extension: the type of compiled callables, and a few switches.
#include <c10/util/Type.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include <algorithm>
#include <typeinfo>

#include "allocator.h"
#include "callable.h"
#include "capture.h"
#include "checkpoints.h"
#include "compat.h"
#include "cpython.h"
#include "function.h"
#include "indexing.h"
#include "keys.h"
#include "nodes.h"
#include "parts.h"
#include "passes/passes.h"
#include "recorded_calls.h"
#include "reference.h"
#include "runtime/memory.h"
#include "signals.h"
#include "stand_ins.h"
#include "support/bug.h"
#include "support/error.h"
#include "symbolic.h"
#include "target/target.h"
#include "watched.h"

namespace py = pybind11;

namespace broach {

namespace {

// torch's argument parser passes a symbolic integer in a tensor's position as a placeholder with this attribute.
std::optional<c10::Scalar> symbol_in_number(const at::Tensor& t) {
  py::gil_scoped_acquire gil;
  py::object o = py::reinterpret_steal<py::object>(THPVariable_Wrap(t));
  if (!py::hasattr(o, "_wrapped_number")) return std::nullopt;
  py::object number = o.attr("_wrapped_number");
  if (torch::is_symint(number)) return c10::Scalar(number.cast<c10::SymInt>());
  if (torch::is_symfloat(number)) return c10::Scalar(number.cast<c10::SymFloat>());
  return c10::Scalar(number.cast<bool>());
}

// torch's argument parser wraps the node of a symbolic floating point number.
c10::SymNode unwrap(const c10::SymNode& node) {
  auto* wrapped = dynamic_cast<torch::impl::PythonSymNodeImpl*>(node.get());
  if (!wrapped) return node;
  py::gil_scoped_acquire gil;
  return py::isinstance<c10::SymNodeImpl>(wrapped->getPyObj())
             ? py::reinterpret_borrow<py::object>(wrapped->getPyObj()).cast<c10::SymNode>()
             : node;
}

c10::SymNode wrap(const c10::SymNode& node) {
  py::gil_scoped_acquire gil;
  return c10::make_intrusive<torch::impl::PythonSymNodeImpl>(py::cast(node));
}

// torch makes a class for each such operator, in one place.
bool is_of_library(torch::autograd::Node& node) {
  py::gil_scoped_acquire gil;
  py::object o = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(node.getptr()));
  py::object made_by = py::getattr(o, "_forward_cls", py::none());
  return py::getattr(made_by, "__module__", py::none()).equal(py::str("torch._library.autograd")) &&
         py::module_::import("broach._codes").attr("reads_only_arguments")(made_by.attr("backward")).cast<bool>();
}

// torch's Python types of nodes have an attribute for each tensor that a node saves, custom functions one for all of theirs. They raise what
// a second backward does.
std::optional<std::vector<at::Tensor>> saved_by(torch::autograd::Node& node) {
  py::gil_scoped_acquire gil;
  py::object o = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(node.getptr()));
  std::vector<at::Tensor> out;
  auto add = [&](PyObject* value) {
    if (THPVariable_Check(value)) out.push_back(THPVariable_Unpack(value));
  };
  for (const PyTypeObject* type = Py_TYPE(o.ptr()); type; type = type->tp_base)
    for (const PyGetSetDef* field = type->tp_getset; field && field->name; ++field) {
      const std::string_view name = field->name;
      if (!name.starts_with("_saved_") && name != "saved_tensors") continue;
      const Ref value = undisturbed([&] { return field->get(o.ptr(), field->closure); });
      if (!value) {
        const py::error_already_set error;  // also of one that was written since
        const bool is_freed = std::string_view(error.what()).find(torch::autograd::ERR_BACKWARD_TWICE) != std::string_view::npos;
        if (error.matches(PyExc_RuntimeError) && is_freed) return std::nullopt;
        continue;
      }
      add(value.get());
      if (PyTuple_Check(value.get()))
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value.get()); ++i) add(PyTuple_GET_ITEM(value.get(), i));
    }
  return out;
}

// The dict of a tensor's hooks stays when the last one is removed. Torch does not show the class to others, but by its name. Of the dict one
// word is read, which needs no lock of Python's.
bool is_empty(const torch::autograd::FunctionPreHook& hook) {
  using OfTensor = torch::autograd::PyFunctionTensorPreHook;
  if (c10::demangle(typeid(hook).name()) != "torch::autograd::PyFunctionTensorPreHook") return false;
  PyObject* const hooks = static_cast<const OfTensor&>(hook).dict;
  return PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) == 0;
}

// A Python object whose `enter` and `leave` say from where this thread takes memory. No destructor of C++'s runs Python once it is over.
class PythonPool : public MemoryPool {
 public:
  explicit PythonPool(py::object pool) : pool_(std::move(pool)) {}
  ~PythonPool() override {
    if (!Py_IsInitialized()) {
      pool_.release();
      return;
    }
    py::gil_scoped_acquire gil;
    pool_ = py::object();
  }
  void enter() override {
    py::gil_scoped_acquire gil;
    try {
      pool_.attr("enter")();
    } catch (const py::error_already_set& e) {
      fail("a pool of memory: ", e.what());
    }
  }
  void leave() noexcept override {
    py::gil_scoped_acquire gil;
    try {
      pool_.attr("leave")();
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("a pool of memory");
    }
  }

 private:
  py::object pool_;
};

void set_pools(const py::function& make) {
  // Never freed: it may be asked for until the process ends.
  auto* kept = new py::function(make);
  set_memory_pools([kept](c10::Device d, bool lends) -> std::unique_ptr<MemoryPool> {
    py::gil_scoped_acquire gil;
    try {
      return std::make_unique<PythonPool>((*kept)(static_cast<int>(d.index()), lends));
    } catch (const py::error_already_set& e) {
      fail("a pool of memory: ", e.what());
    }
  });
}

void add_numbers(py::module_& m) {
  m.def("is_capturing_symbols", &Function::is_capturing_symbols);
  m.def("is_number",
        [](const py::object& node) { return py::isinstance<c10::SymNodeImpl>(node) && is_program_number(node.cast<c10::SymNode>()); });
  m.def("value_of_number", [](const c10::SymNode& node) { return recorded_value(node); });
  m.def("refuse_number", [](std::string why) {
    if (Capture* capture = Capture::current()) capture->reject({Outcome::unsupported, std::move(why)});
  });
  m.def("add_stand_ins", &add_stand_ins);
  m.def("set_indexing", &set_indexing);
  m.def("functions_of_numbers", [] {
    std::vector<std::string> names;
    for (const auto& f : HostFloats::functions()) names.emplace_back(f.name);
    return names;
  });
  m.def("function_of_number", [](const std::string& name, const c10::SymNode& node) -> py::object {
    auto all = HostFloats::functions();
    auto f = std::find_if(all.begin(), all.end(), [&](const auto& each) { return name == each.name; });
    c10::SymNode result = f == all.end() ? c10::SymNode() : apply_function(static_cast<size_t>(f - all.begin()), node);
    return result ? py::cast(result) : py::none();
  });
  m.def("whole_part", [](const c10::SymNode& node, bool up) -> py::object {
    const c10::SymNode part = whole_part(node, up);
    return part ? py::cast(part) : py::none();
  });
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  Capture::symbol_in_number = symbol_in_number;
  Capture::forget_error = [] {
    py::gil_scoped_acquire gil;
    PyErr_Clear();
  };
  is_registered_gradient = is_of_library;
  saved_tensors = saved_by;
  is_empty_hook = is_empty;
  unwrap_node = unwrap;
  wrap_node = wrap;
  add_callable_type(m);
  add_module_call(m);
  add_parts(m);
  add_numbers(m);
  add_checkpoints(m);
  m.def("set_line", &Function::set_line);
  m.def("is_capturing", &Function::is_capturing);
  m.def("reject_capture", [](std::string why) { Function::reject_capture({Outcome::rejected, std::move(why)}); });
  m.def("capture_obstacle", [] { return capture_keys().obstacle; });
  m.def("capture_keys", [] {  // none where something else has taken one
    std::vector<std::string> names;
    if (capture_keys().obstacle.empty()) names = {c10::toString(capture_keys().record), c10::toString(capture_keys().composite)};
    return names;
  });
  m.def("target_names", &target_names);
  m.def("has_cpu_target", [] { return cpu_target() != nullptr; });
  m.def("has_onednn", [] { return cpu_target() && cpu_target()->capabilities().contraction(Op::dot, DType::f32); });
  m.def("has_bf16_contractions", [] { return cpu_target() && cpu_target()->capabilities().contraction(Op::dot, DType::bf16); });
  m.def("set_onednn_path", [](std::string path) { set_library_path("onednn", std::move(path)); });
  m.def("is_watched", [](const at::Tensor& t) { return is_marked(*storage_of(t)); });
  m.def("set_profiling", &Profile::enable);
  m.def("is_profiling", &Profile::enabled);
  m.def("release_memory", [] {
    HostMemory::get().clear();
    trim_step_memory();
  });
  m.def("take_bugs", &take_bugs);
  m.def("set_memory_pools", &set_pools);
  m.def("pass_names", [] {
    std::vector<std::string> names;
    for (const Pass& p : passes())
      if (!p.is_needed) names.emplace_back(p.name);
    return names;
  });
  m.def("idle_arena_bytes", [] { return HostMemory::get().idle_bytes() + static_cast<int64_t>(idle_step_memory()); });
}

}  // namespace broach
