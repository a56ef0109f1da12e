// Errors of indices that nobody would meet.
#pragma once

#include <functional>
#include <vector>

#include "ir/graph.h"

namespace broach {

// An index outside is an error though nobody reads what it selects, or only a part is read: what checks it then becomes one more output, which
// is no result. Not where the index is made of positions and constants alone, as lowerings make one, nor where it follows from inputs from
// `late` on, the gradients of results, by which what the program used is selected again, nor of what `is_left_out`.
void keep_what_may_fail(GraphBuilder& b, std::vector<Value>& outputs, size_t late, const std::function<bool(const Value&)>& is_left_out);

}  // namespace broach
