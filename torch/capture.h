// Capture: running a program once while every operation that reaches the dispatcher below autograd is recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace/trace.h"

namespace broach {

// One recording. The program runs for real: its results are eager's own, and an error in it is eager's own.
//
// The recording hangs on the thread-local state of the thread that captures, which the autograd engine carries to its
// threads; captures on other threads do not meet it.
class Capture {
 public:
  explicit Capture(const std::vector<at::Tensor>& inputs);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Runs the program and records it. Exceptions pass through.
  void run(const std::function<void()>& program);
  void finish(const std::vector<at::Tensor>& outputs);

  // What was recorded; meaningless if `failure` is set.
  const Trace& trace() const { return trace_; }
  // Tensors the program read without being given them: they became inputs behind the given ones.
  const std::vector<at::Tensor>& lifted() const { return lifted_; }
  // Why the recording cannot stand for the program; empty if it can.
  const std::string& failure() const { return failure_; }

  void set_line(std::string line);
  void reject(std::string why);

  // For the dispatcher's fallback.
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  static Capture* current();

 private:
  TensorId id_of(const at::Tensor& t);
  TensorId add_tensor(const at::Tensor& t);
  TensorId twin_of(TensorId id) const;
  Arg arg_of(const c10::IValue& v, const c10::Argument& schema);
  void add_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack, TraceOp& out);
  bool guard_read(const torch::jit::Stack& stack, const TraceOp& op);
  bool indexes_by_position(const TraceOp& op) const;
  void fail_with(const std::string& why);

  std::mutex mutex_;  // the autograd engine records from its own threads
  Trace trace_;
  std::vector<at::Tensor> lifted_;
  std::string failure_;
  int32_t line_ = -1;
  // Tensors and storages seen so far. Weak references keep an address from being used again, but not the memory behind it.
  struct Seen {
    c10::weak_intrusive_ptr<c10::TensorImpl> impl;
    TensorId id;
  };
  std::unordered_map<const c10::TensorImpl*, Seen> tensors_;
  struct SeenStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> impl;
    int32_t id;
  };
  std::unordered_map<const c10::StorageImpl*, SeenStorage> storages_;
};

}  // namespace broach
