#include "target/cpu/kernel_plan.h"

#include <algorithm>
#include <limits>

#include "target/cpu/coarse_math.h"
#include "target/cpu/scalar_emitter.h"

namespace broach::cpu {

namespace {

using Kind = KernelExpr::Kind;

void for_each_operand(const KernelExpr& e, const std::function<void(int)>& f) {
  for (int a : e.args) f(a);
  for (const auto& d : e.access.dynamic) f(d.first);
  if (e.predicate >= 0) f(e.predicate);
}

// Expressions over all axes that a pass needs, not looking below reductions.
void collect(const Kernel& kernel, int e, std::vector<bool>& seen) {
  if (seen[static_cast<size_t>(e)]) return;
  seen[static_cast<size_t>(e)] = true;
  const auto& x = kernel.exprs[static_cast<size_t>(e)];
  if (x.kind == Kind::reduction) return;
  for_each_operand(x, [&](int a) { collect(kernel, a, seen); });
}

class Planner {
 public:
  Planner(const Kernel& kernel, const CodegenOptions& options) : options_(options) { p_.kernel = kernel; }

  KernelPlan run() {
    if (k_.axes.empty()) k_.axes.push_back({kFirstAxis, 1, false});  // a kernel of one point
    p_.uses = axis_uses(k_);
    choose_vector_axis();
    choose_lanes();
    for (const auto& a : k_.axes) p_.has_reduced |= a.reduced;
    find_stages();
    find_cached();
    find_coarse();
    find_softmax();
    p_.unroll = needs_unrolling() ? 4 : 1;
    plan_units();
    for (const auto& s : k_.stores) p_.streams.push_back(is_streaming(s));
    return std::move(p_);
  }

 private:
  int score(size_t axis) const {
    int total = 0;
    auto rate = [&](const Access& a, bool dynamic, int weight) {
      auto s = stride(a.index, k_.axes[axis].id);
      if (!s || dynamic) total -= weight;
      else if (*s == SymInt(1)) total += weight;
      else if (!(*s == SymInt(0))) total -= weight;
    };
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind != Kind::load) continue;
      bool dynamic = std::any_of(e.access.dynamic.begin(), e.access.dynamic.end(),
                                 [&](const auto& d) { return p_.uses[static_cast<size_t>(d.first)][axis]; });
      rate(e.access, dynamic, 2);
    }
    for (const auto& s : k_.stores) rate(s.access, false, k_.axes[axis].reduced && !p_.uses[static_cast<size_t>(s.expr)][axis] ? 0 : 3);
    if (auto n = k_.axes[axis].extent.maybe_constant(); n && *n < 8) total -= 2;
    return total;
  }

  void choose_vector_axis() {
    int best = std::numeric_limits<int>::min();
    for (size_t a = 0; a < k_.axes.size(); ++a)
      if (int s = score(a); s >= best) best = s, p_.vector_axis = a;  // the innermost of equals
    p_.vector_reduced = p_.vector().reduced;
  }

  void choose_lanes() {
    int64_t widest = 1;
    for (const auto& e : k_.exprs)
      if (e.kind != Kind::position && e.dtype != DType::i64)
        widest = std::max(widest, is_low_precision(e.dtype) ? int64_t{4} : size_of(e.dtype));
    p_.lanes = static_cast<unsigned>(options_.vector_bytes / std::max<int64_t>(widest, 4));
  }

  // The stage of a reduction is one more than that of the reductions below it.
  void find_stages() {
    std::vector<int> depth(k_.exprs.size());
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      for_each_operand(e, [&](int a) { depth[i] = std::max(depth[i], depth[static_cast<size_t>(a)]); });
      if (e.kind != Kind::reduction) continue;
      auto stage = static_cast<size_t>(depth[i]);
      if (p_.stages.size() <= stage) p_.stages.resize(stage + 1);
      p_.stages[stage].push_back(static_cast<int>(i));
      ++depth[i];
    }
  }

  // Expensive values that several passes over a row need are kept in a row of scratch memory.
  void find_cached() {
    if (!p_.vector_reduced || std::count_if(k_.axes.begin(), k_.axes.end(), [](const auto& a) { return a.reduced; }) != 1) return;
    std::vector<int> passes(k_.exprs.size());
    auto count = [&](const std::vector<int>& roots) {
      std::vector<bool> seen(k_.exprs.size());
      for (int r : roots) collect(k_, r, seen);
      for (size_t i = 0; i < seen.size(); ++i) passes[i] += seen[i];
    };
    for (const auto& stage : p_.stages) {
      std::vector<int> roots;
      for (int r : stage) roots.push_back(k_.exprs[static_cast<size_t>(r)].args[0]);
      count(roots);
    }
    std::vector<int> stored;
    for (const auto& s : k_.stores)
      if (p_.inner(s.expr)) stored.push_back(s.expr);
    count(stored);
    int64_t row = 0;
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind != Kind::op || !is_expensive(e.op) || passes[i] < 2 || !p_.inner(static_cast<int>(i)) || e.dtype == DType::b1) continue;
      p_.cached[static_cast<int>(i)] = row++;
    }
    p_.shape.scratch_bytes = SymInt(row * 8) * (p_.vector().extent + 64);
  }

  // A large result that this kernel does not read is written without first fetching its lines, which would cost as much as
  // reading them. Half of a usual last-level cache: nobody will find such a result there anyway. Whole vectors must be
  // aligned wherever the other axes stand.
  bool is_streaming(const KernelStore& s) const {
    constexpr int64_t kLarge = int64_t{16} << 20;
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
    return simple && !p_.stores_inside() && rows >= 32;
  }

  // Values in bf16, and in a softmax in bf16 the exponentials, which are summed and divided before they are rounded. Quotients too.
  void find_coarse() {
    p_.coarse.assign(k_.exprs.size(), false);
    if (k_.strict) return;
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind != Kind::op || !(has_coarse(e.op) || e.op == Op::div)) continue;
      bool rounded_later =
          (e.op == Op::exp || e.op == Op::div) && e.dtype == DType::f32 && ends_in_bf16(static_cast<int>(i), e.op == Op::exp);
      p_.coarse[i] = e.dtype == DType::bf16 || rounded_later;
    }
  }

  // The maximum m that a softmax subtracts: if x is NaN so is exp(x - m), and the sum of these, and all that is made of it, so
  // that m need not be. The sum, where one term is exp(0), is at least 1 (or what a coarse exp makes of it).
  void find_softmax() {
    p_.passes_nan.assign(k_.exprs.size(), false);
    p_.weights.assign(k_.exprs.size(), false);
    for (size_t m = 0; m < k_.exprs.size(); ++m) {
      if (k_.exprs[m].kind != Kind::reduction || k_.exprs[m].op != Op::reduce_max || !is_floating(k_.exprs[m].dtype)) continue;
      int sum = find_sum_of_exponentials(static_cast<int>(m));
      if (sum < 0) continue;
      for (size_t i = 0; i < k_.exprs.size(); ++i)
        if (k_.exprs[i].op == Op::div && k_.exprs[i].args == std::vector{p_.expr(sum).args[0], sum}) p_.weights[i] = true;
      auto from_sum = becomes_nan_with(sum);
      auto from_m = depends_on(static_cast<int>(m));
      p_.passes_nan[m] = std::ranges::all_of(
          k_.stores, [&](const KernelStore& s) { return !from_m[static_cast<size_t>(s.expr)] || from_sum[static_cast<size_t>(s.expr)]; });
    }
  }

  // sum(exp(x - m)) for m = max(x), or -1.
  int find_sum_of_exponentials(int m) const {
    int difference = -1, exponential = -1;
    for (size_t i = static_cast<size_t>(m); i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind == Kind::op && e.op == Op::sub && e.args[0] == p_.expr(m).args[0] && e.args[1] == m) difference = static_cast<int>(i);
      if (e.kind == Kind::op && e.op == Op::exp && difference >= 0 && e.args[0] == difference) exponential = static_cast<int>(i);
      if (e.kind == Kind::reduction && e.op == Op::reduce_sum && exponential >= 0 && e.args[0] == exponential) return static_cast<int>(i);
    }
    return -1;
  }

  // By expression: whether it is NaN wherever `sum` is.
  std::vector<bool> becomes_nan_with(int sum) const {
    static constexpr Op kKeep[] = {Op::add, Op::sub, Op::mul, Op::div, Op::reciprocal, Op::neg, Op::log, Op::copy, Op::cast};
    std::vector<bool> nan(k_.exprs.size());
    nan[static_cast<size_t>(sum)] = true;
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind == Kind::op && is_floating(e.dtype) && std::ranges::find(kKeep, e.op) != std::end(kKeep))
        nan[i] = std::any_of(e.args.begin(), e.args.end(), [&](int a) { return nan[static_cast<size_t>(a)]; });
    }
    return nan;
  }

  std::vector<bool> depends_on(int e) const {
    std::vector<bool> depends(k_.exprs.size());
    depends[static_cast<size_t>(e)] = true;
    for (size_t i = static_cast<size_t>(e) + 1; i < k_.exprs.size(); ++i)
      for_each_operand(k_.exprs[i], [&](int a) { depends[i] = depends[i] || depends[static_cast<size_t>(a)]; });
    return depends;
  }

  // Whether all that becomes of a value are products, quotients and, while it is positive, sums, which keep a relative error
  // what it is, and what is stored is in bf16.
  bool ends_in_bf16(int e, bool positive) const {
    for (const auto& s : k_.stores)
      if (s.expr == e && k_.buffers[static_cast<size_t>(s.access.buffer)] != DType::bf16) return false;
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& x = k_.exprs[i];
      if (!uses_directly(x, e)) continue;
      bool sum = x.kind == Kind::reduction && x.op == Op::reduce_sum && positive;
      bool keeps = x.kind == Kind::reduction ? sum : x.op == Op::mul || x.op == Op::div || x.op == Op::reciprocal || x.op == Op::cast;
      bool half = x.dtype == DType::bf16 && x.op == Op::cast;
      if (!half && (!keeps || x.dtype != DType::f32 || !ends_in_bf16(static_cast<int>(i), sum))) return false;
    }
    return true;
  }

  static bool uses_directly(const KernelExpr& x, int e) {
    bool found = false;
    for_each_operand(x, [&](int a) { found |= a == e; });
    return found;
  }

  // Reductions, so that sums need not wait for each other; functions that take tables and constants; and rounding to bf16, which
  // takes a branch. The rest gains nothing, and would take longer to compile.
  bool needs_unrolling() const {
    constexpr std::ptrdiff_t kMostInRegisters = 128;  // operations: of longer kernels the values of one vector fill the registers
    if (!p_.has_reduced && std::ranges::count(k_.exprs, Kind::op, &KernelExpr::kind) > kMostInRegisters) return false;
    return p_.has_reduced || std::ranges::any_of(k_.exprs, [](const KernelExpr& e) { return e.kind == Kind::op && is_expensive(e.op); }) ||
           std::ranges::any_of(k_.stores,
                               [&](const KernelStore& s) { return k_.buffers[static_cast<size_t>(s.access.buffer)] == DType::bf16; });
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
      if (k_.axes[a].reduced || a == p_.vector_axis) continue;
      p_.outer.push_back(a);
      p_.shape.units = p_.shape.units * k_.axes[a].extent;
    }
    for (const auto& a : k_.axes)
      if (a.reduced) p_.shape.work_per_unit = p_.shape.work_per_unit * a.extent;
    if (!p_.vector_reduced) {
      p_.tall = is_tall();
      p_.tall_rows = fits_in_cache() ? 4 : 1;
      p_.block = p_.tall ? 2048 : p_.has_reduced ? static_cast<int64_t>(p_.lanes) * p_.unroll : 4096;
      if (p_.tall) p_.shape.scratch_bytes = SymInt(static_cast<int64_t>(p_.stages[0].size()) * 8 * (p_.block + 64));
      p_.blocks = ceildiv(p_.vector().extent, p_.block);
      p_.shape.units = p_.shape.units * p_.blocks;
      auto extent = p_.vector().extent.maybe_constant();
      p_.shape.work_per_unit = p_.shape.work_per_unit * SymInt(extent ? std::min(*extent, p_.block) : p_.block);
    }
    for (const auto& e : k_.exprs)
      if (e.kind == Kind::op || e.kind == Kind::load) p_.shape.ops_per_point += e.kind == Kind::op && is_expensive(e.op) ? 12 : 1;
  }

  const CodegenOptions& options_;
  KernelPlan p_;
  Kernel& k_ = p_.kernel;
};

}  // namespace

// Stride of an address along an axis: nothing if it is not linear.
std::optional<SymInt> stride(const SymInt& index, SymbolId axis) {
  auto linear = index.linear_in(axis);
  return linear ? std::optional(linear->first) : std::nullopt;
}

bool is_expensive(Op op) { return is_math(op) || op == Op::gelu_erf || op == Op::gelu_tanh || op == Op::silu; }
bool is_index_reduction(Op op) { return op == Op::reduce_argmin || op == Op::reduce_argmax; }

bool KernelPlan::inner(int e) const {
  for (size_t a = 0; a < kernel.axes.size(); ++a)
    if (kernel.axes[a].reduced && uses[static_cast<size_t>(e)][a]) return true;
  return false;
}

bool KernelPlan::moves_with_reduced(const SymInt& index) const {
  return std::any_of(kernel.axes.begin(), kernel.axes.end(), [&](const KernelAxis& a) { return a.reduced && index.contains(a.id); });
}

bool KernelPlan::stores_inside() const {
  return std::any_of(kernel.stores.begin(), kernel.stores.end(), [&](const KernelStore& s) { return stored_inside(s); });
}

bool KernelPlan::needs(const std::vector<int>& stage, int e) const {
  std::vector<bool> seen(kernel.exprs.size());
  for (int r : stage) collect(kernel, expr(r).args[0], seen);
  return seen[static_cast<size_t>(e)];
}

KernelPlan plan_kernel(const Kernel& kernel, const CodegenOptions& options) { return Planner(kernel, options).run(); }

}  // namespace broach::cpu
