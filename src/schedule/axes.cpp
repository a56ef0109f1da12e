#include "schedule/axes.h"

#include <algorithm>

namespace broach {

namespace {

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

}  // namespace broach
