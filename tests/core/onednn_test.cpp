// The binding to oneDNN against plain fp64 loops. Every case does nothing when the library is not there.
#ifdef BROACH_TEST_MAIN
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#endif
#include "target/cpu/onednn.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "support/error.h"

using namespace broach::cpu::onednn;

namespace {

using Dims = std::vector<int64_t>;

Dims dense_strides(const Dims& dims) {
  Dims out(dims.size());
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0; stride *= dims[d]) out[d] = stride;
  return out;
}

// Dense, with the dims laid out in this order, outermost first.
Dims ordered_strides(const Dims& dims, const std::vector<size_t>& order) {
  Dims out(dims.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0; stride *= dims[order[i]]) out[order[i]] = stride;
  return out;
}

Dims channels_last(const Dims& dims) {
  std::vector<size_t> order = {0};
  for (size_t d = 2; d < dims.size(); ++d) order.push_back(d);
  order.push_back(1);
  return ordered_strides(dims, order);
}

uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float bf16_value(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// A strided f32 or bf16 tensor.
struct Tensor {
  Dims dims, strides;
  DType dtype;
  std::vector<std::byte> bytes;

  Tensor(Dims d, DType t = DType::f32, Dims s = {}) : dims(std::move(d)), strides(std::move(s)), dtype(t) {
    if (strides.empty()) strides = dense_strides(dims);
    int64_t last = 0;
    for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
    bytes.resize(size_t(last + 1) * width());
  }

  size_t width() const { return dtype == DType::f32 ? 4 : 2; }
  size_t count() const { return bytes.size() / width(); }
  const void* data() const { return bytes.data(); }
  void* data() { return bytes.data(); }

  double raw(size_t i) const {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(bytes.data())[i];
    return bf16_value(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
  }

  void set_raw(size_t i, float x) {
    if (dtype == DType::f32) reinterpret_cast<float*>(bytes.data())[i] = x;
    else reinterpret_cast<uint16_t*>(bytes.data())[i] = bf16_bits(x);
  }

  // Indices into dims of size 1 count as 0: broadcast.
  double at(const Dims& index) const {
    int64_t offset = 0;
    for (size_t d = 0; d < dims.size(); ++d) offset += dims[d] == 1 ? 0 : index[d] * strides[d];
    return raw(size_t(offset));
  }

  Tensor& fill(unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t i = 0; i < count(); ++i) set_raw(i, uniform(random));
    return *this;
  }

  Operand operand() const { return {.dims = dims, .dtype = dtype, .strides = strides}; }
  Operand any() const { return {.dims = dims, .dtype = dtype, .strides = strides, .any = true}; }
};

Tensor filled(Dims dims, unsigned seed, DType dtype = DType::f32, Dims strides = {}) {
  return Tensor(std::move(dims), dtype, std::move(strides)).fill(seed);
}

void for_each_index(const Dims& dims, const std::function<void(const Dims&)>& visit) {
  Dims index(dims.size(), 0);
  for (;;) {
    visit(index);
    size_t d = dims.size();
    while (d > 0 && ++index[d - 1] == dims[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

// Maps the value before the post-ops and its index to the value after.
using Post = std::function<double(double, const Dims&)>;

double unchanged(double x, const Dims&) { return x; }

// The expected results in the order of for_each_index.
using Expected = std::vector<double>;

Expected naive_matmul(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor* bias, const Post& post) {
  Expected out;
  const size_t rank = c.dims.size();
  for_each_index(c.dims, [&](const Dims& at) {
    double sum = bias ? bias->at(at) : 0;
    Dims ia = at, ib = at;
    for (int64_t k = 0; k < a.dims[rank - 1]; ++k) {
      ia[rank - 1] = ib[rank - 2] = k;
      sum += a.at(ia) * b.at(ib);
    }
    out.push_back(post(sum, at));
  });
  return out;
}

double worst_error(const Tensor& c, const Expected& expected) {
  double worst = 0;
  size_t i = 0;
  for_each_index(c.dims, [&](const Dims& at) {
    const double want = expected[i++], error = std::abs(c.at(at) - want) / std::max(1.0, std::abs(want));
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  });
  return worst;
}

double tolerance(DType dtype) { return dtype == DType::f32 ? 2e-5 : 1e-2; }

void run(const Primitive& primitive, const Tensor& a, const void* b, const Tensor* bias, void* c, std::vector<const void*> operands = {}) {
  std::vector<std::byte> scratch(primitive.scratchpad_bytes() + 1);
  primitive.run(a.data(), b, bias ? bias->data() : nullptr, c, operands, scratch.data());
}

struct MatmulCase {
  const Tensor &a, &b;
  Tensor& c;
  const Tensor* bias = nullptr;
  std::vector<PostOp> post = {};
  std::vector<const void*> operands = {};
  Post expected_post = unchanged;
};

// Runs with the plain and with the packed weight.
void check_matmul(const MatmulCase& t) {
  const auto expected = naive_matmul(t.a, t.b, t.c, t.bias, t.expected_post);
  const auto before = t.c.bytes;
  for (const bool packed : {false, true}) {
    t.c.bytes = before;
    MatmulDesc desc{.a = t.a.operand(), .b = packed ? t.b.any() : t.b.operand(), .c = t.c.operand(), .post = t.post};
    if (t.bias) desc.bias = t.bias->operand();
    const auto primitive = Primitive::create(desc);
    REQUIRE(primitive);
    INFO(primitive->text(), " by ", primitive->implementation());
    std::vector<std::byte> weight(primitive->packed_weight_bytes());
    if (packed) primitive->pack_weight(t.b.data(), weight.data());
    run(*primitive, t.a, packed ? weight.data() : t.b.data(), t.bias, t.c.data(), t.operands);
    CHECK(worst_error(t.c, expected) < tolerance(t.c.dtype));
  }
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct UnaryCase {
  PostOp op;
  double (*value)(double);
};

const std::vector<UnaryCase> unary_cases = {
    {{PostOp::relu}, [](double x) { return std::max(x, 0.0); }},
    {{PostOp::relu, 0.1f}, [](double x) { return x > 0 ? x : 0.1 * x; }},
    {{PostOp::gelu_erf}, [](double x) { return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))); }},
    {{PostOp::gelu_tanh}, [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }},
    {{PostOp::swish, 1.0f}, [](double x) { return x * sigmoid(x); }},
    {{PostOp::swish, 1.702f}, [](double x) { return x * sigmoid(1.702 * x); }},
    {{PostOp::tanh}, [](double x) { return std::tanh(x); }},
    {{PostOp::sigmoid}, [](double x) { return sigmoid(x); }},
    {{PostOp::linear, 2.0f, -0.5f}, [](double x) { return 2 * x - 0.5; }},
    {{PostOp::clip, -0.5f, 1.5f}, [](double x) { return std::clamp(x, -0.5, 1.5); }},
    {{PostOp::elu, 0.7f}, [](double x) { return x > 0 ? x : 0.7 * (std::exp(x) - 1); }},
    {{PostOp::hardswish, 1 / 6.0f, 0.5f}, [](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); }},
    {{PostOp::hardsigmoid, 1 / 6.0f, 0.5f}, [](double x) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); }},
    {{PostOp::softplus, 2.0f}, [](double x) { return std::log1p(std::exp(2 * x)) / 2; }},
    {{PostOp::mish}, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }},
    {{PostOp::exp}, [](double x) { return std::exp(x); }},
    {{PostOp::abs}, [](double x) { return std::abs(x); }},
    {{PostOp::square}, [](double x) { return x * x; }},
};

struct BinaryCase {
  PostOp::Kind kind;
  double (*value)(double, double);
};

const std::vector<BinaryCase> binary_cases = {
    {PostOp::add, [](double x, double y) { return x + y; }},          {PostOp::sub, [](double x, double y) { return x - y; }},
    {PostOp::mul, [](double x, double y) { return x * y; }},          {PostOp::div, [](double x, double y) { return x / y; }},
    {PostOp::max, [](double x, double y) { return std::max(x, y); }}, {PostOp::min, [](double x, double y) { return std::min(x, y); }},
};

struct ConvGeometry {
  int64_t batch, groups, in, out;  // channels in all
  Dims size, kernel, stride, dilation, pad;
  bool transposed = false;
};

int64_t output_size(const ConvGeometry& g, size_t d) {
  const int64_t extent = (g.kernel[d] - 1) * (g.dilation[d] + 1) + 1;
  if (g.transposed) return (g.size[d] - 1) * g.stride[d] + extent - 2 * g.pad[d];
  return (g.size[d] + 2 * g.pad[d] - extent) / g.stride[d] + 1;
}

Dims joined(Dims head, const Dims& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

Dims dst_dims(const ConvGeometry& g) {
  Dims out = {g.batch, g.out};
  for (size_t d = 0; d < g.size.size(); ++d) out.push_back(output_size(g, d));
  return out;
}

Dims src_dims(const ConvGeometry& g) { return joined({g.batch, g.in}, g.size); }

Dims weight_dims(const ConvGeometry& g) {
  const Dims channels = {g.out / g.groups, g.in / g.groups};
  return joined(g.groups == 1 ? channels : joined({g.groups}, channels), g.kernel);
}

// The source position that meets output position `o` through kernel position `k`, or -1.
int64_t source_position(const ConvGeometry& g, size_t d, int64_t o, int64_t k) {
  const int64_t reach = k * (g.dilation[d] + 1);
  int64_t i = g.transposed ? o + g.pad[d] - reach : o * g.stride[d] - g.pad[d] + reach;
  if (g.transposed) i = i % g.stride[d] ? -1 : i / g.stride[d];
  return i < g.size[d] ? i : -1;
}

double naive_conv_at(const ConvGeometry& g, const Tensor& src, const Tensor& weight, const Dims& at) {
  const int64_t in = g.in / g.groups, out = g.out / g.groups, group = at[1] / out;
  double sum = 0;
  for_each_index(joined({in}, g.kernel), [&](const Dims& k) {
    Dims from = {at[0], group * in + k[0]};
    for (size_t d = 0; d < g.size.size(); ++d) from.push_back(source_position(g, d, at[d + 2], k[d + 1]));
    if (std::any_of(from.begin(), from.end(), [](int64_t i) { return i < 0; })) return;
    const Dims tap = joined({at[1] % out}, k);
    sum += src.at(from) * weight.at(g.groups == 1 ? tap : joined({group}, tap));
  });
  return sum;
}

Expected naive_conv(const ConvGeometry& g, const Tensor& src, const Tensor& weight, const Tensor* bias, const Post& post) {
  Expected out;
  for_each_index(dst_dims(g), [&](const Dims& at) {
    const double x = naive_conv_at(g, src, weight, at) + (bias ? bias->raw(size_t(at[1])) : 0);
    out.push_back(post(x, at));
  });
  return out;
}

ConvDesc conv_desc(const ConvGeometry& g, Operand src, Operand weight, Operand dst) {
  return {.src = std::move(src),
          .weight = std::move(weight),
          .dst = std::move(dst),
          .strides = g.stride,
          .dilations = g.dilation,
          .pad_l = g.pad,
          .pad_r = g.pad,
          .transposed = g.transposed};
}

std::vector<std::byte> converted(const MemoryLayout& from, const MemoryLayout& to, const void* data) {
  const auto reorder = Primitive::reorder(from, to);
  REQUIRE(reorder);
  std::vector<std::byte> out(to.bytes()), scratch(reorder->scratchpad_bytes() + 1);
  reorder->run(data, nullptr, nullptr, out.data(), {}, scratch.data());
  return out;
}

// Runs a convolution whose three layouts are oneDNN's choice, converting from and to the plain tensors.
void run_in_chosen_layouts(const Primitive& conv, const Tensor& src, const Tensor& weight, const Tensor* bias, Tensor& dst) {
  const auto from = converted(strided_layout(src.operand()), conv.src_layout(), src.data());
  std::vector<std::byte> packed(conv.packed_weight_bytes()), to(conv.dst_bytes()), scratch(conv.scratchpad_bytes() + 1);
  conv.pack_weight(weight.data(), packed.data());
  conv.run(from.data(), packed.data(), bias ? bias->data() : nullptr, to.data(), {}, scratch.data());
  dst.bytes = converted(conv.dst_layout(), strided_layout(dst.operand()), to.data());
}

struct ConvTensors {
  Tensor src, weight, bias, dst;

  ConvTensors(const ConvGeometry& g, DType dtype, bool nhwc)
      : src(filled(src_dims(g), 1, dtype, nhwc ? channels_last(src_dims(g)) : Dims{})),
        weight(filled(weight_dims(g), 2, dtype)),
        bias(filled({g.out}, 3)),
        dst(dst_dims(g), dtype, nhwc ? channels_last(dst_dims(g)) : Dims{}) {}
};

// Plain and channels-last layouts with a plain weight, then the layouts that oneDNN chooses; bias and relu throughout.
void check_conv(const ConvGeometry& g, DType dtype) {
  for (const bool nhwc : {false, true}) {
    ConvTensors t(g, dtype, nhwc);
    const auto expected = naive_conv(g, t.src, t.weight, &t.bias, [](double x, const Dims&) { return std::max(x, 0.0); });
    auto desc = conv_desc(g, t.src.operand(), t.weight.operand(), t.dst.operand());
    desc.bias = t.bias.operand();
    desc.post = {{PostOp::relu}};
    const auto plain = Primitive::create(desc);
    REQUIRE(plain);
    INFO(plain->text(), " by ", plain->implementation());
    run(*plain, t.src, t.weight.data(), &t.bias, t.dst.data());
    CHECK(worst_error(t.dst, expected) < tolerance(dtype));

    desc.src.any = desc.weight.any = desc.dst.any = true;
    const auto chosen = Primitive::create(desc);
    REQUIRE(chosen);
    INFO("chosen: ", chosen->implementation());
    run_in_chosen_layouts(*chosen, t.src, t.weight, &t.bias, t.dst);
    CHECK(worst_error(t.dst, expected) < tolerance(dtype));
  }
}

const std::vector<ConvGeometry> conv_geometries = {
    {2, 1, 5, 7, {11}, {3}, {1}, {0}, {1}},
    {2, 1, 16, 32, {9, 10}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {1, 1, 3, 20, {13, 13}, {7, 7}, {2, 2}, {0, 0}, {3, 3}},
    {2, 1, 8, 8, {12, 9}, {3, 2}, {1, 2}, {1, 2}, {2, 1}},
    {2, 4, 16, 24, {8, 8}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {2, 24, 24, 24, {8, 8}, {3, 3}, {2, 2}, {0, 0}, {1, 1}},
    {1, 1, 4, 6, {5, 6, 7}, {3, 2, 3}, {1, 1, 2}, {0, 0, 0}, {1, 0, 1}},
    {2, 1, 16, 8, {6, 7}, {3, 3}, {2, 2}, {0, 0}, {1, 1}, true},
    {1, 2, 8, 12, {7}, {4}, {2}, {0}, {1}, true},
    {1, 1, 4, 5, {4, 5, 3}, {2, 2, 2}, {2, 2, 2}, {0, 0, 0}, {0, 0, 0}, true},
};

}  // namespace

TEST_CASE("onednn: availability and version agree") {
  CHECK(available() == unavailable_why().empty());
  CHECK(available() == !version().empty());
  if (available()) CHECK(version().starts_with("3."));
  MESSAGE("oneDNN ", version(), unavailable_why());
}

namespace {

// The library multiplies bf16 only on processors that have AVX-512.
std::vector<DType> types() {
  const Operand one{.dims = {8, 8}, .dtype = DType::bf16, .strides = {8, 1}};
  return Primitive::create(MatmulDesc{.a = one, .b = one, .c = one}) ? std::vector{DType::f32, DType::bf16} : std::vector{DType::f32};
}

}  // namespace

TEST_CASE("onednn: matmul of two dims") {
  if (!available()) return;
  for (const DType dtype : types())
    for (const auto& [m, k, n] : {std::tuple{8, 16, 16}, {1, 16, 40}, {37, 19, 23}, {64, 128, 96}, {5, 1, 3}, {3, 7, 1}}) {
      const auto a = filled({m, k}, 1, dtype), b = filled({k, n}, 2, dtype), bias = filled({1, n}, 3, dtype);
      Tensor c({m, n}, dtype);
      check_matmul({a, b, c});
      check_matmul({a, b, c, &bias});
    }
}

TEST_CASE("onednn: matmul of bf16 into f32, and with an f32 bias") {
  if (!available() || types().size() < 2) return;
  const auto a = filled({9, 33}, 1, DType::bf16), b = filled({33, 17}, 2, DType::bf16), bias = filled({1, 17}, 3);
  Tensor f32({9, 17}), bf16({9, 17}, DType::bf16);
  check_matmul({a, b, f32, &bias});
  check_matmul({a, b, bf16, &bias});
}

TEST_CASE("onednn: matmul with transposed operands, in batches") {
  if (!available()) return;
  for (const DType dtype : types()) {
    const auto a = filled({3, 9, 20}, 1, dtype, ordered_strides({3, 9, 20}, {0, 2, 1}));
    const auto b = filled({3, 20, 14}, 2, dtype, ordered_strides({3, 20, 14}, {0, 2, 1}));
    Tensor c({3, 9, 14}, dtype);
    check_matmul({a, b, c});
    // Attention: heads are inside the rows.
    const auto q = filled({2, 4, 6, 8}, 3, dtype, ordered_strides({2, 4, 6, 8}, {0, 2, 1, 3}));
    const auto k = filled({2, 4, 8, 6}, 4, dtype, ordered_strides({2, 4, 8, 6}, {0, 3, 1, 2}));
    Tensor scores({2, 4, 6, 6}, dtype);
    check_matmul({q, k, scores});
    Tensor rows({2, 4, 6, 6}, dtype, ordered_strides({2, 4, 6, 6}, {0, 2, 1, 3}));
    check_matmul({q, k, rows});
  }
}

TEST_CASE("onednn: matmul with broadcast batches") {
  if (!available()) return;
  const auto a = filled({3, 2, 5, 8}, 1), shared = filled({1, 1, 8, 6}, 2), inner = filled({1, 2, 8, 6}, 3);
  Tensor c({3, 2, 5, 6});
  check_matmul({a, shared, c});
  check_matmul({a, inner, c});
  auto expanded = shared;
  expanded.dims = {3, 2, 8, 6}, expanded.strides = {0, 0, 6, 1};
  check_matmul({a, expanded, c});
}

TEST_CASE("onednn: matmul into a part of a wider tensor leaves the rest alone") {
  if (!available()) return;
  const auto a = filled({6, 10}, 1), b = filled({10, 12}, 2);
  Tensor c({6, 12}, DType::f32, {32, 1});
  c.fill(9);
  const auto before = c;
  check_matmul({a, b, c});
  for (size_t i = 0; i < c.count(); ++i)
    if (i % 32 >= 12) CHECK(c.raw(i) == before.raw(i));
}

TEST_CASE("onednn: dims of size 1 may have any stride") {
  if (!available()) return;
  const auto a = filled({1, 1, 16}, 1), b = filled({1, 16, 8}, 2);
  Tensor c({1, 1, 8});
  auto odd = a;
  odd.strides = {3, 5, 1};
  check_matmul({odd, b, c});
  odd.strides = {0, 7, 1};
  check_matmul({odd, b, c});
}

TEST_CASE("onednn: every unary post-op") {
  if (!available()) return;
  const auto a = filled({7, 12}, 1), b = filled({12, 20}, 2), bias = filled({1, 20}, 3);
  Tensor c({7, 20});
  for (const auto& t : unary_cases) check_matmul({a, b, c, &bias, {t.op}, {}, [&](double x, const Dims&) { return t.value(x); }});
}

TEST_CASE("onednn: post-ops log, sqrt and pow of a positive value, and round") {
  if (!available()) return;
  const auto a = filled({7, 12}, 1), b = filled({12, 20}, 2);
  Tensor c({7, 20});
  const auto positive = [](double x) { return std::abs(x) + 1; };
  const std::vector<PostOp> to_positive = {{PostOp::abs}, {PostOp::linear, 1, 1}};
  const std::vector<UnaryCase> cases = {{{PostOp::log}, [](double x) { return std::log(x); }},
                                        {{PostOp::sqrt}, [](double x) { return std::sqrt(x); }},
                                        {{PostOp::pow, 2.0f, 1.5f}, [](double x) { return 2 * std::pow(x, 1.5); }},
                                        {{PostOp::round}, [](double x) { return std::nearbyint(x); }}};
  for (const auto& t : cases) {
    auto post = to_positive;
    post.push_back(t.op);
    check_matmul({a, b, c, nullptr, post, {}, [&](double x, const Dims&) { return t.value(positive(x)); }});
  }
}

TEST_CASE("onednn: every binary post-op, full and broadcast") {
  if (!available()) return;
  for (const DType dtype : types()) {
    const auto a = filled({2, 6, 16}, 1, dtype), b = filled({2, 16, 24}, 2, dtype);
    Tensor c({2, 6, 24}, dtype);
    for (const Dims& dims : {Dims{2, 6, 24}, Dims{1, 1, 24}, Dims{1, 6, 1}, Dims{2, 1, 1}, Dims{1, 1, 1}, Dims{1, 6, 24}})
      for (const auto& t : binary_cases) {
        auto operand = filled(dims, 5, dtype);
        for (size_t i = 0; i < operand.count(); ++i) operand.set_raw(i, float(operand.raw(i)) + 2);
        const Post post = [&](double x, const Dims& at) { return t.value(x, operand.at(at)); };
        check_matmul({a, b, c, nullptr, {{t.kind, 0, 0, operand.operand()}}, {operand.data()}, post});
      }
  }
}

TEST_CASE("onednn: one factor per row, through a leading dim of 1") {
  if (!available()) return;
  const auto a = filled({1, 70, 33}, 1), b = filled({1, 33, 90}, 2), rows = filled({1, 70, 1}, 3);
  Tensor c({1, 70, 90});
  const Post post = [&](double x, const Dims& at) { return x * rows.at(at); };
  check_matmul({a, b, c, nullptr, {{PostOp::mul, 0, 0, rows.operand()}}, {rows.data()}, post});
}

TEST_CASE("onednn: a chain of post-ops with sum and an expanded operand") {
  if (!available()) return;
  const auto a = filled({6, 16}, 1), b = filled({16, 24}, 2), bias = filled({1, 24}, 3), row = filled({1, 24}, 4);
  const auto gate = filled({6, 24}, 5, DType::bf16);
  Tensor c({6, 24});
  c.fill(6);
  const auto before = c;
  Operand expanded{.dims = {6, 24}, .dtype = DType::f32, .strides = {0, 1}};
  const std::vector<PostOp> post = {
      {PostOp::add, 0, 0, expanded}, {PostOp::gelu_erf}, {PostOp::mul, 0, 0, gate.operand()}, {PostOp::sum, 0.5f}};
  check_matmul({a, b, c, &bias, post, {row.data(), gate.data()}, [&](double x, const Dims& at) {
                  const double y = x + row.at(at);
                  return y * 0.5 * (1 + std::erf(y / std::sqrt(2.0))) * gate.at(at) + 0.5 * before.at(at);
                }});
}

TEST_CASE("onednn: math mode bf16 stays near f32") {
  if (!available()) return;
  const auto a = filled({32, 64}, 1), b = filled({64, 48}, 2);
  Tensor c({32, 48});
  const auto primitive = Primitive::create(MatmulDesc{.a = a.operand(), .b = b.operand(), .c = c.operand(), .math = MathMode::bf16});
  REQUIRE(primitive);
  run(*primitive, a, b.data(), nullptr, c.data());
  CHECK(worst_error(c, naive_matmul(a, b, c, nullptr, unchanged)) < 4e-2);
}

TEST_CASE("onednn: convolutions in plain, channels-last and chosen layouts") {
  if (!available()) return;
  for (const DType dtype : types())
    for (const auto& geometry : conv_geometries) check_conv(geometry, dtype);
}

TEST_CASE("onednn: a transposed convolution reads torch's weight through strides") {
  if (!available()) return;
  const ConvGeometry g{1, 1, 6, 4, {5, 5}, {3, 3}, {2, 2}, {0, 0}, {1, 1}, true};
  const auto src = filled(src_dims(g), 1);
  const auto weight = filled({4, 6, 3, 3}, 2, DType::f32, ordered_strides({4, 6, 3, 3}, {1, 0, 2, 3}));
  Tensor dst(dst_dims(g));
  const auto conv = Primitive::create(conv_desc(g, src.any(), weight.any(), dst.any()));
  REQUIRE(conv);
  run_in_chosen_layouts(*conv, src, weight, nullptr, dst);
  CHECK(worst_error(dst, naive_conv(g, src, weight, nullptr, unchanged)) < 2e-5);
}

TEST_CASE("onednn: convolution with a residual, by sum and by add") {
  if (!available()) return;
  const ConvGeometry g = conv_geometries[1];
  for (const bool by_sum : {true, false}) {
    ConvTensors t(g, DType::f32, true);
    const auto residual = filled(t.dst.dims, 7, DType::f32, t.dst.strides);
    if (by_sum) t.dst.bytes = residual.bytes;
    auto desc = conv_desc(g, t.src.operand(), t.weight.any(), t.dst.operand());
    desc.bias = t.bias.operand();
    desc.post = {by_sum ? PostOp{PostOp::sum, 1} : PostOp{PostOp::add, 0, 0, residual.operand()}, {PostOp::relu}};
    const auto conv = Primitive::create(desc);
    REQUIRE(conv);
    std::vector<std::byte> packed(conv->packed_weight_bytes());
    conv->pack_weight(t.weight.data(), packed.data());
    const auto operands = by_sum ? std::vector<const void*>{} : std::vector{residual.data()};
    run(*conv, t.src, packed.data(), &t.bias, t.dst.data(), operands);
    const Post post = [&](double x, const Dims& at) { return std::max(x + residual.at(at), 0.0); };
    CHECK(bool(conv->post_layout(0)) == !by_sum);
    CHECK_FALSE(conv->post_layout(1));
    CHECK(worst_error(t.dst, naive_conv(g, t.src, t.weight, &t.bias, post)) < 2e-5);
  }
}

TEST_CASE("onednn: a chosen destination layout feeds the next convolution") {
  if (!available()) return;
  const ConvGeometry g{2, 1, 32, 32, {8, 8}, {3, 3}, {1, 1}, {0, 0}, {1, 1}};
  ConvTensors t(g, DType::f32, false);
  const auto first = Primitive::create(conv_desc(g, t.src.any(), t.weight.any(), t.dst.any()));
  REQUIRE(first);
  const auto second = Primitive::create(conv_desc(g, {.layout = first->dst_layout()}, t.weight.any(), t.dst.any()));
  REQUIRE(second);
  CHECK(second->src_layout() == first->dst_layout());

  Tensor middle(t.dst.dims), end(t.dst.dims);
  run_in_chosen_layouts(*first, t.src, t.weight, nullptr, middle);
  run_in_chosen_layouts(*second, middle, t.weight, nullptr, end);
  CHECK(worst_error(end, naive_conv(g, middle, t.weight, nullptr, unchanged)) < 2e-5);
}

TEST_CASE("onednn: a post-op's operand takes the destination's chosen layout") {
  if (!available()) return;
  const ConvGeometry g = conv_geometries[1];
  ConvTensors t(g, DType::f32, false);
  const auto residual = filled(t.dst.dims, 7);
  auto desc = conv_desc(g, t.src.any(), t.weight.any(), t.dst.any());
  desc.post = {{PostOp::add, 0, 0, residual.any()}};
  const auto conv = Primitive::create(desc);
  REQUIRE(conv);
  CHECK(conv->post_layout(0) == conv->dst_layout());
}

TEST_CASE("onednn: memory layouts are values") {
  if (!available()) return;
  const Tensor plain({2, 8, 4, 4}), nhwc({2, 8, 4, 4}, DType::f32, channels_last({2, 8, 4, 4}));
  const auto a = strided_layout(plain.operand()), b = strided_layout(plain.operand()), c = strided_layout(nhwc.operand());
  CHECK(a == b);
  CHECK(a.hash() == b.hash());
  CHECK_FALSE(a == c);
  CHECK_FALSE(a == MemoryLayout());
  CHECK(MemoryLayout() == MemoryLayout());
  CHECK(a.bytes() == 4 * 2 * 8 * 4 * 4);
  CHECK(*c.strides() == nhwc.strides);
  CHECK(c.text() == "f32[2,8,4,4]:(128,1,32,8)");
  // The stride of a dim of size 1 does not matter, to equality or to the hash.
  const auto d = strided_layout({.dims = {1, 4}, .strides = {4, 1}}), e = strided_layout({.dims = {1, 4}, .strides = {9, 1}});
  CHECK(d == e);
  CHECK(d.hash() == e.hash());
}

TEST_CASE("onednn: a reorder converts dtypes and layouts") {
  if (!available()) return;
  const auto from = filled({3, 5, 4, 4}, 1);
  Tensor to({3, 5, 4, 4}, DType::bf16, channels_last({3, 5, 4, 4}));
  to.bytes = converted(strided_layout(from.operand()), strided_layout(to.operand()), from.data());
  for_each_index(from.dims, [&](const Dims& at) { CHECK(to.at(at) == bf16_value(bf16_bits(float(from.at(at))))); });
}

TEST_CASE("onednn: eight threads run one primitive") {
  if (!available()) return;
  const auto b = filled({24, 40}, 1), bias = filled({1, 40}, 2);
  Tensor like({6, 40});
  const auto primitive = Primitive::create(
      MatmulDesc{.a = {.dims = {6, 24}}, .b = b.operand(), .c = like.operand(), .bias = bias.operand(), .post = {{PostOp::relu}}});
  REQUIRE(primitive);
  std::vector<double> errors(8, 1.0);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      const auto a = filled({6, 24}, 10 + i);
      const auto relu = [](double x, const Dims&) { return std::max(x, 0.0); };
      Tensor c({6, 40});
      const auto expected = naive_matmul(a, b, c, &bias, relu);
      errors[i] = 0;
      for (int repeat = 0; repeat < 500; ++repeat) {
        std::fill(c.bytes.begin(), c.bytes.end(), std::byte{});
        run(*primitive, a, b.data(), &bias, c.data());
        errors[i] = std::max(errors[i], worst_error(c, expected));
      }
    });
  for (auto& thread : threads) thread.join();
  for (const double error : errors) CHECK(error < 2e-5);
}

TEST_CASE("onednn: what is not implemented gives null") {
  if (!available()) return;
  const auto make = [](Operand a, Operand b, Operand c) { return Primitive::create(MatmulDesc{.a = a, .b = b, .c = c}); };
  CHECK_FALSE(make({.dims = {4, 4}, .dtype = DType::s32}, {.dims = {4, 4}, .dtype = DType::s32}, {.dims = {4, 4}}));
  CHECK_FALSE(make({.dims = {0, 4}}, {.dims = {4, 4}}, {.dims = {0, 4}}));                     // empty
  CHECK_FALSE(make({.dims = {4, 4}, .strides = {2, 1}}, {.dims = {4, 4}}, {.dims = {4, 4}}));  // overlapping
  CHECK_FALSE(make({.dims = {4, 4}, .strides = {0, 1}}, {.dims = {4, 4}}, {.dims = {4, 4}}));  // expanded rows
  CHECK_FALSE(strided_layout({.dims = {4, 4}, .strides = {2, 1}}));
}

TEST_CASE("onednn: bad descriptions and bad calls are errors that name the op") {
  if (!available()) return;
  const auto make = [](Operand a, Operand b, Operand c) { return Primitive::create(MatmulDesc{.a = a, .b = b, .c = c}); };
  CHECK_THROWS_WITH_AS(make({.dims = {4, 5}}, {.dims = {6, 4}}, {.dims = {4, 4}}),
                       doctest::Contains("matmul f32[4,5] x f32[6,4] -> f32[4,4]"), broach::Error);
  CHECK_THROWS_AS(make({.dims = {}}, {.dims = {4, 4}}, {.dims = {4, 4}}), broach::Error);
  CHECK_THROWS_AS(make({.dims = {4, 4}, .strides = {1}}, {.dims = {4, 4}}, {.dims = {4, 4}}), broach::Error);
  CHECK_THROWS_AS(make({.dims = {4, 4}, .strides = {-4, 1}}, {.dims = {4, 4}}, {.dims = {4, 4}}), broach::Error);
  CHECK_THROWS_AS(make({.dims = {2, 4, 4}}, {.dims = {3, 4, 4}}, {.dims = {3, 4, 4}}), broach::Error);
  CHECK_THROWS_AS(Primitive::create(ConvDesc{}), broach::Error);
  auto conv = conv_desc(conv_geometries[0], {.dims = {2, 5, 11}}, {.dims = {7, 5, 3}}, {.dims = {2, 7, 11}});
  CHECK(Primitive::create(conv));
  conv.dst.dims = {2, 7, 12};
  CHECK_THROWS_WITH_AS(Primitive::create(conv), doctest::Contains("convolution f32[2,5,11] x f32[7,5,3] -> f32[2,7,12]"), broach::Error);
  conv.dst.dims = {2, 7, 11};
  conv.bias = Operand{.dims = {6}};
  CHECK_THROWS_AS(Primitive::create(conv), broach::Error);
  CHECK_THROWS_AS(Primitive::reorder({}, {}), broach::Error);

  const auto good = make({.dims = {4, 4}}, {.dims = {4, 4}}, {.dims = {4, 4}});
  REQUIRE(good);
  const Tensor x({4, 4});
  Tensor y({4, 4});
  CHECK_THROWS_WITH_AS(good->run(x.data(), nullptr, nullptr, y.data(), {}, nullptr), doctest::Contains("null argument"), broach::Error);
  const std::vector<const void*> extra = {x.data()};
  CHECK_THROWS_AS(good->run(x.data(), x.data(), nullptr, y.data(), extra, nullptr), broach::Error);
}

TEST_CASE("onednn: a primitive may live until the process ends") {
  static std::shared_ptr<const Primitive> kept;
  kept = Primitive::create(MatmulDesc{.a = {.dims = {4, 4}}, .b = {.dims = {4, 4}}, .c = {.dims = {4, 4}}});
  CHECK(bool(kept) == available());
}
