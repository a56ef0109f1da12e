#include "trace/regions.h"

#include <algorithm>

namespace broach {

namespace {

constexpr int64_t kFirstMark = int64_t{1} << 40;  // beyond the numbers of other copies

// Of a batch norm that was evaluated.
std::vector<TensorId> running_statistics(const TraceOp& gradient) {
  if (gradient.schema != "aten::native_batch_norm_backward" && gradient.schema != "aten::batch_norm_backward") return {};
  const auto* is_training = std::get_if<Scalar>(&gradient.args.at(7).value);
  std::vector<TensorId> out;
  if (is_training && as_int(*is_training) == 0)
    for_each_tensor({gradient.args[3], gradient.args[4]}, [&](TensorId id) { out.push_back(id); });
  return out;
}

}  // namespace

TraceOp divider(std::string_view schema, std::vector<TensorId> given) {
  TraceOp op;
  op.schema = schema;
  if (!given.empty()) op.args.push_back({Arg::Tensors{std::move(given)}});
  return op;
}

std::optional<RegionMark> region_mark(const Node& n) {
  if (n.op != Op::copy || n.integer(Attr::index) < kFirstMark) return std::nullopt;
  if (n.integer(Attr::index) % 2 == 0) return RegionMark::enter;
  return n.integer(Attr::index) == kFirstMark + 1 ? RegionMark::hold : RegionMark::leave;  // what is outside leaves nothing
}

Regions::Regions(const Trace& trace) : t_(trace) {
  auto has = [&](std::string_view schema) {
    return std::any_of(trace.ops.begin(), trace.ops.end(), [&](const TraceOp& op) { return op.schema == schema; });
  };
  used_ = has(kEnterRegion) && has(kBeginGradients);  // without gradients there is nothing to keep
  bool gradients = false;
  for (const TraceOp& op : trace.ops) {
    gradients = gradients || op.schema == kBeginGradients;
    if (!gradients) continue;
    for (TensorId id : running_statistics(op)) statistics_.insert(trace.tensors[static_cast<size_t>(id)].storage);
  }
  for (TensorId id : trace.inputs) made_in_[trace.tensors[static_cast<size_t>(id)].storage] = kOutside;
}

bool Regions::moves(const TraceOp& op) {
  read_again_ = now_ == kGradients ? running_statistics(op) : std::vector<TensorId>();
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
  return b.emit(Op::copy, {v}, {{Attr::index, kFirstMark + 2 * int64_t{region} + (mark != RegionMark::enter)}});
}

Value Regions::read(GraphBuilder& b, TensorId id, Value v) const {
  if (std::ranges::find(read_again_, id) != read_again_.end()) return marked(b, v, kOutside, RegionMark::enter);
  if (now_ != kGradients && statistics_.contains(t_.tensors[static_cast<size_t>(id)].storage)) v = marked(b, v, kOutside, RegionMark::hold);
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
