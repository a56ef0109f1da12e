// Pieces of the text form that the graph and the trace share.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace broach {

// Control characters, backslashes and double quotes as escapes, so that any string fits on one line between quotes.
std::string escaped(std::string_view s);
std::string exact_text(const Scalar& s);    // as str() gives it, but for a NaN that is not the usual one its bits: nan0xfff8000000000000
std::string list_text(const Shape& shape);  // [2, s0]
// Objects of the host that have no text form, numbered in the order in which one text mentions them.
using OpaqueNumbers = std::map<const void*, size_t>;
std::string text_of(const ExternArg& argument, OpaqueNumbers& opaque);
std::string text_of(const Attrs& attrs, OpaqueNumbers& opaque);   // dims=[1], dtype=f32
std::string text_of(const std::vector<ExternCall::Bind>& binds);  // " binds [[s0, 0, 1]]", or nothing
// One line a symbol, a guard, a number of the host and what the program decided by it.
std::string text_of(const Symbols& symbols);
// The comment at the end of a line; empty for no line.
std::string comment_text(const std::vector<std::string>& lines, int32_t line);

}  // namespace broach
