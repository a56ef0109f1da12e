#include "externs.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "compat.h"
#include "draws.h"
#include "join.h"
#include "no_warnings.h"
#include "recorded_calls.h"
#include "support/error.h"

namespace broach {

c10::SmallVector<int64_t, 6> evaluate(const Shape& s, std::span<const int64_t> symbols) {
  return evaluated<c10::SmallVector<int64_t, 6>>(s, symbols);
}

at::Tensor tensor_over(void* data, const Type& type, const Shape& strides, std::span<const int64_t> symbols) {
  auto sizes = evaluate(type.shape, symbols), steps = evaluate(strides, symbols);
  const c10::Device device = device_of(type.device);
  return at::for_blob(data, sizes)
      .strides(steps)
      .options(at::TensorOptions().dtype(scalar_type(type.dtype)).device(device))
      .target_device(device)
      .make_tensor();
}

namespace {

c10::Scalar scalar_of(const Scalar& s) {
  if (auto i = std::get_if<int64_t>(&s)) return *i;
  if (auto d = std::get_if<double>(&s)) return *d;
  if (auto b = std::get_if<bool>(&s)) return *b;
  auto c = std::get<std::complex<double>>(s);
  return c10::complex<double>(c.real(), c.imag());
}

c10::IValue wrapped_number(const Scalar& s) {
  at::Tensor t = at::scalar_tensor(scalar_of(s), at::TensorOptions().dtype(std::holds_alternative<bool>(s)      ? at::kBool
                                                                           : std::holds_alternative<int64_t>(s) ? at::kLong
                                                                           : std::holds_alternative<double>(s)  ? at::kDouble
                                                                                                                : at::kComplexDouble));
  t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

std::pair<std::string, std::string> split_name(const std::string& schema) {
  size_t dot = schema.find('.');
  return dot == std::string::npos ? std::pair(schema, std::string()) : std::pair(schema.substr(0, dot), schema.substr(dot + 1));
}

bool wants_tensor(const c10::Argument& a) { return a.type()->isSubtypeOf(*c10::OptionalType::create(c10::TensorType::get())); }

// Arguments that are the same on every call; None where they are not. An undefined tensor is no None where the schema wants a tensor.
c10::IValue constant(const ExternArg& a, const c10::Argument& schema) {
  if (auto s = std::get_if<Scalar>(&a.value)) {
    if (wants_tensor(schema)) return wrapped_number(*s);
    if (schema.type()->kind() == c10::TypeKind::FloatType) return as_double(*s);
    return c10::IValue(scalar_of(*s));
  }
  if (auto s = std::get_if<std::string>(&a.value)) {
    const auto& t = *schema.type();
    bool device = t.kind() == c10::TypeKind::DeviceObjType ||
                  (t.kind() == c10::TypeKind::OptionalType && t.containedType(0)->kind() == c10::TypeKind::DeviceObjType);
    return device ? c10::IValue(c10::Device(*s)) : c10::IValue(*s);
  }
  if (auto d = std::get_if<std::vector<double>>(&a.value)) return c10::IValue(*d);
  if (auto b = std::get_if<ExternArg::Bools>(&a.value)) {
    c10::List<bool> list;
    for (bool x : *b) list.push_back(x);
    return list;
  }
  if (auto o = std::get_if<ExternArg::Opaque>(&a.value)) return *std::static_pointer_cast<const c10::IValue>(o->object);
  return schema.type()->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue();
}

}  // namespace

c10::OperatorHandle find_operation(const std::string& schema) {
  auto [name, overload] = split_name(schema);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

ExternOp::ExternOp(const ExternCall& call) : call_(call), op_(find_operation(call.schema)) {
  for (size_t i = 0; i < call_.args.size(); ++i) constants_.push_back(constant(call_.args[i], op_.schema().arguments().at(i)));
}

torch::jit::Stack ExternOp::run(c10::ArrayRef<at::Tensor> operands, std::span<const int64_t> symbols) const {
  torch::jit::Stack stack;
  stack.reserve(call_.args.size());
  for (size_t i = 0; i < call_.args.size(); ++i) stack.push_back(argument(i, operands, symbols));
  op_.callBoxed(stack);
  return stack;
}

c10::IValue ExternOp::argument(size_t i, c10::ArrayRef<at::Tensor> operands, std::span<const int64_t> symbols) const {
  const auto& v = call_.args[i].value;
  if (auto t = std::get_if<ExternArg::Input>(&v)) return operands[t->index];
  if (auto n = std::get_if<ExternArg::InputNumber>(&v)) {
    double value = operands[n->index].item<double>();
    return wants_tensor(op_.schema().arguments()[i]) ? wrapped_number(value) : c10::IValue(value);
  }
  if (auto s = std::get_if<SymInt>(&v)) {
    int64_t n = s->eval(symbols);
    return wants_tensor(op_.schema().arguments()[i]) ? c10::IValue(wrapped_number(n)) : c10::IValue(n);
  }
  if (auto s = std::get_if<Shape>(&v)) {
    std::vector<int64_t> ints;
    for (const SymInt& e : *s) ints.push_back(e.eval(symbols));
    return ints;
  }
  if (auto list = std::get_if<ExternArg::Inputs>(&v)) {
    if (!list->optional_elements) {
      std::vector<at::Tensor> out;
      for (int64_t k : list->indices) out.push_back(operands[static_cast<size_t>(k)]);
      return out;
    }
    c10::List<std::optional<at::Tensor>> out;
    for (int64_t k : list->indices) out.push_back(k < 0 ? std::nullopt : std::optional(operands[static_cast<size_t>(k)]));
    return out;
  }
  return constants_[i];
}

namespace {

// Dimensions of more than one element by their strides, the shortest first.
std::vector<size_t> by_stride(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1) dims.push_back(d);
  std::ranges::stable_sort(dims, {}, [&](size_t d) { return strides[d]; });
  return dims;
}

// Whether elements may share memory: a step is no longer than what the shorter ones reach over.
bool may_overlap(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t reach = 0;
  for (size_t d : by_stride(sizes, strides)) {
    if (strides[d] <= reach) return true;
    reach += (sizes[d] - 1) * strides[d];
  }
  return false;
}

// The same elements with these strides; where several of them would share memory that is no expanded dimension, as they are.
at::Tensor with_strides(at::Tensor t, c10::IntArrayRef strides) {
  bool same = true;
  for (int64_t d = 0; d < t.dim(); ++d) same = same && (t.size(d) == 1 || t.stride(d) == strides[static_cast<size_t>(d)]);
  if (same || t.numel() == 0) return t;
  const auto sizes = t.sizes().vec();
  for (int64_t d = 0; d < t.dim(); ++d)
    if (strides[static_cast<size_t>(d)] == 0) t = t.narrow(d, 0, 1);
  if (may_overlap(t.sizes(), strides)) return t.expand(sizes);
  return at::empty_strided(t.sizes(), strides, t.options()).copy_(t).expand(sizes);
}

// A copy that lies as the tensor does, but for the lengths of its gaps: which random numbers are drawn, and for which element, may go by the
// order of memory and by whether there are gaps.
at::Tensor copied_with_gaps(const at::Tensor& t) {
  if (may_overlap(t.sizes(), t.strides())) return t.clone();
  std::vector<int64_t> strides(t.sizes().size(), 1);
  int64_t reach = 0, own_reach = 0;
  for (size_t d : by_stride(t.sizes(), t.strides())) {
    strides[d] = reach + (t.strides()[d] > own_reach + 1 ? 2 : 1);
    reach += (t.sizes()[d] - 1) * strides[d], own_reach += (t.sizes()[d] - 1) * t.strides()[d];
  }
  return at::empty_strided(t.sizes(), strides, t.options()).copy_(t);
}

// Whose kernels for CPUs are faster where channels lie side by side, many times over, and take them either way.
constexpr std::string_view kEitherFormat[] = {"aten::upsample_bilinear2d_backward", "aten::upsample_nearest2d_backward"};

// Operands that must lie as eager's did are copied where they lie otherwise.
void arrange(const ExternCall& call, c10::SmallVectorImpl<at::Tensor>& operands, std::span<const int64_t> symbols) {
  const bool is_either = std::ranges::find(kEitherFormat, call.schema) != std::end(kEitherFormat);
  for (int64_t i : call.contiguous) {
    at::Tensor& t = operands[static_cast<size_t>(i)];
    t = t.contiguous(is_either && t.is_cpu() ? t.suggest_memory_format() : at::MemoryFormat::Contiguous);
  }
  const size_t first = call.results.size();
  for (size_t i = 0; first + i < call.result_strides.size(); ++i)
    if (const Shape& strides = call.result_strides[first + i]; !strides.empty())
      operands[i] = with_strides(std::move(operands[i]), evaluate(strides, symbols));
  // Without a dimension whose elements lie side by side, eager would have taken another kernel.
  if (call.schema.starts_with("aten::_scaled_dot_product_"))
    for (at::Tensor& t : operands)
      if (t.dim() == 4 && t.size(3) != 1 && t.stride(3) != 1) t = t.contiguous();
}

class AtenCall : public ExternRunner {
 public:
  AtenCall(const ExternStep& step, const Schedule& schedule) : step_(step), schedule_(schedule), call_(step.operation.call()), op_(call_) {
    if (call_.schema == "aten::mkldnn_rnn_layer") grad_mode_ = call_.results.at(3).dtype != DType::opaque;
    for (const Operand& o : step.operands)
      if (!device_ && is_accelerator(o.type.device)) device_ = device_of(o.type.device);
    auto is_output = [&](int b) { return std::ranges::find(schedule.output_buffers, b) != schedule.output_buffers.end(); };
    is_transient_ = is_recordable(step, schedule, false) && std::ranges::none_of(step.results, is_output);
  }

  bool records(bool given) const override { return is_recordable(step_, schedule_, given); }
  bool launches_many() const override { return broach::launches_many(call_); }

  void run(Frame& frame) const override {
    auto& host = *static_cast<ExternState*>(frame.host);
    const c10::OptionalDeviceGuard on(device_);
    // Once the call is recorded it takes nothing from there, and what it took before would be nobody's.
    std::optional<OutOfSteadyMemory> out;
    if (is_transient_) out.emplace();
    std::optional<NoWarnings> quiet;  // of weights that do not lie in one piece of memory
    if (call_.schema == "aten::_cudnn_rnn") quiet.emplace();
    c10::SmallVector<at::Tensor, 8> operands;
    for (size_t i = 0; i < step_.operands.size(); ++i) operands.push_back(operand(i, frame, host));
    arrange(call_, operands, frame.symbols);
    for (int64_t m : call_.mutated) {
      at::Tensor& t = operands[static_cast<size_t>(m)];
      t = call_.effect && t.defined() && !t.is_non_overlapping_and_dense() ? copied_with_gaps(t) : t.clone();
    }
    size_t next = 0;
    std::optional<c10::AutoGradMode> mode;
    if (grad_mode_) mode.emplace(*grad_mode_);
    for (auto& v : op_.run(operands, frame.symbols)) {
      if (v.isTensorList())
        for (const at::Tensor& t : v.toTensorVector()) keep(next++, t, frame, host);
      else if (v.isTensor()) keep(next++, v.toTensor(), frame, host);
      else ++next;
    }
    next = call_.results.size() - call_.mutated.size();
    for (int64_t m : call_.mutated) keep(next++, operands[static_cast<size_t>(m)], frame, host);
  }

 private:
  at::Tensor operand(size_t i, Frame& frame, const ExternState& host) const {
    const Operand& o = step_.operands[i];
    auto buffer = static_cast<size_t>(o.place.buffer);
    const at::Tensor& owner = host.tensors[buffer];
    const Buffer& b = schedule_.buffers[buffer];
    if (owner.defined() && o.place.offset == SymInt(0) && o.place.strides == b.strides && o.type == b.type) return owner;
    if (o.type.dtype == DType::opaque && owner.defined())  // of elements whose size only libtorch knows
      return owner.as_strided(evaluate(o.type.shape, frame.symbols), evaluate(o.place.strides, frame.symbols),
                              owner.storage_offset() + o.place.offset.eval(frame.symbols));
    auto* data = static_cast<std::byte*>(frame.data[buffer]) + o.place.offset.eval(frame.symbols) * size_of(o.type.dtype);
    return tensor_over(data, o.type, o.place.strides, frame.symbols);
  }

  // Holds a result in the layout that the following steps were compiled for.
  void keep(size_t i, const at::Tensor& t, Frame& frame, ExternState& host) const {
    int buffer = i < step_.results.size() ? step_.results[i] : -1;
    if (buffer < 0 || !t.defined()) return;
    const Buffer& b = schedule_.buffers[static_cast<size_t>(buffer)];
    auto sizes = evaluate(b.type.shape, frame.symbols), strides = evaluate(b.strides, frame.symbols);
    // Of a type that only such calls know, or no tensor at all when it was recorded, which nobody reads.
    const bool is_plain = t.layout() == c10::kStrided && !t.is_quantized() && t.sizes() == c10::IntArrayRef(sizes);
    if (b.type.dtype == DType::opaque && !(is_plain && dtype_of(t.scalar_type()) == DType::opaque)) return;
    check(t.sizes() == c10::IntArrayRef(sizes) && dtype_of(t.scalar_type()) == b.type.dtype, "extern ", call_.schema, " gave ",
          t.scalar_type(), t.sizes(), ", compiled for ", name_of(b.type.dtype), c10::IntArrayRef(sizes));
    at::Tensor held = t.resolve_conj().resolve_neg();
    if (t.numel() > 0 && (t.strides() != c10::IntArrayRef(strides) || t._is_zerotensor())) {  // the latter has no memory
      held = at::empty_strided(sizes, strides, t.options());
      held.copy_(t);
    }
    frame.data[static_cast<size_t>(buffer)] = held.data_ptr();
    host.tensors[static_cast<size_t>(buffer)] = std::move(held);
  }

  const ExternStep& step_;
  const Schedule& schedule_;
  const ExternCall& call_;
  ExternOp op_;
  std::optional<c10::Device> device_;  // of the operands, if one of them does not lie on the CPU
  bool is_transient_ = false;          // may be recorded, and nobody else holds what it gives
  std::optional<bool> grad_mode_;      // as it was, where the operation asks for it below autograd
};

}  // namespace

std::unique_ptr<ExternRunner> make_extern(const ExternStep& step, const Schedule& schedule) {
  if (auto join = make_join(step, schedule)) return join;
  if (auto draw = make_draw(step)) return draw;
  return std::make_unique<AtenCall>(step, schedule);
}

void release_extern_result(Frame& frame, int buffer) {
  static_cast<ExternState*>(frame.host)->tensors[static_cast<size_t>(buffer)] = at::Tensor();
}

}  // namespace broach
