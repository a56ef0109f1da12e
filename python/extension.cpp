// The Python extension: the type of compiled callables, and a few switches.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "callable.h"
#include "function.h"
#include "runtime/memory.h"
#include "target/target.h"

namespace py = pybind11;

namespace broach {

PYBIND11_MODULE(_C, m) {
  add_callable_type(m);
  m.def("set_line", &Function::set_line);
  m.def("has_cpu_target", [] { return cpu_target() != nullptr; });
  m.def("has_onednn", [] { return cpu_target() && cpu_target()->has_contractions(DType::f32); });
  m.def("set_onednn_path", [](std::string path) { set_library_path("onednn", std::move(path)); });
  m.def("release_memory", [] { ArenaPool::get().clear(); });
  m.def("idle_arena_bytes", [] { return ArenaPool::get().idle_bytes(); });
}

}  // namespace broach
