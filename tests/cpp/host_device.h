// A device for tests: torch's key for devices out of its tree, over memory of the host. There are two of them.
#pragma once

#include <ATen/core/Tensor.h>

namespace host_device {

at::Device device(int index = 0);
void set_current(int index);
// Of the device's default generator.
void set_seed(int index, uint64_t seed);
// The same memory as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& t);

}  // namespace host_device
