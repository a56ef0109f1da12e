// The order of steps: dependencies first; what writes into an input runs after all that read it, and, but for `early` ones, after all that
// may fail, since a call that turns out to be an error is made again by the program itself; effects keep their order.
#include <algorithm>
#include <map>

#include "schedule/decisions.h"
#include "support/bug.h"
#include "support/error.h"

namespace broach {

namespace {

// Buffers whose elements are gone once this one is written: of an input, those of earlier versions.
std::vector<int> overwritten(const Buffers& memory, int buffer) {
  const Buffer& b = memory.buffers[static_cast<size_t>(buffer)];
  std::vector<int> out;
  if (b.kind != Buffer::Kind::input) return out;
  for (auto it = memory.inputs.lower_bound({b.index, 0}); it != memory.inputs.end() && it->first.first == b.index; ++it)
    if (it->first.second < b.version || b.version == 0) out.push_back(it->second);
  return out;
}

bool has_effect(const Unit& u) { return u.values[0]->has_effect(); }

bool writes_late(const Buffers& memory, const Step& s) {
  auto is_input = [&](int b) { return memory.buffers[static_cast<size_t>(b)].kind == Buffer::Kind::input; };
  return !s.early && std::any_of(s.writes.begin(), s.writes.end(), is_input);
}

// By unit: those that come before it. The last one stands for all that may fail.
std::vector<std::vector<int>> dependencies(const Buffers& memory, const std::vector<Unit>& units) {
  std::map<int, std::vector<int>> readers, writers;
  for (size_t i = 0; i < units.size(); ++i) {
    for (int b : units[i].step.reads) readers[b].push_back(static_cast<int>(i));
    for (int b : units[i].step.writes) writers[b].push_back(static_cast<int>(i));
  }
  std::vector<std::vector<int>> before(units.size() + 1);
  int last_effect = -1;
  for (size_t i = 0; i < units.size(); ++i) {
    const auto me = static_cast<int>(i);
    for (int b : units[i].step.reads)
      if (const Buffer& read = memory.buffers[static_cast<size_t>(b)]; read.kind != Buffer::Kind::input || read.version > 0)
        before[i].insert(before[i].end(), writers[b].begin(), writers[b].end());
    for (int b : units[i].step.writes)
      for (int older : overwritten(memory, b)) before[i].insert(before[i].end(), readers[older].begin(), readers[older].end());
    std::erase(before[i], me);
    if (writes_late(memory, units[i].step)) before[i].push_back(static_cast<int>(units.size()));
    if (!units[i].is_empty && can_fail(units[i].step)) before.back().push_back(me);
    if (!has_effect(units[i])) continue;
    if (last_effect >= 0) before[i].push_back(last_effect);
    last_effect = me;
  }
  return before;
}

enum class Mark : uint8_t { none, waits, done };

bool visit(int at, const std::vector<std::vector<int>>& before, std::vector<Mark>& marks, std::vector<int>& out) {
  Mark& mark = marks[static_cast<size_t>(at)];
  if (mark != Mark::none) return mark == Mark::done;
  mark = Mark::waits;
  for (int b : before[static_cast<size_t>(at)])
    if (!visit(b, before, marks, out)) return false;
  mark = Mark::done;
  out.push_back(at);
  return true;
}

}  // namespace

std::optional<std::vector<int>> order_of(const std::vector<int>& wanted, const std::vector<std::vector<int>>& before) {
  std::vector<Mark> marks(before.size(), Mark::none);
  std::vector<int> out;
  for (int at : wanted)
    if (!visit(at, before, marks, out)) return std::nullopt;
  return out;
}

std::vector<Step> order_steps(const Decisions& d, const Buffers& memory, std::vector<Unit> units) {
  std::vector<int> unit_of(d.graph.nodes().size(), -1), wanted;
  for (size_t i = 0; i < units.size(); ++i)
    for (const Node* n : units[i].values) unit_of[n->id] = static_cast<int>(i);
  // What becomes an input's new value is copied there behind all else that the program does, and stands where it is computed.
  for (size_t i = unit_of.size(); i-- > 0;) {
    const Node& n = d.graph.nodes()[i];
    if (n.op != Op::copy || unit_of[i] < 0 || d.written_into(n) < 0) continue;
    if (int& computed = unit_of[n.inputs[0].node->id]; computed < 0) computed = unit_of[i];
  }
  for (int unit : unit_of)
    if (unit >= 0) wanted.push_back(unit);
  auto order = order_of(wanted, dependencies(memory, units));
  check(order.has_value(), "schedule: steps depend on each other in a circle");
  std::vector<Step> steps;
  for (int i : *order)
    if (auto u = static_cast<size_t>(i); u < units.size() && !units[u].is_empty) steps.push_back(std::move(units[u].step));
  return steps;
}

}  // namespace broach
