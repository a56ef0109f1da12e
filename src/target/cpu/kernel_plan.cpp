#include "target/cpu/kernel_plan.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "support/error.h"
#include "target/cpu/coarse_math.h"
#include "target/cpu/scalar_emitter.h"

namespace broach::cpu {

namespace {

using Kind = KernelExpr::Kind;

// Operations of a kernel.
constexpr std::ptrdiff_t kMostInRegisters = 128;  // of longer ones the values of one vector fill the registers
constexpr std::ptrdiff_t kMostTwice = 384;        // of longer ones a second body takes longer to compile than it will ever save
constexpr int64_t kBlock = 4096;                  // elements in a unit
constexpr std::ptrdiff_t kMostMasks = 16;         // loads under conditions: more would take longer to compile than they save

bool is_masked_load(const KernelExpr& e) { return e.kind == Kind::load && e.predicate >= 0; }

class Planner {
 public:
  Planner(const Kernel& kernel, const CodegenOptions& options) : options_(options) { p_.kernel = kernel; }

  KernelPlan run() {
    if (rows_added(k_) > 0) unsupported("cpu: no code for kernels that add up rows");
    if (k_.axes.empty()) k_.axes.push_back({kFirstAxis, 1, false});  // a kernel of one point
    static_cast<KernelFacts&>(p_) = find_facts(k_);
    choose_vector_axis();
    choose_lanes();
    find_cached();
    find_coarse();
    p_.unroll = needs_unrolling() ? 4 : 1;
    p_.is_long = operations() > kMostTwice;
    p_.has_many_masks = std::ranges::count_if(k_.exprs, is_masked_load) > kMostMasks;
    find_cuts();
    plan_units();
    for (const auto& s : k_.stores) p_.streams.push_back(is_streaming(s));
    return std::move(p_);
  }

 private:
  int score(size_t axis) const {
    int total = 0;
    auto rate = [&](const Access& a, int weight) {
      const Lanes lanes = lanes_where_loaded(a, axis);
      total += lanes == Lanes::contiguous ? weight : lanes == Lanes::apart ? -weight : 0;
    };
    const std::set<int> turned = across(axis).second;
    for (size_t i = 0; i < k_.exprs.size(); ++i)
      if (k_.exprs[i].kind == Kind::load && !turned.contains(static_cast<int>(i))) rate(k_.exprs[i].access, 2);
    for (const auto& s : k_.stores) rate(s.access, k_.axes[axis].reduced && !p_.uses[static_cast<size_t>(s.expr)][axis] ? 0 : 3);
    // So few lanes are not worth it that they lie side by side: the point of each would be found for two or three elements.
    if (auto n = k_.axes[axis].extent.maybe_constant(); n && *n < 8) total -= *n < 4 ? 12 : 2;
    return total;
  }

  // An index that is itself loaded under a condition is one for all lanes that load.
  Lanes lanes_where_loaded(const Access& a, size_t axis) const {
    Access loaded = a;
    std::erase_if(loaded.dynamic, [&](const auto& d) { return !is_moved(d.first, axis); });
    return lanes_of(loaded, k_, p_, axis);
  }

  // Whether an expression is another at other positions of the axis, conditions of loads aside.
  bool is_moved(int expr, size_t axis) const {
    const KernelExpr& e = p_.expr(expr);
    if (!p_.uses[static_cast<size_t>(expr)][axis]) return false;
    if (e.predicate < 0 || e.access.index.contains(k_.axes[axis].id)) return true;
    return std::ranges::any_of(e.args, [&](int a) { return is_moved(a, axis); }) ||
           std::ranges::any_of(e.access.dynamic, [&](const auto& d) { return is_moved(d.first, axis); });
  }

  void choose_vector_axis() {
    int best = std::numeric_limits<int>::min();
    for (size_t a = 0; a < k_.axes.size(); ++a)
      if (int s = score(a); s >= best) best = s, p_.vector_axis = a;  // the innermost of equals
    p_.vector_reduced = p_.vector().reduced;
    std::tie(p_.across, p_.turned) = across(p_.vector_axis);
  }

  // The axis along which most of the loads that are apart along `axis` lie side by side, and those, where turning them pays: a square takes
  // the same time however much of it there is.
  std::pair<std::optional<size_t>, std::set<int>> across(size_t axis) const {
    constexpr int64_t kSide = 16, kFewest = 96;
    constexpr size_t kMostTurned = 8;  // squares of 16 x 16 on the stack
    std::pair<std::optional<size_t>, std::set<int>> best;
    auto side = [&](size_t a) { return std::min(k_.axes[a].extent.maybe_constant().value_or(kSide), kSide); };
    const size_t axes = p_.has_reduced || operations() > kMostInRegisters ? 0 : k_.axes.size();  // a square has a body of its own
    for (size_t c = 0; c < axes; ++c) {
      if (c == axis || side(c) * side(axis) < kFewest) continue;
      std::set<int> turned;
      for (size_t i = 0; i < k_.exprs.size(); ++i)
        if (is_turnable(k_.exprs[i], axis, c)) turned.insert(static_cast<int>(i));
      if (turned.size() > best.second.size() && turned.size() <= kMostTurned) best = {c, std::move(turned)};
    }
    return best;
  }

  bool is_turnable(const KernelExpr& e, size_t axis, size_t across) const {
    if (e.kind != Kind::load || e.predicate >= 0 || !e.access.dynamic.empty()) return false;
    if (lanes_of(e.access, k_, p_, across) != Lanes::contiguous || lanes_of(e.access, k_, p_, axis) != Lanes::apart) return false;
    // Without AVX-512 what is left of a row of small elements would take a branch for each.
    constexpr int64_t kWidest = 64;
    const auto rows = k_.axes[across].extent.maybe_constant();
    const bool is_whole = rows && *rows % (options_.vector_bytes / 4) == 0;
    if (options_.vector_bytes < kWidest && size_of(k_.buffers[static_cast<size_t>(e.access.buffer)]) < 4 && !is_whole) return false;
    const auto step = stride(e.access.index, k_.axes[axis].id);
    return step && !step->contains(k_.axes[across].id);
  }

  void choose_lanes() {
    int64_t widest = 1;
    for (const auto& e : k_.exprs)
      if (e.kind != Kind::position && e.dtype != DType::i64) widest = std::max(widest, size_of(compute_dtype(e.dtype)));
    p_.lanes = static_cast<unsigned>(options_.vector_bytes / std::max<int64_t>(widest, 4));
  }

  // Expensive values that several passes over a row need are kept in a row of scratch memory.
  void find_cached() {
    if (!p_.vector_reduced || std::count_if(k_.axes.begin(), k_.axes.end(), [](const auto& a) { return a.reduced; }) != 1) return;
    const std::vector<int> passes = count_passes(k_, p_);
    int64_t row = 0;
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind != Kind::op || (!is_function(e.op) && !p_.rounds[i]) || passes[i] < 2 || !p_.inner[i] || e.dtype == DType::b1) continue;
      p_.cached[static_cast<int>(i)] = row++;
    }
    p_.shape.scratch_bytes = SymInt(row * 8) * (p_.vector().extent + 64);
  }

  // A large result that this kernel does not read is written without first fetching its lines, which would cost as much as
  // reading them. Half of a usual last-level cache: nobody will find such a result there anyway. Whole vectors must be
  // aligned wherever the other axes stand.
  bool is_streaming(const KernelStore& s) const {
    constexpr int64_t kLarge = int64_t{16} << 20, kLine = 64;
    // The rows of a square are written one after the other: each a whole line, or what waits for the rest of it is too much.
    if (p_.across && p_.lanes * size_of(k_.buffers[static_cast<size_t>(s.access.buffer)]) < kLine) return false;
    // Vectors begin at cuts as well.
    if (std::ranges::any_of(p_.cuts, [&](int64_t at) { return at % p_.lanes != 0; })) return false;
    if (!stride(s.access.index, p_.vector().id) || !(*stride(s.access.index, p_.vector().id) == SymInt(1))) return false;
    int64_t bytes = size_of(k_.buffers[static_cast<size_t>(s.access.buffer)]);
    SymInt rest = s.access.index;
    for (const auto& axis : k_.axes) {
      auto linear = rest.linear_in(axis.id);
      auto extent = axis.extent.maybe_constant(), step = linear ? linear->first.maybe_constant() : std::nullopt;
      if (!extent || !step) return false;
      if (*step == 0) continue;
      if (axis.id != p_.vector().id && *step % p_.lanes != 0) return false;
      bytes *= *extent;
      rest = linear->second;
    }
    if (bytes < kLarge || !rest.is_constant() || rest.constant() % p_.lanes != 0) return false;
    return std::none_of(k_.exprs.begin(), k_.exprs.end(),
                        [&](const KernelExpr& e) { return e.kind == Kind::load && e.access.buffer == s.access.buffer; });
  }

  // Simple reductions over so many rows that a few columns at a time would touch a page of memory for every row.
  bool is_tall() const {
    if (!p_.has_reduced || p_.stages.size() != 1) return false;
    int64_t rows = 1;
    for (const auto& a : k_.axes)
      if (a.reduced) rows *= a.extent.eval([](SymbolId) { return int64_t{1000}; });
    bool simple = std::none_of(p_.stages[0].begin(), p_.stages[0].end(), [&](int r) { return is_index_reduction(p_.expr(r).op); });
    return simple && !stores_wait() && rows >= 32;
  }

  // Whether what is stored at each point of the reduced axes needs what they are reduced to.
  bool stores_wait() const {
    std::vector<bool> needed(k_.exprs.size());
    for (const auto& s : k_.stores)
      if (p_.stored_inside(s)) collect_needed(k_, s.expr, needed);
    return std::ranges::any_of(p_.stages[0], [&](int r) { return needed[static_cast<size_t>(r)]; });
  }

  // Columns that one unit sums: whole rows would be what a processor fetches ahead best, but every thread needs some.
  int64_t tall_block() const {
    constexpr int64_t kMost = 2048, kFewest = 32, kUnits = 4;
    auto columns = p_.vector().extent.maybe_constant();
    return columns ? std::clamp((*columns / kUnits + kFewest - 1) / kFewest * kFewest, kFewest, kMost) : kMost;
  }

  // Those that leave pieces of some vectors: a shorter one would cost more than it saves.
  void find_cuts() {
    constexpr size_t kMost = 8;
    const auto extent = p_.vector().extent.maybe_constant();
    if (p_.vector_reduced || p_.has_reduced || p_.across || !extent || operations() > kMostInRegisters) return;  // each has a body
    std::set<int64_t> found;
    for (const KernelExpr& e : k_.exprs)
      if (const auto c = comparison(e)) found.insert(c->first);
    const int64_t least = 2 * static_cast<int64_t>(p_.lanes);
    for (int64_t at : found)
      if (at - (p_.cuts.empty() ? 0 : p_.cuts.back()) >= least && *extent - at >= least && p_.cuts.size() < kMost) p_.cuts.push_back(at);
    if (p_.cuts.empty()) return;
    for (size_t piece = 0; piece <= p_.cuts.size(); ++piece) {
      auto& known = p_.known.emplace_back();
      for (const KernelExpr& e : k_.exprs) known.push_back(known_in(e, piece, known));
    }
  }

  // Nothing where points differ. `operands`: of the expressions before it.
  std::optional<bool> known_in(const KernelExpr& e, size_t piece, const std::vector<std::optional<bool>>& operands) const {
    if (const auto c = comparison(e)) {
      const auto cut = std::ranges::find(p_.cuts, c->first);
      if (cut == p_.cuts.end()) return std::nullopt;
      return (static_cast<std::ptrdiff_t>(piece) <= cut - p_.cuts.begin()) == c->second;
    }
    if (e.kind != Kind::op || e.dtype != DType::b1 || (e.op != Op::bit_and && e.op != Op::bit_or)) return std::nullopt;
    const auto first = operands[static_cast<size_t>(e.args[0])], second = operands[static_cast<size_t>(e.args[1])];
    const bool decides = e.op == Op::bit_or;
    if (first == decides || second == decides) return decides;
    return first && second ? first : std::nullopt;
  }

  // The position on the vector axis at which a comparison with a constant changes, and whether it holds below.
  std::optional<std::pair<int64_t, bool>> comparison(const KernelExpr& e) const {
    const bool is_less = e.op == Op::lt || e.op == Op::le, is_more = e.op == Op::gt || e.op == Op::ge;
    if (e.kind != Kind::op || (!is_less && !is_more)) return std::nullopt;
    const KernelExpr &x = p_.expr(e.args[0]), &y = p_.expr(e.args[1]);
    constexpr int64_t kMost = int64_t{1} << 61;  // of what may be added up
    auto is_small = [](int64_t n) { return n > -kMost && n < kMost; };
    const auto* limit = y.kind == Kind::constant ? std::get_if<int64_t>(&y.value) : nullptr;
    const auto at = x.kind == Kind::position ? x.access.index.linear_in(p_.vector().id) : std::nullopt;
    if (!limit || !at || !(at->first == SymInt(1)) || !at->second.is_constant()) return std::nullopt;
    if (!is_small(*limit) || !is_small(at->second.constant())) return std::nullopt;
    return std::pair{*limit - at->second.constant() + (e.op == Op::le || e.op == Op::gt ? 1 : 0), is_less};
  }

  int64_t across_rows() const {
    return std::min(k_.axes[*p_.across].extent.maybe_constant().value_or(KernelPlan::kAcrossBlock), KernelPlan::kAcrossBlock);
  }

  int64_t turned_block() const { return p_.lanes * std::max<int64_t>(1, kBlock / std::max<int64_t>(1, across_rows() * p_.lanes)); }

  void find_coarse() {
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      p_.coarse.push_back(p_.bf16_suffices[i] && e.kind == Kind::op && (has_coarse(e.op) || p_.weights[i]));
    }
  }

  std::ptrdiff_t operations() const { return std::ranges::count(k_.exprs, Kind::op, &KernelExpr::kind); }

  // Reductions, so that sums need not wait for each other; functions that take tables and constants; rounding to bf16, which takes a branch;
  // and loads of small elements behind conditions, which are made lane by lane without AVX-512. The rest gains nothing, and would take longer
  // to compile.
  bool needs_unrolling() const {
    if (operations() > kMostInRegisters) return false;
    auto gains = [](const KernelExpr& e) {
      return e.kind == Kind::op ? is_function(e.op) : e.kind == Kind::load && e.predicate >= 0 && size_of(e.dtype) <= 2;
    };
    return p_.has_reduced || std::ranges::any_of(k_.exprs, gains) || std::ranges::any_of(k_.stores, [&](const KernelStore& s) {
             return k_.buffers[static_cast<size_t>(s.access.buffer)] == DType::bf16;
           });
  }

  // Several rows at a time save trips of the sums to the cache. From memory, only one after the other is the stream that a
  // processor fetches ahead.
  bool fits_in_cache() const {
    constexpr int64_t kCache = int64_t{1} << 20;
    int64_t elements = 1;
    for (const auto& a : k_.axes) {
      auto extent = a.extent.maybe_constant();
      if (!extent || *extent > kCache / elements) return false;
      elements *= std::max<int64_t>(*extent, 1);
    }
    return elements * size_of(k_.buffers[0]) <= kCache;
  }

  void plan_units() {
    p_.shape.units = 1;
    p_.shape.work_per_unit = 1;
    for (size_t a = 0; a < k_.axes.size(); ++a) {
      if (k_.axes[a].reduced || a == p_.vector_axis || a == p_.across) continue;
      p_.outer.push_back(a);
      p_.shape.units = p_.shape.units * k_.axes[a].extent;
    }
    for (const auto& a : k_.axes)
      if (a.reduced) p_.shape.work_per_unit = p_.shape.work_per_unit * a.extent;
    if (p_.across) {
      p_.shape.units = p_.shape.units * ceildiv(k_.axes[*p_.across].extent, KernelPlan::kAcrossBlock);
      p_.shape.work_per_unit = across_rows();
    }
    if (!p_.vector_reduced) {
      p_.tall = is_tall();
      p_.tall_rows = fits_in_cache() ? 4 : 1;
      p_.block = p_.tall ? tall_block() : p_.has_reduced ? static_cast<int64_t>(p_.lanes) * p_.unroll : p_.across ? turned_block() : kBlock;
      if (p_.tall) p_.shape.scratch_bytes = SymInt(static_cast<int64_t>(p_.stages[0].size()) * 3 * 8 * (p_.block + 64));
      p_.blocks = ceildiv(p_.vector().extent, p_.block);
      p_.shape.units = p_.shape.units * p_.blocks;
      auto extent = p_.vector().extent.maybe_constant();
      p_.shape.work_per_unit = p_.shape.work_per_unit * SymInt(extent ? std::min(*extent, p_.block) : p_.block);
    }
    for (const auto& e : k_.exprs)
      if (e.kind == Kind::op || e.kind == Kind::load) p_.shape.ops_per_point += e.kind == Kind::op && is_function(e.op) ? 12 : 1;
  }

  const CodegenOptions& options_;
  KernelPlan p_;
  Kernel& k_ = p_.kernel;
};

}  // namespace

bool KernelPlan::moves_with_reduced(const SymInt& index) const {
  return std::any_of(kernel.axes.begin(), kernel.axes.end(), [&](const KernelAxis& a) { return a.reduced && index.contains(a.id); });
}

size_t KernelPlan::innermost_reduced() const {
  size_t a = kernel.axes.size() - 1;
  while (a > 0 && !kernel.axes[a].reduced) --a;
  return a;
}

bool KernelPlan::stores_inside() const {
  return std::any_of(kernel.stores.begin(), kernel.stores.end(), [&](const KernelStore& s) { return stored_inside(s); });
}

bool KernelPlan::needs(const std::vector<int>& stage, int e) const {
  std::vector<bool> seen(kernel.exprs.size());
  for (int r : stage) collect_needed(kernel, expr(r).args[0], seen);
  return seen[static_cast<size_t>(e)];
}

KernelPlan plan_kernel(const Kernel& kernel, const CodegenOptions& options) { return Planner(kernel, options).run(); }

}  // namespace broach::cpu
