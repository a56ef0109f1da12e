// An update or a scatter that starts from an input and is written back into it can happen in the input itself; the schedule then runs
// it after all readers of the old elements, and, but for `early` ones, after all that may fail: an index out of range is found by the step
// that uses it, and the program itself is then run in this one's place, which must find its inputs as they were.
#include <algorithm>

#include "ir/strides.h"
#include "passes/passes.h"

namespace broach {

namespace {

// Writes into one input, which are written back into it.
class Chain {
 public:
  Chain(const Graph& graph, const Node* last) : graph_(graph), has_(graph.nodes().size()), before_(last) {
    for (; writes_elements(before_->op); before_ = before_->inputs[0].node) writes_.push_back(before_), has_[before_->id] = true;
  }

  const std::vector<const Node*>& writes() const { return writes_; }  // the last first
  const Node& before() const { return *before_; }                     // what they start from

  // What is written, and where, must not be read from the memory that is being written, nor may anybody get a state of it.
  bool is_safe() const {
    for (const Value& v : graph_.outputs())
      if (has_[v.node->id]) return false;
    auto reads_state = [&](const Value& v) {
      const Node* n = v.node;
      while (is_window(n->op)) n = n->inputs[0].node;
      return n == before_ || has_[n->id];
    };
    return std::none_of(writes_.begin(), writes_.end(),
                        [&](const Node* w) { return std::any_of(w->inputs.begin() + 1, w->inputs.end(), reads_state); });
  }

  // Whether the input only has windows replaced, by what does not depend on the elements that were there, and nothing reads these or
  // a state in between (a cache of keys and values): writing twice is then the same as once.
  bool is_overwritten() const {
    if (std::any_of(writes_.begin(), writes_.end(), [](const Node* w) { return w->op != Op::update && w->op != Op::scatter; }))
      return false;
    auto is_in_between = [&](const Value& v) { return v.node == before_ || (v.node != writes_.front() && has_[v.node->id]); };
    if (std::any_of(graph_.outputs().begin(), graph_.outputs().end(), is_in_between)) return false;
    return std::none_of(graph_.nodes().begin(), graph_.nodes().end(),
                        [&](const Node& n) { return std::any_of(n.inputs.begin() + (has_[n.id] ? 1 : 0), n.inputs.end(), is_in_between); });
  }

  // Whether one of the writes, or what needs its result, may turn out to be an error.
  bool fails_behind() const {
    std::vector<bool> behind = has_;
    for (const Node& n : graph_.nodes()) {
      for (const Value& v : n.inputs) behind[n.id] = behind[n.id] || behind[v.node->id];
      if (behind[n.id] && (n.op == Op::extern_call || checks_index(n.op))) return true;
    }
    return false;
  }

 private:
  const Graph& graph_;
  std::vector<const Node*> writes_;
  std::vector<bool> has_;  // by node id
  const Node* before_;
};

}  // namespace

Graph update_in_place(const Graph& graph, const PassContext&) {
  std::vector<Placement> placements = graph.placements();
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Node& out = *graph.outputs()[i].node;
    const int m = graph.requests()[i].into_input;
    if (m < 0 || out.op != Op::copy) continue;
    const Chain chain(graph, out.inputs[0].node);
    const Node& before = chain.before();
    if (chain.writes().empty() || before.op != Op::input || before.integer(Attr::index) != m) continue;
    if (placements[chain.writes().back()->id].in >= 0 || !chain.is_safe()) continue;
    const bool early = chain.is_overwritten();
    if (!early && chain.fails_behind()) continue;
    for (const Node* w : chain.writes()) placements[w->id].in = static_cast<int>(before.id), placements[w->id].early = early;
  }
  return graph.with(std::move(placements));
}

}  // namespace broach
