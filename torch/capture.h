// Capture: running a program once while every operation that reaches the dispatcher below autograd is recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Scalar.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "attempts.h"
#include "devices.h"
#include "differentiable.h"
#include "host_writes.h"
#include "pipeline_options.h"
#include "trace/generalize.h"
#include "trace/trace.h"

namespace torch::autograd {
struct Node;
}

namespace broach {

// Of a front whose programs have code of their own that autograd runs: custom functions, hooks.
class GradientCode {
 public:
  virtual ~GradientCode() = default;
  // Why what this node runs cannot be recorded; empty if it can. `results`: how many of the node's have gradients.
  virtual std::string obstacle(torch::autograd::Node& node, bool is_formula, size_t results) = 0;
  // Runs eager's engine, which runs the code. Why what was recorded does not stand for it; empty if it does.
  virtual std::string run(const std::function<void()>& engine) = 0;
  virtual std::shared_ptr<const ReadByCode> read() const = 0;
};

// Why what a node of autograd's runs besides a formula of torch's cannot be recorded; empty if it can.
using CodeObstacle = std::function<std::string(torch::autograd::Node& node, bool is_formula)>;

// What torch gives of a tensor without an operation: its gradient, or what it is a view of.
enum class Companion { gradient, base };
at::Tensor companion_of(const at::Tensor& t, Companion what);  // undefined if there is none

// What no operation shows of an input, and the program may have gone by.
struct InputFacts {
  c10::DispatchKeySet keys;  // among others, whether it is an inference tensor
  bool is_leaf = true;
  bool requires_grad = false;
  bool has_no_hooks = false;              // if the program would have run them
  std::optional<bool> is_view;            // if the program asked
  std::optional<int64_t> storage_offset;  // if something depends on it
  int64_t version_steps = 0;              // by how much a call moves its version counter on
  // Of a lifted tensor, whose companion it is; none where the front finds tensors in their places.
  std::optional<std::pair<Companion, size_t>> companion_of;
};

struct InputSize {
  int input, dim;
};

// A tensor before it is written.
struct BeforeWrite {
  explicit BeforeWrite(const at::Tensor& t);
  at::Tensor tensor, memory, elements;  // `memory`: the same window, which operations that change a tensor's sizes leave alone
  int64_t version;
  bool required_grad;
};

// One recording. The program runs for real: its results are eager's own, and an error in it is eager's own.
//
// The recording hangs on the thread-local state of the thread that captures, which the autograd engine carries to its
// threads; captures on other threads do not meet it.
class Capture {
 public:
  // `sizes`, if not null: symbols for the inputs' sizes. The program must then be run on `inputs()`.
  // `speculative`: integers and truth values that the program computes may be read on the host; with `sizes` and `stand_ins`
  // fractions too, those of inputs among them. It is then given numbers that are known only while it runs, for integers from 2 on
  // as well, and sizes may depend on data.
  explicit Capture(const std::vector<at::Tensor>& inputs, const SymbolicSizes* sizes = nullptr, bool speculative = false,
                   bool stand_ins = false);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Runs the program and records it. Exceptions pass through.
  void run(const std::function<void()>& program);
  // The program's outputs; those with symbolic sizes become the real tensors. `numbers`, of `symbols->floats`, become outputs behind
  // them.
  void finish(std::vector<at::Tensor>& outputs, const std::vector<HostFloats::Id>& numbers = {});

  // ---- sizes as symbols ----
  // With symbols: throws Unsupported where what stands for a tensor was given a gradient, which the tensor itself lacks.
  void must_not_give_gradients() const;
  const std::vector<at::Tensor>& inputs() const { return inputs_; }
  const std::vector<at::Tensor>& given() const { return given_; }
  bool is_symbolic() const { return symbolic_; }
  // Whether anything that existed before the program, or that the capture does not understand, was written so far.
  bool has_written() const;
  // After an error, or when the recording cannot be used: the elements that the program has written and the state of random
  // numbers become what they were before, so that it can be run again. For symbolic captures only.
  void roll_back();
  // Not only a capture with symbols, whose tensors stand for others, may be rolled back. To be said before the program runs.
  void keep_for_roll_back();
  // The run keeps something else for gradients than one without a capture: whoever wants results with a history gets them otherwise, and
  // so does everybody where the recording cannot be used. To be said before the program runs.
  void replace_run() { keep_for_roll_back(), is_replaced_ = true; }
  bool is_replaced() const { return is_replaced_; }
  // The same for the results of a run that may be rolled back, said behind it.
  void replace_results() { is_replaced_ = true; }
  // Whether it labels its parts for profilers, which a compiled run does not.
  bool has_labels() const { return has_labels_; }
  // Whether a tensor that stands for another outlived the program, in a place that the capture does not know. Drops `inputs`.
  bool has_escaped();

  // ---- what the program keeps (capture_kept.cpp) ----
  // A tensor that the program computed, or took of its inputs, and that outlives it elsewhere than in its outputs: in words,
  // empty if there is none. To be asked after `finish`, when the front has let go of all it made for the run.
  std::string kept(const std::vector<at::Tensor>& outputs) const;
  // The same for gradients alone: what autograd saves of results with a history is kept in any case.
  std::string kept_gradient(const std::vector<at::Tensor>& outputs) const;
  // An argument to which there are more references than before, and not for what is returned: kept, or in use by another thread.
  std::string held_argument(const std::vector<at::Tensor>& outputs, const std::vector<bool>& is_weight) const;
  // A tensor that it was given or holds and that has other memory now than when the program met it, by set_data(); else nothing.
  std::string exchanged() const;
  // Whether it writes to what it was given or reads by itself.
  bool writes_inputs() const;
  // ---- gradients (capture_gradients.cpp) ----
  // The program has given these, with autograd on: runs eager's engine for the gradients of all that it was given or holds, and records
  // it behind the program. To be called from within `run`. Where that cannot be the verdict says why.
  void differentiate(const std::vector<at::Tensor>& results, GradientCode* code = nullptr);
  bool has_differentiated() const { return has_differentiated_; }
  // Whether the program has made the tensor.
  bool has_made(const at::Tensor& t) const;
  bool has_met(const at::Tensor& t) const { return storage_of(t) >= 0; }  // or another in its memory
  // Up to the end of a region gradients keep nothing but what goes in and comes out: what is made inside is computed again. The others are
  // within it, and of no account.
  struct Region {
    std::vector<at::Tensor> given;  // which autograd holds for it, and knows where they are written
    bool is_reentrant = false;      // autograd enters it anew: these are leaves there
    bool repeats_random = true;     // the random numbers are drawn again as they were
    TensorId first_tensor = 0;      // that it may have met first
    int32_t first_storage = 0;      // that it may have made
  };
  void begin_region(Region region);
  void end_region();
  // A result of an innermost region that autograd enters anew: why it cannot be one; empty if it can.
  std::string why_no_result(const at::Tensor& t) const;
  // Gradients, if they are needed, are only eager's to compute.
  void refuse_gradients(std::string why);
  // Something goes by whether gradients are enabled: eager does it otherwise in each of the two runs of a reentrant checkpoint.
  static void must_not_go_by_modes(const char* why);
  const std::vector<Region>& regions() const { return regions_; }
  const Differentiable& differentiable() const { return differentiable_; }
  TracedGradients traced_gradients() const {
    return {first_gradient_op_, tangents_.size(), gradient_count_, !differentiable_.read_by_code};
  }
  // Whether autograd had to look at an operation: one of its tensors requires gradients, and they are on.
  bool differentiates() const { return differentiates_; }
  // Whether autograd ran an operation for a gradient that the program asked for.
  bool has_run_backward() const { return has_run_backward_; }
  // The program is about to have the engine run from these. Torch's formulas are recorded as their operations, code of the program's own
  // as any other, but where `code` says why not. The verdict says so, and where a tensor that nobody has met gets a gradient.
  void will_run_backward(const std::vector<at::Tensor>& outputs, const CodeObstacle& code);
  bool runs_known_backwards() const { return runs_known_backwards_; }
  // Whether a backward from any of these results would be the second one, which is eager's error. To be called from within `run`.
  bool has_released(const std::vector<at::Tensor>& results);
  // A tensor that it was given or holds needs gradients now and did not, or is made of others, as those may be that it writes.
  bool gives_histories() const;

  // What was recorded; meaningless if the verdict is not good.
  const Trace& trace() const { return trace_; }
  // Tensors the program read without being given them: they became inputs behind the given ones.
  const std::vector<at::Tensor>& lifted() const { return lifted_; }
  // Whether it is what indexing made of a number that is written: another tensor in each run.
  bool is_written_number(const at::Tensor& t) const { return numbers_of_indexing_.contains(t.unsafeGetTensorImpl()); }
  // Of each input, the lifted ones behind those given.
  const std::vector<InputFacts>& facts() const { return facts_; }
  // Whether the recording can stand for the program. The first that says it cannot counts.
  const Verdict& verdict() const { return verdict_; }

  // The program is about to read every element on the host, past the dispatcher. False if the recording does not bear it.
  bool read_elements(const at::Tensor& t);
  // The same of a list that the program makes of them, of which a run on stand-ins makes one of numbers.
  bool read_list(const at::Tensor& t);
  // The same of an operation that is about to be taken apart; the recording ends there if it does not bear it.
  void must_read_elements(const at::Tensor& t, const std::string& operation);
  // The program asks a tensor for something that no operation shows. False if the recording does not bear it.
  bool asks(const at::Tensor& t, std::string_view what);
  // How a front finds a tensor in a place where a later call finds the present one: gives it back, or one there that lies in the same
  // memory, or nothing. One that the front's program does not have `in_hand` is torch's own: what it makes of the program's numbers.
  // Without this, any tensor counts as found.
  using FindPlace = std::function<at::Tensor(const at::Tensor&)>;
  void set_places(FindPlace find, bool (*in_hand)(const at::Tensor&)) { find_ = std::move(find), in_hand_ = in_hand; }
  void set_line(std::string line);
  // By a front, which may try again or go on otherwise.
  void reject(Verdict why);
  // By a front: the run on what stands for inputs has written what it can put back, and the program runs once more on the inputs.
  void take_back() { is_taken_back_ = true; }
  bool is_taken_back() const { return is_taken_back_; }
  // By a front that knows what the program does otherwise: in the place of any verdict.
  void overrule(Verdict why) {
    std::lock_guard lock(mutex_);
    verdict_ = std::move(why);
  }
  // Rejects it, and records nothing from here on: the rest of the program runs as it does without a capture. With symbols for sizes it
  // cannot, since its tensors stand for others; whoever calls this must then end the program by an error.
  void abandon(Verdict why);
  bool is_abandoned() const { return abandoned_; }
  // Reads on the host of what the program computes are accepted only of ATen's own operations (checks, sizes), not of the program's.
  void refuse_reads_of_the_program() { refuses_reads_ = true; }
  // Nobody watches what the program's host code does to tensors: elements that it writes itself, other memory that it gives to a tensor,
  // and generators that it may make or seed are looked for; not in what it is given as weights. To be said before the program runs.
  void watch_host_code(const std::vector<bool>& is_weight);

  // Whether a tensor's elements follow from sizes alone, which are numbers: they are the same in every call that the recording stands for.
  bool is_made_of_nothing(const at::Tensor& t) const;

  // The program asked for the plain value of a size, which fixes it.
  void note_plain_read(const SymInt& size);
  // Which of the inputs' sizes these were.
  std::vector<InputSize> plain_reads() const;

  // For the dispatcher's fallback.
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  static Capture* current();
  // How a front finds the symbolic number behind one that it passed as a tensor; may be null. Set once, at load.
  static inline std::optional<c10::Scalar> (*symbol_in_number)(const at::Tensor&) = nullptr;
  // Forgets an error of Python's, of which the engine tells by an exception and by the interpreter's state.
  static inline void (*forget_error)() = nullptr;

 private:
  static void put_back(const std::vector<BeforeWrite>& saved);
  TensorId id_of(const at::Tensor& t);
  TensorId add_tensor(const at::Tensor& t);
  TensorId lift(const at::Tensor& t, TensorId id);
  void add_facts(const at::Tensor& t, const at::Tensor& seen);
  void add_alias(TensorId id, TensorId of);
  bool has_place(const at::Tensor& t) const { return !find_ || !in_hand_(t) || find_(t).is_same(t); }
  bool add_unreported_view(TensorId id);
  TensorId id_of_output(at::Tensor& t);
  void look_at_lifted();
  // What the program makes of Python's numbers.
  bool add_constant(const at::Tensor& t);
  bool is_constant(TensorId id) const;
  bool is_written(int32_t storage) const;
  void fix_offset(int32_t storage);
  void meet(c10::Device d);
  void check_generators();
  std::vector<at::Tensor> look_at_operands(c10::ArrayRef<c10::IValue> values);
  void note_writes(const TraceOp& op, const std::vector<at::Tensor>& operands, const torch::jit::Stack& stack, size_t results);
  void check_sizes(const std::vector<std::pair<at::Tensor, TensorId>>& written, const std::string& name);
  void count_versions();
  void guard_range(const c10::IValue& number, DType t);
  void guard_number(const c10::IValue& number, const TraceOp& op);
  void fix_number(HostFloats::Id id);
  void record_call(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  std::vector<c10::IValue> add_arguments(const c10::FunctionSchema& schema, torch::jit::Stack& stack, TraceOp& out,
                                         std::vector<std::pair<at::Tensor, TensorId>>& written);
  Arg arg_of(c10::IValue& v);  // what stands for a real tensor or number in it is replaced by that
  Arg number_of(const at::Tensor& t, c10::IValue& v);
  Arg host_number(HostFloats::Id id);
  TensorId tensor_of(HostFloats::Id id);
  bool give_fraction(c10::IValue& result, const TraceOp& op);
  bool give_integer(c10::IValue& result, const TraceOp& op);
  // What becomes of operations whose results have sizes that depend on data: capture_data.cpp.
  void begin_data_sizes(const TraceOp& op);
  static bool asks_for_gaps(const TraceOp& op);
  bool add_data_sizes(size_t first_new, TraceOp& op);
  // An operation that selects by a mask goes on as one by positions. False if it is none.
  bool takes_masks_apart(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  bool runs_label(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  SymInt late_symbol(int64_t value, TraceOp& op, int32_t result, int32_t dim);
  void add_results(const c10::OperatorHandle& op, torch::jit::Stack& stack, TraceOp& out, const torch::jit::Stack& given);
  const SymInt* length_given(const TraceOp& op) const;
  void begin_view_in_place(const c10::OperatorHandle& op, TraceOp& out);
  void guard_signs(const Shape& shape);
  void add_sizes(const c10::OperatorHandle& op, size_t first_new, const TraceOp& out, const torch::jit::Stack& given);
  std::optional<std::vector<std::vector<int64_t>>> ask_meta(const c10::OperatorHandle& op, const TraceOp& out,
                                                            const torch::jit::Stack& given, const std::vector<int64_t>& values) const;
  void fix_sizes(const TraceOp& op);
  at::Tensor seen_by_program(const at::Tensor& real);
  void add_symbols(const SymbolicSizes& sizes);
  void save_before_write(TensorId id);
  void save_outside(const at::Tensor& t, TensorId id);
  bool is_view_of_input(TensorId id) const;
  bool guard_read(torch::jit::Stack& stack, const TraceOp& op);
  bool guard_comparison(const torch::jit::Stack& stack, const TraceOp& op);
  bool refuses_read() const;
  bool lies_in_input(const at::Tensor& t) const;
  void find_bases(const std::vector<at::Tensor>& results);
  std::string find_differentiable(const std::vector<at::Tensor>& results, std::vector<at::Tensor>& leaves);
  int32_t storage_of(const at::Tensor& t) const;
  at::Tensor add_tangent(const at::Tensor& result);
  std::string why_no_windows(const std::vector<at::Tensor>& results, std::vector<at::Tensor> ends) const;
  std::string record_gradients(std::vector<at::Tensor> results, GradientCode* code);
  std::string run_engine(const std::function<void()>& engine, GradientCode* code);
  void protect(const TraceOp& op, const std::vector<std::pair<at::Tensor, TensorId>>& written);
  bool same_sizes(const Shape& a, const Shape& b);  // guards keep the answer
  void add_read(ValueRead r);
  void add_decisions();
  TensorId add_computed(std::string schema, std::vector<Arg> args, Type type);
  TensorId add_contiguous(TensorId id);                 // a copy without gaps
  TensorId add_element(TensorId dense, int64_t index);  // of a tensor without gaps
  bool changes_gradients() const;
  bool only_lets_inputs_need(const std::vector<at::Tensor>& outputs);
  std::string why_other_history(const std::vector<at::Tensor>& outputs) const;
  bool indexes_by_position(const TraceOp& op) const;
  void check_gradients(const torch::jit::Stack& stack, size_t first);
  void before_writes(const TraceOp& op, const std::vector<std::pair<at::Tensor, TensorId>>& written, bool draws);
  void check_region(const std::vector<TensorId>& mutated, bool draws);
  void check_leaves(const torch::jit::Stack& stack, size_t first);
  bool is_of_region(int32_t storage) const;
  void drop_gradients();
  std::vector<size_t> references() const;  // by input: to what is given
  void fail_with(Reason why, Outcome outcome = Outcome::unsupported);
  std::string at_line() const;

  mutable std::mutex mutex_;  // the autograd engine records from its own threads
  Trace trace_;
  std::vector<at::Tensor> given_, inputs_, lifted_;
  std::vector<bool> is_held_;               // by input: whether there are more references to what is given than before the program ran
  std::vector<size_t> in_hand_of_program_;  // of the lifted ones, those that it came by without an operation
  std::vector<InputFacts> facts_;
  struct Versions {
    int64_t seen, own;
  };
  std::vector<Versions> versions_;    // by input, at first: of what the program sees, and the input's own
  std::vector<int32_t> constants_;    // storages that the program fills with Python's numbers
  std::vector<at::Tensor> unplaced_;  // lifted ones that were in no known place then
  std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>>
      made_for_;  // by what stands for it: it, and an alias among the results
  FindPlace find_;
  bool (*in_hand_)(const at::Tensor&) = nullptr;
  RandomStates random_, random_before_;  // where the program's operations left them, and, with symbols, where they were at first
  std::optional<c10::Device> without_generator_;
  std::vector<c10::Device> current_;  // of each kind that has several, when the program met the first
  Verdict verdict_;
  int32_t line_ = -1;
  std::vector<bool> needed_gradients_;                                                     // by input, before the program ran
  std::unordered_set<const c10::TensorImpl*> read_without_history_, numbers_of_indexing_;  // while it needed no gradients; written so
  // Tensors and storages seen so far. Weak references keep an address from being used again, but not the memory behind it.
  template <class Impl>
  struct Seen {
    c10::weak_intrusive_ptr<Impl> impl;
    int32_t id;
  };
  std::unordered_map<const c10::TensorImpl*, Seen<c10::TensorImpl>> tensors_;
  std::unordered_map<const c10::StorageImpl*, Seen<c10::StorageImpl>> storages_;

  Differentiable differentiable_;
  size_t first_gradient_op_ = 0, gradient_count_ = 0;
  std::vector<TensorId> tangents_;
  std::vector<at::Tensor> gradients_, real_tangents_, bases_;
  bool is_replaced_ = false, has_differentiated_ = false, in_gradients_ = false, has_labels_ = false;
  int32_t first_storage_of_gradients_ = 0;
  std::vector<Region> regions_;  // those under way, the innermost last
  std::string no_gradients_;     // why
  Outcome no_gradients_as_ = Outcome::needs_gradients;
  bool may_roll_back_ = false;
  bool symbolic_ = false, speculative_ = false, stand_ins_ = false;
  bool abandoned_ = false, refuses_reads_ = false, is_taken_back_ = false;
  bool differentiates_ = false, has_run_backward_ = false, runs_known_backwards_ = false, draws_ = false;
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> seen_as_;  // by real tensor: what stands for it
  std::shared_ptr<const void> token_ = std::make_shared<char>();
  std::vector<SymbolId> plainly_read_;
  std::vector<size_t> decisions_before_;                   // by read of a value: how many deferred ones
  std::map<HostFloats::Id, TensorId> numbers_, deferred_;  // those that operations were given, and those known only as it runs
  std::vector<BeforeWrite> saved_;                         // tensors that the program writes, as they were before
  std::vector<BeforeWrite> protected_;                     // likewise, that code of gradients writes
  std::optional<HostWrites> host_writes_;
};

}  // namespace broach
