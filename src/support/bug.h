// What is wrong in Broach itself, as opposed to what it does not handle (`Unsupported`): users get a warning that names the
// place, once, and the slower way; under BROACH_VERIFY=1, as in the tests, an exception.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/error.h"

namespace broach {

// Not an Error, so that nothing that expects one takes it for an answer.
class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Whether graphs are verified after every step and bugs are thrown: BROACH_VERIFY is 1 or, in a debug build, not 0.
bool verifies();

// `where` is an operation or a stage, `instead` says what runs now. Returns only where bugs are not thrown.
void report_bug(std::string_view where, std::string_view what, std::string_view instead);

// Those reported since the last time, for tests: the exception may have been caught on its way, by the program for one.
std::vector<std::string> take_bugs();

}  // namespace broach
