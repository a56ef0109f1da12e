#include "capture.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "autocast_cache.h"
#include "compat.h"
#include "composites.h"
#include "keys.h"
#include "operations.h"
#include "ops/lower.h"
#include "support/error.h"
#include "support/log.h"
#include "symbolic.h"
#include "trace/layout.h"

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
    {"aten::native_batch_norm", 5, 3, 2}, {"aten::cudnn_batch_norm", 5, 3, 2},      {"aten::miopen_batch_norm", 5, 3, 2},
    {"aten::batch_norm", 5, 3, 2},        {"aten::_cudnn_rnn_backward", 16, 20, 1},  // what the layer has kept for it
};

// Results that are numbers but say nothing about elements.
constexpr std::string_view kMetadataReads[] = {"aten::is_same_size",
                                               "aten::is_set_to",
                                               "aten::_nested_tensor_strides",
                                               "aten::sym_size",
                                               "aten::_has_compatible_shallow_copy_type",
                                               "aten::_has_same_storage_numel",
                                               "aten::is_pinned"};

bool is_metadata_read(const std::string& name) {
  return std::any_of(std::begin(kMetadataReads), std::end(kMetadataReads), [&](std::string_view n) { return name.starts_with(n); });
}

std::string full_name(const c10::OperatorHandle& op) {
  const auto& n = op.operator_name();
  return n.overload_name.empty() ? n.name : n.name + "." + n.overload_name;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Capture* c = Capture::current();
  if (c && !c->is_abandoned()) return c->record(op, stack);
  c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
  op.callBoxed(stack);
}

// Registered as the library is loaded; nothing where there is no key for it.
std::optional<torch::Library> registered() {
  if (!capture_keys().obstacle.empty()) return std::nullopt;
  std::optional<torch::Library> library(std::in_place, torch::Library::IMPL, "_", capture_keys().record, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  return library;
}

const std::optional<torch::Library> kRegistered = registered();

}  // namespace

Capture* Capture::current() {
  auto* slot = dynamic_cast<CaptureSlot*>(c10::ThreadLocalDebugInfo::get(kCaptureSlot));
  return slot ? slot->capture : nullptr;
}

Capture::Capture(const std::vector<at::Tensor>& inputs, const SymbolicSizes* sizes, bool speculative, bool stand_ins)
    : given_(inputs),
      inputs_(inputs),
      symbolic_(sizes != nullptr),
      speculative_(speculative),
      stand_ins_(symbolic_ && speculative && stand_ins) {
  meet(c10::kCPU);
  if (const std::string& why = capture_keys().obstacle; !why.empty()) {
    if (symbolic_) unsupported(why);      // stand-ins bear no operation that is not recorded
    fail_with({why, Fallback::nothing});  // no graph that Dynamo would find can be recorded either
    abandoned_ = true;
  }
  for (const at::Tensor& t : inputs) {
    bool known = t.defined() && tensors_.contains(t.unsafeGetTensorImpl());
    // A tensor given twice is one input whose second position only has to be the same tensor again; the guards check it.
    trace_.inputs.push_back(known ? id_of(t) : add_tensor(t));
    if (known) fail_with("one tensor is given twice");
    if (t.is_conj() || t.is_neg()) fail_with("an input is a lazy conjugate or negative of another tensor");
  }
  if (symbolic_) add_symbols(*sizes);
  for (size_t i = 0; i < inputs.size(); ++i) add_facts(inputs[i], inputs_[i]);
}

// The program is given what stands for the inputs.
void Capture::add_symbols(const SymbolicSizes& sizes) {
  trace_.symbols = sizes.symbols;
  for (size_t i = 0; i < given_.size(); ++i) {
    TraceTensor& t = trace_.tensors[static_cast<size_t>(trace_.inputs[i])];
    t.type.shape = sizes.sizes[i];
    t.strides = sizes.strides[i];
    inputs_[i] = seen_by_program(given_[i]);
    if (!inputs_[i].is_same(given_[i]) && given_[i].requires_grad()) require_gradients(inputs_[i], given_[i].is_leaf());
  }
}

Capture::~Capture() = default;

void Capture::run(const std::function<void()>& program) {
  WithoutAutocastCache fresh;
  OperationsUnderWay operations;
  if (abandoned_) return program();
  random_.renew();
  c10::DebugInfoGuard slot(kCaptureSlot, std::make_shared<CaptureSlot>(this));
  c10::impl::IncludeDispatchKeyGuard keys(capture_keys().both());
  const std::vector<size_t> before = references();
  program();
  for (size_t i = 0; const size_t now : references()) is_held_.push_back(now > before[i++]);
}

void Capture::finish(std::vector<at::Tensor>& outputs, const std::vector<HostFloats::Id>& numbers) {
  differentiable_.runs_backward = has_run_backward_;
  auto give = [&](at::Tensor& t) {
    differentiable_.has_history.push_back(t.defined() && t.requires_grad());
    differentiable_.shown.push_back(shown_as(t));
    trace_.outputs.push_back(id_of_output(t));
  };
  look_at_operands({given_, outputs});
  for (at::Tensor& t : outputs) give(t);
  for (at::Tensor& t : std::exchange(bases_, {})) give(t);
  for (const at::Tensor& t : unplaced_)
    if (!has_place(t)) fail_with("the program reads a tensor that is in none of the places where a later call would look for it");
  for (InputFacts& f : facts_) f.has_no_hooks = has_run_backward_;
  if (draws_) check_generators();
  for (c10::Device d : current_)
    if (current_device(d.type()) != d) fail_with("the program changes the current device");
  for (HostFloats::Id n : numbers) trace_.outputs.push_back(tensor_of(n));
  add_decisions();
  for (auto [number, tensor] : numbers_) {
    trace_.numbers.push_back(number);
    trace_.inputs.push_back(tensor);
  }
  for (const at::Tensor& t : std::exchange(gradients_, {})) {
    const at::Tensor* real = real_tensor(t);
    trace_.outputs.push_back(t.defined() ? id_of(real ? *real : t) : kNoTensor);
    ++gradient_count_;
  }
  trace_.inputs.insert(trace_.inputs.end(), tangents_.begin(), tangents_.end());
  trace_.resolve(), look_at_lifted();
  if (changes_gradients() && !only_lets_inputs_need(outputs)) fail_with("the program sets requires_grad of a tensor that outlives it");
  if (std::string why = why_other_history(outputs); !why.empty()) fail_with(std::move(why));
  auto other_mode = [](const at::Tensor& t) { return t.defined() && t.is_inference() != c10::InferenceMode::is_enabled(); };
  for (size_t i = 0; i < outputs.size(); ++i)
    if (other_mode(outputs[i]) && std::find(trace_.inputs.begin(), trace_.inputs.end(), trace_.outputs[i]) == trace_.inputs.end() &&
        !is_view_of_input(trace_.outputs[i]))
      fail_with("a result is made in another inference mode than the call's");
  count_versions();
}

bool Capture::is_view_of_input(TensorId id) const {
  auto storage = [&](TensorId t) { return trace_.tensors[static_cast<size_t>(t)].storage; };
  return id != kNoTensor && std::any_of(trace_.inputs.begin(), trace_.inputs.end(), [&](TensorId i) { return storage(i) == storage(id); });
}

// What the program decided by numbers that are known only while it runs is compared like what it read, in the order of both.
void Capture::add_decisions() {
  std::vector<ValueRead> in_order;
  auto decisions = trace_.symbols->floats.deferred();
  for (size_t read = 0, next = 0; read < trace_.reads.size() || next < decisions.size();) {
    if (read < trace_.reads.size() && decisions_before_[read] <= next) {
      in_order.push_back(std::move(trace_.reads[read++]));
      continue;
    }
    const HostFloats::Decision& d = decisions[next++];
    static constexpr const char* schemas[] = {"aten::eq.Tensor", "aten::ne.Tensor", "aten::lt.Tensor", "aten::le.Tensor"};
    TensorId answer = add_computed(schemas[static_cast<size_t>(d.relation)], {{Arg::Tensor{tensor_of(d.a)}}, {Arg::Tensor{tensor_of(d.b)}}},
                                   {DType::b1, {}, {}});
    in_order.push_back({-1, answer, d.answer, line_});
  }
  trace_.reads = std::move(in_order);
}

void Capture::add_read(ValueRead r) {
  decisions_before_.push_back(trace_.symbols->floats.deferred().size());
  trace_.reads.push_back(std::move(r));
}

// ---- sizes as symbols ----

void Capture::must_not_give_gradients() const {
  if (std::ranges::any_of(inputs_, [](const at::Tensor& t) { return t.defined() && t.is_leaf() && t.grad().defined(); }))
    unsupported("a tensor that the program is given gets a gradient");
}

bool Capture::has_escaped() {
  inputs_.clear();
  made_for_.clear();
  return token_.use_count() > 1;
}

void Capture::fix_sizes(const TraceOp& op) {
  for (SymbolId s : symbols_of(trace_, op)) trace_.symbols->specialize(SymInt::symbol(s));
}

// What the operation's kernel for tensors without elements says.
std::optional<std::vector<std::vector<int64_t>>> Capture::ask_meta(const c10::OperatorHandle& op, const TraceOp& out,
                                                                   const torch::jit::Stack& given,
                                                                   const std::vector<int64_t>& values) const {
  auto numbers = [&](const Shape& s) {
    std::vector<int64_t> n;
    for (const SymInt& e : s) n.push_back(e.eval(values));
    return n;
  };
  auto meta = [&](TensorId id) {
    if (id == kNoTensor) return at::Tensor();
    const TraceTensor& t = trace_.tensors[static_cast<size_t>(id)];
    return at::empty_strided(numbers(t.type.shape), numbers(t.strides),
                             at::TensorOptions().dtype(scalar_type(t.type.dtype)).device(at::kMeta));
  };
  try {
    torch::jit::Stack stack = given;
    for (size_t i = 0; i < out.args.size(); ++i) {
      if (auto t = std::get_if<Arg::Tensor>(&out.args[i].value)) stack[i] = meta(t->id);
      if (auto n = std::get_if<SymInt>(&out.args[i].value)) stack[i] = n->eval(values);
      if (auto s = std::get_if<Shape>(&out.args[i].value)) stack[i] = numbers(*s);
      if (stack[i].isDevice()) stack[i] = c10::Device(at::kMeta);
      if (auto list = std::get_if<Arg::Tensors>(&out.args[i].value)) {
        if (list->optional_elements) return std::nullopt;
        c10::List<at::Tensor> tensors;
        for (TensorId id : list->ids) tensors.push_back(meta(id));
        stack[i] = tensors;
      }
    }
    at::NoGradGuard no_grad;
    op.callBoxed(stack);
    std::vector<std::vector<int64_t>> sizes;
    for (const c10::IValue& v : stack) {
      if (v.isTensorList())
        for (const at::Tensor& t : v.toTensorVector()) sizes.push_back(t.sizes().vec());
      else sizes.push_back(v.isTensor() && v.toTensor().defined() ? v.toTensor().sizes().vec() : std::vector<int64_t>());
    }
    return sizes;
  } catch (const std::exception&) {  // a custom operator's meta kernel throws what it likes
    return std::nullopt;             // it has no such kernel, or does not bear these sizes
  }
}

// Sizes of the tensors from `first_new` on, which are results of this operation and known in numbers so far.
void Capture::add_sizes(const c10::OperatorHandle& op, size_t first_new, const TraceOp& out, const torch::jit::Stack& given) {
  if (first_new == trace_.tensors.size() || symbols_of(trace_, out).empty()) return;
  std::vector<TraceTensor> seen;
  for (TensorId r : out.results)
    seen.push_back(r == kNoTensor ? TraceTensor{{DType::opaque, {}, {}}, {}, 0, -1} : trace_.tensors[static_cast<size_t>(r)]);
  auto is_new = [&](TensorId r) { return r == kNoTensor || static_cast<size_t>(r) >= first_new; };
  bool all_new = !asks_for_gaps(out) && std::ranges::all_of(out.results, is_new);
  auto symbolic = all_new ? symbolic_results(trace_, out, seen) : std::nullopt;
  if (!symbolic && all_new && !out.is_view)
    symbolic = probed_results(trace_, out, seen, [&](const std::vector<int64_t>& values) { return ask_meta(op, out, given, values); });
  if (!symbolic) {
    log_debug("sizes are fixed by ", full_name(op), at_line());
    return fix_sizes(out);
  }
  for (size_t i = 0; i < out.results.size(); ++i)
    if (out.results[i] != kNoTensor) trace_.tensors[static_cast<size_t>(out.results[i])] = (*symbolic)[i];
  for (size_t i = first_new; i < trace_.tensors.size(); ++i) guard_signs(trace_.tensors[i].type.shape);
}

// A size that is computed of others is one only while it is not negative; where eager gives less than one element it raises, or goes
// another way.
void Capture::guard_signs(const Shape& shape) {
  for (const SymInt& n : shape)
    if (!n.is_constant() && trace_.symbols->hint(n) > 0) trace_.symbols->ask(0, Relation::lt, n);
    else if (!n.is_constant()) trace_.symbols->specialize(n);
}

void Capture::fail_with(Reason why, Outcome outcome) {
  if (verdict_.is_good()) verdict_ = {outcome, std::move(why)};
}

void Capture::reject(Verdict why) {
  std::lock_guard lock(mutex_);
  if (verdict_.is_good() || verdict_.outcome == Outcome::wants_stand_ins) verdict_ = std::move(why);  // which no other capture bears
}

void Capture::abandon(Verdict why) {
  reject(std::move(why));
  abandoned_ = true;
  if (symbolic_) return;
  for (c10::DispatchKey key : capture_keys().both()) c10::impl::tls_set_dispatch_key_included(key, false);
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
  tensors_.emplace(impl, Seen<c10::TensorImpl>{c10::weak_intrusive_ptr<c10::TensorImpl>(t.getIntrusivePtr()), id});
  if (is_compiled_for(t.device())) meet(t.device());
  else fail_with(cat("a tensor on ", t.device().str(), ": this build has no target for that device"));
  bool plain = t.layout() == c10::kStrided && !t.is_nested() && !t.is_quantized() && t.has_storage() &&
               !t.unsafeGetTensorImpl()->is_python_dispatch() && !is_named(t);
  if (!plain) {
    fail_with(cat("a tensor of a kind that Broach does not compile yet: ", t.toString()));
    info.type = {DType::opaque, {SymInt(0)}, device_of(t.device())};
    info.strides = {SymInt(1)};
    info.storage = -1 - id;
    trace_.tensors.push_back(std::move(info));
    return id;
  }
  info.type = {dtype_of(t.scalar_type()), shape_of(t.sizes()), device_of(t.device())};
  if (symbolic_ && info.type.dtype == DType::opaque) fail_with("sizes of a tensor whose element type the graph does not have");
  info.strides = shape_of(t.strides());
  info.offset = t.storage_offset();
  info.conj = t.is_conj();
  info.neg = t.is_neg();
  auto* storage = t.storage().unsafeGetStorageImpl();
  auto [it, fresh] =
      storages_.emplace(storage, Seen<c10::StorageImpl>{c10::weak_intrusive_ptr<c10::StorageImpl>(t.storage().getWeakStorageImpl().lock()),
                                                        static_cast<int32_t>(storages_.size())});
  info.storage = it->second.id;
  trace_.tensors.push_back(std::move(info));
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

Arg Capture::number_of(const at::Tensor& t, c10::IValue& v) {
  auto hidden = symbolic_ && symbol_in_number ? symbol_in_number(t) : std::nullopt;
  if (!hidden && t.scalar_type() == c10::kUInt64)
    return fail_with({"an integer beyond 64 bits with a sign", Fallback::eager}), Arg{Arg::Number{}};
  if (!hidden) return {Arg::Number{scalar_of(t.item())}};
  Arg number{Arg::Number{}};
  if (hidden->isSymInt()) {
    SymInt e = integer_of(hidden->toSymInt());
    hidden = trace_.symbols->hint(e);
    number = {Arg::Number{scalar_of(*hidden), e}};
  } else if (auto id = hidden->isSymFloat() ? float_of(hidden->toSymFloat()) : std::nullopt) {
    number = host_number(*id);
    hidden = trace_.symbols->floats.hint(*id);
  } else {
    number = {Arg::Number{scalar_of(*hidden)}};
  }
  at::Tensor real = at::scalar_tensor(*hidden, hidden->type());
  real.unsafeGetTensorImpl()->set_wrapped_number(true);
  v = real;
  return number;
}

TensorId Capture::add_contiguous(TensorId id) {
  return add_computed("aten::clone", {{Arg::Tensor{id}}, {SymInt(static_cast<int64_t>(c10::MemoryFormat::Contiguous))}},
                      trace_.tensors[static_cast<size_t>(id)].type);
}

TensorId Capture::add_element(TensorId dense, int64_t index) {
  Type type = trace_.tensors[static_cast<size_t>(dense)].type;
  type.shape.clear();
  TensorId element = add_computed("aten::as_strided", {{Arg::Tensor{dense}}, {Shape{}}, {Shape{}}, {SymInt(index)}}, type);
  trace_.tensors.back().storage = trace_.tensors[static_cast<size_t>(dense)].storage;
  trace_.tensors.back().offset = index;
  trace_.ops.back().is_view = true;
  return element;
}

// Of what is no tensor and holds none.
static Arg plain_arg(const c10::IValue& v) {
  if (v.isBool()) return {Scalar(v.toBool())};
  if (v.isInt()) return {SymInt(v.toInt())};
  if (v.isDouble()) return {Scalar(v.toDouble())};
  if (v.isComplexDouble()) return {scalar_of(v.toScalar())};
  if (v.isString()) return {v.toStringRef()};
  if (v.isIntList()) return {shape_of(v.toIntVector())};
  if (v.isDoubleList()) {
    auto list = v.toDoubleVector();
    return {std::vector<double>(list.begin(), list.end())};
  }
  if (v.isBoolList()) {
    auto list = v.toBoolList();
    return {ExternArg::Bools(list.begin(), list.end())};
  }
  return {opaque(v)};
}

// A list of sizes, symbolic or not. Nothing if it is none.
static std::optional<Shape> sizes_in(const c10::IValue& v) {
  if (!v.isList()) return std::nullopt;
  Shape out;
  for (const c10::IValue& e : v.toListRef()) {
    if (!e.isInt() && !e.isSymInt()) return std::nullopt;
    out.push_back(e.isInt() ? SymInt(e.toInt()) : integer_of(e.toSymInt()));
  }
  return out.empty() ? std::nullopt : std::optional(std::move(out));
}

Arg Capture::arg_of(c10::IValue& v) {
  auto real = [&](const at::Tensor& t) {
    differentiates_ = differentiates_ || (t.defined() && t.requires_grad() && at::GradMode::is_enabled());
    if (t.defined() && !t.requires_grad()) read_without_history_.insert(t.unsafeGetTensorImpl());
    const at::Tensor* inside = symbolic_ ? real_tensor(t) : nullptr;
    return inside ? *inside : t;
  };
  if (v.isNone()) return {};
  if (v.isTensor()) {
    at::Tensor t = real(v.toTensor());
    if (!t.defined()) return {};
    if (t.unsafeGetTensorImpl()->is_wrapped_number() && !tensors_.contains(t.unsafeGetTensorImpl())) return number_of(t, v);
    if (symbolic_) v = t;
    return {Arg::Tensor{id_of(t)}};
  }
  if (v.isTensorList() || v.isOptionalTensorList()) {
    Arg::Tensors list;
    list.optional_elements = v.isOptionalTensorList();
    std::vector<std::optional<at::Tensor>> tensors;
    for (const c10::IValue& e : v.toListRef()) {
      bool absent = e.isNone() || !e.toTensor().defined();
      tensors.push_back(absent ? std::nullopt : std::optional(real(e.toTensor())));
      list.ids.push_back(absent ? kNoTensor : id_of(*tensors.back()));
    }
    if (symbolic_ && list.optional_elements) v = c10::List<std::optional<at::Tensor>>(tensors);
    if (symbolic_ && !list.optional_elements) {
      c10::List<at::Tensor> plain;
      for (const auto& t : tensors) plain.push_back(t.value_or(at::Tensor()));
      v = plain;
    }
    return {list};
  }
  if (v.isSymInt()) {
    SymInt e = integer_of(v.toSymInt());
    v = trace_.symbols->hint(e);
    return {e};
  }
  if (v.isSymFloat()) {
    auto id = float_of(v.toSymFloat());
    Arg number = id ? host_number(*id) : Arg{Scalar(v.toSymFloat().expect_float())};
    v = id ? trace_.symbols->floats.hint(*id) : v.toSymFloat().expect_float();
    return number;
  }
  if (v.isDevice()) {  // one without an index is the current one, which a guard keeps
    c10::Device d = v.toDevice();
    if (!d.has_index()) d = current_device(d.type()).value_or(d);
    if (d.has_index()) v = d;
    return meet(d), Arg{d.str()};
  }
  if (v.isSymBool()) v = v.toSymBool().guard_bool(__FILE__, __LINE__);
  auto sizes = v.isIntList() ? std::nullopt : sizes_in(v);
  if (!sizes) return plain_arg(v);
  if (symbolic_) {
    std::vector<int64_t> numbers;
    for (const SymInt& e : *sizes) numbers.push_back(trace_.symbols->hint(e));
    v = numbers;
  }
  return {*sizes};
}

// Which read of an element no recording bears: the program's own, or one of an operation that it calls.
static Reason unread(const std::string& operation, const std::string& where) {
  std::string reader = OperationsUnderWay::innermost();
  return reader.empty() ? Reason(cat("a value is read on the host by ", operation, where), Fallback::in_parts)
                        : cat("an element decides what ", reader, " does", where);
}

std::string Capture::at_line() const { return line_ >= 0 ? " at " + trace_.lines[static_cast<size_t>(line_)] : ""; }

void Capture::add_results(const c10::OperatorHandle& op, torch::jit::Stack& stack, TraceOp& out, const torch::jit::Stack& given) {
  size_t n = op.schema().returns().size(), first_new = trace_.tensors.size();
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
    else if (const SymInt* length = stack[i].isInt() ? length_given(out) : nullptr) {
      out.results.push_back(kNoTensor);
      if (symbolic_) stack[i] = program_integer(*length, trace_.symbols);
    } else if (!is_metadata_read(op.schema().name())) fail_with(unread(out.schema, at_line()));
    else fix_sizes(out);
  }
  if (!symbolic_) return;
  if (!add_data_sizes(first_new, out)) add_sizes(op, first_new, out, given);
  for (size_t i = stack.size() - n; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined()) stack[i] = seen_by_program(stack[i].toTensor());
    else if (stack[i].isTensorList()) {
      std::vector<at::Tensor> list = stack[i].toTensorVector();
      for (at::Tensor& t : list) t = seen_by_program(t);
      stack[i] = list;
    }
  }
}

// An operation that makes a tensor another window into its own memory is a view, which the tensor then is.
void Capture::begin_view_in_place(const c10::OperatorHandle& op, TraceOp& out) {
  auto [name, overload] = op.operator_name();
  if (name.ends_with('_')) name.pop_back();
  auto view = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!view) view = c10::Dispatcher::singleton().findSchema({name, "int"});  // of transpose_
  bool is_view = view && !view->schema().returns().empty() && view->schema().returns()[0].alias_info() &&
                 !view->schema().returns()[0].alias_info()->isWrite();
  auto* self = out.args.empty() ? nullptr : std::get_if<Arg::Tensor>(&out.args[0].value);
  if (symbolic_ || !is_view || !self || std::find(trace_.inputs.begin(), trace_.inputs.end(), self->id) != trace_.inputs.end()) {
    const std::string why = cat(out.schema, " changes the sizes of a tensor in place", at_line());
    // The first before it is done, as it could not be taken back. A parameter gets its sizes so in the first call, or a copy its memory.
    return symbolic_ ? unsupported(why) : fail_with(why, Outcome::spoilt);
  }
  out.schema = full_name(*view);
  out.is_view = true;
  out.mutated.clear();
  std::erase_if(tensors_, [&](const auto& seen) { return seen.second.id == self->id; });
}

// An element of an input that nothing has written is a value to guard on, and a constant in the trace; so is a computed
// integer, which is compared once it is known. Computed fractions would differ by their rounding.
bool Capture::guard_read(torch::jit::Stack& stack, const TraceOp& op) {
  if (op.schema != "aten::_local_scalar_dense" || stack.back().isComplexDouble()) return false;
  const auto* read = std::get_if<Arg::Tensor>(&op.args.at(0).value);
  if (!read) return false;
  auto input = std::find(trace_.inputs.begin(), trace_.inputs.end(), read->id);
  const TraceTensor& t = trace_.tensors[static_cast<size_t>(read->id)];
  if (is_constant(read->id)) return true;
  const bool is_input = input != trace_.inputs.end() && !is_written(t.storage);
  if (refuses_read() && !is_input) return false;
  if (!refuses_read() && ((stack.back().isDouble() && give_fraction(stack.back(), op)) || give_integer(stack.back(), op))) return true;
  ValueRead r;
  r.value = scalar_of(stack.back().toScalar());
  r.line = op.line;
  if (is_input) {
    r.input = static_cast<int>(input - trace_.inputs.begin());
  } else {
    if (!speculative_ || std::holds_alternative<double>(r.value)) {
      if (speculative_ && wrap_node) fail_with(unread(op.schema, at_line()), Outcome::wants_stand_ins);
      return false;
    }
    r.tensor = add_computed("aten::clone", {{Arg::Tensor{read->id}}, {}}, t.type);
  }
  add_read(std::move(r));
  return true;
}

bool Capture::refuses_read() const { return refuses_reads_ && OperationsUnderWay::innermost().empty(); }

// The result of an operation that the program did not call, in memory of its own.
TensorId Capture::add_computed(std::string schema, std::vector<Arg> args, Type type) {
  auto id = static_cast<TensorId>(trace_.tensors.size());
  TraceTensor t;
  t.type = std::move(type);
  t.strides = contiguous_strides(t.type.shape);
  t.storage = -1 - id;
  trace_.tensors.push_back(std::move(t));
  trace_.ops.push_back({std::move(schema), std::move(args), {id}, {}, false, false, line_});
  return id;
}

// `torch.equal`: whether all elements are. A tensor is equal to itself unless it holds NaN.
bool Capture::guard_comparison(const torch::jit::Stack& stack, const TraceOp& op) {
  if (refuses_read() || op.schema != "aten::equal") return false;
  const auto *a = std::get_if<Arg::Tensor>(&op.args.at(0).value), *b = std::get_if<Arg::Tensor>(&op.args.at(1).value);
  if (!a || !b) return false;
  const Type &x = trace_.tensors[static_cast<size_t>(a->id)].type, &y = trace_.tensors[static_cast<size_t>(b->id)].type;
  if (!same_sizes(x.shape, y.shape)) return true;  // which is guarded: no element is looked at
  if (!speculative_ || x.dtype != y.dtype) return false;
  Type truth{DType::b1, x.shape, x.device};
  TensorId each = add_computed("aten::eq.Tensor", {{*a}, {*b}}, truth);
  truth.shape.clear();
  add_read({-1, add_computed("aten::all", {{Arg::Tensor{each}}}, truth), stack.back().toBool(), op.line});
  return true;
}

bool Capture::same_sizes(const Shape& a, const Shape& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [this](const SymInt& x, const SymInt& y) { return trace_.symbols->equal(x, y); });
}

// As `_LONGEST_LIST` of broach/_numbers.py says.
constexpr int64_t kLongestList = 64;

bool Capture::read_elements(const at::Tensor& t) {
  c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
  std::lock_guard lock(mutex_);
  if (!speculative_ || refuses_reads_ || symbolic_ || t.numel() > kLongestList || !c10::isIntegralType(t.scalar_type(), true) ||
      t.layout() != c10::kStrided)
    return false;
  TensorId id = id_of(t);
  TensorId copy = add_contiguous(id);
  at::Tensor flat = t.reshape({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) add_read({-1, add_element(copy, i), scalar_of(flat[i].item()), line_});
  return true;
}

bool Capture::read_list(const at::Tensor& t) {
  if (read_elements(t)) return true;
  std::lock_guard lock(mutex_);
  if (!speculative_ || symbolic_ || !wrap_node || !c10::isFloatingType(t.scalar_type()) || t.layout() != c10::kStrided ||
      t.numel() > kLongestList)
    return false;
  fail_with({cat("a list of values is read on the host", at_line()), Fallback::in_parts}, Outcome::wants_stand_ins);
  return true;
}

void Capture::must_read_elements(const at::Tensor& t, const std::string& operation) {
  if (read_elements(t)) return;
  const std::string why = cat("elements decide what ", operation, " does", at_line());
  if (symbolic_) unsupported(why);
  fail_with(why, speculative_ ? Outcome::unsupported : Outcome::wants_stand_ins);
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

// A number as an operation got it that converts it itself; one in a tensor's place is converted element by element, whatever it is.
static bool is_converted(const c10::Argument& argument, const c10::IValue& v) {
  auto optional = argument.type()->cast<c10::OptionalType>();
  const auto kind = (optional ? optional->getElementType() : argument.type())->kind();
  return kind == c10::TypeKind::NumberType && (v.isSymInt() || v.isSymFloat());
}

static void add_mutated(const Arg& arg, TraceOp& out) {
  if (auto one = std::get_if<Arg::Tensor>(&arg.value)) out.mutated.push_back(one->id);
  if (auto many = std::get_if<Arg::Tensors>(&arg.value))
    std::copy_if(many->ids.begin(), many->ids.end(), std::back_inserter(out.mutated), [](TensorId id) { return id != kNoTensor; });
}

static void add_hidden_mutations(TraceOp& out) {
  for (const HiddenMutation& h : kHiddenMutations) {
    const Scalar* flag = out.schema == h.schema ? std::get_if<Scalar>(&out.args[h.flag].value) : nullptr;
    for (size_t i = h.first; flag && *flag == Scalar(true) && i < h.first + h.count; ++i) add_mutated(out.args[i], out);
  }
}

// The dispatch key of the backend that the operation's tensors, or its argument, choose: the CPU's where none is elsewhere.
static c10::DispatchKey backend_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  c10::Device found = c10::kCPU;
  auto look = [&](c10::Device d) { found = d.is_cpu() ? found : d; };
  auto look_at = [&](const c10::IValue& v) {
    if (v.isTensor() && v.toTensor().defined()) look(v.toTensor().device());
    if (v.isDevice()) look(v.toDevice());
  };
  for (const c10::IValue& v : c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - op.schema().arguments().size()))
    if (v.isTensorList() || v.isOptionalTensorList()) std::for_each(v.toListRef().begin(), v.toListRef().end(), look_at);
    else look_at(v);
  return c10::computeDispatchKey(std::nullopt, std::nullopt, found);
}

// Indexing makes a tensor of a number that is written, without an operation (scalar_tensor_static).
static bool is_number_of_indexing(const c10::FunctionSchema& schema, const c10::Argument& argument, const c10::IValue& v) {
  constexpr std::string_view kWriting[][2] = {{"aten::index_put_", "values"}, {"aten::copy_", "src"}, {"aten::fill_", "value"}};
  auto is_it = [&](const auto& row) { return schema.name() == row[0] && argument.name() == row[1]; };
  const bool is_written = std::ranges::any_of(kWriting, is_it);
  if (!is_written || !v.isTensor() || !v.toTensor().defined()) return false;
  const at::Tensor& t = v.toTensor();
  return t.dim() == 0 && t.is_cpu() && !t.requires_grad() && t.has_storage() && t.storage().allocator() == c10::GetCPUAllocator();
}

// Gives the numbers that the operation converts, as the program gave them. `written`: what the operation writes.
std::vector<c10::IValue> Capture::add_arguments(const c10::FunctionSchema& schema, torch::jit::Stack& stack, TraceOp& out,
                                                std::vector<std::pair<at::Tensor, TensorId>>& written) {
  std::vector<c10::IValue> numbers;
  const size_t base = stack.size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    c10::IValue& v = stack[base + i];
    if (is_converted(argument, v)) numbers.push_back(v);
    if (is_number_of_indexing(schema, argument, v)) numbers_of_indexing_.insert(v.toTensor().unsafeGetTensorImpl());
    out.args.push_back(arg_of(v));
    if (!argument.alias_info() || !argument.alias_info()->isWrite()) continue;
    add_mutated(out.args.back(), out);
    if (auto one = std::get_if<Arg::Tensor>(&out.args.back().value)) written.emplace_back(v.toTensor(), one->id);
  }
  return numbers;
}

// An error may be caught by the program, so that it is never heard of again.
void Capture::record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  try {
    record_call(op, stack);
  } catch (...) {
    // If anything is replayed at all. Dynamo raises errors of operations instead of letting the program catch them.
    std::lock_guard lock(mutex_);
    fail_with({cat("an error in ", full_name(op), " is caught"), Fallback::eager});
    throw;
  }
}

void Capture::record_call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (std::ranges::any_of(torch::jit::last(*stack, op.schema().arguments().size()), is_of_other_tracer)) {
    abandon({Outcome::unsupported, {kOtherTracer, Fallback::eager}});
    c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
    return op.callBoxed(stack);
  }
  std::string name = full_name(op);
  has_run_backward_ = has_run_backward_ || (first_gradient_op_ == 0 && torch::autograd::get_current_graph_task_id() != -1);
  // Composite operations without an entry are taken apart by their own implementation, whose parts come here one by one; but for
  // those that composites.cpp sends here whole.
  if (!OpTable::get().find(name) && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(backend_of(op, *stack)) && !is_whole_layer(op, *stack)) {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    return;
  }
  // Of a tensor without gradients it changes nothing, and gives the tensor itself: `torch.tensor` does so to what it makes.
  if (name == "aten::detach_" && !stack->back().toTensor().requires_grad()) return;
  if (is_question_of_weights(name)) return torch::jit::drop(*stack, 1);
  if (symbolic_ && name.starts_with("aten::sym_")) return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  if (takes_masks_apart(op, *stack) || runs_label(op, *stack)) return;
  if (name == "aten::lift_fresh" && add_constant(stack->back().toTensor())) return;
  c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
  const auto& schema = op.schema();
  size_t n = schema.arguments().size(), base = stack->size() - n;
  TraceOp out{name};
  const bool draws = broach::draws(op, *stack);
  std::vector<std::pair<at::Tensor, TensorId>> written;
  std::vector<c10::IValue> numbers;
  std::vector<at::Tensor> operands;
  {
    std::lock_guard lock(mutex_);
    out.line = line_;
    check_gradients(*stack, base);
    if (draws) check_generators();
    draws_ |= draws;
    numbers = add_arguments(schema, *stack, out, written);
    add_hidden_mutations(out);
    operands = look_at_operands(torch::jit::last(*stack, n));
    before_writes(out, written, draws);
    for (const auto& r : schema.returns()) out.is_view |= r.alias_info() && !r.alias_info()->isWrite();
    out.effect = draws || !name.starts_with("aten::");
    if (name.starts_with("aten::as_strided") && !std::holds_alternative<std::monostate>(out.args.back().value))
      fix_offset(trace_.tensors[static_cast<size_t>(std::get<Arg::Tensor>(out.args[0].value).id)].storage);
    if (op.hasTag(at::Tag::inplace_view)) begin_view_in_place(op, out);
    const bool is_given_lengths = name == "aten::_ctc_loss";  // in numbers, by which the sizes go
    if (op.hasTag(at::Tag::dynamic_output_shape) && !indexes_by_position(out) && !is_given_lengths) begin_data_sizes(out);
  }
  torch::jit::Stack given;
  if (symbolic_) given.assign(stack->end() - static_cast<int64_t>(n), stack->end());
  op.callBoxed(stack);
  if (name == "aten::_cudnn_rnn_backward") part_gradients(*stack);
  std::lock_guard lock(mutex_);
  if (out.effect) random_.renew();
  if (!out.is_view) check_sizes(written, name);
  if (guard_read(*stack, out) || guard_comparison(*stack, out)) return;
  note_writes(out, operands, *stack, schema.returns().size());
  add_results(op, *stack, out, given);
  for (const c10::IValue& number : numbers) guard_number(number, out);
  trace_.ops.push_back(std::move(out));
}

}  // namespace broach
