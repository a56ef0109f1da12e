#include "schedule/schedule.h"

#include "passes/updates.h"
#include "schedule/decisions.h"
#include "support/bug.h"

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

// The buffers in which the outputs lie, those that share a product's too.
std::vector<int> output_buffers(const Decisions& d, const Buffers& memory) {
  std::vector<int> out;
  for (const Value& v : d.graph.outputs()) {
    auto it = d.layouts.shared.find(v.node->id);
    const Value at = it == d.layouts.shared.end() ? v : Value{it->second, 0};
    out.push_back(memory.places[at.node->id].at(at.index).buffer);
  }
  return out;
}

}  // namespace

Operation operation_of(const Node& node) {
  Operation out{node.op, node.attrs, {}, node.results};
  for (const Value& v : node.inputs) out.operands.push_back(v.type());
  return out;
}

int Decisions::written_into(const Node& n) const {
  auto it = layouts.outputs.find({n.id, 0});
  return it == layouts.outputs.end() ? -1 : requests[static_cast<size_t>(it->second)].into_input;
}

Schedule make_schedule(std::shared_ptr<const Graph> graph, const std::vector<Shape>& input_strides,
                       const std::vector<OutputRequest>& requests, const ScheduleOptions& options) {
  graph = std::make_shared<const Graph>(find_updates(separate_outputs(*graph, requests), requests));
  if (verifies()) graph->verify();
  const std::vector<int> in_place = updates_in_place(*graph, requests);
  const Epilogues epilogues = options.fuse ? match_epilogues(*graph, options.capabilities, options.strict) : plain_contractions(*graph);
  const Layouts layouts =
      choose_layouts(*graph, input_strides, requests, epilogues, in_place, find_channels_last(*graph, epilogues, options.capabilities));
  Decisions d{*graph, requests, epilogues, layouts, options, in_place, {}, {}, {}, {}};
  decide_storage(d);
  decide_groups(d);
  decide_relays(d);
  Buffers memory = place_buffers(d);
  Schedule s;
  s.steps = order_steps(d, memory, make_steps(d, memory));
  share_kernels(s.steps);
  s.output_buffers = output_buffers(d, memory);
  s.buffers = std::move(memory.buffers);
  s.graph = std::move(graph);
  pass_numbers(s, options.numbers);
  count(s);
  return s;
}

}  // namespace broach
