#include "schedule/space.h"

#include <algorithm>

#include "support/error.h"

namespace broach {

namespace {

constexpr size_t kLargePosition = 20;  // atoms of a position: views of views of sizes that are symbols
constexpr size_t kMostAxes = 24;
constexpr size_t kMostSplits = 4;

bool is_reduced(const Node& n, size_t dim) {
  const auto& dims = n.ints(Attr::dims);
  return std::find(dims.begin(), dims.end(), static_cast<int64_t>(dim)) != dims.end();
}

bool depends(const Index& at, const KernelAxis& axis) {
  return std::any_of(at.begin(), at.end(), [&](const SymInt& i) { return i.contains(axis.id); });
}

}  // namespace

Index Space::new_axes(const Shape& extents, bool reduced) {
  Index ids;
  for (const SymInt& e : extents) {
    SymbolId id = kFirstAxis + static_cast<SymbolId>(axes_.size());
    axes_.push_back({id, e, reduced});
    ranges_[id] = Range{0, std::make_shared<SymInt>(e - 1)};
    ids.push_back(SymInt::symbol(id));
  }
  return ids;
}

void Space::split(const AxisSplit& s) {
  const KernelAxis inner{kFirstAxis + static_cast<SymbolId>(axes_.size()), s.step, false};
  KernelAxis& outer = axes_[s.axis];
  outer.extent = floordiv(outer.extent, s.step);
  ranges_[outer.id] = Range{0, std::make_shared<SymInt>(outer.extent - 1)};
  ranges_[inner.id] = Range{0, std::make_shared<SymInt>(inner.extent - 1)};
  const SymbolId id = outer.id;
  const SymInt joined = SymInt::symbol(id) * s.step + SymInt::symbol(inner.id);
  axes_.insert(axes_.begin() + static_cast<int64_t>(s.axis) + 1, inner);
  for (SymInt& i : full_) i = i.substitute([&](SymbolId other) { return other == id ? std::optional(joined) : std::nullopt; });
}

// The first root decides the axes.
bool Space::add_first_root(const Node& root) {
  is_empty_ = false;
  if (!is_reduce(root.op)) {
    full_ = new_axes(root.results[0].shape);
    for (const AxisSplit& s : splits_) split(s);
    splittable_ = splits_.size() < kMostSplits ? axes_.size() : 0;
    return true;
  }
  full_ = new_axes(root.inputs[0].shape());
  for (size_t d = 0; d < axes_.size(); ++d) axes_[d].reduced = is_reduced(root, d);
  return true;
}

bool Space::add_root(const Node& root) {
  const Shape& shape = is_reduce(root.op) ? root.inputs[0].shape() : root.results[0].shape;
  if (is_empty_) add_first_root(root);
  if (full_.size() != shape.size()) return false;
  Index at;
  for (size_t d = 0; d < shape.size(); ++d)
    if (!is_reduce(root.op) || !is_reduced(root, d)) at.push_back(full_[d]);
  roots_.emplace_back(&root, std::move(at));
  return true;
}

bool Space::is_of_row(const Node& root) const {
  const Shape& shape = root.results[0].shape;
  const Index& at = root_index(root);
  SymInt position(0), elements(1);
  for (size_t d = shape.size(); d-- > 0; elements = elements * shape[d]) position = position + at[d] * elements;
  // The axes that stay are the digits of its elements' numbers: each is stored, and by one row.
  std::vector<const KernelAxis*> rows;
  for (const KernelAxis& a : axes_)
    if (!(a.extent == SymInt(1)) && !a.reduced) rows.push_back(&a);
    else if (depends(at, a) && a.reduced) return false;
  SymInt stride(1);
  while (!rows.empty()) {
    const auto next = std::ranges::find_if(rows, [&](const KernelAxis* a) {
      const auto linear = position.linear_in(a->id);
      return linear && linear->first == stride;
    });
    if (next == rows.end()) return false;
    const KernelAxis& axis = **next;
    position = position.linear_in(axis.id)->second;
    stride = stride * axis.extent;
    rows.erase(next);
  }
  return stride == elements;
}

// Which has to fit some kernel.
bool Space::is_only_root(const Node& n) const { return roots_.size() == 1 && roots_.front().first == &n; }

void Space::replace_root(const Node& root, const Node& by) {
  for (auto& [node, at] : roots_)
    if (node == &root) node = &by;
}

const Index& Space::root_index(const Node& root) const {
  auto it = std::find_if(roots_.begin(), roots_.end(), [&](const auto& r) { return r.first == &root; });
  check(it != roots_.end(), "kernel: %", root.id, " is not stored by it");
  return it->second;
}

// ---- views ----

std::optional<Index> Space::view_operand(const Node& n, size_t operand, const Index& at) const {
  const Value& x = n.inputs[operand];
  Index in = at;
  switch (n.op) {
    case Op::expand:
      in.resize(x.shape().size());
      for (size_t d = 0; d < in.size(); ++d) in[d] = x.shape()[d] == SymInt(1) ? SymInt(0) : at[d];
      return in;
    case Op::permute:
      for (size_t d = 0; d < in.size(); ++d) in[static_cast<size_t>(n.ints(Attr::dims)[d])] = at[d];
      return in;
    case Op::slice:
      for (size_t d = 0; d < in.size(); ++d) in[d] = n.sizes(Attr::starts)[d] + at[d] * SymInt(n.ints(Attr::steps)[d]);
      return in;
    case Op::reshape:
      in = reshaped_index(n.results[0].shape, x.shape(), at, ranges_);
      for (const SymInt& i : in)
        if ((i.atoms() > kLargePosition && !is_only_root(n)) || !is_linear_in_taken(i)) return std::nullopt;
      return in;
    case Op::pad:
      for (size_t d = 0; d < in.size(); ++d) in[d] = at[d] - n.sizes(Attr::low)[d];
      return in;
    default: {
      SymInt& i = in[static_cast<size_t>(n.integer(Attr::dim))];
      for (size_t before = 0; before < operand; ++before) i = i - n.inputs[before].shape()[static_cast<size_t>(n.integer(Attr::dim))];
      return in;
    }
  }
}

// ---- positions read from memory ----

void Space::add_taken(SymbolId symbol) {
  if (std::find(taken_.begin(), taken_.end(), symbol) == taken_.end()) taken_.push_back(symbol);
}

bool Space::is_linear_in_taken(const SymInt& i) const {
  return std::all_of(taken_.begin(), taken_.end(), [&](SymbolId s) { return !i.contains(s) || i.linear_in(s); });
}

bool Space::depends_on_taken(const Index& at) const {
  return std::any_of(at.begin(), at.end(),
                     [&](const SymInt& i) { return std::any_of(taken_.begin(), taken_.end(), [&](SymbolId s) { return i.contains(s); }); });
}

// ---- reductions ----

bool Space::add_reduction(const Node& n, const Index& at, std::optional<AxisSplit>& split) {
  if (std::any_of(reductions_.begin(), reductions_.end(), [&](const Reduction& r) { return r.node == &n && r.at == at; })) return true;
  if (depends_on_taken(at)) return false;
  if (!is_linear_in_axes(at)) {
    split = split_for(at);
    return false;
  }
  std::vector<size_t> wanted;
  if (!find_axes(n, at, wanted)) return false;
  Reduction r{&n, at, {}};
  for (size_t a : wanted) {
    axes_[a].reduced = true;
    r.axes.push_back(axes_[a].id);
  }
  reductions_.push_back(std::move(r));
  return true;
}

Index Space::reduction_operand(const Node& n, const Index& at) const {
  auto it = std::find_if(reductions_.begin(), reductions_.end(), [&](const Reduction& r) { return r.node == &n && r.at == at; });
  check(it != reductions_.end(), "kernel: the axes of %", n.id, " (", name_of(n.op), ") are not known");
  Index in;
  size_t kept = 0, reduced = 0;
  for (size_t d = 0; d < n.inputs[0].shape().size(); ++d) in.push_back(is_reduced(n, d) ? SymInt::symbol(it->axes[reduced++]) : at[kept++]);
  return in;
}

bool Space::is_linear_in_axes(const Index& at) const {
  return std::all_of(axes_.begin(), axes_.end(), [&](const KernelAxis& a) {
    return std::all_of(at.begin(), at.end(), [&](const SymInt& i) { return !i.contains(a.id) || i.linear_in(a.id); });
  });
}

// The result is the same at several positions of an axis, and would be reduced anew for each.
std::optional<AxisSplit> Space::split_for(const Index& at) const {
  std::vector<std::pair<size_t, SymInt>> divisors;
  for (const SymInt& i : at) find_divisors(i, axes_, divisors);
  for (auto& [axis, step] : divisors)
    if (axis < splittable_) return AxisSplit{axis, step};
  return std::nullopt;
}

// Those that the kernel reduces already, or its axes that the result does not depend on, or new ones if the result depends on all.
bool Space::find_axes(const Node& n, const Index& at, std::vector<size_t>& wanted) {
  Shape extents;
  for (int64_t d : n.ints(Attr::dims)) extents.push_back(n.inputs[0].shape()[static_cast<size_t>(d)]);
  std::vector<size_t> free, reduced;
  for (size_t a = 0; a < axes_.size(); ++a) {
    const bool is_one = axes_[a].extent == SymInt(1);
    if (axes_[a].reduced) reduced.push_back(a);
    if (!is_one && !depends(at, axes_[a])) free.push_back(a);
  }
  if (reduced.empty() && free.empty()) {
    if (axes_.size() + extents.size() > kMostAxes) return false;
    for (size_t i = 0; i < extents.size(); ++i) wanted.push_back(axes_.size() + i);
    new_axes(extents, true);
    return true;
  }
  if (reduced.empty()) return match(extents, free, wanted);
  std::erase_if(reduced, [&](size_t a) { return axes_[a].extent == SymInt(1); });
  // Every axis that stays must move the result, or each would reduce again for the same answer.
  return match(extents, reduced, wanted) && std::none_of(reduced.begin(), reduced.end(), [&](size_t a) { return depends(at, axes_[a]); }) &&
         std::all_of(free.begin(), free.end(), [&](size_t a) { return axes_[a].reduced; });
}

// Dimensions of size 1 need no axis of the point: each gets one of its own.
bool Space::match(const Shape& extents, const std::vector<size_t>& axes, std::vector<size_t>& wanted) {
  size_t next = 0;
  for (const SymInt& e : extents) {
    if (e == SymInt(1)) {
      new_axes({e}, true);
      wanted.push_back(axes_.size() - 1);
      continue;
    }
    if (next >= axes.size() || !(axes_[axes[next]].extent == e)) return false;
    wanted.push_back(axes[next++]);
  }
  return next == axes.size();
}

}  // namespace broach
