// What kernels are told with each launch instead of knowing it: constants in which several kernels differ, and the host's numbers.
//
// A loop that a program unrolls (`[x + i for i in range(1000)]`) gives kernels that differ in a
// number only: they become one, which is told the number with each launch.
#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <set>

#include "schedule/exprs.h"
#include "schedule/schedule.h"

namespace broach {

namespace {

using Kind = KernelExpr::Kind;

constexpr size_t kFewest = 4;  // kernels, from which on knowing a constant is worth less than the time to compile each

// A number that is rounded to its type before the kernel sees it. Integers decide which code is emitted, fractions do not.
bool may_differ(const KernelExpr& e) { return e.kind == Kind::constant && (e.dtype == DType::f32 || e.dtype == DType::f64); }

double number_of(const KernelExpr& e) {
  const double d = as_double(e.value);
  return e.dtype == DType::f32 ? static_cast<double>(static_cast<float>(d)) : d;
}

int64_t bits_of(const KernelExpr& e) { return std::bit_cast<int64_t>(number_of(e)); }

std::string text_without_numbers(const Kernel& kernel) {
  Kernel k = kernel;
  for (KernelExpr& e : k.exprs)
    if (may_differ(e)) e.value = int64_t{0}, e.kind = Kind::parameter;
  return k.str();
}

// The constants, by expression, in which kernels with this text differ.
std::vector<size_t> differing(const std::vector<KernelStep*>& steps) {
  std::vector<size_t> out;
  const Kernel& first = *steps[0]->kernel;
  for (size_t i = 0; i < first.exprs.size(); ++i) {
    auto same = [&](const KernelStep* s) { return bits_of(s->kernel->exprs[i]) == bits_of(first.exprs[i]); };
    if (may_differ(first.exprs[i]) && !std::all_of(steps.begin(), steps.end(), same)) out.push_back(i);
  }
  return out;
}

size_t count_distinct(const std::vector<KernelStep*>& steps, const std::vector<size_t>& constants) {
  std::set<std::vector<int64_t>> distinct;
  for (const KernelStep* s : steps) {
    std::vector<int64_t> numbers;
    for (size_t i : constants) numbers.push_back(bits_of(s->kernel->exprs[i]));
    distinct.insert(std::move(numbers));
  }
  return distinct.size();
}

void share(const std::vector<KernelStep*>& steps) {
  const std::vector<size_t> constants = steps.size() < kFewest ? std::vector<size_t>() : differing(steps);
  if (constants.empty() || count_distinct(steps, constants) < kFewest) return;
  auto shared = std::make_shared<Kernel>(*steps[0]->kernel);
  for (size_t i : constants) {
    shared->exprs[i].kind = Kind::parameter;
    shared->exprs[i].value = int64_t{shared->parameters++};
  }
  for (KernelStep* s : steps) {
    for (size_t i : constants) s->numbers.push_back({bits_of(s->kernel->exprs[i]), -1});
    s->kernel = shared;
  }
}

void pass_numbers(Step& whole, KernelStep& step, const std::function<int(int)>& number_in) {
  std::shared_ptr<Kernel> kernel;
  for (size_t i = 0; i < step.kernel->exprs.size(); ++i) {
    const KernelExpr& e = step.kernel->exprs[i];
    const int input = e.kind == Kind::load ? number_in(step.buffers[static_cast<size_t>(e.access.buffer)]) : -1;
    if (input < 0) continue;
    if (!kernel) kernel = std::make_shared<Kernel>(*step.kernel);
    KernelExpr told{};
    told.kind = Kind::parameter, told.dtype = e.dtype, told.value = int64_t{kernel->parameters++};
    kernel->exprs[i] = std::move(told);
    step.numbers.push_back({0, input});
  }
  if (!kernel) return;
  step.kernel = std::move(kernel);
  step = without_idle_buffers(std::move(step));
  std::erase_if(whole.reads, [&](int b) { return std::ranges::find(step.buffers, b) == step.buffers.end(); });
}

}  // namespace

void pass_numbers(Schedule& schedule, const std::vector<int>& inputs) {
  if (inputs.empty()) return;
  std::set<int> written;
  for (const Step& s : schedule.steps) written.insert(s.writes.begin(), s.writes.end());
  auto number_in = [&](int buffer) {
    const Buffer& b = schedule.buffers[static_cast<size_t>(buffer)];
    const bool is_number = b.kind == Buffer::Kind::input && b.type.dtype == DType::f64 && b.type.shape.empty() &&
                           b.type.device.kind == DeviceKind::cpu && b.version == 0 && !written.contains(buffer) &&
                           std::find(inputs.begin(), inputs.end(), b.index) != inputs.end();
    return is_number ? b.index : -1;
  };
  for (Step& s : schedule.steps)
    if (auto* k = std::get_if<KernelStep>(&s.work)) pass_numbers(s, *k, number_in);
}

void share_kernels(std::vector<Step>& steps) {
  std::map<std::string, std::vector<KernelStep*>> by_text;
  for (Step& s : steps)
    if (auto* k = std::get_if<KernelStep>(&s.work)) by_text[text_without_numbers(*k->kernel)].push_back(k);
  for (auto& [text, alike] : by_text) share(alike);
}

}  // namespace broach
