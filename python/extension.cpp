// The Python extension: compiled functions as callables, and what `explain` shows of them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include "capture.h"
#include "function.h"
#include "runtime/memory.h"
#include "target/target.h"

namespace py = pybind11;

namespace broach {

namespace {

// Where a program's outputs go in the list that Python gets: a tensor, a number that follows from sizes, or a constant that
// the program returned.
struct OutputSlot {
  int tensor = -1, integer = -1;
  py::object constant;
};
struct OutputForm {
  std::vector<OutputSlot> slots;
  bool is_tuple = false;
};

// A Python callable with flat arguments and results, some of which are tensors. What is no tensor (sizes, flags) is part of
// the program: each combination of values has a Function of its own.
class PyFunction {
 public:
  PyFunction(py::object callable, std::vector<bool> constant_inputs, ProgramOptions options)
      : callable_(std::move(callable)), constant_inputs_(std::move(constant_inputs)), options_(std::move(options)) {}

  py::object call(const py::args& args) {
    std::vector<at::Tensor> inputs;
    std::vector<int64_t> ints;
    py::list others;
    for (auto a : args) {
      if (THPVariable_Check(a.ptr())) inputs.push_back(THPVariable_Unpack(a.ptr()));
      else if (PyLong_CheckExact(a.ptr())) ints.push_back(a.cast<int64_t>());
      else others.append(a);
    }
    Version& version = version_for(py::tuple(others));
    Pending pending{&args, {}};
    Pending* before = std::exchange(pending_, &pending);
    Function::Results results;
    try {
      py::gil_scoped_release release;
      results = version.function(inputs, ints);
    } catch (...) {
      pending_ = before;
      throw;
    }
    pending_ = before;
    return pending.result ? std::move(*pending.result) : Version::rebuild(results);
  }

  std::vector<Function*> functions() {
    std::vector<Function*> out;
    for (auto& v : versions_) out.push_back(&v->function);
    return out;
  }

 private:
  // The call under way on this thread: an eager run hands its own result objects through here.
  struct Pending {
    const py::args* args;
    std::optional<py::object> result;
  };

  struct Version {
    Version(PyFunction& owner, py::tuple others)
        : others(std::move(others)), function([&owner](at::TensorList inputs, c10::SymIntArrayRef ints) { return eager(owner, inputs, ints); }, owner.constant_inputs_, owner.options_) {}

    // The arguments of the call with these tensors and integers in the place of the caller's.
    static py::tuple with(const py::args& args, at::TensorList inputs, c10::SymIntArrayRef ints) {
      py::tuple out(args.size());
      size_t tensor = 0, integer = 0;
      for (size_t i = 0; i < args.size(); ++i) {
        py::handle a = args[i];
        if (THPVariable_Check(a.ptr())) out[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(inputs[tensor++]));
        else if (PyLong_CheckExact(a.ptr())) out[i] = py::cast(ints[integer++]);
        else out[i] = py::reinterpret_borrow<py::object>(a);
      }
      return out;
    }

    static Function::Results eager(PyFunction& owner, at::TensorList inputs, c10::SymIntArrayRef ints) {
      py::gil_scoped_acquire gil;
      py::object result = py::reinterpret_steal<py::object>(PyObject_CallObject(owner.callable_.ptr(), with(*pending_->args, inputs, ints).ptr()));
      if (!result) throw py::error_already_set();
      Function::Results out;
      auto form = std::shared_ptr<OutputForm>(new OutputForm, [](OutputForm* f) {
        py::gil_scoped_acquire gil;  // the last version may be dropped on any thread
        delete f;
      });
      for (auto o : result) {
        OutputSlot slot;
        if (THPVariable_Check(o.ptr())) {
          slot.tensor = static_cast<int>(out.tensors.size());
          out.tensors.push_back(THPVariable_Unpack(o.ptr()));
        } else if (PyLong_CheckExact(o.ptr()) || torch::is_symint(o)) {
          slot.integer = static_cast<int>(out.ints.size());
          out.ints.push_back(o.cast<c10::SymInt>());
        } else {
          slot.constant = py::reinterpret_borrow<py::object>(o);
        }
        form->slots.push_back(std::move(slot));
      }
      form->is_tuple = py::isinstance<py::tuple>(result);
      out.form = form;
      if (!Function::is_capturing_symbols()) pending_->result = std::move(result);
      return out;
    }

    static py::object rebuild(const Function::Results& results) {
      const auto& form = *static_cast<const OutputForm*>(results.form.get());
      py::list out(form.slots.size());
      for (size_t i = 0; i < form.slots.size(); ++i) {
        const OutputSlot& slot = form.slots[i];
        if (slot.tensor >= 0) out[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(results.tensors[static_cast<size_t>(slot.tensor)]));
        else if (slot.integer >= 0) out[i] = py::cast(results.ints[static_cast<size_t>(slot.integer)]);
        else out[i] = slot.constant;
      }
      return form.is_tuple ? py::object(py::tuple(out)) : py::object(out);
    }

    py::tuple others;
    Function function;
  };

  Version& version_for(py::tuple others) {
    for (auto& v : versions_)
      if (v->others.equal(others)) return *v;
    versions_.push_back(std::make_unique<Version>(*this, std::move(others)));
    return *versions_.back();
  }

  py::object callable_;
  std::vector<bool> constant_inputs_;
  ProgramOptions options_;
  std::vector<std::unique_ptr<Version>> versions_;  // changed under the GIL only
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
  if (d.contains("dynamic") && !d["dynamic"].is_none()) o.dynamic = d["dynamic"].cast<bool>() ? ProgramOptions::Dynamic::always : ProgramOptions::Dynamic::never;
  if (d.contains("symbolic_dims")) o.symbolic_dims = d["symbolic_dims"].cast<std::vector<uint64_t>>();
  if (d.contains("compile_threads")) o.settings.threads = d["compile_threads"].cast<int>();
  if (d.contains("disable_passes")) o.disabled_passes = d["disable_passes"].cast<std::vector<std::string>>();
  if (d.contains("progress") && !d["progress"].is_none()) {
    auto callback = std::make_shared<py::object>(d["progress"]);
    o.settings.progress = [callback](int done, int all) {
      py::gil_scoped_acquire gil;
      (*callback)(done, all);
    };
  }
  return o;
}

py::dict dict_of(const ProgramStats& x) {
  py::dict e;
  e["kernels"] = x.code.kernels;
  e["distinct_kernels"] = x.code.distinct_kernels;
  e["contractions"] = x.code.contractions;
  e["routines"] = x.code.routines;
  e["externs"] = x.code.externs;
  e["code_bytes"] = x.code.code_bytes;
  e["seconds"] = x.seconds;
  e["picks"] = x.picks;
  e["guards"] = x.guards;
  e["packed_bytes"] = x.packed_bytes;
  e["arena_bytes"] = x.arena_bytes;
  e["graph"] = x.graph_text;
  e["schedule"] = x.schedule_text;
  py::list steps;
  for (const StepProfile& p : x.steps) steps.append(py::make_tuple(p.name, p.line, p.runs, p.seconds, p.bytes, p.flops));
  e["steps"] = steps;
  return e;
}

py::dict stats_of(PyFunction& f) {
  FunctionStats s;
  py::list programs;
  for (Function* each : f.functions()) {
    FunctionStats one = each->stats();
    s.calls += one.calls;
    s.compiled_calls += one.compiled_calls;
    s.eager_calls += one.eager_calls;
    auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(s.recompilations, one.recompilations);
    append(s.eager_reasons, one.eager_reasons);
    append(s.capture_seconds, one.capture_seconds);
    append(s.compile_seconds, one.compile_seconds);
    for (const auto& p : each->programs()) programs.append(dict_of(p->stats()));
  }
  py::dict d;
  d["calls"] = s.calls;
  d["compiled_calls"] = s.compiled_calls;
  d["eager_calls"] = s.eager_calls;
  d["recompilations"] = s.recompilations;
  d["eager_reasons"] = s.eager_reasons;
  d["capture_seconds"] = s.capture_seconds;
  d["compile_seconds"] = s.compile_seconds;
  d["programs"] = programs;
  return d;
}

}  // namespace

// torch's argument parser passes a symbolic integer in a tensor's position as a placeholder with this attribute.
std::optional<c10::Scalar> symbol_in_number(const at::Tensor& t) {
  py::gil_scoped_acquire gil;
  py::object o = py::reinterpret_steal<py::object>(THPVariable_Wrap(t));
  if (!py::hasattr(o, "_wrapped_number")) return std::nullopt;
  py::object number = o.attr("_wrapped_number");
  if (torch::is_symint(number)) return c10::Scalar(number.cast<c10::SymInt>());
  if (torch::is_symfloat(number)) return c10::Scalar(number.cast<c10::SymFloat>().guard_float(__FILE__, __LINE__));
  return c10::Scalar(number.cast<bool>());
}

PYBIND11_MODULE(_C, m) {
  Capture::symbol_in_number = symbol_in_number;
  py::class_<PyFunction>(m, "Function")
      .def(py::init([](py::object callable, std::vector<bool> constant_inputs, const py::dict& options) {
        return std::make_unique<PyFunction>(std::move(callable), std::move(constant_inputs), options_from(options));
      }))
      .def("__call__", &PyFunction::call)
      .def("stats", &stats_of)
      .def("reset", [](PyFunction& f) { for (Function* each : f.functions()) each->reset(); });
  m.def("set_line", &Function::set_line);
  m.def("is_capturing", &Function::is_capturing);
  m.def("has_cpu_target", [] { return cpu_target() != nullptr; });
  m.def("has_onednn", [] { return cpu_target() && cpu_target()->has_contractions(DType::f32); });
  m.def("set_onednn_path", [](std::string path) { set_library_path("onednn", std::move(path)); });
  m.def("set_profiling", &Profile::enable);
  m.def("is_profiling", &Profile::enabled);
  m.def("release_memory", [] { ArenaPool::get().clear(); });
  m.def("idle_arena_bytes", [] { return ArenaPool::get().idle_bytes(); });
}

}  // namespace broach
