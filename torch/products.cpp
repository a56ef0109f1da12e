#include "products.h"

#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/cudnn_convolution.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include <algorithm>

#include "compat.h"
#include "recorded_calls.h"
#include "support/error.h"
#include "tensors.h"

namespace broach {

namespace {

c10::IntArrayRef list(std::span<const int64_t> v) { return {v.data(), v.size()}; }

at::Tensor tensor(const HostContraction& c, const HostWindow& t) {
  const c10::Device device = device_of(c.device);
  return at::for_blob(t.data, list(t.sizes))
      .strides(list(t.strides))
      .options(at::TensorOptions().dtype(scalar_type(t.dtype)).device(device))
      .target_device(device)
      .make_tensor();
}

// ATen adds biases of the same type only.
bool has_bias(const HostContraction& c) { return c.bias.data && c.bias.dtype == c.x.dtype; }

bool has_cudnn() {
  const auto& context = at::globalContext();
  return context.hasCuDNN() && context.userEnabledCuDNN();
}

// cuDNN's own, as `at::convolution` calls it, but into the result; undefined where that is not to be.
at::Tensor convolution_in_place(const HostContraction& c, const at::Tensor& result) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;  // elements that it indexes
  const Operation& n = c.operation;
  const bool is_plain = n.op == Op::conv && !n.integer(Attr::transposed) && n.integer(Attr::groups) == 1 && result.dim() == 4;
  if (c.device.kind != DeviceKind::cuda || !is_plain || !has_cudnn()) return {};
  at::Tensor x = tensor(c, c.x), w = tensor(c, c.weight), out = result;
  const bool is_dense = out.is_contiguous() || out.is_contiguous(at::MemoryFormat::ChannelsLast);
  if (!is_dense || x.scalar_type() != out.scalar_type() || x.numel() > kMost || out.numel() > kMost || x.numel() == 0) return {};
  const auto& context = at::globalContext();
  at::cudnn_convolution_out(out, x, w, list(c.padding), n.ints(Attr::stride), n.ints(Attr::dilation), 1, context.benchmarkCuDNN(),
                            context.deterministicCuDNN() || context.deterministicAlgorithms(), true);
  return has_bias(c) ? out.add_(tensor(c, c.bias).reshape({1, -1, 1, 1})) : out;
}

// ATen's kernel for the gradient of a weight of single points that lie apart, on processors without AVX-512, computes with what lies behind
// the channels of tensors that have these last, where they do not fill a vector.
bool reads_beyond(const HostContraction& c, int64_t channels, int64_t given) {
  constexpr int64_t kLanes = 8;
  const at::IntArrayRef sizes = tensor(c, c.result).sizes(), strides = c.operation.ints(Attr::stride);
  auto is_one = [](int64_t n) { return n == 1; };
  return std::all_of(sizes.begin() + 2, sizes.end(), is_one) && !std::all_of(strides.begin(), strides.end(), is_one) &&
         (channels % kLanes != 0 || given % kLanes != 0);
}

at::Tensor convolution(const HostContraction& c, const at::Tensor& result, bool in_place) {
  const Operation& n = c.operation;
  if (is_recording_calls() && !has_cudnn()) unsupported("a convolution without cuDNN is not recorded");
  if (at::Tensor made = in_place ? convolution_in_place(c, result) : at::Tensor(); made.defined()) return made;
  at::Tensor x = tensor(c, c.x), w = tensor(c, c.weight), bias = has_bias(c) ? tensor(c, c.bias) : at::Tensor();
  // Of what is computed only the sizes are looked at. A transposed convolution is the gradient of one that is not.
  auto gradient = [&](const at::Tensor& y, const at::Tensor& input, const at::Tensor& weight, bool of_weight) {
    auto all =
        at::convolution_backward(y, input, weight, c10::nullopt, n.ints(Attr::stride), list(c.padding), n.ints(Attr::dilation), false,
                                 std::vector<int64_t>(c.padding.size()), n.integer(Attr::groups), {!of_weight, of_weight, false});
    return of_weight ? std::get<1>(all) : std::get<0>(all);
  };
  if (n.op == Op::conv_weight_gradient) {
    if (x.device().is_cpu() && reads_beyond(c, x.size(1), w.size(1)))
      return gradient(w.contiguous(), x.contiguous(), tensor(c, c.result), true);
    // ATen lays the result's gradient as x lies, cuDNN both with their channels last: x is often far the smaller.
    const bool is_smaller =
        x.device().is_cuda() && x.dim() == 4 && x.numel() < w.numel() && w.is_contiguous(at::MemoryFormat::ChannelsLast);
    return gradient(w, is_smaller ? x.contiguous(at::MemoryFormat::ChannelsLast) : x, tensor(c, c.result), true);
  }
  if (n.integer(Attr::transposed) && !bias.defined() && !c.bias.data) return gradient(x, tensor(c, c.result), w, false);
  return at::convolution(x, w, bias, n.ints(Attr::stride), list(c.padding), n.ints(Attr::dilation), n.integer(Attr::transposed) != 0,
                         list(c.output_padding), n.integer(Attr::groups));
}

at::Tensor with_batch_of(const at::Tensor& t, const at::Tensor& result) {
  std::vector<int64_t> sizes = result.sizes().vec();
  for (int64_t d : {-1, -2}) sizes[sizes.size() + static_cast<size_t>(d)] = t.size(d);
  return t.expand(sizes);
}

// Into the result where ATen can, and where nothing that is read later lies there.
at::Tensor product(const HostContraction& c, const at::Tensor& result, bool in_place) {
  at::Tensor a = with_batch_of(tensor(c, c.x), result), b = with_batch_of(tensor(c, c.weight), result);
  at::Tensor bias = has_bias(c) ? tensor(c, c.bias) : at::Tensor(), r = in_place ? result : at::Tensor();
  if (result.dim() == 2 && bias.defined()) return r.defined() ? at::addmm_out(r, bias, a, b) : at::addmm(bias, a, b);
  if (result.dim() == 2) r = r.defined() ? at::mm_out(r, a, b) : at::mm(a, b);
  else if (result.dim() == 3) r = r.defined() ? at::bmm_out(r, a, b) : at::bmm(a, b);
  else r = at::matmul(a, b);
  return bias.defined() ? r.add_(bias) : r;
}

struct Following {
  Op op;
  at::Tensor operand;
};

c10::SmallVector<Following, 4> operations_behind(const HostContraction& c) {
  c10::SmallVector<Following, 4> out;
  if (c.bias.data && !has_bias(c)) {
    at::Tensor bias = tensor(c, c.bias);
    std::vector<int64_t> sizes(c.result.sizes.size(), 1);
    if (c.operation.op != Op::dot) sizes[1] = bias.numel(), bias = bias.reshape(sizes);
    out.push_back({Op::add, bias});
  }
  size_t next = 0;
  for (const Epilogue& e : c.epilogue) out.push_back({e.op, e.operand ? tensor(c, c.operands[next++]) : at::Tensor()});
  return out;
}

// Into `out`, which may be x, where ATen can, or into memory of its own.
at::Tensor apply(const Following& f, const at::Tensor& x, at::Tensor out) {
  switch (f.op) {
    case Op::relu: return at::clamp_min_out(out, x, 0);
    case Op::gelu_erf: return at::gelu(x);  // that with `out` takes no heed of its strides
    case Op::gelu_tanh: return at::gelu(x, "tanh");
    case Op::silu: return at::silu_out(out, x);
    case Op::hardsigmoid: return at::hardsigmoid_out(out, x);
    case Op::tanh: return at::tanh_out(out, x);
    case Op::sigmoid: return at::sigmoid_out(out, x);
    case Op::add: return at::add_out(out, x, f.operand);
    case Op::mul: return at::mul_out(out, x, f.operand);
    default: fail("ATen: ", name_of(f.op), " is no epilogue");
  }
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  auto end = [](const at::Tensor& t) { return static_cast<const char*>(t.const_data_ptr()) + bytes_of(t); };
  return a.const_data_ptr() < end(b) && b.const_data_ptr() < end(a);
}

}  // namespace

void aten_contraction(const HostContraction& c) {
  at::Tensor result = tensor(c, c.result);
  c10::SmallVector<Following, 4> following = operations_behind(c);
  const bool in_place = std::none_of(following.begin(), following.end(),
                                     [&](const Following& f) { return f.operand.defined() && overlap(f.operand, result); });
  at::Tensor x = c.operation.op == Op::dot ? product(c, result, in_place) : convolution(c, result, in_place);
  // Between several operations nothing is rounded.
  const bool wide = following.size() > 1 && x.scalar_type() != at::kFloat;
  if (wide) x = x.to(at::kFloat);
  for (size_t i = 0; i < following.size(); ++i) {
    const bool last = i + 1 == following.size();
    x = apply(following[i], x, last && !wide ? result : x);
  }
  if (!x.is_same(result)) result.copy_(x);
}

}  // namespace broach
