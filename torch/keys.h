// The dispatch keys of a capture. Both are private to torch, so another library, or a version of torch to come, may have taken one.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include <string>

namespace broach {

struct CaptureKeys {
  c10::DispatchKey record = c10::DispatchKey::Undefined;     // below autograd and autocast: every operation is recorded there
  c10::DispatchKey composite = c10::DispatchKey::Undefined;  // above them: where composite operations arrive whole
  std::string obstacle;                                      // why nothing can be recorded; empty if both were found

  c10::DispatchKeySet both() const { return c10::DispatchKeySet({record, composite}); }
};

// As they were found when the library was loaded.
const CaptureKeys& capture_keys();

}  // namespace broach
