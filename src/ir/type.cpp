#include "ir/type.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>

#include "support/error.h"

namespace broach {

namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t bytes;
  int category;  // 0 bool, 1 integer, 2 floating, 3 complex
};

constexpr DTypeRow kDTypes[] = {
    {DType::u8, "u8", 1, 1},     {DType::i8, "i8", 1, 1},         {DType::i16, "i16", 2, 1},    {DType::i32, "i32", 4, 1},
    {DType::i64, "i64", 8, 1},   {DType::f16, "f16", 2, 2},       {DType::f32, "f32", 4, 2},    {DType::f64, "f64", 8, 2},
    {DType::c32, "c32", 4, 3},   {DType::c64, "c64", 8, 3},       {DType::c128, "c128", 16, 3}, {DType::b1, "b1", 1, 0},
    {DType::bf16, "bf16", 2, 2}, {DType::opaque, "opaque", 1, 4},
};

const DTypeRow& row(DType t) {
  for (const auto& r : kDTypes)
    if (r.dtype == t) return r;
  fail("element type ", static_cast<int>(t), " is not known");
}

}  // namespace

bool is_floating(DType t) { return row(t).category == 2; }
bool is_complex(DType t) { return row(t).category == 3; }
bool is_integral(DType t, bool include_bool) { return row(t).category == 1 || (include_bool && t == DType::b1); }
bool is_low_precision(DType t) { return t == DType::f16 || t == DType::bf16; }
int64_t size_of(DType t) { return row(t).bytes; }
const char* name_of(DType t) { return row(t).name; }

DType parse_dtype(std::string_view name) {
  for (const auto& r : kDTypes)
    if (r.name == name) return r.dtype;
  fail("unknown element type \"", name, "\"");
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  const DTypeRow &x = row(a), &y = row(b);
  if (x.category != y.category) {
    DType wide = x.category > y.category ? a : b, narrow = x.category > y.category ? b : a;
    if (is_complex(wide) && narrow == DType::f64) return DType::c128;
    if (wide == DType::c32 && (narrow == DType::f32 || narrow == DType::bf16)) return DType::c64;
    return wide;
  }
  if (x.category == 2 && x.bytes == 2 && y.bytes == 2) return DType::f32;  // f16 with bf16
  if (x.category == 1 && (a == DType::u8 || b == DType::u8)) {
    DType other = a == DType::u8 ? b : a;
    return other == DType::i8 ? DType::i16 : other;
  }
  return x.bytes > y.bytes ? a : b;
}

namespace {

constexpr const char* kDeviceKinds[] = {"cpu", "cuda", "meta", "other"};

}  // namespace

std::string Device::str() const {
  const char* name = kDeviceKinds[static_cast<size_t>(kind)];
  return index < 0 ? name : cat(name, ":", int{index});
}

DeviceKind parse_device_kind(std::string_view name) {
  for (size_t i = 0; i < std::size(kDeviceKinds); ++i)
    if (kDeviceKinds[i] == name) return static_cast<DeviceKind>(i);
  fail("unknown device \"", name, "\"");
}

std::string Type::str() const {
  std::string out = cat(name_of(dtype), "[");
  for (size_t i = 0; i < shape.size(); ++i) out += cat(i ? ", " : "", shape[i]);
  out += "]";
  if (device != Device{}) out += "@" + device.str();
  return out;
}

namespace {

std::string text_of(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char digits[32];
  std::string s(digits, std::to_chars(digits, std::end(digits), d).ptr);  // the shortest text that reads back as d
  return s.find_first_of(".e") == std::string::npos ? s + ".0" : s;
}

}  // namespace

std::string str(const Scalar& s) {
  if (auto i = std::get_if<int64_t>(&s)) return std::to_string(*i);
  if (auto d = std::get_if<double>(&s)) return text_of(*d);
  if (auto b = std::get_if<bool>(&s)) return *b ? "true" : "false";
  auto c = std::get<std::complex<double>>(s);
  return cat("(", text_of(c.real()), ", ", text_of(c.imag()), ")");
}

double as_double(const Scalar& s) {
  if (auto i = std::get_if<int64_t>(&s)) return static_cast<double>(*i);
  if (auto d = std::get_if<double>(&s)) return *d;
  if (auto b = std::get_if<bool>(&s)) return *b;
  return std::get<std::complex<double>>(s).real();
}

int64_t as_int(const Scalar& s) {
  if (auto i = std::get_if<int64_t>(&s)) return *i;
  if (auto b = std::get_if<bool>(&s)) return *b;
  double d = as_double(s);
  if (!(d >= -9.2233720368547758e18 && d < 9.2233720368547758e18)) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(d);
}

bool is_complex(const Scalar& s) { return std::holds_alternative<std::complex<double>>(s); }

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size());
  SymInt step(1);
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    // A dimension of size 0 counts as 1, as in PyTorch.
    step = step * (shape[i] == SymInt(0) ? SymInt(1) : shape[i]);
  }
  return strides;
}

}  // namespace broach
