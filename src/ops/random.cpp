#include "ops/random.h"

#include <cmath>
#include <limits>
#include <unordered_map>

#include "ops/formula.h"
#include "support/error.h"

namespace broach {

namespace {

// Two words for the numbers of one call.
Value drawn_key(GraphBuilder& b, Device device) {
  constexpr int64_t kEnd = int64_t{1} << 31;
  auto call = std::make_shared<ExternCall>();
  call->schema = "aten::randint.low";
  const SymInt i32(3);  // c10::ScalarType's number
  call->args = {{SymInt(-kEnd)}, {SymInt(kEnd)}, {Shape{2}}, {i32}, {}, {device.str()}, {}};
  call->results = {{DType::i32, {2}, device}};
  call->result_strides = {{1}};
  call->effect = true;
  return b.emit(Op::extern_call, {}, {{Attr::call, std::shared_ptr<const ExternCall>(std::move(call))}});
}

// x ^ (x >> shift), times an odd number: each bit comes to depend on those above it, and then on those below.
Value mixed(GraphBuilder& b, Value x, int shift, uint32_t factor) {
  const Value high = with_number(b, Op::bit_and, with_number(b, Op::shr, x, int64_t{shift}), (int64_t{1} << (32 - shift)) - 1);
  return with_number(b, Op::mul, b.binary(Op::bit_xor, x, high), int64_t{static_cast<int32_t>(factor)});
}

// Words of 32 bits, as signed integers. The rounds are those of C. Wellons' `triple32` (nullprogram.com/blog/2018/07/31), the integer
// hash of least bias among those found by search, with the key's words put in before the first and the second. Its last step is left
// out, which changes lower bits only. Three products of 32 bits fit vectors; Philox would take twenty of 64 for a number.
Value words(GraphBuilder& b, const Shape& shape, Device device) {
  const SymInt count = product(shape);
  if (!b.symbols().ask(count, Relation::le, std::numeric_limits<int32_t>::max()))
    unsupported("more random numbers than a counter has values");
  const Value key = drawn_key(b, device);
  auto word = [&](int64_t i) { return b.expand(b.reshape(b.slice(key, {i}, {1}, {1}), {}), shape); };
  Value x = b.binary(Op::add, b.reshape(positions(b, count, DType::i32), shape), word(0));
  x = b.binary(Op::bit_xor, mixed(b, x, 17, 0xed5ad4bb), word(1));
  return mixed(b, mixed(b, x, 11, 0xac4c1b51), 15, 0x31848bab);
}

// b1: true with probability p, which is exact to 2^-32.
Value chosen(GraphBuilder& b, const Shape& shape, Device device, double p) {
  constexpr double kWords = 4294967296.0;
  const double count = std::round(p * kWords);
  if (count <= 0 || count >= kWords) return b.full(shape, count > 0, DType::b1, device);
  return with_number(b, Op::lt, words(b, shape, device), static_cast<int64_t>(count) - (int64_t{1} << 31));
}

Value chosen_for(OpCall& c, double p) { return chosen(c.b, c.result().shape, c.result().device, p); }

// (self, p, generator)
Results bernoulli(OpCall& c) {
  if (!c.is_none(2) || c.is_number(1)) return std::nullopt;
  const DType t = c.result().dtype;
  const Value one = c.b.full(c.result().shape, int64_t{1}, t, c.result().device),
              zero = c.b.full(c.result().shape, int64_t{0}, t, c.result().device);
  return {{c.b.where(chosen_for(c, c.number(1)), one, zero)}};
}

// (self, p, generator)
Results host_bernoulli(OpCall& c) {
  const Type& r = c.result();
  if (!c.is_none(2) || c.is_number(1) || r.device.kind != DeviceKind::cpu) return std::nullopt;
  const double p = c.number(1);
  if (!(p >= 0 && p <= 1)) return std::nullopt;  // the host's error
  auto call = std::make_shared<ExternCall>();
  call->schema = kHostBernoulli;
  call->args = {{r.shape}, {Scalar(p)}};
  call->results = {{DType::b1, r.shape, r.device}};
  call->result_strides = {contiguous_strides(r.shape)};
  call->effect = true;
  const Value kept = c.b.emit(Op::extern_call, {}, {{Attr::call, std::shared_ptr<const ExternCall>(std::move(call))}});
  return {{c.b.where(kept, c.b.full(r.shape, int64_t{1}, r.dtype, r.device), c.b.full(r.shape, int64_t{0}, r.dtype, r.device))}};
}

// (input, p, train): the elements that are kept, larger by what is dropped, and which they are.
Results native_dropout(OpCall& c) {
  const DType t = c.result().dtype;
  if (!is_floating(t) || c.is_number(1)) return std::nullopt;
  const bool train = c.is_none(2) || c.flag(2);
  const double p = train ? c.number(1) : 0;
  const Value kept = chosen_for(c, 1 - p);
  if (!train) return {{c.tensor(0), kept}};
  const Expr x{c.b, operand(c, 0, compute_dtype(t))};
  return {{(x * Expr{c.b, kept}.to(x.dtype()) * (p == 1 ? 0 : 1 / (1 - p))).to(t).value(), kept}};
}

}  // namespace

const OpEntry* find_drawing(std::string_view schema) {
  static const std::unordered_map<std::string_view, OpEntry> entries{{"aten::bernoulli.p", {bernoulli}},
                                                                     {"aten::bernoulli.float", {bernoulli}},  // that of bernoulli_.float
                                                                     {"aten::native_dropout", {native_dropout}}};
  auto it = entries.find(schema);
  return it == entries.end() ? nullptr : &it->second;
}

const OpEntry* find_host_drawing(std::string_view schema) {
  static const OpEntry bernoulli_of_host{host_bernoulli};
  return schema == "aten::bernoulli.float" ? &bernoulli_of_host : nullptr;
}

}  // namespace broach
