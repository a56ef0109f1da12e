// BROACH_LOG=info|debug prints what the compiler does to standard error; warnings are printed unless it is "error".
#pragma once

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include "support/error.h"

namespace broach {

enum class LogLevel { error, warning, info, debug };

inline LogLevel log_level() {
  static const LogLevel level = [] {
    const char* text = std::getenv("BROACH_LOG");
    std::string_view s = text ? text : "";
    return s == "debug" ? LogLevel::debug : s == "info" ? LogLevel::info : s == "error" ? LogLevel::error : LogLevel::warning;
  }();
  return level;
}

template <class... Args>
void log_at(LogLevel level, const char* name, const Args&... args) {
  // One string, so that lines of several threads do not mix.
  if (log_level() >= level) std::cerr << cat("broach ", name, ": ", args..., "\n");
}
template <class... Args>
void log_warning(const Args&... args) {
  log_at(LogLevel::warning, "warning", args...);
}
template <class... Args>
void log_info(const Args&... args) {
  log_at(LogLevel::info, "info", args...);
}
template <class... Args>
void log_debug(const Args&... args) {
  log_at(LogLevel::debug, "debug", args...);
}

}  // namespace broach
