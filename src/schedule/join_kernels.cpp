// Kernels over the same axes become one, for one of two reasons.
//
// Small ones, because a launch costs more than what each of them does. Of such are counters, running statistics and the gradients of many
// small parameters. Large ones, if they are elementwise, because both read the same elements, or one reads what the other stores: the
// gradients of a product's two factors. What only the second reads of the first is then not stored at all. Where launches are dear, what
// stores what a sum reads becomes part of it: a bias's gradient is summed while that of the product is made.
//
// One may need the other where it reads each element at the point that stores it: the sum of a channel's parts, the mean that follows from
// it, and the variance around that. The first of two moves behind what lies between them, or, of a sum and what stores its operand, the
// second before that, unless it writes into an input, as such a step stays behind those that may fail. A small one moves up, too, where what
// it reads is there by then: what a program computes of its weights.
#include <algorithm>
#include <functional>
#include <map>

#include "schedule/add_rows_up.h"
#include "schedule/exprs.h"
#include "schedule/same_points.h"
#include "schedule/schedule.h"
#include "support/error.h"

namespace broach {

namespace {

constexpr size_t kMostExprs = 256, kMostStores = 32, kMostBuffers = 64;
constexpr size_t kMostTried = 8;     // kernels, of those before one
constexpr size_t kMostApart = 16;    // steps between large ones: what the first reads has to be there until the second
constexpr int64_t kFew = 4096;       // points, whose elements stay in a cache
constexpr int64_t kEarly = 1 << 17;  // points, whose elements may well be there earlier than they are read
constexpr int64_t kMany = 8192;      // sums, as many as keep a machine busy

// A step that may be joined to others.
struct Candidate {
  std::string form;  // what joined kernels have in common: the sizes of axes that are not reduced
  bool is_small = false;
};

std::optional<Candidate> candidate(const Step& step, int64_t most_points) {
  const auto* k = std::get_if<KernelStep>(&step.work);
  if (!k || step.early || can_fail(step) || k->kernel->strict) return std::nullopt;
  Candidate out{{}, most_points > 0 && k->symbols.empty()};
  int64_t points = 1;
  for (const KernelAxis& a : k->kernel->axes) {
    const auto extent = a.extent.maybe_constant();
    out.is_small = out.is_small && extent && *extent <= most_points && (points *= *extent) <= most_points;
    if (!a.reduced) out.form += a.extent.str() + " ";
  }
  for (SymbolId s : k->symbols) out.form += cat("of ", s, " ");  // by which the kernel's sizes are named
  return out;
}

bool has_points_below(int64_t most, const Kernel& k) {
  SymInt points(1);
  for (const KernelAxis& a : k.axes) points = points * a.extent;
  return points.is_constant() && points.constant() < most;
}

bool is_elementwise(const Kernel& k) {
  return std::ranges::none_of(k.axes, &KernelAxis::reduced) &&
         std::ranges::none_of(k.exprs, [](const KernelExpr& e) { return e.kind == KernelExpr::Kind::reduction; });
}

bool sums_many(const Kernel& k) {
  int64_t results = 1;
  for (const KernelAxis& a : k.axes)
    if (!a.reduced) results *= a.extent.maybe_constant().value_or(0);
  return results >= kMany && std::ranges::any_of(k.axes, &KernelAxis::reduced);
}

bool fits(const Kernel& a, const Kernel& b) {
  return a.exprs.size() + b.exprs.size() <= kMostExprs && a.stores.size() + b.stores.size() <= kMostStores &&
         a.buffers.size() + b.buffers.size() <= kMostBuffers;
}

using Expressions = std::map<int, int>;  // of b: of a, whose values they are

// Both, b behind a, and what both compute once. Axes have the same names, as each kernel counts its own from the first. `places`: of b's
// buffers, in the one that results.
Kernel joined(Kernel a, const Kernel& b, const Expressions& known, const std::vector<int>& places) {
  std::vector<int> place;  // by expression of b
  const auto now = [&](int e) { return place[static_cast<size_t>(e)]; };
  const auto placed = [&](int buffer) { return buffer < 0 ? buffer : places[static_cast<size_t>(buffer)]; };
  a.buffers.resize(std::max(a.buffers.size(), places.empty() ? 0 : 1 + static_cast<size_t>(std::ranges::max(places))));
  for (size_t i = 0; i < b.buffers.size(); ++i) a.buffers[static_cast<size_t>(places[i])] = b.buffers[i];
  for (size_t i = 0; i < b.exprs.size(); ++i) {
    if (const auto same = known.find(static_cast<int>(i)); same != known.end()) {
      place.push_back(same->second);
      continue;
    }
    KernelExpr e = moved(b.exprs[i], now);
    e.access.buffer = placed(e.access.buffer);
    const auto same = std::ranges::find(a.exprs, e);
    place.push_back(static_cast<int>(same - a.exprs.begin()));
    if (same == a.exprs.end()) a.exprs.push_back(std::move(e));
  }
  for (const KernelStore& s : b.stores) {
    a.stores.push_back({moved(s.access, now), now(s.expr), s.adds});
    a.stores.back().access.buffer = placed(s.access.buffer);
  }
  if (b.axes.size() > a.axes.size()) a.axes = b.axes;
  return a;
}

// Without the stores into these buffers.
KernelStep without(KernelStep step, const std::vector<int>& dead) {
  auto k = std::make_shared<Kernel>(*step.kernel);
  std::erase_if(k->stores, [&](const KernelStore& s) {
    return std::ranges::find(dead, step.buffers[static_cast<size_t>(s.access.buffer)]) != dead.end();
  });
  step.kernel = std::move(k), step.numbers.clear();
  return without_idle_buffers(std::move(step));
}

// Whether the axes of `more` are those of `few` and reduced ones, over which `few` has nothing to reduce.
bool begins_with(const Kernel& more, const Kernel& few) {
  return more.axes.size() >= few.axes.size() && std::equal(few.axes.begin(), few.axes.end(), more.axes.begin()) &&
         std::all_of(more.axes.begin() + static_cast<int64_t>(few.axes.size()), more.axes.end(), std::mem_fn(&KernelAxis::reduced)) &&
         std::ranges::none_of(few.exprs, [](const KernelExpr& e) { return e.kind == KernelExpr::Kind::reduction; });
}

class Joiner {
 public:
  Joiner(std::vector<Step>& steps, const std::vector<Buffer>& buffers, const std::vector<int>& outputs, int64_t launch_points)
      : steps_(steps), buffers_(buffers), most_points_(launch_points), dead_(steps.size()) {
    for (const Step& s : steps)
      for (int b : s.reads) ++readers_[b];
    for (int b : outputs) ++readers_[b];
  }

  void run() {
    for (size_t i = 0; i < steps_.size(); ++i) {
      auto c = candidate(steps_[i], most_points_);
      if (c && most_points_ > 0 && (sums_many(kernel_of(i)) || rows_added(kernel_of(i)) > 0)) take_producers(i);
      if (c && !dead_[i]) join_rows(i);
      if (c && !dead_[i]) take_in(*c, i);
      if (!dead_[i]) note(steps_[i], i);
    }
    std::vector<Step> left;
    for (size_t i = 0; i < steps_.size(); ++i)
      if (!dead_[i]) left.push_back(std::move(steps_[i]));
    steps_ = std::move(left);
  }

 private:
  const Kernel& kernel_of(size_t i) const { return *std::get<KernelStep>(steps_[i].work).kernel; }

  void note(const Step& s, size_t at) {
    auto last = [&](size_t& of) { of = std::max(of, at); };
    for (int b : s.reads) last(read_[memory_of(b)]);
    for (int b : s.writes) last(written_[memory_of(b)]);
  }

  // Of a kernel that adds up rows and another one along them: who reads a row for one does for the other.
  void join_rows(size_t i) {
    const int64_t added = rows_added(kernel_of(i));
    for (size_t first = i, tried = 0; first-- > 0 && tried < kMostApart; ++tried) {
      const Step &a = steps_[first], &b = steps_[i];
      if (dead_[first] || !candidate(a, most_points_)) continue;
      const int64_t others = rows_added(kernel_of(first));
      if ((added == 0 && others == 0) || (added > 0 && others > 0 && added != others)) continue;
      const auto &ka = std::get<KernelStep>(a.work), &kb = std::get<KernelStep>(b.work);
      if (a.device != b.device || ka.symbols != kb.symbols || ka.kernel->axes != kb.kernel->axes || !fits(*ka.kernel, *kb.kernel)) continue;
      const std::optional<Expressions> known = loads_of_stored(a, b);
      if (known && (!known->empty() || reads_the_same(ka, kb)) && meet(first, a, i, *known) && dead_[i]) return;
    }
  }

  // At the place of the later of the two, or else of the earlier, if that is possible.
  bool meet(size_t first, const Step& a, size_t i, const Expressions& known) {
    const bool sinks = may_sink(first, steps_[i]);
    if (!sinks && !may_rise(first, i)) return false;
    become_one(a, steps_[i], known);
    dead_[sinks ? first : i] = true;
    if (sinks) return true;
    steps_[first] = std::move(steps_[i]);
    note(steps_[first], first);
    return true;
  }

  // Versions of an input lie in the same memory.
  int memory_of(int buffer) const {
    const Buffer& b = buffers_[static_cast<size_t>(buffer)];
    return b.kind == Buffer::Kind::input ? -1 - b.index : buffer;
  }

  void take_in(const Candidate& c, size_t i) {
    auto& before = open_[c.form];
    for (size_t n = before.size(), tried = 0; n-- > 0 && tried < kMostTried; ++tried) {
      const auto [first, is_small] = before[n];
      if (dead_[first]) continue;
      if (!(is_small && c.is_small ? join(first, i, false) : i - first <= kMostApart && join(first, i, true))) continue;
      if (dead_[i]) return;
      before.erase(before.begin() + static_cast<int64_t>(n));
    }
    before.emplace_back(i, c.is_small);
  }

  bool join(size_t first, size_t second, bool is_large) {
    const Step &a = steps_[first], &b = steps_[second];
    const auto &ka = std::get<KernelStep>(a.work), &kb = std::get<KernelStep>(b.work);
    if (a.device != b.device || ka.symbols != kb.symbols || !fits(*ka.kernel, *kb.kernel)) return false;
    if (!may_sink(first, b) && (is_large || !has_points_below(kEarly, *kb.kernel))) return false;
    const std::optional<Expressions> known = loads_of_stored(a, b);
    if (!known) return false;
    const bool same = ka.kernel->axes == kb.kernel->axes;
    if (is_large && !(same && is_elementwise(*ka.kernel) && is_elementwise(*kb.kernel))) return false;
    if (is_large && known->empty() && (has_points_below(kFew, *kb.kernel) || !reads_the_same(ka, kb))) return false;
    if (!same && (known->empty() || !(begins_with(*ka.kernel, *kb.kernel) || begins_with(*kb.kernel, *ka.kernel)))) return false;
    return meet(first, a, second, *known);
  }

  // Elementwise kernels that store what this one reduces, which is then done by the later or the earlier of the two.
  void take_producers(size_t i) {
    for (size_t first = i, tried = 0; first-- > 0 && tried < kMostApart; ++tried) {
      if (dead_[first] || !candidate(steps_[first], most_points_)) continue;
      const std::optional<Step> producer = over_points(steps_[first], steps_[i]);
      if (!producer) continue;
      const std::optional<Expressions> known = loads_of_stored(*producer, steps_[i]);
      if (known && !known->empty() && meet(first, *producer, i, *known) && dead_[i]) return;
    }
  }

  std::optional<Step> over_points(const Step& a, const Step& b) const {
    const auto &ka = std::get<KernelStep>(a.work), &kb = std::get<KernelStep>(b.work);
    if (a.device != b.device || ka.symbols != kb.symbols || !is_elementwise(*ka.kernel) || !fits(*ka.kernel, *kb.kernel))
      return std::nullopt;
    for (const KernelStore& s : ka.kernel->stores)
      for (const KernelExpr& e : kb.kernel->exprs) {
        const bool is_load = e.kind == KernelExpr::Kind::load && s.access.dynamic.empty() && e.access.dynamic.empty();
        if (!is_load || buffer_of(ka, s.access) != buffer_of(kb, e.access)) continue;
        auto moved =
            over_points_of(*ka.kernel, start_of(ka, s.access) + s.access.index, *kb.kernel, start_of(kb, e.access) + e.access.index);
        if (!moved) continue;
        Step out = a;
        std::get<KernelStep>(out.work).kernel = std::make_shared<const Kernel>(std::move(*moved));
        return out;
      }
    return std::nullopt;
  }

  // Whether the second can be done where the first is: nothing between them writes what it reads, or touches what it writes.
  bool may_rise(size_t first, size_t second) {
    const Step& b = steps_[second];
    if (std::ranges::any_of(b.writes, [&](int w) { return buffers_[static_cast<size_t>(w)].kind == Buffer::Kind::input; })) return false;
    return std::ranges::none_of(b.reads, [&](int r) { return is_behind(first, written_, r); }) &&
           std::ranges::none_of(b.writes, [&](int w) { return is_behind(first, read_, w) || is_behind(first, written_, w); });
  }

  void become_one(const Step& a, Step& b, const Expressions& known) {
    const auto &ka = std::get<KernelStep>(a.work), &kb = std::get<KernelStep>(b.work);
    KernelStep both{nullptr, ka.buffers, ka.symbols, starts_of(ka), {}};
    std::vector<int> places;
    const std::vector<int64_t> starts = starts_of(kb);
    for (size_t i = 0; i < kb.buffers.size(); ++i) {
      size_t at = 0;
      while (at < both.buffers.size() && !(both.buffers[at] == kb.buffers[i] && both.starts[at] == starts[i])) ++at;
      if (at == both.buffers.size()) both.buffers.push_back(kb.buffers[i]), both.starts.push_back(starts[i]);
      places.push_back(static_cast<int>(at));
    }
    both.kernel = std::make_shared<const Kernel>(joined(*ka.kernel, *kb.kernel, known, places));
    for (int r : a.reads) readers_[r] -= std::ranges::count(b.reads, r) > 0;  // once more than before
    std::vector<int> dead;
    for (int w : a.writes) {
      if (std::erase(b.reads, w) > 0) --readers_[w];
      if (readers_[w] == 0 && buffers_[static_cast<size_t>(w)].kind == Buffer::Kind::arena) dead.push_back(w);
      else b.writes.push_back(w);
    }
    for (int r : a.reads)
      if (std::ranges::find(b.reads, r) == b.reads.end()) b.reads.push_back(r);
    b.work = without(std::move(both), dead);
  }

  // Whether both load elements of the same buffer along all axes, in the same order.
  static bool reads_the_same(const KernelStep& a, const KernelStep& b) {
    auto is_full = [](const KernelStep& k, const KernelExpr& e) {
      return e.kind == KernelExpr::Kind::load && e.access.dynamic.empty() &&
             std::ranges::all_of(k.kernel->axes, [&](const KernelAxis& axis) { return e.access.index.contains(axis.id); });
    };
    return std::ranges::any_of(a.kernel->exprs, [&](const KernelExpr& x) {
      return is_full(a, x) && std::ranges::any_of(b.kernel->exprs, [&](const KernelExpr& y) {
               return is_full(b, y) && is_one_element(a, x.access, b, y.access);
             });
    });
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
      if (is_one_element(a, s.access, b, load.access) && a.kernel->exprs[static_cast<size_t>(s.expr)].dtype == load.dtype) out = s.expr;
    }
    return stores == 1 ? out : -1;
  }

  static int buffer_of(const KernelStep& k, const Access& access) { return k.buffers[static_cast<size_t>(access.buffer)]; }
  static SymInt start_of(const KernelStep& k, const Access& access) {
    return k.starts.empty() ? 0 : k.starts[static_cast<size_t>(access.buffer)];
  }

  // Whether these are, at each point, the same element of the same buffer.
  static bool is_one_element(const KernelStep& a, const Access& x, const KernelStep& b, const Access& y) {
    return buffer_of(a, x) == buffer_of(b, y) && x.dynamic.empty() && y.dynamic.empty() &&
           start_of(a, x) + x.index == start_of(b, y) + y.index;
  }

  bool meets(const std::vector<int>& some, int b) const {
    return std::ranges::any_of(some, [&](int other) { return memory_of(other) == memory_of(b); });
  }

  // Whether the second writes of this buffer, at each point, the one element that the first reads there.
  bool overwrites_what_is_read(const Step& first, const Step& second, int buffer) const {
    const auto *a = std::get_if<KernelStep>(&first.work), *b = std::get_if<KernelStep>(&second.work);
    if (!a || !b || a->kernel->axes != b->kernel->axes || !is_elementwise(*a->kernel) || !is_elementwise(*b->kernel)) return false;
    const Access* written = nullptr;
    for (const KernelStore& s : b->kernel->stores) {
      if (memory_of(buffer_of(*b, s.access)) != memory_of(buffer)) continue;
      if (written || s.adds) return false;
      written = &s.access;
    }
    return written && std::ranges::all_of(a->kernel->exprs, [&](const KernelExpr& e) {
             if (e.access.buffer < 0 || memory_of(buffer_of(*a, e.access)) != memory_of(buffer)) return true;
             return e.kind == KernelExpr::Kind::load && is_one_element(*a, e.access, *b, *written);
           });
  }

  // By what was noted last of a buffer's memory.
  bool is_behind(size_t first, const std::map<int, size_t>& last, int buffer) const {
    const auto at = last.find(memory_of(buffer));
    return at != last.end() && at->second > first;
  }

  // Whether nothing from behind the first up to the second touches what it writes, or writes what it reads, but for what the second
  // reads of it, or writes where the first has read.
  bool may_sink(size_t first, const Step& second) const {
    const Step& a = steps_[first];
    return std::ranges::none_of(
               a.writes, [&](int b) { return is_behind(first, read_, b) || is_behind(first, written_, b) || meets(second.writes, b); }) &&
           std::ranges::none_of(a.reads, [&](int b) {
             return is_behind(first, written_, b) || (meets(second.writes, b) && !overwrites_what_is_read(a, second, b));
           });
  }

  std::vector<Step>& steps_;
  const std::vector<Buffer>& buffers_;
  int64_t most_points_;
  std::vector<bool> dead_;
  std::map<std::string, std::vector<std::pair<size_t, bool>>> open_;  // steps by form, in their order, and whether they are small
  std::map<int, size_t> read_, written_;                              // by memory: the last step that did
  std::map<int, int> readers_;                                        // by buffer: steps, and the program's outputs
};

}  // namespace

void join_kernels(std::vector<Step>& steps, std::vector<Buffer>& buffers, const std::vector<int>& outputs, const ScheduleOptions& options) {
  // Sums of columns as ones of rows, each with what is left to sum behind it.
  std::vector<Step> all;
  for (Step& s : steps) {
    auto two = add_rows_up(s, options.row_adder, buffers);
    if (two) all.push_back(std::move(two->rows)), all.push_back(std::move(two->rest));
    else all.push_back(std::move(s));
  }
  steps = std::move(all);
  Joiner(steps, buffers, outputs, options.launch_points).run();
}

}  // namespace broach
