// Sizes and integers that depend on data, while a program is captured: each becomes a symbol that is known once the operation
// has run which finds it out.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <optional>

#include "capture.h"
#include "keys.h"
#include "support/error.h"
#include "symbolic.h"
#include "trace/layout.h"

namespace broach {

namespace {

// The shapes of an operation's results, of which one size, `count`, depends on data; where it stands first: result and dimension.
struct DataShapes {
  std::vector<Shape> shapes;
  int32_t result = 0, dim = 0;
};

const Shape& shape_of_argument(const Trace& trace, const TraceOp& op, size_t i) {
  return trace.tensors[static_cast<size_t>(std::get<Arg::Tensor>(op.args.at(i).value).id)].type.shape;
}

bool is_true(const TraceOp& op, size_t i) {
  auto s = std::get_if<Scalar>(&op.args.at(i).value);
  return s && *s == Scalar(true);
}

bool is_none(const TraceOp& op, size_t i) { return std::holds_alternative<std::monostate>(op.args.at(i).value); }

// Distinct elements of the whole tensor, where each came from, and how often each occurs.
DataShapes distinct(const Trace& trace, const TraceOp& op, const SymInt& count, size_t inverse, size_t counts) {
  Shape none{SymInt(0)};
  return {{{count}, is_true(op, inverse) ? shape_of_argument(trace, op, 0) : none, is_true(op, counts) ? Shape{count} : none}};
}

// The same for slices along a dimension.
DataShapes distinct_slices(const Trace& trace, const TraceOp& op, const SymInt& count, int64_t dim) {
  Shape values = shape_of_argument(trace, op, 0);
  if (dim < 0) dim += static_cast<int64_t>(values.size());
  SymInt slices = values.at(static_cast<size_t>(dim));
  values[static_cast<size_t>(dim)] = count;
  return {{values, {slices}, {count}}, 0, static_cast<int32_t>(dim)};  // whether asked for or not
}

std::optional<DataShapes> data_shapes(const Trace& trace, const TraceOp& op, const SymInt& count) {
  auto constant = [&](size_t i) { return std::get<SymInt>(op.args.at(i).value).constant(); };
  const std::string& s = op.schema;
  if (s == "aten::nonzero") return DataShapes{{{count, static_cast<int64_t>(shape_of_argument(trace, op, 0).size())}}};
  if (s == "aten::masked_select" || s == "aten::bincount") return DataShapes{{{count}}};
  if (s == "aten::_ctc_loss.Tensor") {  // the size is of what its gradient goes by: one and twice the most targets
    const Shape& steps = shape_of_argument(trace, op, 0);
    return DataShapes{{{steps.at(1)}, {steps.at(1), steps.at(0), count}}, 1, 2};
  }
  if (s == "aten::repeat_interleave.Tensor") return is_none(op, 1) ? std::optional(DataShapes{{{count}}}) : std::nullopt;
  if (s == "aten::_unique2") return distinct(trace, op, count, 2, 3);
  if (s == "aten::unique_consecutive")
    return is_none(op, 3) ? distinct(trace, op, count, 1, 2) : distinct_slices(trace, op, count, constant(3));
  if (s == "aten::unique_dim" || s == "aten::unique_dim_consecutive") return distinct_slices(trace, op, count, constant(1));
  return std::nullopt;
}

bool is_mask(const at::Tensor& t) { return t.defined() && t.scalar_type() == at::kBool && t.dim() > 0; }

// x[mask] is x at the positions where the mask is true: the indices with positions in the masks' places. False if there is no
// mask, or it does not fit.
bool positions_for_masks(const at::Tensor& x, const c10::List<std::optional<at::Tensor>>& indices,
                         c10::List<std::optional<at::Tensor>>& out) {
  bool any = false;
  int64_t dim = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    std::optional<at::Tensor> index = indices.get(i);
    if (!index || !is_mask(*index)) {
      out.push_back(index);
      ++dim;
      continue;
    }
    if (dim + index->dim() > x.dim()) return false;
    for (int64_t d = 0; d < index->dim(); ++d)
      if (x.sym_size(dim + d) != index->sym_size(d)) return false;
    at::Tensor positions = index->nonzero();
    for (int64_t d = 0; d < index->dim(); ++d) out.push_back(positions.select(1, d));
    dim += index->dim();
    any = true;
  }
  return any;
}

}  // namespace

// Attention on a GPU gives its first two operands' lengths besides, as numbers behind four tensors, for its backward. No program sees
// them. `op` has the results before one.
const SymInt* Capture::length_given(const TraceOp& op) const {
  constexpr std::string_view kGive[] = {"aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention"};
  constexpr size_t kFirst = 4;
  const bool gives = std::ranges::find(kGive, op.schema) != std::end(kGive) && op.results.size() >= kFirst;
  return gives ? &shape_of_argument(trace_, op, op.results.size() - kFirst).at(2) : nullptr;
}

// torch.profiler.record_function computes nothing.
bool Capture::runs_label(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::string& name = op.operator_name().name;
  const bool begins = name == "profiler::_record_function_enter_new";
  if (!begins && !(name == "profiler::_record_function_exit" && op.operator_name().overload_name == "_RecordFunction")) return false;
  has_labels_ = true;
  c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
  op.callBoxed(stack);
  return true;
}

bool Capture::takes_masks_apart(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  if (!stand_ins_) return false;
  const auto& name = op.operator_name();
  if (name.name == "aten::index" && name.overload_name == "Tensor") {
    c10::List<std::optional<at::Tensor>> positions;
    if (!positions_for_masks(stack[stack.size() - 2].toTensor(), stack.back().toOptionalTensorList(), positions)) return false;
    stack.back() = positions;
    op.callBoxed(stack);
    return true;
  }
  if (name.name != "aten::masked_select" || !name.overload_name.empty()) return false;
  at::Tensor x = stack[stack.size() - 2].toTensor(), mask = stack.back().toTensor();
  if (!is_mask(mask) || x.dim() == 0) return false;
  if (x.sym_sizes() != mask.sym_sizes()) {
    auto sizes = at::infer_size_symdimvector(x.sym_sizes(), mask.sym_sizes());
    x = x.expand_symint(sizes);
    mask = mask.expand_symint(sizes);
  }
  torch::jit::drop(stack, 2);
  stack.emplace_back(x.index({mask}));
  return true;
}

SymInt Capture::late_symbol(int64_t value, TraceOp& op, int32_t result, int32_t dim) {
  // Eager finds them out once more for gradients, and raises an error where they are others then.
  if (!regions_.empty() && no_gradients_.empty()) no_gradients_ = cat("sizes depend on data within a checkpoint", at_line());
  // 0 and 1 are numbers here too.
  SymInt s = trace_.symbols->fresh({value, value < 2 ? std::min<int64_t>(value, 0) : 2});
  op.binds.push_back({*s.as_symbol(), result, dim});
  return value < 2 ? SymInt(trace_.symbols->specialize(s)) : s;
}

void Capture::begin_data_sizes(const TraceOp& op) {
  if (stand_ins_ && op.mutated.empty() && data_shapes(trace_, op, 0)) return;
  fail_with(cat("the sizes of the result of ", op.schema, " depend on data", at_line()),
            speculative_ ? Outcome::wants_stand_ins : Outcome::unsupported);
}

// For strides that leave gaps between elements, or may in another call: that they leave none in this one says nothing.
bool Capture::asks_for_gaps(const TraceOp& op) {
  if (!op.schema.ends_with("empty_strided")) return false;
  std::vector<const Shape*> shapes;
  for (const Arg& a : op.args)
    if (auto s = std::get_if<Shape>(&a.value)) shapes.push_back(s);
  return shapes.size() != 2 || *shapes[1] != contiguous_strides(*shapes[0]);
}

// False if the operation has no such sizes.
bool Capture::add_data_sizes(size_t first_new, TraceOp& op) {
  auto known = stand_ins_ && op.mutated.empty() ? data_shapes(trace_, op, 0) : std::nullopt;
  if (!known || first_new == trace_.tensors.size()) return false;
  auto real = [&](size_t i) -> TraceTensor& { return trace_.tensors[static_cast<size_t>(op.results[i])]; };
  SymInt count = late_symbol(real(static_cast<size_t>(known->result)).type.shape.at(static_cast<size_t>(known->dim)).constant(), op,
                             known->result, known->dim);
  std::vector<Shape> shapes = data_shapes(trace_, op, count)->shapes;
  for (size_t i = 0; i < op.results.size(); ++i) {
    TraceTensor& t = real(i);
    auto numbers = [&](const Shape& s) {
      std::vector<int64_t> out;
      for (const SymInt& e : s) out.push_back(trace_.symbols->hint(e));
      return out;
    };
    if (i < shapes.size() && shapes[i] == t.type.shape) continue;  // in numbers: it lies as it does
    std::vector<int64_t> sizes = numbers(t.type.shape);
    auto strides = i < shapes.size() && numbers(shapes[i]) == sizes ? dense_strides(shapes[i], sizes, numbers(t.strides)) : std::nullopt;
    if (!strides || !(t.offset == SymInt(0))) return fail_with(cat("the result of ", op.schema, " does not lie as expected")), true;
    t.type.shape = shapes[i];
    t.strides = std::move(*strides);
  }
  return true;
}

// Eager refuses a number that the elements' type cannot hold: it stays on the side where the recorded call's was. See c10::overflows, which
// lets negative numbers pass for unsigned ones.
void Capture::guard_range(const c10::IValue& number, DType t) {
  if (t == DType::c64) t = DType::f32;  // the parts
  if (!(is_integral(t) || is_floating(t)) || t == DType::f64) return;
  Symbols& symbols = *trace_.symbols;
  const double most = is_floating(t) ? largest(t) : std::min(as_double(highest(t)), 0x1.fffffffffffffp62);
  const double least = is_floating(t) || is_unsigned(t) ? -most : -most - 1;
  auto fits = [&](double value) { return value >= least && value <= most; };
  if (auto id = number.isSymFloat() ? float_of(number.toSymFloat()) : std::nullopt) {
    HostFloats& floats = symbols.floats;
    if (fits(floats.hint(*id))) {
      floats.ask(floats.constant(least), Relation::le, *id);
      floats.ask(*id, Relation::le, floats.constant(most));
    } else {
      fix_number(*id);
    }
  } else if (number.isSymInt() && most < 0x1p62) {
    const SymInt e = integer_of(number.toSymInt());
    if (fits(static_cast<double>(symbols.hint(e)))) {
      symbols.ask(static_cast<int64_t>(least), Relation::le, e);
      symbols.ask(e, Relation::le, static_cast<int64_t>(most));
    } else if (!symbols.is_late(e)) {
      symbols.specialize(e);
    }
  }
}

// A number that may be another in the next call.
void Capture::guard_number(const c10::IValue& number, const TraceOp& op) {
  const bool counts = op.schema.starts_with("aten::arange") || op.schema.starts_with("aten::range");  // how many results there are
  if (auto id = counts && number.isSymFloat() ? float_of(number.toSymFloat()) : std::nullopt) fix_number(*id);
  for (TensorId r : op.results)
    if (r != kNoTensor) guard_range(number, trace_.tensors[static_cast<size_t>(r)].type.dtype);
}

// As it is in the recorded call, unless it is computed in each.
void Capture::fix_number(HostFloats::Id id) {
  HostFloats& floats = trace_.symbols->floats;
  if (floats.is_deferred(id)) return;
  for (const SymInt& e : floats.sizes_behind(id)) trace_.symbols->specialize(e);
  floats.fix(id);
}

Arg Capture::host_number(HostFloats::Id id) { return {Arg::Number{trace_.symbols->floats.hint(id), std::nullopt, tensor_of(id)}}; }

// A number that is computed on the host on each call is an input without dimensions; one that follows from elements is computed by
// operations on such.
TensorId Capture::tensor_of(HostFloats::Id id) {
  const HostFloats& floats = trace_.symbols->floats;
  const Type type{DType::f64, {}, {}};
  if (!floats.is_deferred(id)) {
    auto [it, fresh] = numbers_.emplace(id, static_cast<TensorId>(trace_.tensors.size()));
    if (fresh) trace_.tensors.push_back({type, {}, 0, -1 - it->second});
    return it->second;
  }
  if (auto it = deferred_.find(id); it != deferred_.end()) return it->second;
  using Op = HostFloats::Op;
  auto [op, a, b, size, function] = floats.step(id);
  if (op == Op::size)
    return deferred_[id] = add_computed("aten::scalar_tensor", {{size}, {SymInt(static_cast<int64_t>(c10::kDouble))}, {}, {}, {}}, type);
  std::vector<Arg> args{{Arg::Tensor{tensor_of(a)}}};
  if (b >= 0) args.push_back({Arg::Tensor{tensor_of(b)}});
  if (op == Op::function) return deferred_[id] = add_computed(HostFloats::functions()[function].operation, std::move(args), type);
  if (op == Op::add || op == Op::sub) args.push_back({SymInt(1)});
  const char* schema = op == Op::add   ? "aten::add.Tensor"
                       : op == Op::sub ? "aten::sub.Tensor"
                       : op == Op::mul ? "aten::mul.Tensor"
                       : op == Op::div ? "aten::div.Tensor"
                       : op == Op::neg ? "aten::neg"
                       : op == Op::pow ? "aten::pow.Tensor_Tensor"
                       : op == Op::min ? "aten::minimum"
                                       : "aten::maximum";
  return deferred_[id] = add_computed(schema, std::move(args), type);
}

// The program gets a number that stands for the element it reads.
bool Capture::give_fraction(c10::IValue& result, const TraceOp& op) {
  if (!stand_ins_ || !wrap_node) return false;
  const auto read = std::get<Arg::Tensor>(op.args.at(0).value);
  Type type = trace_.tensors[static_cast<size_t>(read.id)].type;
  type.shape.clear();
  TensorId element = add_element(add_contiguous(read.id), 0);
  const Type number{DType::f64, {}, {}};
  if (type != number) {
    Arg device = type.device == number.device ? Arg{} : Arg{c10::Device(c10::kCPU).str()};
    auto wide = static_cast<int64_t>(c10::kDouble);
    element =
        add_computed("aten::_to_copy", {{Arg::Tensor{element}}, {SymInt(wide)}, {}, std::move(device), {}, {Scalar(false)}, {}}, number);
  }
  HostFloats::Id id = trace_.symbols->floats.element(result.toDouble());
  deferred_[id] = element;
  result = c10::Scalar(c10::SymFloat(wrap_node(program_float(id, trace_.symbols).toSymNodeImpl())));
  return true;
}

// The program gets a number that stands for the integer it reads.
bool Capture::give_integer(c10::IValue& result, const TraceOp& op) {
  if (!stand_ins_ || !wrap_node || !result.isInt()) return false;
  TraceOp read;
  read.schema = op.schema;
  read.args = op.args;
  read.line = op.line;
  SymInt value = late_symbol(result.toInt(), read, -1, 0);
  trace_.ops.push_back(std::move(read));
  result = c10::Scalar(program_integer(value, trace_.symbols));
  return true;
}

}  // namespace broach
