#include "verify.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "support/error.h"
#include "tensors.h"

namespace broach {

namespace {

const void* memory_of(const at::Tensor& t) {
  return t.has_storage() ? static_cast<const void*>(t.storage().unsafeGetStorageImpl()) : t.unsafeGetTensorImpl();
}

// A tensor at the same place of a copy of its memory, which all tensors of that memory share.
at::Tensor duplicate(const at::Tensor& t, std::map<const void*, at::Tensor>& copied) {
  if (t.layout() != c10::kStrided || t.is_conj() || t.is_neg()) return t.clone();
  at::Tensor& whole = copied[memory_of(t)];
  if (!whole.defined()) {
    auto bytes = static_cast<int64_t>(t.storage().nbytes());
    whole = at::empty({0}, t.options().dtype(at::kByte)).set_(t.storage(), 0, {bytes}, {1}).clone();
  }
  return at::empty({0}, t.options()).set_(whole.storage(), t.storage_offset(), t.sizes(), t.strides());
}

// Largest error over the largest element. A wrong trace errs by more, as a rule.
double limit_of(c10::ScalarType t) {
  switch (c10::toRealValueType(t)) {
    case c10::kDouble: return 1e-8;
    case c10::kFloat: return 2e-3;
    case c10::kHalf: return 2e-2;
    case c10::kBFloat16: return 6e-2;
    // A unit of the last place of its largest numbers: next to a tie, what was computed before rounds to either side.
    case c10::kFloat8_e4m3fn: return 8e-2;
    case c10::kFloat8_e5m2: return 0.15;
    default: return 0;
  }
}

std::string difference_of(const at::Tensor& want, const at::Tensor& got, const std::string& name, double limit) {
  if (want.defined() != got.defined()) return cat(name, " is ", got.defined() ? "defined" : "undefined", ", eager's is not");
  if (!want.defined() || want.is_same(got) || want.layout() != c10::kStrided) return "";
  if (want.scalar_type() != got.scalar_type() || want.sizes() != got.sizes())
    return cat(name, " is ", got.toString(), " ", got.sizes(), ", eager's is ", want.toString(), " ", want.sizes());
  if (want.numel() == 0) return "";
  at::Tensor same = want.eq(got).logical_or(want.ne(want).logical_and(got.ne(got)));
  if (same.all().item<bool>()) return "";
  bool exact = !want.is_floating_point() && !want.is_complex();
  if (exact) return cat(name, " has ", same.logical_not().sum().item<int64_t>(), " of ", want.numel(), " elements that are not eager's");
  auto wide = want.is_complex() ? c10::kComplexDouble : c10::kDouble;
  at::Tensor a = want.to(wide), b = got.to(wide);
  at::Tensor error = a.sub(b).abs().masked_fill(same, 0);
  double size = at::nan_to_num(a.abs(), 0, 0, 0).max().item<double>(), worst = error.max().item<double>();
  if (worst <= limit * std::max(size, 1e-30)) return "";
  int64_t at = at::nan_to_num(error, std::numeric_limits<double>::infinity()).argmax().item<int64_t>();
  return cat(name, " differs by ", worst, " at element ", at);
}

}  // namespace

Trial::Trial(const std::vector<at::Tensor>& given, size_t own, const std::vector<at::Tensor>& held) : given_(given), own_(own) {
  at::NoGradGuard no_grad;
  std::unordered_set<const void*> mine;
  auto save = [&](const at::Tensor& t) {
    if (!t.defined() || t.layout() != c10::kStrided) return;
    mine.insert(memory_of(t));
    saved_.push_back({t, t.detach().clone(), {}, version_of(t)});
  };
  std::for_each(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(own), save);
  std::for_each(held.begin(), held.end(), save);
  std::map<const void*, at::Tensor> copied;
  for (size_t i = 0; i < given.size(); ++i) {
    const at::Tensor& t = given[i];
    bool shared = mine.contains(memory_of(t));  // with the program's own: it stays itself, and is put back
    if (i >= own && shared) saved_.push_back({t, t.detach().clone(), {}, version_of(t)});
    inputs_.push_back(i < own || shared ? t : duplicate(t, copied));
  }
  random_.add(c10::kCPU);
  for (const auto* list : {&given, &held})
    for (const at::Tensor& t : *list)
      if (t.defined()) random_.add(t.device());
}

void Trial::rewind() {
  at::NoGradGuard no_grad;
  for (Saved& s : saved_) {
    at::Tensor now = s.tensor.detach();
    if (!difference_of(s.before, now, "", 0).empty()) s.after_trial = now.clone();
  }
  for (Saved& s : saved_) {
    if (s.after_trial.defined()) s.tensor.detach().copy_(s.before);
    // Gradients of calls before this one may need it as it was.
    c10::VariableVersion version = s.tensor.unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) version.set_version(s.version);
  }
  random_.put_back();
}

double Trial::limit(const Function::Results& want) const {
  double rough = Autocast::now().is_on() ? limit_of(c10::kBFloat16) : 0;
  for (const auto* list : {&given_, &want.tensors})
    for (const at::Tensor& t : *list)
      if (t.defined()) rough = std::max(rough, limit_of(t.scalar_type()));
  for (const Saved& s : saved_) rough = std::max(rough, limit_of(s.tensor.scalar_type()));
  return rough;
}

std::string Trial::difference(const Function::Results& want, const Function::Results& got) const {
  at::NoGradGuard no_grad;
  double rough = limit(want);
  if (want.tensors.size() != got.tensors.size()) return "the number of tensors in the result";
  for (size_t i = 0; i < want.tensors.size(); ++i)
    if (auto found = difference_of(want.tensors[i], got.tensors[i], cat("output ", i), rough); !found.empty()) return found;
  for (size_t i = own_; i < given_.size(); ++i)
    if (auto found = inputs_[i].is_same(given_[i])
                         ? ""
                         : difference_of(given_[i], inputs_[i], cat("argument ", i - own_, ", written by the program,"), rough);
        !found.empty())
      return found;
  for (const Saved& s : saved_)
    if (auto found = difference_of(s.tensor.detach(), s.after_trial.defined() ? s.after_trial : s.before,
                                   cat("a tensor of the program, ", s.tensor.sizes(), ","), rough);
        !found.empty())
      return found;
  auto same = [](const auto& a, const auto& b) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) { return x == y; });
  };
  return same(want.ints, got.ints) && want.floats.size() == got.floats.size() ? "" : "a number in the result";
}

}  // namespace broach
