#include "schedule/schedule.h"

#include <algorithm>

#include "schedule/decisions.h"

namespace broach {

namespace {

void count(Schedule& s) {
  for (const Step& step : s.steps) {
    s.kernels += std::holds_alternative<KernelStep>(step.work);
    s.contractions += std::holds_alternative<ContractionStep>(step.work);
    s.routines += std::holds_alternative<RoutineStep>(step.work);
    s.externs += std::holds_alternative<ExternStep>(step.work);
  }
}

std::vector<int> output_buffers(const Decisions& d, const Buffers& memory) {
  std::vector<int> out;
  for (const Value& v : d.graph.outputs()) out.push_back(v.node->op == Op::extern_call ? memory.places[v.node->id].at(v.index).buffer : -1);
  for (const auto& [value, output] : d.outputs) out[static_cast<size_t>(output)] = memory.places[value.first].at(value.second).buffer;
  return out;
}

Decisions read_placements(const Graph& graph, const ScheduleOptions& options) {
  Decisions d{graph, options, epilogues_of(graph), stored_outputs(graph), {}, {}, {}, {}, {}, {}};
  for (const Node& n : graph.nodes()) {
    const Placement& p = graph.placement(n);
    const bool in_input = p.in >= 0 && writes_elements(n.op);
    d.in_place.push_back(in_input ? static_cast<int>(graph.nodes()[static_cast<size_t>(p.in)].integer(Attr::index)) : -1);
    auto& strides = d.strides.emplace_back();
    for (uint32_t i = 0; i < n.results.size(); ++i) strides.push_back(graph.strides({&n, i}));
  }
  return d;
}

}  // namespace

bool can_fail(const Step& s) {
  if (auto k = std::get_if<KernelStep>(&s.work))
    return std::any_of(k->kernel->exprs.begin(), k->kernel->exprs.end(),
                       [](const KernelExpr& e) { return e.kind == KernelExpr::Kind::bounds; });
  if (auto r = std::get_if<RoutineStep>(&s.work)) return checks_index(r->operation.op);
  return std::holds_alternative<ExternStep>(s.work);
}

bool can_fail(const Schedule& schedule) {
  return std::any_of(schedule.steps.begin(), schedule.steps.end(), [](const Step& s) { return can_fail(s); });
}

Operation operation_of(const Node& node) {
  Operation out{node, {}, node.results};
  for (const Value& v : node.inputs) out.operands.push_back(v.type());
  return out;
}

int Decisions::written_into(const Node& n) const {
  auto it = outputs.find({n.id, 0});
  return it == outputs.end() ? -1 : graph.requests()[static_cast<size_t>(it->second)].into_input;
}

Schedule make_schedule(std::shared_ptr<const Graph> graph, const ScheduleOptions& options) {
  Decisions d = read_placements(*graph, options);
  decide_storage(d);
  decide_groups(d);
  decide_relays(d);
  Buffers memory = place_buffers(d);
  Schedule s;
  s.steps = order_steps(d, memory, make_steps(d, memory));
  s.output_buffers = output_buffers(d, memory);
  if (options.fuse) store_through(s.steps, memory.buffers);
  if (options.fuse) join_kernels(s.steps, memory.buffers, s.output_buffers, options);
  carry_bits(s.steps);
  share_kernels(s.steps);
  s.buffers = std::move(memory.buffers);
  s.graph = std::move(graph);
  pass_numbers(s, options.numbers);
  count(s);
  return s;
}

}  // namespace broach
