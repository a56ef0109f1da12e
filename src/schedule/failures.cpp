// What a call that turns out to be an error may have written by then.
//
// An index out of range is found by the step that uses it. The program itself is then run in this one's place, to raise its own
// error with its own effects, so nothing that it reads may have changed: no input is written while a later step can still fail,
// but by a write that the program's own run repeats alike.
#include "schedule/failures.h"

#include <algorithm>

#include "passes/updates.h"

namespace broach {

namespace {

bool can_fail(const Step& s) {
  if (auto k = std::get_if<KernelStep>(&s.work))
    return std::any_of(k->kernel->exprs.begin(), k->kernel->exprs.end(),
                       [](const KernelExpr& e) { return e.kind == KernelExpr::Kind::bounds; });
  if (auto r = std::get_if<RoutineStep>(&s.work)) return checks_index(r->operation.op);
  return std::holds_alternative<ExternStep>(s.work);
}

// Whether input `m` only has windows replaced, by what does not depend on the elements that were there, and nothing reads these or
// a state in between (a cache of keys and values): writing twice is then the same as once.
bool is_overwritten(const Graph& graph, const std::vector<int>& updates, int m) {
  const Node* before = graph.inputs()[static_cast<size_t>(m)].node;
  auto writes = [&](const Node& n) { return updates[n.id] == m; };
  std::vector<const Node*> last;
  for (const Node& n : graph.nodes()) {
    if (writes(n) && n.op != Op::update && n.op != Op::scatter) return false;
    if (writes(n)) last.push_back(&n);
  }
  if (last.empty()) return false;
  auto is_in_between = [&](const Node* n) { return n == before || (n != last.back() && writes(*n)); };
  for (const Value& v : graph.outputs())
    if (is_in_between(v.node)) return false;
  return std::all_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& n) {
    for (size_t i = 0; i < n.inputs.size(); ++i)
      if (is_in_between(n.inputs[i].node) && !(writes(n) && i == 0)) return false;
    return true;
  });
}

}  // namespace

bool can_fail(const Schedule& schedule) {
  return std::any_of(schedule.steps.begin(), schedule.steps.end(), [](const Step& s) { return can_fail(s); });
}

std::vector<int> written_too_early(const Schedule& schedule, const std::vector<OutputRequest>& requests) {
  const auto& steps = schedule.steps;
  auto end = std::find_if(steps.rbegin(), steps.rend(), [](const Step& s) { return can_fail(s); }).base();
  std::vector<int> out;
  for (auto s = steps.begin(); s != end; ++s)
    for (int b : s->writes)
      if (const Buffer& buffer = schedule.buffers[static_cast<size_t>(b)]; buffer.kind == Buffer::Kind::input) out.push_back(buffer.index);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (out.empty()) return out;
  const std::vector<int> updates = updates_in_place(*schedule.graph, requests);
  std::erase_if(out, [&](int m) { return is_overwritten(*schedule.graph, updates, m); });
  return out;
}

}  // namespace broach
