// Pieces of the text form that the graph and the trace share.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace broach {

// Control characters, backslashes and double quotes as escapes, so that any string fits on one line between quotes.
std::string escaped(std::string_view s);
std::string list_text(const Shape& shape);  // [2, s0]
std::string text_of(const ExternArg& argument);
// One line a symbol and a guard.
std::string text_of(const Symbols& symbols);
// The comment at the end of a line; empty for no line.
std::string comment_text(const std::vector<std::string>& lines, int32_t line);

}  // namespace broach
