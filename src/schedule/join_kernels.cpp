// Small kernels over the same axes become one: a launch costs more than what each of them does. Of such are counters, running
// statistics and the gradients of many small parameters. One may need the other where it reads each element at the point that stores it:
// the sum of a channel's parts, the mean that follows from it, and the variance around that.
//
// Only the first of two can move, behind what lies between them: a step that writes into an input stays behind those that may fail.
#include <algorithm>
#include <functional>
#include <map>

#include "schedule/schedule.h"

namespace broach {

namespace {

constexpr size_t kMostExprs = 256, kMostStores = 32, kMostBuffers = 64;
constexpr size_t kMostTried = 8;  // kernels, of those before one

// What kernels have in common that can be joined: the sizes of axes that are not reduced.
using Form = std::vector<int64_t>;

std::optional<Form> form_of(const Step& step, int64_t most_points) {
  const auto* k = std::get_if<KernelStep>(&step.work);
  if (!k || step.early || can_fail(step) || !k->symbols.empty() || k->kernel->strict) return std::nullopt;
  Form out;
  int64_t points = 1;
  for (const KernelAxis& a : k->kernel->axes) {
    const auto extent = a.extent.maybe_constant();
    if (!extent || *extent > most_points || (points *= *extent) > most_points) return std::nullopt;
    if (!a.reduced) out.push_back(*extent);
  }
  return out;
}

bool fits(const Kernel& a, const Kernel& b) {
  return a.exprs.size() + b.exprs.size() <= kMostExprs && a.stores.size() + b.stores.size() <= kMostStores &&
         a.buffers.size() + b.buffers.size() <= kMostBuffers;
}

using Expressions = std::map<int, int>;  // of b: of a, whose values they are

// Both, b behind a. Axes have the same names, as each kernel counts its own from the first.
Kernel joined(Kernel a, const Kernel& b, const Expressions& known) {
  const auto buffers = static_cast<int>(a.buffers.size());
  std::vector<int> place;  // by expression of b
  const auto placed = [&](Access access) {
    if (access.buffer >= 0) access.buffer += buffers;
    for (auto& [e, stride] : access.dynamic) e = place[static_cast<size_t>(e)];
    return access;
  };
  a.buffers.insert(a.buffers.end(), b.buffers.begin(), b.buffers.end());
  for (size_t i = 0; i < b.exprs.size(); ++i) {
    if (const auto same = known.find(static_cast<int>(i)); same != known.end()) {
      place.push_back(same->second);
      continue;
    }
    KernelExpr e = b.exprs[i];
    for (int& arg : e.args) arg = place[static_cast<size_t>(arg)];
    if (e.predicate >= 0) e.predicate = place[static_cast<size_t>(e.predicate)];
    e.access = placed(std::move(e.access));
    place.push_back(static_cast<int>(a.exprs.size()));
    a.exprs.push_back(std::move(e));
  }
  for (const KernelStore& s : b.stores) a.stores.push_back({placed(s.access), place[static_cast<size_t>(s.expr)]});
  if (b.axes.size() > a.axes.size()) a.axes = b.axes;
  return a;
}

// Whether the axes of `more` are those of `few` and reduced ones, over which `few` has nothing to reduce.
bool begins_with(const Kernel& more, const Kernel& few) {
  return more.axes.size() >= few.axes.size() && std::equal(few.axes.begin(), few.axes.end(), more.axes.begin()) &&
         std::all_of(more.axes.begin() + static_cast<int64_t>(few.axes.size()), more.axes.end(), std::mem_fn(&KernelAxis::reduced)) &&
         std::ranges::none_of(few.exprs, [](const KernelExpr& e) { return e.kind == KernelExpr::Kind::reduction; });
}

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
    if (a.device != b.device || !fits(*ka.kernel, *kb.kernel) || !may_sink(first, b)) return false;
    const std::optional<Expressions> known = loads_of_stored(a, b);
    if (!known) return false;
    const bool same = ka.kernel->axes == kb.kernel->axes;
    if (!same && (known->empty() || !(begins_with(*ka.kernel, *kb.kernel) || begins_with(*kb.kernel, *ka.kernel)))) return false;
    KernelStep both{std::make_shared<const Kernel>(joined(*ka.kernel, *kb.kernel, *known)), ka.buffers, {}, {}, {}};
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

  // The expressions of b that load what a stores, each at the point that stores it; nothing where b reads that in another way.
  std::optional<Expressions> loads_of_stored(const Step& a, const Step& b) const {
    const auto &ka = std::get<KernelStep>(a.work), &kb = std::get<KernelStep>(b.work);
    Expressions out;
    for (int written : a.writes) {
      if (!meets(b.reads, written)) continue;
      bool is_loaded = false;
      for (size_t i = 0; i < kb.kernel->exprs.size(); ++i) {
        const KernelExpr& load = kb.kernel->exprs[i];
        if (load.access.buffer < 0 || memory_of(buffer_of(kb, load.access)) != memory_of(written)) continue;
        const int stored = load.kind == KernelExpr::Kind::load && load.predicate < 0 ? stored_at(ka, kb, load) : -1;
        if (stored < 0) return std::nullopt;
        out.emplace(static_cast<int>(i), stored);
        is_loaded = true;
      }
      if (!is_loaded) return std::nullopt;
    }
    return out;
  }

  // What a stores where b loads this, if that is all that it stores in this memory.
  int stored_at(const KernelStep& a, const KernelStep& b, const KernelExpr& load) const {
    const int buffer = buffer_of(b, load.access);
    int out = -1, stores = 0;
    for (const KernelStore& s : a.kernel->stores) {
      if (memory_of(buffer_of(a, s.access)) != memory_of(buffer)) continue;
      ++stores;
      const bool same = buffer_of(a, s.access) == buffer && s.access.dynamic.empty() && load.access.dynamic.empty() &&
                        start_of(a, s.access) + s.access.index == start_of(b, load.access) + load.access.index &&
                        a.kernel->exprs[static_cast<size_t>(s.expr)].dtype == load.dtype;
      if (same) out = s.expr;
    }
    return stores == 1 ? out : -1;
  }

  static int buffer_of(const KernelStep& k, const Access& access) { return k.buffers[static_cast<size_t>(access.buffer)]; }
  static SymInt start_of(const KernelStep& k, const Access& access) {
    return k.starts.empty() ? 0 : k.starts[static_cast<size_t>(access.buffer)];
  }

  bool meets(const std::vector<int>& some, int b) const {
    return std::ranges::any_of(some, [&](int other) { return memory_of(other) == memory_of(b); });
  }

  // Whether nothing from behind the first up to the second touches what it writes, or writes what it reads, but for what the second
  // reads of it.
  bool may_sink(size_t first, const Step& second) const {
    auto is_later = [&](const std::map<int, size_t>& last, int b) {
      const auto at = last.find(memory_of(b));
      return at != last.end() && at->second > first;
    };
    const Step& a = steps_[first];
    return std::ranges::none_of(a.writes, [&](int b) { return is_later(read_, b) || is_later(written_, b) || meets(second.writes, b); }) &&
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
