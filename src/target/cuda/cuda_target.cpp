// The target for NVIDIA's GPUs: generated CUDA C++ for kernels, cuBLASLt for products, and the host's library for the rest, all in the
// queue (a stream) that the run names. Nothing waits for it: an index out of bounds stops the device by an assertion, as it does in
// eager's kernels, and the next who waits for the device is told.
#include "target/target.h"

#include <cstdlib>
#include <new>
#include <string_view>

#include "support/error.h"
#include "target/cuda/contraction.h"
#include "target/cuda/convolution.h"
#include "target/cuda/kernel_plan.h"
#include "target/cuda/kernels.h"
#include "target/cuda/launch_graph.h"
#include "target/cuda/libraries.h"
#include "target/cuda/routine.h"

namespace broach {

namespace {

using cuda::DevicePointer;
using cuda::Driver;
using cuda::Stream;

DevicePointer pointer(const void* data) { return reinterpret_cast<DevicePointer>(data); }

// The driver's own, for programs whose front brings none.
class DriverMemory : public Memory {
 public:
  Piece take(int64_t bytes, void*) override {
    cuda::enter_device(0);
    DevicePointer data = 0;
    if (Driver::get().memory_take(&data, static_cast<size_t>(bytes)) != 0) throw std::bad_alloc();
    return {reinterpret_cast<std::byte*>(data), bytes};
  }
  void give(Piece piece, void*) override { Driver::get().memory_give(pointer(piece.data)); }
};

class CudaTarget : public Target {
 public:
  std::string name() const override { return "cuda"; }
  CompiledKernels compile(std::span<const std::shared_ptr<const Kernel>> kernels, const CompileSettings& settings) const override {
    return cuda::compile_kernels(kernels, settings);
  }
  std::string save(const CompiledKernels& kernels) const override { return cuda::save_kernels(kernels); }
  CompiledKernels load(std::string_view bytes) const override { return cuda::load_kernels(bytes); }
  std::string fingerprint() const override { return cuda::fingerprint(); }
  std::shared_ptr<const CompiledContraction> contraction(const ContractionStep& step, const CompileSettings& settings) const override {
    return step.operation.op == Op::dot ? cuda::make_contraction(step, settings) : cuda::make_convolution(step, settings);
  }
  std::shared_ptr<const CompiledRoutine> routine(const Operation& operation) const override { return cuda::make_routine(operation); }
  const Capabilities& capabilities() const override {
    static const Capabilities known = [] {
      Capabilities c;
      for (DType t : {DType::f16, DType::bf16, DType::f32, DType::f64}) c.contractions[{Op::dot, t}] = cuda::product_ability(t);
      for (DType t : {DType::f16, DType::bf16})
        for (Op op : {Op::conv, Op::conv_weight_gradient}) c.contractions[{op, t}] = cuda::convolution_ability(op, t);
      std::erase_if(c.routines = all_capabilities().routines, [](const auto& row) { return !cuda::has_routine(row.first, row.second); });
      c.reductions = {int64_t{1} << 16, 528, 64};
      c.row_adder = {DeviceKind::cuda, 256, 4096, int64_t{1} << 20, 132, 16 * cuda::kThreadsAddingRows};
      c.row_bytes = 16;
      c.launch_points = int64_t{1} << 20;
      c.turned_points = int64_t{1} << 16;
      c.repeated_operands = {int64_t{1} << 22, 300};
      return c;
    }();
    return known;
  }

  Memory& memory() const override {
    static DriverMemory memory;
    return memory;
  }
  void copy(void* to, const void* from, size_t bytes, bool to_host, const RunContext& run) const override {
    const Driver& driver = Driver::get();
    cuda::enter_device(run.device.index);
    auto stream = static_cast<Stream>(run.queue);
    if (to_host) driver.check(driver.copy_to_host(to, pointer(from), bytes, stream), "a copy from the device");
    else driver.check(driver.copy_to_device(pointer(to), from, bytes, stream), "a copy to the device");
    // What lies in memory that the device reads by itself may be written as soon as the program has ended.
    if (to_host || driver.is_pinned(from)) driver.check(driver.stream_wait(stream), "waiting for a copy");
  }
  bool records() const override {
    const char* said = std::getenv("BROACH_CUDA_GRAPHS");
    return !said || std::string_view(said) != "0";
  }
  bool may_replay(const RunContext& run) const override { return cuda::LaunchGraph::is_possible(run); }
  std::unique_ptr<Recording> record(RunContext& run) const override {
    auto graph = std::make_unique<cuda::LaunchGraph>();
    run.recording = graph.get(), run.queue = graph->queue();
    return graph;
  }
  bool must_wait() const override { return false; }
  void wait(const RunContext& run) const override {
    cuda::enter_device(run.device.index);
    Driver::get().check(Driver::get().stream_wait(static_cast<Stream>(run.queue)), "waiting for the device");
  }
  // What a run has put into its queue refers to nothing of the host's.
  void drain(const RunContext&) const noexcept override {}
};

}  // namespace

const Target* cuda_target() {
  static const CudaTarget target;
  return &target;
}

}  // namespace broach
