#include "compile.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <set>

#include "passes/passes.h"
#include "support/bug.h"
#include "support/error.h"
#include "trace/regions.h"

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

// The device that most of a program runs on: the one that its tensors lie on, if that is not the host.
Device main_device(const Trace& trace) {
  for (const TraceTensor& t : trace.tensors)
    if (t.type.device != Device{}) return t.type.device;
  return {};
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

// What stages are compiled with.
struct StageCompiler {
  const Targets& targets;
  const ExternFactory& externs;
  const PipelineOptions& options;
  std::shared_ptr<const Capabilities> capabilities;
  size_t first_number = 0, numbers = 0;  // inputs that are numbers of the host's
  size_t first_made = SIZE_MAX;          // slots behind it an earlier stage has made: an element on the host is as good as a number

  PassContext context(std::vector<bool> constant, std::optional<Joint> joint) const {
    return {std::move(constant), options.freeze, options.settings.strict, options.fuse, capabilities.get(), std::move(joint)};
  }

  std::shared_ptr<const Executable> compile(const Stage& stage, std::vector<std::pair<std::string, double>>& seconds) const {
    std::vector<int> given;
    for (size_t i = 0; i < stage.takes.size(); ++i)
      if (stage.takes[i] - first_number < numbers || stage.takes[i] >= first_made) given.push_back(static_cast<int>(i));
    Stopwatch watch(seconds);
    Schedule schedule = make_schedule(stage.graph, {options.settings.strict, options.fuse, std::move(given), capabilities->launch_points,
                                                    capabilities->row_adder, capabilities->turned_points});
    place(schedule);
    if (const Device d = targets.host_runs_on(); d != Device{}) schedule = offload(std::move(schedule), d);
    else schedule = with_copies(std::move(schedule), targets);
    watch.lap("schedule");
    dump("schedule", "schedule", [&] { return schedule.str(); });
    schedule.verify_writes();
    verify_form("graph", *stage.graph);
    verify_form("schedule", schedule);
    watch.skip();
    auto executable = std::make_shared<const Executable>(std::move(schedule), targets, options.settings, externs);
    watch.lap("generate code");
    return executable;
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

// By tensor: whether eager reads its elements for gradients, or to compute again what they need. It holds a tensor there for them, and
// would notice a write to it, unless only what is computed again reads it and was not given it.
struct ReadForGradients {
  std::vector<bool> read, anew;
};

ReadForGradients read_for_gradients(const Trace& trace, size_t first_op) {
  std::set<int32_t> read, again, checked;  // storages
  Regions regions(trace);
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const TraceOp& op = trace.ops[i];
    const bool divides = regions.moves(op), within = !divides && regions.is_within();
    for_each_tensor(op.args, [&](TensorId id) {
      const int32_t storage = trace.tensors[static_cast<size_t>(id)].storage;
      if (i >= first_op) read.insert(storage);
      else if (!within) checked.insert(storage);
      else if (regions.enters_with(id)) again.insert(storage);
    });
    regions.note(op);
  }
  ReadForGradients out;
  for (const TraceTensor& t : trace.tensors) {
    out.read.push_back(read.contains(t.storage) || again.contains(t.storage));
    out.anew.push_back(again.contains(t.storage) && !checked.contains(t.storage));
  }
  return out;
}

std::optional<Joint> joint_of(const Trace& trace, const Program& program, const TracedGradients& traced, double memory_budget) {
  if (traced.gradients == 0) return std::nullopt;
  // Autograd runs the gradients of results on the host on whatever queue is current then, and those of a device's on the forward's.
  for (size_t i = trace.inputs.size() - traced.tangents; i < trace.inputs.size() && main_device(trace) != Device{}; ++i)
    if (trace.tensors[static_cast<size_t>(trace.inputs[i])].type.device == Device{})
      unsupported("gradients of results on the host, of a program that also runs on ", main_device(trace).str());
  Joint joint;
  joint.tangents = traced.tangents;
  joint.memory_budget = memory_budget;
  const size_t first = program.results.size() - program.reads - traced.gradients, outputs = program.graph->outputs().size();
  joint.is_gradient.resize(outputs);
  joint.output_kept.resize(outputs);
  const std::vector<bool> read = read_for_gradients(trace, traced.first_op).read;
  std::vector<bool> is_result(outputs);
  for (size_t i = 0; i < program.results.size(); ++i) {
    const ResultSpec& r = program.results[i];
    if (!r.is_made()) continue;
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

// By output of the graph.
std::vector<bool> deciding(const Program& program) {
  if (!program.decides_first) return {};
  std::vector<bool> out(program.graph->outputs().size());
  for (size_t i = program.results.size() - program.reads; i < program.results.size(); ++i)
    out[static_cast<size_t>(program.results[i].index)] = true;
  return out;
}

int position_in(const std::vector<size_t>& slots, size_t slot) {
  return static_cast<int>(std::find(slots.begin(), slots.end(), slot) - slots.begin());
}

// Results are made of slots, and gradients of what their stage has.
void name_slots(CompiledTrace& compiled, const Trace& trace, const TracedGradients& traced) {
  Program& program = compiled.program;
  const Module& m = compiled.module;
  for (ResultSpec& r : program.results)
    if (r.is_made()) r.index = static_cast<int>(m.outputs[static_cast<size_t>(r.index)]);
  for (Program::Commit& c : program.commits) c.output = static_cast<int>(m.outputs[static_cast<size_t>(c.output)]);
  compiled.tangents = traced.tangents;
  compiled.is_linear = traced.is_linear;
  const std::vector<bool> anew = read_for_gradients(trace, traced.first_op).anew;
  for (TensorId id : trace.inputs) compiled.read_anew.push_back(anew[static_cast<size_t>(id)]);
  const auto end = program.results.end() - static_cast<std::ptrdiff_t>(program.reads);
  const auto first = end - static_cast<std::ptrdiff_t>(traced.gradients);
  compiled.gradients.assign(first, end);
  program.results.erase(first, end);
  const Stage& last = m.stages.back();
  for (ResultSpec& r : compiled.gradients) {
    const auto slot = static_cast<size_t>(r.index);
    if (r.is_of_input() && slot + traced.tangents < m.inputs) unsupported("a gradient is one of the program's inputs");
    if (r.is_made() || r.is_of_input()) r.index = position_in(r.is_made() ? last.gives : last.takes, slot);
  }
}

}  // namespace

CompiledTrace compile_trace(const Trace& trace, std::vector<bool> constant, const Targets& targets, const ExternFactory& externs,
                            const PipelineOptions& options, const TracedGradients& gradients) {
  CompiledTrace out;
  Stopwatch watch(out.seconds);
  dump("trace", "trace", [&] { return trace.str(); });
  verify_form("trace", trace);
  const Device device = main_device(trace);
  const Target& target = targets.on(device == Device{} ? targets.host_runs_on() : device);
  StageCompiler compiler{targets, externs, options, capabilities_of(target, options)};
  out.program = functionalize(trace, {compiler.capabilities.get(), device, options.lower, options.eager_random, gradients.tangents});
  watch.lap("functionalise");
  dump("graph", "graph", [&] { return out.program.graph->str(); });
  verify_form("graph", *out.program.graph);

  for (int m : out.program.mutated_inputs) constant[static_cast<size_t>(m)] = false;
  std::optional<Joint> joint = joint_of(trace, out.program, gradients, options.memory_budget);
  PassContext context = compiler.context(std::move(constant), std::move(joint));
  context.decides = deciding(out.program);
  out.module = Module(std::move(out.program.graph));
  run_passes(passes(), out.module, context, options.disabled_passes, &out.seconds, observe);
  name_slots(out, trace, gradients);
  compiler.first_number = trace.inputs.size() - gradients.tangents - trace.numbers.size();
  compiler.numbers = trace.numbers.size();
  compiler.first_made = out.module.inputs;
  for (const Stage& s : out.module.stages) out.executables.push_back(s.is_compiled() ? compiler.compile(s, out.seconds) : nullptr);
  return out;
}

CompiledBackward compile_backward(const CompiledTrace& trace, const std::vector<bool>& wanted, const std::vector<bool>& given,
                                  const Parts& parts, const Targets& targets, const ExternFactory& externs,
                                  const PipelineOptions& options) {
  const Stage& stage = trace.module.stages.back();
  std::vector<bool> outputs(stage.gives.size());
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] && trace.gradients[i].is_made()) outputs[static_cast<size_t>(trace.gradients[i].index)] = true;
  std::vector<Shape> strides;
  for (size_t slot : stage.takes) strides.push_back(trace.module.slots[slot].strides);
  auto graph = std::make_shared<const Graph>(part_of(*stage.graph, outputs, given, strides, trace.is_linear));
  const Target& target = targets.on(targets.host_runs_on() == Device{} ? device_of(*graph) : targets.host_runs_on());
  const StageCompiler compiler{targets, externs, options, capabilities_of(target, options)};
  PassContext context = compiler.context({}, std::nullopt);
  CompiledBackward out;
  out.module = Module(std::move(graph));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]) continue;
    out.outputs.push_back(i);
    if (!parts.gives.empty()) context.parts.gives.push_back(parts.gives[i]);
  }
  context.parts.reads = parts.reads;
  std::vector<std::pair<std::string, double>> seconds;
  run_passes(passes("simplify_again"), out.module, context, options.disabled_passes, &seconds, observe);
  for (const Stage& s : out.module.stages) out.executables.push_back(compiler.compile(s, seconds));
  return out;
}

}  // namespace broach
