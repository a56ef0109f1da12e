#include "target/cuda/kernel_plan.h"

#include <algorithm>
#include <limits>

#include "support/error.h"

namespace broach::cuda {

namespace {

using Kind = KernelExpr::Kind;
using Shape = KernelPlan::Shape;

constexpr int64_t kMany = 1000;                // elements along an axis whose size is not known
constexpr int64_t kBusy = int64_t{132} * 512;  // threads that keep a large GPU busy

int64_t estimate(const SymInt& n) {
  return n.eval([](SymbolId) { return kMany; });
}

int64_t power_of_two(int64_t at_least) {
  int64_t n = 1;
  while (n < at_least) n *= 2;
  return n;
}

bool divides(const SymInt& n, int64_t by) {
  if (n.constant_part() % by != 0) return false;
  return std::ranges::all_of(n.terms(), [&](const Term& t) { return t.coefficient % by == 0; });
}

// Whether the lanes of an access lie in one aligned piece wherever the other axes stand.
bool fits_pack(const KernelPlan& p, const Access& a, int64_t lanes) {
  if (lanes_of(a, p.kernel, p, p.axis) != Lanes::contiguous) return false;
  const SymInt rest = a.index.linear_in(p.axis_id())->second;
  return divides(rest, lanes) && std::ranges::all_of(a.dynamic, [&](const auto& d) { return divides(d.second, lanes); });
}

class Planner {
 public:
  Planner(const Kernel& kernel, const Variant& variant) {
    p_.kernel = kernel;
    p_.variant = variant;
    if (k_.axes.empty()) k_.axes.push_back({kFirstAxis, 1, false});  // a kernel of one point
    static_cast<KernelFacts&>(p_) = find_facts(k_);
    p_.added = rows_added(k_);
  }

  KernelPlan run() {
    choose_axis();
    choose_across();
    count();
    if (!p_.across) choose_lanes();
    choose_team();
    find_cached();
    if (p_.added > 0) find_kept(), find_ahead();
    return std::move(p_);
  }

 private:
  template <class F>
  void for_each_access(const F& f) const {
    for (const KernelExpr& e : k_.exprs)
      if (e.kind == Kind::load) f(e.access, false);
    for (const KernelStore& s : k_.stores) f(s.access, true);
  }

  int score(size_t axis) const {
    int total = 0;
    for_each_access([&](const Access& a, bool is_store) {
      const Lanes lanes = lanes_of(a, k_, p_, axis);
      if (is_store && k_.axes[axis].reduced && lanes == Lanes::same) return;
      total += lanes == Lanes::contiguous ? 2 : lanes == Lanes::apart ? -2 : 0;
    });
    return total - (estimate(k_.axes[axis].extent) < 8 ? 1 : 0);
  }

  void choose_axis() {
    int best = std::numeric_limits<int>::min();
    for (size_t a = 0; a < k_.axes.size(); ++a)
      if (int s = score(a); s >= best && (p_.added == 0 || k_.axes[a].reduced)) best = s, p_.axis = a;  // the innermost of equals
    p_.shape = !p_.has_reduced ? Shape::points : k_.axes[p_.axis].reduced ? Shape::rows : Shape::columns;
  }

  // Tiles are worth while where there is much to load, which no cache holds until its neighbours are wanted.
  void choose_across() {
    constexpr double kMuch = 1 << 16;
    constexpr int64_t kMostShared = int64_t{16} << 10;
    double points = 1;
    for (const KernelAxis& a : k_.axes) points *= static_cast<double>(estimate(a.extent));
    const auto axis = stored_along();
    if (p_.shape != Shape::points || points < kMuch || !axis) return;
    for (size_t a = 0; a < k_.axes.size(); ++a) {
      std::set<int> turned = loads_along(a, *axis);
      int64_t bytes = 0;
      for (int e : turned) bytes += kTile * (kTile + 1) * size_of(k_.buffers[static_cast<size_t>(p_.expr(e).access.buffer)]);
      if (turned.size() > p_.turned.size() && bytes <= kMostShared) p_.across = a, p_.turned = std::move(turned);
    }
    if (p_.across) p_.axis = *axis, p_.width = kTile, p_.team = 8;
  }

  // The axis along which all stores lie side by side, the chosen one if it is such; of many elements.
  std::optional<size_t> stored_along() const {
    auto is_such = [&](size_t axis) {
      auto lies = [&](const KernelStore& s) { return lanes_of(s.access, k_, p_, axis) == Lanes::contiguous; };
      return estimate(k_.axes[axis].extent) >= kTile && std::ranges::all_of(k_.stores, lies);
    };
    if (is_such(p_.axis)) return p_.axis;
    for (size_t a = 0; a < k_.axes.size(); ++a)
      if (is_such(a)) return a;
    return std::nullopt;
  }

  std::set<int> loads_along(size_t across, size_t axis) const {
    std::set<int> out;
    for (size_t i = 0; i < k_.exprs.size() && estimate(k_.axes[across].extent) >= kTile; ++i) {
      const KernelExpr& e = k_.exprs[i];
      if (e.kind != Kind::load || e.predicate >= 0 || !e.access.dynamic.empty()) continue;
      if (lanes_of(e.access, k_, p_, across) != Lanes::contiguous || lanes_of(e.access, k_, p_, axis) != Lanes::apart) continue;
      out.insert(static_cast<int>(i));
    }
    return out;
  }

  void count() {
    if (p_.across) return count_tiles();
    auto add = [&](size_t a) { (k_.axes[a].reduced ? p_.step_axes : p_.unit_axes).push_back(a); };
    for (size_t a = 0; a < k_.axes.size(); ++a)
      if (a != p_.axis) add(a);
    add(p_.axis);
    p_.units = p_.steps = 1;
    for (size_t a : p_.unit_axes) p_.units = p_.units * k_.axes[a].extent;
    for (size_t a : p_.step_axes) p_.steps = p_.steps * k_.axes[a].extent;
  }

  void count_tiles() {
    p_.units = ceildiv(k_.axes[p_.axis].extent, kTile) * ceildiv(k_.axes[*p_.across].extent, kTile);
    for (size_t a = 0; a < k_.axes.size(); ++a) {
      if (a == p_.axis || a == *p_.across) continue;
      p_.unit_axes.push_back(a);
      p_.units = p_.units * k_.axes[a].extent;
    }
    p_.steps = 1;
  }

  // As many as make the smallest of the elements that lie side by side 16 bytes, and fewer where that leaves threads without work.
  void choose_lanes() {
    if (!p_.variant.packs) return;
    const int64_t most = p_.shape == Shape::columns ? 4 : 8;
    for (int64_t lanes = most; lanes > 1; lanes /= 2)
      if (suits(lanes)) {
        p_.lanes = lanes;
        break;
      }
    if (p_.shape != Shape::rows) p_.units = floordiv(p_.units, p_.lanes);
  }

  bool suits(int64_t lanes) const {
    if (!divides(k_.axes[p_.axis].extent, lanes)) return false;
    if (p_.shape != Shape::rows && estimate(p_.units) * most_threads() < kBusy * lanes) return false;
    int64_t smallest = 16;
    bool any = false, stores_fit = true;
    for_each_access([&](const Access& a, bool is_store) {
      const bool fits = fits_pack(p_, a, lanes);
      if (fits) any = true, smallest = std::min(smallest, size_of(k_.buffers[static_cast<size_t>(a.buffer)]));
      else if (is_store && lanes_of(a, k_, p_, p_.axis) == Lanes::contiguous) stores_fit = false;
    });
    return any && stores_fit && smallest * lanes <= 16;
  }

  // Of a unit.
  int64_t most_threads() const { return p_.shape == Shape::columns ? std::clamp<int64_t>(power_of_two(estimate(p_.steps) / 8), 1, 32) : 1; }

  void choose_team() {
    if (p_.shape == Shape::points) return;
    const int64_t steps = estimate(p_.steps), units = estimate(p_.units);
    if (p_.shape == Shape::columns) return choose_columns(units);
    const int64_t vectors = std::max<int64_t>(1, (steps + p_.lanes - 1) / p_.lanes);
    if (p_.added > 0) return choose_adders(vectors);
    int64_t team = std::clamp<int64_t>(power_of_two((vectors + 3) / 4), 1, 1024);
    while (team < 1024 && team < vectors && units * team < kBusy) team *= 2;
    p_.team = static_cast<int>(team);
    p_.width = static_cast<int>(std::max<int64_t>(1, 128 / team));
    write_out(vectors);
  }

  // What the threads of a column share is little enough for several blocks of a multiprocessor.
  void choose_columns(int64_t units) {
    constexpr int64_t kMostShared = int64_t{16} << 10, kBytesOfIndex = 16;
    int64_t bytes = 0;  // of a thread
    for (const auto& stage : p_.stages)
      for (int r : stage)
        bytes += (p_.varies(r) ? p_.lanes : 1) * (is_index_reduction(p_.expr(r).op) ? kBytesOfIndex : size_of(p_.expr(r).dtype));
    int64_t team = units >= kBusy ? 1 : most_threads();
    while (team > 1 && team * 32 * bytes > kMostShared) team /= 2;
    p_.team = static_cast<int>(team);
    p_.width = team == 1 ? 128 : 32;
    if (team > 1) write_out(estimate(p_.steps));
  }

  void write_out(int64_t vectors) {
    constexpr int64_t kMostWrittenOut = 32;  // elements
    const auto known = p_.steps.maybe_constant();
    const int64_t trips = (vectors + p_.team - 1) / p_.team;
    if (known && trips * p_.lanes <= kMostWrittenOut) p_.trips = trips;
  }

  // A thread has few columns, for it keeps their sums.
  void choose_adders(int64_t vectors) {
    p_.team = static_cast<int>(std::clamp<int64_t>(power_of_two(vectors), 32, 1024));
    p_.width = 1;
    write_out(vectors);
    if (p_.trips == 0) unsupported("cuda: no code for sums of rows of ", p_.steps, " elements");
  }

  // What several passes need is kept in registers, so only where steps are written out; and of a chain of such values the last.
  void find_cached() {
    if (p_.trips == 0) return;
    const std::vector<int> passes = count_passes(k_, p_);
    std::vector<bool> is_last(k_.exprs.size());
    for (size_t i = 0; i < k_.exprs.size(); ++i)
      for_each_operand(k_.exprs[i], [&](int a) {
        const auto operand = static_cast<size_t>(a);
        is_last[operand] = is_last[operand] || k_.exprs[i].kind == Kind::reduction || passes[i] < passes[operand];
      });
    int64_t left = 64;
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const bool worth = k_.exprs[i].kind == Kind::load || k_.exprs[i].kind == Kind::op;
      if (!worth || !is_last[i] || passes[i] < 2 || !p_.inner[i] || left < p_.trips * p_.lanes) continue;
      p_.cached.insert(static_cast<int>(i));
      left -= p_.trips * p_.lanes;
    }
  }

  // What only the columns decide, such as a norm's weights, is loaded once for all rows.
  void find_kept() {
    std::set<int> last;
    for (size_t i = 0; i < k_.exprs.size(); ++i)
      if (moves_with_rows(i)) for_each_operand(k_.exprs[i], [&](int a) { last.insert(a); });
    int64_t left = 32;
    for (int e : last) {
      const auto i = static_cast<size_t>(e);
      const bool worth = k_.exprs[i].kind == Kind::load || k_.exprs[i].kind == Kind::op;
      if (!worth || !p_.inner[i] || moves_with_rows(i) || (left -= p_.trips * p_.lanes) < 0) continue;
      p_.cached.insert(e), p_.kept.insert(e);
    }
  }

  // A block works on one row at a time, and its reductions wait for each other, so that memory would rest meanwhile.
  void find_ahead() {
    int64_t left = 64;  // bytes of a thread
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const KernelExpr& e = k_.exprs[i];
      if (e.kind != Kind::load || e.predicate >= 0 || !e.access.dynamic.empty() || !moves_with_rows(i)) continue;
      if (p_.inner[i] && !p_.is_packed(e.access)) continue;
      left -= size_of(k_.buffers[static_cast<size_t>(e.access.buffer)]) * (p_.inner[i] ? p_.trips * p_.lanes : 1);
      if (left < 0) return;
      p_.ahead.insert(static_cast<int>(i));
    }
  }

  bool moves_with_rows(size_t e) const {
    return std::ranges::any_of(p_.unit_axes, [&](size_t a) { return p_.uses[e][a]; });
  }

  KernelPlan p_;
  Kernel& k_ = p_.kernel;
};

// ---- how far indices go ----

int64_t times(int64_t a, int64_t b) {
  int64_t out;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() : out;
}
int64_t plus(int64_t a, int64_t b) {
  int64_t out;
  return __builtin_add_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() : out;
}

class Reach {
 public:
  Reach(const Kernel& kernel, std::span<const int64_t> symbols) : kernel_(kernel), symbols_(symbols) {}

  int64_t of(const SymInt& n) const {
    int64_t sum = std::abs(n.constant_part());
    for (const Term& t : n.terms()) {
      int64_t product = std::abs(t.coefficient);
      for (const Atom& a : t.factors) product = times(product, of(a));
      sum = plus(sum, product);
    }
    return sum;
  }

 private:
  int64_t of(const Atom& a) const {
    if (a.kind == AtomKind::symbol) return of(a.symbol);
    const int64_t x = of(a.args->first), y = of(a.args->second);
    return a.kind == AtomKind::floordiv ? x : std::max(x, y);
  }
  int64_t of(SymbolId id) const {
    if (id < kFirstAxis) return std::abs(symbols_[id]);
    for (const KernelAxis& a : kernel_.axes)
      if (a.id == id) return of(a.extent);
    return std::numeric_limits<int64_t>::max();
  }

  const Kernel& kernel_;
  std::span<const int64_t> symbols_;
};

}  // namespace

bool KernelPlan::is_inside(const KernelStore& s) const {
  auto moves = [&](const KernelAxis& a) { return a.reduced && s.access.index.contains(a.id); };
  auto is_inner = [&](int e) { return inner[static_cast<size_t>(e)]; };
  return is_inner(s.expr) || std::ranges::any_of(kernel.axes, moves) ||
         std::ranges::any_of(s.access.dynamic, [&](const auto& d) { return is_inner(d.first); });
}

bool KernelPlan::stores_inside() const {
  return std::ranges::any_of(kernel.stores, [&](const KernelStore& s) { return is_inside(s); });
}

bool KernelPlan::has_one_pass() const {
  if (stages.size() != 1) return false;
  std::vector<bool> needed(kernel.exprs.size());
  for (const KernelStore& s : kernel.stores) {
    if (!is_inside(s)) continue;
    collect_needed(kernel, s.expr, needed);
    for (const auto& d : s.access.dynamic) collect_needed(kernel, d.first, needed);
  }
  return std::ranges::none_of(stages[0], [&](int r) { return needed[static_cast<size_t>(r)]; });
}

bool KernelPlan::is_packed(const Access& access) const {
  const int64_t bytes = size_of(kernel.buffers[static_cast<size_t>(access.buffer)]);
  return lanes > 1 && bytes <= 8 && fits_pack(*this, access, lanes);
}

KernelPlan plan_kernel(const Kernel& kernel, const Variant& variant) { return Planner(kernel, variant).run(); }

int64_t reach(const KernelPlan& plan, std::span<const int64_t> symbols) {
  const Kernel& k = plan.kernel;
  const Reach reach(k, symbols);
  int64_t most = 0;
  auto meet = [&](const SymInt& n) { most = std::max(most, reach.of(n)); };
  for (const KernelExpr& e : k.exprs) meet(e.access.index), meet(e.limit);
  for (const KernelStore& s : k.stores) meet(s.access.index);
  int64_t points = 1;
  for (const KernelAxis& a : k.axes) points = times(points, std::max<int64_t>(1, reach.of(a.extent)));
  return std::max(most, points);
}

}  // namespace broach::cuda
