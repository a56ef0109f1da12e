// Composite operations whose parts do not tell a capture what they do. They arrive here, above autograd, while a capture is
// under way, and go on as something that it can record.
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool1d.h>
#include <torch/library.h>

#include <optional>

#include "compat.h"
#include "symbolic.h"

namespace broach {

namespace {

// Where no gradient is needed it writes its result through a raw pointer, which would look like memory that nothing has
// written: it is recorded as one operation.
at::Tensor max_pool1d(const at::Tensor& x, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil) {
  c10::impl::ExcludeDispatchKeyGuard again(kCompositeKey);
  bool differentiable = (x.requires_grad() && at::GradMode::is_enabled()) || x._fw_grad(0).defined();
  std::optional<at::AutoDispatchBelowAutograd> below;
  if (!differentiable) below.emplace();
  return at::max_pool1d(x, kernel, stride, padding, dilation, ceil);
}

// Products of stacks of matrices, in symbolic sizes. Nothing for shapes whose parts ask for no size, and where eager picks
// its way, and with it the strides, by what needs gradients.
std::optional<at::Tensor> symbolic_matmul(const at::Tensor& a, const at::Tensor& b) {
  if (std::max(a.dim(), b.dim()) < 3 || std::min(a.dim(), b.dim()) < 1) return std::nullopt;
  auto rows = a.sym_sizes(), columns = b.sym_sizes();
  if (b.dim() < 3) {  // all rows at once
    c10::SymDimVector sizes(rows.begin(), rows.end() - 1);
    if (b.dim() == 2) sizes.push_back(columns[1]);
    at::Tensor flat = a.reshape_symint({c10::multiply_integers(rows.slice(0, rows.size() - 1)), rows.back()});
    return at::_unsafe_view_symint(flat.matmul(b), sizes);
  }
  if (a.requires_grad() || b.requires_grad()) return std::nullopt;
  at::Tensor left = a.dim() == 1 ? a.unsqueeze(0) : a;
  auto batch = at::infer_size_symdimvector(left.sym_sizes().slice(0, left.dim() - 2), columns.slice(0, columns.size() - 2));
  c10::SymInt all = c10::multiply_integers(batch);
  auto stacked = [&](const at::Tensor& t) {
    c10::SymInt n = t.sym_size(-2), m = t.sym_size(-1);
    auto sizes = batch;
    sizes.append({n, m});
    return t.expand_symint(sizes).reshape_symint({all, n, m});
  };
  auto sizes = batch;
  if (a.dim() > 1) sizes.push_back(left.sym_size(-2));
  sizes.push_back(columns.back());
  return at::_unsafe_view_symint(stacked(left).bmm(stacked(b)), sizes);
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  c10::impl::ExcludeDispatchKeyGuard again(kCompositeKey);
  if (real_tensor(a) || real_tensor(b))
    if (auto product = symbolic_matmul(a, b)) return *product;
  return at::matmul(a, b);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) {
  m.impl("max_pool1d", &max_pool1d);
  if (kMatmulFixesSizes) m.impl("matmul", &matmul);
}

}  // namespace

}  // namespace broach
