// The points of a kernel: its loop axes, and the positions at which a value that is computed there reads its operands.
//
// Which axes a reduction runs over is decided once, when it joins the kernel. Whoever asks later is told the same.
#pragma once

#include <optional>
#include <vector>

#include "schedule/axes.h"

namespace broach {

class Space {
 public:
  explicit Space(std::vector<AxisSplit> splits = {}) : splits_(std::move(splits)) {}

  const std::vector<KernelAxis>& axes() const { return axes_; }
  const std::vector<AxisSplit>& splits() const { return splits_; }

  // Makes this node one of those that are stored; false if it has other points than those before it.
  bool add_root(const Node& root);
  // Stored once for each row: at the position where others of the kernel want it.
  void add_row_root(const Node& root, Index at) { roots_.emplace_back(&root, std::move(at)); }
  // Whether each element of a root is stored, by one row: along all axes but those that the kernel reduces.
  bool is_of_row(const Node& root) const;
  // The same points for another node of the same shape.
  void replace_root(const Node& root, const Node& by);
  // Where a root is stored: at the point itself, or for a reduction at the position of the axes that remain.
  const Index& root_index(const Node& root) const;

  // Where a view that is computed at `at` reads an operand; nothing if that position is too long to be worth computing.
  std::optional<Index> view_operand(const Node& view, size_t operand, const Index& at) const;

  // Finds the axes over which a reduction runs whose result is wanted at `at`. False if the kernel has none for it, or only where one
  // of its axes is cut as `split` says.
  bool add_reduction(const Node& n, const Index& at, std::optional<AxisSplit>& split);
  Index reduction_operand(const Node& n, const Index& at) const;

  // Positions that are read from memory; what depends on them must be linear in them.
  void add_taken(SymbolId symbol);
  void forget_taken() { taken_.clear(); }

  // Whether a position may lie below 0, or behind the last of `size`, for all that the axes' extents say.
  bool may_be_below(const SymInt& i) const { return !proven_non_negative(i, ranges_); }
  bool may_be_behind(const SymInt& i, const SymInt& size) const { return !proven_non_negative(size - 1 - i, ranges_); }

 private:
  struct Reduction {
    const Node* node;
    Index at;
    std::vector<SymbolId> axes;
  };

  Index new_axes(const Shape& extents, bool reduced = false);
  void split(const AxisSplit& s);
  bool add_first_root(const Node& root);
  bool is_only_root(const Node& n) const;
  bool is_linear_in_taken(const SymInt& i) const;
  bool depends_on_taken(const Index& at) const;
  bool is_linear_in_axes(const Index& at) const;
  std::optional<AxisSplit> split_for(const Index& at) const;
  bool find_axes(const Node& n, const Index& at, std::vector<size_t>& wanted);
  bool match(const Shape& extents, const std::vector<size_t>& axes, std::vector<size_t>& wanted);

  std::vector<AxisSplit> splits_;
  std::vector<KernelAxis> axes_;
  Ranges ranges_;  // of the axes
  Index full_;     // the point, as a position in what all roots have in common
  bool is_empty_ = true;
  size_t splittable_ = 0;  // axes that may be split
  std::vector<std::pair<const Node*, Index>> roots_;
  std::vector<Reduction> reductions_;
  std::vector<SymbolId> taken_;
};

}  // namespace broach
