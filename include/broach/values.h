// How the arguments and results of a compiled program become tensors, numbers and a description of the rest, and back.
//
// Arguments and results may be
//   at::Tensor                                        undefined ones too
//   bool, integers, float, double, enums, std::string, c10::Device
//                                                     constants: each value has a compiled version of its own
//   c10::SymInt, c10::SymFloat, at::Scalar            numbers that may change from call to call without a new version
//   std::optional, std::vector, std::array, std::pair, std::tuple, std::map and std::unordered_map with std::string keys,
//   c10::Dict of these
//   at::ArrayRef (at::TensorList, at::IntArrayRef) and std::string_view, alone or in an optional, a pair or a tuple; what a program gives as
//                                                     one comes as a std::vector or std::string
//   structs of up to 12 public members of these; for others say what they consist of:
//     struct Output { at::Tensor y; Cache cache; ... };
//     inline auto broach_fields(Output& o) { return std::tie(o.y, o.cache); }   // in the namespace of Output
// and a program may return nothing. Such structs must be default constructible.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymFloat.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10 {
template <class Key, class Value>
class Dict;
}

namespace broach {

using Tensors = std::vector<at::Tensor>;

namespace detail {

// What a call is given or gives.
struct Values {
  Tensors tensors;
  std::vector<c10::SymInt> ints;
  std::vector<c10::SymFloat> floats;
  std::string form;  // the rest: counts, what is absent, keys, constants
};

// Takes them apart again, from the front.
class Reader {
 public:
  explicit Reader(Values values) : values_(std::move(values)) {}
  at::Tensor tensor() { return std::move(values_.tensors.at(tensor_++)); }
  c10::SymInt integer() { return values_.ints.at(int_++); }
  c10::SymFloat number() { return values_.floats.at(float_++); }
  template <class T>
  T bytes() {
    T value;
    std::memcpy(&value, text(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view text(size_t size) {
    std::string_view all = std::string_view(values_.form).substr(byte_, size);
    byte_ += size;
    return all;
  }

 private:
  Values values_;
  size_t tensor_ = 0, int_ = 0, float_ = 0, byte_ = 0;
};

template <class T>
void put_bytes(Values& out, const T& value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.form.append(bytes, sizeof(T));
}

// ---- members of structs ----

// As many as can be initialised.
template <class T>
constexpr size_t count_members() {
#define BROACH_COUNT(n, ...)                            \
  if constexpr (requires { T{__VA_ARGS__}; }) return n; \
  else
  BROACH_COUNT(13, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  BROACH_COUNT(12, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  BROACH_COUNT(11, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  BROACH_COUNT(10, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  BROACH_COUNT(9, {}, {}, {}, {}, {}, {}, {}, {}, {})
  BROACH_COUNT(8, {}, {}, {}, {}, {}, {}, {}, {})
  BROACH_COUNT(7, {}, {}, {}, {}, {}, {}, {})
  BROACH_COUNT(6, {}, {}, {}, {}, {}, {})
  BROACH_COUNT(5, {}, {}, {}, {}, {})
  BROACH_COUNT(4, {}, {}, {}, {})
  BROACH_COUNT(3, {}, {}, {})
  BROACH_COUNT(2, {}, {})
  BROACH_COUNT(1, {})
  return 0;
#undef BROACH_COUNT
}

template <class T>
concept SaysFields = requires(T& t) { broach_fields(t); };
constexpr size_t kMostMembers = 12;
template <class T>
concept PlainStruct = std::is_class_v<T> && std::is_aggregate_v<T> && std::default_initializable<T> && !SaysFields<T>;

template <class T>
auto members_of(T& t) {
  constexpr size_t n = count_members<T>();
  static_assert(
      n <= kMostMembers,
      "broach::compile: a struct with more than 12 members; write `inline auto broach_fields(S& s) { return std::tie(s.a, s.b, ...); }` beside it");
#define BROACH_MEMBERS(count, ...) \
  else if constexpr (n == count) { \
    auto& [__VA_ARGS__] = t;       \
    return std::tie(__VA_ARGS__);  \
  }
  if constexpr (n == 0) return std::tuple<>();
  BROACH_MEMBERS(1, a)
  BROACH_MEMBERS(2, a, b)
  BROACH_MEMBERS(3, a, b, c)
  BROACH_MEMBERS(4, a, b, c, d)
  BROACH_MEMBERS(5, a, b, c, d, e)
  BROACH_MEMBERS(6, a, b, c, d, e, f)
  BROACH_MEMBERS(7, a, b, c, d, e, f, g)
  BROACH_MEMBERS(8, a, b, c, d, e, f, g, h)
  BROACH_MEMBERS(9, a, b, c, d, e, f, g, h, i)
  BROACH_MEMBERS(10, a, b, c, d, e, f, g, h, i, j)
  BROACH_MEMBERS(11, a, b, c, d, e, f, g, h, i, j, k)
  BROACH_MEMBERS(12, a, b, c, d, e, f, g, h, i, j, k, l)
#undef BROACH_MEMBERS
}

// ---- layouts ----

template <class T>
struct Layout;

// What lies within another value is made again as it is: a view would show what is gone.
template <class T>
struct Owned : Layout<T> {
  static_assert(
      std::is_same_v<typename Layout<T>::Held, T>,
      "broach::compile: an ArrayRef or string_view within a vector, array, map or struct: take a std::vector or std::string there");
};

// `put` appends a value, `take` makes it again; `Held` is what keeps it alive meanwhile.
template <class T>
struct Layout {
  static_assert(
      SaysFields<T> || PlainStruct<T>,
      "broach::compile: arguments and results may be tensors, numbers, strings, optionals, vectors, arrays, pairs, tuples, maps with string keys and structs of these; see broach/values.h");
  using Held = T;
  static auto members(T& t) {
    if constexpr (SaysFields<T>) return broach_fields(t);
    else return members_of(t);
  }
  static void put(Values& out, const T& value) {
    std::apply([&](auto&... m) { (Layout<std::remove_cvref_t<decltype(m)>>::put(out, m), ...); },
               members(const_cast<T&>(value)));  // which are only read
  }
  static T take(Reader& from) {
    T value{};
    std::apply([&](auto&... m) { ((m = Owned<std::remove_cvref_t<decltype(m)>>::take(from)), ...); }, members(value));
    return value;
  }
};

template <>
struct Layout<at::Tensor> {
  using Held = at::Tensor;
  static void put(Values& out, const at::Tensor& t) { out.tensors.push_back(t); }
  static at::Tensor take(Reader& from) { return from.tensor(); }
};
template <class T>
concept Constant = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <Constant T>
struct Layout<T> {
  using Held = T;
  static void put(Values& out, const T& value) { put_bytes(out, value); }
  static T take(Reader& from) { return from.bytes<T>(); }
};
template <>
struct Layout<c10::Device> {
  using Held = c10::Device;
  static void put(Values& out, const c10::Device& d) { put_bytes(out, d.type()), put_bytes(out, d.index()); }
  static c10::Device take(Reader& from) {
    auto type = from.bytes<c10::DeviceType>();
    return {type, from.bytes<c10::DeviceIndex>()};
  }
};
template <>
struct Layout<c10::SymInt> {
  using Held = c10::SymInt;
  static void put(Values& out, const c10::SymInt& n) { out.ints.push_back(n); }
  static c10::SymInt take(Reader& from) { return from.integer(); }
};
template <>
struct Layout<c10::SymFloat> {
  using Held = c10::SymFloat;
  static void put(Values& out, const c10::SymFloat& n) { out.floats.push_back(n); }
  static c10::SymFloat take(Reader& from) { return from.number(); }
};
template <>
struct Layout<c10::Scalar> {
  using Held = c10::Scalar;
  static void put(Values& out, const c10::Scalar& s) {
    put_bytes(out, s.type());
    if (s.isIntegral(false)) out.ints.push_back(s.toSymInt());
    else if (s.isFloatingPoint()) out.floats.push_back(s.toSymFloat());
    else if (s.isBoolean()) put_bytes(out, s.toBool());
    else put_bytes(out, s.toComplexDouble().real()), put_bytes(out, s.toComplexDouble().imag());
  }
  static c10::Scalar take(Reader& from) {
    auto type = from.bytes<c10::ScalarType>();
    if (c10::isIntegralType(type, false)) return from.integer();
    if (c10::isFloatingType(type)) return from.number();
    if (type == c10::kBool) return from.bytes<bool>();
    double real = from.bytes<double>();
    return c10::complex<double>(real, from.bytes<double>());
  }
};
template <>
struct Layout<std::string> {
  using Held = std::string;
  static void put(Values& out, const std::string& s) {
    put_bytes(out, s.size());
    out.form += s;
  }
  static std::string take(Reader& from) { return std::string(from.text(from.bytes<size_t>())); }
};
template <>
struct Layout<std::string_view> : Layout<std::string> {
  static void put(Values& out, std::string_view s) { Layout<std::string>::put(out, std::string(s)); }
};

template <class T>
struct Layout<std::optional<T>> {
  using Held = std::optional<typename Layout<T>::Held>;
  template <class Optional>
  static void put(Values& out, const Optional& value) {
    put_bytes(out, value.has_value());
    if (value) Layout<T>::put(out, *value);
  }
  static Held take(Reader& from) { return from.bytes<bool>() ? Held(Layout<T>::take(from)) : Held(); }
};

template <class T>
struct Layout<std::vector<T>> {
  using Held = std::vector<T>;
  template <class List>
  static void put(Values& out, const List& list) {
    put_bytes(out, list.size());
    for (const auto& x : list) Layout<T>::put(out, x);
  }
  static Held take(Reader& from) {
    Held list;
    for (size_t n = from.bytes<size_t>(); n > 0; --n) list.push_back(Owned<T>::take(from));
    return list;
  }
};
template <class T>
struct Layout<c10::ArrayRef<T>> : Layout<std::vector<T>> {};

// Braces evaluate from left to right.
template <class T, size_t N>
struct Layout<std::array<T, N>> {
  using Held = std::array<T, N>;
  static void put(Values& out, const Held& a) {
    for (const T& x : a) Layout<T>::put(out, x);
  }
  static Held take(Reader& from) {
    return [&]<size_t... I>(std::index_sequence<I...>) { return Held{((void)I, Owned<T>::take(from))...}; }(std::make_index_sequence<N>());
  }
};
template <class... T>
struct Layout<std::tuple<T...>> {
  using Held = std::tuple<typename Layout<std::remove_cvref_t<T>>::Held...>;
  template <class Tuple>
  static void put(Values& out, const Tuple& value) {
    std::apply([&](const auto&... x) { (Layout<std::remove_cvref_t<decltype(x)>>::put(out, x), ...); }, value);
  }
  static Held take(Reader& from) { return Held{Layout<std::remove_cvref_t<T>>::take(from)...}; }
};
template <class A, class B>
struct Layout<std::pair<A, B>> {
  using Held = std::pair<typename Layout<A>::Held, typename Layout<B>::Held>;
  template <class Pair>
  static void put(Values& out, const Pair& value) {
    Layout<A>::put(out, value.first), Layout<B>::put(out, value.second);
  }
  static Held take(Reader& from) { return Held{Layout<A>::take(from), Layout<B>::take(from)}; }
};

template <class Map>
struct MapLayout {
  using Held = Map;
  using Value = typename Map::mapped_type;
  static void put(Values& out, const Map& map) {
    put_bytes(out, map.size());
    for (const auto& [key, value] : map) Layout<std::string>::put(out, key), Layout<Value>::put(out, value);
  }
  static Map take(Reader& from) {
    Map map;
    for (size_t n = from.bytes<size_t>(); n > 0; --n) {
      std::string key = Layout<std::string>::take(from);
      map.emplace(std::move(key), Owned<Value>::take(from));
    }
    return map;
  }
};
template <class T, class... Rest>
struct Layout<std::map<std::string, T, Rest...>> : MapLayout<std::map<std::string, T, Rest...>> {};
template <class T, class... Rest>
struct Layout<std::unordered_map<std::string, T, Rest...>> : MapLayout<std::unordered_map<std::string, T, Rest...>> {
  // In the order of the keys: that of the buckets depends on how the map came to be, and would be a version of its own.
  template <class Map>
  static void put(Values& out, const Map& map) {
    std::vector<const typename Map::value_type*> entries;
    for (const auto& entry : map) entries.push_back(&entry);
    std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    put_bytes(out, map.size());
    for (const auto* entry : entries) Layout<std::string>::put(out, entry->first), Layout<T>::put(out, entry->second);
  }
};
template <class Key, class T>
struct Layout<c10::Dict<Key, T>> {
  using Held = c10::Dict<Key, T>;
  static void put(Values& out, const Held& dict) {
    put_bytes(out, dict.size());
    for (const auto& entry : dict) Layout<Key>::put(out, entry.key()), Layout<T>::put(out, entry.value());
  }
  static Held take(Reader& from) {
    Held dict;
    for (size_t n = from.bytes<size_t>(); n > 0; --n) {
      Key key = Owned<Key>::take(from);
      dict.insert(std::move(key), Owned<T>::take(from));
    }
    return dict;
  }
};

template <class T>
using Held = typename Layout<std::remove_cvref_t<T>>::Held;

// What a compiled program gives for a result of this type.
template <class R>
struct GivenFor {
  using type = Held<R>;
};
template <>
struct GivenFor<void> {
  using type = void;
};
template <class R>
using Given = typename GivenFor<R>::type;

// Literals come as arrays of characters.
template <class T>
struct Argument {
  using type = std::remove_cvref_t<T>;
};
template <size_t N>
struct Argument<char[N]> {
  using type = std::string;
};
template <>
struct Argument<const char*> {
  using type = std::string;
};

template <class F>
Values values_of_call(F&& call) {
  Values out;
  if constexpr (std::is_void_v<decltype(call())>) call();
  else {
    auto&& result = call();
    Layout<std::remove_cvref_t<decltype(result)>>::put(out, result);
  }
  return out;
}

template <class R>
R result_from(Values values) {
  Reader from(std::move(values));
  if constexpr (!std::is_void_v<R>) return Layout<R>::take(from);
}

}  // namespace detail

}  // namespace broach
