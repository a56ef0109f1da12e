// Code for GPUs, without one: what is generated, and that NVIDIA's compiler takes it (where there is one: NVRTC needs no device).
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "random_graph.h"
#include "schedule/schedule.h"
#include "scheduled.h"
#include "support/error.h"
#include "target/cuda/emit_kernel.h"
#include "target/cuda/kernels.h"
#include "target/cuda/libraries.h"
#include "target/cuda/odd_product.h"
#include "target/cuda/product_form.h"
#include "target/cuda/routine.h"
#include "target/cuda/units.h"
#include "target/target.h"

namespace broach {

namespace {

using cuda::Sizes;
using Kernels = std::vector<std::shared_ptr<const Kernel>>;

Kernels kernels_of(const Schedule& schedule) {
  Kernels out;
  for (const Step& s : schedule.steps)
    if (const auto* k = std::get_if<KernelStep>(&s.work)) out.push_back(k->kernel);
  return out;
}

Kernels kernels_of(const Graph& source) { return kernels_of(broach::testing::scheduled(source)); }

void compile(const Kernels& kernels, const cuda::Variant& variant) {
  const std::string source = cuda::emit_unit(kernels, variant);
  try {
    CHECK(!cuda::Nvrtc::get().machine_code(source, variant.architecture).empty());
  } catch (const Unsupported& e) {
    std::string texts;
    for (const auto& k : kernels) texts += k->str();
    FAIL(e.what(), "\n", texts, source.substr(source.find("extern \"C\" __global__")));
  }
}

bool has_compiler() {
  if (cuda::Nvrtc::is_available()) return true;
  MESSAGE("skipped: libnvrtc.so is not here (BROACH_NVRTC_LIBRARY names one)");
  return false;
}

std::string emitted(const char* text) { return cuda::emit_kernel(cuda::plan_kernel(Kernel::parse(text), {90}), "k0"); }

}  // namespace

TEST_CASE("cuda: NVIDIA's compiler takes the kernels of random graphs") {
  if (!has_compiler()) return;
  Kernels all;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const Kernels some = kernels_of(testing::random_graph(seed, {.steps = 16, .symbolic = seed % 2 == 1, .max_elements = 1 << 16}));
    all.insert(all.end(), some.begin(), some.end());
  }
  for (const cuda::Variant& v : {cuda::Variant{90}, cuda::Variant{75, false, true}}) compile(all, v);
}

TEST_CASE("cuda: units are as large as each other, and no more than are worth a process") {
  const std::vector<std::string> few{std::string(9000, 'a'), std::string(11000, 'b')},
      many{std::string(50000, 'a'), std::string(20000, 'b'), std::string(20000, 'c'), std::string(20000, 'd'), std::string(1000, 'e')};
  CHECK(cuda::divide_into_units(few, 8).size() == 1);
  CHECK(cuda::divide_into_units(many, 1).size() == 1);
  CHECK(cuda::divide_into_units(many, 2) == std::vector<std::vector<size_t>>{{0, 4}, {1, 2, 3}});
  CHECK(cuda::divide_into_units(many, 16).size() == 4);
  CHECK(cuda::divide_into_units({}, 4).size() == 1);
}

TEST_CASE("cuda: units of other processes") {
  if (!has_compiler()) return;
  auto source = [](const char* name) { return cat("extern \"C\" __global__ void ", name, "(float* x) { x[threadIdx.x] = 1; }"); };
  const std::vector<std::string> sources{source("here"), source("there"), "junk", source("elsewhere")};
  for (const char* program : {BROACH_NVRTC_WORKER, "/no/such/program"}) {
    const auto codes = cuda::compile_units(sources, 90, program);
    REQUIRE(codes.size() == sources.size());
    for (size_t i = 0; i < codes.size(); ++i) CHECK(codes[i].by_worker == (i > 0 && std::string_view(program) == BROACH_NVRTC_WORKER));
    for (size_t i : {0, 1, 3}) {
      CHECK(codes[i].refusal.empty());
      CHECK(codes[i].image == cuda::Nvrtc::get().machine_code(sources[i], 90));
    }
    CHECK(codes[2].image.empty());
    CHECK(codes[2].refusal.find("junk") != std::string::npos);
  }
}

TEST_CASE("cuda: NVIDIA's compiler takes the sums of rows") {
  if (!has_compiler()) return;
  for (int architecture : {75, 90}) CHECK(!cuda::Nvrtc::get().machine_code(cuda::sum_rows_source(), architecture).empty());
}

// A file with schedules, as BROACH_DUMP=schedule prints them, one behind the other.
TEST_CASE("cuda: NVIDIA's compiler takes the kernels of a file of schedules") {
  const char* path = std::getenv("BROACH_TEST_SCHEDULES");
  if (!path || !has_compiler()) return;
  std::ifstream file(path);
  std::string line, text;
  Kernels all;
  auto add = [&] {
    if (!text.empty()) all.push_back(std::make_shared<const Kernel>(Kernel::parse(text)));
    text.clear();
  };
  while (std::getline(file, line)) {
    if (line.starts_with("kernel ")) add();
    else if (!line.starts_with("  ")) {
      add();
      continue;
    }
    if (line.starts_with("kernel ") || !text.empty()) text += line + "\n";
  }
  add();
  compile(all, {90});
  if (std::getenv("BROACH_TEST_SHOW")) std::cout << cuda::emit_unit(all, {90});
}

// On a GPU: a kernel that was saved does what the one did that it was made of.
TEST_CASE("cuda: saved kernels are loaded") {
  try {
    cuda::Driver::get();
  } catch (const Unsupported& e) {
    MESSAGE("skipped: ", std::string(e.what()));
    return;
  }
  const Target& target = *cuda_target();
  auto kernel = std::make_shared<const Kernel>(Kernel::parse(
      "kernel symbols 1\n  axis i0 < s0\n  reduce i1 < 100\n  buffer b0 : f32\n  buffer b1 : f32\n  e0 = load b0[100*i0 + i1] : f32\n"
      "  e1 = reduce_sum(e0) : f32\n  b1[i0] = e1\n"));
  const CompiledKernels made = target.compile(std::span(&kernel, 1), {.save = true});
  const std::string bytes = target.save({made[0], made[0]});
  const CompiledKernels loaded = target.load(bytes);
  REQUIRE(loaded.size() == 2);
  CHECK_THROWS_AS(target.load(bytes.substr(0, bytes.size() / 2)), Unsupported);

  ErrorFlag errors;
  const RunContext run{.device = {DeviceKind::cuda, 0}, .memory = &target.memory(), .errors = &errors};
  const MemoryLease x(target.memory(), 500 * sizeof(float), nullptr), y(target.memory(), 5 * sizeof(float), nullptr);
  std::vector<float> in(500), out(5);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i / 100 + 1);
  target.copy(x.data(), in.data(), in.size() * sizeof(float), false, run);
  void* buffers[] = {x.data(), y.data()};
  const int64_t rows = 5;
  loaded[1]->launch(buffers, &rows, run);
  target.copy(out.data(), y.data(), out.size() * sizeof(float), true, run);
  for (size_t i = 0; i < out.size(); ++i) CHECK(out[i] == 100.0F * static_cast<float>(i + 1));
}

// A block takes its rows one by one, the next being loaded meanwhile: sums along a row over the block, sums along columns in registers until
// the last row.
TEST_CASE("cuda: rows that are added up are read once") {
  const char* kernel =
      "kernel symbols 0\n  axis i0 < 5000\n  reduce i1 < 768\n  buffer b0 : bf16\n  buffer b1 : bf16\n  buffer b2 : f32\n"
      "  e0 = load b0[768*i0 + i1] : bf16\n  e1 = cast(e0) : f32\n  e2 = reduce_sum(e1) : f32\n  e3 = sub(e1, e2) : f32\n"
      "  e4 = cast(e3) : bf16\n  e5 = mul(e1, e1) : f32\n  b1[768*i0 + i1] = e4\n  b2[i1 + 768*floordiv(i0, 7)] += e5\n";
  const std::string text = emitted(kernel);
  INFO(text);
  const auto count = [&](const std::string& part) {
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  CHECK(count("next.r0[t] = load_row<8>(b0") == 2);
  CHECK(count("load_row<8>(b0") == 2);
  CHECK(count("__syncthreads()") == 1);
  CHECK(count("store_row<8>(b1") == 1);
  CHECK(count("store_row<8>(b2") == 1);
  CHECK(count("const int last = min(units, first + 7) - 1;") == 1);
  if (has_compiler())
    for (const cuda::Variant& v : {cuda::Variant{90}, cuda::Variant{75, false, true}})
      compile({std::make_shared<const Kernel>(Kernel::parse(kernel))}, v);
}

// Rows of 63 elements: 16 threads side by side for each, elements in registers between the passes.
TEST_CASE("cuda: a softmax is one kernel, which reads its rows once") {
  const std::string text = emitted(
      "kernel symbols 0\n  axis i0 < 8192\n  reduce i1 < 63\n  buffer b0 : f32\n  buffer b1 : f32\n  e0 = load b0[63*i0 + i1] : f32\n"
      "  e1 = reduce_max(e0) : f32\n  e2 = sub(e0, e1) : f32\n  e3 = exp(e2) : f32\n  e4 = reduce_sum(e3) : f32\n"
      "  e5 = div(e3, e4) : f32\n  b1[63*i0 + i1] = e5\n");
  CHECK(text == R"GOLD(extern "C" __global__ void __launch_bounds__(128) k0(float* b0, float* b1) {
  const int units = (8192);
  int unit = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.y);
  const bool is_unit = unit < units;
  if (!is_unit) unit = units - 1;
  const int i0 = unit;
  float c0[4];
  float c3[4];
  float a1_0 = (-__int_as_float(0x7f800000));
  #pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int step = t * 16 + static_cast<int>(threadIdx.x);
    if (step < (63)) {
      const int i1 = step;
      const float v0_0 = *(b0 + ((63) * i0 + i1));
      c0[t * 1 + 0] = v0_0;
      a1_0 = Max::of(a1_0, v0_0);
    }
  }
  const auto w1 = over_warp<16, Max>(a1_0);
  const float v1 = w1;
  float a4_0 = (0x0p+0f);
  #pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int step = t * 16 + static_cast<int>(threadIdx.x);
    if (step < (63)) {
      const int i1 = step;
      const float v2_0 = op_sub(c0[t * 1 + 0], v1);
      const float v3_0 = op_exp(v2_0);
      c3[t * 1 + 0] = v3_0;
      a4_0 = Add::of(a4_0, v3_0);
    }
  }
  const auto w4 = over_warp<16, Add>(a4_0);
  const float v4 = w4;
  #pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int step = t * 16 + static_cast<int>(threadIdx.x);
    if (step < (63)) {
      const int i1 = step;
      if (is_unit) {
        const float v5_0 = op_div(c3[t * 1 + 0], v4);
        *(b1 + ((63) * i0 + i1)) = v5_0;
      }
    }
  }
}
)GOLD");
}

TEST_CASE("cuda: a sum of nothing reads nothing") {
  const std::string text = emitted(
      "kernel symbols 0\n  reduce i0 < 0\n  buffer b0 : f32\n  buffer b1 : f32\n  e0 = load b0[i0] : f32\n"
      "  e1 = reduce_sum(e0) : f32\n  b1[0] = e1\n");
  INFO(text);
  const size_t guard = text.find("if (step < ((0)) / 4)"), load = text.find("load_row<4>(b0");
  CHECK(guard < load);
  CHECK(load != std::string::npos);
}

// Two elements of f64 are 16 bytes; where the row of a matrix is an address of 16 bytes, so is every second column.
TEST_CASE("cuda: elements side by side are one access") {
  const std::string text = emitted(
      "kernel symbols 1\n  axis i0 < s0\n  axis i1 < 768\n  buffer b0 : f64\n  buffer b1 : f64\n  buffer b2 : f64\n"
      "  e0 = load b0[768*i0 + i1] : f64\n  e1 = load b1[i0] : f64\n  e2 = mul(e0, e1) : f64\n"
      "  b2[768*i0 + i1] = e2\n");
  CHECK(text == R"GOLD(extern "C" __global__ void __launch_bounds__(256) k0(double* b0, double* b1, double* b2, i64 S0) {
  const int s0 = static_cast<int>(S0);
  const int units = (384) * s0;
  int unit = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  if (unit >= units) return;
  const int i1 = ((unit) % ((384))) * 2;
  const int unit_1 = (unit) / ((384));
  const int i0 = unit_1;
  const auto r0 = load_row<2>(b0 + ((768) * i0 + i1));
  const double v0_0 = r0.x[0];
  const double v1 = *(b1 + (i0));
  const double v2_0 = op_mul(v0_0, v1);
  const double v0_1 = r0.x[1];
  const double v2_1 = op_mul(v0_1, v1);
  store_row<2>(b2 + ((768) * i0 + i1), Row<double, 2>{{static_cast<double>(v2_0), static_cast<double>(v2_1)}});
}
)GOLD");
}

TEST_CASE("cuda: what lies along another axis than the result is turned in shared memory") {
  auto kernel = [](const std::string& sizes, const std::string& first, const std::string& second, const std::string& stored) {
    return cuda::plan_kernel(
        Kernel::parse("kernel symbols 0\n" + sizes + "  buffer b0 : bf16\n  buffer b1 : bf16\n  buffer b2 : bf16\n  e0 = load b0[" + first +
                      "] : bf16\n  e1 = load b1[" + second + "] : bf16\n  e2 = add(e0, e1) : bf16\n  b2[" + stored + "] = e2\n"),
        {90});
  };
  const std::string large = "  axis i0 < 8\n  axis i1 < 196\n  axis i2 < 768\n", small = "  axis i0 < 8\n  axis i1 < 7\n  axis i2 < 768\n";
  const std::string as_stored = "150528*i0 + 768*i1 + i2", turned = "150528*i0 + i1 + 196*i2";
  const auto plan = kernel(large, as_stored, turned, as_stored);
  CHECK((plan.across == 1 && plan.axis == 2 && plan.turned == std::set<int>{1}));
  CHECK(plan.units == SymInt(8 * 7 * 24));
  const auto both = kernel(large, turned, turned, as_stored);
  CHECK((both.across == 1 && both.axis == 2 && both.turned == std::set<int>{0, 1}));
  CHECK(!kernel(large, as_stored, as_stored, as_stored).across);
  CHECK(!kernel(small, "5376*i0 + 768*i1 + i2", "5376*i0 + i1 + 7*i2", "5376*i0 + 768*i1 + i2").across);
  const std::string text = cuda::emit_kernel(plan, "k0");
  CHECK(text.find("__shared__ unsigned short turned1[32][34];") != text.npos);
  CHECK(text.find("turned1[k][threadIdx.x] = *(b1 + ((150528) * i0 + i1 + (196) * i2));") != text.npos);
  CHECK(text.find("from_bf16(turned1[threadIdx.x][k])") != text.npos);
  if (!has_compiler()) return;
  for (const cuda::Variant& v : {cuda::Variant{90}, cuda::Variant{75, false, true}})
    compile({std::make_shared<const Kernel>(plan.kernel), std::make_shared<const Kernel>(both.kernel)}, v);
}

TEST_CASE("cuda: products as the library takes them") {
  const auto form = [](Sizes x, Sizes xs, Sizes w, Sizes ws, Sizes y, Sizes ys) {
    return cuda::ProductForm{{x, xs, DType::bf16}, {w, ws, DType::bf16}, {y, ys, DType::bf16}, {}, {}};
  };
  // A linear layer: the weight lies as [n, k].
  auto plain = cuda::library_product(form({4, 8}, {8, 1}, {8, 16}, {1, 8}, {4, 16}, {16, 1}));
  REQUIRE(plain);
  CHECK((plain->weight.transposed && !plain->x.transposed && plain->weight.leading == 8 && plain->x.leading == 8));
  CHECK((plain->result.rows == 16 && plain->result.columns == 4 && plain->batches == 1 && plain->starts.size() == 1));
  // Heads of attention, [b, h] of [b, s, h, d]: the larger dimension is the library's, the other one calls; what is not read lies as the result.
  auto heads = cuda::library_product(form({2, 4, 5, 8}, {160, 8, 32, 1}, {2, 4, 8, 5}, {160, 8, 1, 32}, {2, 4, 5, 5}, {100, 25, 5, 1}));
  REQUIRE(heads);
  CHECK((heads->batches == 4 && heads->starts.size() == 2 && heads->x.batch_stride == 8 && heads->result.batch_stride == 25));
  CHECK((heads->starts[1].x == 160 && heads->starts[1].result == 100 && heads->added.batch_stride == 25));
  // No dimension of x has its elements side by side; results lie in columns.
  CHECK(!cuda::library_product(form({4, 8}, {16, 2}, {8, 16}, {16, 1}, {4, 16}, {16, 1})));
  CHECK(!cuda::library_product(form({4, 8}, {8, 1}, {8, 16}, {16, 1}, {4, 16}, {1, 4})));
}

namespace {

// Row and column of an element of op(matrix), by its address.
std::pair<int64_t, int64_t> position(const cuda::ColumnMajor& m, int64_t at) {
  const std::pair<int64_t, int64_t> stored{at % m.leading, at / m.leading};
  REQUIRE((stored.first < m.rows && stored.second < m.columns));
  return m.transposed ? std::pair(stored.second, stored.first) : stored;
}
int64_t address(const cuda::ColumnMajor& m, int64_t row, int64_t column) {
  return m.transposed ? row * m.leading + column : column * m.leading + row;
}

// Whether the parts multiply each element that the product multiplies, and nothing else: by corners and counts.
void check_parts(const cuda::LibraryProduct& product, const cuda::OddProduct& odd) {
  int64_t count = 0;
  for (size_t at = 0, chunk = 0; at < odd.parts.size(); ++at) {
    while (at == odd.chunks[chunk].end) ++chunk;
    const auto& part = odd.parts[at];
    const auto& p = part.product;
    const int64_t n = p.result.rows, m = p.result.columns, k = p.weight.transposed ? p.weight.rows : p.weight.columns;
    count += n * m * k;
    for (const auto& [i, j, l] : {std::tuple(int64_t{0}, int64_t{0}, int64_t{0}), std::tuple(n - 1, m - 1, k - 1)}) {
      const auto w = position(odd.weight, p.starts[0].weight + address(p.weight, i, l));
      const auto x = position(odd.x, p.starts[0].x + address(p.x, l, j));
      auto y = position(odd.result, p.starts[0].result + address(p.result, i, j));
      if (odd.copies_result) y.first += odd.chunks[chunk].first;
      CHECK((w.first == y.first && w.second == x.first && x.second == y.second));
      CHECK(part.accumulates == (w.second - l > 0));
      CHECK(part.bias_start == y.first - i);
    }
  }
  const int64_t k = product.weight.transposed ? product.weight.rows : product.weight.columns;
  CHECK(count == product.result.rows * product.result.columns * k);
  int64_t rows = 0;
  for (const auto& c : odd.chunks) {
    CHECK(c.first == rows);
    rows += c.rows;
  }
  CHECK((rows == product.result.rows && odd.chunks.back().end == odd.parts.size()));
}

}  // namespace

TEST_CASE("cuda: a product's bias has as many dimensions as the result") {
  // Windows of a picture: of the rows' dimensions some lie apart and others are one.
  const Schedule s = Schedule::parse(
      "buffer m0 : f32[2, 8, 8, 7, 7, 96] strides [301056, 37632, 672, 5376, 96, 1] elements 602112 input 0\n"
      "buffer m1 : f32[96, 288] strides [1, 96] elements 27648 input 1\n"
      "buffer m2 : f32[288] strides [1] elements 288 input 2\n"
      "buffer m3 : f32[2, 8, 8, 7, 7, 288] strides [903168, 112896, 14112, 2016, 288, 1] elements 1806336 output 0\n"
      "outputs [3]\n"
      "contraction dot(batch=0) : (f32[2, 8, 8, 7, 7, 96], f32[96, 288]) -> (f32[2, 8, 8, 7, 7, 288]) of f32[2, 8, 8, 7, 7, 96] "
      "m0[0][301056, 37632, 672, 5376, 96, 1], f32[96, 288] m1[0][1, 96] weights [-1, 1] bias f32[1, 1, 1, 1, 1, 288] "
      "m2[0][288, 288, 288, 288, 288, 1] into f32[2, 8, 8, 7, 7, 288] m3[0][903168, 112896, 14112, 2016, 288, 1] reads [0, 1, 2] "
      "writes [3]\n");
  const cuda::ProductForm f = cuda::product_form(std::get<ContractionStep>(s.steps.at(0).work), {});
  CHECK(f.result.sizes == Sizes{16, 8, 7, 7, 288});
  REQUIRE(f.bias);
  CHECK(f.bias->sizes == Sizes{1, 1, 1, 1, 288});
  CHECK(f.bias->strides.back() == 1);
}

TEST_CASE("cuda: products of odd sizes are made of others") {
  const auto product = [](Sizes x, Sizes xs, Sizes w, Sizes ws, Sizes y) {
    return *cuda::library_product({{x, xs, DType::bf16}, {w, ws, DType::bf16}, {y, {y[1], 1}, DType::bf16}, {}, {}});
  };
  // The last product of a language model with 50257 words, and those of its gradients.
  const auto logits = product({2048, 768}, {768, 1}, {768, 50257}, {1, 768}, {2048, 50257});
  const auto odd = cuda::odd_product(logits, DType::bf16, false);
  REQUIRE(odd);
  CHECK((odd->copies_result && !odd->copies_x && !odd->copies_weight && odd->chunks.size() == 8 && odd->parts.size() == 9 &&
         odd->result.leading == 6400));
  check_parts(logits, *odd);
  const auto of_input = product({2048, 50257}, {50257, 1}, {50257, 768}, {768, 1}, {2048, 768});
  const auto summed = cuda::odd_product(of_input, DType::bf16, false);
  REQUIRE(summed);
  CHECK((summed->copies_x && !summed->copies_result && summed->parts.size() == 2 && summed->parts[1].accumulates));
  check_parts(of_input, *summed);
  CHECK(!cuda::odd_product(of_input, DType::bf16, true));  // what stands behind it wants the whole sum
  const auto of_weight = product({50257, 2048}, {1, 50257}, {2048, 768}, {768, 1}, {50257, 768});
  const auto columns = cuda::odd_product(of_weight, DType::bf16, true);
  REQUIRE(columns);
  CHECK((columns->copies_x && columns->parts.size() == 2));
  check_parts(of_weight, *columns);
  const auto all = product({1003, 2001}, {2001, 1}, {2001, 1005}, {1005, 1}, {1003, 1005});
  const auto four = cuda::odd_product(all, DType::bf16, false);
  REQUIRE(four);
  CHECK(four->parts.size() == 4);
  check_parts(all, *four);
  // Even ones, small ones, and types whose kernels do not ask.
  CHECK(!cuda::odd_product(product({2048, 768}, {768, 1}, {768, 50264}, {1, 768}, {2048, 50264}), DType::bf16, false));
  CHECK(!cuda::odd_product(product({20, 33}, {33, 1}, {33, 35}, {35, 1}, {20, 35}), DType::bf16, false));
  CHECK(!cuda::odd_product(logits, DType::f32, false));
}

}  // namespace broach
