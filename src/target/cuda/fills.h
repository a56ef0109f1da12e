#pragma once

#include "target/cuda/libraries.h"

namespace broach::cuda {

// Sets memory by kernels where a graph that was recorded on this device has nodes of their own kind for it, as libraries make them for
// their counters: before and behind such a node the device stands still, for some 6 us around 0.8 us of work (H200). Nodes that a kernel
// cannot replace stay.
void fill_by_kernels(Graph graph, int device);

}  // namespace broach::cuda
