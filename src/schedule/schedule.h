// The schedule: which values exist in memory, where, and the steps that compute them.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ir/capabilities.h"
#include "schedule/kernel.h"

namespace broach {

struct Group;

// A window into a buffer: element i is at offset + sum of i[d] * strides[d], in elements.
struct Place {
  int buffer = -1;
  SymInt offset;
  Shape strides;
  friend bool operator==(const Place&, const Place&) = default;
};

struct Buffer {
  enum class Kind : uint8_t {
    input,     // given by the caller: `index` is the graph's input, `version` counts how often it was written in place
    output,    // allocated for the caller: `index` is the graph's output
    arena,     // shares the call's arena with others that do not live at the same time
    external,  // allocated by an extern call
  };
  Kind kind;
  int index = -1;
  Type type;
  Shape strides;
  SymInt elements;  // from the first to the last element touched
  int version = 0;
};

struct Operand {
  Type type;
  Place place;
};

// An operation by itself: what a step computes, without a graph around it.
struct Operation : Primitive {
  std::vector<Type> operands, results;
};
Operation operation_of(const Node& node);

// A number that a kernel is given with each launch.
struct KernelNumber {
  int64_t bits = 0;  // of a double, where it is the same in every launch
  int input = -1;    // the graph input, a number of the host's, whose value it is in this call; -1: `bits`
  friend bool operator==(const KernelNumber&, const KernelNumber&) = default;
};

struct KernelStep {
  std::shared_ptr<const Kernel> kernel;
  std::vector<int> buffers;           // by position in Kernel::buffers
  std::vector<SymbolId> symbols;      // by position of the kernel's parameters
  std::vector<int64_t> starts;        // by position in Kernel::buffers: elements before the one that the kernel counts from; empty: none
  std::vector<KernelNumber> numbers;  // the kernel's other parameters
};

// An elementwise operation applied to the result of a contraction before it is stored.
struct Epilogue {
  Op op;  // an activation, or add/mul/sub with `operand`
  std::optional<Operand> operand;
};

struct ContractionStep {
  Operation operation;  // dot or conv
  std::vector<Operand> operands;
  std::vector<int64_t> weight_inputs;  // for each operand: the graph input it is a window of, or -1
  std::vector<Epilogue> epilogue;
  std::optional<Operand> bias;  // one value a column (dot) or output channel (conv)
  Operand result;
  // Values from within the epilogue that are stored as well: before operation `before` of it.
  struct SideResult {
    size_t before;
    Operand result;
  };
  std::vector<SideResult> side_results;
};

// A routine primitive run as it is. A result that nobody reads has no buffer (-1).
struct RoutineStep {
  Operation operation;
  std::vector<Operand> operands, results;
};

// A call of the host's library.
struct ExternStep {
  Operation operation;
  std::vector<Operand> operands;  // by position among the call's operands
  std::vector<int> results;       // buffers; -1 for a result nobody reads
};

// All of a buffer from one device to another.
struct CopyStep {
  int from = -1, to = -1;  // buffers of as many elements
};

struct Step {
  std::variant<KernelStep, ContractionStep, RoutineStep, ExternStep, CopyStep> work;
  std::vector<int> reads, writes;  // buffers
  int32_t line = -1;
  Device device;       // whose target runs it; of a copy, the one that is not the host
  bool early = false;  // writes an input although a later step may fail
};

struct ScheduleOptions {
  bool strict = false;
  bool fuse = true;
  std::vector<int> numbers = {};  // inputs that are numbers of the host's: what kernels read of them is given with each launch
  int64_t launch_points = 0;      // see Capabilities
  Capabilities::RowAdder row_adder = {};
  int64_t turned_points = 0;
};

struct Schedule {
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
  std::vector<int> output_buffers;     // by graph output
  std::shared_ptr<const Graph> graph;  // keeps the nodes that steps refer to
  int kernels = 0, contractions = 0, routines = 0, externs = 0, copies = 0;

  // All that a target is given: what is parsed runs as the schedule did that was printed. Of the graph, symbols and lines are kept.
  std::string str() const;
  static Schedule parse(std::string_view text);
  // Throws an Error that names the part if buffers, steps and kernels do not fit together.
  void verify() const;
  // Throws an Error if a step reads, or the caller is given, what nobody has written. Every schedule is asked before it runs.
  void verify_writes() const;
};

// Whether a step may fail: by an index out of range, or by whatever a call of the host's library raises.
bool can_fail(const Step& step);
bool can_fail(const Schedule& schedule);

// Of a graph in which the passes have said what contractions compute besides, and where values lie.
Schedule make_schedule(std::shared_ptr<const Graph> graph, const ScheduleOptions& options);

// What is stored and then copied into an input is stored there at once, where that makes no difference.
void store_through(std::vector<Step>& steps, const std::vector<Buffer>& buffers);

// Kernels over the same axes become one where none needs the other: those of at most so many points, and elementwise ones that read the same.
// Sums of columns become sums of rows where the target has them. `outputs`: buffers of the program's results.
void join_kernels(std::vector<Step>& steps, std::vector<Buffer>& buffers, const std::vector<int>& outputs, const ScheduleOptions& options);

// Kernels that differ only in constants become one kernel that is given them, where there are several.
void share_kernels(std::vector<Step>& steps);

// Kernels that only move elements of bf16 and fp16 do so as integers (carry_bits.cpp).
void carry_bits(std::vector<Step>& steps);

// Numbers of the host's become parameters of the kernels that read them.
void pass_numbers(Schedule& schedule, const std::vector<int>& inputs);

// Moves the host's work to a device whose memory the host cannot address: all steps but calls of the host's library run there, on
// buffers of its own, with copies in between where the other side wrote last.
Schedule offload(Schedule schedule, Device device);
// The same for steps that were placed on the device, which touch buffers there and of the host's.
Schedule bridge(Schedule schedule, Device device);

// The kernel that stores the roots of a group, reading whatever `place` knows.
KernelStep build_kernel(const Group& group, const std::function<const Place*(const Value&)>& place,
                        const std::function<Place(const Node*)>& target, bool strict);

}  // namespace broach
