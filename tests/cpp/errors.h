// Of errors that a test expects.
#pragma once

#include <functional>
#include <string>

#include "broach/error.h"

// The text of the error that f throws; empty if it throws none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const broach::Error& e) {
    return e.what();
  }
  return "";
}

inline bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }
