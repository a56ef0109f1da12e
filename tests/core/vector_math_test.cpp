// Compiles a loop around each function for this machine, and for it without AVX-512 and without AVX, and compares what the
// loop computes with libm in a wider type, in units in the last place, against the bounds of kMathFns.
#ifdef BROACH_TEST_MAIN
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#endif
#include <doctest/doctest.h>

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/Module.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <random>

#include "support/error.h"
#include "support/small_float.h"
#include "target/cpu/vector_math.h"

using namespace broach;
using namespace broach::cpu;

namespace {

// ---- Kernels ----

struct Machine {
  const char* name;
  const char* cpu;  // empty: the host with all it has
  Features features;
};

std::vector<Machine> machines() {
  const Features host = host_features();
  std::vector<Machine> all{{"host", "", host}, {"sse2", "x86-64", {}}};
  if (host.avx2 && host.fma) all.push_back({"avx2", "haswell", {.fma = true, .avx2 = true}});
  return all;
}

template <class T>
T unwrap(llvm::Expected<T> value) {
  if (!value) fail(llvm::toString(value.takeError()));
  return std::move(*value);
}

void succeed(llvm::Error error) {
  if (error) fail(llvm::toString(std::move(error)));
}

llvm::orc::JITTargetMachineBuilder target(const Machine& machine) {
  auto builder = unwrap(llvm::orc::JITTargetMachineBuilder::detectHost());
  if (*machine.cpu) {
    builder.setCPU(machine.cpu);
    builder.getFeatures() = llvm::SubtargetFeatures();
  }
  return builder;
}

using Body = std::function<llvm::Value*(llvm::IRBuilderBase&, llvm::Value*, llvm::Value*)>;
using Kernel = void (*)(void* out, const void* a, const void* b, int64_t count);

// A module of loops; each applies its body to `lanes` elements at a time. Counts are multiples of the lanes.
class Kernels {
 public:
  explicit Kernels(const Machine& machine) : machine_(machine), builder_(*context_) {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    jit_ = unwrap(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(target(machine)).create());
    module_->setDataLayout(jit_->getDataLayout());
    llvm::orc::SymbolMap symbols;
    for (const auto& [name, address] : math_symbols())
      symbols[jit_->mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
    succeed(jit_->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))));
  }

  // `in` and `out` are element types.
  void add(const std::string& name, llvm::Type* out, llvm::Type* in, unsigned lanes, const Body& body) {
    auto& b = builder_;
    auto* pointer = b.getPtrTy();
    auto* type = llvm::FunctionType::get(b.getVoidTy(), {pointer, pointer, pointer, b.getInt64Ty()}, false);
    auto* function = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, *module_);
    auto* entry = llvm::BasicBlock::Create(*context_, "", function);
    auto* loop = llvm::BasicBlock::Create(*context_, "", function);
    auto* exit = llvm::BasicBlock::Create(*context_, "", function);
    b.SetInsertPoint(entry);
    b.CreateBr(loop);
    b.SetInsertPoint(loop);
    auto* i = b.CreatePHI(b.getInt64Ty(), 2);
    i->addIncoming(b.getInt64(0), entry);
    auto* many = lanes == 1 ? in : llvm::FixedVectorType::get(in, lanes);
    const auto load = [&](int argument) {
      return b.CreateAlignedLoad(many, b.CreateGEP(in, function->getArg(argument), i), llvm::Align(1));
    };
    auto* result = body(b, load(1), load(2));
    b.CreateAlignedStore(result, b.CreateGEP(out, function->getArg(0), i), llvm::Align(1));
    auto* next = b.CreateAdd(i, b.getInt64(lanes));
    i->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(b.CreateICmpSLT(next, function->getArg(3)), loop, exit);
    b.SetInsertPoint(exit);
    b.CreateRetVoid();
  }

  void add(MathFn fn, llvm::Type* type, unsigned lanes) {
    add(cat("kernel_", info(fn).name), type, type, lanes, [&](llvm::IRBuilderBase& b, llvm::Value* x, llvm::Value* y) {
      return emit_math(b, fn, llvm::ArrayRef({x, y}).take_front(info(fn).arity), machine_.features);
    });
  }

  void compile() {
    optimise();
    if (std::getenv("BROACH_DUMP_IR")) module_->print(llvm::errs(), nullptr);
    succeed(jit_->addIRModule({std::move(module_), std::move(context_)}));
  }

  Kernel operator[](const std::string& name) { return unwrap(jit_->lookup(name)).toPtr<Kernel>(); }
  llvm::IRBuilder<>& builder() { return builder_; }

 private:
  void optimise() {
    auto machine = unwrap(target(machine_).createTargetMachine());
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager calls;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder passes(machine.get());
    passes.registerModuleAnalyses(modules);
    passes.registerCGSCCAnalyses(calls);
    passes.registerFunctionAnalyses(functions);
    passes.registerLoopAnalyses(loops);
    passes.crossRegisterProxies(loops, functions, calls, modules);
    passes.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2).run(*module_, modules);
  }

  Machine machine_;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::unique_ptr<llvm::LLVMContext> context_ = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> module_ = std::make_unique<llvm::Module>("math", *context_);
  llvm::IRBuilder<> builder_;
};

// ---- Exact results ----

// psi by recurrence to x >= 40 and 8 terms of Abramowitz and Stegun 6.3.18.
long double exact_digamma(long double x) {
  if (x == 0) return std::copysign(HUGE_VALL, -x);
  if (x < 0 && x == std::floor(x)) return NAN;
  const long double pi = std::numbers::pi_v<long double>;
  if (x < 0) return exact_digamma(1 - x) - pi / std::tan(pi * (x - std::nearbyint(x)));
  long double below = 0, sum = 0;
  for (; x < 40; x += 1) below += 1 / x;
  for (long double c : {3617.0L / 8160, -1.0L / 12, 691.0L / 32760, -1.0L / 132, 1.0L / 240, -1.0L / 252, 1.0L / 120, -1.0L / 12})
    sum = (sum + c) / (x * x);
  return std::log(x) - 1 / (2 * x) + sum - below;
}

// Newton from 0 approaches erf's concave side from below, monotonically, in the tail by about 1/2y a step.
long double exact_erfinv(long double x) {
  const long double a = std::fabs(x);
  if (!(a < 1)) return a == 1 ? std::copysign(HUGE_VALL, x) : NAN;
  long double y = 0;
  for (int step = 0; step < 80; ++step) {
    const long double excess = a < 0.5L ? std::erf(y) - a : (1 - a) - std::erfc(y);
    const long double move = excess * std::exp(y * y) / std::numbers::inv_sqrtpi_v<long double> / 2;
    y -= move;
    if (std::fabs(move) <= 1e-17L * y) break;
  }
  return std::copysign(y, x);
}

template <class W>
W exact(MathFn fn, W x, W y) {
  switch (fn) {
    case MathFn::exp: return std::exp(x);
    case MathFn::exp2: return std::exp2(x);
    case MathFn::expm1: return std::expm1(x);
    case MathFn::log: return std::log(x);
    case MathFn::log2: return std::log2(x);
    case MathFn::log10: return std::log10(x);
    case MathFn::log1p: return std::log1p(x);
    case MathFn::sin: return std::sin(x);
    case MathFn::cos: return std::cos(x);
    case MathFn::tan: return std::tan(x);
    case MathFn::asin: return std::asin(x);
    case MathFn::acos: return std::acos(x);
    case MathFn::atan: return std::atan(x);
    case MathFn::sinh: return std::sinh(x);
    case MathFn::cosh: return std::cosh(x);
    case MathFn::tanh: return std::tanh(x);
    case MathFn::asinh: return std::asinh(x);
    case MathFn::acosh: return std::acosh(x);
    case MathFn::atanh: return std::atanh(x);
    case MathFn::erf: return std::erf(x);
    case MathFn::erfc: return std::erfc(x);
    case MathFn::erfinv: return static_cast<W>(exact_erfinv(x));
    case MathFn::lgamma: return std::lgamma(x);
    case MathFn::digamma: return static_cast<W>(exact_digamma(x));
    case MathFn::sigmoid: return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
    case MathFn::rsqrt: return 1 / std::sqrt(x);
    case MathFn::pow: return std::pow(x, y);
    case MathFn::atan2: return std::atan2(x, y);
    case MathFn::hypot: return std::hypot(x, y);
    case MathFn::cbrt: return std::cbrt(x);
  }
  fail("no exact form");
}

// ---- Errors ----

// Near such roots no algorithm in the same precision keeps relative accuracy.
bool has_hard_roots(MathFn fn) { return fn == MathFn::lgamma || fn == MathFn::digamma; }

template <class T, class W>
double ulp_error(MathFn fn, T got, W want) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) == std::isnan(got) ? 0 : HUGE_VAL;
  if (got == static_cast<T>(want)) {
    const bool zero_sign_differs = got == 0 && want == 0 && std::signbit(got) != std::signbit(want);
    if (std::isinf(got) || got == 0) return zero_sign_differs ? HUGE_VAL : 0;
  }
  if (std::isinf(got) != std::isinf(static_cast<T>(want))) {  // on either side of overflow: as if numbers went on
    const W past = std::ldexp(W(1), std::numeric_limits<T>::max_exponent);
    got = std::isinf(got) ? std::numeric_limits<T>::max() : got;
    if (std::fabs(want) > past) want = std::copysign(past, want);
  }
  W size = std::fabs(want);
  if (has_hard_roots(fn)) size = std::max(size, W(1));
  const int exponent = std::ilogb(std::max(size, W(std::numeric_limits<T>::min())));
  return static_cast<double>(std::fabs(W(got) - want) / std::ldexp(W(1), exponent - std::numeric_limits<T>::digits + 1));
}

// ---- Points ----

template <class T>
struct Points {
  std::vector<T> a, b;
  void push(T x, T y) { a.push_back(x), b.push_back(y); }
};

template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
std::vector<T> special_values() {
  using L = std::numeric_limits<T>;
  std::vector<T> all;
  for (T v : {T(0),
              L::denorm_min(),
              L::min() / 2,
              L::min(),
              T(1e-20),
              T(1e-8),
              T(0.25),
              T(0.5),
              std::nextafter(T(1), T(0)),
              T(1),
              std::nextafter(T(1), T(2)),
              T(1.5),
              T(2),
              T(3),
              T(4),
              T(9.5),
              T(10),
              T(88),
              T(89),
              T(100),
              T(104),
              T(128),
              T(150),
              T(1000),
              T(10001),
              T(16777215),
              T(16777217),
              T(1e10),
              L::max(),
              L::infinity(),
              L::quiet_NaN()})
    all.insert(all.end(), {v, -v});
  return all;
}

// Every exponent of both signs with random mantissas, then the range where functions bend.
template <class T>
Points<T> spread(size_t per_exponent, size_t near_zero) {
  constexpr int kMantissa = std::numeric_limits<T>::digits - 1;
  constexpr uint64_t kExponents = 1ULL << (sizeof(T) * 8 - 1 - kMantissa);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<T> unit(-12, 12), narrow(-1, 1), wide(-9500, 9500);
  Points<T> points;
  for (uint64_t top = 0; top < 2 * kExponents; ++top)
    for (size_t i = 0; i < per_exponent; ++i)
      points.push(from_bits<T>(top << kMantissa | (random() >> (64 - kMantissa))), i % 2 ? unit(random) : from_bits<T>(random()));
  for (size_t i = 0; i < near_zero; ++i) points.push(unit(random), unit(random));
  for (size_t i = 0; i < near_zero; ++i) points.push(narrow(random), unit(random));
  for (size_t i = 0; i < near_zero; ++i) points.push(wide(random), narrow(random));
  for (size_t i = 0; i < near_zero; ++i) points.push(std::exp(narrow(random)), wide(random) / 100);
  return points;
}

template <class T>
Points<T> special_pairs() {
  Points<T> points;
  for (T x : special_values<T>())
    for (T y : special_values<T>()) points.push(x, y);
  return points;
}

// ---- The comparison ----

struct Worst {
  double error = 0, x = 0, y = 0, got = 0, want = 0;
};

template <class T, class W>
Worst worst_error(MathFn fn, Kernel kernel, const Points<T>& points, const std::vector<W>& want) {
  std::vector<T> out(points.a.size());
  kernel(out.data(), points.a.data(), points.b.data(), static_cast<int64_t>(out.size()));
  Worst worst;
  for (size_t i = 0; i < out.size(); ++i) {
    const double error = ulp_error(fn, out[i], want[i]);
    if (error > worst.error) worst = {error, points.a[i], points.b[i], out[i], static_cast<double>(want[i])};
  }
  return worst;
}

template <class T, class W>
struct Suite {
  Points<T> points;
  std::map<MathFn, std::vector<W>> want;
  explicit Suite(Points<T> p) : points(std::move(p)) {
    while (points.a.size() % 96) points.push(1, 1);
    for (const MathFnInfo& row : kMathFns) {
      auto& results = want[row.fn];
      for (size_t i = 0; i < points.a.size(); ++i) results.push_back(exact<W>(row.fn, points.a[i], points.b[i]));
    }
  }
};

template <class T, class W>
void compare(const Suite<T, W>& suite, std::initializer_list<unsigned> widths) {
  constexpr bool f32 = sizeof(T) == 4;
  for (const Machine& machine : machines())
    for (unsigned lanes : widths) {
      Kernels kernels(machine);
      auto& b = kernels.builder();
      for (const MathFnInfo& row : kMathFns) kernels.add(row.fn, f32 ? b.getFloatTy() : b.getDoubleTy(), lanes);
      kernels.compile();
      for (const MathFnInfo& row : kMathFns) {
        const Worst worst = worst_error(row.fn, kernels[cat("kernel_", row.name)], suite.points, suite.want.at(row.fn));
        if (std::getenv("BROACH_PRINT"))
          std::printf("%s %s x%u %-8s %.3f at (%a, %a): %a for %a\n", machine.name, f32 ? "f32" : "f64", lanes, row.name.data(),
                      worst.error, worst.x, worst.y, worst.got, worst.want);
        INFO(machine.name, " ", row.name, " x", lanes, " at ", worst.x, ", ", worst.y, ": ", worst.got, " for ", worst.want);
        const double without_fma = f32 && row.inline_f32 && !machine.features.fma ? 1 : 0;
        CHECK(worst.error <= (f32 ? row.ulp_f32 : row.ulp_f64) + without_fma);
      }
    }
}

}  // namespace

TEST_CASE("kMathFns is in the order of MathFn") {
  for (size_t i = 0; i < kMathFns.size(); ++i) CHECK(static_cast<size_t>(kMathFns[i].fn) == i);
}

TEST_CASE("f32 functions keep their bounds at all exponents") { compare(Suite<float, double>(spread<float>(2000, 100'000)), {1, 8, 16}); }

TEST_CASE("f32 functions have C's special values") { compare(Suite<float, double>(special_pairs<float>()), {1, 3, 8, 16, 32}); }

TEST_CASE("f64 functions keep their bounds at all exponents") {
  compare(Suite<double, long double>(spread<double>(20, 20'000)), {1, 4, 8});
}

TEST_CASE("f64 functions have C's special values") { compare(Suite<double, long double>(special_pairs<double>()), {1, 3, 8}); }

namespace {

std::vector<uint32_t> conversion_bits() {
  std::vector<uint32_t> all;
  for (uint32_t high = 0; high <= 0xffff; ++high)
    for (uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) all.push_back(high << 16 | low);
  return all;
}

// c10::BFloat16's round_to_nearest_even.
uint16_t exact_bf16(uint32_t bits) {
  if (std::isnan(std::bit_cast<float>(bits))) return 0x7fc0;
  const uint32_t kept = bits >> 16, rest = bits & 0xffff;
  return static_cast<uint16_t>(kept + (rest > 0x8000 || (rest == 0x8000 && kept % 2)));
}

double f16_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double size = std::ldexp(exponent ? 1024 + mantissa : mantissa, std::max(exponent, 1) - 25);
  if (exponent == 31) size = mantissa ? NAN : HUGE_VAL;
  return bits >> 15 ? -size : size;
}

// Whether no neighbour of `got` is nearer to `x`, and ties went to even.
bool is_nearest_f16(float x, uint16_t got) {
  if (std::isnan(x)) return std::isnan(f16_value(got));
  if (std::fabs(x) >= 65520) return std::isinf(f16_value(got)) && std::signbit(x) == (got >> 15);
  const double error = std::fabs(f16_value(got) - x);
  for (int step : {-1, 1}) {
    if ((got & 0x7fff) == 0 && step < 0) continue;
    const auto neighbour = static_cast<uint16_t>(got + step);
    const bool overflows = std::isinf(f16_value(neighbour));
    const double other = overflows ? 65536 - std::fabs(x) : std::fabs(f16_value(neighbour) - x);
    if (other < error || (other == error && got % 2)) return false;
  }
  return std::signbit(x) == (got >> 15);
}

void add_conversions(Kernels& kernels, unsigned lanes, const Features& features) {
  auto& b = kernels.builder();
  using B = llvm::IRBuilderBase;
  using V = llvm::Value*;
  kernels.add("to_bf16", b.getInt16Ty(), b.getFloatTy(), lanes, [&](B& b, V x, V) { return emit_f32_to_bf16(b, x, features); });
  kernels.add("of_bf16", b.getFloatTy(), b.getInt16Ty(), lanes, [](B& b, V x, V) { return emit_bf16_to_f32(b, x); });
  kernels.add("to_f16", b.getHalfTy(), b.getFloatTy(), lanes, [](B& b, V x, V) { return emit_f32_to_f16(b, x); });
  kernels.add("of_f16", b.getFloatTy(), b.getHalfTy(), lanes, [](B& b, V x, V) { return emit_f16_to_f32(b, x); });
  kernels.compile();
}

void check_narrowing(Kernels& kernels) {
  const std::vector<uint32_t> in = conversion_bits();
  std::vector<uint16_t> bf16(in.size()), f16(in.size());
  kernels["to_bf16"](bf16.data(), in.data(), in.data(), static_cast<int64_t>(in.size()));
  kernels["to_f16"](f16.data(), in.data(), in.data(), static_cast<int64_t>(in.size()));
  size_t wrong_bf16 = 0, wrong_f16 = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    wrong_bf16 += bf16[i] != exact_bf16(in[i]);
    wrong_f16 += !is_nearest_f16(std::bit_cast<float>(in[i]), f16[i]);
  }
  CHECK(wrong_bf16 == 0);
  CHECK(wrong_f16 == 0);
}

void check_widening(Kernels& kernels) {
  std::vector<uint16_t> in(0x10000);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  std::vector<float> bf16(in.size()), f16(in.size());
  kernels["of_bf16"](bf16.data(), in.data(), in.data(), static_cast<int64_t>(in.size()));
  kernels["of_f16"](f16.data(), in.data(), in.data(), static_cast<int64_t>(in.size()));
  size_t wrong_bf16 = 0, wrong_f16 = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    wrong_bf16 += std::bit_cast<uint32_t>(bf16[i]) != i << 16;
    const double want = f16_value(in[i]);
    wrong_f16 += std::isnan(want) ? !std::isnan(f16[i]) : f16[i] != want || std::signbit(f16[i]) != std::signbit(want);
  }
  CHECK(wrong_bf16 == 0);
  CHECK(wrong_f16 == 0);
}

// As the interpreter converts, whose conversions are tested against the definition; which NaN it is nobody says.
template <class Format>
void check_format(const Machine& machine, unsigned lanes, SmallFormat format) {
  Kernels kernels(machine);
  auto& b = kernels.builder();
  using B = llvm::IRBuilderBase;
  using V = llvm::Value*;
  kernels.add("to_f8", b.getInt8Ty(), b.getFloatTy(), lanes, [&](B& b, V x, V) { return emit_f32_to_f8(b, x, format); });
  kernels.add("of_f8", b.getFloatTy(), b.getInt8Ty(), lanes, [&](B& b, V x, V) { return emit_f8_to_f32(b, x, format); });
  kernels.compile();
  std::vector<uint8_t> every(256);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint8_t>(i);
  std::vector<float> wide(every.size());
  kernels["of_f8"](wide.data(), every.data(), every.data(), static_cast<int64_t>(every.size()));
  const auto same = [](float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
  };
  std::vector<uint32_t> in = conversion_bits();
  for (size_t i = 0; i < every.size(); ++i) {
    CHECK(same(wide[i], Format::widen(every[i])));
    const auto bits = std::bit_cast<uint32_t>(Format::widen(every[i]));
    in.insert(in.end(), {bits, bits + (1u << 19), bits + (1u << 20), bits + (1u << 20) - 1, bits + (1u << 20) + 1, bits + (1u << 19) + 1});
  }
  in.resize(in.size() / 16 * 16);
  std::vector<uint8_t> narrow(in.size());
  kernels["to_f8"](narrow.data(), in.data(), in.data(), static_cast<int64_t>(in.size()));
  size_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i) wrong += narrow[i] != Format::narrow(std::bit_cast<float>(in[i]));
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("conversions to and from floats of 8 bits are the interpreter's") {
  for (const Machine& machine : machines())
    for (unsigned lanes : {1U, 8U, 16U}) {
      INFO(machine.name, " x", lanes);
      check_format<SmallFloat<5, 2>>(machine, lanes, {5, 2, true});
      check_format<SmallFloat<4, 3, false>>(machine, lanes, {4, 3, false});
    }
}

TEST_CASE("conversions to and from bf16 and f16 are exact or round to nearest even") {
  for (const Machine& machine : machines())
    for (unsigned lanes : {1U, 8U, 16U}) {
      INFO(machine.name, " x", lanes);
      Kernels kernels(machine);
      add_conversions(kernels, lanes, machine.features);
      check_narrowing(kernels);
      check_widening(kernels);
    }
}

TEST_CASE("f32 results do not depend on the width") {
  const Points<float> points = spread<float>(96, 9600);
  for (const Machine& machine : machines()) {
    std::map<std::string, std::vector<float>> first;
    for (unsigned lanes : {16U, 1U, 3U, 8U, 32U}) {
      Kernels kernels(machine);
      for (const MathFnInfo& row : kMathFns)
        if (row.inline_f32) kernels.add(row.fn, kernels.builder().getFloatTy(), lanes);
      kernels.compile();
      for (const MathFnInfo& row : kMathFns) {
        if (!row.inline_f32 || row.fn == MathFn::sin || row.fn == MathFn::cos) continue;  // the library does large sin, cos
        std::vector<float> out(points.a.size());
        kernels[cat("kernel_", row.name)](out.data(), points.a.data(), points.b.data(), static_cast<int64_t>(out.size()));
        const auto& same = first.try_emplace(std::string(row.name), out).first->second;
        CHECK(std::memcmp(same.data(), out.data(), out.size() * sizeof(float)) == 0);
      }
    }
  }
}

// Every 64th float: all intervals of the tables, and both sides of where one ends.
TEST_CASE("the normal distribution is right to 6.7e-8, and exact where it ends") {
  const Features features = host_features();
  Kernels kernels(machines()[0]);
  auto* type = kernels.builder().getFloatTy();
  if (!features.avx512) {
    CHECK(emit_normal(kernels.builder(), llvm::ConstantFP::get(type, 1), features) == nullptr);
    return;
  }
  kernels.add("normal", type, type, 16, [&](llvm::IRBuilderBase& b, llvm::Value* x, llvm::Value*) { return emit_normal(b, x, features); });
  kernels.compile();
  std::vector<float> in{NAN, INFINITY, -INFINITY, 5.6F, -5.6F, 0.0F, -0.0F, 1e-45F};
  for (uint32_t bits = 0; bits < 0x7f800000; bits += 64)
    for (uint32_t sign : {0U, 1U << 31}) in.push_back(std::bit_cast<float>(bits | sign));
  while (in.size() % 16) in.push_back(0);
  std::vector<float> out(in.size());
  kernels["normal"](out.data(), in.data(), in.data(), static_cast<int64_t>(in.size()));
  CHECK(std::isnan(out[0]));
  double worst = 0, at = 0;
  for (size_t i = 1; i < in.size(); ++i) {
    const double error = std::fabs(out[i] - 0.5 * std::erfc(-in[i] / std::numbers::sqrt2));
    if (!(error <= worst)) worst = error, at = in[i];
    if (std::fabs(in[i]) > 5.6F && out[i] != (in[i] > 0)) worst = 1, at = in[i];
  }
  INFO("at ", at);
  CHECK(worst <= 6.7e-8);
}

// Not a test: prints times for an array that stays in the first cache. Run with --no-skip --test-case="speed*".
TEST_CASE("speed at 16 lanes" * doctest::skip()) {
  const Machine host = machines()[0];
  Kernels kernels(host);
  for (const MathFnInfo& row : kMathFns) kernels.add(row.fn, kernels.builder().getFloatTy(), 16);
  kernels.compile();
  constexpr int kCount = 2048, kRuns = 4000;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> unit(0.1F, 4);
  std::vector<float> a(kCount), b(kCount), out(kCount);
  for (const MathFnInfo& row : kMathFns) {
    const auto is = [&](MathFn fn) { return row.fn == fn; };
    const bool below_one = is(MathFn::asin) || is(MathFn::acos) || is(MathFn::atanh) || is(MathFn::erfinv);
    for (int i = 0; i < kCount; ++i) {
      a[i] = unit(random) / (below_one ? 5 : 1) + is(MathFn::acosh);
      b[i] = unit(random);
    }
    const Kernel kernel = kernels[cat("kernel_", row.name)];
    double best = HUGE_VAL;
    for (int trial = 0; trial < 5; ++trial) {
      const auto start = std::chrono::steady_clock::now();
      for (int run = 0; run < (row.inline_f32 ? kRuns : kRuns / 20); ++run) kernel(out.data(), a.data(), b.data(), kCount);
      const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
      best = std::min(best, time.count() / (row.inline_f32 ? kRuns : kRuns / 20) / kCount);
    }
    std::printf("%-8s %.3f ns\n", row.name.data(), best);
  }
}
