#include "support/bug.h"

#include <cstdlib>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "support/log.h"

namespace broach {

namespace {

// What was reported in this process.
struct Bugs {
  std::mutex mutex;
  std::unordered_set<std::string> seen;
  std::vector<std::string> fresh;

  bool add(const std::string& text) {
    std::lock_guard lock(mutex);
    bool first = seen.insert(text).second;
    if (first || verifies()) fresh.push_back(text);
    return first;
  }
  static Bugs& get() {
    static Bugs bugs;
    return bugs;
  }
};

}  // namespace

bool verifies() {
  static const bool on = [] {
    const char* given = std::getenv("BROACH_VERIFY");
    std::string_view text = given ? given : "";
#ifdef NDEBUG
    return text == "1";
#else
    return text != "0";
#endif
  }();
  return on;
}

void report_bug(std::string_view where, std::string_view what, std::string_view instead) {
  std::string text = cat(where, ": ", what);
  bool first = Bugs::get().add(text);
  if (verifies()) throw Bug(cat("a bug in Broach: ", text));
  if (first) log_warning("a bug in Broach: ", text, "; ", instead);
}

std::vector<std::string> take_bugs() {
  Bugs& bugs = Bugs::get();
  std::lock_guard lock(bugs.mutex);
  return std::exchange(bugs.fresh, {});
}

}  // namespace broach
