#include "ops/lower.h"

#include <algorithm>
#include <sstream>

#include "support/error.h"

namespace broach {

namespace {

// An argument of a kind that the entry was not written for: none, or known only when the program runs.
void require(bool ok, std::string_view schema, size_t i, const char* kind) {
  if (!ok) unsupported(schema, ": argument ", i, " is not ", kind);
}

}  // namespace

Value OpCall::tensor(size_t i) const {
  require(is_tensor(i), schema, i, "a tensor");
  if (auto n = std::get_if<Arg::Number>(&args_[i].value)) {
    if (n->symbol && !n->symbol->is_constant()) return b.emit(Op::size, {}, {{Attr::expr, *n->symbol}});
    static constexpr DType types[] = {DType::i64, DType::f32, DType::b1, DType::c64};
    DType t = types[n->value.index()];
    // A number has all its digits where it meets f64.
    bool wide = std::any_of(results_.begin(), results_.end(), [](const Type& r) { return r.dtype == DType::f64; });
    for (const Arg& a : args_)
      if (auto other = std::get_if<Arg::Tensor>(&a.value)) wide |= tensors_.at(static_cast<size_t>(other->id)).dtype() == DType::f64;
    if (t == DType::f32 && wide) t = DType::f64;
    return n->tensor == kNoTensor ? b.constant(n->value, t) : b.cast(tensors_.at(static_cast<size_t>(n->tensor)), t);
  }
  return tensors_.at(static_cast<size_t>(std::get<Arg::Tensor>(args_[i].value).id));
}

Value OpCall::number_f64(size_t i) const {
  if (auto n = std::get_if<Arg::Number>(&args_.at(i).value)) {
    if (n->tensor != kNoTensor) return b.cast(tensors_.at(static_cast<size_t>(n->tensor)), DType::f64);
    if (!n->symbol || n->symbol->is_constant()) return b.constant(as_double(n->value), DType::f64);
  }
  return b.cast(tensor(i), DType::f64);
}

std::optional<Value> OpCall::maybe_tensor(size_t i) const { return is_tensor(i) ? std::optional(tensor(i)) : std::nullopt; }

std::vector<std::optional<Value>> OpCall::tensors(size_t i) const {
  std::vector<std::optional<Value>> out;
  require(i < args_.size() && std::holds_alternative<Arg::Tensors>(args_[i].value), schema, i, "a list of tensors");
  for (TensorId id : std::get<Arg::Tensors>(args_[i].value).ids)
    out.push_back(id == kNoTensor ? std::nullopt : std::optional(tensors_.at(static_cast<size_t>(id))));
  return out;
}

SymInt OpCall::integer(size_t i) const {
  require(i < args_.size(), schema, i, "a number");
  if (auto s = std::get_if<SymInt>(&args_[i].value)) return *s;
  return as_int(scalar(i));
}

Shape OpCall::ints(size_t i) const {
  require(i < args_.size(), schema, i, "a list of integers");
  if (auto s = std::get_if<Shape>(&args_[i].value)) return *s;
  return {integer(i)};
}

std::vector<int64_t> OpCall::constants(size_t i) const {
  std::vector<int64_t> out;
  for (const SymInt& s : ints(i)) out.push_back(b.symbols().specialize(s));
  return out;
}

Scalar OpCall::scalar(size_t i) const {
  require(i < args_.size(), schema, i, "a number");
  if (auto s = std::get_if<SymInt>(&args_[i].value)) return b.symbols().specialize(*s);
  auto s = std::get_if<Scalar>(&args_[i].value);
  require(s, schema, i, "a number");
  return *s;
}

bool OpCall::is_complex_number(size_t i) const {
  if (auto n = std::get_if<Arg::Number>(&args_.at(i).value)) return is_complex(n->value);
  auto s = std::get_if<Scalar>(&args_.at(i).value);
  return s && is_complex(*s);
}

OpCall OpCall::mapped(const std::function<Value(Value)>& f) const {
  OpCall c = *this;
  for (Value& v : c.tensors_)
    if (v) v = f(v);
  for (Type& t : c.results_)
    if (t.dtype == DType::c64) t.dtype = DType::f32;
  return c;
}

std::string OpCall::text(size_t i) const {
  auto s = i < args_.size() ? std::get_if<std::string>(&args_[i].value) : nullptr;
  require(s, schema, i, "a string");
  return *s;
}

std::optional<DType> OpCall::dtype(size_t i) const {
  if (is_none(i)) return std::nullopt;
  return static_cast<DType>(constant(i));
}

int64_t OpCall::wrap_dim(int64_t d, int rank) {
  int64_t n = rank == 0 ? 1 : rank;
  check(d >= -n && d < n, "dimension ", d, " is out of range for a tensor of rank ", rank);
  return d < 0 ? d + n : d;
}

std::vector<int64_t> OpCall::dims(size_t i, int rank) const {
  std::vector<int64_t> out;
  if (!is_none(i))
    for (int64_t d : constants(i)) out.push_back(wrap_dim(d, rank));
  if (out.empty())
    for (int64_t d = 0; d < rank; ++d) out.push_back(d);
  if (rank == 0) out.clear();
  return out;
}

OpTable::OpTable() {
  add_pointwise_ops(*this);
  add_reduction_ops(*this);
  add_movement_ops(*this);
  add_creation_ops(*this);
  add_indexing_ops(*this);
  add_ordering_ops(*this);
  add_normalization_ops(*this);
  add_contraction_ops(*this);
  add_pooling_ops(*this);
  add_complex_ops(*this);
  add_views(*this);
}

const OpTable& OpTable::get() {
  static const OpTable table;
  return table;
}

const OpEntry* OpTable::find(std::string_view schema) const {
  auto it = entries_.find(std::string(schema));
  return it == entries_.end() ? nullptr : &it->second;
}

namespace {

bool has_complex(const OpCall& c) {
  auto is_result = [](const Type& t) { return is_complex(t.dtype); };
  if (std::any_of(c.results().begin(), c.results().end(), is_result)) return true;
  for (size_t i = 0; i < c.size(); ++i)
    if (c.is_tensor(i) && is_complex(c.tensor(i).dtype())) return true;
  return false;
}

template <class F>
void for_each_schema(std::string_view names, const F& f) {
  std::istringstream words{std::string(names)};
  for (std::string name; words >> name;) f("aten::" + name);
}

}  // namespace

const ViewLowering* OpTable::find_view(std::string_view schema) const {
  auto it = views_.find(std::string(schema));
  return it == views_.end() ? nullptr : &it->second;
}

void OpTable::add(std::string_view names, Lowering lowering) {
  for_each_schema(
      names, [&](const std::string& schema) { check(entries_.emplace(schema, OpEntry{lowering}).second, schema, " has two entries"); });
}

void OpTable::add_complex(std::string_view names, Lowering lowering) {
  for_each_schema(names, [&](const std::string& schema) {
    Lowering other = entries_[schema].lower;
    entries_[schema].lower = [lowering, other](OpCall& c) -> std::optional<std::vector<Value>> {
      if (has_complex(c)) return lowering(c);
      return other ? other(c) : std::nullopt;
    };
  });
}

void OpTable::add_view(std::string_view names, ViewLowering lowering) {
  for_each_schema(names,
                  [&](const std::string& schema) { check(views_.emplace(schema, lowering).second, "view ", schema, " has two entries"); });
}

namespace {

int category(DType t) { return is_complex(t) ? 3 : is_floating(t) ? 2 : t == DType::b1 ? 0 : 1; }

void join(std::optional<DType>& into, DType t) { into = into ? promote(*into, t) : t; }

}  // namespace

void Promotion::add(const Value& v) { join(v.rank() ? dims_ : zero_dim_, v.dtype()); }

void Promotion::add(const Scalar& s) {
  // Numbers stand for the default element types.
  static constexpr DType types[] = {DType::i64, DType::f32, DType::b1, DType::c64};
  join(numbers_, types[s.index()]);
}

DType Promotion::result() const {
  std::optional<DType> best = dims_;
  for (const auto& next : {zero_dim_, numbers_}) {
    if (!next) continue;
    if (!best) best = next;
    else if (category(*next) > category(*best)) best = promote(*best, *next) == *next ? next : promote(*best, *next);
  }
  check(best.has_value(), "type promotion of nothing");
  return *best;
}

}  // namespace broach
