#include "kept_settings.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "devices.h"

namespace broach {

namespace {

constexpr std::array kBackends{at::Float32Backend::MKLDNN, at::Float32Backend::CUDA};
constexpr std::array kOps{at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN};

// None where settings of torch's old and new interface are mixed, of which no text stands for both.
std::optional<at::Float32MatmulPrecision> matmul_precision() {
  try {
    return at::globalContext().float32MatmulPrecision();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

const char* name_of(at::Float32MatmulPrecision p) {
  return p == at::Float32MatmulPrecision::HIGHEST ? "highest" : p == at::Float32MatmulPrecision::HIGH ? "high" : "medium";
}

}  // namespace

struct KeptSettings::Values {
  c10::ScalarType default_type = c10::get_default_dtype_as_scalartype();
  bool grad = c10::GradMode::is_enabled();
  bool deterministic = c().deterministicAlgorithms(), warns = c().deterministicAlgorithmsWarnOnly(),
       fills = c().deterministicFillUninitializedMemory();
  std::array<bool, 4> attention{c().userEnabledFlashSDP(), c().userEnabledMemEfficientSDP(), c().userEnabledMathSDP(),
                                c().userEnabledCuDNNSDP()};
  bool overrideable = c().userEnabledOverrideableSDP();
  std::array<at::SDPBackend, at::num_sdp_backends> priority = c().sDPPriorityOrder();
  bool onednn = c().userEnabledMkldnn(), cudnn = c().userEnabledCuDNN(), benchmark = c().benchmarkCuDNN(),
       deterministic_cudnn = c().deterministicCuDNN(), deterministic_onednn = c().deterministicMkldnn();
  std::optional<at::Float32MatmulPrecision> precision = matmul_precision();
  std::array<std::array<at::Float32Precision, kOps.size()>, kBackends.size()> precisions;
  std::array<std::pair<bool, c10::ScalarType>, Autocast::kDevices.size()> autocast;
  std::optional<bool> sparse = c().checkSparseTensorInvariants();

  Values() {
    for (size_t b = 0; b < kBackends.size(); ++b)
      for (size_t o = 0; o < kOps.size(); ++o) precisions[b][o] = c().float32Precision(kBackends[b], kOps[o]);
    for (size_t i = 0; i < autocast.size(); ++i)
      autocast[i] = {at::autocast::is_autocast_enabled(Autocast::kDevices[i]), at::autocast::get_autocast_dtype(Autocast::kDevices[i])};
  }
  static at::Context& c() { return at::globalContext(); }
};

KeptSettings::KeptSettings() : values_(std::make_unique<const Values>()) {}
KeptSettings::~KeptSettings() = default;

void KeptSettings::put_back() const {
  const Values& v = *values_;
  at::Context& c = at::globalContext();
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(v.default_type));
  c10::GradMode::set_enabled(v.grad);
  c.setDeterministicAlgorithms(v.deterministic, v.warns);
  c.setDeterministicFillUninitializedMemory(v.fills);
  c.setSDPUseFlash(v.attention[0]), c.setSDPUseMemEfficient(v.attention[1]);
  c.setSDPUseMath(v.attention[2]), c.setSDPUseCuDNN(v.attention[3]);
  c.setSDPUseOverrideable(v.overrideable);
  std::vector<int64_t> priority;
  for (const at::SDPBackend backend : v.priority) priority.push_back(static_cast<int64_t>(backend));
  c.setSDPPriorityOrder(priority);
  c.setUserEnabledMkldnn(v.onednn), c.setUserEnabledCuDNN(v.cudnn), c.setBenchmarkCuDNN(v.benchmark);
  c.setDeterministicCuDNN(v.deterministic_cudnn), c.setDeterministicMkldnn(v.deterministic_onednn);
  if (v.precision && matmul_precision() != v.precision) c.setFloat32MatmulPrecision(name_of(*v.precision));
  for (size_t b = 0; b < kBackends.size(); ++b)
    for (size_t o = 0; o < kOps.size(); ++o)
      if (c.float32Precision(kBackends[b], kOps[o]) != v.precisions[b][o]) c.setFloat32Precision(kBackends[b], kOps[o], v.precisions[b][o]);
  for (size_t i = 0; i < v.autocast.size(); ++i) {
    at::autocast::set_autocast_enabled(Autocast::kDevices[i], v.autocast[i].first);
    at::autocast::set_autocast_dtype(Autocast::kDevices[i], v.autocast[i].second);
  }
  c.setCheckSparseTensorInvariants(v.sparse);
}

}  // namespace broach
