// Which of ATen's operations a thread is inside of while a program is captured.
#pragma once

#include <ATen/record_function.h>

#include <string>

namespace broach {

// What an operation reads on the host are its own checks and sizes; what is read with none under way is the program's decision.
class OperationsUnderWay {
 public:
  OperationsUnderWay();  // on this thread, as long as it lives
  ~OperationsUnderWay();
  OperationsUnderWay(const OperationsUnderWay&) = delete;
  OperationsUnderWay& operator=(const OperationsUnderWay&) = delete;

  // The name of the innermost that computes tensors; empty if there is none. One that gives nothing but a number or a truth value
  // (`item`, `allclose`) reads for whoever has called it.
  static std::string innermost();

 private:
  at::CallbackHandle handle_;
};

}  // namespace broach
