#include "schedule/axes.h"

#include <algorithm>

namespace broach {

namespace {

constexpr size_t kMostAxes = 24;

int64_t size_hint(const SymInt& s) {
  return s.eval([](SymbolId) { return int64_t{1000}; });
}

bool is_empty(const Shape& s) { return std::find(s.begin(), s.end(), SymInt(0)) != s.end(); }

// Dimensions [i, i_end) of one shape and [j, j_end) of the other that have the same elements, as few as there can be.
struct Correspondence {
  size_t i, i_end, j, j_end;
};

Correspondence next_group(const Shape& from, const Shape& to, size_t i, size_t j) {
  Correspondence g{i, i, j, j};
  SymInt p = i < from.size() ? from[g.i_end++] : SymInt(1), q = j < to.size() ? to[g.j_end++] : SymInt(1);
  while (!(p == q) && (g.i_end < from.size() || g.j_end < to.size())) {
    bool take_from = g.j_end >= to.size() || (g.i_end < from.size() && size_hint(p) < size_hint(q));
    if (take_from) p = p * from[g.i_end++];
    else q = q * to[g.j_end++];
  }
  return g;
}

}  // namespace

Index reshaped_index(const Shape& from, const Shape& to, const Index& index, const Ranges& ranges) {
  // Without elements no position is read, and none could be divided by the sizes.
  if (is_empty(from) || is_empty(to)) return Index(to.size(), SymInt(0));
  Index out(to.size());
  // Only the groups of dimensions that really change are linearised.
  for (size_t i = 0, j = 0; i < from.size() || j < to.size();) {
    if (i < from.size() && j < to.size() && from[i] == to[j]) {
      out[j++] = index[i++];
      continue;
    }
    const Correspondence g = next_group(from, to, i, j);
    SymInt linear(0);
    for (size_t d = g.i; d < g.i_end; ++d) linear = linear * from[d] + index[d];
    linear = simplify(linear, ranges);
    for (size_t d = g.j_end; d-- > g.j;) {
      out[d] = d == g.j ? linear : simplify(mod(linear, to[d]), ranges);
      if (to[d] == SymInt(1)) out[d] = 0;
      linear = simplify(floordiv(linear, to[d]), ranges);
    }
    i = g.i_end, j = g.j_end;
  }
  return out;
}

Index LoopAxes::add(const Shape& extents, bool reduced) {
  Index ids;
  for (const SymInt& e : extents) {
    SymbolId id = kFirstAxis + static_cast<SymbolId>(axes_.size());
    axes_.push_back({id, e, reduced});
    ids.push_back(SymInt::symbol(id));
  }
  return ids;
}

void LoopAxes::split(const AxisSplit& s, Index& index) {
  const KernelAxis inner{kFirstAxis + static_cast<SymbolId>(axes_.size()), s.step, false};
  const SymbolId outer = axes_[s.axis].id;
  axes_[s.axis].extent = floordiv(axes_[s.axis].extent, s.step);
  const SymInt joined = SymInt::symbol(outer) * s.step + SymInt::symbol(inner.id);
  axes_.insert(axes_.begin() + static_cast<int64_t>(s.axis) + 1, inner);
  for (SymInt& i : index) i = i.substitute([&](SymbolId id) { return id == outer ? std::optional(joined) : std::nullopt; });
}

Ranges LoopAxes::ranges() const {
  Ranges r;
  for (const auto& a : axes_) r[a.id] = Range{0, std::make_shared<SymInt>(a.extent - 1)};
  return r;
}

std::vector<size_t> LoopAxes::reduced_by(const Node& n, const Index& index, size_t splittable) {
  Shape extents;
  for (int64_t d : n.ints(Attr::dims)) extents.push_back(n.inputs[0].shape()[static_cast<size_t>(d)]);
  std::vector<bool> depends;
  for (const KernelAxis& a : axes_) {
    auto moved = [&](const SymInt& i) { return i.contains(a.id); };
    depends.push_back(std::any_of(index.begin(), index.end(), moved));
    if (std::any_of(index.begin(), index.end(), [&](const SymInt& i) { return moved(i) && !i.linear_in(a.id); }))
      split_for(n, index, splittable);
  }
  std::vector<size_t> free, wanted;
  bool reduces = false;
  for (size_t a = 0; a < axes_.size(); ++a) {
    reduces = reduces || axes_[a].reduced;
    if (!depends[a] && !(axes_[a].extent == SymInt(1))) free.push_back(a);
  }
  if (!reduces && free.empty()) {
    if (axes_.size() + extents.size() > kMostAxes) throw Misfit{&n};
    for (size_t i = 0; i < extents.size(); ++i) wanted.push_back(axes_.size() + i);
    add(extents, true);
    return wanted;
  }
  if (!(reduces ? match_reduced(extents, depends, wanted) : match(extents, free, wanted))) throw Misfit{&n};
  for (size_t a : wanted) axes_[a].reduced = true;
  return wanted;
}

// The result is the same at several positions of an axis, and would be reduced anew for each.
void LoopAxes::split_for(const Node& n, const Index& index, size_t splittable) const {
  std::vector<std::pair<size_t, SymInt>> divisors;
  for (const SymInt& i : index) find_divisors(i, axes_, divisors);
  for (auto& [axis, step] : divisors)
    if (axis < splittable) throw AxisSplit{axis, step};
  throw Misfit{&n};
}

// Every axis that stays must move the result, or each would reduce again for the same answer.
bool LoopAxes::match_reduced(const Shape& extents, const std::vector<bool>& depends, std::vector<size_t>& wanted) {
  std::vector<size_t> real;
  bool fits = true;
  for (size_t a = 0; a < depends.size(); ++a) {
    if (axes_[a].extent == SymInt(1)) continue;
    if (axes_[a].reduced) real.push_back(a);
    fits = fits && axes_[a].reduced != depends[a];
  }
  return match(extents, real, wanted) && fits;
}

// Dimensions of size 1 need no axis of the point: each is given a fresh one.
bool LoopAxes::match(const Shape& extents, const std::vector<size_t>& axes, std::vector<size_t>& wanted) {
  size_t next = 0;
  for (const SymInt& e : extents) {
    if (e == SymInt(1)) {
      add({e}, true);
      wanted.push_back(axes_.size() - 1);
      continue;
    }
    if (next >= axes.size() || !(axes_[axes[next]].extent == e)) return false;
    wanted.push_back(axes[next++]);
  }
  return next == axes.size();
}

}  // namespace broach
