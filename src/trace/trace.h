// The trace: what a program did while it was captured, op by op, before anything is made functional.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ir/graph.h"

namespace broach {

using TensorId = int32_t;
constexpr TensorId kNoTensor = -1;

// One argument of a recorded op, in schema order.
struct Arg {
  struct Tensor {
    TensorId id;
  };
  // A Python number in a tensor's position, or one that is known only when the program runs: promotes as a number, not as a
  // tensor. With `symbol` it is an integer that follows from sizes, with `tensor` the element of one.
  struct Number {
    Scalar value;
    std::optional<SymInt> symbol = std::nullopt;
    TensorId tensor = kNoTensor;
  };
  struct Tensors {
    std::vector<TensorId> ids;
    bool optional_elements = false;
  };  // kNoTensor for an absent one
  // monostate is None. Element types, layouts and memory formats are numbers (SymInt), devices are strings.
  std::variant<std::monostate, Tensor, Number, Tensors, SymInt, Scalar, std::string, Shape, std::vector<double>, ExternArg::Bools,
               ExternArg::Opaque>
      value;
};

// A tensor as the program saw it: a window into a storage.
struct TraceTensor {
  Type type;
  Shape strides;
  SymInt offset;  // in elements, from the beginning of the storage
  int32_t storage = -1;
  bool conj = false, neg = false;  // the elements are those in memory conjugated, or negated
  friend bool operator==(const TraceTensor&, const TraceTensor&) = default;
};

struct TraceOp {
  std::string schema;  // "aten::add.Tensor"
  std::vector<Arg> args;
  std::vector<TensorId> results;  // kNoTensor for an undefined one
  // For a schema returning values other than tensors (numbers, booleans): the op as a whole is opaque to the graph.
  std::vector<TensorId> mutated;             // tensors whose elements the op writes
  bool is_view = false;                      // the schema says that results alias the first tensor argument
  bool effect = false;                       // random numbers, or a side effect the schema tags name
  int32_t line = -1;                         // into Trace::lines
  std::vector<ExternCall::Bind> binds = {};  // symbols that are known once it has run
};

// Calls f with the id of each tensor that the arguments name, those of numbers too.
template <class F>
void for_each_tensor(const std::vector<Arg>& args, const F& f) {
  for (const Arg& a : args) {
    if (auto one = std::get_if<Arg::Tensor>(&a.value)) f(one->id);
    if (auto number = std::get_if<Arg::Number>(&a.value); number && number->tensor != kNoTensor) f(number->tensor);
    if (auto many = std::get_if<Arg::Tensors>(&a.value))
      for (TensorId id : many->ids)
        if (id != kNoTensor) f(id);
  }
}

// The program read the only element of a tensor on the host: the trace stands for it only where the element is the same.
// That of an input is known before the program runs; one that the program computed only afterwards.
struct ValueRead {
  int input = -1;               // position in Trace::inputs, or
  TensorId tensor = kNoTensor;  // a copy of the computed tensor as it was when it was read
  Scalar value;
  int32_t line = -1;  // into Trace::lines
};

struct Trace {
  std::vector<TraceTensor> tensors;
  std::vector<TensorId> inputs;   // in the order in which the program was given them, and those of `numbers` behind
  std::vector<TensorId> outputs;  // kNoTensor for None
  std::vector<TraceOp> ops;
  std::vector<ValueRead> reads;
  std::vector<HostFloats::Id> numbers;  // of symbols->floats: what a call computes on the host, as f64 inputs without dimensions
  std::vector<std::string> lines;
  std::shared_ptr<Symbols> symbols = std::make_shared<Symbols>();

  std::string str() const;
  static Trace parse(std::string_view text);
  // Throws an Error that names the part if what is recorded does not fit together.
  void verify() const;
  // With every size written as what the symbols' guards say it equals.
  TraceTensor resolved(TraceTensor t) const;
  TraceOp resolved(TraceOp op) const;
  void resolve();
};

}  // namespace broach
