// What a target does for the rest of the compiler: turn kernel IR into something that runs on its devices, and offer contractions,
// convolutions and routines there.
//
// A target is written for machines whose memory the host cannot address and whose work is done later: a call puts work into the run's
// queue and returns, an address is only ever given back to the target that owns it, and an index out of bounds may be reported once
// the call is over. Adding a target takes its folder, a row in targets.def and a line in CMakeLists.txt.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/capabilities.h"
#include "schedule/schedule.h"
#include "support/error.h"
#include "support/parallel.h"
#include "target/host.h"
#include "target/memory.h"
#include "target/recording.h"

namespace broach {

class Pace;
class WeightPacking;
struct PackedWeight;

// Whether, and by which step, an index was found to be out of bounds. Written by a target, perhaps long after the step's call.
class ErrorFlag {
 public:
  void set(int step) {
    int none = -1;
    step_.compare_exchange_strong(none, step, std::memory_order_relaxed);
  }
  bool is_set() const { return step() >= 0; }
  int step() const { return step_.load(std::memory_order_relaxed); }  // the first that was reported; -1: none

 private:
  std::atomic<int> step_{-1};
};

// What the steps of one run on one device share.
struct RunContext {
  Device device;
  void* queue = nullptr;     // where work goes, in the device's own terms (a stream); null: its default
  Memory* memory = nullptr;  // where steps take what they need beside their operands
  ErrorFlag* errors = nullptr;
  std::span<const int64_t> symbols;  // by SymbolId; valid while the run goes on
  const Threads* threads = nullptr;  // of the host
  Pace* pace = nullptr;              // of the program, for what is tried and packed in passing; null: as it comes
  int step = -1;                     // position in the schedule, for errors
  Recording* recording = nullptr;    // keeps what steps launch; null: it is done
  std::optional<bool> may_replay{};  // what the target says of that, once it was asked
};

// What a run has to do with a device, if the front says so. Otherwise its default queue and the target's own memory.
struct DeviceUse {
  Device device;
  void* queue = nullptr;
  Memory* memory = nullptr;
};

// A kernel that the target's own compiler refuses, which is a bug in the code generated for it. The text has the kernel.
class BuildFailure : public Unsupported {
 public:
  using Unsupported::Unsupported;
};

class CompiledKernel {
 public:
  virtual ~CompiledKernel() = default;
  // On these addresses, by position in Kernel::buffers; `numbers` are the values of the kernel's symbols and, behind them, the bits
  // of its parameters. They may change once the call has returned.
  virtual void launch(void* const* buffers, const int64_t* numbers, const RunContext& run) const = 0;
  virtual size_t code_bytes() const { return 0; }
};

// Addresses for one run of a contraction: of element 0 of each window.
struct ContractionArgs {
  std::span<void* const> operands;  // x, weight; a weight of which only the packed copy is kept is null
  void* bias = nullptr;
  std::span<void* const> epilogue;  // one for each epilogue with an operand
  void* result = nullptr;
  std::span<void* const> side_results;
  const PackedWeight* packed = nullptr;  // what the target's own packing() made of the weight
};

// One contraction of a schedule, for any values of the symbols.
class CompiledContraction {
 public:
  virtual ~CompiledContraction() = default;
  virtual void run(const ContractionArgs& args, const RunContext& run) const = 0;
  // Which implementation runs, for `explain`.
  virtual std::string pick(std::span<const int64_t> symbols) const = 0;
  // Whether its launches may be kept (see Recording); with those of the host's library if it calls that.
  virtual bool records() const { return true; }
  virtual bool calls_host() const { return false; }
  // What the host's library takes beside the result, in bytes, as far as that is known.
  virtual int64_t host_bytes() const { return 0; }
  // How weights that stay the same are rearranged ahead (packing.h); null: they are not.
  virtual const WeightPacking* packing() const { return nullptr; }
};

// A tensor as a routine sees it in one run: sizes and strides in elements. A result that nobody reads has no address.
struct RoutineTensor {
  void* data = nullptr;
  DType dtype{};
  std::span<const int64_t> sizes, strides;
};

struct RoutineArgs {
  std::span<const RoutineTensor> operands, results;
  std::span<const int64_t> starts;  // of an update
};

// One routine primitive of a schedule.
class CompiledRoutine {
 public:
  virtual ~CompiledRoutine() = default;
  // What `args` points to may change once the call has returned.
  virtual void run(const RoutineArgs& args, const RunContext& run) const = 0;
  // Whether the first result may lie where the first operand does, each element in the place of its own.
  virtual bool works_in_place() const { return false; }
};

// How contractions may be computed: what the host's settings say when a program is compiled.
struct ContractionRules {
  enum class Math : uint8_t { exact, tf32, bf16 };  // what elements in fp32 may be rounded to where that is faster
  Math dot = Math::exact, conv = Math::exact;
  bool library = true;         // by primitives of a library; false: left to the host
  bool deterministic = false;  // the implementation is chosen by rule alone, never by what was measured
  bool measures = false;       // the host's library is to choose by what it measures itself
  friend bool operator==(const ContractionRules&, const ContractionRules&) = default;
};

struct CompileSettings {
  bool strict = false;  // round as eager does; fold nothing into weights
  ContractionRules contractions;
  HostContractionFunction host_contraction = nullptr;  // a candidate beside the target's own; null: there is none
  int threads = 0;                                     // for compiling; 0: as many as the machine has
  // Called as kernels become ready: (done, all).
  std::function<void(int, int)> progress;
  bool save = false;  // `save` will be asked for what is compiled
};

using CompiledKernels = std::vector<std::shared_ptr<const CompiledKernel>>;

class Target {
 public:
  virtual ~Target() = default;
  virtual std::string name() const = 0;
  // One result for each kernel; equal kernels share one. Throws BuildFailure.
  virtual CompiledKernels compile(std::span<const std::shared_ptr<const Kernel>> kernels, const CompileSettings& settings) const = 0;
  // The bytes from which `load` makes these kernels again, in another process too if its target has the same fingerprint. They were
  // compiled with CompileSettings::save, or loaded. Throws Unsupported for bytes that are not the fingerprint's own.
  virtual std::string save(const CompiledKernels& kernels) const = 0;
  virtual CompiledKernels load(std::string_view bytes) const = 0;
  // What compiled code depends on beside the kernels: the machine, and versions.
  virtual std::string fingerprint() const = 0;
  // Null if this target has no implementation.
  virtual std::shared_ptr<const CompiledContraction> contraction(const ContractionStep& step, const CompileSettings& settings) const = 0;
  // Null if this target does not have the routine for these element types.
  virtual std::shared_ptr<const CompiledRoutine> routine(const Operation& operation) const = 0;
  // What is to be lowered for it.
  virtual const Capabilities& capabilities() const = 0;

  virtual Memory& memory() const = 0;
  // Between the host and the device, and in the queue's order. To the host it is done when the call returns.
  virtual void copy(void* to, const void* from, size_t bytes, bool to_host, const RunContext& run) const = 0;
  // Whether launches of steps can be kept to be made again at once, and whether that is possible in this run's queue now.
  virtual bool records() const { return false; }
  virtual bool may_replay(const RunContext&) const { return false; }
  // Keeps what steps launch with this context, whose recording and queue it sets. Throws an Error where that fails.
  virtual std::unique_ptr<Recording> record(RunContext&) const { return nullptr; }
  // Whether errors of a run are known only when it has been waited for; else they reach the program by themselves.
  virtual bool must_wait() const { return true; }
  // Waits until the queue is empty, so that all its errors are reported. Throws what the work itself threw.
  virtual void wait(const RunContext& run) const = 0;
  // The same where nobody wants to know: a run that ended early leaves no work behind.
  virtual void drain(const RunContext& run) const noexcept = 0;
};

// Where a target finds a library that it opens at run time ("onednn"), before its first use.
void set_library_path(const std::string& library, std::string path);

// The target of a kind of device; null if this build has none. A device whose library comes later brings its own (`set_target`,
// before anything is compiled for it).
const Target* target_for(DeviceKind kind);
void set_target(DeviceKind kind, const Target* target);

// The target for the machine's CPU; null in a build without LLVM.
const Target* cpu_target();
// The target for NVIDIA's GPUs. Whether there is one shows as it is first used, since the driver's library is opened at run time.
const Target* cuda_target();
// The target that interprets: very slow, for tests that hold every target against it. Its memory is its own, as a GPU's is.
const Target* reference_target();

std::vector<std::string> target_names();

// Which target runs what lies on a device. A name stands for the targets that it has in the place of others.
class Targets {
 public:
  // Throws Unsupported where this build has not got the named one, an Error where none is called so. Without LLVM there is no "cpu":
  // then `on` refuses what lies on the host, unless a device does the host's work.
  explicit Targets(const std::string& name = "cpu");
  const Target& on(Device device) const;  // Unsupported if there is none
  bool has(Device device) const;
  // The device that does the host's work; another than the host's own where the named target has memory of its own.
  Device host_runs_on() const { return host_runs_on_; }
  void run_host_on(Device device) { host_runs_on_ = device; }

 private:
  std::vector<std::pair<DeviceKind, const Target*>> by_kind_;
  Device host_runs_on_;
};

}  // namespace broach
