// Composite operations whose parts do not tell a capture what they do. They arrive here, above autograd, while a capture is
// under way, and go on as something that it can record.
#include <ATen/ExpandUtils.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ctc_loss.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumprod_backward.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool1d.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "capture.h"
#include "compat.h"
#include "composites.h"
#include "devices.h"
#include "keys.h"
#include "no_warnings.h"
#include "symbolic.h"

namespace broach {

namespace {

// By torch.func, or with a tangent of forward mode.
bool is_transformed(const at::Tensor& t) {
  return t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper})) ||
         t._fw_grad(0).defined();
}

// Or it cannot be seen: what a transform of torch.func wraps is another tensor.
bool may_have_gradient(const at::Tensor& t) { return is_transformed(t) || (t.requires_grad() && at::GradMode::is_enabled()); }

// Where no gradient is needed it writes its result through a raw pointer, which would look like memory that nothing has
// written: it is recorded as one operation.
at::Tensor max_pool1d(const at::Tensor& x, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, bool ceil) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  std::optional<at::AutoDispatchBelowAutograd> below;
  if (!may_have_gradient(x)) below.emplace();
  return at::max_pool1d(x, kernel, stride, padding, dilation, ceil);
}

// Products of stacks of matrices, in symbolic sizes. Nothing for shapes whose parts ask for no size, and where eager picks
// its way, and with it the strides, by what needs gradients.
std::optional<at::Tensor> symbolic_matmul(const at::Tensor& a, const at::Tensor& b) {
  if (std::max(a.dim(), b.dim()) < 3 || std::min(a.dim(), b.dim()) < 1) return std::nullopt;
  auto rows = a.sym_sizes(), columns = b.sym_sizes();
  if (b.dim() < 3) {  // all rows at once
    c10::SymDimVector sizes(rows.begin(), rows.end() - 1);
    if (b.dim() == 2) sizes.push_back(columns[1]);
    at::Tensor flat = a.reshape_symint({c10::multiply_integers(rows.slice(0, rows.size() - 1)), rows.back()});
    return at::_unsafe_view_symint(flat.matmul(b), sizes);
  }
  if (a.requires_grad() || b.requires_grad()) return std::nullopt;
  at::Tensor left = a.dim() == 1 ? a.unsqueeze(0) : a;
  auto batch = at::infer_size_symdimvector(left.sym_sizes().slice(0, left.dim() - 2), columns.slice(0, columns.size() - 2));
  c10::SymInt all = c10::multiply_integers(batch);
  auto stacked = [&](const at::Tensor& t) {
    c10::SymInt n = t.sym_size(-2), m = t.sym_size(-1);
    auto sizes = batch;
    sizes.append({n, m});
    return t.expand_symint(sizes).reshape_symint({all, n, m});
  };
  auto sizes = batch;
  if (a.dim() > 1) sizes.push_back(left.sym_size(-2));
  sizes.push_back(columns.back());
  return at::_unsafe_view_symint(stacked(left).bmm(stacked(b)), sizes);
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  if (real_tensor(a) || real_tensor(b))
    if (auto product = symbolic_matmul(a, b)) return *product;
  return at::matmul(a, b);
}

// A mask that repeats along the keys, as libraries make one for "no mask" where a program is compiled, keeps torch's kernels for GPUs
// from attention, which then goes through scores in fp32. It is written out along them, and along nothing else that repeats.
at::Tensor written_out(const at::Tensor& mask) {
  auto repeats = [&](int64_t d) { return mask.sym_stride(d).maybe_as_int() == 0 && mask.sym_size(d).maybe_as_int() != 1; };
  if (mask.is_nested() || mask.dim() == 0 || !mask.is_cuda() || !repeats(-1)) return mask;
  at::Tensor once = mask;
  for (int64_t d = 0; d + 1 < mask.dim(); ++d)
    if (repeats(d)) once = once.narrow(d, 0, 1);
  return once.contiguous().expand_symint(mask.sym_sizes());
}

// What a mask says that the program makes of nothing that it is given, so that it says the same in every call.
enum class MaskKind : uint8_t { other, open, causal };

MaskKind kind_of_mask(const at::Tensor& given, const at::Tensor& q, const at::Tensor& k) {
  auto has_symbols = [](const at::Tensor& t) {
    return std::ranges::any_of(t.sym_sizes(), [](const c10::SymInt& n) { return n.is_heap_allocated(); });
  };
  if (given.is_nested() || has_symbols(given) || has_symbols(q) || has_symbols(k)) return MaskKind::other;
  const at::Tensor* inside = real_tensor(given);
  const at::Tensor& mask = inside ? *inside : given;
  constexpr int64_t kMost = int64_t{1} << 28;  // elements worth looking at
  const Capture* capture = Capture::current();
  if (!capture || mask.dim() < 2 || q.dim() < 2 || k.dim() < 2 || !capture->is_made_of_nothing(mask)) return MaskKind::other;
  c10::impl::ExcludeDispatchKeyGuard unseen(capture_keys().both());
  const at::NoGradGuard no_grad;
  const int64_t rows = q.size(-2), keys = k.size(-2);
  auto fits = [&](int64_t d, int64_t size) { return mask.size(d) == 1 || mask.size(d) == size; };
  bool is_of_scores = mask.dim() <= q.dim() && fits(-2, rows) && fits(-1, keys);  // or an error
  for (int64_t d = -3; is_of_scores && d >= -mask.dim(); --d) is_of_scores = fits(d, q.size(d));
  if (!is_of_scores || mask.numel() == 0 || mask.numel() > kMost) return MaskKind::other;
  at::Tensor is_open = mask;
  if (mask.scalar_type() == at::kFloat || (mask.is_floating_point() && mask.scalar_type() == q.scalar_type())) {
    is_open = mask.eq(0);
    if (!is_open.logical_or(mask.eq(-std::numeric_limits<double>::infinity())).all().item<bool>()) return MaskKind::other;
  } else if (mask.scalar_type() != at::kBool) {
    return MaskKind::other;
  }
  if (is_open.all().item<bool>()) return MaskKind::open;
  if (mask.size(-2) != rows || mask.size(-1) != keys) return MaskKind::other;
  const at::Tensor below = at::ones({rows, keys}, is_open.options()).tril();
  return is_open.eq(below).all().item<bool>() ? MaskKind::causal : MaskKind::other;
}

// Libraries make masks that say nothing, or what a causal attention does by itself, where a program is compiled. Torch's fastest kernels
// take none, and those that do are slower by half. Who watches what is saved for gradients is shown eager's: a checkpoint compares it with
// what it saves when it computes again.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask, double dropout,
                     bool causal, std::optional<double> scale, bool groups) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  // Without gradients eager takes another way where the mask has some.
  if (mask && mask->defined() && may_have_gradient(*mask))
    Capture::must_not_go_by_modes("a checkpoint with use_reentrant=True has an attention whose mask needs gradients");
  const bool may_differ = !causal && at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
  const MaskKind kind = mask && mask->defined() && may_differ ? kind_of_mask(*mask, q, k) : MaskKind::other;
  if (kind != MaskKind::other)
    return at::scaled_dot_product_attention(q, k, v, std::nullopt, dropout, kind == MaskKind::causal, scale, groups);
  return at::scaled_dot_product_attention(q, k, v, mask ? written_out(*mask) : mask, dropout, causal, scale, groups);
}

// Eager compares the least and the largest class with their bounds as numbers, each of which would be a way of its own. On a GPU it does not
// look.
at::Tensor one_hot(const at::Tensor& classes, int64_t count) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  if (count > 0 && classes.is_cpu() && classes.scalar_type() == at::kLong && classes.sym_numel() != 0)
    if (!classes.lt(0).logical_or(classes.ge(count)).any().item<bool>())
      return classes.unsqueeze(-1).eq(at::arange(count, classes.options())).to(at::kLong).contiguous();
  return at::one_hot(classes, count);
}

// Where the caller says how many there are, no size depends on data. On the CPU eager looks whether it is so.
at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<c10::SymInt> size) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  if (!size || repeats.dim() != 1 || repeats.sym_numel() == 0) return at::repeat_interleave_symint(repeats, size);
  const at::Tensor ends = repeats.cumsum(0, at::kLong);
  if (repeats.is_cpu() && !repeats.ge(0).all().logical_and(ends.select(0, -1).eq(*size)).item<bool>())
    return at::repeat_interleave_symint(repeats, size);  // whose error it is
  return at::searchsorted(ends, at::arange(*size, ends.options()), false, true).to(repeats.scalar_type());
}

// ---- gradients of products ----

// Along a dimension, what lies before each element; before the first of them one.
at::Tensor moved_on(const at::Tensor& t, int64_t dim) {
  const at::Tensor one = at::ones_like(t.narrow(dim, 0, 1));
  return t.sym_size(dim) == 1 ? one : at::cat({one, t.narrow_symint(dim, 0, t.sym_size(dim) - 1)}, dim);
}

// As eager's where it finds zeros: in front of the first of them as if there were none, and for that one the sum of what is given up to the
// second, times the products between. Second derivatives are eager's to make.
at::Tensor cumprod_gradient(const at::Tensor& grad, const at::Tensor& x, int64_t dim, const at::Tensor& result) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  if (at::GradMode::is_enabled() || !x.is_floating_point() || x.dim() == 0 || x.sym_numel() == 0)
    return at::cumprod_backward(grad, x, dim, result);
  if (x.sym_size(dim) == 1) return grad;
  const at::Tensor zeros = x.eq(0), count = zeros.cumsum(dim), behind = count.eq(1), first = zeros.logical_and(behind);
  const at::Tensor before = grad.mul(result).masked_fill(count.ne(0), 0).flip(dim).cumsum(dim).flip(dim).div(x);
  const at::Tensor between = x.masked_fill(behind.logical_not().logical_or(first), 1).cumprod(dim);
  const at::Tensor at_first = between.mul(grad.masked_fill(behind.logical_not(), 0)).sum(dim, true).mul(moved_on(result, dim));
  return at::where(count.eq(0), before, at::where(first, at_first, 0));
}

namespace ag = torch::autograd;

// Of each element along a dimension, the product of the others, in eager's order.
at::Tensor product_of_others(const at::Tensor& x, int64_t dim) {
  return moved_on(x, dim).cumprod(dim).mul(moved_on(x.flip(dim), dim).cumprod(dim).flip(dim));
}

// The product of all elements, or of those along a dimension. Its gradient goes as eager's by whether there are zeros, but does not read it.
struct Product : ag::Function<Product> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x, std::optional<int64_t> dim, bool keep) {
    at::Tensor result = dim ? at::prod(x, *dim, keep) : at::prod(x);
    context->save_for_backward({x, result});
    context->saved_data["dim"] = dim;
    context->saved_data["keep"] = keep;
    return result;
  }

  static ag::variable_list backward(ag::AutogradContext* context, const ag::variable_list& grads) {
    const ag::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], zeros = x.eq(0);
    const auto dim = context->saved_data["dim"].toOptional<int64_t>();
    const bool keep = context->saved_data["keep"].toBool();
    if (at::GradMode::is_enabled()) {
      c10::impl::ExcludeDispatchKeyGuard as_eager(capture_keys().composite);
      return {ag::grad({dim ? at::prod(x, *dim, keep) : at::prod(x)}, {x}, grads, true, true)[0], {}, {}};
    }
    if (!dim) {
      const at::Tensor count = zeros.sum(), of_others = product_of_others(x.reshape(-1), 0).view_as(x);
      return {at::where(count.eq(0), grads[0].mul(saved[1].div(x)), grads[0].mul(of_others).masked_fill(count.gt(1), 0)), {}, {}};
    }
    const at::Tensor grad = keep ? grads[0] : grads[0].unsqueeze(*dim), result = keep ? saved[1] : saved[1].unsqueeze(*dim);
    return {at::where(zeros.any().logical_not(), grad.mul(result.div(x)), grad.mul(product_of_others(x, *dim))), {}, {}};
  }
};

bool is_product(const at::Tensor& x, std::optional<at::ScalarType> type) {
  return x.requires_grad() && at::GradMode::is_enabled() && !is_transformed(x) && x.is_floating_point() && x.dim() > 0 &&
         x.sym_numel() != 0 && type.value_or(x.scalar_type()) == x.scalar_type();
}

at::Tensor product_along(const at::Tensor& x, int64_t dim, bool keep, std::optional<at::ScalarType> type) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  return is_product(x, type) ? Product::apply(x, dim, keep) : at::prod(x, dim, keep, type);
}

at::Tensor product(const at::Tensor& x, std::optional<at::ScalarType> type) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  return is_product(x, type) ? Product::apply(x, std::nullopt, false) : at::prod(x, type);
}

// ---- resampling ----

// A size times a number, as eager truncates it. Of a size that is a symbol an expression where the number is a fraction of a small
// power of two.
c10::SymInt scaled(const c10::SymInt& n, double scale) {
  constexpr int64_t kDenominator = 256;
  constexpr double kMostNumerator = 1 << 20;
  double numerator = scale * kDenominator;
  if (!n.is_symbolic() || numerator != std::floor(numerator) || numerator < 1 || numerator > kMostNumerator)
    return static_cast<int64_t>(static_cast<double>(n.guard_int(__FILE__, __LINE__)) * scale);
  auto whole = static_cast<int64_t>(numerator);
  int64_t common = std::gcd(whole, kDenominator);
  c10::SymInt product = n * (whole / common);
  return common == kDenominator ? product : product / (kDenominator / common);
}

// (input, sizes, [align_corners,] scales) asks for plain sizes: with symbols it goes on as the operation that is told the sizes.
void resample(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  size_t n = op.schema().arguments().size(), base = stack->size() - n;
  const c10::IValue &sizes = (*stack)[base + 1], scales = stack->back();
  at::Tensor x = (*stack)[base].toTensor();
  auto target = c10::Dispatcher::singleton().findSchema({op.operator_name().name, ""});
  bool symbolic = real_tensor(x) || (sizes.isList() && !sizes.isIntList());
  if (!symbolic || !target || sizes.isNone() == scales.isNone()) return op.callBoxed(stack);
  std::vector<c10::SymInt> out;
  torch::jit::Stack given{x};
  if (!sizes.isNone()) out = sizes.toSymIntVector();
  else
    for (double scale : scales.toDoubleVector()) out.push_back(scaled(x.sym_size(static_cast<int64_t>(out.size()) + 2), scale));
  given.emplace_back(c10::SymIntArrayRef(out));
  if (n == 4) given.push_back((*stack)[base + 2]);
  for (size_t i = 0; i < out.size(); ++i) given.push_back(scales.isNone() ? c10::IValue() : c10::IValue(scales.toDoubleVector().at(i)));
  target->callBoxed(&given);
  torch::jit::drop(*stack, n);
  stack->push_back(std::move(given.back()));
}

// ---- normalization ----

// Without the gradient of an operand that lies channels last, torch's kernel writes to memory that it did not get.
void group_norm_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  const c10::List<bool> asked = stack->back().toBoolList();
  const bool is_asked = asked[0];
  stack->back() = c10::List<bool>({true, asked[1], asked[2]});
  op.callBoxed(stack);
  if (!is_asked) (*stack)[stack->size() - 3] = at::Tensor();
}

// ---- recurrent layers ----

// Steps that are recorded one by one: their products and what is around them fuse, which a layer as one operation does not.
constexpr int64_t kMostUnrolled = 32;

// Whether an argument is there and 0 or false.
bool is_nothing(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments, const char* name) {
  const auto i = schema.argumentIndexWithName(name);
  if (!i) return false;
  const c10::IValue& v = arguments[static_cast<size_t>(*i)];
  return (v.isDouble() && v.toDouble() == 0) || (v.isBool() && !v.toBool());
}

// A recurrent layer.
bool drops_out(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  return !is_nothing(schema, arguments, "dropout") && !is_nothing(schema, arguments, "train");
}

class LayerCall {
 public:
  LayerCall(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : schema_(op.schema()), arguments_(c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - schema_.arguments().size())) {}

  bool draws() const { return drops_out(schema_, arguments_); }

  bool is_differentiable() const {
    const auto all = tensors();
    return std::any_of(all.begin(), all.end(), may_have_gradient);
  }

  bool has_symbols() const {
    return std::ranges::any_of(tensors(), [](const at::Tensor& t) { return real_tensor(t) != nullptr; });
  }

  bool is_on_gpu() const { return of("input").toTensor().is_cuda(); }

  // In symbolic sizes each length would be unrolled for itself, and on a GPU a layer is cuDNN's whatever its length.
  bool is_long() const {
    if (has_symbols() || is_on_gpu()) return true;
    const at::Tensor input = of("input").toTensor();
    const int64_t steps = input.dim() < 2 ? 1 : input.size(of("batch_first").toBool() ? 1 : 0);
    return steps * of("num_layers").toInt() * (of("bidirectional").toBool() ? 2 : 1) > kMostUnrolled;
  }

 private:
  const c10::IValue& of(const char* name) const { return arguments_[static_cast<size_t>(*schema_.argumentIndexWithName(name))]; }

  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all = of("params").toTensorVector();
    all.push_back(of("input").toTensor());
    if (const c10::IValue& hidden = of("hx"); hidden.isTensor()) all.push_back(hidden.toTensor());
    else
      for (const at::Tensor& t : hidden.toTensorVector()) all.push_back(t);
    return all;
  }

  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> arguments_;
};

// While torch takes a layer apart whose kernels are cuDNN's: whether its weights lie in one piece of memory is asked of their storage, of
// which a recording has nothing, and is answered with no (see is_question_of_weights). Then the layer's call puts them together itself.
thread_local bool is_in_library_layer = false;

class LibraryLayer {
 public:
  LibraryLayer() { is_in_library_layer = true; }
  ~LibraryLayer() { is_in_library_layer = false; }
  LibraryLayer(const LibraryLayer&) = delete;
  LibraryLayer& operator=(const LibraryLayer&) = delete;

 private:
  NoWarnings quiet_;  // of weights that do not lie in one piece
};

// Where a layer is one operation it goes on below autograd, which would take it apart.
void recurrent(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  const LayerCall layer(op, *stack);
  const bool is_cast = Autocast::now().is_on();
  // Under autocast eager's layer is an operation of oneDNN's, which stand-ins do not get.
  if (is_cast && layer.has_symbols()) unsupported("a recurrent layer under autocast");
  std::optional<at::AutoDispatchBelowAutograd> below;
  std::optional<LibraryLayer> of_library;
  if (is_whole_layer(op, *stack)) below.emplace();
  else if (layer.is_on_gpu() && !layer.draws() && !layer.has_symbols() && !is_cast) of_library.emplace();
  op.callBoxed(stack);
}

// ---- lists of tensors ----

// Operations on lists with a number for each position, and what they do there, also in place. Torch's kernels ask each number for its value,
// which one that stands for another does not have.
struct OfLists {
  const char *name, *element, *in_place;
};
constexpr OfLists kOfLists[] = {
    {"add", "add.Scalar", "add_.Scalar"},       {"sub", "sub.Scalar", "sub_.Scalar"},        {"mul", "mul.Scalar", "mul_.Scalar"},
    {"div", "div.Scalar", "div_.Scalar"},       {"pow", "pow.Tensor_Scalar", "pow_.Scalar"}, {"lerp", "lerp.Scalar", "lerp_.Scalar"},
    {"addcmul", "addcmul.", "addcmul_."},       {"addcdiv", "addcdiv.", "addcdiv_."},        {"clamp_min", "clamp_min.", "clamp_min_."},
    {"clamp_max", "clamp_max.", "clamp_max_."}, {"maximum", "clamp_min.", "clamp_min_."},    {"minimum", "clamp_max.", "clamp_max_."}};

c10::OperatorHandle find_element(const std::string& list_operation) {
  const bool in_place = list_operation.ends_with('_');
  const std::string name = list_operation.substr(0, list_operation.size() - (in_place ? 1 : 0));
  const auto& row = *std::ranges::find_if(kOfLists, [&](const OfLists& r) { return name == cat("aten::_foreach_", r.name); });
  const std::string element = in_place ? row.in_place : row.element;
  const size_t dot = element.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(cat("aten::", element.substr(0, dot)).c_str(), element.substr(dot + 1).c_str());
}

void on_each(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  const auto given = c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - op.schema().arguments().size());
  const auto numbers = given.back().toListRef();
  std::vector<std::vector<at::Tensor>> lists;
  for (const c10::IValue& v : given.slice(0, given.size() - 1)) lists.push_back(v.toTensorVector());
  // Its error is eager's to raise.
  if (std::ranges::any_of(lists, [&](const auto& list) { return list.size() != numbers.size(); })) return op.callBoxed(stack);
  const c10::OperatorHandle element = find_element(op.operator_name().name);
  const auto& parameters = element.schema().arguments();
  c10::List<at::Tensor> results;
  for (size_t i = 0; i < numbers.size(); ++i) {
    torch::jit::Stack call;
    for (const auto& list : lists) call.emplace_back(list[i]);
    call.push_back(numbers[i]);
    while (call.size() < parameters.size()) call.push_back(*parameters[call.size()].default_value());
    element.callBoxed(&call);
    results.push_back(call.back().toTensor());
  }
  torch::jit::drop(*stack, given.size());
  if (!op.schema().returns().empty()) stack->emplace_back(std::move(results));
}

// ---- elements that are read unseen ----

// Torch fills a tensor with what a list holds, and makes an index of one, where the capture's key is left out: elements that are tensors
// are read there.
at::Scalar element(const at::Tensor& t) {
  const auto now = c10::impl::tls_local_dispatch_key_set();
  const c10::DispatchKeySet composite(capture_keys().composite), record(capture_keys().record);
  c10::impl::ForceDispatchKeyGuard seen(now.included_, (now.excluded_ | composite) - record);
  return at::_local_scalar_dense(t);
}

// Operations that read some operands through a raw pointer to find out what their parts are.
struct RawReader {
  const char* name;
  size_t first = 1, count = 1;
};
constexpr RawReader kRawReaders[] = {{"tensor_split.tensor_indices_or_sections"},
                                     {"_pad_packed_sequence"},
                                     {"lstm.data"},
                                     {"gru.data"},
                                     {"rnn_tanh.data"},
                                     {"rnn_relu.data"}};

void raw_reader(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  const auto& [name, overload] = op.operator_name();
  const std::string full = overload.empty() ? name : cat(name, ".", overload);
  const auto& reader = *std::ranges::find_if(kRawReaders, [&](const RawReader& r) { return full == cat("aten::", r.name); });
  const size_t base = stack->size() - op.schema().arguments().size();
  if (Capture* capture = Capture::current())
    for (size_t i = reader.first; i < reader.first + reader.count; ++i) capture->must_read_elements((*stack)[base + i].toTensor(), full);
  op.callBoxed(stack);
}

// Torch reads the lengths on the host for an operation that is given them as numbers; the same operation also takes them as tensors.
at::Tensor ctc_loss(const at::Tensor& log_probs, const at::Tensor& targets, const at::Tensor& input_lengths,
                    const at::Tensor& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  c10::impl::ExcludeDispatchKeyGuard again(capture_keys().composite);
  Capture* capture = Capture::current();
  if (!log_probs.is_cpu() || log_probs.dim() != 3) {
    for (const at::Tensor* t : {&input_lengths, &target_lengths})
      if (capture) capture->must_read_elements(*t, "ctc_loss.Tensor");
    return at::ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity);
  }
  at::Tensor loss =
      std::get<0>(at::_ctc_loss(log_probs, targets.to(log_probs.device(), at::kLong), input_lengths, target_lengths, blank, zero_infinity));
  if (zero_infinity) loss = at::where(loss.eq(std::numeric_limits<double>::infinity()), at::zeros({}, loss.options()), loss);
  if (reduction == at::Reduction::Mean) return loss.div(target_lengths.clamp_min(1)).mean();
  return reduction == at::Reduction::Sum ? loss.sum() : loss;
}

// Registered as the library is loaded; nothing where there is no key for it.
std::vector<torch::Library> registered() {
  std::vector<torch::Library> all;
  if (!capture_keys().obstacle.empty()) return all;
  for (const char* space : {"_", "aten"}) all.emplace_back(torch::Library::IMPL, space, capture_keys().composite, __FILE__, __LINE__);
  all[0].fallback(torch::CppFunction::makeFallthrough());
  torch::Library& m = all[1];
  m.impl("max_pool1d", &max_pool1d);
  m.impl("one_hot", &one_hot);
  m.impl("repeat_interleave.Tensor", &repeat_interleave);
  m.impl("cumprod_backward", &cumprod_gradient);
  m.impl("prod.dim_int", &product_along);
  m.impl("prod", &product);
  m.impl("ctc_loss.Tensor", &ctc_loss);
  m.impl("scaled_dot_product_attention", &attention);
  if (kMatmulFixesSizes) m.impl("matmul", &matmul);
  for (const char* name :
       {"upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec",
        "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec", "upsample_nearest1d.vec", "upsample_nearest2d.vec",
        "upsample_nearest3d.vec", "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&resample>());
  m.impl("native_group_norm_backward", torch::CppFunction::makeFromBoxedFunction<&group_norm_gradient>());
  m.impl("_local_scalar_dense", &element);
  for (const OfLists& r : kOfLists)
    for (const char* end : {".ScalarList", "_.ScalarList"})
      m.impl(cat("_foreach_", r.name, end).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_each>());
  for (const RawReader& r : kRawReaders) m.impl(r.name, torch::CppFunction::makeFromBoxedFunction<&raw_reader>());
  for (const char* name : kRecurrentLayers) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recurrent>());
  return all;
}

const std::vector<torch::Library> kRegistered = registered();

}  // namespace

bool is_product_gradient(const torch::autograd::Node& n) { return dynamic_cast<const ag::CppNode<Product>*>(&n); }

bool is_question_of_weights(std::string_view operation) { return is_in_library_layer && operation == "aten::set_.source_Storage"; }

void part_gradients(torch::jit::Stack& stack) {
  std::vector<at::Tensor> gradients = stack.back().toTensorVector();
  for (at::Tensor& t : gradients) t = t.defined() ? t.clone() : t;
  stack.back() = gradients;
}

bool draws(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const auto arguments = c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - schema.arguments().size());
  if (!op.hasTag(at::Tag::nondeterministic_seeded) || is_nothing(schema, arguments, "dropout_p")) return false;
  if (name == "aten::_cudnn_rnn") return drops_out(schema, arguments);
  // Attention's gradients drop what attention dropped, by the seed that it gave.
  return name != "aten::_scaled_dot_product_efficient_attention_backward" && name != "aten::_scaled_dot_product_cudnn_attention_backward";
}

bool is_whole_layer(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& [name, overload] = op.operator_name();
  auto is_named = [&](const char* layer) { return name + "." + overload == std::string("aten::") + layer; };
  if (std::none_of(std::begin(kRecurrentLayers), std::end(kRecurrentLayers), is_named) || Autocast::now().is_on()) return false;
  const LayerCall layer(op, stack);
  return !layer.draws() && !layer.is_differentiable() && layer.is_long();
}

}  // namespace broach
