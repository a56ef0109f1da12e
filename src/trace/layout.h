// Where the results of a recorded operation lie while sizes are symbols.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "trace/trace.h"

namespace broach {

// `seen` are the results as the eager run made them, in numbers; those that alias an operand name its storage. Gives the same
// with symbols, found by the operation's own lowering on the symbolic types of its operands; a result whose memory is dense
// keeps the order of its dimensions. Nothing if this operation has no such rule: what it depends on must then be fixed.
// May record guards in the trace's symbols.
std::optional<std::vector<TraceTensor>> symbolic_results(const Trace& trace, const TraceOp& op, std::vector<TraceTensor> seen);

// The same for an operation of which only the host's library knows the rule. `ask` gives the sizes of the results when symbols
// have certain values (by SymbolId), or nothing where it cannot say. Sizes are taken to be those of operands, or constant, that
// agree with all answers.
using SizeOracle = std::function<std::optional<std::vector<std::vector<int64_t>>>(const std::vector<int64_t>& values)>;
std::optional<std::vector<TraceTensor>> probed_results(const Trace& trace, const TraceOp& op, std::vector<TraceTensor> seen,
                                                       const SizeOracle& ask);

// The strides of memory without gaps whose dimensions have the order that they have in numbers; nothing if there are gaps there.
std::optional<Shape> dense_strides(const Shape& shape, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

// The symbols that an operation's operands and arguments mention.
std::vector<SymbolId> symbols_of(const Trace& trace, const TraceOp& op);

}  // namespace broach
