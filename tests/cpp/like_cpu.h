// A target that does all as the CPU's does; tests change what they are about.
#pragma once

#include "target/target.h"

class LikeCpu : public broach::Target {
 public:
  std::string name() const override { return "like the CPU"; }
  broach::CompiledKernels compile(std::span<const std::shared_ptr<const broach::Kernel>> kernels,
                                  const broach::CompileSettings& settings) const override {
    return cpu_.compile(kernels, settings);
  }
  std::string save(const broach::CompiledKernels& kernels) const override { return cpu_.save(kernels); }
  broach::CompiledKernels load(std::string_view bytes) const override { return cpu_.load(bytes); }
  std::string fingerprint() const override { return cpu_.fingerprint(); }
  std::shared_ptr<const broach::CompiledContraction> contraction(const broach::ContractionStep& step,
                                                                 const broach::CompileSettings& settings) const override {
    return cpu_.contraction(step, settings);
  }
  std::shared_ptr<const broach::CompiledRoutine> routine(const broach::Operation& operation) const override {
    return cpu_.routine(operation);
  }
  const broach::Capabilities& capabilities() const override { return cpu_.capabilities(); }
  broach::Memory& memory() const override { return cpu_.memory(); }
  void copy(void* to, const void* from, size_t bytes, bool to_host, const broach::RunContext& run) const override {
    cpu_.copy(to, from, bytes, to_host, run);
  }
  bool must_wait() const override { return cpu_.must_wait(); }
  void wait(const broach::RunContext& run) const override { cpu_.wait(run); }
  void drain(const broach::RunContext& run) const noexcept override { cpu_.drain(run); }

 private:
  const broach::Target& cpu_ = *broach::cpu_target();
};
