#include "ir/type.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "ir/element.h"
#include "support/error.h"

namespace broach {

void unknown_type(int number) { fail("element type ", number, " is not known"); }

DType parse_dtype(std::string_view name) {
  for (const TypeRow& r : kTypes)
    if (r.name == name) return r.dtype;
  fail("unknown element type \"", name, "\"");
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  const TypeRow &x = row(a), &y = row(b);
  if (x.category != y.category) {
    DType wide = x.category > y.category ? a : b, narrow = x.category > y.category ? b : a;
    if (is_complex(wide) && narrow == DType::f64) return DType::c128;
    if (wide == DType::c32 && (narrow == DType::f32 || narrow == DType::bf16)) return DType::c64;
    return wide;
  }
  if (is_floating(a) && x.bytes == y.bytes) return DType::f32;  // f16 with bf16
  if (is_integral(a) && (a == DType::u8 || b == DType::u8)) {
    DType other = a == DType::u8 ? b : a;
    return other == DType::i8 ? DType::i16 : other;
  }
  return x.bytes > y.bytes ? a : b;
}

bool holds_all(DType wide, DType narrow) {
  const TypeRow &w = row(wide), &n = row(narrow);
  if (is_floating(wide) != is_floating(narrow)) return false;
  if (is_floating(wide)) return w.exponent_bits >= n.exponent_bits && w.digits >= n.digits && w.has_infinity >= n.has_infinity;
  return is_integral(wide) && is_integral(narrow) && w.digits >= n.digits && is_unsigned(narrow) >= is_unsigned(wide);
}

double largest(DType t) {
  const TypeRow& r = row(t);
  const int exponents = 1 << (r.exponent_bits - 1), highest = r.has_infinity ? exponents - 1 : exponents;
  return std::ldexp(2 - std::ldexp(r.has_infinity ? 1 : 2, -r.digits), highest);
}

double rounded(double x, DType t) {
  return with_element(t, [x](auto element) -> double {
    using E = decltype(element);
    using C = typename E::Computed;
    if constexpr (std::is_floating_point_v<C>) return E::widen(E::narrow(static_cast<C>(x)));
    else return x;
  });
}

namespace {

constexpr std::pair<DeviceKind, const char*> kDeviceKinds[] = {
    {DeviceKind::cpu, "cpu"},
    {DeviceKind::cuda, "cuda"},
    {DeviceKind::xpu, "xpu"},
    {DeviceKind::meta, "meta"},
    {DeviceKind::privateuse1, "privateuse1"},
    {DeviceKind::other, "other"},
};

}  // namespace

const char* name_of(DeviceKind kind) {
  for (auto [known, name] : kDeviceKinds)
    if (known == kind) return name;
  fail("device kind ", static_cast<int>(kind), " is not known");
}

std::string Device::str() const {
  const char* name = name_of(kind);
  return index < 0 ? name : cat(name, ":", int{index});
}

DeviceKind parse_device_kind(std::string_view name) {
  for (auto [kind, known] : kDeviceKinds)
    if (known == name) return kind;
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

namespace {

// What digits without a sign hold.
int64_t greatest(DType t) { return static_cast<int64_t>((uint64_t{1} << row(t).digits) - 1); }

}  // namespace

Scalar lowest(DType t) {
  if (t == DType::b1) return false;
  if (!is_integral(t)) return -std::numeric_limits<double>::infinity();
  return is_unsigned(t) ? int64_t{0} : -greatest(t) - 1;
}

Scalar highest(DType t) {
  if (t == DType::b1) return true;
  return is_integral(t) ? Scalar(greatest(t)) : std::numeric_limits<double>::infinity();
}

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
