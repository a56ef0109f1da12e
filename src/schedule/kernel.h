// Kernel IR: one fused loop nest.
//
// A kernel has loop axes, some of them reduced. Scalar expressions form a DAG over the point (the values of all axes); a
// reduction turns an expression over all axes into one over the axes that are not reduced. Stores of expressions that use a
// reduced axis happen at every point; the others once per position of the axes that are not reduced.
// Sizes are symbolic; a kernel receives the values of its symbols with every launch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace broach {

struct KernelAxis {
  SymbolId id;  // kFirstAxis + n
  SymInt extent;
  bool reduced = false;
  friend bool operator==(const KernelAxis&, const KernelAxis&) = default;
};

// The address of an element: buffer[index + sum of dynamic[i].first * dynamic[i].second], in elements.
struct Access {
  int buffer = -1;  // position in Kernel::buffers
  SymInt index;
  std::vector<std::pair<int, SymInt>> dynamic;  // (expression of type i64, stride)
  friend bool operator==(const Access&, const Access&) = default;
};

struct KernelExpr {
  enum class Kind : uint8_t {
    constant,   // value
    parameter,  // number `value` of those that a launch gives behind the symbols
    position,   // access.index as an i64
    load,       // access; where `predicate` is false nothing is read and the result is unspecified
    op,         // elementwise primitive on args, rounded to its type
    reduction,  // op over the reduced axes of args[0]; access.index is the position that argmax and argmin give
    bounds,     // args[0], an index that must lie in [0, limit), checked unless `predicate` is false; out of range sets the error flag
  };
  Kind kind;
  DType dtype;
  Op op = Op::scalar;
  std::vector<int> args;
  Scalar value = int64_t{0};
  Access access;
  SymInt limit;
  int predicate = -1;
  // Of values bit for bit: -0.0 is not 0.0, NaN is NaN.
  friend bool operator==(const KernelExpr& a, const KernelExpr& b);
};

struct KernelStore {
  Access access;
  int expr;
  // An element is the sum of what is stored in it: at the points of so many rows, one behind the other, as tells the one floordiv of its
  // address. Rows are the positions of the axes that are not reduced, of which the last moves fastest.
  bool adds = false;
  friend bool operator==(const KernelStore&, const KernelStore&) = default;
};

struct Kernel {
  std::vector<KernelAxis> axes;   // outermost first
  std::vector<DType> buffers;     // element types of the buffers, in the order of the launch
  std::vector<KernelExpr> exprs;  // operands before users
  std::vector<KernelStore> stores;
  int symbols = 0;      // symbols 0..n-1 are the parameters of a launch
  int parameters = 0;   // numbers that follow them, of which kernels with the same code differ
  bool strict = false;  // functions to all digits; a product that is summed is rounded before

  // One line a part. Kernels are equal if their texts are, which is the key under which code is shared.
  std::string str() const;
  // Its lines are counted from behind `lines` others, where the kernel is a part of a text.
  static Kernel parse(std::string_view text, size_t lines = 0);
  // Throws an Error that names the part if the kernel breaks a rule of the IR.
  void verify() const;
  friend bool operator==(const Kernel&, const Kernel&) = default;
};

// How many rows share what their stores add up; 0 if no store does.
int64_t rows_added(const Kernel& kernel);

// What a kernel's symbols and axes can be.
Ranges ranges_of(const Kernel& kernel);
// Which axes an expression depends on, by position in Kernel::axes.
std::vector<std::vector<bool>> axis_uses(const Kernel& k);

// Splits axes where that removes floordiv and mod from addresses, joins axes that are contiguous in all of them, drops axes
// of extent 1, and orders the rest by the strides of the stores.
Kernel normalize_axes(Kernel k);

}  // namespace broach
