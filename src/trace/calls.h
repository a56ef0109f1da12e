// The results of one recorded call: what its entry in src/ops builds, or a call of the host's library.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/random.h"
#include "trace/functionalize.h"
#include "trace/memory.h"
#include "trace/regions.h"

namespace broach {

// Arguments that name tensors by their place in a list of this call's own.
struct CallArgs {
  std::vector<Arg> args;
  std::vector<Value> tensors;
};
CallArgs with_values(std::vector<Arg> args, const std::function<Value(TensorId)>& value_of);
std::vector<Type> result_types(const StorageValues& memory, const TraceOp& op);

class Calls {
 public:
  Calls(const Trace& trace, const FunctionalizeOptions& options, GraphBuilder& b, StorageValues& memory, const Regions& regions)
      : t_(trace), options_(options), b_(b), memory_(memory), regions_(regions) {}

  // The results of an operation as if it had no effect on its operands.
  std::vector<Value> compute(const TraceOp& op);
  std::optional<std::vector<Value>> lower(const TraceOp& op, const std::string& schema);
  // Whether an operation is known that draws random numbers: by a counter, or the host's own, in the order of what is written.
  bool draws(const std::string& schema, TensorId written = kNoTensor) const;
  // The new elements of `target`: the functional operation's result, in the target's own type. `is_out`: the target is no operand.
  std::optional<Value> lower_as(const std::string& schema, const std::vector<Arg>& args, TensorId target, bool is_out);
  // The results, and then the new elements of the operands that are written.
  std::vector<Value> call_extern(const TraceOp& op, const std::vector<TensorId>& mutated);
  // Whether it stems from a lowering that was not taken, for what the target has not.
  bool is_refused(const Value& v) const;

 private:
  const TraceTensor& info(TensorId id) const { return memory_.info(id); }
  Value read(TensorId id) { return regions_.read(b_, id, memory_.value(id)); }
  const OpEntry* entry_of(const std::string& schema) const;
  CallArgs with_values(const std::vector<Arg>& args);
  std::optional<Value> strided_copy(const TraceOp& op);
  std::optional<std::vector<Value>> lower_by(const OpEntry& entry, const TraceOp& op, const std::string& schema);
  // Whether the target has this node; all that was made since `before` nodes, and what these results are made of.
  bool has(const Node& node) const;
  bool is_supported(size_t before, std::span<const Value> results) const;
  // Nothing was taken of what was made since.
  void refuse_since(size_t before);
  bool may_be_strided(const Value& v) const;
  void set_results(ExternCall& call, const TraceOp& op) const;

  const Trace& t_;
  const FunctionalizeOptions& options_;
  GraphBuilder& b_;
  StorageValues& memory_;
  const Regions& regions_;
  std::vector<bool> refused_;  // by node id: no call took it, and it is, or is made of, what the target has not
};

}  // namespace broach
