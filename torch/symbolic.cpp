#include "symbolic.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/SymNodeImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "capture.h"
#include "ir/whole_part.h"
#include "support/error.h"

namespace broach {

namespace {

using c10::SymNode;
using NodeList = c10::ArrayRef<SymNode>;

// Python's remainder of floating point numbers: exact, with the sign of the divisor.
double modulo(double a, double b) {
  if (b == 0) fail("the program divides a number by zero");
  double r = std::fmod(a, b);
  if (r == 0) return std::copysign(0.0, b);
  return (b < 0) == (r < 0) ? r : r + b;
}

// As Python's // does it: from what is left over, so that an infinite divisor gives -1 or 0.
double floor_quotient(double a, double b) {
  const double left = modulo(a, b), rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && left != rest) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

// What a stand-in has no answer to is no error of the program's: the capture is over even where the program catches it.
template <class F>
auto answered(const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    if (Capture* c = Capture::current()) c->abandon({Outcome::unsupported, e.what()});
    throw;
  }
}

// A comparison of sizes, or several joined; asked once the program decides by it.
using Condition = std::function<bool()>;

class SizeNode : public c10::SymNodeImpl {
 public:
  using Held = std::shared_ptr<Symbols>;
  SizeNode(Held symbols, SymInt value) : symbols_(std::move(symbols)), value_(std::move(value)) {}
  SizeNode(Held symbols, Condition condition) : symbols_(std::move(symbols)), condition_(std::move(condition)) {}
  static SymNode of_float(Held symbols, HostFloats::Id number) {
    auto n = c10::make_intrusive<SizeNode>(std::move(symbols), SymInt(0));
    n->is_int_ = false;
    n->number_ = number;
    return n;
  }

  const SymInt& value() const {
    if (!is_int_) fail("a symbolic integer was expected");
    return value_;
  }

  bool is_int() override { return is_int_; }
  bool is_bool() override { return static_cast<bool>(condition_); }
  bool is_float() override { return number_ >= 0; }
  HostFloats::Id number() const { return number_; }
  double recorded_value() const { return floats().hint(as_number()); }
  SymNode apply(size_t function) const {
    auto result = answered([&] { return floats().apply(function, as_number()); });
    return result ? number(*result) : SymNode();
  }
  // Without its fraction, as an expression of sizes, which a guard keeps within bounds. Null where it is none.
  SymNode whole_part(bool up) const {
    const HostFloats::Id id = as_number();
    const auto part = broach::whole_part(floats(), id, up);
    auto is_exact = [&](const SymInt& e) {
      return symbols_->ask(e, Relation::lt, kMostOfSize) && symbols_->ask(-kMostOfSize, Relation::lt, e);
    };
    return part && std::ranges::all_of(floats().sizes_behind(id), is_exact) ? integer(*part) : SymNode();
  }
  bool has_hint() override { return true; }
  std::string str() override { return is_int() ? value_.str() : is_float() ? floats().text(number_) : "condition"; }
  SymNode clone() override { return c10::make_intrusive<SizeNode>(*this); }
  SymNode wrap_int(int64_t n) override { return integer(n); }
  SymNode wrap_bool(bool b) override {
    return condition([b] { return b; });
  }
  SymNode wrap_float(double d) override { return number(floats().constant(d)); }
  std::optional<int64_t> constant_int() override { return is_int() ? value_.maybe_constant() : std::nullopt; }
  bool is_constant() override { return constant_int().has_value(); }
  std::optional<int64_t> maybe_as_int() override { return constant_int(); }
  bool is_symbolic() override { return true; }

  SymNode add(const SymNode& o) override {
    return arithmetic(o, Float::add, [](auto a, auto b) { return a + b; });
  }
  SymNode sub(const SymNode& o) override {
    return arithmetic(o, Float::sub, [](auto a, auto b) { return a - b; });
  }
  SymNode mul(const SymNode& o) override {
    return arithmetic(o, Float::mul, [](auto a, auto b) { return a * b; });
  }
  SymNode floordiv(const SymNode& o) override {
    if (is_float() || o->is_float()) {
      double a = fixed_number(), b = fixed_number(o);
      return answered([&] { return number(floats().constant(floor_quotient(a, b))); });
    }
    return answered([&] {
      const auto [sign, by] = divisor(o);
      return integer(broach::floordiv(value() * sign, by));
    });
  }
  SymNode mod(const SymNode& o) override {
    if (is_float() || o->is_float()) {
      double a = fixed_number(), b = fixed_number(o);
      return answered([&] { return number(floats().constant(modulo(a, b))); });
    }
    return answered([&] {
      const auto [sign, by] = divisor(o);
      return integer(broach::mod(value() * sign, by) * sign);
    });
  }
  SymNode truediv(const SymNode& o) override { return computed(Float::div, o); }
  SymNode pow(const SymNode& o) override {
    if (is_float() || o->is_float()) return computed(Float::pow, o);
    int64_t exponent = symbols_->specialize(value_of(o));
    if (exponent < 0) return computed(Float::pow, o);
    return answered([&] {
      SymInt p(1);
      for (int64_t i = 0; i < exponent; ++i) p = p * value();
      return integer(p);
    });
  }
  SymNode neg() override {
    return is_float() ? number(floats().compute(Float::neg, number_)) : answered([&] { return integer(SymInt(0) - value()); });
  }
  SymNode floor() override { return is_float() ? whole(false) : clone(); }
  SymNode ceil() override { return is_float() ? whole(true) : clone(); }
  SymNode sym_float() override { return number(as_number()); }
  SymNode sym_min(const SymNode& o) override { return extreme(o, false); }
  SymNode sym_max(const SymNode& o) override { return extreme(o, true); }

  SymNode eq(const SymNode& o) override { return compare(o, Relation::eq); }
  SymNode ne(const SymNode& o) override { return compare(o, Relation::ne); }
  SymNode lt(const SymNode& o) override { return compare(o, Relation::lt); }
  SymNode le(const SymNode& o) override { return compare(o, Relation::le); }
  SymNode gt(const SymNode& o) override { return o->lt(held()); }
  SymNode ge(const SymNode& o) override { return o->le(held()); }
  SymNode sym_or(const SymNode& o) override {
    return condition([a = held(), o] { return a->bool_() || o->bool_(); });
  }
  SymNode sym_and(const SymNode& o) override {
    return condition([a = held(), o] { return a->bool_() && o->bool_(); });
  }
  SymNode sym_not() override {
    return condition([a = held()] { return !a->bool_(); });
  }
  SymNode sym_ite(const SymNode& yes, const SymNode& no) override { return bool_() ? yes : no; }

  SymNode is_contiguous(NodeList sizes, NodeList strides) override {
    std::vector<size_t> order(sizes.size());
    std::iota(order.rbegin(), order.rend(), size_t{0});
    return dense(sizes, strides, order);
  }
  SymNode is_channels_last_contiguous_2d(NodeList sizes, NodeList strides) override { return channels_last(sizes, strides, {1, 3, 2, 0}); }
  SymNode is_channels_last_contiguous_3d(NodeList sizes, NodeList strides) override {
    return channels_last(sizes, strides, {1, 4, 3, 2, 0});
  }
  SymNode is_channels_last_strides_2d(NodeList sizes, NodeList strides) override { return channels_last(sizes, strides, {1, 3, 2, 0}); }
  SymNode is_channels_last_strides_3d(NodeList sizes, NodeList strides) override { return channels_last(sizes, strides, {1, 4, 3, 2, 0}); }
  SymNode is_non_overlapping_and_dense(NodeList sizes, NodeList strides) override {
    std::vector<size_t> order(sizes.size());
    std::iota(order.rbegin(), order.rend(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return hint(strides[a]) < hint(strides[b]); });
    return dense(sizes, strides, order);
  }

  int64_t guard_int(const char* file, int64_t) override {
    if (is_float()) return static_cast<int64_t>(fixed_number());
    if (Capture* c = Capture::current()) c->note_plain_read(value());
    const int64_t n = symbols_->specialize(value());
    // torch.tensor() cuts what is no plain number of Python's to 32 bits.
    if (n != static_cast<int32_t>(n) && std::string_view(file).ends_with("tensor_new.cpp"))
      answered([&]() -> int64_t { unsupported("the number ", n, " of a new tensor stands for others"); });
    return n;
  }
  bool guard_bool(const char*, int64_t) override {
    return is_int() ? !symbols_->equal(value_, 0) : is_float() ? floats().ask(number_, Relation::ne, floats().constant(0)) : condition_();
  }
  double guard_float(const char*, int64_t) override { return fixed_number(); }
  int64_t int_() override { return guard_int("", 0); }
  bool bool_() override { return guard_bool("", 0); }
  // Whether it holds for all sizes is not asked for here: the recorded call's answer, kept true by a guard, is what eager does.
  bool statically_known_true(const char*, int64_t) override { return bool_(); }

 private:
  SymNode held() { return SymNode::reclaim_copy(this); }
  SymNode integer(SymInt v) const { return c10::make_intrusive<SizeNode>(symbols_, std::move(v)); }
  SymNode condition(Condition c) const { return c10::make_intrusive<SizeNode>(symbols_, std::move(c)); }
  using Float = HostFloats::Op;
  HostFloats& floats() const { return symbols_->floats; }
  SymNode number(HostFloats::Id id) const { return of_float(symbols_, id); }

  static SymInt value_of(const SymNode& n) {
    if (auto mine = dynamic_cast<SizeNode*>(n.get())) return mine->value();
    if (auto c = n->maybe_as_int()) return *c;
    fail("a symbolic integer of another kind meets one of Broach");
  }
  HostFloats::Id as_number() const {
    return is_int_ ? floats().size(value(), symbols_->hint(value()), symbols_->is_late(value())) : number_;
  }
  HostFloats::Id number_of(const SymNode& n) const {
    if (auto mine = dynamic_cast<SizeNode*>(n.get())) return mine->as_number();
    return floats().constant(n->is_float() ? n->guard_float("", 0) : static_cast<double>(value_of(n).constant()));
  }
  SymNode whole(bool up) const {
    if (SymNode part = whole_part(up)) return part;
    return integer(static_cast<int64_t>(up ? std::ceil(fixed_number()) : std::floor(fixed_number())));
  }
  // As a constant, which fixes the sizes and numbers it is computed from.
  double fixed_number(HostFloats::Id id) const {
    for (const SymInt& e : floats().sizes_behind(id)) symbols_->specialize(e);
    return answered([&] { return floats().fix(id); });
  }
  double fixed_number() const { return fixed_number(as_number()); }
  double fixed_number(const SymNode& n) const { return fixed_number(number_of(n)); }
  int64_t hint(const SymNode& n) const { return symbols_->hint(value_of(n)); }

  // Division is defined for positive divisors: a // -b is -a // b, and a % -b is -(-a % b). The sign, and the divisor without it.
  std::pair<int64_t, SymInt> divisor(const SymNode& n) const {
    SymInt v = value_of(n);
    if (!v.is_constant() && !symbols_->ask(0, Relation::lt, v) && !symbols_->ask(v, Relation::lt, 0)) v = symbols_->specialize(v);
    const bool is_negative = v.is_constant() ? v.constant() < 0 : !symbols_->ask(0, Relation::lt, v);
    return is_negative ? std::pair<int64_t, SymInt>{-1, v * SymInt(-1)} : std::pair<int64_t, SymInt>{1, v};
  }

  template <class F>
  SymNode arithmetic(const SymNode& o, Float op, const F& f) {
    if (is_float() || o->is_float()) return computed(op, o);
    return answered([&] { return integer(f(value(), value_of(o))); });
  }
  SymNode computed(Float op, const SymNode& o) const {
    return answered([&] { return number(floats().compute(op, as_number(), number_of(o))); });
  }
  SymNode extreme(const SymNode& o, bool greater) {
    if (is_float() || o->is_float()) return computed(greater ? Float::max : Float::min, o);
    return integer(greater ? broach::max(value(), value_of(o)) : broach::min(value(), value_of(o)));
  }
  SymNode compare(const SymNode& o, Relation r) {
    if (is_bool()) return condition([a = held(), o, r] { return (a->bool_() == o->bool_()) == (r == Relation::eq); });
    if (is_float() || o->is_float())
      return condition([s = symbols_, a = as_number(), b = number_of(o), r] { return s->floats.ask(a, r, b); });
    return condition([s = symbols_, a = value(), b = value_of(o), r] { return s->ask(a, r, b); });
  }

  // Whether the dimensions, from the innermost outwards, lie without gaps. Size 1 has any stride.
  SymNode dense(NodeList sizes, NodeList strides, const std::vector<size_t>& order) const {
    std::vector<std::pair<SymInt, SymInt>> dims;
    for (size_t d : order) dims.emplace_back(value_of(sizes[d]), value_of(strides[d]));
    return condition([s = symbols_, dims] {
      SymInt expected(1);
      for (const auto& [size, stride] : dims) {
        if (s->equal(size, 1)) continue;
        if (s->equal(size, 0)) return true;
        if (!s->equal(stride, expected)) return false;
        expected = expected * size;
      }
      return true;
    });
  }
  SymNode channels_last(NodeList sizes, NodeList strides, const std::vector<size_t>& order) const {
    if (sizes.size() != order.size()) return condition([] { return false; });
    return dense(sizes, strides, order);
  }

  std::shared_ptr<Symbols> symbols_;
  SymInt value_;
  Condition condition_;
  HostFloats::Id number_ = -1;
  bool is_int_ = !condition_;
};

c10::SymIntArrayRef view(const std::vector<c10::SymInt>& v) { return {v.data(), v.size()}; }

class CaptureTensor : public c10::TensorImpl {
 public:
  CaptureTensor(at::Tensor real, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, const c10::SymInt& offset, Token token)
      : c10::TensorImpl(keys_of(real), real.dtype(), real.device()), real_(std::move(real)), token_(std::move(token)) {
    set_sizes_and_strides(sizes, strides, offset);
    set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
    set_storage_access_should_throw();
  }
  const at::Tensor& real() const { return real_; }

  // Who asks in plain numbers decides by them.
  c10::IntArrayRef sizes_custom() const override { return fixed(sym_sizes(), real_.sizes()); }
  c10::IntArrayRef strides_custom() const override { return fixed(sym_strides(), real_.strides()); }
  int64_t numel_custom() const override {
    sizes_custom();
    return real_.numel();
  }
  int64_t storage_offset_custom() const override { return sym_storage_offset().guard_int(__FILE__, __LINE__); }
  int64_t size_custom(int64_t d) const override { return sym_size(d).guard_int(__FILE__, __LINE__); }
  bool has_storage() const override { return false; }
  void release_resources() override {  // weak references may outlive it
    token_.reset();
    TensorImpl::release_resources();
  }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& v, bool change) const override {
    return copy(v, change);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& v, bool change) const override {
    return copy(std::move(v), change);
  }

 private:
  // Autograd and autocast see it as a tensor of its device; no backend does, so that nothing computes with it unrecorded.
  static c10::DispatchKeySet keys_of(const at::Tensor& real) {
    const auto backend = real.key_set().highestBackendKey();
    auto above = c10::getAutocastRelatedKeySetFromBackend(backend);
    return real.is_inference() ? above : above | c10::getAutogradRelatedKeySetFromBackend(backend);
  }
  c10::IntArrayRef fixed(c10::SymIntArrayRef symbolic, c10::IntArrayRef plain) const {
    for (const c10::SymInt& s : symbolic) s.guard_int(__FILE__, __LINE__);
    return plain;
  }
  template <class Version>
  c10::intrusive_ptr<c10::TensorImpl> copy(Version&& version, bool change) const {
    auto impl = c10::make_intrusive<CaptureTensor>(real_, sym_sizes(), sym_strides(), sym_storage_offset(), token_);
    copy_tensor_metadata(this, impl.get(), std::forward<Version>(version), change);
    return impl;
  }

  at::Tensor real_;
  Token token_;  // what autograd saves is a copy: it must not hold what it is a copy of
};

// Null for one of somebody else's.
c10::intrusive_ptr<SizeNode> own_node(const c10::SymNode& node) {
  auto as_own = [](const c10::SymNode& n) {
    auto* own = dynamic_cast<SizeNode*>(n.get());
    return own ? c10::intrusive_ptr<SizeNode>::reclaim_copy(own) : c10::intrusive_ptr<SizeNode>();
  };
  auto own = as_own(node);
  return own || !unwrap_node ? own : as_own(unwrap_node(node));
}

std::vector<c10::SymInt> program_integers(const Shape& s, const std::shared_ptr<Symbols>& symbols) {
  std::vector<c10::SymInt> out;
  for (const SymInt& e : s) out.push_back(program_integer(e, symbols));
  return out;
}

}  // namespace

c10::SymInt program_integer(const SymInt& value, const std::shared_ptr<Symbols>& symbols) {
  if (auto c = value.maybe_constant()) return *c;
  return c10::SymInt(SymNode(c10::make_intrusive<SizeNode>(symbols, value)));
}

SymInt integer_of(const c10::SymInt& value) {
  if (auto plain = value.maybe_as_int()) return *plain;
  auto node = dynamic_cast<SizeNode*>(value.toSymNodeImplUnowned());
  if (!node) fail("a symbolic integer that is not Broach's");
  return node->value();
}

bool is_of_other_tracer(const c10::IValue& v) {
  if (v.isList()) return std::ranges::any_of(v.toListRef(), [](const c10::IValue& e) { return is_of_other_tracer(e); });
  if (v.isTensor()) {
    const at::Tensor& t = v.toTensor();
    return t.defined() && t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !real_tensor(t);
  }
  if (v.isSymInt()) return !v.toSymInt().maybe_as_int() && !is_program_number(v.toSymInt().toSymNode());
  return v.isSymFloat() && v.toSymFloat().is_symbolic() && !own_node(v.toSymFloat().toSymNodeImpl());
}

c10::SymFloat program_float(HostFloats::Id value, const std::shared_ptr<Symbols>& symbols) {
  return c10::SymFloat(SizeNode::of_float(symbols, value));
}

std::optional<HostFloats::Id> float_of(const c10::SymFloat& value) {
  if (!value.is_symbolic()) return std::nullopt;
  const auto node = own_node(value.toSymNodeImpl());
  if (!node || !node->is_float()) fail("a symbolic number that is not Broach's");
  return node->number();
}

bool is_program_number(const c10::SymNode& node) { return dynamic_cast<SizeNode*>(node.get()) != nullptr; }

double recorded_value(const c10::SymNode& node) { return dynamic_cast<SizeNode&>(*node).recorded_value(); }

c10::SymNode apply_function(size_t function, const c10::SymNode& node) { return dynamic_cast<SizeNode&>(*node).apply(function); }

c10::SymNode whole_part(const c10::SymNode& node, bool up) { return dynamic_cast<SizeNode&>(*node).whole_part(up); }

at::Tensor capture_tensor(const at::Tensor& real, const Shape& sizes, const Shape& strides, const SymInt& offset,
                          const std::shared_ptr<Symbols>& symbols, const Token& token) {
  // Which is whether a tensor made now is one.
  c10::InferenceMode like_it(real.is_inference());
  auto s = program_integers(sizes, symbols), t = program_integers(strides, symbols);
  return at::detail::make_tensor<CaptureTensor>(real, view(s), view(t), program_integer(offset, symbols), token);
}

const at::Tensor* real_tensor(const at::Tensor& t) {
  auto impl = t.defined() ? dynamic_cast<CaptureTensor*>(t.unsafeGetTensorImpl()) : nullptr;
  return impl ? &impl->real() : nullptr;
}

}  // namespace broach
