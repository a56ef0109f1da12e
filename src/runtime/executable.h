// A compiled program: a flat tape of steps over buffers. Immutable after construction; any number of threads may run it at
// once, each with a Frame of its own.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/memory.h"
#include "runtime/packs.h"
#include "runtime/profile.h"
#include "runtime/replay.h"
#include "support/recently_used.h"
#include "target/pace.h"
#include "target/target.h"

namespace broach {

class Executable;

struct Frame;

// Memory that comes and goes with the run, so that less is in use at once.
class MemoryByStep {
 public:
  virtual ~MemoryByStep() = default;
  // To fill in the address of an output, which the next step writes.
  virtual void make(Frame& frame, int buffer) = 0;
  // No later step reads this input.
  virtual void spend(Frame& frame, int buffer) = 0;
  // Memory of an intermediate, aligned to 64 bytes, before its first step.
  virtual std::byte* begin(size_t intermediate, int64_t bytes) = 0;
  // Behind its last step, whether it has begun or not.
  virtual void end(size_t intermediate) = 0;
};

// Inputs whose memory nobody wants behind the run, in one piece: where they have been read for the last time, intermediates may lie.
struct SpentInputs {
  Device device = {};
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// The state of one run.
struct Frame {
  const Executable* executable = nullptr;
  std::vector<int64_t> symbols;  // by SymbolId; those of extern results are set as the run goes
  std::pmr::vector<void*> data;  // address of each buffer on its device; the caller fills in those of inputs and outputs
  const Threads* threads = nullptr;
  std::span<const DeviceUse> devices = {};        // those whose queue and memory the front provides
  void* host = nullptr;                           // the front's own state, for extern calls
  void (*release)(Frame&, int buffer) = nullptr;  // an extern's result is not needed any more
  // Null, or null from it: externs are not recorded. `made_bytes`: see ReplayedSteps.
  std::unique_ptr<RecordedCalls> (*record_calls)(Device, void* queue, int64_t made_bytes) = nullptr;
  const std::vector<PackedWeight>* packs = nullptr;  // by contraction; null: pack on the fly
  MemoryByStep* by_step = nullptr;                   // null: all addresses are given. Not unless works_by_step()
  SpentInputs spent = {};
  bool has_large = false;  // intermediates that come by step
};

// A call of the host's library, made by the front.
class ExternRunner {
 public:
  virtual ~ExternRunner() = default;
  virtual void run(Frame& frame) const = 0;
  // Whether the call may be made while launches are recorded (see RecordedCalls): it draws no random numbers, waits for nothing, and does
  // the same to what lies in the same place. `given`: its results are read behind the recording.
  virtual bool records(bool /*given*/) const { return false; }
  // Whether to record the call is worth it though nothing is recorded beside it.
  virtual bool launches_many() const { return false; }
};
// Makes the runner of a step. May be null in an executable without externs.
using ExternFactory = std::function<std::unique_ptr<ExternRunner>(const ExternStep&, const Schedule&)>;

// An index among the program's data lies outside of its tensor. A type of its own, so that whoever expects it takes no error of
// another container for it.
class IndexError : public std::out_of_range {
 public:
  using std::out_of_range::out_of_range;
};

struct ExecutableStats {
  int kernels = 0, distinct_kernels = 0, contractions = 0, routines = 0;
  std::map<std::string, int> externs;  // by schema
  size_t code_bytes = 0;
};

class Executable {
 public:
  Executable(Schedule schedule, const Targets& targets, const CompileSettings& settings, const ExternFactory& externs);

  // Runs all steps. Inputs' and outputs' addresses and the symbols of inputs must be in the frame. Throws IndexError if an index was
  // out of bounds: what was computed is then not to be used.
  void run(Frame& frame) const;

  const Schedule& schedule() const { return schedule_; }
  const ExecutableStats& stats() const { return stats_; }

  // ---- packed weights ----
  struct Packable {
    int contraction;  // index for Frame::packs
    int input;        // the graph input whose memory is packed
  };
  const std::vector<Packable>& packables() const { return packables_; }
  int contractions() const { return static_cast<int>(contraction_steps_.size()); }
  // For these sizes; at others it is used if they want the same arrangement. What is packed alike already, by whatever program,
  // is shared.
  PackedWeight pack(int contraction, const PackSource& source, std::span<const int64_t> symbols) const;
  bool wants_packed(int contraction, std::span<const int64_t> symbols) const;
  size_t packed_bytes(int contraction, std::span<const int64_t> symbols) const;  // of its weight, if it is packed
  // See WeightPacking.
  size_t packing_trial(int contraction, std::span<const int64_t> symbols) const;
  std::optional<PackingGain> packing_gain(int contraction, std::span<const int64_t> symbols) const;
  std::string weight_text(int contraction) const;           // what it computes, and the type of its weight
  bool is_settled(std::span<const int64_t> symbols) const;  // all of them
  std::vector<std::string> picks(std::span<const int64_t> symbols) const;
  // Of packing and trials; null where neither may depend on time.
  Pace* pace() const { return is_paced_ ? &pace_ : nullptr; }

  // What the runs with Profile::enabled() took.
  std::vector<StepProfile> profile() const { return profile_.report(schedule_); }

  int64_t arena_bytes(std::span<const int64_t> symbols) const;  // on all devices
  // Vectors of sizes of which the plan is remembered.
  size_t remembered_plans() const;
  RecordingCounts recordings() const;
  bool is_recorded() const { return !replays_.empty(); }  // as far as it may be
  // Whether all of a step is done, on the host, when the next one begins.
  bool works_by_step() const { return parts_.size() == 1 && parts_[0].device == Device{}; }
  static constexpr size_t kMostSizes = 256;
  // Intermediates of as many bytes have memory from their first step to their last alone. To ask for smaller ones is not worth it.
  static constexpr int64_t kComesByStep = int64_t{1} << 14;

 private:
  // A routine with the sizes and strides of its tensors, where those are the same on every call.
  struct PreparedRoutine;

  // What runs the steps of one device, and the arena that they share there.
  struct Part {
    Device device;
    const Target* target;  // null: only calls of the host's library are made there
    struct ArenaBuffer {
      int buffer, first, last;
      int over = -1;  // another, by position, in whose memory it lies; -1: none
    };
    std::vector<ArenaBuffer> arena;
  };
  struct LastUse {
    int buffer, step;
    int heir = -1;  // arena buffer of its device, by position, that its last reader may write in its place; -1: none
  };
  struct Plans {
    std::vector<MemoryPlan> by_part;
  };

  struct CompiledStep {
    size_t part = 0;
    std::shared_ptr<const CompiledKernel> kernel;
    std::vector<int> buffers;
    std::vector<SymbolId> symbols;
    std::vector<int64_t> starts;        // by buffer, in bytes
    std::vector<KernelNumber> numbers;  // behind the symbols
    std::shared_ptr<const CompiledContraction> contraction;
    const ContractionStep* contraction_step = nullptr;
    int contraction_index = -1;
    std::shared_ptr<const PreparedRoutine> routine;
    bool works_in_place = false;  // a routine
    std::unique_ptr<ExternRunner> external;
    const CopyStep* copy = nullptr;
    bool settles = false;                     // writes an input: what runs before must have gone well
    std::vector<int> releases;                // results of externs that no later step reads
    std::vector<int> makes;                   // outputs in whose memory no earlier step touches anything
    std::vector<std::pair<int, int>> within;  // intermediates, and of these outputs those in whose memory they lie
    std::vector<int> spends;                  // inputs that no later step reads
    std::vector<size_t> begins, ends;         // intermediates, those in one place as one
    // What begins here: with calls of the host's library, and without.
    std::array<ReplayedSteps*, 2> replays{};
  };

  using Contexts = std::span<RunContext>;  // by part
  static bool keeps_arena(int64_t bytes, const RunContext& context);
  struct Drain;

  void compile_steps(const Targets& targets, const CompileSettings& settings, const ExternFactory& externs);
  CompiledStep compile_step(const Step& step, const Target* target, const CompileSettings& settings, const ExternFactory& externs);
  size_t part_on(Device device, const Targets& targets);
  size_t part_of(const Step& step, const Targets& targets);
  void find_numbers();
  void find_lifetimes(const Targets& targets);
  void find_input_uses(const std::vector<int>& last);
  struct Replacement {
    int written = -1;
    std::vector<int> read;
  };
  Replacement replacement(size_t step) const;
  void find_output_places(std::vector<int>& first, std::vector<int>& last);
  void find_places();
  void find_intermediates();
  void find_versions();
  void find_replays();
  bool is_replayable(size_t step, bool with_calls) const;
  bool is_read_behind(int buffer, size_t step) const;
  bool gives(size_t step) const;
  StepUse use_of(size_t step) const;
  void add_memory(size_t step, StepUse& use) const;
  int64_t made_bytes(size_t first, size_t end) const;
  void add_replays(bool with_calls);
  size_t replay_from(size_t step, Frame& frame, Contexts contexts) const;
  size_t replay(ReplayedSteps& steps, Frame& frame, Contexts contexts) const;
  void run_steps(Frame& frame, Contexts contexts) const;
  void run_step(const CompiledStep& step, Frame& frame, RunContext& context) const;
  void run_work(const CompiledStep& step, Frame& frame, RunContext& context) const;
  void release(const CompiledStep& step, Frame& frame) const;
  void settle(Contexts contexts) const;
  void run_kernel(const CompiledStep& step, Frame& frame, const RunContext& context) const;
  void run_contraction(const CompiledStep& step, Frame& frame, const RunContext& context) const;
  void run_routine(const PreparedRoutine& routine, Frame& frame, const RunContext& context) const;
  void run_copy(const CompiledStep& step, Frame& frame, const RunContext& context) const;
  void run_on(Frame& frame, Contexts contexts) const;
  RunContext context_for(const Part& part, const Frame& frame, ErrorFlag& errors) const;
  int64_t bytes_of(int buffer, std::span<const int64_t> symbols) const;
  // `by_step`: for runs in which large intermediates come by step; they have no place in the arena.
  Plans plans(std::span<const int64_t> symbols, bool by_step, const LentMemory& lent = {}, Device device = {}) const;
  std::shared_ptr<const Plans> plans_for(std::span<const int64_t> symbols, bool by_step, const LentMemory& lent = {},
                                         Device device = {}) const;
  LentMemory lent_by(const Frame& frame) const;
  void begin_by_step(const CompiledStep& step, Frame& frame) const;
  void end_by_step(const CompiledStep& step, Frame& frame) const;
  void place_arena(size_t part, const MemoryPlan& plan, std::byte* arena, Frame& frame) const;
  const WeightPacking* packing_of(int contraction) const;

  Schedule schedule_;
  std::vector<CompiledStep> steps_;
  std::vector<std::unique_ptr<ReplayedSteps>> replays_;
  mutable KeptMemory recordings_memory_, kept_arenas_;  // no run may have for an arena what a recording's launches write to
  std::vector<const CompiledStep*> contraction_steps_;
  std::vector<Packable> packables_;
  ExecutableStats stats_;
  std::vector<Part> parts_;
  std::vector<std::vector<int>> intermediates_;  // the buffers of each
  std::vector<LastUse> input_uses_;              // of inputs, until when they are in use
  std::vector<int> number_buffers_;              // by graph input, of those that kernels are given as numbers
  std::vector<std::pair<int, int>> versions_;    // a later version of an input, and the buffer whose memory it lies in
  std::vector<std::pair<int, int>> within_;      // likewise an intermediate, and an output
  std::vector<SymbolId> plan_symbols_;           // those that sizes of arena buffers depend on
  std::shared_ptr<const Plans> fixed_plans_;
  bool is_paced_ = false;
  mutable Pace pace_;
  mutable Profile profile_;
  mutable std::shared_mutex mutex_;
  mutable RecentlyUsed<std::vector<int64_t>, std::shared_ptr<const Plans>> plans_{kMostSizes};
};

}  // namespace broach
