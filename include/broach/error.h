// What Broach throws.
#pragma once

#include <stdexcept>

namespace broach {

// The text says what could not be done, where, and what to do about it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace broach
