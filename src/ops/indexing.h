// What reads and writes at positions share.
#pragma once

#include "ops/build.h"

namespace broach {

inline bool is_index(const Value& v) { return v.dtype() == DType::i64 || v.dtype() == DType::i32; }
inline Value at_least_1d(GraphBuilder& b, Value v) { return v.rank() ? v : b.reshape(v, {SymInt(1)}); }
// Few enough to be compared with one by one.
inline bool few(const SymInt& n) { return n.is_constant() && n.constant() <= 8; }

// Indices from -n to n - 1 as positions; what lies below stays negative, an error of what reads or writes there.
Value wrapped_index(GraphBuilder& b, Value index, const SymInt& n);

struct Coordinate {
  Value index;
  SymInt size;
  bool in_range = false;  // by its form
};
// The position in row-major order; -1 if one coordinate is out of range, which the sum could hide.
Value linear_index(GraphBuilder& b, const std::vector<Coordinate>& coordinates);

// The indices of x[i, :, j, ..]: `dims` of x merged into one, at `at`, behind or among the others, and where in it to look.
struct MergedIndex {
  std::vector<int64_t> order;  // of x's dimensions before they are merged
  int64_t at = 0;
  Shape merged;  // x's sizes, permuted and merged
  Value index;   // in the sizes to which the given indices broadcast
};
// Nothing where an index is a mask or of another type that is no position, or where there is none.
std::optional<MergedIndex> merged_index(GraphBuilder& b, const Value& x, const std::vector<std::optional<Value>>& given);

// Rows of sums of the source's rows that `index` puts there; -1 puts one nowhere.
Value sum_of_rows(GraphBuilder& b, const Value& source, const Value& index, const SymInt& rows);

// Writes: scatter.cpp.
void add_scatter_ops(OpTable&);
// Bags of embeddings: bags.cpp.
void add_bag_ops(OpTable&);

}  // namespace broach
