// Torch's warnings, left out for a while on this thread.
#pragma once

#include <c10/util/Exception.h>

namespace broach {

class NoWarnings {
  struct Nowhere : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Nowhere nowhere_;
  c10::WarningUtils::WarningHandlerGuard guard_{&nowhere_};
};

}  // namespace broach
