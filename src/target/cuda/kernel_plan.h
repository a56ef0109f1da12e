// How the threads of a GPU divide a kernel.
//
// A unit is one result, or a few side by side (`lanes`). Without reduced axes a thread computes a unit. With them a team of threads
// does: side by side along a reduced axis where its elements lie side by side (rows), or each for some rows of the columns that its
// neighbours share (columns). Elements next to each other are next to each other in a warp in any case. Where rows are added up, a team
// takes those that share a sum one after the other, and keeps its part of the sums in registers. Where some elements that are loaded lie
// side by side along another axis than those that are stored, a block takes a square of both axes and turns it in shared memory (tiles).
#pragma once

#include <optional>
#include <set>
#include <span>

#include "schedule/kernel_facts.h"

namespace broach::cuda {

// What may be asked of the code for a kernel.
struct Variant {
  int architecture = 0;  // 90 for compute capability 9.0
  bool packs = true;     // accesses of 16 bytes, which need aligned buffers
  bool wide = false;     // indices of 64 bits
  friend auto operator<=>(const Variant&, const Variant&) = default;
};

struct KernelPlan : KernelFacts {
  enum class Shape : uint8_t { points, rows, columns };

  Kernel kernel;
  Variant variant;
  Shape shape = Shape::points;
  size_t axis = 0;                           // along which threads, and the elements of a thread, lie side by side
  int64_t lanes = 1;                         // elements of a thread side by side
  int team = 1;                              // threads that compute a unit together
  int width = 256;                           // units of a block, at a time
  int64_t added = 0;                         // rows that a block adds up; 0: none
  std::optional<size_t> across;              // the other axis of tiles; units are these then, and no unit axes the two
  std::set<int> turned;                      // loads that lie side by side along that one
  std::vector<size_t> unit_axes, step_axes;  // that units and the team's steps count, outermost first
  SymInt units, steps;                       // steps: of the whole team, in elements
  int64_t trips = 0;                         // steps of each thread, if they are known and few enough to be written out; else 0
  std::set<int> cached;                      // expressions that a thread keeps from one pass over its elements to the next
  std::set<int> kept;                        // of these, those that are the same in all rows that a block adds up
  std::set<int> ahead;                       // loads of the next row, begun before a row is worked on

  const KernelExpr& expr(int e) const { return kernel.exprs[static_cast<size_t>(e)]; }
  SymbolId axis_id() const { return kernel.axes[axis].id; }
  bool has_reductions() const { return shape != Shape::points; }
  bool varies(int e) const { return uses[static_cast<size_t>(e)][axis]; }  // among the lanes
  bool is_inside(const KernelStore& s) const;                              // at each point of the reduced axes
  bool stores_inside() const;
  bool has_one_pass() const;  // over the reduced axes: what is stored at each point needs no result of a reduction
  // Whether the lanes of an access are one access of up to 16 bytes, if its buffer begins at such an address.
  bool is_packed(const Access& access) const;
  int block_threads() const { return team * width; }
  int64_t block_units() const { return added > 0 ? added : across ? 1 : width; }
};

constexpr int kTile = 32;  // elements along each side
// Of a multiprocessor, for kernels that add up rows: what lies ahead, sums and what is kept take some 72 registers.
constexpr int64_t kThreadsAddingRows = 896;

KernelPlan plan_kernel(const Kernel& kernel, const Variant& variant);

// The largest index that a launch with these symbols can meet, or more; as large as possible where it overflows.
int64_t reach(const KernelPlan& plan, std::span<const int64_t> symbols);

}  // namespace broach::cuda
