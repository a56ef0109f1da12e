#include "schedule/fit.h"

#include <algorithm>

#include "support/error.h"

namespace broach {

namespace {

constexpr size_t kLargeKernel = 1000;   // expressions
constexpr size_t kMostEvaluations = 8;  // of one node, in a kernel that is large already
constexpr size_t kAsked = 4;            // expressions that tell whether a position lies in an operand

size_t expressions_of(const Node& n) { return n.op == Op::cat || n.op == Op::pad ? 1 + kAsked * n.inputs.size() : 1; }

}  // namespace

bool is_fusible(const Node& n, const Storage& storage) {
  const OpKind k = kind_of(n.op);
  return k != OpKind::heavy && k != OpKind::routine && k != OpKind::external && n.op != Op::input && !storage.absorbed[n.id];
}

bool Fit::add_root(const Node& n) {
  if (outside_.contains(&n)) return false;
  Fit trial = *this;
  if (!trial.space_.add_root(n)) return false;
  trial.demands_[&n].push_back({trial.space_.root_index(n), -1});
  trial.members_.emplace_back(&n, Role::root);
  std::optional<AxisSplit> split;
  if (!trial.compute(n, split)) return false;
  *this = std::move(trial);
  return true;
}

bool Fit::add(const Node& n) {
  std::optional<AxisSplit> split;
  if (compute(n, split)) {
    members_.emplace_back(&n, Role::computed);
    return true;
  }
  if (split) return add_split(n, *split);
  if (!is_view(n.op) || !storage_->windows[n.id]) return false;
  // Read as a window of what is stored, by another kernel then.
  outside_.insert(storage_->windows[n.id]->base);
  demands_.erase(&n);
  members_.emplace_back(&n, Role::computed);
  return true;
}

// The same kernel over other axes, if all that it computes fits these too.
bool Fit::add_split(const Node& n, const AxisSplit& split) {
  Fit again(*storage_);
  again.overwritten_ = overwritten_;
  std::vector<AxisSplit> splits = space_.splits();
  splits.push_back(split);
  again.space_ = Space(std::move(splits));
  for (const auto& [m, role] : members_)
    if (!again.add_again(*m, role)) return false;
  if (!again.add(n)) return false;
  *this = std::move(again);
  return true;
}

bool Fit::add_again(const Node& n, Role role) {
  switch (role) {
    case Role::root: return add_root(n);
    case Role::row_root: return store_row(n);
    default: return add(n);
  }
}

bool Fit::store_row(const Node& n) {
  const auto it = demands_.find(&n);
  if (it == demands_.end() || it->second.size() != 1 || it->second[0].condition >= 0 || outside_.contains(&n)) return false;
  space_.add_row_root(n, it->second[0].at);
  members_.emplace_back(&n, Role::row_root);
  std::optional<AxisSplit> split;
  return compute(n, split);
}

bool Fit::add_row_root(const Node& n, std::span<const Node* const> below) {
  Fit trial = *this;
  if (!trial.store_row(n)) return false;
  if (!std::ranges::all_of(below, [&](const Node* m) { return trial.add(*m); }) || !trial.space_.is_of_row(n)) return false;
  *this = std::move(trial);
  return true;
}

bool Fit::compute(const Node& n, std::optional<AxisSplit>& split) {
  auto it = demands_.find(&n);
  if (it == demands_.end()) return true;
  const size_t expressions = expressions_ + it->second.size() * expressions_of(n);
  // Concatenations of windows of concatenations: each level would compute its operands at several positions.
  if (expressions > kLargeKernel && it->second.size() > kMostEvaluations) return false;
  Wants wants;
  std::optional<Space> before = is_reduce(n.op) ? std::optional(space_) : std::nullopt;
  for (const Demand& d : it->second)
    if (!find_operands(n, d, wants, split)) {
      if (before) space_ = std::move(*before);
      return false;
    }
  expressions_ = expressions;
  demands_.erase(it);
  for (auto& [v, d] : wants) want(v, std::move(d));
  return true;
}

bool Fit::find_operands(const Node& n, const Demand& d, Wants& wants, std::optional<AxisSplit>& split) {
  switch (kind_of(n.op)) {
    case OpKind::source: return true;
    case OpKind::view: return find_view_operands(n, d, wants);
    case OpKind::heavy_view: find_take_operands(n, d, wants); return true;
    case OpKind::reduce:
      // Under a condition it would be reduced where it is not wanted.
      if (d.condition >= 0 || !space_.add_reduction(n, d.at, split)) return false;
      wants.push_back({n.inputs[0], {space_.reduction_operand(n, d.at), -1}});
      return true;
    default:
      for (const Value& v : n.inputs) wants.push_back({v, d});
      return true;
  }
}

bool Fit::find_view_operands(const Node& n, const Demand& d, Wants& wants) {
  for (size_t i = 0; i < n.inputs.size(); ++i) {
    auto in = space_.view_operand(n, i, d.at);
    if (!in) return false;
    int inside = d.condition;
    const Shape& size = n.inputs[i].shape();
    if (n.op == Op::pad)
      for (size_t dim = 0; dim < in->size(); ++dim) inside = condition(inside, (*in)[dim], size[dim]);
    const auto joined = n.op == Op::cat ? static_cast<size_t>(n.integer(Attr::dim)) : 0;
    if (n.op == Op::cat) inside = condition(inside, (*in)[joined], size[joined]);
    wants.push_back({n.inputs[i], {std::move(*in), inside}});
  }
  return true;
}

void Fit::find_take_operands(const Node& n, const Demand& d, Wants& wants) {
  const auto [from, to] = dims_of_positions(n);
  const auto first = d.at.begin() + static_cast<int64_t>(from), last = d.at.begin() + static_cast<int64_t>(to);
  wants.push_back({n.inputs[1], {Index(first, last), d.condition}});
  const SymbolId symbol = kFirstAxis * 2 + taken_++;
  space_.add_taken(symbol);
  Index in(d.at.begin(), d.at.begin() + n.integer(Attr::dim));
  in.push_back(SymInt::symbol(symbol));
  in.insert(in.end(), last, d.at.end());
  wants.push_back({n.inputs[0], {std::move(in), d.condition}});
}

// That a position lies in an operand, where the axes do not say so.
int Fit::condition(int outer, const SymInt& position, const SymInt& size) {
  if (!space_.may_be_below(position) && !space_.may_be_behind(position, size)) return outer;
  Condition c{outer, position, size};
  auto it = std::find(conditions_.begin(), conditions_.end(), c);
  if (it == conditions_.end()) it = conditions_.insert(it, std::move(c));
  return static_cast<int>(it - conditions_.begin());
}

void Fit::want(const Value& v, Demand d) {
  const auto& window = storage_->windows[v.node->id];
  if (window && !is_fusible(*window->base, *storage_)) return notice_read(v, d.at);
  auto& known = demands_[v.node];
  if (std::find(known.begin(), known.end(), d) == known.end()) known.push_back(std::move(d));
}

// Elements of the input that the kernel writes are read before they are written only where both are the same.
void Fit::notice_read(const Value& v, const Index& at) {
  const MemoryWindow& w = *storage_->windows[v.node->id];
  if (!overwritten_ || w.base->op != Op::input || w.base->integer(Attr::index) != overwritten_->first) return;
  const Index& root = space_.root_index(*members_.front().first);
  if (!(address_of(w, at) == address_of(overwritten_->second, root))) reads_overwritten_ = true;
}

}  // namespace broach
