#include "schedule/kernel_facts.h"

#include <algorithm>
#include <utility>

namespace broach {

using Kind = KernelExpr::Kind;

namespace {

class FactFinder {
 public:
  explicit FactFinder(const Kernel& kernel) : k_(kernel) {}

  KernelFacts run() {
    f_.uses = axis_uses(k_);
    for (size_t i = 0; i < k_.exprs.size(); ++i) f_.inner.push_back(is_inner(i));
    for (const auto& a : k_.axes) f_.has_reduced |= a.reduced;
    find_stages();
    find_precision();
    find_rounding();
    find_softmax();
    return std::move(f_);
  }

 private:
  const KernelExpr& expr(int e) const { return k_.exprs[static_cast<size_t>(e)]; }

  bool is_inner(size_t e) const {
    for (size_t a = 0; a < k_.axes.size(); ++a)
      if (k_.axes[a].reduced && f_.uses[e][a]) return true;
    return false;
  }

  // The stage of a reduction is one more than that of the reductions below it.
  void find_stages() {
    std::vector<int> depth(k_.exprs.size());
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      for_each_operand(e, [&](int a) { depth[i] = std::max(depth[i], depth[static_cast<size_t>(a)]); });
      if (e.kind != Kind::reduction) continue;
      auto stage = static_cast<size_t>(depth[i]);
      if (f_.stages.size() <= stage) f_.stages.resize(stage + 1);
      f_.stages[stage].push_back(static_cast<int>(i));
      ++depth[i];
    }
  }

  // Values in bf16, and what only factors part from them: quotients, derivatives behind a gradient in bf16, and in a softmax the
  // exponentials, which are summed and divided before they are rounded.
  void find_precision() {
    f_.bf16_suffices.assign(k_.exprs.size(), false);
    if (k_.strict) return;
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      const bool keeps = e.kind == Kind::op && e.dtype == DType::f32 &&
                         (e.op == Op::exp || e.op == Op::div || e.op == Op::gelu_erf_derivative || e.op == Op::gelu_tanh_derivative);
      f_.bf16_suffices[i] = e.dtype == DType::bf16 || (keeps && ends_in_bf16(static_cast<int>(i), e.op == Op::exp));
    }
  }

  // Rounding is put off past what gives the same number before as behind it, if it can: what is stored, or seen as bits, then needs none of
  // its own.
  void find_rounding() {
    f_.rounds.assign(k_.exprs.size(), false);
    std::vector<bool> is_read(k_.exprs.size()),
        is_wide(k_.exprs.size());  // by what must see the rounded number; computed wider than its type
    for (const KernelExpr& e : k_.exprs)
      if (!keeps_order(e) && e.op != Op::bitcast) for_each_operand(e, [&](int a) { is_read[static_cast<size_t>(a)] = true; });
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const KernelExpr& e = k_.exprs[i];
      if (e.predicate >= 0) is_read[static_cast<size_t>(e.predicate)] = true;
      is_wide[i] = is_low_precision(e.dtype) && !is_exact(e);
      if (keeps_order(e)) for_each_operand(e, [&](int a) { is_wide[i] = is_wide[i] || is_wide[static_cast<size_t>(a)]; });
      f_.rounds[i] = is_wide[i] && is_read[i];
      is_wide[i] = is_wide[i] && !f_.rounds[i];
    }
  }

  bool keeps_order(const KernelExpr& e) const {
    return e.kind == Kind::op && is_low_precision(e.dtype) && (e.op == Op::copy || picks_by_order(e.op));
  }

  // Whether a value of its type has all bits of the result as it is computed, operands being values of their types.
  bool is_exact(const KernelExpr& e) const {
    if (e.kind == Kind::reduction) return e.op == Op::reduce_max || e.op == Op::reduce_min;
    if (e.kind != Kind::op || keeps_order(e)) return true;
    switch (e.op) {
      case Op::bitcast:
      case Op::where:
      case Op::sign:
      case Op::floor:
      case Op::ceil:
      case Op::round:
      case Op::trunc: return true;
      case Op::cast: return size_of(expr(e.args[0]).dtype) == 1 && !is_floating(expr(e.args[0]).dtype);
      default: return false;
    }
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

  // The maximum m that a softmax subtracts: if x is NaN so is exp(x - m), and the sum of these, and all that is made of it, so
  // that m need not be. The sum, where one term is exp(0), is at least 1 (or what a coarse exp makes of it).
  void find_softmax() {
    f_.passes_nan.assign(k_.exprs.size(), false);
    f_.weights.assign(k_.exprs.size(), false);
    for (size_t m = 0; m < k_.exprs.size(); ++m) {
      if (k_.exprs[m].kind != Kind::reduction || k_.exprs[m].op != Op::reduce_max || !is_floating(k_.exprs[m].dtype)) continue;
      int sum = find_sum_of_exponentials(static_cast<int>(m));
      if (sum < 0) continue;
      for (size_t i = 0; i < k_.exprs.size(); ++i)
        if (k_.exprs[i].op == Op::div && k_.exprs[i].args == std::vector{expr(sum).args[0], sum}) f_.weights[i] = true;
      auto from_sum = becomes_nan_with(sum);
      auto from_m = depends_on(static_cast<int>(m));
      f_.passes_nan[m] = std::ranges::all_of(
          k_.stores, [&](const KernelStore& s) { return !from_m[static_cast<size_t>(s.expr)] || from_sum[static_cast<size_t>(s.expr)]; });
    }
  }

  // sum(exp(x - m)) for m = max(x), or -1.
  int find_sum_of_exponentials(int m) const {
    int difference = -1, exponential = -1;
    for (size_t i = static_cast<size_t>(m); i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind == Kind::op && e.op == Op::sub && e.args[0] == expr(m).args[0] && e.args[1] == m) difference = static_cast<int>(i);
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

  const Kernel& k_;
  KernelFacts f_;
};

}  // namespace

KernelFacts find_facts(const Kernel& kernel) { return FactFinder(kernel).run(); }

bool adds_first(const Kernel& kernel, const KernelStore& store) {
  if (!store.adds) return false;
  std::vector<bool> needed(kernel.exprs.size());
  collect_needed(kernel, store.expr, needed);
  for (size_t i = 0; i < needed.size(); ++i)
    if (needed[i] && kernel.exprs[i].kind == Kind::reduction) return false;
  return true;
}

std::vector<int> count_passes(const Kernel& kernel, const KernelFacts& facts) {
  std::vector<int> passes(kernel.exprs.size());
  auto count = [&](const std::vector<int>& roots) {
    std::vector<bool> seen(kernel.exprs.size());
    for (int r : roots) collect_needed(kernel, r, seen);
    for (size_t i = 0; i < seen.size(); ++i) passes[i] += seen[i];
  };
  std::vector<int> first, last;
  for (const auto& s : kernel.stores)
    if (facts.inner[static_cast<size_t>(s.expr)]) (adds_first(kernel, s) ? first : last).push_back(s.expr);
  for (const auto& stage : facts.stages) {
    std::vector<int> roots = std::exchange(first, {});
    for (int r : stage) roots.push_back(kernel.exprs[static_cast<size_t>(r)].args[0]);
    count(roots);
  }
  last.insert(last.end(), first.begin(), first.end());
  count(last);
  return passes;
}

Lanes lanes_of(const Access& access, const Kernel& kernel, const KernelFacts& facts, size_t axis) {
  auto s = stride(access.index, kernel.axes[axis].id);
  bool dynamic =
      std::ranges::any_of(access.dynamic, [&](const auto& d) { return static_cast<bool>(facts.uses[static_cast<size_t>(d.first)][axis]); });
  if (!s || dynamic) return Lanes::apart;
  return *s == SymInt(0) ? Lanes::same : *s == SymInt(1) ? Lanes::contiguous : Lanes::apart;
}

std::optional<SymInt> stride(const SymInt& index, SymbolId axis) {
  auto linear = index.linear_in(axis);
  return linear ? std::optional(linear->first) : std::nullopt;
}

void for_each_operand(const KernelExpr& e, const std::function<void(int)>& f) {
  for (int a : e.args) f(a);
  for (const auto& d : e.access.dynamic) f(d.first);
  if (e.predicate >= 0) f(e.predicate);
}

void collect_needed(const Kernel& kernel, int e, std::vector<bool>& seen) {
  if (seen[static_cast<size_t>(e)]) return;
  seen[static_cast<size_t>(e)] = true;
  const auto& x = kernel.exprs[static_cast<size_t>(e)];
  if (x.kind == Kind::reduction) return;
  for_each_operand(x, [&](int a) { collect_needed(kernel, a, seen); });
}

std::vector<size_t> overwritable(const Kernel& k) {
  if (k.stores.size() != 1 || k.stores[0].adds || !k.stores[0].access.dynamic.empty()) return {};
  const Access& stored = k.stores[0].access;
  std::vector<bool> reduced(k.exprs.size(), false);
  for (const KernelExpr& e : k.exprs)
    if (e.kind == KernelExpr::Kind::reduction) collect_needed(k, e.args[0], reduced);
  std::vector<int> loads(k.buffers.size(), 0);
  std::vector<bool> is_kept(k.buffers.size(), false);
  for (size_t i = 0; i < k.exprs.size(); ++i) {
    const KernelExpr& e = k.exprs[i];
    if (e.kind != KernelExpr::Kind::load) continue;
    const auto b = static_cast<size_t>(e.access.buffer);
    ++loads[b];
    if (reduced[i] || e.predicate >= 0 || !e.access.dynamic.empty() || !(e.access.index == stored.index)) is_kept[b] = true;
  }
  const auto own = static_cast<size_t>(stored.buffer);
  std::vector<size_t> out;
  for (size_t b = 0; b < k.buffers.size() && loads[own] == 0; ++b)
    if (loads[b] == 1 && !is_kept[b] && size_of(k.buffers[b]) == size_of(k.buffers[own])) out.push_back(b);
  return out;
}

}  // namespace broach
