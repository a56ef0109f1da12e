// What a target does for the rest of the compiler: turn kernel IR into something that runs, and offer implementations of
// contractions and convolutions. Adding a target edits its folder, a row in targets.cpp, and CMakeLists.txt.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "support/parallel.h"
#include "target/pace.h"

namespace broach {

class CompiledKernel {
 public:
  virtual ~CompiledKernel() = default;
  // Runs the kernel on these addresses. False if an index was out of bounds: the results are then not to be used.
  virtual bool launch(void* const* buffers, const int64_t* symbols, const Threads& threads) const = 0;
  virtual size_t code_bytes() const { return 0; }
};

// Addresses for one run of a contraction: of element 0 of each window.
struct ContractionArgs {
  std::span<void* const> operands;  // x, weight
  void* bias = nullptr;
  std::span<void* const> epilogue;  // one for each epilogue with an operand
  void* result = nullptr;
  const void* packed_weight = nullptr;  // from pack(), or null
  size_t packed_layout = 0;             // what it was packed for: packed_layout() of then
  std::span<const int64_t> symbols;
  const Threads& threads;  // for what the library's own threads do not do
  Pace* pace = nullptr;    // of the program; null: candidates are tried as they come
};

// One contraction of a schedule, for any values of the symbols.
class CompiledContraction {
 public:
  virtual ~CompiledContraction() = default;
  virtual void run(const ContractionArgs& args) const = 0;
  // Bytes of the weight rearranged for this contraction; 0 where packing brings nothing, or, but for a trial, is not known to.
  virtual size_t packed_bytes(std::span<const int64_t> symbols, bool trial) const = 0;
  // Stands for the arrangement; weights packed for other sizes are used where it is the same.
  virtual size_t packed_layout(std::span<const int64_t> symbols) const = 0;
  virtual void pack(std::span<const int64_t> symbols, const void* weight, void* packed) const = 0;
  // While it is being measured whether packing pays: contractions for which this is the same need only one packed weight
  // between them. 0 otherwise.
  virtual size_t packing_trial(std::span<const int64_t> symbols) const = 0;
  // Whether packed_bytes stays as it is; until then `pack` may be asked for again.
  virtual bool is_settled(std::span<const int64_t> symbols) const = 0;
  // Which implementation runs, for `explain`.
  virtual std::string pick(std::span<const int64_t> symbols) const = 0;
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
  const Threads& threads;
};

// One routine primitive of a schedule.
class CompiledRoutine {
 public:
  virtual ~CompiledRoutine() = default;
  // False if an index was out of bounds: the results are then not to be used.
  virtual bool run(const RoutineArgs& args) const = 0;
};

// How contractions may be computed: what the host's settings say when a program is compiled.
struct ContractionRules {
  enum class Math : uint8_t { exact, tf32, bf16 };  // what elements in fp32 may be rounded to where that is faster
  Math dot = Math::exact, conv = Math::exact;
  bool library = true;         // by primitives of a library; false: left to the host
  bool deterministic = false;  // the implementation is chosen by rule alone, never by what was measured
  friend bool operator==(const ContractionRules&, const ContractionRules&) = default;
};

// A tensor as the host's library is given it: an address, sizes and strides in elements. No address: there is none.
struct HostWindow {
  void* data = nullptr;
  DType dtype{};
  std::span<const int64_t> sizes, strides;
};

// A contraction and the operations behind it, by the host's own library: any strides, elements that overlap or are expanded
// included. Of a product, x is [.., m, k] and the weight [.., k, n], with batches that broadcast; the bias broadcasts to the
// result. A convolution's tensors and attributes are the node's.
struct HostContraction {
  const Node* node;
  HostWindow x, weight, bias, result;
  std::span<const int64_t> padding, output_padding;
  std::span<const Epilogue> epilogue;
  std::span<const HostWindow> operands;  // one for each epilogue with an operand, as large as the result or broadcast to it
};

struct CompileSettings {
  bool strict = false;  // round and contract as eager does; fold nothing into weights
  ContractionRules contractions;
  void (*host_contraction)(const HostContraction&) = nullptr;  // a candidate everywhere; null: there is none
  int threads = 0;                                             // for compiling; 0: as many as the machine has
  // Called as kernels become ready: (done, all).
  std::function<void(int, int)> progress;
};

class Target {
 public:
  virtual ~Target() = default;
  virtual std::string name() const = 0;
  // One result for each kernel; equal kernels share one.
  virtual std::vector<std::shared_ptr<const CompiledKernel>> compile(std::span<const std::shared_ptr<const Kernel>> kernels,
                                                                     const CompileSettings& settings) const = 0;
  // Null if this target has no implementation.
  virtual std::shared_ptr<const CompiledContraction> contraction(const ContractionStep& step, const CompileSettings& settings) const = 0;
  // Null if this target does not have the routine for these element types.
  virtual std::shared_ptr<const CompiledRoutine> routine(const Node& node) const = 0;
  // Whether contractions and convolutions of this element type are to be lowered to `dot` and `conv`.
  virtual bool has_contractions(DType dtype) const = 0;
};

// Where a target finds a library that it opens at run time ("onednn"), before its first use.
void set_library_path(const std::string& library, std::string path);

// The target for the machine's CPU; null in a build without LLVM.
const Target* cpu_target();
// The target that interprets: very slow, for tests that hold every target against it.
const Target* reference_target();

std::vector<std::string> target_names();
// Throws Unsupported where this build has not got it.
const Target& target_named(const std::string& name);

}  // namespace broach
