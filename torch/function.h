// A callable and its compiled versions.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/SymIntArrayRef.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "attempts.h"
#include "devices.h"
#include "host_state.h"
#include "program.h"
#include "support/published.h"

namespace broach {

class Capture;
class InputWithHistory;

// Counters and reasons of one function, for `explain` and the logs.
struct FunctionStats {
  int64_t calls = 0, compiled_calls = 0, eager_calls = 0;
  int64_t other_ways = 0;                   // runs of a program whose values read on the host turned out to be others
  std::vector<std::string> recompilations;  // which guard failed each time
  std::vector<std::string> eager_reasons;   // why calls ran eagerly
  std::vector<std::string> fixed_sizes;     // sizes that cannot become symbols, and why
  std::vector<Attempt> attempts;            // the last ones
};

// Plain numbers as a program takes them. Of any size: c10::fromIntArrayRefSlow refuses those below -2^62.
inline std::vector<c10::SymInt> as_sym_ints(at::IntArrayRef ints) { return {ints.begin(), ints.end()}; }

// Runs a program from its compiled versions, capturing and compiling new ones as calls need them. Calls may come from any
// number of threads; one compiles while the others run the program eagerly.
class Function {
 public:
  struct Results {
    std::vector<at::Tensor> tensors;
    std::vector<c10::SymInt> ints;  // numbers that follow from those that the program is given; plain in what a call gives back
    std::vector<c10::SymFloat> floats;
    std::shared_ptr<const void> form;        // the front's own: how its results are made of these. Kept with the compiled version
    std::vector<ReplacedGradient> replaced;  // by the program, which the front sees to
  };
  // The program itself. It must run on the tensors and numbers it is given: while sizes are captured as symbols, these
  // stand for the caller's.
  using Eager = std::function<Results(at::TensorList inputs, c10::SymIntArrayRef ints, c10::ArrayRef<c10::SymFloat> floats)>;

  // What calls depend on besides their inputs, whatever device these lie on. What only another device's contractions go by is asked
  // by the programs that have any.
  struct Modes {
    bool grad = false, inference = false, deterministic = false;
    c10::ScalarType default_type = c10::ScalarType::Float;
    ContractionRules contractions;
    Autocast autocast;
    friend bool operator==(const Modes&, const Modes&) = default;
    static Modes now();
  };

  // To be said before the first call: runs are recorded that do not count, and inputs must not have their history.
  void keep_inputs_apart() { plan_.add(kApart); }

  // What happens to a call of a program that cannot be compiled: it runs eagerly, or throws Unsupported.
  enum class OnFailure { run_eagerly, raise };

  // How a front differs.
  struct Rules {
    OnFailure on_failure = OnFailure::run_eagerly;
    // Nobody else watches the state of the program's host code: what the program keeps is looked for, and a program that writes to
    // what it is given or holds is used once two runs alike have shown that it does the same each time.
    bool unwatched_state = false;
    bool warns = false;  // why calls run eagerly is told as a warning, each reason once, with the way out for C++
  };

  // `log`: several functions may share one.
  Function(Eager eager, std::vector<bool> constant_inputs, ProgramOptions options, size_t limit, Rules rules,
           std::shared_ptr<AttemptLog> log = std::make_shared<AttemptLog>());
  Function(Eager eager, std::vector<bool> constant_inputs, ProgramOptions options, std::shared_ptr<AttemptLog> log)
      : Function(std::move(eager), std::move(constant_inputs), std::move(options), 32, {}, std::move(log)) {}

  // `modes`: those of now, which a front may know already.
  Results operator()(const CallInputs& call, const Modes& modes = Modes::now());
  // The same by a version that is compiled; nothing, and nothing has run, if no version stands for the call.
  std::optional<Results> run_compiled(const CallInputs& call);
  // Every call from now on runs eagerly, for this reason.
  void stop(const std::string& why);

  // Whether sizes are captured as symbols on this thread: what the program is given then stands for the caller's tensors, and
  // the front must keep no reference to it.
  static bool is_capturing_symbols();
  static bool is_capturing();
  // Sets the source line for what is captured next, if this thread is capturing.
  static void set_line(std::string line);
  // Says, from within the program, that the recording under way must not be used. Does nothing outside a capture.
  static void reject_capture(Verdict why);
  // Rejects it and lets the rest of the program run without it. False if that cannot be: the program must then end by an error.
  static bool abandon_capture(Verdict why);

  FunctionStats stats() const;
  // Why there is no program for calls that fit no version, and never will be; empty if there may be.
  Reason failure() const;
  // Whether calls run eagerly while gradients are enabled, and only then.
  bool leaves_gradients() const { return closed_ == Closed::with_gradients; }
  // Whether it was tried, in vain, with what stands for values. To be asked in a capture.
  bool refuses_stand_ins() const { return refuses_stand_ins_; }
  std::vector<std::shared_ptr<const CompiledProgram>> programs() const;
  void reset();

 private:
  struct FloatResult {
    HostFloats::Id id;  // negative: a constant
    double constant;
    bool deferred;  // the element of a tensor behind the program's results
  };
  struct Entry {
    Modes modes;
    std::vector<SymInt> int_results;
    std::vector<FloatResult> float_results;
    std::shared_ptr<const void> form;
    std::shared_ptr<const CompiledProgram> program;
    bool stand_ins;  // captured with: what it compares are other values than of one without
  };
  using Entries = std::vector<Entry>;
  // One call that was captured, for telling which sizes differ from call to call.
  struct Seen {
    Modes modes;
    std::vector<c10::ScalarType> dtypes;
    CallSizes sizes;
  };
  // One attempt, and what the program gave back if it ran to its end on tensors of its own.
  struct Recorded {
    Attempt attempt;
    Results results;
    bool has_history = false;       // for autograd
    bool has_windows = false;       // tensors that share memory, which those that stand for them count writes of apart
    bool reaches_behind = false;    // gradients that the program asked for went on to tensors behind those that it is given
    bool must_run_eagerly = false;  // what the run has done was taken back
    std::unique_ptr<Capture> capture;
    std::vector<SymInt> ints, int_results;
    std::vector<std::optional<double>> floats;  // absent where they are no constants
    std::vector<FloatResult> float_results;
    std::shared_ptr<const CompiledProgram> program;
  };
  // Whether calls of inputs that no version stands for are worth a capture. Under the mutex of compiling.
  class Profit {
   public:
    // Why not: the last captures were never used again. Empty if they are.
    std::string why_not(const CallInputs& call, const std::vector<bool>& constant, int64_t compiled_calls);
    void note_capture(int64_t compiled_calls) { ++captures_in_a_row_, compiled_calls_before_ = compiled_calls; }

   private:
    int captures_in_a_row_ = 0;          // between which no compiled version ran
    int64_t compiled_calls_before_ = 0;  // at the last capture
    // Inputs that are not captured any more, by hash: how often. The latest, and those met before, which the next ones displace.
    std::unordered_map<size_t, int> met_, met_before_;
  };

  // ---- captures: function_capture.cpp ----
  Results capture_and_compile(const CallInputs& call, const Modes& modes);
  // Why a call that no version stands for is not captured; empty if it is.
  std::string why_uncaptured(const CallInputs& call, const Entries& entries);
  void note_recompilation(const Entries& entries, const CallInputs& call, const Modes& modes);
  SymbolicSizes symbols_for(const Plan& plan) const;
  Recorded attempt(const CallInputs& call, const Modes& modes, const Plan& plan);
  void record(const CallInputs& call, const SymbolicSizes* sizes, Recorded& out) const;
  static void run_again(const CallInputs& call, Recorded& recorded);
  static bool run_in_place(const CallInputs& call, Recorded& recorded);
  void describe_results(Recorded& out) const;
  static void give_numbers(const CallInputs& call, const SymbolicSizes* sizes, Recorded& out, std::vector<c10::SymInt>& ints,
                           std::vector<c10::SymFloat>& floats);
  static void take_outside(const CallInputs& call, std::vector<InputWithHistory>& with_history, Recorded& out);
  Verdict judge(const CallInputs& call, const Modes& modes, const Recorded& recorded);
  Verdict compile(const Modes& modes, Recorded& recorded) const;
  void settle(const Modes& modes, Recorded& recorded, bool goes_on);
  void add_version(const Modes& modes, Recorded& recorded);
  void give_up(const Verdict& verdict);
  void note_fixed_sizes(const Capture& capture);

  Results run_eager(const CallInputs& call, const std::string& why, bool lasts = true);
  Results run_failed(const CallInputs& call, const FailedRun& failed);
  void note_eager(const std::string& why, bool lasts = true);
  static void evaluate_ints(const Entry& e, const Binding& binding, std::vector<c10::SymInt>& out);
  std::optional<Results> run_compiled(const Entries& entries, const CallInputs& call, const Modes& modes);

  // Whether somebody is told of the program's labels.
  bool is_profiled() const;

  static constexpr const char* kNeedsGradients = "gradients are computed within the program";
  Eager eager_;
  std::vector<bool> constant_inputs_;
  ProgramOptions options_;
  size_t limit_;
  Rules rules_;
  Published<Entries> entries_;  // replaced under compile_mutex_
  std::mutex compile_mutex_;
  bool refuses_stand_ins_ = false;
  std::vector<Seen> seen_;  // under compile_mutex_
  Plan plan_;               // likewise, as are the two behind it
  HostState host_state_;
  Profit profit_;
  mutable std::mutex stats_mutex_;
  FunctionStats stats_;
  std::atomic<int64_t> calls_{0}, compiled_calls_{0}, other_ways_{0};
  std::atomic<size_t> last_{0};  // the entry used last
  // Calls that are captured no more: those that need gradients, through tensors that the program holds itself; all.
  enum class Closed { no, with_gradients, yes };
  std::atomic<Closed> closed_{Closed::no};
  std::atomic<bool> has_labels_{false};  // for profilers
  Reason failure_;                       // under stats_mutex_
  std::shared_ptr<AttemptLog> log_;
};

}  // namespace broach
