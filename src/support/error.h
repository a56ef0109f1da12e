// Errors carry their context as text that a user can act on. Every throw in the project goes through `fail` or `check`.
#pragma once

#include <sstream>
#include <string>
#include <type_traits>

#include "broach/error.h"

namespace broach {

// Something that Broach cannot compile. The front answers it by running the program another way; it never reaches the user
// except as a counted reason in `explain`, or as an error under `fullgraph=True`.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// Arithmetic on sizes or on the program's integers leaves 64 bits, or divides by zero: with other values it may not.
class OutOfRange : public Unsupported {
 public:
  using Unsupported::Unsupported;
};

// Integers go past the stream's locale: its facets may be another C++ library's where several live in one process.
template <class T>
void write_text(std::ostringstream& out, const T& value) {
  if constexpr (std::is_integral_v<T> && sizeof(T) > 1) out << std::to_string(value);
  else out << value;
}

// Concatenates the printed forms of its arguments.
template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (write_text(out, args), ...);
  return out.str();
}

template <class... Args>
[[noreturn]] void fail(const Args&... args) {
  throw Error(cat(args...));
}

template <class... Args>
[[noreturn]] void unsupported(const Args&... args) {
  throw Unsupported(cat(args...));
}

template <class... Args>
void check(bool ok, const Args&... args) {
  if (!ok) [[unlikely]]
    fail(args...);
}

}  // namespace broach
