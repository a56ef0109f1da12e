// Element types, devices and tensor types.
#pragma once

#include <complex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/symint.h"

namespace broach {

// The numbers are those of c10::ScalarType, so that the libtorch side converts by a cast.
enum class DType : int8_t {
  u8 = 0,
  i8 = 1,
  i16 = 2,
  i32 = 3,
  i64 = 4,
  f16 = 5,
  f32 = 6,
  f64 = 7,
  c32 = 8,
  c64 = 9,
  c128 = 10,
  b1 = 11,
  bf16 = 15,
  opaque = 127,  // an element type that only externs understand (quantised, float8, ...)
};

bool is_floating(DType t);
bool is_complex(DType t);
bool is_integral(DType t, bool include_bool = false);
bool is_low_precision(DType t);  // f16 and bf16: computed in f32
int64_t size_of(DType t);        // bytes
const char* name_of(DType t);
DType parse_dtype(std::string_view name);
// PyTorch's promotion of two element types of the same category class (both tensors with dimensions).
DType promote(DType a, DType b);

enum class DeviceKind : int8_t { cpu = 0, cuda = 1, meta = 2, other = 3 };
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int8_t index = -1;
  friend bool operator==(const Device&, const Device&) = default;
  std::string str() const;  // cpu, cuda:0
};
DeviceKind parse_device_kind(std::string_view name);

using Shape = std::vector<SymInt>;

struct Type {
  DType dtype = DType::f32;
  Shape shape;
  Device device;

  int rank() const { return static_cast<int>(shape.size()); }
  SymInt numel() const { return product(shape); }
  std::string str() const;  // f32[2, s0], f32[2, s0]@cuda:0
  friend bool operator==(const Type&, const Type&) = default;
};

// A number as a program wrote it: its category decides type promotion.
using Scalar = std::variant<int64_t, double, bool, std::complex<double>>;
std::string str(const Scalar& s);
double as_double(const Scalar& s);
int64_t as_int(const Scalar& s);
bool is_complex(const Scalar& s);

Shape contiguous_strides(const Shape& shape);

}  // namespace broach
