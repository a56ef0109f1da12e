// Tensors that a captured program has without an operation's having made them, and what it learns of a tensor without one.
//
// An unseen tensor in memory that is known is an alias of what lies there, or a window of it. In memory that nobody knows it is
// an input behind those given, if a later call finds it where this one did.
#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "capture.h"
#include "compat.h"
#include "devices.h"
#include "keys.h"
#include "support/error.h"
#include "symbolic.h"
#include "tensors.h"

namespace broach {

namespace {

std::vector<int64_t> hints(const Symbols& symbols, const Shape& s) {
  std::vector<int64_t> out;
  for (const SymInt& e : s) out.push_back(symbols.hint(e));
  return out;
}

// Whether they show the same elements in the recorded call.
bool show_the_same(const Symbols& s, const TraceTensor& a, const TraceTensor& b) {
  return a.storage == b.storage && a.type.dtype == b.type.dtype && a.conj == b.conj && a.neg == b.neg &&
         s.hint(a.offset) == s.hint(b.offset) && hints(s, a.type.shape) == hints(s, b.type.shape) &&
         hints(s, a.strides) == hints(s, b.strides);
}

bool has_symbols(const TraceTensor& t) {
  auto symbolic = [](const SymInt& e) { return !e.is_constant(); };
  return std::any_of(t.type.shape.begin(), t.type.shape.end(), symbolic) || std::any_of(t.strides.begin(), t.strides.end(), symbolic) ||
         symbolic(t.offset);
}

}  // namespace

TensorId Capture::id_of(const at::Tensor& t) {
  auto it = tensors_.find(t.unsafeGetTensorImpl());
  if (it != tensors_.end()) return it->second.id;
  const at::Tensor place = find_ ? find_(t) : at::Tensor();
  if (place.is_same(t)) return lift(t, add_tensor(t));  // found by itself in every call, whatever lies beside it
  if (place.defined()) id_of(place);
  const bool known_memory = t.has_storage() && storages_.contains(t.storage().unsafeGetStorageImpl());
  TensorId id = add_tensor(t);
  return known_memory && add_unreported_view(id) ? id : lift(t, id);
}

TensorId Capture::lift(const at::Tensor& t, TensorId id) {
  if (t.is_conj() || t.is_neg()) fail_with("a tensor that the program reads is a lazy conjugate or negative of another");
  if (!has_place(t)) unplaced_.push_back(t);
  trace_.inputs.push_back(id);
  in_hand_of_program_.push_back(lifted_.size());
  lifted_.push_back(t);
  add_facts(t, t);
  return id;
}

void Capture::add_facts(const at::Tensor& t, const at::Tensor& seen) {
  needed_gradients_.push_back(t.requires_grad());
  InputFacts facts;
  facts.keys = t.key_set();
  facts.is_leaf = !t.requires_grad() || t.is_leaf();
  facts.requires_grad = t.requires_grad();
  facts_.push_back(facts);
  versions_.push_back({version_of(seen), version_of(t)});
}

at::Tensor companion_of(const at::Tensor& t, Companion what) {
  if (!t.defined()) return {};
  if (what == Companion::gradient) return t.is_leaf() ? t.grad() : at::Tensor();
  return t.is_view() ? at::Tensor(t._base()) : at::Tensor();
}

// By which operation first, in words.
static std::string read_by(const Trace& trace, TensorId id) {
  for (const TraceOp& op : trace.ops) {
    bool reads = false;
    for_each_tensor(op.args, [&](TensorId t) { reads = reads || t == id; });
    if (reads) return cat(", which ", op.schema, " reads,");
  }
  return "";
}

// What came to the program without an operation, for a front that knows no places to look for it.
void Capture::look_at_lifted() {
  if (find_) return;
  for (size_t k : in_hand_of_program_) {
    // Nobody else holds it any more: what the program made it of is gone as well.
    if (lifted_[k].use_count() == 1 && !is_written_number(lifted_[k]))
      fail_with(cat(
          "the program makes a tensor", read_by(trace_, trace_.inputs[given_.size() + k]),
          " without an operation of its own thread, of its own memory (torch::from_blob) or on another thread, or puts another one in the "
          "place of one that it held: it would be the first call's in every call. Pass it as an argument, return what takes its place, "
          "or hold it outside of the program"));
    // A gradient is another tensor in every step of a training, as a rule, and so is what an argument is a view of.
    for (size_t i = 0; i < facts_.size(); ++i) {
      const at::Tensor& t = i < given_.size() ? given_[i] : lifted_[i - given_.size()];
      for (const Companion c : {Companion::gradient, Companion::base})
        if (companion_of(t, c).is_same(lifted_[k])) facts_[given_.size() + k].companion_of = {c, i};
    }
  }
}

at::Tensor Capture::seen_by_program(const at::Tensor& real) {
  const TraceTensor& t = trace_.tensors[static_cast<size_t>(tensors_.at(real.unsafeGetTensorImpl()).id)];
  auto it = seen_as_.find(real.unsafeGetTensorImpl());
  if (it != seen_as_.end())
    if (auto alive = it->second.lock()) return at::Tensor(std::move(alive));
  if (!has_symbols(t)) return real;
  at::Tensor stand_in = capture_tensor(real, t.type.shape, t.strides, t.offset, trace_.symbols, token_);
  seen_as_.insert_or_assign(real.unsafeGetTensorImpl(), c10::weak_intrusive_ptr<c10::TensorImpl>(stand_in.getIntrusivePtr()));
  return stand_in;
}

void Capture::add_alias(TensorId id, TensorId of) {
  trace_.tensors[static_cast<size_t>(id)] = trace_.tensors[static_cast<size_t>(of)];
  trace_.ops.push_back({"aten::alias", {{Arg::Tensor{of}}}, {id}, {}, true, false, line_});
}

// `Tensor.data`, `nn.Parameter(x)`, the copies of views that torch hands out. False for a tensor that is none.
bool Capture::add_unreported_view(TensorId id) {
  const TraceTensor t = trace_.tensors[static_cast<size_t>(id)];
  auto at = [&](TensorId other) -> const TraceTensor& { return trace_.tensors[static_cast<size_t>(other)]; };
  const bool of_input = std::any_of(trace_.inputs.begin(), trace_.inputs.end(), [&](TensorId i) { return at(i).storage == t.storage; });
  TensorId base = kNoTensor, alike = kNoTensor;
  for (TensorId other = 0; other < id; ++other) {
    if (at(other).storage != t.storage) continue;
    if (show_the_same(*trace_.symbols, at(other), t)) alike = other;
    if (base == kNoTensor || (at(other).type.dtype == t.type.dtype && at(base).type.dtype != t.type.dtype)) base = other;
  }
  if (alike != kNoTensor) return add_alias(id, alike), true;
  // A front that cannot tell takes it for a tensor that the program holds, which may happen to lie in an input's memory.
  if (base == kNoTensor || (of_input && !find_)) return false;
  const TraceTensor& b = at(base);
  if (symbolic_ || b.type.dtype != t.type.dtype || b.conj != t.conj || b.neg != t.neg) fail_with("a view is made without an operation");
  trace_.ops.push_back({"aten::as_strided", {{Arg::Tensor{base}}, {t.type.shape}, {t.strides}, {t.offset}}, {id}, {}, true, false, line_});
  return true;
}

// What stands for a tensor becomes that one. Another object that stands for it (`x.data`) becomes another tensor in its memory.
TensorId Capture::id_of_output(at::Tensor& t) {
  if (!t.defined()) return kNoTensor;
  if (t._fw_grad(0).defined()) fail_with("a result has a tangent of forward-mode differentiation");
  const at::Tensor* real = real_tensor(t);
  if (!real) return id_of(t);
  if (t.requires_grad() != real->requires_grad() && (differentiable_.empty() || !t.requires_grad()))
    fail_with("the program sets requires_grad of a tensor that outlives it");
  const TensorId of = id_of(*real);
  auto it = seen_as_.find(real->unsafeGetTensorImpl());
  if (it == seen_as_.end() || it->second._unsafe_get_target() == t.unsafeGetTensorImpl()) return t = at::Tensor(*real), of;
  auto made = made_for_.find(t.unsafeGetTensorImpl());
  if (made == made_for_.end()) {
    at::Tensor alias = real->detach();
    add_alias(add_tensor(alias), of);
    made = made_for_.emplace(t.unsafeGetTensorImpl(), std::pair(t, alias)).first;
  }
  t = made->second.second;
  return id_of(t);
}

// ---- constants ----

// A tensor that torch has filled with Python's numbers is made anew in every call, of a copy that nobody else has.
bool Capture::add_constant(const at::Tensor& t) {
  std::lock_guard lock(mutex_);
  auto* impl = t.unsafeGetTensorImpl();
  if (tensors_.contains(impl) || real_tensor(t) || t.layout() != c10::kStrided || !t.has_storage() ||
      storages_.contains(t.storage().unsafeGetStorageImpl()))
    return false;
  at::Tensor kept;
  {
    c10::impl::ExcludeDispatchKeyGuard below(capture_keys().both());
    at::NoGradGuard no_grad;
    kept = t.clone();
  }
  TensorId source = add_tensor(kept);
  trace_.inputs.push_back(source);
  lifted_.push_back(kept);
  add_facts(kept, kept);
  TensorId id = add_tensor(t);
  trace_.ops.push_back({"aten::clone", {{Arg::Tensor{source}}, {}}, {id}, {}, false, false, line_});
  constants_.push_back(trace_.tensors[static_cast<size_t>(id)].storage);
  return true;
}

bool Capture::is_constant(TensorId id) const {
  int32_t storage = trace_.tensors[static_cast<size_t>(id)].storage;
  return std::find(constants_.begin(), constants_.end(), storage) != constants_.end() && !is_written(storage);
}

namespace {

// Operations that only give what follows from their arguments.
constexpr std::string_view kMadeOfArguments[] = {"aten::arange",
                                                 "aten::arange.start",
                                                 "aten::arange.start_step",
                                                 "aten::full",
                                                 "aten::ones",
                                                 "aten::zeros",
                                                 "aten::scalar_tensor",
                                                 "aten::new_ones",
                                                 "aten::new_zeros",
                                                 "aten::new_full",
                                                 "aten::ones_like",
                                                 "aten::zeros_like",
                                                 "aten::full_like",
                                                 "aten::eq.Scalar",
                                                 "aten::eq.Tensor",
                                                 "aten::ne.Scalar",
                                                 "aten::ne.Tensor",
                                                 "aten::le.Scalar",
                                                 "aten::le.Tensor",
                                                 "aten::lt.Scalar",
                                                 "aten::lt.Tensor",
                                                 "aten::ge.Scalar",
                                                 "aten::ge.Tensor",
                                                 "aten::gt.Scalar",
                                                 "aten::gt.Tensor",
                                                 "aten::logical_and",
                                                 "aten::logical_or",
                                                 "aten::logical_not",
                                                 "aten::bitwise_and.Tensor",
                                                 "aten::bitwise_or.Tensor",
                                                 "aten::bitwise_not",
                                                 "aten::add.Tensor",
                                                 "aten::add.Scalar",
                                                 "aten::sub.Tensor",
                                                 "aten::sub.Scalar",
                                                 "aten::rsub.Scalar",
                                                 "aten::mul.Tensor",
                                                 "aten::mul.Scalar",
                                                 "aten::minimum",
                                                 "aten::maximum",
                                                 "aten::abs",
                                                 "aten::where.self",
                                                 "aten::where.ScalarSelf",
                                                 "aten::where.ScalarOther",
                                                 "aten::where.Scalar",
                                                 "aten::masked_fill.Scalar",
                                                 "aten::tril",
                                                 "aten::triu",
                                                 "aten::cumsum",
                                                 "aten::cat",
                                                 "aten::expand",
                                                 "aten::view",
                                                 "aten::_unsafe_view",
                                                 "aten::unsqueeze",
                                                 "aten::squeeze.dim",
                                                 "aten::slice.Tensor",
                                                 "aten::select.int",
                                                 "aten::transpose.int",
                                                 "aten::permute",
                                                 "aten::t",
                                                 "aten::as_strided",
                                                 "aten::alias",
                                                 "aten::clone",
                                                 "aten::_to_copy",
                                                 "aten::index.Tensor"};

bool follows_from_tensors(const TraceOp& op) {
  auto is_known = [](const Arg& a) {
    const auto* number = std::get_if<Arg::Number>(&a.value);
    const auto* integer = std::get_if<SymInt>(&a.value);
    const auto* shape = std::get_if<Shape>(&a.value);
    if ((integer && !integer->is_constant()) || (shape && !std::ranges::all_of(*shape, &SymInt::is_constant))) return false;
    return !std::holds_alternative<ExternArg::Opaque>(a.value) && (!number || (!number->symbol && number->tensor == kNoTensor));
  };
  return std::ranges::find(kMadeOfArguments, op.schema) != std::end(kMadeOfArguments) && op.mutated.empty() && !op.effect &&
         op.binds.empty() && std::ranges::all_of(op.args, is_known);
}

}  // namespace

bool Capture::is_made_of_nothing(const at::Tensor& t) const {
  const auto at = tensors_.find(t.unsafeGetTensorImpl());
  if (abandoned_ || at == tensors_.end() || at->second.impl.expired()) return false;
  auto storage = [&](TensorId id) { return trace_.tensors[static_cast<size_t>(id)].storage; };
  std::map<int32_t, bool> made;  // by storage: of nothing, or else of something
  for (const TraceOp& op : trace_.ops) {
    bool all = follows_from_tensors(op);
    for_each_tensor(op.args, [&](TensorId id) { all = all && made.contains(storage(id)) && made[storage(id)]; });
    for (TensorId id : op.results)
      if (id != kNoTensor) made[storage(id)] = all && (!made.contains(storage(id)) || made[storage(id)]);
    for (TensorId id : op.mutated) made[storage(id)] = false;
  }
  const auto own = made.find(storage(at->second.id));
  return own != made.end() && own->second;
}

bool Capture::is_written(int32_t storage) const {
  return std::any_of(trace_.ops.begin(), trace_.ops.end(), [&](const TraceOp& op) {
    return std::any_of(op.mutated.begin(), op.mutated.end(),
                       [&](TensorId m) { return trace_.tensors[static_cast<size_t>(m)].storage == storage; });
  });
}

// ---- what no operation shows ----

bool Capture::asks(const at::Tensor& t, std::string_view what) {
  if (is_of_other_tracer(t)) return abandon({Outcome::unsupported, {kOtherTracer, Fallback::eager}}), true;
  const bool view = what == "_is_view";
  if (!view && what != "storage_offset") return true;
  std::lock_guard lock(mutex_);
  const at::Tensor* inside = real_tensor(t);
  const at::Tensor& real = inside ? *inside : t;
  const TensorId id = id_of(real);
  if (!view) return fix_offset(trace_.tensors[static_cast<size_t>(id)].storage), true;
  if (t.is_view() != real.is_view()) return false;
  auto input = std::find(trace_.inputs.begin(), trace_.inputs.end(), id);
  if (input != trace_.inputs.end()) facts_[static_cast<size_t>(input - trace_.inputs.begin())].is_view = real.is_view();
  return true;
}

// The program goes by positions in a storage: where inputs begin in it must not change.
void Capture::fix_offset(int32_t storage) {
  for (size_t i = 0; i < facts_.size(); ++i)
    if (trace_.tensors[static_cast<size_t>(trace_.inputs[i])].storage == storage)
      facts_[i].storage_offset = (i < given_.size() ? given_[i] : lifted_[i - given_.size()]).storage_offset();
}

// ---- random numbers ----

// A device's generator is known before the program's first operation on the device.
void Capture::meet(c10::Device d) {
  if (!is_compiled_for(d)) return;
  if (symbolic_ || may_roll_back_) random_before_.add(d);
  if (!random_.add(d)) without_generator_ = d;
  auto is_like = [&](c10::Device known) { return known.type() == d.type(); };
  if (std::none_of(current_.begin(), current_.end(), is_like))
    if (auto current = current_device(d.type())) current_.push_back(*current);
}

// Between two operations that draw, and before the first, nobody else moves a generator on or sets it back.
void Capture::check_generators() {
  if (without_generator_) fail_with(cat("random numbers beside ", without_generator_->str(), ", which has no default generator"));
  if (!random_.are_kept()) fail_with("the program, or another thread meanwhile, sets the state of random numbers", Outcome::unclear);
}

void Capture::check_sizes(const std::vector<std::pair<at::Tensor, TensorId>>& written, const std::string& name) {
  for (const auto& [t, id] : written) {
    const TraceTensor& info = trace_.tensors[static_cast<size_t>(id)];
    if (info.type.dtype != DType::opaque && t.sizes() != c10::IntArrayRef(hints(*trace_.symbols, info.type.shape)))
      fail_with(cat(name, " changes the sizes of a tensor that it writes"), Outcome::spoilt);
  }
}

// Views share the counter of what they show, but not all aliases do: how far it moved says eager best.
void Capture::count_versions() {
  for (size_t i = 0; i < facts_.size(); ++i) {
    const at::Tensor& seen = i < given_.size() ? inputs_[i] : lifted_[i - given_.size()];
    const int64_t seen_steps = version_of(seen) - versions_[i].seen;
    facts_[i].version_steps = seen_steps;
    if (i >= given_.size() || !real_tensor(inputs_[i])) continue;
    // The program wrote to what stands for the input, whose version is its own; but for operations on lists, which count on the input's.
    facts_[i].version_steps += version_of(given_[i]) - versions_[i].own;
    for (int64_t k = 0; k < seen_steps; ++k) given_[i].unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace broach
