// A captured and compiled program, ready to be called with tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "differentiable.h"
#include "kept_weights.h"
#include "pipeline_options.h"
#include "runner.h"
#include "runtime/guards.h"
#include "support/error.h"
#include "trace/functionalize.h"
#include "trace/generalize.h"

namespace broach {

using ProgramOptions = PipelineOptions;

struct ProgramStats {
  ExecutableStats code;
  std::vector<std::pair<std::string, double>> seconds;  // by stage, in order
  std::vector<std::string> picks;                       // of contractions
  std::vector<std::string> guards;
  std::vector<KeptWeight> kept;  // beside the weights themselves
  int64_t arena_bytes = 0;
  int64_t saved_bytes = 0;  // for gradients
  int64_t reruns = 0;       // of the program, for gradients that compiled code does not give
  RecordingCounts recordings;
  std::string graph_text, schedule_text;
  std::vector<StepProfile> steps;  // if profiling was on while it ran
};

class Backward;
class ProgramAgain;
class RandomStates;
class Stages;
struct CompiledTrace;
struct InputFacts;
enum class Companion;

// A step of a run found that the call is an error. Nothing was written but what the program itself, run on the same inputs, writes
// alike, and random numbers are where they were: it raises what eager raises.
class FailedRun : public Error {
 public:
  using Error::Error;
};

// What a program is given on one call: tensors and Python numbers, the same count of each on every call.
struct CallInputs {
  at::TensorList tensors;
  at::IntArrayRef ints = {};
  at::ArrayRef<double> floats = {};
  const std::shared_ptr<const ProgramAgain>* again = nullptr;
  std::vector<at::Tensor>* own = nullptr;  // `tensors`, where the run may let those go that nobody reads any more
};

// A gradient among a program's inputs that it takes from its leaf, which gets another one or none.
struct ReplacedGradient {
  size_t input;
  at::Tensor leaf;
};

// A lifted tensor, and the input whose companion it is.
struct ReadCompanion {
  size_t lifted;
  Companion what;
  size_t input;
};

// What is known of a call once a program accepts it.
struct Binding {
  SymbolValues values;
  RunInputs inputs;                  // the caller's and what the program holds, as long as these are there
  std::span<const SymInt> integers;  // results, whose values must be ones of 64 bits before anything is written for good
};

class CompiledProgram {
 public:
  // `trace` must stand for a program without failures, `ints` and `floats` are the numbers it was given (a float that is no constant
  // is absent). `lifted` are the tensors behind the trace's own inputs, `facts` is about all of them; `constant_inputs` says which
  // inputs the caller passes unchanged call after call (parameters and buffers). `differentiable` and `gradients`: of a program whose
  // results have a history. `replaced`: those that it does not read are let go before the others are made.
  CompiledProgram(const Trace& trace, std::vector<SymInt> ints, std::vector<std::optional<double>> floats, std::vector<at::Tensor> lifted,
                  const std::vector<InputFacts>& facts, const std::vector<bool>& constant_inputs, const ProgramOptions& options,
                  const Differentiable& differentiable, const TracedGradients& gradients, std::vector<ReplacedGradient> replaced);
  ~CompiledProgram();

  // Whether these inputs are ones the program was compiled for, with the values of its symbols; `why` says what differs.
  bool accepts(const CallInputs& call, Binding& binding, std::string* why) const;
  // Whether it stands for one of the ways only that data may lead a call.
  bool is_one_way() const { return program_.speculative; }
  // Whether some of its sizes are known only once it runs.
  bool binds_sizes() const { return finds_sizes_; }
  // Whether it holds only for one value of a number that the program reads on the host.
  bool reads_numbers() const;
  // Whether the program takes the way that these values, the first ones that were read on the host, lead to.
  bool agrees(const std::vector<Scalar>& observed) const;
  // Inputs must be accepted. Throws FailedRun if the call is an error, for a bad index for example.
  // Nothing if a value that the program read on the host is another one now, or sizes that depend on data do not fit: nothing is
  // written then, and `observed` has the values up to that one, if it got longer. The binding gets the sizes.
  std::optional<std::vector<at::Tensor>> run(const CallInputs& call, Binding& binding, std::vector<Scalar>& observed) const;

  ProgramStats stats() const;
  // The tensors that it holds itself.
  const std::vector<at::Tensor>& lifted() const { return lifted_; }

 private:
  std::optional<std::vector<at::Tensor>> run_speculatively(const CallInputs& call, Binding& binding, std::vector<Scalar>& observed) const;
  std::optional<std::vector<at::Tensor>> run_decided(const CallInputs& call, Binding& binding, std::vector<Scalar>& observed) const;
  std::vector<at::Tensor> run_directly(const CallInputs& call, Binding& binding) const;
  using Decide = std::function<bool(const std::vector<at::Tensor>& made, std::span<const int64_t> elements)>;
  // Binds the sizes that it finds out. False where a run decided not to go on, or these do not fit.
  bool run_stages(Binding& binding, std::vector<at::Tensor>& made, const Decide& decide = {}) const;
  bool is_unread(size_t input) const;
  void let_go_of_gradients(const CallInputs& call) const;
  RandomStates random_states(bool kept) const;
  void commit(const RunInputs& inputs, const std::vector<at::Tensor>& made) const;
  std::vector<at::Tensor> results(const RunInputs& inputs, const std::vector<at::Tensor>& made, const SymbolValues& symbols) const;
  bool was_asked_the_same(at::TensorList inputs, std::string* why) const;
  void add_devices(const Trace& trace);
  bool is_set_the_same(std::string* why) const;
  bool has_the_same_companions(at::TensorList inputs, std::string* why) const;
  // `of_read`: each value that the program read on the host.
  bool took_this_way(const std::function<Scalar(size_t)>& of_read, std::vector<Scalar>& observed) const;

  void add_reads(const Trace& trace);
  void add_guards(const Trace& trace, const std::vector<InputFacts>& facts, const std::vector<bool>& constant_inputs,
                  std::vector<Shape>& sizes, std::vector<Shape>& strides);
  void add_stats();
  // Writes the addresses of what it holds.
  bool holds_the_same(const void** addresses, std::string* why) const;
  // An input that lies in one storage with another, which is written, if there is one that did not so in the capture.
  std::optional<std::pair<size_t, size_t>> shared_with_written(at::TensorList inputs) const;

  struct InputGuard {
    caffe2::TypeMeta dtype;
    c10::Device device;
    c10::DispatchKeySet keys;
    std::optional<bool> is_leaf;  // of a parameter it always is
  };
  // Of tensors that the program holds: many are of one kind.
  struct HeldGuard {
    caffe2::TypeMeta dtype;
    c10::Device device;
    int64_t itemsize;
    bool required_grad;  // and autograd did not look at it
    c10::DispatchKeySet keys;
    c10::SmallVector<int64_t, 10> window;  // size and stride of each dimension
    bool operator==(const HeldGuard&) const = default;
  };
  // Something that few programs ask an input.
  struct Asked {
    size_t input;
    std::optional<bool> is_view;
    std::optional<int64_t> storage_offset;
  };

  std::shared_ptr<const CompiledTrace> compiled_;
  Program program_;  // results and commits are made of slots
  std::vector<at::Tensor> lifted_;
  std::vector<const at::Tensor*> held_;  // to each of them
  size_t given_, all_inputs_;            // inputs that the caller gives; and with tangents, the first slots
  std::vector<InputGuard> guards_;
  std::vector<HeldGuard> held_guards_;  // each once
  std::vector<uint32_t> guard_of_held_;
  std::vector<Asked> asked_;
  std::vector<c10::Device> devices_;                            // of all tensors
  std::vector<c10::Device> current_;                            // of each kind of them that has several
  std::vector<std::pair<DeviceKind, ContractionRules>> rules_;  // of each kind of them besides the CPU
  std::vector<std::pair<size_t, int64_t>> version_steps_;       // of inputs that eager writes
  std::vector<ReadCompanion> companions_;                       // which the program reads
  std::vector<ReplacedGradient> unread_gradients_;              // which it replaces
  std::vector<size_t> unhooked_;                                // inputs of whose gradients the program computes some
  SizeGuards sizes_;
  std::vector<ValueRead> reads_;         // of inputs
  std::vector<Scalar> read_values_;      // of what the program computes
  std::vector<HostFloats::Id> numbers_;  // inputs behind the lifted ones
  bool draws_ = false;                   // random numbers
  bool can_fail_ = false;
  std::vector<UsedUpHistory> used_up_;  // by result
  std::vector<bool> has_history_;       // by result: of those that are windows of inputs
  std::vector<ShownAs> shown_;          // by result
  size_t bases_ = 0;                    // the last of both are what results are views of, which nobody is given
  std::vector<size_t> lets_need_;       // gradients, of those inputs: not before
  std::vector<bool> required_grad_;     // by input that the caller gives: must again if the program has gradients, else may
  std::shared_ptr<const Backward> backward_;
  std::unique_ptr<const Stages> stages_;
  bool finds_sizes_ = false;
  ProgramStats stats_;
};

}  // namespace broach
