#include "ambient.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <ATen/autocast_mode.h>

#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <torch/csrc/autograd/anomaly_mode.h>

#include "capture.h"
#include "devices.h"

namespace broach {

// What is added here is put back in torch/kept_settings.cpp.
AmbientSettings ambient_settings() {
  auto& c = at::globalContext();
  uint64_t word = 0;
  int at = 0;
  auto add = [&](uint64_t value, int bits) {
    word |= (value & ((uint64_t{1} << bits) - 1)) << at;
    at += bits;
  };
  add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()), 6);
  add(c10::GradMode::is_enabled(), 1);
  add(c10::InferenceMode::is_enabled(), 1);
  add(c.deterministicAlgorithms(), 1);
  add(c.deterministicAlgorithmsWarnOnly(), 1);
  add(c.deterministicFillUninitializedMemory(), 1);
  add(c.userEnabledFlashSDP(), 1);
  add(c.userEnabledMemEfficientSDP(), 1);
  add(c.userEnabledMathSDP(), 1);
  add(c.userEnabledCuDNNSDP(), 1);
  add(c.userEnabledMkldnn(), 1);
  add(c.userEnabledCuDNN(), 1);
  add(c.benchmarkCuDNN(), 1);
  add(c.deterministicCuDNN(), 1);
  uint64_t precision = 3;
  try {
    precision = static_cast<uint64_t>(c.float32MatmulPrecision());
  } catch (const c10::Error&) {  // mixed settings of torch's old and new interface
  }
  add(precision, 2);
  add(c.deterministicMkldnn(), 1);
  for (auto backend : {at::Float32Backend::MKLDNN, at::Float32Backend::CUDA})
    for (auto op : {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN})
      add(static_cast<uint64_t>(c.float32Precision(backend, op)), 2);
  // A program may turn autocast on by itself, to the type that is set while it is off.
  const Autocast autocast = Autocast::now();
  for (size_t i = 0; i < autocast.types.size(); ++i) {
    add(autocast.types[i] != c10::ScalarType::Undefined, 1);
    add(static_cast<uint64_t>(at::autocast::get_autocast_dtype(Autocast::kDevices[i])), 6);
  }
  add(at::autocast::is_autocast_cache_enabled(), 1);
  add(c.checkSparseTensorInvariants() == true, 1);
  static_assert(6 + 13 + 2 + 1 + 12 + 4 * 7 + 2 <= 64);
  uint64_t attention = c.userEnabledOverrideableSDP();
  for (const at::SDPBackend backend : c.sDPPriorityOrder())
    attention = attention << 4 | static_cast<uint64_t>(static_cast<int>(backend) + 1);
  static_assert(1 + 4 * at::num_sdp_backends <= 64);
  return {word, attention};
}

bool must_run_plainly() {
  return Capture::current() || c10::impl::TorchDispatchModeTLS::any_modes_set() || at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         at::tracer::impl::is_dispatch_enabled() || torch::autograd::AnomalyMode::is_enabled();  // which is about eager's own nodes
}

}  // namespace broach
