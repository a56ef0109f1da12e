#include "checkpoints.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "capture.h"
#include "instances.h"
#include "state.h"
#include "support/error.h"
#include "version.h"

namespace py = pybind11;

namespace broach {

namespace {

// What a checkpoint's function is and is given, and the places that the program keeps values in: eager writes to them again as often as
// it computes gradients, which a compiled program does not.
class CheckpointUnderWay {
 public:
  CheckpointUnderWay(PyObject* function, PyObject* arguments) {
    reached_.watch(function, "a checkpoint's function");
    reached_.watch(arguments, "a checkpoint's argument");
    if (const Pending* p = Pending::current())
      for (const StatePlace& place : p->version->form.places()) kept_.push_back({place, elements(place)});
  }

  // What it has written, or may have without its being seen; empty if nothing.
  Reason why_not_again() const {
    if (!reached_.problems().empty()) return reached_.problems().front();
    if (auto changes = reached_.changes(); !changes.empty()) return writes(changes.front().path);
    for (const auto& [place, before] : kept_) {
      const std::vector<Ref> now = elements(place);
      bool same = now.size() == before.size();
      for (size_t i = 0; same && i < now.size(); ++i) same = same_value(now[i].get(), before[i].get());
      if (!same) return writes(place.path);
    }
    return {};
  }

 private:
  static Reason writes(const std::string& path) {
    return {cat("a checkpoint writes ", path, ", which eager does again for gradients"), Fallback::eager};
  }

  static std::vector<Ref> elements(const StatePlace& place) {
    if (place.kind != StatePlace::Kind::whole && place.kind != StatePlace::Kind::tail) return {Ref::borrow(place.value())};
    std::vector<Ref> out;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(place.owner.get()); ++i) out.push_back(Ref::borrow(PyList_GET_ITEM(place.owner.get(), i)));
    return out;
  }

  State reached_;
  std::vector<std::pair<StatePlace, std::vector<Ref>>> kept_;
};

std::vector<std::unique_ptr<CheckpointUnderWay>>& under_way() {
  thread_local std::vector<std::unique_ptr<CheckpointUnderWay>> all;
  return all;
}

Capture* recording() {
  Capture* c = Capture::current();
  return c && !c->is_abandoned() ? c : nullptr;
}

// Whether it is to be recorded as a region; otherwise this run goes on as without a capture.
bool meets() {
  Pending* p = Pending::current();
  Capture* c = recording();
  if (!p || !c || p->subject->has_checkpoints) return p && c;
  p->met_checkpoint = true;
  c->reject({Outcome::learnt, Pending::kMetCheckpoint});
  return false;
}

void begin(const py::object& function, const py::object& arguments, std::vector<at::Tensor> given, bool is_reentrant, bool keeps_random) {
  under_way().push_back(std::make_unique<CheckpointUnderWay>(function.ptr(), arguments.ptr()));
  Capture::Region region;
  region.given = std::move(given);
  region.is_reentrant = is_reentrant;
  region.repeats_random = keeps_random;
  if (Capture* c = recording()) c->begin_region(std::move(region));
}

void end() {
  std::unique_ptr<CheckpointUnderWay> checkpoint = std::move(under_way().back());
  under_way().pop_back();
  if (Capture* c = recording(); c && !c->regions().empty()) c->end_region();
  Reason why = checkpoint->why_not_again();
  if (Pending* p = Pending::current(); p && p->written_again.empty()) p->written_again = std::move(why);
}

void check_results(const py::object& results) {
  Capture* c = recording();
  if (!c) return;
  if (!is_tensor(results.ptr()) && !PyTuple_CheckExact(results.ptr()))
    return c->refuse_gradients("a checkpoint with use_reentrant=True gives something else than tensors");
  std::vector<PyObject*> tensors;
  if (is_tensor(results.ptr())) tensors.push_back(results.ptr());
  else
    for (py::handle r : py::reinterpret_borrow<py::tuple>(results))
      if (is_tensor(r.ptr())) tensors.push_back(r.ptr());
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string why = c->why_no_result(THPVariable_Unpack(tensors[i]));
    if (std::find(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(i), tensors[i]) !=
        tensors.begin() + static_cast<std::ptrdiff_t>(i))
      why = "a checkpoint with use_reentrant=True gives a tensor twice";
    if (!why.empty()) return c->refuse_gradients(std::move(why));
  }
}

}  // namespace

void add_checkpoints(py::module_& m) {
  m.def("meets_checkpoint", &meets);
  m.def("begin_checkpoint", &begin);
  m.def("check_results_of_checkpoint", &check_results);
  m.def("end_checkpoint", &end);
}

}  // namespace broach
