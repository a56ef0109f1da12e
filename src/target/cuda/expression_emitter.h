// Text of a kernel's values at one point: the lanes of a thread are written out one by one, and what they have in common once.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "support/error.h"
#include "target/cuda/kernel_plan.h"

namespace broach::cuda {

class ExpressionEmitter {
 protected:
  ExpressionEmitter(const KernelPlan& plan, std::string name) : p_(plan), k_(plan.kernel), name_(std::move(name)) {}

  template <class... Args>
  void line(const Args&... args) {
    out_ += std::string(static_cast<size_t>(depth_) * 2, ' ') + cat(args...) + "\n";
  }
  void open(const std::string& head) { line(head, " {"), ++depth_; }
  void close() { --depth_, line("}"); }

  // The kernel around its body.
  std::string around(const std::function<void()>& body);
  void name_symbols();
  // The positions of these axes, of which the last has `lanes` elements to a count.
  void stand(const std::vector<size_t>& axes, const std::string& count, int64_t lanes);
  // The name of a value: of the lane, or of all lanes where they do not differ.
  std::string value(int e, int64_t lane);
  std::string index(const SymInt& n, int64_t lane) const;
  std::string address(const Access& a, int64_t lane);
  void store(const KernelStore& s, const std::function<std::string(int64_t lane)>& value);
  bool is_inner(int e) const { return p_.inner[static_cast<size_t>(e)]; }
  const char* index_type() const { return p_.variant.wide ? "i64" : "int"; }

  const KernelPlan& p_;
  const Kernel& k_;
  const Ranges ranges_ = ranges_of(k_);
  std::string name_, out_;
  int depth_ = 1;
  std::map<std::pair<int, int64_t>, std::string> values_;  // at the current point
  std::set<int> filled_;                                   // of those that are cached
  std::string cache_step_;                                 // which of a thread's steps the current point is

 private:
  std::string head() const;
  std::string round_two(int e, int64_t lane);
  std::string compute(int e, int64_t lane);
  std::optional<Scalar> inverse_of_divisor(const KernelExpr& e) const;
  std::string operation(int at, int64_t lane);
  std::string cast(const std::string& x, DType from, DType to) const;
  std::string load(int at, int64_t lane);
  std::string atom(const Atom& a, int64_t lane) const;
};

std::string stored_type(DType t);
std::string computed_type(DType t);
std::string constant_text(const Scalar& s, DType t);
std::string from_memory(const std::string& x, DType t);
std::string to_memory(const std::string& x, DType t);
std::string as_stored(const std::string& x, DType t);  // rounded to its type

}  // namespace broach::cuda
