#include "products.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include "compat.h"

namespace broach {

void aten_product(const HostProduct& p) {
  auto tensor = [&](const void* data, std::array<int64_t, 2> sizes, const std::array<int64_t, 2>& strides) {
    return at::from_blob(const_cast<void*>(data), sizes, strides, at::TensorOptions().dtype(scalar_type(p.dtype)));
  };
  at::Tensor a = tensor(p.a, {p.m, p.k}, p.a_strides), b = tensor(p.b, {p.k, p.n}, p.b_strides), c = tensor(p.c, {p.m, p.n}, p.c_strides);
  if (p.bias) at::addmm_out(c, tensor(p.bias, {1, p.n}, {p.n, 1}), a, b);
  else at::mm_out(c, a, b);
}

}  // namespace broach
