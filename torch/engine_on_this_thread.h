// Autograd's engine runs what belongs to a GPU on a thread of its own, where nobody watches Python code.
#pragma once

#include <c10/core/AutogradState.h>

namespace broach {

class EngineOnThisThread {
 public:
  EngineOnThisThread() : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~EngineOnThisThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  EngineOnThisThread(const EngineOnThisThread&) = delete;
  EngineOnThisThread& operator=(const EngineOnThisThread&) = delete;

 private:
  bool before_;
};

}  // namespace broach
