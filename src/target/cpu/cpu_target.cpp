#include <cstring>

#include "target/cpu/contraction.h"
#include "target/cpu/contraction_desc.h"
#include "target/cpu/jit.h"
#include "target/cpu/onednn.h"
#include "target/cpu/routine.h"

namespace broach {

namespace {

class CpuTarget : public Target {
 public:
  std::string name() const override { return "cpu"; }
  CompiledKernels compile(std::span<const std::shared_ptr<const Kernel>> kernels, const CompileSettings& settings) const override {
    return cpu::compile_kernels(kernels, settings);
  }
  std::string save(const CompiledKernels& kernels) const override { return cpu::save_kernels(kernels); }
  CompiledKernels load(std::string_view bytes) const override { return cpu::load_kernels(bytes); }
  std::string fingerprint() const override { return cpu::fingerprint(); }
  std::shared_ptr<const CompiledContraction> contraction(const ContractionStep& step, const CompileSettings& settings) const override {
    return cpu::make_contraction(step, settings);
  }
  std::shared_ptr<const CompiledRoutine> routine(const Operation& operation) const override { return cpu::make_routine(operation); }
  const Capabilities& capabilities() const override {
    static const Capabilities known = [] {
      Capabilities c = all_capabilities();
      std::erase_if(c.contractions, [](const auto& row) { return !cpu::has_contractions(row.first.second); });
      for (auto& [of, can] : c.contractions)
        if (!can.activations.empty()) can.activations = cpu::activations(false), can.exact_activations = cpu::activations(true);
      // For these the library's kernels, ATen's own among them, read what nobody has written, unless channels come first.
      for (auto& [of, can] : c.contractions) can.thin_volumes = can.idle_windows = false;
      for (auto& [of, can] : c.contractions) can.far_padding = false;   // which the library takes for no transposed convolution
      for (auto& [of, can] : c.contractions) can.sums_one_row = false;  // weights packed for the library's are read faster
      // The library scales results as it stores them, at some cost.
      for (auto& [of, can] : c.contractions)
        if (can.scales_weights != ScalesWeights::never) can.scales_weights = ScalesWeights::once;
      std::erase_if(c.routines, [](const auto& row) { return !cpu::has_routine(row.first, row.second); });
      return c;
    }();
    return known;
  }

  Memory& memory() const override { return HostMemory::get(); }
  void copy(void* to, const void* from, size_t bytes, bool, const RunContext&) const override { std::memcpy(to, from, bytes); }
  // Every call has done its work when it returns.
  void wait(const RunContext&) const override {}
  void drain(const RunContext&) const noexcept override {}
};

}  // namespace

void set_library_path(const std::string& library, std::string path) {
  if (library == "onednn") cpu::onednn::set_onednn_path(std::move(path));
}

const Target* cpu_target() {
  static const CpuTarget target;
  return &target;
}

}  // namespace broach
