#include "passes/partition.h"

#include <algorithm>
#include <map>
#include <set>

#include "passes/emission.h"
#include "passes/passes.h"
#include "passes/segments.h"
#include "support/error.h"
#include "support/min_cut.h"
#include "trace/regions.h"

namespace broach {

namespace {

// Values of a graph by a dense number.
class ValueNumbers {
 public:
  explicit ValueNumbers(const Graph& g) {
    for (const Node& n : g.nodes()) first_.push_back(count_), count_ += n.results.size();
  }
  size_t of(const Value& v) const { return first_[v.node->id] + v.index; }
  size_t count() const { return count_; }

 private:
  std::vector<size_t> first_;
  size_t count_ = 0;
};

bool enters(const Node& n) { return region_mark(n) == RegionMark::enter; }
bool leaves(const Node& n) { return region_mark(n) == RegionMark::leave; }
bool holds(const Node& n) { return region_mark(n) == RegionMark::hold; }

// Marks of regions have been read by then. What is held by being saved is a copy.
void emit_unmarked(Emission& e, const Node& n, bool is_saved = false) {
  if (region_mark(n) && !(holds(n) && is_saved)) e.set({&n, 0}, e.of(n.inputs[0]));
  else e.emit(n);
}

// With these of the outputs.
Graph finish(Emission& e, const Graph& g, const std::vector<bool>& wanted) {
  std::vector<Value> outputs;
  std::vector<OutputRequest> requests;
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i]) outputs.push_back(e.of(g.outputs()[i])), requests.push_back(g.requests()[i]);
  return e.b.finish(std::move(outputs), std::move(requests));
}

// An input's elements in another order, or of another type.
bool is_input_laid_anew(const Node& n) {
  const Node* from = &n;
  while (from->op == Op::copy || from->op == Op::cast || moves_only(from->op)) from = from->inputs[0].node;
  return from->op == Op::input;
}

bool is_cheap(const Node& n) {
  switch (kind_of(n.op)) {
    case OpKind::source: return n.op != Op::input;
    case OpKind::unary:
    case OpKind::binary:
    case OpKind::compare:
    case OpKind::ternary:
    case OpKind::cast: return n.op != Op::copy || is_input_laid_anew(n);
    case OpKind::view:
    case OpKind::heavy_view: return true;
    default: return false;
  }
}

bool is_view(const Node& n) {
  const OpKind k = kind_of(n.op);
  return k == OpKind::view || k == OpKind::heavy_view;
}

const Node* below_views(const Value& v) {
  const Node* n = v.node;
  while (is_view(*n)) n = n->inputs[0].node;
  return n;
}

// By node: what may be computed anew, being cheap.
//
// What is computed of many elements of one value, as pools are, would be so for each element that it is needed for: it is saved. So is
// what is computed of some, where it is read in several places for each element, as gradients of pools read positions.
std::vector<bool> find_repeatable(const Graph& g) {
  std::vector<bool> repeatable;
  for (const Node& n : g.nodes()) repeatable.push_back(is_cheap(n));
  constexpr size_t kMostReads = 8, kMostOperands = 64, kManyReads = 4;
  using Read = std::pair<uint32_t, uint32_t>;  // what is read, and the view through which it is
  std::vector<std::set<Read>> reads(g.nodes().size());
  std::vector<size_t> reads_of_one(g.nodes().size());
  std::vector<std::set<uint32_t>> views(g.nodes().size());  // through which it is read
  for (const Node& n : g.nodes()) {
    std::set<Read>& all = reads[n.id];
    const bool view = is_view(n);
    for (const Value& v : n.inputs) {
      const std::set<Read>& own = reads[v.node->id];
      if (!view) all.insert(own.begin(), own.end());
      else if (own.size() > all.size()) all = own;  // one element of one operand
    }
    if (view) {
      const std::set<Read> below = std::move(all);
      all.clear();
      for (const Read& r : below) all.emplace(r.first, n.id);
    }
    std::map<uint32_t, size_t> count;
    size_t most = 0;
    for (const Read& r : all) most = std::max(most, ++count[r.first]);
    if (most > kMostReads || all.size() > kMostOperands) repeatable[n.id] = false;
    if (!repeatable[n.id]) all = {{n.id, n.id}};
    reads_of_one[n.id] = repeatable[n.id] ? most : 1;
    if (!view)
      for (const Value& v : n.inputs)
        if (const Node& read = *below_views(v); &read != v.node && reads_of_one[read.id] >= kManyReads) {
          views[read.id].insert(v.node->id);
          if (views[read.id].size() > 1) repeatable[read.id] = false;
        }
  }
  return repeatable;
}

bool is_dear(const Node& n) {
  const OpKind k = kind_of(n.op);
  return k == OpKind::reduce || k == OpKind::heavy || k == OpKind::routine;
}

int64_t bytes(const Graph& g, const Value& v) {
  constexpr int64_t kMost = int64_t{1} << 50;
  int64_t n = size_of(v.dtype());
  for (const SymInt& e : v.shape()) n *= std::clamp<int64_t>(g.symbols()->hint(e), 1, kMost / n);
  return n;
}

double elements(const Graph& g, const Value& v) { return static_cast<double>(bytes(g, v)) / static_cast<double>(size_of(v.dtype())); }

// A contraction that one alone reads, point by point, is written as that, and so on.
void move_to_ends_of_contractions(std::vector<bool>& written, const Graph& g, const std::vector<bool>& late, const ValueNumbers& numbers) {
  std::vector<std::vector<const Node*>> readers(g.nodes().size());  // in the call
  for (const Node& n : g.nodes())
    for (const Value& v : n.inputs)
      if (!late[n.id]) readers[v.node->id].push_back(&n);
  for (const Node& n : g.nodes()) {
    if (late[n.id] || kind_of(n.op) != OpKind::heavy) continue;
    const Node *end = &n, *last = &n;  // and but for views
    auto follows = [&](const Node& next) { return is_cheap(next) && elements(g, {&next, 0}) == elements(g, {end, 0}); };
    while (readers[end->id].size() == 1 && follows(*readers[end->id][0])) {
      end = readers[end->id][0];
      if (is_view(*end)) continue;
      written[numbers.of({last, 0})] = false;
      last = end;
    }
    written[numbers.of({last, 0})] = true;
  }
}

// What the call writes to memory in any case. A pointwise value is written where it is read behind a product, routine or call that comes
// after it, as the sums along a chain of layers are, or by one; where it is small beside those that read it, of which each element would
// compute it; and at the end of what a contraction alone is read by, in its place. A view has no memory of its own.
std::vector<bool> find_written(const Graph& g, const std::vector<bool>& late, const ValueNumbers& numbers) {
  std::vector<bool> out(numbers.count());
  constexpr double kSmall = 8;
  std::vector<size_t> level(g.nodes().size());  // products, routines and calls one behind another
  for (const Node& n : g.nodes()) {
    for (const Value& v : n.inputs) level[n.id] = std::max(level[n.id], level[v.node->id]);
    const OpKind k = kind_of(n.op);
    if (k == OpKind::heavy || k == OpKind::routine || k == OpKind::external) ++level[n.id];
  }
  for (const Value& v : g.outputs()) out[numbers.of(v)] = true;
  for (auto n = g.nodes().rbegin(); n != g.nodes().rend(); ++n) {
    for (uint32_t r = 0; r < n->results.size(); ++r)
      if (!is_cheap(*n)) out[numbers.of({&*n, r})] = true;
    for (const Value& v : n->inputs) {
      const bool through = is_view(*n) && out[numbers.of({&*n, 0})];
      const bool apart = !late[n->id] && level[n->id] > level[v.node->id];
      if (through || apart || elements(g, {&*n, 0}) >= kSmall * elements(g, v)) out[numbers.of(v)] = true;
    }
  }
  move_to_ends_of_contractions(out, g, late, numbers);
  return out;
}

// What is computed later, and what of the rest is saved for it.
struct Cut {
  Cut(const Graph& graph, const Joint& of)
      : g(graph), joint(of), numbers(graph), late(graph.nodes().size()), is_saved(numbers.count()), left_as(numbers.count()) {}

  bool is_tangent(const Node& n) const {
    return n.op == Op::input && static_cast<size_t>(n.integer(Attr::index)) + joint.tangents >= g.inputs().size();
  }

  std::vector<Value> saved_values() const {
    std::vector<Value> out;
    for (const Node& n : g.nodes())
      for (uint32_t r = 0; r < n.results.size(); ++r)
        if (const Value v{&n, r}; is_saved[numbers.of(v)] && !is_kept_input(v)) out.push_back(v);
    return out;
  }

  bool saves(const Node& n) const {
    for (uint32_t r = 0; r < n.results.size(); ++r)
      if (is_saved[numbers.of({&n, r})]) return true;
    return false;
  }

  // Whether it is given to the later graph as the input that it is.
  bool is_kept_input(const Value& v) const {
    return v.node->op == Op::input && joint.input_kept[static_cast<size_t>(v.node->integer(Attr::index))];
  }

  // Saved, by itself or as what leaves a region.
  bool is_given(const Value& v) const {
    const Node* left = left_as[numbers.of(v)];
    return is_saved[numbers.of(v)] || (left && is_saved[numbers.of({left, 0})]);
  }

  // By node: what is neither given nor saved, and that gradients need.
  std::vector<bool> computed_later() const {
    std::vector<bool> computed(g.nodes().size());
    auto need = [&](const Value& v) {
      if (v.node->op != Op::input && !is_given(v)) computed[v.node->id] = true;
    };
    for (size_t i = 0; i < g.outputs().size(); ++i)
      if (joint.is_gradient[i]) need(g.outputs()[i]);
    for (auto n = g.nodes().rbegin(); n != g.nodes().rend(); ++n)
      if (computed[n->id]) std::for_each(n->inputs.begin(), n->inputs.end(), need);
    return computed;
  }

  const Graph& g;
  const Joint& joint;
  ValueNumbers numbers;
  std::vector<bool> late;            // by node
  std::vector<bool> is_saved;        // by value
  std::vector<const Node*> left_as;  // by value: the mark with which it leaves a region
};

class CutFinder {
 public:
  explicit CutFinder(Cut& cut)
      : cut_(cut),
        g_(cut.g),
        joint_(cut.joint),
        numbers_(cut.numbers),
        late_(cut.late),
        is_saved_(cut.is_saved),
        left_as_(cut.left_as),
        needed_later_(g_.nodes().size()),
        inside_(g_.nodes().size()),
        repeatable_(find_repeatable(g_)),
        is_operand_(g_.nodes().size()),
        may_not_save_(numbers_.count()) {}

  // Gives the bytes of what is saved.
  int64_t run() {
    find_late();
    find_inside();
    keep_operands();
    keep(needed_as_rounded(g_));
    find_needed_later();
    is_written_ = find_written(g_, late_, numbers_);
    int64_t saved = choose() - repeat_operands();
    const auto most = static_cast<int64_t>(joint_.memory_budget * static_cast<double>(saved));
    if (saved > most) saved = choose_within(most) - repeat_operands();
    while (compute_statistics_anew()) saved = choose() - repeat_operands();
    return saved;
  }

 private:
  // What depends on a tangent is computed later.
  void find_late() {
    for (const Node& n : g_.nodes()) {
      late_[n.id] = cut_.is_tangent(n) || std::any_of(n.inputs.begin(), n.inputs.end(), [&](const Value& v) { return late_[v.node->id]; });
      if (late_[n.id] && n.has_effect())
        unsupported("a gradient is computed by ", n.call().schema, ", which has effects beside its results");
    }
    for (size_t i = 0; i < g_.outputs().size(); ++i)
      check(joint_.is_gradient[i] || !late_[g_.outputs()[i].node->id], "partition: output ", i, " depends on a tangent");
  }

  // What is made of what has entered a region, and has not left it, is computed again, but for effects, as of drawing random numbers: what
  // these give is saved. What enters and what leaves is not: else a region would be computed again for those behind it, too.
  void find_inside() {
    for (const Node& n : g_.nodes()) {
      auto is_inside = [&](const Value& v) { return inside_[v.node->id]; };
      inside_[n.id] = enters(n) || (!leaves(n) && std::any_of(n.inputs.begin(), n.inputs.end(), is_inside));
      if (may_not_save(n)) repeatable_[n.id] = true;
      if (leaves(n)) left_as_[numbers_.of(n.inputs[0])] = &n;
      if (holds(n)) repeatable_[n.id] = false;
      if (!enters(n)) continue;
      if (const Node& from = *below_views(n.inputs[0]); !inside_[from.id] && kind_of(from.op) != OpKind::source)
        repeatable_[from.id] = false;
    }
  }
  bool may_not_save(const Node& n) const { return inside_[n.id] && !n.has_effect(); }

  void find_needed_later() {
    for (size_t i = 0; i < g_.outputs().size(); ++i)
      if (joint_.is_gradient[i]) needed_later_[g_.outputs()[i].node->id] = true;
    for (auto n = g_.nodes().rbegin(); n != g_.nodes().rend(); ++n)
      if (needed_later_[n->id])
        for (const Value& v : n->inputs) needed_later_[v.node->id] = true;
  }

  // What products and calls read later lies in memory for them: to write it anew would cost more than to keep it, and, where it is a sum
  // along a chain of layers, once more with each of them.
  void keep_operands() {
    for (const Node& n : g_.nodes()) {
      const OpKind kind = kind_of(n.op);
      if (!late_[n.id] || (kind != OpKind::heavy && kind != OpKind::routine && kind != OpKind::external)) continue;
      for (const Value& v : n.inputs) {
        const Node& from = *below_views(v);
        if (!is_elementwise(from.op) || late_[from.id] || may_not_save(from)) continue;
        const bool is_worth_it = n.op == Op::dot && work(n) >= joint_.repeated_operands.work * static_cast<double>(bytes(g_, {&from, 0}));
        is_operand_[from.id] = is_operand_[from.id] || (repeatable_[from.id] && is_worth_it);
        repeatable_[from.id] = false;
      }
    }
  }

  // These are not computed anew.
  void keep(const std::vector<bool>& nodes) {
    for (const Node& n : g_.nodes())
      if (nodes[n.id] && !may_not_save(n)) repeatable_[n.id] = is_operand_[n.id] = false;
  }

  // Large operands of later products that a few operations make of others that are saved anyway are not. Gives their bytes.
  int64_t repeat_operands() {
    const auto smallest = static_cast<double>(joint_.repeated_operands.elements);
    if (smallest == 0) return 0;
    const std::vector<bool> kept = kept_values();
    std::vector<bool> is_read(numbers_.count());  // by what is repeated: stays saved
    int64_t fewer = 0;
    for (const Node& n : g_.nodes()) {
      const Value v{&n, 0};
      const size_t i = numbers_.of(v);
      if (!is_operand_[n.id] || !is_saved_[i] || kept[i] || is_read[i] || inside_[n.id] || elements(g_, v) < smallest) continue;
      const std::vector<Value> from = saved_below(v);
      auto is_large = [&](const Value& x) { return 2 * elements(g_, x) >= elements(g_, v); };
      if (from.empty() || std::ranges::count_if(from, is_large) > 2) continue;
      for (const Value& x : from) is_read[numbers_.of(x)] = true;
      is_saved_[i] = false;
      fewer += bytes(g_, v);
    }
    return fewer;
  }

  // What a value is made of by a few cheap operations, all of it saved or held; nothing if there is other.
  std::vector<Value> saved_below(const Value& v) const {
    constexpr size_t kMost = 24;
    std::vector<Value> out, open(v.node->inputs);
    for (size_t i = 0; i < open.size(); ++i) {
      const Value x = open[i];
      if (std::find(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(i), x) != open.begin() + static_cast<std::ptrdiff_t>(i))
        continue;
      if (cut_.is_given(x)) {
        out.push_back(x);
        continue;
      }
      if (open.size() > kMost || !is_cheap(*x.node) || !(repeatable_[x.node->id] || is_operand_[x.node->id])) return {};
      open.insert(open.end(), x.node->inputs.begin(), x.node->inputs.end());
    }
    return out;
  }

  // Multiplications, or elements read.
  double work(const Node& n) const {
    auto extent = [&](const Value& v, size_t d) { return static_cast<double>(g_.symbols()->hint(v.shape()[d])); };
    const double made = elements(g_, {&n, 0});
    if (n.op == Op::dot) return made * extent(n.inputs[0], n.inputs[0].shape().size() - 1);
    if (n.op == Op::conv) return made * elements(g_, n.inputs[1]) / std::max(1.0, extent(n.inputs[1], 0));
    if (n.op == Op::attention) return 2 * made * extent(n.inputs[1], 2);
    double read = 0;
    for (const Value& v : n.inputs) read += elements(g_, v);
    return read;
  }

  double work_for_a_byte(const Node& n) const {
    double given = 0;
    for (uint32_t r = 0; r < n.results.size(); ++r) given += static_cast<double>(bytes(g_, {&n, r}));
    return work(n) / std::max(1.0, given);
  }

  // Something is held in any case where a tensor is kept: of several such, the smallest. Of the others rather not what is written for
  // gradients alone, and no view, which would be copied.
  int64_t cost(const Value& v, const std::vector<bool>& kept) const {
    const int64_t n = bytes(g_, v);
    if (kept[numbers_.of(v)]) return n / 1024 + 1;
    const int64_t more = n / 16 + 1;
    return 2 * n + 16 + (is_view(*v.node) ? 2 * more : is_written_[numbers_.of(v)] ? 0 : more);
  }

  std::vector<bool> kept_values() const {
    std::vector<bool> kept(numbers_.count());
    for (size_t i = 0; i < g_.inputs().size(); ++i) kept[numbers_.of(g_.inputs()[i])] = joint_.input_kept[i];
    for (size_t i = 0; i < g_.outputs().size(); ++i)
      if (joint_.output_kept[i] && g_.outputs()[i].node->op != Op::input) kept[numbers_.of(g_.outputs()[i])] = true;
    return kept;
  }

  // What may be computed anew grows, the cheapest first, until what is left to save fits: the more of it, the less is saved. To be
  // called where nothing of it is not enough.
  int64_t choose_within(int64_t most) {
    std::vector<std::pair<double, uint32_t>> dear;
    const std::vector<bool> tested = tested_for_equality(g_);  // and not made of sums in another order
    keep(tested);
    for (const Node& n : g_.nodes())
      if (needed_later_[n.id] && !late_[n.id] && !may_not_save(n) && !holds(n) && !tested[n.id] &&
          (is_dear(n) || (is_cheap(n) && !repeatable_[n.id])))
        dear.emplace_back(work_for_a_byte(n), n.id);
    std::sort(dear.begin(), dear.end());
    auto saved_with = [&](size_t count) {
      for (size_t i = 0; i < dear.size(); ++i) repeatable_[dear[i].second] = i < count;
      return choose();
    };
    size_t too_few = 0, enough = dear.size();
    while (too_few + 1 < enough) {
      const size_t middle = (too_few + enough) / 2;
      (saved_with(middle) <= most ? enough : too_few) = middle;
    }
    return saved_with(enough);
  }

  // A product that is computed again gives other last bits where its sums come in another order, or what follows it is done elsewhere. What
  // was found of all elements of a row, its largest or their sum, holds for the bits of the call: taken off others, which may be as large
  // as one likes, it leaves what is far from the truth. So with the row it is computed again. Whether there was such a statistic.
  bool compute_statistics_anew() {
    const std::vector<bool> computed = cut_.computed_later();
    std::vector<bool> again(g_.nodes().size());              // whether a product that is computed again is below
    using Values = std::set<std::pair<uint32_t, uint32_t>>;  // node and result
    std::vector<Values> made_of(g_.nodes().size());          // such as were saved, and nothing that is computed again
    Values found;
    for (const Node& n : g_.nodes()) {
      const OpKind kind = kind_of(n.op);
      const bool is_large = kind == OpKind::heavy || kind == OpKind::routine || kind == OpKind::external;
      if (late_[n.id] && !is_large) continue;
      auto is_again = [&](const Value& v) { return again[v.node->id]; };
      const bool below = std::any_of(n.inputs.begin(), n.inputs.end(), is_again);
      again[n.id] = !late_[n.id] && (below || (computed[n.id] && is_large));
      if (!computed[n.id] || !below) continue;  // a gradient's formula is one where it is a call, as that of an attention is
      bool reads_row = false;
      for (const Value& v : n.inputs)
        if (!again[v.node->id]) continue;
        else if (cut_.is_given(v)) made_of[n.id].emplace(v.node->id, v.index);
        else if (made_of[v.node->id].empty()) reads_row = true;
        else made_of[n.id].insert(made_of[v.node->id].begin(), made_of[v.node->id].end());
      if (!reads_row) continue;
      for (const auto& [node, result] : std::exchange(made_of[n.id], {})) {
        const Value v{&g_.nodes()[node], result};
        if (!v.node->has_effect() && elements(g_, v) < elements(g_, {&n, 0})) found.emplace(node, result);
      }
    }
    for (const auto& [node, result] : found) {
      const Value v{&g_.nodes()[node], result};
      repeatable_[node] = may_not_save_[numbers_.of(v)] = true;
      left_as_[numbers_.of(v)] = nullptr;
    }
    return !found.empty();
  }

  // Each value is an edge that costs what it takes to save it; between those that can be computed of one another there is no end.
  // Gives the bytes of the values to save that nobody keeps for nothing.
  int64_t choose() {
    const std::vector<bool> kept = kept_values();
    FlowNetwork net(2 * numbers_.count() + 2);
    const size_t source = 2 * numbers_.count(), sink = source + 1;
    auto in = [&](const Value& v) { return 2 * numbers_.of(v); };
    auto read_later = [&](const Value& v) {
      if (!late_[v.node->id]) net.connect(in(v) + 1, sink, FlowNetwork::kUnlimited);
    };
    for (const Node& n : g_.nodes()) {
      if (!needed_later_[n.id]) continue;
      if (late_[n.id]) {
        std::for_each(n.inputs.begin(), n.inputs.end(), read_later);
        continue;
      }
      for (uint32_t r = 0; r < n.results.size(); ++r) {
        const Value v{&n, r};
        net.connect(in(v), in(v) + 1, may_not_save(n) || may_not_save_[numbers_.of(v)] ? FlowNetwork::kUnlimited : cost(v, kept));
        if (!repeatable_[n.id]) net.connect(source, in(v), FlowNetwork::kUnlimited);
        else
          for (const Value& from : n.inputs) net.connect(in(from) + 1, in(v), FlowNetwork::kUnlimited);
      }
    }
    for (size_t i = 0; i < g_.outputs().size(); ++i)
      if (joint_.is_gradient[i]) read_later(g_.outputs()[i]);
    const std::vector<bool> before = net.source_side(source, sink);
    int64_t saved = 0;
    for (const Node& n : g_.nodes())
      for (uint32_t r = 0; r < n.results.size(); ++r) {
        const Value v{&n, r};
        const bool saves = !late_[n.id] && before[in(v)] && !before[in(v) + 1];
        is_saved_[numbers_.of(v)] = saves;
        if (saves && !kept[numbers_.of(v)]) saved += bytes(g_, v);
      }
    return saved;
  }

  Cut& cut_;
  const Graph& g_;
  const Joint& joint_;
  const ValueNumbers& numbers_;
  std::vector<bool>&late_, &is_saved_;
  std::vector<const Node*>& left_as_;
  std::vector<bool> needed_later_, inside_, repeatable_;  // by node
  std::vector<bool> is_operand_;                          // by node: could be repeated, but that a product reads it later
  std::vector<bool> is_written_, may_not_save_;           // by value
};

// The two graphs.
class Divider {
 public:
  explicit Divider(const Cut& cut) : cut_(cut), g_(cut.g), joint_(cut.joint) {}

  std::shared_ptr<const Graph> forward(Partition& out) const {
    Emission e(g_);
    for (const Value& v : g_.inputs())
      if (!cut_.is_tangent(*v.node)) e.input(v, g_.strides(v));
    for (const Node* n : as_early_as_possible()) emit_unmarked(e, *n, cut_.saves(*n));
    std::vector<Value> outputs;
    std::vector<OutputRequest> requests;
    std::map<size_t, int> results;  // values that are results and may be held as they are
    for (size_t i = 0; i < g_.outputs().size(); ++i) {
      if (joint_.is_gradient[i]) continue;
      if (joint_.output_kept[i]) results.emplace(cut_.numbers.of(g_.outputs()[i]), static_cast<int>(outputs.size()));
      outputs.push_back(e.of(g_.outputs()[i]));
      requests.push_back(g_.requests()[i]);
    }
    for (const Value& v : cut_.saved_values()) {
      auto [it, fresh] = results.emplace(cut_.numbers.of(v), static_cast<int>(outputs.size()));
      if (fresh) outputs.push_back(e.of(v)), requests.push_back({{}, -1, true});
      out.saved.push_back(it->second);
    }
    return std::make_shared<const Graph>(e.b.finish(std::move(outputs), std::move(requests)));
  }

  std::shared_ptr<const Graph> backward(Partition& out) const {
    Emission e(g_);
    for (const Value& v : g_.inputs())
      if (cut_.is_saved[cut_.numbers.of(v)] && cut_.is_kept_input(v)) {
        out.inputs.push_back(static_cast<int>(v.node->integer(Attr::index)));
        e.input(v, g_.strides(v));
      }
    for (size_t i = 0; const Value& v : cut_.saved_values())
      e.input(v, out.forward->requests()[static_cast<size_t>(out.saved[i++])].strides);
    for (const Value& v : g_.inputs())
      if (cut_.is_tangent(*v.node)) e.input(v, g_.strides(v));
    for (const Node& n : g_.nodes())
      if (leaves(n) && cut_.left_as[cut_.numbers.of(n.inputs[0])] && cut_.is_saved[cut_.numbers.of({&n, 0})])
        e.set(n.inputs[0], e.of({&n, 0}));
    for (const Node* n : as_late_as_possible(cut_.computed_later())) emit_unmarked(e, *n);
    return std::make_shared<const Graph>(finish(e, g_, joint_.is_gradient));
  }

  // By node: what a call computes for its results and effects, and for what is saved.
  std::vector<bool> computed_by_call(bool saved) const {
    std::vector<bool> needed(g_.nodes().size());
    for (size_t i = 0; i < g_.outputs().size(); ++i)
      if (!joint_.is_gradient[i]) needed[g_.outputs()[i].node->id] = true;
    for (auto n = g_.nodes().rbegin(); n != g_.nodes().rend(); ++n) {
      if (cut_.late[n->id]) continue;
      if ((saved && cut_.saves(*n)) || n->has_effect()) needed[n->id] = true;
      if (needed[n->id])
        for (const Value& v : n->inputs) needed[v.node->id] = true;
    }
    return needed;
  }

  // What leads to results keeps its order; what is computed only to be saved comes behind the last that it reads, with which it may share a
  // kernel. Sizes that a call finds out are known behind it only.
  std::vector<const Node*> as_early_as_possible() const {
    const std::vector<bool> computed = computed_by_call(true), leads = computed_by_call(false);
    const bool in_order = std::ranges::any_of(g_.nodes(), finds_sizes);
    std::vector<uint32_t> behind(g_.nodes().size());  // which of those that lead to results
    std::vector<const Node*> out;
    for (const Node& n : g_.nodes()) {
      if (leads[n.id] || in_order) behind[n.id] = n.id;
      else
        for (const Value& v : n.inputs) behind[n.id] = std::max(behind[n.id], behind[v.node->id]);
      if (n.op != Op::input && computed[n.id]) out.push_back(&n);
    }
    std::ranges::stable_sort(out, {}, [&](const Node* n) { return std::pair(behind[n->id], !leads[n->id]); });
    return out;
  }

  // What depends on a tangent keeps its order; the rest comes where it is first read.
  std::vector<const Node*> as_late_as_possible(const std::vector<bool>& computed) const {
    std::vector<const Node*> out, stack;
    std::vector<bool> done(g_.nodes().size());
    auto place = [&](const Node& last) {
      stack.push_back(&last);
      while (!stack.empty()) {  // a chain may be as long as the program
        const Node& n = *stack.back();
        const size_t depth = stack.size();
        for (const Value& v : n.inputs)
          if (computed[v.node->id] && !done[v.node->id]) stack.push_back(v.node);
        if (stack.size() > depth) continue;
        stack.pop_back();
        if (!done[n.id]) out.push_back(&n);
        done[n.id] = true;
      }
    };
    for (const Node& n : g_.nodes())
      if (computed[n.id] && cut_.late[n.id]) place(n);
    for (const Node& n : g_.nodes())
      if (computed[n.id] && !done[n.id]) place(n);
    return out;
  }

  const Cut& cut_;
  const Graph& g_;
  const Joint& joint_;
};

}  // namespace

Graph part_of(const Graph& backward, const std::vector<bool>& outputs, const std::vector<bool>& given, const std::vector<Shape>& strides,
              bool is_linear) {
  enum class Depends : uint8_t { no, on_none_given, on_given };  // on the tangents
  Emission e(backward);
  std::vector<Depends> depends(backward.nodes().size(), Depends::no);
  std::set<std::pair<const Node*, uint32_t>> zeros;
  auto set_zero = [&](const Value& v) {
    e.set(v, e.b.full(v.shape(), Scalar(0.0), v.dtype()));
    zeros.emplace(v.node, v.index);
  };
  // In the device's memory, for who reads it there.
  auto place_zero = [&](const Value& v) {
    const Device& device = v.type().device;
    if (device == Device{} || !zeros.contains({v.node, v.index})) return;
    Attrs there = named(device);
    there[Attr::dtype] = v.dtype();
    e.set(v, e.b.expand(e.b.emit(Op::zero, {}, there), v.shape()));
  };
  const size_t first = backward.inputs().size() - given.size();
  for (size_t i = 0; i < backward.inputs().size(); ++i) {
    const Value& v = backward.inputs()[i];
    e.input(v, strides[i]);
    if (i < first) continue;
    depends[v.node->id] = given[i - first] ? Depends::on_given : Depends::on_none_given;
    if (!given[i - first]) set_zero(v);
  }
  for (const Node& n : backward.nodes()) {
    if (n.op == Op::input) continue;
    for (const Value& v : n.inputs) depends[n.id] = std::max(depends[n.id], depends[v.node->id]);
    const bool is_zero = is_linear && depends[n.id] == Depends::on_none_given && !n.has_effect() &&
                         std::ranges::all_of(n.results, [](const Type& t) { return is_floating(t.dtype); });
    for (uint32_t r = 0; is_zero && r < n.results.size(); ++r) set_zero({&n, r});
    if (is_zero) continue;
    const bool reads_memory = kind_of(n.op) >= OpKind::heavy;
    if (reads_memory) std::ranges::for_each(n.inputs, place_zero);
    e.emit(n);
    for (const Value& v : n.inputs)
      if (reads_memory && zeros.contains({v.node, v.index})) set_zero(v);
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i]) place_zero(backward.outputs()[i]);
  return rewrite(finish(e, backward, outputs), [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; });
}

Partition partition(const Graph& graph, const Joint& joint) {
  Cut cut(graph, joint);
  Partition out;
  out.saved_bytes = CutFinder(cut).run();
  out.forward = Divider(cut).forward(out);
  out.backward = Divider(cut).backward(out);
  return out;
}

std::vector<Stage> split_gradients(Module& m, const Stage& whole, const PassContext& c) {
  if (!c.joint) return {};
  if (m.stages.size() > 1) unsupported("gradients of a program that is divided otherwise");
  Joint joint = *c.joint;
  joint.repeated_operands = c.capabilities->repeated_operands;
  Partition parts = partition(*whole.graph, joint);
  if (std::ranges::any_of(parts.backward->nodes(), finds_sizes)) unsupported("gradients that find out sizes of their own");
  m.saved_bytes = parts.saved_bytes;
  const auto tangents = whole.takes.end() - static_cast<std::ptrdiff_t>(c.joint->tangents);
  Stage now{Stage::Runs::in_call, std::move(parts.forward), {whole.takes.begin(), tangents}, {}};
  Stage later{Stage::Runs::for_gradients, std::move(parts.backward), {}, {}};
  for (size_t i = 0; i < whole.gives.size(); ++i) (c.joint->is_gradient[i] ? later : now).gives.push_back(whole.gives[i]);
  for (size_t i = now.gives.size(); i < now.graph->outputs().size(); ++i)
    now.gives.push_back(m.new_slot(now.graph->outputs()[i].type(), now.graph->requests()[i].strides));
  for (int i : parts.inputs) later.takes.push_back(whole.takes[static_cast<size_t>(i)]);
  for (int s : parts.saved) later.takes.push_back(now.gives[static_cast<size_t>(s)]);
  later.takes.insert(later.takes.end(), tangents, whole.takes.end());
  return {std::move(now), std::move(later)};
}

}  // namespace broach
