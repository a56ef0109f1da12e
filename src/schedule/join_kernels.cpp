// Small kernels over the same axes that do not need each other become one: a launch costs more than what each of them does. Of such are
// counters, running statistics and the gradients of many small parameters.
//
// Only the first of two can move, behind what lies between them: a step that writes into an input stays behind those that may fail.
#include <algorithm>
#include <map>

#include "schedule/schedule.h"

namespace broach {

namespace {

constexpr size_t kMostExprs = 256, kMostStores = 32, kMostBuffers = 64;
constexpr size_t kMostTried = 8;  // kernels, of those before one

// What kernels have in common that can be joined.
using Form = std::vector<std::pair<int64_t, bool>>;  // axes: size, whether it is reduced

std::optional<Form> form_of(const Step& step, int64_t most_points) {
  const auto* k = std::get_if<KernelStep>(&step.work);
  if (!k || step.early || can_fail(step) || !k->symbols.empty() || k->kernel->strict) return std::nullopt;
  Form out;
  int64_t points = 1;
  for (const KernelAxis& a : k->kernel->axes) {
    const auto extent = a.extent.maybe_constant();
    if (!extent || *extent > most_points || (points *= *extent) > most_points) return std::nullopt;
    out.emplace_back(*extent, a.reduced);
  }
  return out;
}

bool fits(const Kernel& a, const Kernel& b) {
  return a.exprs.size() + b.exprs.size() <= kMostExprs && a.stores.size() + b.stores.size() <= kMostStores &&
         a.buffers.size() + b.buffers.size() <= kMostBuffers;
}

Access moved(Access access, int buffers, int exprs) {
  if (access.buffer >= 0) access.buffer += buffers;
  for (auto& [e, stride] : access.dynamic) e += exprs;
  return access;
}

// Both, b behind a. Axes have the same names, as each kernel counts its own from the first.
Kernel joined(Kernel a, const Kernel& b) {
  const auto buffers = static_cast<int>(a.buffers.size()), exprs = static_cast<int>(a.exprs.size());
  a.buffers.insert(a.buffers.end(), b.buffers.begin(), b.buffers.end());
  for (KernelExpr e : b.exprs) {
    for (int& arg : e.args) arg += exprs;
    if (e.predicate >= 0) e.predicate += exprs;
    e.access = moved(std::move(e.access), buffers, exprs);
    a.exprs.push_back(std::move(e));
  }
  for (const KernelStore& s : b.stores) a.stores.push_back({moved(s.access, buffers, exprs), s.expr + exprs});
  return a;
}

bool same_axes(const Kernel& a, const Kernel& b) { return std::ranges::equal(a.axes, b.axes, {}, &KernelAxis::id, &KernelAxis::id); }

class Joiner {
 public:
  Joiner(std::vector<Step>& steps, const std::vector<Buffer>& buffers, int64_t most_points)
      : steps_(steps), buffers_(buffers), most_points_(most_points), dead_(steps.size()) {}

  void run() {
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (const auto form = form_of(steps_[i], most_points_)) take_in(*form, i);
      for (int b : steps_[i].reads) read_[memory_of(b)] = i;
      for (int b : steps_[i].writes) written_[memory_of(b)] = i;
    }
    size_t at = 0;
    std::erase_if(steps_, [&](const Step&) { return dead_[at++]; });
  }

 private:
  // Versions of an input lie in the same memory.
  int memory_of(int buffer) const {
    const Buffer& b = buffers_[static_cast<size_t>(buffer)];
    return b.kind == Buffer::Kind::input ? -1 - b.index : buffer;
  }

  void take_in(const Form& form, size_t i) {
    std::vector<size_t>& before = open_[form];
    for (size_t n = before.size(), tried = 0; n-- > 0 && tried < kMostTried; ++tried) {
      if (!join(before[n], i)) continue;
      dead_[before[n]] = true;
      before.erase(before.begin() + static_cast<int64_t>(n));
    }
    before.push_back(i);
  }

  bool join(size_t first, size_t second) {
    const Step& a = steps_[first];
    Step& b = steps_[second];
    const auto &ka = std::get<KernelStep>(a.work), &kb = std::get<KernelStep>(b.work);
    if (a.device != b.device || !fits(*ka.kernel, *kb.kernel) || !same_axes(*ka.kernel, *kb.kernel) || !may_sink(first, b)) return false;
    KernelStep both{std::make_shared<const Kernel>(joined(*ka.kernel, *kb.kernel)), ka.buffers, {}, {}, {}};
    both.buffers.insert(both.buffers.end(), kb.buffers.begin(), kb.buffers.end());
    if (!ka.starts.empty() || !kb.starts.empty()) {
      both.starts = starts_of(ka);
      const std::vector<int64_t> starts = starts_of(kb);
      both.starts.insert(both.starts.end(), starts.begin(), starts.end());
    }
    b.work = std::move(both);
    b.reads.insert(b.reads.begin(), a.reads.begin(), a.reads.end());
    b.writes.insert(b.writes.begin(), a.writes.begin(), a.writes.end());
    return true;
  }

  static std::vector<int64_t> starts_of(const KernelStep& k) {
    return k.starts.empty() ? std::vector<int64_t>(k.buffers.size()) : k.starts;
  }

  // Whether nothing from behind the first up to the second touches what it writes, or writes what it reads.
  bool may_sink(size_t first, const Step& second) const {
    auto is_later = [&](const std::map<int, size_t>& last, int b) {
      const auto at = last.find(memory_of(b));
      return at != last.end() && at->second > first;
    };
    auto meets = [&](const std::vector<int>& some, int b) {
      return std::ranges::any_of(some, [&](int other) { return memory_of(other) == memory_of(b); });
    };
    const Step& a = steps_[first];
    return std::ranges::none_of(
               a.writes,
               [&](int b) { return is_later(read_, b) || is_later(written_, b) || meets(second.reads, b) || meets(second.writes, b); }) &&
           std::ranges::none_of(a.reads, [&](int b) { return is_later(written_, b) || meets(second.writes, b); });
  }

  std::vector<Step>& steps_;
  const std::vector<Buffer>& buffers_;
  int64_t most_points_;
  std::vector<bool> dead_;
  std::map<Form, std::vector<size_t>> open_;  // steps by form, in their order
  std::map<int, size_t> read_, written_;      // by memory: the last step that did
};

}  // namespace

void join_kernels(std::vector<Step>& steps, const std::vector<Buffer>& buffers, int64_t most_points) {
  Joiner(steps, buffers, most_points).run();
}

}  // namespace broach
