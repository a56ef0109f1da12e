#include "capture.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "compat.h"
#include "ops/lower.h"
#include "support/error.h"

namespace broach {

namespace {

struct CaptureSlot : c10::DebugInfoBase {
  explicit CaptureSlot(Capture* c) : capture(c) {}
  Capture* capture;
};

// Operations that write into arguments without saying so in their schema: (name, argument that must be true, first written
// argument, number of them).
struct HiddenMutation {
  const char* schema;
  size_t flag, first, count;
};
constexpr HiddenMutation kHiddenMutations[] = {
    {"aten::native_batch_norm", 5, 3, 2},
    {"aten::cudnn_batch_norm", 5, 3, 2},
    {"aten::miopen_batch_norm", 5, 3, 2},
    {"aten::batch_norm", 5, 3, 2},
};

// Results that are numbers but say nothing about elements.
constexpr std::string_view kMetadataReads[] = {"aten::is_same_size", "aten::is_set_to", "aten::_nested_tensor_strides", "aten::sym_size",
                                               "aten::_has_compatible_shallow_copy_type", "aten::_has_same_storage_numel", "aten::is_pinned"};

bool is_metadata_read(const std::string& name) {
  return std::any_of(std::begin(kMetadataReads), std::end(kMetadataReads), [&](std::string_view n) { return name.starts_with(n); });
}

constexpr const char* kLazyInput = "an input is a lazy conjugate or negative of another tensor";

std::string full_name(const c10::OperatorHandle& op) {
  const auto& n = op.operator_name();
  return n.overload_name.empty() ? n.name : n.name + "." + n.overload_name;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Capture* c = Capture::current();
  if (c) return c->record(op, stack);
  c10::impl::ExcludeDispatchKeyGuard below(kCaptureKey);
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

Capture* Capture::current() {
  auto* slot = dynamic_cast<CaptureSlot*>(c10::ThreadLocalDebugInfo::get(kCaptureSlot));
  return slot ? slot->capture : nullptr;
}

Capture::Capture(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& t : inputs) {
    bool known = t.defined() && tensors_.contains(t.unsafeGetTensorImpl());
    // A tensor given twice is one input whose second position only has to be the same tensor again; the guards check it.
    trace_.inputs.push_back(known ? id_of(t) : add_tensor(t));
    if (known) fail_with("one tensor is given twice");
    if (t.is_conj() || t.is_neg()) fail_with(kLazyInput);
  }
}

Capture::~Capture() = default;

void Capture::run(const std::function<void()>& program) {
  c10::DebugInfoGuard slot(kCaptureSlot, std::make_shared<CaptureSlot>(this));
  c10::impl::IncludeDispatchKeyGuard key(kCaptureKey);
  program();
}

void Capture::finish(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& t : outputs) {
    if (!t.defined()) {
      trace_.outputs.push_back(kNoTensor);
      continue;
    }
    trace_.outputs.push_back(id_of(t));
  }
}

void Capture::fail_with(const std::string& why) {
  if (failure_.empty()) failure_ = why;
}

void Capture::reject(std::string why) {
  std::lock_guard lock(mutex_);
  fail_with(why);
}

void Capture::set_line(std::string line) {
  std::lock_guard lock(mutex_);
  if (trace_.lines.empty() || trace_.lines.back() != line) trace_.lines.push_back(std::move(line));
  line_ = static_cast<int32_t>(trace_.lines.size()) - 1;
}

TensorId Capture::add_tensor(const at::Tensor& t) {
  TraceTensor info;
  auto id = static_cast<TensorId>(trace_.tensors.size());
  auto* impl = t.unsafeGetTensorImpl();
  tensors_.emplace(impl, Seen{c10::weak_intrusive_ptr<c10::TensorImpl>(t.getIntrusivePtr()), id});
  bool plain = t.layout() == c10::kStrided && !t.is_quantized() && t.has_storage() && !t.unsafeGetTensorImpl()->is_python_dispatch();
  if (!plain) {
    fail_with(cat("a tensor of a kind that Broach does not compile yet: ", t.toString()));
    info.type = {DType::opaque, {SymInt(0)}, device_of(t.device())};
    info.strides = {SymInt(1)};
    info.storage = -1 - id;
    trace_.tensors.push_back(std::move(info));
    return id;
  }
  if (!t.device().is_cpu()) fail_with(cat("a tensor on ", t.device().str(), ": this build compiles for the CPU"));
  info.type = {dtype_of(t.scalar_type()), shape_of(t.sizes()), device_of(t.device())};
  info.strides = shape_of(t.strides());
  info.offset = t.storage_offset();
  info.conj = t.is_conj();
  info.neg = t.is_neg();
  auto* storage = t.storage().unsafeGetStorageImpl();
  auto [it, fresh] = storages_.emplace(storage, SeenStorage{c10::weak_intrusive_ptr<c10::StorageImpl>(t.storage().getWeakStorageImpl().lock()), static_cast<int32_t>(storages_.size())});
  info.storage = it->second.id;
  trace_.tensors.push_back(std::move(info));
  return id;
}

// Torch hands the program a copy of the tensor that `view.dtype` made, which no operation reports: the two lie alike in one
// storage, and the first is gone.
TensorId Capture::twin_of(TensorId id) const {
  const TraceTensor& t = trace_.tensors[static_cast<size_t>(id)];
  for (auto op = trace_.ops.rbegin(); op != trace_.ops.rend(); ++op) {
    if (op->schema != "aten::view.dtype") continue;
    const TraceTensor& made = trace_.tensors[static_cast<size_t>(op->results[0])];
    if (made.storage == t.storage && made.type == t.type && made.strides == t.strides && made.offset == t.offset) return op->results[0];
  }
  return kNoTensor;
}

TensorId Capture::id_of(const at::Tensor& t) {
  auto it = tensors_.find(t.unsafeGetTensorImpl());
  if (it != tensors_.end()) return it->second.id;
  TensorId id = add_tensor(t), twin = twin_of(id);
  if (twin != kNoTensor) {
    TraceOp alias;
    alias.schema = "aten::alias";
    alias.args.push_back({Arg::Tensor{twin}});
    alias.results.push_back(id);
    alias.is_view = true;
    trace_.ops.push_back(std::move(alias));
    return id;
  }
  if (t.is_conj() || t.is_neg()) fail_with(kLazyInput);
  trace_.inputs.push_back(id);
  lifted_.push_back(t);
  return id;
}

namespace {

Scalar scalar_of(const c10::Scalar& s) {
  if (s.isBoolean()) return s.toBool();
  if (s.isIntegral(false)) return s.toLong();
  if (s.isComplex()) return std::complex<double>(s.toComplexDouble().real(), s.toComplexDouble().imag());
  return s.toDouble();
}

ExternArg::Opaque opaque(const c10::IValue& v) { return {std::make_shared<const c10::IValue>(v)}; }

}  // namespace

Arg Capture::arg_of(const c10::IValue& v, const c10::Argument& schema) {
  if (v.isNone()) return {};
  if (v.isTensor()) {
    const at::Tensor& t = v.toTensor();
    if (!t.defined()) return {};
    if (t.unsafeGetTensorImpl()->is_wrapped_number() && !tensors_.contains(t.unsafeGetTensorImpl())) return {Arg::Number{scalar_of(t.item())}};
    return {Arg::Tensor{id_of(t)}};
  }
  if (v.isTensorList() || v.isOptionalTensorList()) {
    Arg::Tensors list;
    list.optional_elements = v.isOptionalTensorList();
    for (const c10::IValue& e : v.toListRef()) list.ids.push_back(e.isNone() || !e.toTensor().defined() ? kNoTensor : id_of(e.toTensor()));
    return {list};
  }
  if (v.isBool()) return {Scalar(v.toBool())};
  if (v.isInt()) return {SymInt(v.toInt())};
  if (v.isDouble()) return {Scalar(v.toDouble())};
  if (v.isComplexDouble()) return {scalar_of(v.toScalar())};
  if (v.isString()) return {v.toStringRef()};
  if (v.isDevice()) return {v.toDevice().str()};
  if (v.isIntList()) return {shape_of(v.toIntVector())};
  if (v.isDoubleList()) {
    auto list = v.toDoubleVector();
    return {std::vector<double>(list.begin(), list.end())};
  }
  if (v.isBoolList()) {
    auto list = v.toBoolList();
    return {ExternArg::Bools(list.begin(), list.end())};
  }
  if (v.isList()) {  // lists of sizes that are symbolic integers in the schema but plain here
    bool ints = true;
    Shape out;
    for (const c10::IValue& e : v.toListRef()) {
      ints = ints && e.isInt();
      if (ints) out.push_back(e.toInt());
    }
    if (ints && !out.empty()) return {out};
  }
  (void)schema;
  return {opaque(v)};
}

void Capture::add_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack, TraceOp& out) {
  size_t n = op.schema().returns().size();
  auto add = [&](const at::Tensor& t) {
    if (!t.defined()) return out.results.push_back(kNoTensor);
    auto it = tensors_.find(t.unsafeGetTensorImpl());
    out.results.push_back(it != tensors_.end() ? it->second.id : add_tensor(t));
  };
  for (size_t i = stack.size() - n; i < stack.size(); ++i) {
    if (stack[i].isTensor()) add(stack[i].toTensor());
    else if (stack[i].isTensorList())
      for (const at::Tensor& t : stack[i].toTensorVector()) add(t);
    else if (stack[i].isNone()) out.results.push_back(kNoTensor);
    else if (!is_metadata_read(op.schema().name()))
      fail_with(cat("a value is read on the host by ", full_name(op), line_ >= 0 ? " at " + trace_.lines[static_cast<size_t>(line_)] : ""));
  }
}

// An element of an input that nothing has written is a value to guard on, and a constant in the trace.
bool Capture::guard_read(const torch::jit::Stack& stack, const TraceOp& op) {
  if (op.schema != "aten::_local_scalar_dense" || stack.back().isComplexDouble()) return false;
  const auto* read = std::get_if<Arg::Tensor>(&op.args.at(0).value);
  auto input = read ? std::find(trace_.inputs.begin(), trace_.inputs.end(), read->id) : trace_.inputs.end();
  if (input == trace_.inputs.end()) return false;
  int32_t storage = trace_.tensors[static_cast<size_t>(read->id)].storage;
  for (const TraceOp& before : trace_.ops)
    for (TensorId m : before.mutated)
      if (trace_.tensors[static_cast<size_t>(m)].storage == storage) return false;
  trace_.reads.push_back({static_cast<int>(input - trace_.inputs.begin()), scalar_of(stack.back().toScalar())});
  return true;
}

// Indexing has sizes that depend on data only where an index is a mask.
bool Capture::indexes_by_position(const TraceOp& op) const {
  if (op.schema != "aten::index.Tensor" && op.schema != "aten::_unsafe_index.Tensor") return false;
  const auto* list = std::get_if<Arg::Tensors>(&op.args.at(1).value);
  return list && std::all_of(list->ids.begin(), list->ids.end(), [&](TensorId id) {
           if (id == kNoTensor) return true;
           DType t = trace_.tensors[static_cast<size_t>(id)].type.dtype;
           return t == DType::i64 || t == DType::i32;
         });
}

void Capture::record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::string name = full_name(op);
  // Composite operations without an entry are taken apart by their own implementation, whose parts come here one by one.
  if (!OpTable::get().find(name) && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    return;
  }
  c10::impl::ExcludeDispatchKeyGuard below(kCaptureKey);
  const auto& schema = op.schema();
  size_t n = schema.arguments().size(), base = stack->size() - n;
  TraceOp out;
  out.schema = name;
  {
    std::lock_guard lock(mutex_);
    out.line = line_;
    for (size_t i = 0; i < n; ++i) {
      const auto& argument = schema.arguments()[i];
      out.args.push_back(arg_of((*stack)[base + i], argument));
      if (!argument.alias_info() || !argument.alias_info()->isWrite()) continue;
      if (auto one = std::get_if<Arg::Tensor>(&out.args.back().value)) out.mutated.push_back(one->id);
      if (auto many = std::get_if<Arg::Tensors>(&out.args.back().value))
        for (TensorId id : many->ids)
          if (id != kNoTensor) out.mutated.push_back(id);
    }
    for (const HiddenMutation& h : kHiddenMutations)
      if (name == h.schema && (*stack)[base + h.flag].isBool() && (*stack)[base + h.flag].toBool())
        for (size_t i = h.first; i < h.first + h.count; ++i)
          if (auto one = std::get_if<Arg::Tensor>(&out.args[i].value)) out.mutated.push_back(one->id);
    for (const auto& r : schema.returns()) out.is_view |= r.alias_info() && !r.alias_info()->isWrite();
    out.effect = op.hasTag(at::Tag::nondeterministic_seeded) || !name.starts_with("aten::");
    if (op.hasTag(at::Tag::inplace_view)) fail_with(cat(name, " changes the sizes of a tensor in place"));
    if (op.hasTag(at::Tag::dynamic_output_shape) && !indexes_by_position(out)) fail_with(cat("the sizes of the result of ", name, " depend on data"));
  }
  op.callBoxed(stack);
  std::lock_guard lock(mutex_);
  if (guard_read(*stack, out)) return;
  add_results(op, *stack, out);
  trace_.ops.push_back(std::move(out));
}

}  // namespace broach
