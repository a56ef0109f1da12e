// The Python extension: compiled functions as callables, and what `explain` shows of them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "function.h"
#include "runtime/memory.h"
#include "target/target.h"

namespace py = pybind11;

namespace broach {

namespace {

// Where a program's outputs go in the list that Python gets: a tensor, or a constant that the program returned.
struct OutputSlot {
  int tensor = -1;
  py::object constant;
};

// A Function over a Python callable that takes a list of arguments and gives a list or tuple of results, some of which are
// tensors.
class PyFunction {
 public:
  PyFunction(py::object callable, std::vector<bool> constant_inputs, ProgramOptions options)
      : callable_(std::move(callable)), function_([this](at::TensorList inputs) { return eager(inputs); }, std::move(constant_inputs), std::move(options)) {}

  py::object call(const py::args& args) {
    std::vector<at::Tensor> inputs;
    std::vector<py::object> others;
    for (auto a : args) {
      if (THPVariable_Check(a.ptr())) inputs.push_back(THPVariable_Unpack(a.ptr()));
      else others.push_back(py::reinterpret_borrow<py::object>(a));
    }
    Pending pending{&args, {}};
    Pending* before = pending_;
    pending_ = &pending;
    std::vector<at::Tensor> results;
    try {
      py::gil_scoped_release release;
      results = function_(inputs);
    } catch (...) {
      pending_ = before;
      throw;
    }
    pending_ = before;
    if (pending.result) return std::move(*pending.result);
    return rebuild(results);
  }

  Function& function() { return function_; }

 private:
  // The call under way on this thread: an eager run hands its own result objects through here.
  struct Pending {
    const py::args* args;
    std::optional<py::object> result;
  };

  std::vector<at::Tensor> eager(at::TensorList) {
    py::gil_scoped_acquire gil;
    py::object result = py::reinterpret_steal<py::object>(PyObject_CallObject(callable_.ptr(), pending_->args->ptr()));
    if (!result) throw py::error_already_set();
    std::vector<at::Tensor> tensors;
    std::vector<OutputSlot> slots;
    is_tuple_ = py::isinstance<py::tuple>(result);
    for (auto o : result) {
      if (THPVariable_Check(o.ptr())) {
        slots.push_back({static_cast<int>(tensors.size()), {}});
        tensors.push_back(THPVariable_Unpack(o.ptr()));
      } else {
        slots.push_back({-1, py::reinterpret_borrow<py::object>(o)});
      }
    }
    slots_ = std::move(slots);
    pending_->result = std::move(result);
    return tensors;
  }

  py::object rebuild(const std::vector<at::Tensor>& results) {
    py::list out;
    for (const OutputSlot& s : slots_) {
      if (s.tensor < 0) out.append(s.constant);
      else out.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(results[static_cast<size_t>(s.tensor)])));
    }
    return is_tuple_ ? py::object(py::tuple(out)) : py::object(out);
  }

  py::object callable_;
  Function function_;
  std::vector<OutputSlot> slots_;
  bool is_tuple_ = false;
  static thread_local Pending* pending_;
};

thread_local PyFunction::Pending* PyFunction::pending_ = nullptr;

ProgramOptions options_from(const py::dict& d) {
  ProgramOptions o;
  auto flag = [&](const char* name, bool& into) { if (d.contains(name)) into = d[name].cast<bool>(); };
  flag("strict", o.strict);
  flag("freeze", o.freeze);
  flag("fuse", o.fuse);
  flag("lower", o.lower);
  if (d.contains("compile_threads")) o.compile_threads = d["compile_threads"].cast<int>();
  if (d.contains("disable_passes")) o.disabled_passes = d["disable_passes"].cast<std::vector<std::string>>();
  if (d.contains("progress") && !d["progress"].is_none()) {
    auto callback = std::make_shared<py::object>(d["progress"]);
    o.progress = [callback](int done, int all) {
      py::gil_scoped_acquire gil;
      (*callback)(done, all);
    };
  }
  return o;
}

py::dict stats_of(PyFunction& f) {
  FunctionStats s = f.function().stats();
  py::dict d;
  d["calls"] = s.calls;
  d["compiled_calls"] = s.compiled_calls;
  d["eager_calls"] = s.eager_calls;
  d["recompilations"] = s.recompilations;
  d["eager_reasons"] = s.eager_reasons;
  d["capture_seconds"] = s.capture_seconds;
  d["compile_seconds"] = s.compile_seconds;
  py::list programs;
  for (const auto& p : f.function().programs()) {
    ProgramStats x = p->stats();
    py::dict e;
    e["kernels"] = x.code.kernels;
    e["distinct_kernels"] = x.code.distinct_kernels;
    e["contractions"] = x.code.contractions;
    e["externs"] = x.code.externs;
    e["code_bytes"] = x.code.code_bytes;
    e["seconds"] = x.seconds;
    e["picks"] = x.picks;
    e["guards"] = x.guards;
    e["packed_bytes"] = x.packed_bytes;
    e["arena_bytes"] = x.arena_bytes;
    e["graph"] = x.graph_text;
    e["schedule"] = x.schedule_text;
    programs.append(e);
  }
  d["programs"] = programs;
  return d;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  py::class_<PyFunction>(m, "Function")
      .def(py::init([](py::object callable, std::vector<bool> constant_inputs, const py::dict& options) {
        return std::make_unique<PyFunction>(std::move(callable), std::move(constant_inputs), options_from(options));
      }))
      .def("__call__", &PyFunction::call)
      .def("stats", &stats_of)
      .def("reset", [](PyFunction& f) { f.function().reset(); });
  m.def("set_line", &Function::set_line);
  m.def("has_cpu_target", [] { return cpu_target() != nullptr; });
  m.def("has_onednn", [] { return cpu_target() && cpu_target()->has_contractions(DType::f32); });
  m.def("set_onednn_path", [](std::string path) { set_library_path("onednn", std::move(path)); });
  m.def("release_memory", [] { ArenaPool::get().clear(); });
  m.def("idle_arena_bytes", [] { return ArenaPool::get().idle_bytes(); });
}

}  // namespace broach
