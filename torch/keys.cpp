#include "keys.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "compat.h"
#include "support/error.h"

namespace broach {

namespace {

// A fallback of ours beside another ends the process, and an operation's own kernel comes before a fallback.
bool is_free(c10::DispatchKey key) {
  auto& dispatcher = c10::Dispatcher::singleton();
  return !dispatcher.hasBackendFallbackForDispatchKey(key) && dispatcher.getRegistrationsForDispatchKey(key).empty();
}

template <size_t n>
c10::DispatchKey first_free(const c10::DispatchKey (&keys)[n]) {
  auto found = std::find_if(std::begin(keys), std::end(keys), is_free);
  return found == std::end(keys) ? c10::DispatchKey::Undefined : *found;
}

std::string taken(c10::DispatchKey key) {
  return cat("operations cannot be recorded: another library, or this version of torch, has taken the dispatch key ", c10::toString(key),
             ", so every program runs eagerly; import broach before that library, or without it");
}

}  // namespace

const CaptureKeys& capture_keys() {
  static const CaptureKeys found = [] {
    CaptureKeys keys{first_free(kCaptureKeys), first_free(kCompositeKeys), {}};
    if (keys.record == c10::DispatchKey::Undefined) keys.obstacle = taken(kCaptureKeys[0]);
    else if (keys.composite == c10::DispatchKey::Undefined) keys.obstacle = taken(kCompositeKeys[0]);
    return keys;
  }();
  return found;
}

}  // namespace broach
