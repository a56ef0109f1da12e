#include "compile.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "passes/passes.h"
#include "schedule/failures.h"
#include "support/bug.h"
#include "support/error.h"

namespace broach {

namespace {

bool wants_dump(const char* stage) {
  const char* stages = std::getenv("BROACH_DUMP");
  return stages && cat(",", stages, ",").find(cat(",", stage, ",")) != std::string::npos;
}

void dump(const char* stage, const std::string& title, const std::function<std::string()>& text) {
  if (wants_dump(stage)) std::cerr << cat("# ", title, "\n", text(), "\n");
}

class Stopwatch {
 public:
  explicit Stopwatch(std::vector<std::pair<std::string, double>>& seconds) : seconds_(seconds), start_(now()) {}
  void lap(const char* stage) {
    seconds_.push_back({stage, std::chrono::duration<double>(now() - start_).count()});
    start_ = now();
  }
  void skip() { start_ = now(); }

 private:
  static std::chrono::steady_clock::time_point now() { return std::chrono::steady_clock::now(); }
  std::vector<std::pair<std::string, double>>& seconds_;
  std::chrono::steady_clock::time_point start_;
};

// Inputs keep the caller's strides; those that a prologue makes are contiguous. Behind them `carried`.
std::vector<Shape> input_strides(const Graph& graph, std::vector<Shape> given, const std::vector<Shape>& carried) {
  for (size_t i = given.size(); i + carried.size() < graph.inputs().size(); ++i)
    given.push_back(contiguous_strides(graph.inputs()[i].shape()));
  given.insert(given.end(), carried.begin(), carried.end());
  return given;
}

// These inputs' new elements become outputs, which whoever runs the program copies once nothing can fail any more.
void write_at_the_end(const std::vector<int>& inputs, Program& program, std::vector<OutputRequest>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const int m = requests[i].into_input;
    if (std::find(inputs.begin(), inputs.end(), m) == inputs.end()) continue;
    program.commits.push_back({m, static_cast<int>(i)});
    requests[i] = {program.input_strides[static_cast<size_t>(m)], -1};
  }
}

// Every form has a text that says all of it, and keeps its own rules.
template <class Form>
void verify_form(const char* stage, const Form& form) {
  if (!verifies()) return;
  try {
    form.verify();
    const std::string text = form.str(), again = Form::parse(text).str();
    check(again == text, "its text reads back as another:\n", text, "\n", again);
  } catch (const Error& e) {
    report_bug(stage, e.what(), "the form is used as it is");
  }
}

// A step runs where what it touches lies. Calls of the host's library find that out by themselves.
void place(Schedule& schedule) {
  for (Step& s : schedule.steps)
    for (const auto* touched : {&s.reads, &s.writes})
      for (int b : *touched)
        if (const Device d = schedule.buffers[static_cast<size_t>(b)].type.device;
            s.device == Device{} && !std::holds_alternative<ExternStep>(s.work))
          s.device = d;
}

// What a device's steps read of the host's, such as a tensor without dimensions beside the device's, has to be copied where the host
// cannot address its memory.
Schedule with_copies(Schedule schedule, const Targets& targets) {
  std::vector<Device> met{Device{}};
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Device d = schedule.steps[i].device;
    if (std::find(met.begin(), met.end(), d) != met.end()) continue;
    met.push_back(d);
    if (!targets.has({}) || &targets.on(d) != &targets.on({})) schedule = bridge(std::move(schedule), d);
  }
  return schedule;
}

// What most of a program runs on: the device that its tensors lie on, if that is not the host.
const Target& main_target(const Trace& trace, const Targets& targets) {
  for (const TraceTensor& t : trace.tensors)
    if (t.type.device != Device{} && targets.has(t.type.device)) return targets.on(t.type.device);
  return targets.on(targets.host_runs_on());
}

std::vector<OutputRequest> contiguous_outputs(const Graph& graph) {
  std::vector<OutputRequest> requests;
  for (const Value& v : graph.outputs()) requests.push_back({contiguous_strides(v.shape()), -1});
  return requests;
}

}  // namespace

CompiledTrace compile_trace(const Trace& trace, std::vector<bool> constant, const Targets& targets, const ExternFactory& externs,
                            const PipelineOptions& options) {
  CompiledTrace out;
  Stopwatch watch(out.seconds);
  dump("trace", "trace", [&] { return trace.str(); });
  verify_form("trace", trace);
  Capabilities capabilities = main_target(trace, targets).capabilities();
  if (!options.settings.contractions.library) capabilities.contractions.clear();
  out.program = functionalize(trace, {capabilities, options.lower});
  watch.lap("functionalise");
  dump("graph", "graph", [&] { return out.program.graph->str(); });
  verify_form("graph", *out.program.graph);

  for (int m : out.program.mutated_inputs) constant[static_cast<size_t>(m)] = false;
  Module module{out.program.graph, out.program.requests, nullptr, nullptr};
  auto observe = [](const char* pass, const Module& m) { dump("passes", cat("after ", pass), [&] { return m.str(); }); };
  run_passes(module, {std::move(constant), options.freeze, options.settings.strict, capabilities.reductions}, options.disabled_passes,
             &out.seconds, observe);
  out.program.graph = module.graph;
  out.segments = module.segments;

  std::vector<int> numbers;
  for (size_t i = trace.inputs.size() - trace.numbers.size(); i < trace.inputs.size(); ++i) numbers.push_back(static_cast<int>(i));
  auto build = [&](std::shared_ptr<const Graph> g, std::vector<OutputRequest> requests, const std::vector<Shape>& carried = {}) {
    auto strides = input_strides(*g, out.program.input_strides, carried);
    watch.skip();
    auto scheduled = [&] { return make_schedule(g, strides, requests, {options.settings.strict, options.fuse, numbers, capabilities}); };
    Schedule schedule = scheduled();
    if (auto early = written_too_early(schedule, requests); !early.empty()) {
      write_at_the_end(early, out.program, requests);
      schedule = scheduled();
    }
    place(schedule);
    if (const Device d = targets.host_runs_on(); d != Device{}) schedule = offload(std::move(schedule), d);
    else schedule = with_copies(std::move(schedule), targets);
    watch.lap("schedule");
    dump("schedule", "schedule", [&] { return schedule.str(); });
    verify_form("graph", *g);
    verify_form("schedule", schedule);
    watch.skip();
    auto executable = std::make_shared<const Executable>(std::move(schedule), targets, options.settings, externs);
    watch.lap("generate code");
    out.stages.emplace_back(std::move(g), executable);
    return executable;
  };
  if (module.prologue) out.prologue = build(module.prologue, contiguous_outputs(*module.prologue));
  if (!module.segments) {
    out.main = build(module.graph, module.requests);
    return out;
  }
  for (const Segment& s : module.segments->list) {
    std::vector<Shape> carried;
    for (size_t slot : s.carried) carried.push_back(module.segments->slots[slot].strides);
    auto executable = build(s.graph, s.requests, carried);
    if (!out.main) out.main = std::move(executable);
    else out.later.push_back(std::move(executable));
  }
  return out;
}

}  // namespace broach
