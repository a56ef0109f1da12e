#include "target/cpu/contraction.h"
#include "target/cpu/jit.h"
#include "target/cpu/onednn.h"
#include "target/cpu/routine.h"

namespace broach {

namespace {

class CpuTarget : public Target {
 public:
  std::string name() const override { return "cpu"; }
  std::vector<std::shared_ptr<const CompiledKernel>> compile(std::span<const std::shared_ptr<const Kernel>> kernels,
                                                             const CompileSettings& settings) const override {
    return cpu::compile_kernels(kernels, settings);
  }
  std::shared_ptr<const CompiledContraction> contraction(const ContractionStep& step, const CompileSettings& settings) const override {
    return cpu::make_contraction(step, settings);
  }
  std::shared_ptr<const CompiledRoutine> routine(const Node& node) const override { return cpu::make_routine(node); }
  bool has_contractions(DType dtype) const override { return cpu::has_contractions(dtype); }
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
