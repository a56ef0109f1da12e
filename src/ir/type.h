// Element types, devices and tensor types.
#pragma once

#include <array>
#include <complex>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/symint.h"

namespace broach {

enum class DType : int8_t {
#define TYPE(name, number, ...) name = number,
#include "ir/types.def"
#undef TYPE
  opaque = 127,  // an element type that only externs understand (quantised, 4-bit, ...)
};

// In the order of promotion.
enum class TypeCategory : uint8_t { boolean, integer, stored_float, floating, complex, opaque };

// One row of types.def.
struct TypeRow {
  DType dtype;
  const char* name;
  TypeCategory category;
  int64_t bytes;
  int exponent_bits, digits;
  bool has_infinity;
  DType computed;
};
inline constexpr TypeRow kTypes[] = {
#define TYPE(name, number, category, bytes, exponent, digits, infinity, computed) \
  {DType::name, #name, TypeCategory::category, bytes, exponent, digits, infinity, DType::computed},
#include "ir/types.def"
#undef TYPE
    {DType::opaque, "opaque", TypeCategory::opaque, 1, 0, 0, false, DType::opaque},
};
// By number; those without a row are -1.
inline constexpr auto kRowOf = [] {
  std::array<int8_t, 128> rows;
  rows.fill(-1);
  for (size_t i = 0; i < std::size(kTypes); ++i) rows[static_cast<size_t>(kTypes[i].dtype)] = static_cast<int8_t>(i);
  return rows;
}();
[[noreturn]] void unknown_type(int number);
constexpr const TypeRow& row(DType t) {
  const auto number = static_cast<size_t>(t);
  if (number >= kRowOf.size() || kRowOf[number] < 0) unknown_type(static_cast<int>(t));
  return kTypes[kRowOf[number]];
}
// Opaque where the graph has no such type.
constexpr DType dtype_of_number(int8_t number) {
  return number >= 0 && kRowOf[static_cast<size_t>(number)] >= 0 ? static_cast<DType>(number) : DType::opaque;
}

constexpr bool is_stored_only(DType t) { return row(t).category == TypeCategory::stored_float; }
constexpr bool is_floating(DType t) { return row(t).category == TypeCategory::floating || is_stored_only(t); }
constexpr bool is_complex(DType t) { return row(t).category == TypeCategory::complex; }
constexpr bool is_integral(DType t, bool include_bool = false) {
  return row(t).category == TypeCategory::integer || (include_bool && t == DType::b1);
}
constexpr bool is_unsigned(DType t) { return (t == DType::b1 || is_integral(t)) && row(t).digits % 8 != 7; }
constexpr bool is_low_precision(DType t) { return is_floating(t) && row(t).computed != t; }  // f16, bf16 and smaller: computed in f32
constexpr int64_t size_of(DType t) { return row(t).bytes; }
constexpr const char* name_of(DType t) { return row(t).name; }
constexpr DType compute_dtype(DType t) { return is_floating(t) ? row(t).computed : t; }  // in which arithmetic on `t` is done
DType parse_dtype(std::string_view name);
// PyTorch's promotion of two element types of the same category class (both tensors with dimensions).
DType promote(DType a, DType b);
// Whether each number of one floating or integer type is one of the other.
bool holds_all(DType wide, DType narrow);
double largest(DType t);            // finite number of a floating type
double rounded(double x, DType t);  // as a floating type holds it: half to even, by way of f32 to what is computed there

// The numbers are those of c10::DeviceType, likewise.
enum class DeviceKind : int8_t { cpu = 0, cuda = 1, xpu = 12, meta = 14, privateuse1 = 20, other = 127 };
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int8_t index = -1;
  friend bool operator==(const Device&, const Device&) = default;
  std::string str() const;  // cpu, cuda:0
};
const char* name_of(DeviceKind kind);
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

Scalar lowest(DType t);   // -inf, or the least value of an integer type
Scalar highest(DType t);  // inf, or the greatest

Shape contiguous_strides(const Shape& shape);
// The sizes where symbol i is symbols[i].
template <class List>
List evaluated(const Shape& shape, std::span<const int64_t> symbols) {
  List out;
  for (const SymInt& s : shape) out.push_back(s.eval(symbols));
  return out;
}

}  // namespace broach
