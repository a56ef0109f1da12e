// Operations that write their operands, as others that only give results.
#pragma once

#include <string>
#include <vector>

#include "trace/trace.h"

namespace broach {

// "aten::add_.Tensor" -> "aten::add.Tensor"; "aten::add.out" -> the overloads it may be the out= variant of.
std::vector<std::string> functional_names(const std::string& schema, bool* is_out);
// The operation that has the same arguments, and gives the operands' new elements as its last results; empty if there is none.
std::string form_with_results(const Trace& t, const TraceOp& op);
// Whether it reads elements that it may have written a moment before: eager goes through them in some order, where it does not refuse them,
// which it does only of windows without gaps. The recorded call's sizes decide.
bool reads_its_own_writes(const Trace& t, const TraceOp& op);
// Each operand of a call of the host's library has memory of its own: whether one that is written would be seen in another.
bool writes_meet(const Trace& t, const TraceOp& op);

}  // namespace broach
