// Where tensors lie: which devices programs are compiled for, and what of eager's state belongs to a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline_options.h"
#include "trace/trace.h"

namespace broach {

// Not every version of torch has names of dimensions.
template <class T>
bool is_named(const T& t) {
  if constexpr (requires { t.has_names(); }) return t.has_names();
  else return false;
}

// Whether this build has a target for it. The CPU has the one that the options name.
bool is_compiled_for(c10::Device d);
// A strided tensor of such a device with nothing special about it: no lazy conjugate, sparse or nested tensor, subclass that
// dispatches, or batch of a transformation.
bool is_plain(const at::Tensor& t);
// Why a tensor that is not plain makes a call run eagerly.
std::string why_not_compiled(const at::Tensor& t);

// The targets for the program's tensors. Throws Unsupported where a device has none, or where several would serve them; tensors of
// the CPU without dimensions may be beside any.
Targets targets_for(const Trace& trace, const PipelineOptions& options);

// The device that a program's bare "cuda" stands for now; nothing for the CPU.
std::optional<c10::Device> current_device(c10::DeviceType type);

// To which types autocast casts, by device.
struct Autocast {
  static constexpr std::array kDevices{c10::kCPU, c10::kCUDA, c10::kXPU, c10::kPrivateUse1};
  std::array<c10::ScalarType, kDevices.size()> types;  // Undefined where it is off

  static Autocast now();
  bool is_on() const;
  friend bool operator==(const Autocast&, const Autocast&) = default;
};

bool is_default(const at::Generator& generator);

// States of the default random number generators of some devices.
class RandomStates {
 public:
  // That of a device as it is now, if it is not among them. False if the device has no such generator.
  bool add(c10::Device d);
  void renew();           // all as they are now
  bool are_kept() const;  // whether nobody moved one on, or set it
  void put_back() const;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

}  // namespace broach
