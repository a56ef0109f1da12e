// A value whose windows along one dimension are written one after another, as a loop over rows does. They are joined when
// somebody reads more than one of them: a chain of concatenations, one for each write, would grow with the square of their number.
#pragma once

#include <map>

#include "ir/graph.h"

namespace broach {

// Elements [start, start + length) of a dimension.
struct Slab {
  int64_t dim, start, length;
};

class Pieces {
 public:
  // The size along `dim` must be a constant.
  Pieces(Value whole, int64_t dim) : dim_(dim), pieces_{{0, {whole, 0, whole.shape()[static_cast<size_t>(dim)].constant()}}} {}

  int64_t dim() const { return dim_; }
  void replace(int64_t start, Value y);
  // Nothing if the elements are of several pieces.
  std::optional<Value> window(GraphBuilder& b, int64_t start, int64_t length) const;
  Value joined(GraphBuilder& b) const;

 private:
  struct Piece {
    Value source;
    int64_t offset, length;  // along the dimension, in the source
  };
  Value cut(GraphBuilder& b, const Piece& p) const;
  void split(int64_t at);

  int64_t dim_;
  std::map<int64_t, Piece> pieces_;  // by start
};

}  // namespace broach
