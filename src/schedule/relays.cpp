// Writes into inputs whose old elements somebody still needs then.
//
// A value that is written into an input is computed by the kernel that writes it, and an update happens where its input lies. Which
// reads share a kernel with which writes is known once there are kernels, so this comes behind them: where a kernel reads elements
// that it has overwritten, or may fail while it writes, or kernels wait for one another in a circle, the new elements get memory of
// their own, from where they are copied.
#include <algorithm>

#include "schedule/decisions.h"
#include "support/error.h"

namespace broach {

namespace {

// Steps to be, and which of them wait for which.
class Waits {
 public:
  explicit Waits(const Decisions& d) : d_(d), readers_(d.graph.nodes().size()), unit_of_(d.graph.nodes().size(), -1) {
    std::vector<int> fail;
    int units = 0;
    for (const Group& g : d.groups.kernels) {
      for (const Node* n : g.roots) unit_of_[n->id] = units;
      if (g.can_fail) fail.push_back(units);
      ++units;
    }
    for (const Node& n : d.graph.nodes()) {
      if (n.op == Op::extern_call || (kind_of(n.op) == OpKind::routine && checks_index(n.op))) fail.push_back(units);
      if (kind_of(n.op) >= OpKind::heavy) unit_of_[result_of(n).id] = units++;
    }
    before_.resize(static_cast<size_t>(units) + 1);
    before_.back() = std::move(fail);
    find_readers();
    for (const Node& n : d.graph.nodes()) add_waits(n);
  }

  bool has_circle() const {
    std::vector<int> all;
    for (size_t i = 0; i < before_.size(); ++i) all.push_back(static_cast<int>(i));
    return !order_of(all, before_);
  }

 private:
  const Node& result_of(const Node& n) const { return kind_of(n.op) == OpKind::heavy ? *d_.epilogues.contractions.at(n.id).last : n; }

  // The value in memory that an operand is a window of.
  static const Node* base_of(const Node* n, const Decisions& d) {
    while (!d.groups.in_memory[n->id] && is_window(n->op)) n = n->inputs[0].node;
    return n;
  }

  void find_readers() {
    for (const Node& n : d_.graph.nodes()) {
      for (int k : d_.groups.readers[n.id]) readers_[n.id].push_back(k);
      if (kind_of(n.op) < OpKind::heavy) continue;
      auto reads = [&](const Value& v) { readers_[base_of(v.node, d_)->id].push_back(unit_of_[result_of(n).id]); };
      for (const Value& v : n.inputs) reads(v);
      if (kind_of(n.op) != OpKind::heavy) continue;
      const Contraction& c = d_.epilogues.contractions.at(n.id);
      if (c.bias) reads(c.bias);
      for (const auto& [op, v] : c.epilogue)
        if (v) reads(v);
    }
  }

  void add_waits(const Node& n) {
    const int unit = unit_of_[n.id];
    if (unit < 0) return;
    for (int r : readers_[n.id])
      if (r != unit) before_[static_cast<size_t>(r)].push_back(unit);
    const int into = d_.in_place[n.id] >= 0 ? d_.in_place[n.id] : d_.is_there(n) ? -1 : d_.written_into(n);
    if (into < 0) return;
    if (d_.in_place[n.id] < 0 || !d_.graph.placement(n).early)
      before_[static_cast<size_t>(unit)].push_back(static_cast<int>(before_.size()) - 1);
    // Behind all that read what lay there before.
    for (const Node& older : d_.graph.nodes()) {
      const bool was_there = older.op == Op::input ? older.integer(Attr::index) == into : older.id < n.id && d_.in_place[older.id] == into;
      if (!was_there) continue;
      for (int r : readers_[older.id])
        if (r != unit) before_[static_cast<size_t>(unit)].push_back(r);
    }
  }

  const Decisions& d_;
  std::vector<std::vector<int>> readers_;  // by node id: units
  std::vector<int> unit_of_;               // by node id, of what is in memory
  std::vector<std::vector<int>> before_;   // by unit; the last one stands for all that may fail
};

// The kernel's root is stored elsewhere first, and copied from there.
void relay(Decisions& d, size_t kernel) {
  check(d.groups.kernels[kernel].roots.size() == 1, "schedule: a kernel that writes into an input stores more than that");
  const Node& copy = *d.groups.kernels[kernel].roots[0];
  const Node& value = *copy.inputs[0].node;
  const auto next = static_cast<int>(d.groups.kernels.size());
  if (!d.groups.in_memory[value.id] && d.relays.try_emplace(value.id, d.groups.kernels.size()).second) {
    for (std::set<int>& readers : d.groups.readers)
      if (readers.erase(static_cast<int>(kernel)) > 0) readers.insert(next);
    Group first = d.groups.kernels[kernel];
    first.roots = {&value};
    first.reads_what_it_overwrites = false;
    first.space.replace_root(copy, value);
    d.groups.kernels.push_back(std::move(first));
  }
  d.groups.readers[value.id].insert(static_cast<int>(kernel));
  Fit alone(d.storage);
  alone.add_root(copy);
  d.groups.kernels[kernel] = {{&copy}, alone.space()};
}

std::vector<size_t> writers(const Decisions& d) {
  std::vector<size_t> out;
  for (size_t k = 0; k < d.groups.kernels.size(); ++k)
    if (const Node& n = *d.groups.kernels[k].roots[0]; d.written_into(n) >= 0 && !d.is_there(n)) out.push_back(k);
  return out;
}

}  // namespace

void decide_relays(Decisions& d) {
  const auto& requests = d.graph.requests();
  if (std::none_of(requests.begin(), requests.end(), [](const OutputRequest& r) { return r.into_input >= 0; })) return;
  for (size_t k : writers(d))
    if (d.groups.kernels[k].reads_what_it_overwrites || d.groups.kernels[k].can_fail) relay(d, k);
  if (!Waits(d).has_circle()) return;
  const bool updates = std::any_of(d.in_place.begin(), d.in_place.end(), [](int m) { return m >= 0; });
  d.in_place.assign(d.in_place.size(), -1);
  if (updates && !Waits(d).has_circle()) return;
  for (size_t k : writers(d)) relay(d, k);
}

}  // namespace broach
