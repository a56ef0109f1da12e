// What the parts of the movement family share.
#pragma once

#include "ops/build.h"

namespace broach {

using Dims = std::vector<int64_t>;

inline size_t at(int64_t dim) { return static_cast<size_t>(dim); }
inline const SymInt& size_of(const Value& x, int64_t dim) { return x.shape().at(at(dim)); }
Dims counted(int n);  // 0, 1, .., n - 1

// The elements start, start + step, .. of a dimension.
struct Part {
  SymInt start, length;
  int64_t step;
};
// The part that arguments i, i + 1, i + 2 (start, end, step) name of a dimension of this size.
Part part(OpCall& c, size_t i, const SymInt& size);
// A bound of a slice: from the end if negative, then clamped to [0, size].
SymInt clamped(Symbols& s, SymInt bound, const SymInt& size);
// A negative index counted from the end.
SymInt wrapped(Symbols& s, const SymInt& index, const SymInt& size);
Value select_at(GraphBuilder& b, Value x, int64_t dim, const SymInt& index);
Value flip_dim(GraphBuilder& b, Value x, int64_t dim);
// Dimension `from` to position `to`, the others in their order.
Value move_dim(GraphBuilder& b, Value x, int64_t from, int64_t to);

// The windows of unfold(x, dim, size, step).
struct Windows {
  Value x;
  int64_t dim, size, step;
  SymInt count;
};
std::optional<Windows> windows(OpCall& c);

// The other parts of the family.
void add_padding_ops(OpTable&);
void add_window_ops(OpTable&);

}  // namespace broach
