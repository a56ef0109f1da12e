#include <algorithm>
#include <set>

#include "schedule/decisions.h"
#include "support/bug.h"
#include "support/error.h"

namespace broach {

namespace {

class StepMaker {
 public:
  StepMaker(const Decisions& d, const Buffers& m) : d_(d), m_(m) {
    for (const Node& n : d.graph.nodes())
      for (const Value& v : n.inputs) read_.insert({v.node, v.index});
  }

  std::vector<Unit> run() const {
    std::vector<Unit> units;
    for (const Group& g : d_.groups.kernels) units.push_back(kernel_unit(g));
    for (const Node& n : d_.graph.nodes()) {
      const OpKind k = kind_of(n.op);
      if (k == OpKind::heavy) units.push_back({{d_.epilogues.contractions.at(n.id).last}, contraction_step(n)});
      else if (k == OpKind::routine) units.push_back({{&n}, routine_step(n)});
      else if (k == OpKind::external) units.push_back({{&n}, extern_step(n)});
      else continue;
      units.back().step.line = n.line;
      units.back().step.early = d_.graph.placement(n).early && d_.in_place[n.id] >= 0;
    }
    return units;
  }

 private:
  // Where a value lies that is in memory, or is a window of what is.
  std::optional<Place> place(const Value& v) const {
    const Node& n = *v.node;
    if (d_.groups.in_memory[n.id]) return m_.places[n.id][v.index];
    auto inner = is_window(n.op) ? place(n.inputs[0]) : std::nullopt;
    auto window = inner ? window_of_view(n, {nullptr, inner->offset, inner->strides}) : std::nullopt;
    return window ? std::optional(Place{inner->buffer, window->offset, window->strides}) : std::nullopt;
  }

  Operand operand(const Value& v) const {
    auto p = place(v);
    check(p.has_value(), "schedule: value %", v.node->id, " (", name_of(v.node->op), ") is not in memory");
    return {v.type(), *p};
  }

  Unit kernel_unit(const Group& g) const {
    Unit u{g.roots, {}, g.roots.size() == 1 && d_.is_there(*g.roots[0])};
    if (!u.is_empty) u.step = kernel_step(g);
    u.step.line = g.roots[0]->line;
    return u;
  }

  Step kernel_step(const Group& g) const {
    std::map<std::pair<const Node*, uint32_t>, std::optional<Place>> places;
    auto known = [&](const Value& v) -> const Place* {
      auto [it, fresh] = places.try_emplace({v.node, v.index});
      if (fresh) it->second = place_for(g, v);
      return it->second ? &*it->second : nullptr;
    };
    KernelStep k = build_kernel(g, known, [&](const Node* n) { return m_.places[n->id][0]; }, d_.options.strict);
    Step step;
    for (const auto& s : k.kernel->stores) step.writes.push_back(k.buffers[static_cast<size_t>(s.access.buffer)]);
    for (const auto& e : k.kernel->exprs)
      if (e.kind == KernelExpr::Kind::load) step.reads.push_back(k.buffers[static_cast<size_t>(e.access.buffer)]);
    step.work = std::move(k);
    return step;
  }

  std::optional<Place> place_for(const Group& g, const Value& v) const {
    auto is_root = [&](const Node* n) { return std::find(g.roots.begin(), g.roots.end(), n) != g.roots.end(); };
    if (d_.relays.contains(v.node->id) && !is_root(v.node) && d_.written_into(*g.roots[0]) >= 0) return m_.places[v.node->id][v.index];
    // What this kernel computes itself, or a window of it, is not in memory yet.
    const Node* base = v.node;
    while (!d_.groups.in_memory[base->id] && is_window(base->op)) base = base->inputs[0].node;
    return is_root(base) ? std::nullopt : place(v);
  }

  Step contraction_step(const Node& n) const {
    const Contraction& c = d_.epilogues.contractions.at(n.id);
    ContractionStep k{operation_of(n), {}, {}, {}, {}, operand({c.last, 0}), {}};
    Step step;
    for (size_t i = 0; i < 2; ++i) {
      k.operands.push_back(operand(n.inputs[i]));
      const Buffer& b = m_.buffers[static_cast<size_t>(k.operands[i].place.buffer)];
      k.weight_inputs.push_back(b.kind == Buffer::Kind::input ? b.index : -1);
    }
    if (c.bias) k.bias = operand(c.bias);
    for (const auto& [op, v] : c.epilogue) k.epilogue.push_back({op, v ? std::optional(operand(v)) : std::nullopt});
    for (const auto& o : k.operands) step.reads.push_back(o.place.buffer);
    if (k.bias) step.reads.push_back(k.bias->place.buffer);
    for (const auto& e : k.epilogue)
      if (e.operand) step.reads.push_back(e.operand->place.buffer);
    step.writes.push_back(k.result.place.buffer);
    step.work = std::move(k);
    return step;
  }

  Step routine_step(const Node& n) const {
    RoutineStep r{operation_of(n), {}, {}};
    Step step;
    for (const Value& v : n.inputs) {
      r.operands.push_back(operand(v));
      step.reads.push_back(r.operands.back().place.buffer);
    }
    for (uint32_t i = 0; i < n.results.size(); ++i) {
      r.results.push_back({n.results[i], is_read({&n, i}) ? m_.places[n.id][i] : Place{-1, 0, contiguous_strides(n.results[i].shape)}});
      if (r.results.back().place.buffer >= 0) step.writes.push_back(r.results.back().place.buffer);
    }
    step.work = std::move(r);
    return step;
  }

  bool is_read(const Value& v) const {
    if (d_.outputs.contains({v.node->id, v.index})) return true;
    return read_.contains({v.node, v.index});
  }

  Step extern_step(const Node& n) const {
    ExternStep e{operation_of(n), {}, {}};
    Step step;
    for (const Value& v : n.inputs) {
      e.operands.push_back(operand(v));
      step.reads.push_back(e.operands.back().place.buffer);
    }
    for (uint32_t i = 0; i < n.results.size(); ++i) {
      e.results.push_back(m_.places[n.id][i].buffer);
      step.writes.push_back(m_.places[n.id][i].buffer);
    }
    step.work = std::move(e);
    return step;
  }

  const Decisions& d_;
  const Buffers& m_;
  std::set<std::pair<const Node*, uint32_t>> read_;
};

}  // namespace

std::vector<Unit> make_steps(const Decisions& d, const Buffers& memory) { return StepMaker(d, memory).run(); }

}  // namespace broach
