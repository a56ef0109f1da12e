#include "stats.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace broach {

ProgramOptions options_from(const py::dict& d) {
  ProgramOptions o;
  auto flag = [&](const char* name, bool& into) {
    if (d.contains(name)) into = d[name].cast<bool>();
  };
  flag("strict", o.settings.strict);
  flag("freeze", o.freeze);
  flag("whole", o.whole);
  o.eager_random = !d.contains("rng") || d["rng"].cast<std::string>() == "eager";
  if (d.contains("memory_budget")) o.memory_budget = d["memory_budget"].cast<double>();
  if (d.contains("gradient_parts")) o.gradient_parts = d["gradient_parts"].cast<int>();
  flag("fuse", o.fuse);
  flag("lower", o.lower);
  flag("deterministic", o.settings.contractions.deterministic);
  if (d.contains("dynamic") && !d["dynamic"].is_none())
    o.dynamic = d["dynamic"].cast<bool>() ? ProgramOptions::Dynamic::always : ProgramOptions::Dynamic::never;
  if (d.contains("symbolic_dims")) o.symbolic_dims = d["symbolic_dims"].cast<std::vector<uint64_t>>();
  if (d.contains("branches")) o.branches = d["branches"].cast<int>();
  if (d.contains("compile_threads")) o.settings.threads = d["compile_threads"].cast<int>();
  if (d.contains("target")) o.target = d["target"].cast<std::string>();
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

namespace {

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
  py::list kept;
  for (const KeptWeight& k : x.kept)
    kept.append(py::make_tuple(reinterpret_cast<uintptr_t>(k.address), k.bytes, k.text, name_of(k.why), k.gain ? k.gain->packed : 0.0,
                               k.gain ? k.gain->unpacked : 0.0));
  e["kept"] = kept;
  e["arena_bytes"] = x.arena_bytes;
  e["saved_bytes"] = x.saved_bytes;
  e["reruns"] = x.reruns;
  e["recordings"] = x.recordings.made;
  e["recordable_runs"] = x.recordings.runs;
  e["replays"] = x.recordings.replays;
  e["graph"] = x.graph_text;
  e["schedule"] = x.schedule_text;
  py::list steps;
  for (const StepProfile& p : x.steps) steps.append(py::make_tuple(p.name, p.line, p.runs, p.seconds, p.bytes, p.flops));
  e["steps"] = steps;
  return e;
}

}  // namespace

template <class F>
static py::list listed(const std::vector<Attempt>& attempts, const F& f) {
  py::list out;
  for (const Attempt& a : attempts) out.append(f(a));
  return out;
}

py::dict stats_of(const std::vector<Function*>& functions, const std::vector<Attempt>& attempts) {
  FunctionStats s;
  py::list programs;
  for (Function* each : functions) {
    FunctionStats one = each->stats();
    s.calls += one.calls;
    s.compiled_calls += one.compiled_calls;
    s.eager_calls += one.eager_calls;
    s.other_ways += one.other_ways;
    auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(s.recompilations, one.recompilations);
    append(s.eager_reasons, one.eager_reasons);
    for (const auto& p : each->programs()) programs.append(dict_of(p->stats()));
  }
  py::dict d;
  d["calls"] = s.calls;
  d["other_ways"] = s.other_ways;
  d["compiled_calls"] = s.compiled_calls;
  d["eager_calls"] = s.eager_calls;
  d["recompilations"] = s.recompilations;
  d["eager_reasons"] = s.eager_reasons;
  d["capture_seconds"] = listed(attempts, [](const Attempt& a) { return a.capture_seconds; });
  d["compile_seconds"] = listed(attempts, [](const Attempt& a) { return a.compile_seconds; });
  d["attempts"] = listed(attempts, [](const Attempt& a) {
    return py::make_tuple(name_of(a.with), name_of(a.verdict.outcome), a.verdict.reason.text, a.then);
  });
  d["programs"] = programs;
  return d;
}

}  // namespace broach
