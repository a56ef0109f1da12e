// Reductions, products and convolutions: sums are taken in a wider type and rounded once.
#pragma once

#include "target/reference/indices.h"
#include "target/reference/interpreter.h"

namespace broach::reference {

void reduce(const Node& n, const HostTensor& x, HostTensor& out);
void multiply(const Node& n, const HostTensor& a, const HostTensor& b, HostTensor& out);
void convolve(const Node& n, const HostTensor& x, const HostTensor& w, const HostTensor* bias, const Sizes& padding, HostTensor& out);
void convolve_to_weight(const Node& n, const HostTensor& x, const HostTensor& y, const Sizes& padding, HostTensor& out);

}  // namespace broach::reference
