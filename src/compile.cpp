#include "compile.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <tuple>

#include "passes/passes.h"
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

Device device_of(const Graph& graph) {
  for (const Node& n : graph.nodes())
    for (const Type& t : n.results)
      if (t.device != Device{}) return t.device;
  return {};
}

void observe(const char* pass, const Module& m) {
  dump("passes", cat("after ", pass), [&] { return m.str(); });
}

// A graph of a program on its way to something that runs.
struct StageCompiler {
  const Targets& targets;
  const ExternFactory& externs;
  const PipelineOptions& options;
  std::shared_ptr<const Capabilities> capabilities;
  std::vector<int> numbers = {};  // inputs that are numbers of the host's

  // The graph as it runs, and what runs it.
  std::pair<std::shared_ptr<const Graph>, std::shared_ptr<const Executable>> compile(
      std::shared_ptr<const Graph> g, std::vector<std::pair<std::string, double>>& seconds) const {
    Module module{std::move(g), nullptr, nullptr};
    run_passes(module, Pass::Part::stage, context({}), options.disabled_passes, &seconds, observe);
    Stopwatch watch(seconds);
    Schedule schedule = make_schedule(module.graph, {options.settings.strict, options.fuse, numbers});
    place(schedule);
    if (const Device d = targets.host_runs_on(); d != Device{}) schedule = offload(std::move(schedule), d);
    else schedule = with_copies(std::move(schedule), targets);
    watch.lap("schedule");
    dump("schedule", "schedule", [&] { return schedule.str(); });
    verify_form("graph", *module.graph);
    verify_form("schedule", schedule);
    watch.skip();
    auto executable = std::make_shared<const Executable>(std::move(schedule), targets, options.settings, externs);
    watch.lap("generate code");
    return {module.graph, executable};
  }

  PassContext context(std::vector<bool> constant) const {
    return {std::move(constant), options.freeze, options.settings.strict, options.fuse, capabilities.get()};
  }
};

// Those of the target, as far as the options let it use its libraries.
std::shared_ptr<const Capabilities> capabilities_of(const Target& target, const PipelineOptions& options) {
  if (options.settings.contractions.library) return {std::shared_ptr<const Capabilities>(), &target.capabilities()};
  auto out = std::make_shared<Capabilities>(target.capabilities());
  out->contractions.clear();
  return out;
}

// ---- gradients ----

bool is_made(const ResultSpec& r) { return r.kind == ResultSpec::Kind::fresh || r.kind == ResultSpec::Kind::view_of_fresh; }
bool is_given(const ResultSpec& r) { return r.kind == ResultSpec::Kind::input || r.kind == ResultSpec::Kind::view_of_input; }

// Storages whose elements eager reads for gradients: it holds a tensor there for them, and would notice a write to it.
std::vector<bool> read_for_gradients(const Trace& trace, size_t first_op) {
  std::map<int32_t, bool> read;
  for (size_t i = first_op; i < trace.ops.size(); ++i)
    for_each_tensor(trace.ops[i].args, [&](TensorId id) { read[trace.tensors[static_cast<size_t>(id)].storage] = true; });
  std::vector<bool> out;
  for (const TraceTensor& t : trace.tensors) out.push_back(read.contains(t.storage));
  return out;
}

Joint joint_of(const Trace& trace, const Program& program, const TracedGradients& traced) {
  Joint joint;
  joint.tangents = traced.tangents;
  const size_t first = program.results.size() - program.reads - traced.gradients, outputs = program.graph->outputs().size();
  joint.is_gradient.resize(outputs);
  joint.output_kept.resize(outputs);
  const std::vector<bool> read = read_for_gradients(trace, traced.first_op);
  std::vector<bool> is_result(outputs);
  for (size_t i = 0; i < program.results.size(); ++i) {
    const ResultSpec& r = program.results[i];
    if (!is_made(r)) continue;
    const auto at = static_cast<size_t>(r.index);
    const bool gradient = i >= first && i < first + traced.gradients;
    if (gradient) joint.is_gradient[at] = true;
    else is_result[at] = true;
    if (joint.is_gradient[at] && is_result[at]) unsupported("a gradient lies in the memory of a result");
    if (i < first && r.kind == ResultSpec::Kind::fresh) joint.output_kept[at] = read[static_cast<size_t>(trace.outputs[i])];
  }
  for (size_t i = 0; i < trace.inputs.size(); ++i) {
    const bool written =
        std::find(program.mutated_inputs.begin(), program.mutated_inputs.end(), static_cast<int>(i)) != program.mutated_inputs.end();
    if (written && i + traced.tangents >= trace.inputs.size()) unsupported("the gradient of a result is written");
    joint.input_kept.push_back(!written && read[static_cast<size_t>(trace.inputs[i])]);
  }
  return joint;
}

// The part of the program that is computed at once stays in `module` and `program`.
std::shared_ptr<BackwardStage> split_gradients(const Trace& trace, const TracedGradients& traced, double budget, Program& program,
                                               Module& module) {
  Joint joint = joint_of(trace, program, traced);
  joint.memory_budget = budget;
  Partition parts = partition(*module.graph, joint);
  auto out = std::make_shared<BackwardStage>();
  out->graph = std::move(parts.backward);
  out->inputs = std::move(parts.inputs);
  out->saved = std::move(parts.saved);
  out->tangents = traced.tangents;
  out->saved_bytes = parts.saved_bytes;
  std::vector<int> position;  // of each output in its own graph
  int before = 0, later = 0;
  for (bool is_gradient : joint.is_gradient) position.push_back(is_gradient ? later++ : before++);
  module.graph = std::move(parts.forward);
  const size_t tangent = program.input_strides.size() - traced.tangents, first_tangent = out->inputs.size() + out->saved.size();
  program.input_strides.resize(tangent);
  const auto end = program.results.end() - static_cast<std::ptrdiff_t>(program.reads);
  const auto first = end - static_cast<std::ptrdiff_t>(traced.gradients);
  out->results.assign(first, end);
  program.results.erase(first, end);
  for (auto* results : {&out->results, &program.results})
    for (ResultSpec& r : *results)
      if (is_made(r)) r.index = position[static_cast<size_t>(r.index)];
  for (Program::Commit& c : program.commits) c.output = position[static_cast<size_t>(c.output)];
  for (ResultSpec& r : out->results) {
    if (!is_given(r)) continue;
    if (static_cast<size_t>(r.index) < tangent) unsupported("a gradient is one of the program's inputs");
    r.index += static_cast<int>(first_tangent) - static_cast<int>(tangent);
  }
  return out;
}

void lay_saved(BackwardStage& stage, const Graph& forward) {
  std::map<size_t, Shape> strides;
  for (size_t i = 0; i < stage.saved.size(); ++i)
    strides[stage.inputs.size() + i] = forward.requests()[static_cast<size_t>(stage.saved[i])].strides;
  stage.graph = std::make_shared<const Graph>(with_input_strides(*stage.graph, strides));
}

}  // namespace

CompiledTrace compile_trace(const Trace& trace, std::vector<bool> constant, const Targets& targets, const ExternFactory& externs,
                            const PipelineOptions& options, const TracedGradients& gradients) {
  CompiledTrace out;
  Stopwatch watch(out.seconds);
  dump("trace", "trace", [&] { return trace.str(); });
  verify_form("trace", trace);
  StageCompiler compiler{targets, externs, options, capabilities_of(main_target(trace, targets), options)};
  out.program = functionalize(trace, {compiler.capabilities.get(), options.lower, options.eager_random});
  watch.lap("functionalise");
  dump("graph", "graph", [&] { return out.program.graph->str(); });
  verify_form("graph", *out.program.graph);

  auto binds = [](const TraceOp& op) { return !op.binds.empty(); };
  if (gradients.gradients > 0 && std::any_of(trace.ops.begin(), trace.ops.end(), binds))
    unsupported("gradients of a program with sizes that it computes");
  for (int m : out.program.mutated_inputs) constant[static_cast<size_t>(m)] = false;
  Module module{out.program.graph, nullptr, nullptr};
  run_passes(module, Pass::Part::program, compiler.context(std::move(constant)), options.disabled_passes, &out.seconds, observe);
  watch.skip();
  std::shared_ptr<BackwardStage> backward;
  if (gradients.gradients > 0) {
    backward = split_gradients(trace, gradients, options.memory_budget, out.program, module);
    watch.lap("partition");
    dump("passes", "forward", [&] { return module.graph->str(); });
    dump("passes", "backward", [&] { return backward->graph->str(); });
  }
  out.program.graph = module.graph;
  out.segments = module.segments;

  for (size_t i = trace.inputs.size() - gradients.tangents - trace.numbers.size(); i + gradients.tangents < trace.inputs.size(); ++i)
    compiler.numbers.push_back(static_cast<int>(i));
  auto build = [&](const std::shared_ptr<const Graph>& g) {
    out.stages.push_back(compiler.compile(g, out.seconds));
    return out.stages.back().second;
  };
  if (module.prologue) out.prologue = build(module.prologue);
  if (!module.segments) {
    out.main = build(module.graph);
    if (backward) lay_saved(*backward, *out.stages.back().first);
    out.backward = std::move(backward);
    return out;
  }
  for (const Segment& s : module.segments->list) {
    auto executable = build(s.graph);
    if (!out.main) out.main = std::move(executable);
    else out.later.push_back(std::move(executable));
  }
  return out;
}

CompiledBackward compile_backward(const BackwardStage& stage, const std::vector<bool>& wanted, const std::vector<bool>& given,
                                  const Targets& targets, const ExternFactory& externs, const PipelineOptions& options) {
  std::vector<bool> outputs(stage.graph->outputs().size());
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] && is_made(stage.results[i])) outputs[static_cast<size_t>(stage.results[i].index)] = true;
  CompiledBackward out;
  int next = 0;
  for (bool is_output : outputs) out.outputs.push_back(is_output ? next++ : -1);
  auto graph = std::make_shared<const Graph>(simplify(part_of(*stage.graph, outputs, given), {}));
  const Target& target = targets.on(targets.host_runs_on() == Device{} ? device_of(*graph) : targets.host_runs_on());
  const StageCompiler compiler{targets, externs, options, capabilities_of(target, options)};
  std::vector<std::pair<std::string, double>> seconds;
  std::tie(out.graph, out.executable) = compiler.compile(std::move(graph), seconds);
  return out;
}

}  // namespace broach
