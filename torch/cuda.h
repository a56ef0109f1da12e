// What a run on one of torch's CUDA devices uses. libbroach links no library of CUDA's: torch's are reached through what they register
// with c10.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <optional>

#include "target/target.h"

namespace broach {

// The device's current stream, and memory of torch's caching allocator, which orders what it gives by that stream. Nothing for devices
// of other kinds.
std::optional<DeviceUse> device_use(c10::Device device);

// What torch takes memory of CUDA devices from, the current one and its current stream. The user's own, if there is one.
c10::Allocator& cuda_allocator();

}  // namespace broach
