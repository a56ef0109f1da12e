#include "trace/regions.h"

#include <algorithm>

namespace broach {

namespace {

constexpr int64_t kFirstMark = int64_t{1} << 40;  // beyond the numbers of other copies

}  // namespace

TraceOp divider(std::string_view schema, std::vector<TensorId> given) {
  TraceOp op;
  op.schema = schema;
  if (!given.empty()) op.args.push_back({Arg::Tensors{std::move(given)}});
  return op;
}

std::optional<RegionMark> region_mark(const Node& n) {
  if (n.op != Op::copy || n.integer(Attr::index) < kFirstMark) return std::nullopt;
  return n.integer(Attr::index) % 2 ? RegionMark::leave : RegionMark::enter;
}

Regions::Regions(const Trace& trace) : t_(trace) {
  auto has = [&](std::string_view schema) {
    return std::any_of(trace.ops.begin(), trace.ops.end(), [&](const TraceOp& op) { return op.schema == schema; });
  };
  used_ = has(kEnterRegion) && has(kBeginGradients);  // without gradients there is nothing to keep
  for (TensorId id : trace.inputs) made_in_[trace.tensors[static_cast<size_t>(id)].storage] = kOutside;
}

bool Regions::moves(const TraceOp& op) {
  if (op.schema == kEnterRegion) now_ = ++count_;
  else if (op.schema == kLeaveRegion) now_ = kOutside;
  else if (op.schema == kBeginGradients) now_ = kGradients;
  else return false;
  return true;
}

void Regions::note(const TraceOp& op) {
  if (!used_) return;
  auto storage = [&](TensorId id) { return t_.tensors[static_cast<size_t>(id)].storage; };
  for (TensorId r : op.results)
    if (r != kNoTensor) made_in_.try_emplace(storage(r), now_);
  for (TensorId m : op.mutated) made_in_[storage(m)] = now_;
}

int Regions::made_in(TensorId id) const {
  auto it = made_in_.find(t_.tensors[static_cast<size_t>(id)].storage);
  return it == made_in_.end() ? kOutside : it->second;
}

Value Regions::marked(GraphBuilder& b, Value v, int region, RegionMark mark) const {
  if (v.dtype() == DType::opaque) return v;
  return b.emit(Op::copy, {v}, {{Attr::index, kFirstMark + 2 * int64_t{region} + (mark == RegionMark::leave)}});
}

Value Regions::read(GraphBuilder& b, TensorId id, Value v) const {
  if (!used_ || now_ == kGradients) return v;
  const int from = made_in(id);
  if (from == now_) return v;
  if (from > kOutside) v = marked(b, v, from, RegionMark::leave);
  return now_ > kOutside ? marked(b, v, now_, RegionMark::enter) : v;
}

Value Regions::given_back(GraphBuilder& b, TensorId id, Value v) const {
  const int from = made_in(id);
  return used_ && from > kOutside ? marked(b, v, from, RegionMark::leave) : v;
}

}  // namespace broach
