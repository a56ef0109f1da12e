// Lowering: what each ATen operation means in primitives. One entry a schema; the entry also is the shape rule, since
// the type of the value it builds is the type of the result.
#pragma once

#include <functional>
#include <string_view>

#include "ops/views.h"
#include "support/bug.h"
#include "trace/trace.h"

namespace broach {

// The arguments of one recorded call, with tensors as values of the graph being built. Positions are the schema's.
class OpCall {
 public:
  // `results` are the types that eager's results had (with symbolic sizes where known).
  OpCall(GraphBuilder& b, std::string_view schema, std::vector<Arg> args, std::vector<Value> tensors, std::vector<Type> results)
      : b(b), schema(schema), args_(std::move(args)), tensors_(std::move(tensors)), results_(std::move(results)) {}

  GraphBuilder& b;
  std::string_view schema;

  size_t size() const { return args_.size(); }
  bool is_none(size_t i) const { return i >= args_.size() || std::holds_alternative<std::monostate>(args_[i].value); }
  bool is_tensor(size_t i) const { return i < args_.size() && (std::holds_alternative<Arg::Tensor>(args_[i].value) || is_number(i)); }
  // A Python number where the schema has a tensor, or one that is known only when the program runs; `tensor` gives it without
  // dimensions.
  bool is_number(size_t i) const { return i < args_.size() && std::holds_alternative<Arg::Number>(args_[i].value); }
  bool is_run_time_number(size_t i) const { return is_number(i) && std::get<Arg::Number>(args_[i].value).tensor != kNoTensor; }
  Value tensor(size_t i) const;
  std::optional<Value> maybe_tensor(size_t i) const;
  std::vector<std::optional<Value>> tensors(size_t i) const;
  SymInt integer(size_t i) const;
  SymInt integer_or(size_t i, SymInt otherwise) const { return is_none(i) ? otherwise : integer(i); }
  int64_t constant(size_t i) const { return b.symbols().specialize(integer(i)); }  // an integer that must be known
  Shape ints(size_t i) const;  // int[] and SymInt[]; a single number counts as a list of one
  std::vector<int64_t> constants(size_t i) const;
  Value number_f64(size_t i) const;  // a number, or a tensor without dimensions, with all digits that it has: f64[]
  Scalar scalar(size_t i) const;     // a number
  double number(size_t i) const { return as_double(scalar(i)); }
  double number_or(size_t i, double otherwise) const { return is_none(i) ? otherwise : number(i); }
  bool flag(size_t i) const { return !is_none(i) && as_int(scalar(i)) != 0; }
  std::string text(size_t i) const;
  std::optional<DType> dtype(size_t i) const;
  const Type& result(size_t i = 0) const { return results_.at(i); }
  const std::vector<Type>& results() const { return results_; }
  bool is_complex_number(size_t i) const;
  // The same call with other tensors; complex results become real ones of the same precision.
  OpCall mapped(const std::function<Value(Value)>& f) const;
  // A dimension number, negative ones counted from the end, for a tensor of this rank (0-dim tensors count as 1-dim).
  int64_t dim(size_t i, int rank) const { return wrap_dim(constant(i), rank); }
  std::vector<int64_t> dims(size_t i, int rank) const;  // none or an empty list: all
  static int64_t wrap_dim(int64_t d, int rank);

 private:
  std::vector<Arg> args_;
  std::vector<Value> tensors_;  // by TensorId; null for those not used by this call
  std::vector<Type> results_;
};

// Builds the results of a call, or returns nothing (or throws Unsupported) where this combination of arguments has no lowering:
// it then runs as an extern. Never builds a wrong answer. Any other exception is a bug of the lowering.
using Lowering = std::function<std::optional<std::vector<Value>>(OpCall&)>;
// The view of argument 0 that a call makes, or nothing.
using ViewLowering = std::function<std::optional<View>(OpCall&)>;
// The value of a view (same number of elements or fewer, writes go through): must be built of view primitives only.
struct OpEntry {
  Lowering lower;
};

// What `build` gives for a call of the operation; nothing where it says that it does not handle it.
template <class F>
auto where_handled(std::string_view schema, F&& build) -> decltype(build()) {
  try {
    return build();
  } catch (const Unsupported&) {
    return std::nullopt;
  } catch (const Bug&) {
    throw;
  } catch (const std::exception& e) {  // whatever it is, libtorch knows the answer
    report_bug(schema, e.what(), "it is called in libtorch instead");
    return std::nullopt;
  }
}

class OpTable {
 public:
  static const OpTable& get();
  const OpEntry* find(std::string_view schema) const;
  size_t size() const { return entries_.size(); }

  // The view that a call makes, where primitives of movement do not express it; null for other schemas.
  const ViewLowering* find_view(std::string_view schema) const;

  // For families: names are given without "aten::" and mean every overload listed, e.g. "add.Tensor add.Scalar".
  void add(std::string_view names, Lowering lowering);
  // For calls with a complex operand or result; others go to the entry that the name had.
  void add_complex(std::string_view names, Lowering lowering);
  void add_view(std::string_view names, ViewLowering lowering);

 private:
  OpTable();
  std::unordered_map<std::string, OpEntry> entries_;
  std::unordered_map<std::string, ViewLowering> views_;
};

// The families; each adds its entries.
void add_pointwise_ops(OpTable&);      // pointwise.cpp: unary, binary, comparisons, where, casts, activations, clamp, lerp, ...
void add_reduction_ops(OpTable&);      // reduction.cpp
void add_movement_ops(OpTable&);       // movement.cpp: views, cat, stack, pad, flip, roll, repeat, ...
void add_creation_ops(OpTable&);       // creation.cpp: full, arange, *_like, clone, ...
void add_indexing_ops(OpTable&);       // indexing.cpp: gather, index_select, embedding, index, scatter, masked ops, ...
void add_ordering_ops(OpTable&);       // ordering.cpp: scans, sorts, selections, searches
void add_normalization_ops(OpTable&);  // normalization.cpp: softmax, layer/batch/group/rms norm
void add_contraction_ops(OpTable&);    // contraction.cpp: mm, bmm, addmm, baddbmm, linear, convolution
void add_pooling_ops(OpTable&);        // pooling.cpp: pools and interpolation
void add_complex_ops(OpTable&);        // complex.cpp: after those whose names it shares
void add_views(OpTable&);              // views.cpp: views that are no movement

// ---- pieces that the families share ----

// PyTorch's type promotion over tensors and Python numbers: dimensions before zero-dim tensors before numbers, category first.
class Promotion {
 public:
  void add(const Value& v);
  void add(const Scalar& s);
  DType result() const;

 private:
  std::optional<DType> dims_, zero_dim_, numbers_;
};

}  // namespace broach
