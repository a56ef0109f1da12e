#include "schedule/exprs.h"

#include "ir/text.h"

namespace broach {

using Kind = KernelExpr::Kind;

namespace {

size_t hash(const KernelExpr& e) {
  size_t h = static_cast<size_t>(e.kind) * 31 + static_cast<size_t>(e.op);
  auto mix = [&](size_t v) { h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2); };
  mix(static_cast<size_t>(e.dtype));
  for (int a : e.args) mix(static_cast<size_t>(a));
  mix(static_cast<size_t>(e.access.buffer));
  mix(e.access.index.hash());
  mix(static_cast<size_t>(e.predicate));
  if (e.kind == Kind::constant) mix(std::hash<std::string>()(exact_text(e.value)));
  return h;
}

}  // namespace

SymInt address(const Place& place, std::span<const SymInt> index) {
  SymInt a = place.offset;
  for (size_t d = 0; d < index.size(); ++d) a = a + index[d] * place.strides[d];
  return a;
}

KernelExpr ExprList::of(Kind kind, DType dtype, Op o, std::vector<int> args) {
  KernelExpr e{};
  e.kind = kind;
  e.dtype = dtype;
  e.op = o;
  e.args = std::move(args);
  return e;
}

int ExprList::add(KernelExpr e) {
  const size_t h = hash(e);
  for (auto [it, end] = known_.equal_range(h); it != end; ++it)
    if ((*this)[it->second] == e) return it->second;
  k_.exprs.push_back(std::move(e));
  const int at = static_cast<int>(k_.exprs.size()) - 1;
  known_.emplace(h, at);
  return at;
}

int ExprList::op(Op o, DType dtype, std::vector<int> args) { return add(of(Kind::op, dtype, o, std::move(args))); }

int ExprList::constant(Scalar v, DType dtype) {
  KernelExpr e = of(Kind::constant, dtype);
  e.value = v;
  return add(std::move(e));
}

int ExprList::position(const SymInt& i) {
  if (auto c = i.maybe_constant()) return constant(*c, DType::i64);
  KernelExpr e = of(Kind::position, DType::i64);
  e.access.index = i;
  return add(std::move(e));
}

int ExprList::load(DType dtype, Access access, int predicate) {
  KernelExpr e = of(Kind::load, dtype);
  e.access = std::move(access);
  e.predicate = predicate;
  return add(std::move(e));
}

int ExprList::bounds(int index, const SymInt& limit, int predicate) {
  KernelExpr e = of(Kind::bounds, DType::i64, Op::scalar, {index});
  e.limit = limit;
  e.predicate = predicate;
  return add(std::move(e));
}

int ExprList::reduction(Op o, DType dtype, int arg, const SymInt& position) {
  KernelExpr e = of(Kind::reduction, dtype, o, {arg});
  e.access.index = position;
  return add(std::move(e));
}

int ExprList::buffer(int id, DType dtype) {
  auto [it, fresh] = positions_.emplace(std::pair(id, dtype), static_cast<int>(buffers_.size()));
  if (!fresh) return it->second;
  buffers_.push_back(id);
  k_.buffers.push_back(dtype);
  return it->second;
}

}  // namespace broach
