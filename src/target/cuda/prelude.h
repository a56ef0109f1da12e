// The CUDA C++ that stands before generated kernels: what each primitive computes for one element, as eager's kernels do, conversions,
// accesses of several elements, and reductions among the threads of a block. It includes nothing.
#pragma once

namespace broach::cuda {

inline constexpr const char* kPrelude = R"(
#define FN static __device__ __forceinline__
typedef long long i64; typedef unsigned long long u64;
struct Bits16 { u64 low, high; };

// ---- memory ----
template <class T, int N> struct __align__(sizeof(T) * N) Pack { T x[N]; };
template <class T, int N> struct Row { T x[N]; };
template <int N, class T> FN Row<T, N> load_row(const T* p) {
  constexpr int n = sizeof(T) * N > 16 ? 16 / sizeof(T) : N;
  Row<T, N> out;
#pragma unroll
  for (int i = 0; i < N / n; ++i) {
    const Pack<T, n> piece = reinterpret_cast<const Pack<T, n>*>(p)[i];
#pragma unroll
    for (int j = 0; j < n; ++j) out.x[i * n + j] = piece.x[j];
  }
  return out;
}
template <int N, class T> FN void store_row(T* p, const Row<T, N>& row) {
  constexpr int n = sizeof(T) * N > 16 ? 16 / sizeof(T) : N;
#pragma unroll
  for (int i = 0; i < N / n; ++i) {
    Pack<T, n> piece;
#pragma unroll
    for (int j = 0; j < n; ++j) piece.x[j] = row.x[i * n + j];
    reinterpret_cast<Pack<T, n>*>(p)[i] = piece;
  }
}
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
FN i64 checked(i64 i, i64 limit, bool asked, const char* kernel) {
  const bool outside = u64(i) >= u64(limit);
  if (asked && outside) __assertfail("index out of bounds", "Broach", 0, kernel, 1);
  return outside ? 0 : i;
}

// ---- numbers ----
template <class To, class From> FN To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To out;
  memcpy(&out, &x, sizeof out);
  return out;
}
FN float from_bf16(unsigned short x) { return __uint_as_float(unsigned(x) << 16); }
FN float from_f16(unsigned short x) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x)); return f; }
FN unsigned short to_f16(float x) { unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
FN unsigned short to_bf16(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned short h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
#else
  const unsigned b = __float_as_uint(x);
  return x != x ? 0x7fff : (b + 0x7fff + ((b >> 16) & 1)) >> 16;
#endif
}
// Two numbers, each rounded to the type.
struct Both { float low, high; };
FN Both round_to_bf16(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
#else
  return {from_bf16(to_bf16(low)), from_bf16(to_bf16(high))};
#endif
}
FN Both round_to_f16(float low, float high) { return {from_f16(to_f16(low)), from_f16(to_f16(high))}; }
template <class To, class From> struct Cast { FN To of(From x) { return static_cast<To>(x); } };
template <class From> struct Cast<bool, From> { FN bool of(From x) { return x != From(0); } };
template <> struct Cast<unsigned char, float> { FN unsigned char of(float x) { return static_cast<unsigned char>(static_cast<i64>(x)); } };
template <> struct Cast<unsigned char, double> { FN unsigned char of(double x) { return static_cast<unsigned char>(static_cast<i64>(x)); } };

// ---- primitives of one element ----
#define REAL(name, f, d) FN float name(float x) { return f(x); } FN double name(double x) { return d(x); }
REAL(op_floor, floorf, floor) REAL(op_ceil, ceilf, ceil) REAL(op_trunc, truncf, trunc) REAL(op_round, rintf, rint)
REAL(op_sqrt, sqrtf, sqrt) REAL(op_rsqrt, rsqrtf, rsqrt) REAL(op_exp, expf, exp) REAL(op_exp2, exp2f, exp2)
REAL(op_expm1, expm1f, expm1) REAL(op_log, logf, log) REAL(op_log2, log2f, log2) REAL(op_log10, log10f, log10)
REAL(op_log1p, log1pf, log1p) REAL(op_sin, sinf, sin) REAL(op_cos, cosf, cos) REAL(op_tan, tanf, tan)
REAL(op_asin, asinf, asin) REAL(op_acos, acosf, acos) REAL(op_atan, atanf, atan) REAL(op_sinh, sinhf, sinh)
REAL(op_cosh, coshf, cosh) REAL(op_tanh, tanhf, tanh) REAL(op_asinh, asinhf, asinh) REAL(op_acosh, acoshf, acosh)
REAL(op_atanh, atanhf, atanh) REAL(op_erf, erff, erf) REAL(op_erfc, erfcf, erfc) REAL(op_erfinv, erfinvf, erfinv)
REAL(op_lgamma, lgammaf, lgamma)
#define WHOLE(T) FN T op_floor(T x) { return x; } FN T op_ceil(T x) { return x; } FN T op_trunc(T x) { return x; } FN T op_round(T x) { return x; }
WHOLE(bool) WHOLE(unsigned char) WHOLE(signed char) WHOLE(short) WHOLE(int) WHOLE(i64)
FN double op_digamma(double x) {
  if (x == 0) return copysign(__longlong_as_double(0x7ff0000000000000ll), -x);
  double add = 0;
  if (x < 0) {
    if (x == trunc(x)) return __longlong_as_double(0x7ff8000000000000ll);
    add = -3.14159265358979323846 / tan(3.14159265358979323846 * (x - trunc(x)));
    x = 1 - x;
  }
  for (; x < 10; x += 1) add -= 1 / x;
  const double z = 1 / (x * x);
  const double series = z * (1. / 12 + z * (-1. / 120 + z * (1. / 252 + z * (-1. / 240 + z * (1. / 132 + z * (-691. / 32760 + z / 12))))));
  return log(x) - 0.5 / x - series + add;
}
FN float op_digamma(float x) { return static_cast<float>(op_digamma(static_cast<double>(x))); }
template <class T> FN T op_neg(T x) { return -x; }
FN bool op_abs(bool x) { return x; }
template <class T> FN T op_abs(T x) { return x < 0 ? -x : x; }
FN float op_abs(float x) { return fabsf(x); }
FN double op_abs(double x) { return fabs(x); }
template <class T> FN T op_sign(T x) { return static_cast<T>((T(0) < x) - (x < T(0))); }
FN bool op_sign(bool x) { return x; }
template <class T> FN T op_reciprocal(T x) { return T(1) / x; }
template <class T> FN T op_sigmoid(T x) { return T(1) / (T(1) + op_exp(-x)); }
template <class T> FN T op_relu(T x) { return x <= T(0) ? T(0) : x; }
template <class T> FN T op_gelu_erf(T x) { return x * T(0.5) * (T(1) + op_erf(x * T(0.70710678118654752440))); }
template <class T> FN T op_gelu_tanh(T x) {
  return T(0.5) * x * (T(1) + op_tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
}
template <class T> FN T op_gelu_erf_derivative(T x) {
  const T normal = (T(1) + op_erf(x * T(0.70710678118654752440))) * T(0.5);
  return normal + x * (op_exp(x * x * T(-0.5)) * T(0.39894228040143267794));
}
template <class T> FN T op_gelu_tanh_derivative(T x) {
  const T square = x * x, t = op_tanh(T(0.79788456080286535588) * (x + T(0.044715) * square * x));
  return (t + T(1)) * T(0.5) + x * T(0.5) * (T(1) - t * t) * (T(0.79788456080286535588) * (T(1) + T(0.134145) * square));
}
template <class T> FN T op_hardsigmoid(T x) { return x < T(-3) ? T(0) : x > T(3) ? T(1) : (x + T(3)) / T(6); }
template <class T> FN T op_silu(T x) { return x / (T(1) + op_exp(-x)); }
// The same within 2^-16, or what eager's own loses where it nearly cancels, for results of which bf16's eight bits are seen. The error function
// is formula 7.1.26 of Abramowitz and Stegun.
FN float two_to(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
FN float inverse_of(float x) { float y; asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// Without the numbers below 2^-126, which take four instructions more: where one is added to the former, or nothing is seen of the latter.
FN float two_to_normal(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
FN float inverse_of_normal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
FN float quick_exp(float x) { return two_to(x * 1.44269504f); }
FN float quick_sigmoid(float x) { return inverse_of(1 + two_to_normal(x * -1.44269504f)); }
FN float quick_silu(float x) { return x * quick_sigmoid(x); }
FN float quick_tanh(float x) {
  const float series = fmaf(x * x, -0.33333333f, 1.0f);
  return fabsf(x) < 0.03125f ? x * series : fmaf(-2.0f, inverse_of_normal(1 + two_to_normal(x * 2.88539008f)), 1.0f);
}
// A sigmoid, of which eager's formula loses what is below 2^-24.
FN float quick_gate(float x) { return inverse_of_normal(1 + two_to_normal(x * -1.44269504f)); }
FN float quick_gelu_tanh(float x) { return x * quick_gate(x * fmaf(x * x, 0.0713548163f, 1.59576912f)); }
// The normal distribution at x, `bell` being exp(-x * x / 2).
FN float quick_normal(float x, float bell) {
  const float t = inverse_of_normal(fmaf(fabsf(x), 0.231641887f, 1.0f));
  const float sum = fmaf(t, fmaf(t, fmaf(t, fmaf(t, 0.530702715f, -0.726576014f), 0.710706871f), -0.142248368f), 0.127414796f);
  const float beyond = t * sum * bell;
  return x < 0 ? beyond : 1 - beyond;
}
FN float quick_bell(float x) { return two_to_normal(x * x * -0.72134752f); }
FN float quick_gelu_erf(float x) { return x * quick_normal(x, quick_bell(x)); }
FN float quick_gelu_erf_derivative(float x) {
  const float bell = quick_bell(x);
  return fmaf(x * 0.39894228f, bell, quick_normal(x, bell));
}
FN float quick_gelu_tanh_derivative(float x) {
  const float square = x * x, s = quick_gate(x * fmaf(square, 0.0713548163f, 1.59576912f));
  return fmaf(x * s * (1 - s), fmaf(square, 0.214064449f, 1.59576912f), s);
}
template <class T> FN T op_bit_not(T x) { return ~x; }
FN bool op_bit_not(bool x) { return !x; }
template <class T> FN bool op_is_nan(T x) { return x != x; }

template <class T> FN T op_add(T a, T b) { return a + b; }
FN bool op_add(bool a, bool b) { return a || b; }
template <class T> FN T op_sub(T a, T b) { return a - b; }
FN bool op_sub(bool a, bool b) { return a != b; }
template <class T> FN T op_mul(T a, T b) { return a * b; }
FN bool op_mul(bool a, bool b) { return a && b; }
template <class T> FN T op_div(T a, T b) { return a / b; }
// a / b where 1 / b is known, as a division rounds it (Markstein 1990): three operations in place of some ten.
FN float divided(float a, float b, float inverse) {
  const float q = a * inverse, rest = fmaf(-q, b, a), better = fmaf(rest, inverse, q);
  return better - better == 0 ? better : q;
}
template <class T> FN T op_fmod(T a, T b) { return a % b; }
FN float op_fmod(float a, float b) { return fmodf(a, b); }
FN double op_fmod(double a, double b) { return fmod(a, b); }
template <class T> FN T op_mod(T a, T b) { const T m = a % b; return m != 0 && (m < 0) != (b < 0) ? m + b : m; }
template <class T> FN T real_mod(T a, T b) { const T m = op_fmod(a, b); return m != 0 && (b < 0) != (m < 0) ? m + b : m; }
FN float op_mod(float a, float b) { return real_mod(a, b); }
FN double op_mod(double a, double b) { return real_mod(a, b); }
template <class T> FN T op_floor_div(T a, T b) { const T q = a / b; return q * b != a && (a < 0) != (b < 0) ? q - 1 : q; }
template <class T> FN T real_floor_div(T a, T b) {
  if (b == 0) return a / b;
  const T m = op_fmod(a, b);
  T q = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) q -= T(1);
  if (q == 0) return copysign(T(0), a / b);
  const T down = op_floor(q);
  return q - down > T(0.5) ? down + T(1) : down;
}
FN float op_floor_div(float a, float b) { return real_floor_div(a, b); }
FN double op_floor_div(double a, double b) { return real_floor_div(a, b); }
template <class T> FN T op_pow(T a, T n) {
  if (n < T(0)) return a == T(1) ? T(1) : a != static_cast<T>(-1) ? T(0) : n % 2 ? a : T(1);
  u64 p = 1, base = static_cast<u64>(a);
  for (u64 e = static_cast<u64>(n); e; e >>= 1, base *= base)
    if (e & 1) p *= base;
  return static_cast<T>(p);
}
FN bool op_pow(bool a, bool n) { return a || !n; }
FN float op_pow(float a, float b) { return powf(a, b); }
FN double op_pow(double a, double b) { return pow(a, b); }
#define REAL2(name, f, d) FN float name(float a, float b) { return f(a, b); } FN double name(double a, double b) { return d(a, b); }
REAL2(op_atan2, atan2f, atan2) REAL2(op_hypot, hypotf, hypot) REAL2(op_copysign, copysignf, copysign)
REAL2(op_nextafter, nextafterf, nextafter)
template <class T> FN T op_min(T a, T b) { return a != a || a < b ? a : b; }
template <class T> FN T op_max(T a, T b) { return a != a || a > b ? a : b; }
template <class T> FN T op_bit_and(T a, T b) { return a & b; }
template <class T> FN T op_bit_or(T a, T b) { return a | b; }
template <class T> FN T op_bit_xor(T a, T b) { return a ^ b; }
template <class T> FN bool too_far(T n) { return n < T(0) || static_cast<u64>(n) >= 8 * sizeof(T); }
template <class T> FN T op_shl(T a, T n) { return too_far(n) ? T(0) : static_cast<T>(static_cast<u64>(a) << static_cast<int>(n)); }
template <class T> FN T op_shr(T a, T n) { return static_cast<T>(static_cast<i64>(a) >> (too_far(n) ? 63 : static_cast<int>(n))); }
template <class T> FN bool op_eq(T a, T b) { return a == b; }
template <class T> FN bool op_ne(T a, T b) { return a != b; }
template <class T> FN bool op_lt(T a, T b) { return a < b; }
template <class T> FN bool op_le(T a, T b) { return a <= b; }
template <class T> FN bool op_gt(T a, T b) { return a > b; }
template <class T> FN bool op_ge(T a, T b) { return a >= b; }
FN float op_fma(float a, float b, float c) { return fmaf(a, b, c); }
FN double op_fma(double a, double b, double c) { return fma(a, b, c); }
template <class T> FN T op_where(bool c, T a, T b) { return c ? a : b; }
template <class T> FN T op_copy(T x) { return x; }

// ---- reductions ----
struct Add { template <class T> FN T of(T a, T b) { return op_add(a, b); } };
struct Mul { template <class T> FN T of(T a, T b) { return op_mul(a, b); } };
struct Min { template <class T> FN T of(T a, T b) { return op_min(a, b); } };
struct Max { template <class T> FN T of(T a, T b) { return op_max(a, b); } };
// A value and where it is; position -1 is nothing. Better is NaN, then the value, then the earlier of equals.
template <class T> struct Best { T value; i64 at; };
template <bool largest> struct Arg {
  template <class T> FN Best<T> of(Best<T> a, Best<T> b) {
    if (b.at < 0) return a;
    if (a.at < 0) return b;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool better = !a_nan && (b_nan || (largest ? b.value > a.value : b.value < a.value));
    const bool equal = a.value == b.value || (a_nan && b_nan);
    return better || (equal && b.at < a.at) ? b : a;
  }
};
template <class T> FN T from_lane(T x, int distance) {
  if (sizeof(T) == 8) {
    u64 bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = __shfl_xor_sync(0xffffffffu, bits, distance);
    memcpy(&x, &bits, sizeof x);
  } else {
    unsigned bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = __shfl_xor_sync(0xffffffffu, bits, distance);
    memcpy(&x, &bits, sizeof x);
  }
  return x;
}
template <class T> FN Best<T> from_lane(Best<T> x, int distance) { return {from_lane(x.value, distance), from_lane(x.at, distance)}; }
// Of the threads of a row, N in all, that are in one warp.
template <int N, class F, class T> FN T over_warp(T x) {
#pragma unroll
  for (int d = (N < 32 ? N : 32) / 2; d > 0; d /= 2) x = F::of(x, from_lane(x, d));
  return x;
}
// What each warp has of its row, in shared memory.
template <int N, class T> struct OfWarps { T part[N < 128 ? 128 / N : 1][N / 32]; };
template <int N, class T> FN void put(OfWarps<N, T>& to, T x) {
  if (threadIdx.x % 32 == 0) to.part[threadIdx.y][threadIdx.x / 32] = x;
}
template <class F, int N, class T> FN T over_warps(const OfWarps<N, T>& of) {
  T x = of.part[threadIdx.y][0];
  for (int w = 1; w < N / 32; ++w) x = F::of(x, of.part[threadIdx.y][w]);
  return x;
}
// What each of the N threads of 32 columns has of L results, in shared memory.
template <int N, int L, class T> struct OfColumns { T part[N][L][32]; };
template <int N, int L, class T> FN void put(OfColumns<N, L, T>& to, int l, T x) { to.part[threadIdx.y][l][threadIdx.x] = x; }
// Each result by a warp of its own, as far as there are so many; `first` is that of the first.
template <class F, int first, int N, int L, class T> FN void combine(OfColumns<N, L, T>& of) {
#pragma unroll
  for (int l = 0; l < L; ++l) {
    if (threadIdx.y != (first + l) % N) continue;
    T x = of.part[0][l][threadIdx.x];
#pragma unroll
    for (int n = 1; n < N; ++n) x = F::of(x, of.part[n][l][threadIdx.x]);
    of.part[0][l][threadIdx.x] = x;
  }
}
)";

}  // namespace broach::cuda
