#include "trace/calls.h"

#include <algorithm>
#include <map>

#include "ops/lower.h"
#include "support/error.h"

namespace broach {

namespace {

// What a dimension of size 1 has for a stride says nothing.
bool is_contiguous(const TraceTensor& t) {
  const Shape dense = contiguous_strides(t.type.shape);
  for (size_t d = 0; d < dense.size(); ++d)
    if (t.type.shape[d] != SymInt(1) && t.strides[d] != dense[d]) return false;
  return true;
}

ExternArg extern_arg(const Arg& a, const std::function<uint32_t(TensorId)>& position) {
  if (auto one = std::get_if<Arg::Tensor>(&a.value)) return {ExternArg::Input{position(one->id)}};
  if (auto many = std::get_if<Arg::Tensors>(&a.value)) {
    ExternArg::Inputs list;
    list.optional_elements = many->optional_elements;
    for (TensorId id : many->ids) list.indices.push_back(id == kNoTensor ? -1 : static_cast<int64_t>(position(id)));
    return {list};
  }
  if (auto n = std::get_if<Arg::Number>(&a.value); n && n->tensor != kNoTensor) return {ExternArg::InputNumber{position(n->tensor)}};
  if (auto n = std::get_if<Arg::Number>(&a.value)) return n->symbol ? ExternArg{*n->symbol} : ExternArg{n->value};
  ExternArg out;
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (!std::is_same_v<T, Arg::Tensor> && !std::is_same_v<T, Arg::Number> && !std::is_same_v<T, Arg::Tensors>) out.value = v;
      },
      a.value);
  return out;
}

}  // namespace

CallArgs with_values(std::vector<Arg> args, const std::function<Value(TensorId)>& value_of) {
  CallArgs out{std::move(args), {}};
  auto place = [&](TensorId& id) {
    if (id == kNoTensor) return;
    out.tensors.push_back(value_of(id));
    id = static_cast<TensorId>(out.tensors.size()) - 1;
  };
  for (Arg& a : out.args) {
    if (auto one = std::get_if<Arg::Tensor>(&a.value)) place(one->id);
    if (auto number = std::get_if<Arg::Number>(&a.value)) place(number->tensor);
    if (auto many = std::get_if<Arg::Tensors>(&a.value)) std::for_each(many->ids.begin(), many->ids.end(), place);
  }
  return out;
}

std::vector<Type> result_types(const StorageValues& memory, const TraceOp& op) {
  std::vector<Type> types;
  for (TensorId r : op.results) types.push_back(r == kNoTensor ? Type{DType::opaque, {SymInt(0)}, {}} : memory.info(r).type);
  return types;
}

bool Calls::draws(const std::string& schema, TensorId written) const {
  if (!options_.eager_random) return find_drawing(schema);
  return written != kNoTensor && find_host_drawing(schema) && is_contiguous(info(written));
}

const OpEntry* Calls::entry_of(const std::string& schema) const {
  const OpEntry* drawing = options_.eager_random ? find_host_drawing(schema) : find_drawing(schema);
  return drawing ? drawing : OpTable::get().find(schema);
}

CallArgs Calls::with_values(const std::vector<Arg>& args) {
  return broach::with_values(args, [this](TensorId id) { return read(id); });
}

std::vector<Value> Calls::compute(const TraceOp& op) {
  if (op.schema.starts_with("aten::as_strided_")) {
    if (auto v = strided_copy(op)) return {*v};
    unsupported(op.schema, " goes by where elements lie, and a value lies elsewhere than eager's tensor");  // also for the library's call
  }
  if ((!op.effect || draws(op.schema)) && op.binds.empty() && options_.lower)
    if (auto values = lower(op, op.schema)) return std::move(*values);
  return call_extern(op, {});
}

// as_strided_copy (self, sizes, strides, offset) reads a window of the storage, as_strided_scatter (self, source, sizes, ..)
// gives self with it replaced.
std::optional<Value> Calls::strided_copy(const TraceOp& op) {
  bool scatter = op.schema == "aten::as_strided_scatter";
  if (!scatter && op.schema != "aten::as_strided_copy") return std::nullopt;
  size_t first = scatter ? 2 : 1;
  TensorId self = std::get<Arg::Tensor>(op.args[0].value).id;
  const TraceTensor& t = info(self);
  auto sizes = std::get_if<Shape>(&op.args[first].value), strides = std::get_if<Shape>(&op.args[first + 1].value);
  if (!sizes || !strides || t.storage < 0) return std::nullopt;
  auto offset = std::get_if<SymInt>(&op.args[first + 2].value);
  auto view = strided_view(b_.symbols(), {t.type.shape, t.strides, 0}, {*sizes, *strides, offset ? *offset - t.offset : SymInt(0)});
  if (!view || (scatter && !view->put)) return std::nullopt;
  Value x = read(self);
  return scatter ? view->put(b_, x, read(std::get<Arg::Tensor>(op.args[1].value).id)) : view->get(b_, x);
}

std::optional<std::vector<Value>> Calls::lower(const TraceOp& op, const std::string& schema) {
  const OpEntry* entry = entry_of(schema);
  if (!entry) return std::nullopt;
  const size_t before = b_.graph().nodes().size();
  auto out = lower_by(*entry, op, schema);
  if (out && is_supported(before, *out)) return out;
  refuse_since(before);
  return std::nullopt;
}

std::optional<std::vector<Value>> Calls::lower_by(const OpEntry& entry, const TraceOp& op, const std::string& schema) {
  std::vector<Type> expected = result_types(memory_, op);
  for (const Type& t : expected)
    if (t.dtype == DType::opaque && !t.shape.empty() && !(t.shape[0] == SymInt(0))) return std::nullopt;
  auto [own, tensors] = with_values(op.args);
  auto out = where_handled(schema, [&, own = std::move(own), tensors = std::move(tensors)]() mutable {
    OpCall call(b_, schema, std::move(own), std::move(tensors), expected);
    return entry.lower(call);
  });
  if (!out || out->size() < op.results.size()) return std::nullopt;
  for (size_t i = 0; i < op.results.size(); ++i)
    if (op.results[i] != kNoTensor && (!(*out)[i] || (*out)[i].type() != expected[i])) return std::nullopt;
  return out;
}

bool Calls::has(const Node& n) const {
  if (!options_.capabilities->has(n)) return false;
  const OpKind kind = kind_of(n.op);
  if ((kind == OpKind::heavy || kind == OpKind::routine) && n.results[0].device.kind != options_.device.kind) return false;
  const DType t = n.results[0].dtype;
  if (n.op == Op::cast && is_complex(n.inputs[0].dtype())) return false;  // which of its parts is meant only the operation knows
  return !(is_complex(t) || is_stored_only(t)) || carries(n.op) || (is_stored_only(t) && n.op == Op::cast);
}

bool Calls::is_refused(const Value& v) const { return v && v.node->id < refused_.size() && refused_[v.node->id]; }

// An equal node may have been left by a call that came before, of which nothing was taken.
bool Calls::is_supported(size_t before, std::span<const Value> results) const {
  auto refused = [&](const Value& v) { return is_refused(v); };
  const auto& nodes = b_.graph().nodes();
  for (size_t i = before; i < nodes.size(); ++i)
    if (!has(nodes[i]) || std::ranges::any_of(nodes[i].inputs, refused)) return false;
  return std::ranges::none_of(results, refused);
}

void Calls::refuse_since(size_t before) {
  const auto& nodes = b_.graph().nodes();
  refused_.resize(nodes.size());
  for (size_t i = before; i < nodes.size(); ++i)
    refused_[i] = !has(nodes[i]) || std::ranges::any_of(nodes[i].inputs, [&](const Value& v) { return is_refused(v); });
}

// Eager computes in the type that the operands have together, and casts what it writes. Nothing where only the operation knows which.
static std::optional<DType> computed_in(std::span<const Value> operands, DType written, bool is_out) {
  Promotion together;
  for (const Value& v : operands) together.add(v);
  const DType t = operands.empty() ? written : together.result();
  if (t == written || (!is_out && !(is_floating(t) && is_floating(written)))) return written;
  if (is_out && written != DType::b1) return std::nullopt;  // a sum of integers is wider than they are
  return is_out ? written : t;
}

std::optional<Value> Calls::lower_as(const std::string& schema, const std::vector<Arg>& args, TensorId target, bool is_out) {
  const OpEntry* entry = entry_of(schema);
  if (!entry || !options_.lower) return std::nullopt;
  size_t before = b_.graph().nodes().size();
  auto [own, tensors] = with_values(args);
  Type computed = info(target).type;
  if (const auto t = computed_in(tensors, computed.dtype, is_out)) computed.dtype = *t;
  else return std::nullopt;
  auto out = where_handled(schema, [&, own = std::move(own), tensors = std::move(tensors)]() mutable -> std::optional<Value> {
    OpCall call(b_, schema, std::move(own), std::move(tensors), {computed});
    auto out = entry->lower(call);
    if (!out || out->size() != 1 || !(*out)[0] || !((*out)[0].shape() == info(target).type.shape) ||
        (*out)[0].type().device != info(target).type.device)
      return std::nullopt;
    return b_.cast((*out)[0], info(target).type.dtype);
  });
  if (out && is_supported(before, std::span(&*out, 1))) return out;
  refuse_since(before);
  return std::nullopt;
}

// A result that is None is a tensor without elements.
void Calls::set_results(ExternCall& call, const TraceOp& op) const {
  for (TensorId r : op.results) {
    call.results.push_back(r == kNoTensor ? Type{DType::opaque, {SymInt(0)}, {}} : info(r).type);
    call.result_strides.push_back(r == kNoTensor ? Shape{SymInt(1)} : info(r).strides);
  }
}

// What the library's fused attention adds to the scores: rows of it begin where they can be read in pieces, as eager has seen to.
static TensorId attention_bias(const TraceOp& op) {
  static const std::map<std::string, size_t, std::less<>> arguments = {{"aten::_scaled_dot_product_efficient_attention", 3},
                                                                       {"aten::_scaled_dot_product_efficient_attention_backward", 4},
                                                                       {"aten::_scaled_dot_product_cudnn_attention", 3},
                                                                       {"aten::_scaled_dot_product_cudnn_attention_backward", 8}};
  const auto at = arguments.find(op.schema);
  const auto* given = at == arguments.end() ? nullptr : std::get_if<Arg::Tensor>(&op.args.at(at->second).value);
  return given ? given->id : kNoTensor;
}

std::vector<Value> Calls::call_extern(const TraceOp& op, const std::vector<TensorId>& mutated) {
  auto call = std::make_shared<ExternCall>();
  call->schema = op.schema;
  // A call that is not torch's own, or draws random numbers in the order of memory, may tell how its operands lie; oneDNN's and cuDNN's
  // recurrent layers read memory as if it lay as their callers in eager leave it.
  const bool is_layer = op.schema.starts_with("aten::mkldnn_rnn_layer") || op.schema.starts_with("aten::_cudnn_rnn");
  const bool exact = op.effect || !op.schema.starts_with("aten::") || is_layer;
  const TensorId bias = attention_bias(op);
  std::vector<Shape> operand_strides;
  std::vector<Value> inputs;
  std::map<TensorId, uint32_t> positions;
  auto position = [&](TensorId id) {
    auto [it, fresh] = positions.emplace(id, static_cast<uint32_t>(inputs.size()));
    if (!fresh) return it->second;
    inputs.push_back(read(id));
    if (exact || bias != kNoTensor) operand_strides.push_back(exact || id == bias ? info(id).strides : Shape());
    if (!exact && is_contiguous(info(id)) && may_be_strided(memory_.value(id))) call->contiguous.push_back(it->second);
    return it->second;
  };
  for (const Arg& a : op.args) call->args.push_back(extern_arg(a, position));
  set_results(*call, op);
  for (TensorId m : mutated) {
    call->mutated.push_back(position(m));
    call->results.push_back(info(m).type);
    call->result_strides.push_back(contiguous_strides(info(m).type.shape));
  }
  call->effect = op.effect || !op.binds.empty();  // what it writes are results of its own
  call->binds = op.binds;
  if (call->results.empty()) {  // an op without results is there for its effect
    call->effect = true;
    call->results.push_back({DType::opaque, {SymInt(0)}, {}});
    call->result_strides.push_back({SymInt(1)});
  }
  call->result_strides.insert(call->result_strides.end(), operand_strides.begin(), operand_strides.end());
  return b_.emit_all(Op::extern_call, std::move(inputs), {{Attr::call, std::shared_ptr<const ExternCall>(std::move(call))}});
}

// Whether a value is a view of another, or of an input that is not contiguous.
bool Calls::may_be_strided(const Value& v) const {
  if (v.node->op != Op::input) return is_view(v.node->op);
  return !is_contiguous(info(t_.inputs[static_cast<size_t>(v.node->integer(Attr::index))]));
}

}  // namespace broach
