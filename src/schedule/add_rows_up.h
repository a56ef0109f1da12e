// Sums of columns, computed where rows are at hand.
#pragma once

#include <optional>
#include <vector>

#include "ir/capabilities.h"
#include "schedule/schedule.h"

namespace broach {

// Two steps for one that sums columns alone: a kernel of rows, which adds up some rows at a time into a new buffer of parts, and one that
// sums the parts and does what stood behind the sums.
struct AddedRows {
  Step rows, rest;
};

// Nothing where the step does anything else, or where it would not pay. `buffers` gets those of the parts.
std::optional<AddedRows> add_rows_up(const Step& step, const Capabilities::RowAdder& able, std::vector<Buffer>& buffers);

}  // namespace broach
