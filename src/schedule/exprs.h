// The expressions and buffers of a kernel that is being built; equal ones are shared.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "schedule/schedule.h"

namespace broach {

// The address of the element at `index` of what lies at a place.
SymInt address(const Place& place, std::span<const SymInt> index);

// An access and an expression of a kernel in another one: `now` gives the position there of an expression of the first.
template <class Now>
Access moved(Access access, const Now& now) {
  for (auto& [e, stride] : access.dynamic) e = now(e);
  return access;
}
template <class Now>
KernelExpr moved(KernelExpr e, const Now& now) {
  for (int& a : e.args) a = now(a);
  if (e.predicate >= 0) e.predicate = now(e.predicate);
  e.access = moved(std::move(e.access), now);
  return e;
}

class ExprList {
 public:
  explicit ExprList(Kernel& kernel) : k_(kernel) {}

  // Each gives the position of the expression in the kernel.
  int add(KernelExpr e);
  int op(Op o, DType dtype, std::vector<int> args);
  int constant(Scalar v, DType dtype);
  int position(const SymInt& i);
  int cast(int e, DType to) { return (*this)[e].dtype == to ? e : op(Op::cast, to, {e}); }
  // Two conditions, of which -1 always holds.
  int both(int a, int b) { return a < 0 ? b : b < 0 ? a : op(Op::bit_and, DType::b1, {a, b}); }
  int load(DType dtype, Access access, int predicate);
  int bounds(int index, const SymInt& limit, int predicate);
  int reduction(Op o, DType dtype, int arg, const SymInt& position);

  const KernelExpr& operator[](int e) const { return k_.exprs[static_cast<size_t>(e)]; }
  size_t size() const { return k_.exprs.size(); }

  // The position among the kernel's buffers of a buffer of the schedule, seen as elements of this type.
  int buffer(int id, DType dtype);
  std::vector<int>& buffers() { return buffers_; }  // by position, those of the schedule

 private:
  static KernelExpr of(KernelExpr::Kind kind, DType dtype, Op o = Op::scalar, std::vector<int> args = {});

  Kernel& k_;
  std::vector<int> buffers_;
  std::map<std::pair<int, DType>, int> positions_;  // of buffers and element types in buffers_
  std::unordered_multimap<size_t, int> known_;      // expressions by their hash
};

// With the symbols and the beginnings of buffers told by each launch. `buffers`, by position in the kernel, are the schedule's.
KernelStep finish_kernel(Kernel kernel, std::vector<int> buffers);

// Without buffers that nothing reads or stores.
KernelStep without_idle_buffers(KernelStep step);

}  // namespace broach
