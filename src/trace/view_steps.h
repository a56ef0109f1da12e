// Views as chains of steps: what each step shows of its operand, and the operand after what it shows was replaced.
#pragma once

#include <optional>

#include "ops/views.h"

namespace broach {

// One primitive view, from the type it was applied to, or a view that no primitive expresses.
struct ViewStep {
  Op op;
  Attrs attrs;
  std::optional<View> view = {};
};

Value shown_by(GraphBuilder& b, const ViewStep& step, Value x);

// The operand x of a view after what the view shows was replaced by y.
Value replaced_through(GraphBuilder& b, const ViewStep& step, Value x, Value y);

}  // namespace broach
