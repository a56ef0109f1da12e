#include "schedule/kernel.h"

#include <algorithm>

#include "schedule/axes.h"
#include "support/error.h"

namespace broach {

std::vector<std::vector<bool>> axis_uses(const Kernel& k) {
  std::vector<std::vector<bool>> uses(k.exprs.size(), std::vector<bool>(k.axes.size()));
  auto join = [&](std::vector<bool>& into, int from) {
    for (size_t a = 0; a < into.size(); ++a) into[a] = into[a] || uses[static_cast<size_t>(from)][a];
  };
  for (size_t i = 0; i < k.exprs.size(); ++i) {
    const KernelExpr& e = k.exprs[i];
    for (size_t a = 0; a < k.axes.size(); ++a) uses[i][a] = e.access.index.contains(k.axes[a].id);
    for (int arg : e.args) join(uses[i], arg);
    for (const auto& d : e.access.dynamic) join(uses[i], d.first);
    if (e.predicate >= 0) join(uses[i], e.predicate);
    if (e.kind == KernelExpr::Kind::reduction)
      for (size_t a = 0; a < k.axes.size(); ++a)
        if (k.axes[a].reduced) uses[i][a] = false;
  }
  return uses;
}

namespace {

void for_each_index(Kernel& k, const std::function<void(SymInt&)>& f) {
  for (auto& e : k.exprs) f(e.access.index);
  for (auto& s : k.stores) f(s.access.index);
}

void simplify_indices(Kernel& k) {
  Ranges r = ranges_of(k);
  for_each_index(k, [&](SymInt& i) { i = simplify(i, r); });
}

}  // namespace

int64_t rows_added(const Kernel& k) {
  for (const KernelStore& s : k.stores) {
    if (!s.adds) continue;
    for (const Term& t : s.access.index.terms())
      for (const Atom& a : t.factors)
        if (a.kind == AtomKind::floordiv) return a.args->second.maybe_constant().value_or(0);
  }
  return 0;
}

Ranges ranges_of(const Kernel& k) {
  Ranges r;
  for (int s = 0; s < k.symbols; ++s) r[static_cast<SymbolId>(s)] = Range{0, nullptr};
  for (const auto& a : k.axes) r[a.id] = Range{0, std::make_shared<SymInt>(a.extent - 1)};
  return r;
}

void find_divisors(const SymInt& e, const std::vector<KernelAxis>& axes, std::vector<std::pair<size_t, SymInt>>& out) {
  for (const Term& t : e.terms())
    for (const Atom& a : t.factors) {
      if (a.kind == AtomKind::symbol) continue;
      const auto& [x, d] = *a.args;
      if (a.kind == AtomKind::floordiv || a.kind == AtomKind::mod) {
        for (size_t i = 0; i < axes.size(); ++i) {
          auto linear = x.linear_in(axes[i].id);
          if (!linear || linear->first == SymInt(0)) continue;
          // floordiv(c*i, d) changes every d/c steps of i.
          SymInt step =
              linear->first.is_constant() && d.is_constant() && linear->first.constant() > 0 && d.constant() % linear->first.constant() == 0
                  ? SymInt(d.constant() / linear->first.constant())
                  : (linear->first == SymInt(1) ? d : SymInt(0));
          if (step == SymInt(0) || step == SymInt(1) || step == axes[i].extent) continue;
          if (mod(axes[i].extent, step) == SymInt(0)) out.push_back({i, step});
        }
      }
      find_divisors(x, axes, out);
      find_divisors(d, axes, out);
    }
}

namespace {

SymbolId fresh_axis(const Kernel& k) {
  SymbolId id = kFirstAxis;
  for (const auto& a : k.axes) id = std::max(id, a.id + 1);
  return id;
}

bool split_once(Kernel& k) {
  std::vector<std::pair<size_t, SymInt>> found;
  for_each_index(k, [&](SymInt& i) { find_divisors(i, k.axes, found); });
  if (found.empty()) return false;
  auto [at, step] = found.front();
  KernelAxis inner{fresh_axis(k), step, k.axes[at].reduced};
  SymbolId outer = k.axes[at].id;
  k.axes[at].extent = floordiv(k.axes[at].extent, step);
  SymInt joined = SymInt::symbol(outer) * step + SymInt::symbol(inner.id);
  k.axes.insert(k.axes.begin() + static_cast<int64_t>(at) + 1, inner);
  for_each_index(k, [&](SymInt& i) { i = i.substitute([&](SymbolId id) { return id == outer ? std::optional(joined) : std::nullopt; }); });
  simplify_indices(k);
  return true;
}

void drop_unit_axes(Kernel& k) {
  std::erase_if(k.axes, [&](const KernelAxis& a) {
    if (!(a.extent == SymInt(1))) return false;
    for_each_index(k,
                   [&](SymInt& i) { i = i.substitute([&](SymbolId id) { return id == a.id ? std::optional(SymInt(0)) : std::nullopt; }); });
    return true;
  });
}

// Reduced axes of a kernel that came to read the results of a reduction instead of reducing.
void drop_idle_axes(Kernel& k) {
  if (std::ranges::any_of(k.exprs, [](const KernelExpr& e) { return e.kind == KernelExpr::Kind::reduction; })) return;
  std::erase_if(k.axes, [&](const KernelAxis& a) {
    bool is_idle = a.reduced;
    for_each_index(k, [&](SymInt& i) { is_idle = is_idle && !i.contains(a.id); });
    return is_idle;
  });
}

// The stride of an axis in the first address that moves with it. Unknown sizes count as a thousand: only the order matters.
int64_t stride_in(const SymInt& index, const KernelAxis& axis) {
  auto linear = index.linear_in(axis.id);
  return linear ? linear->first.eval([](SymbolId) { return int64_t{1000}; }) : 0;
}

int64_t first_stride(const Kernel& k, const KernelAxis& axis) {
  for (const auto& s : k.stores)
    if (int64_t stride = stride_in(s.access.index, axis)) return stride;
  for (const auto& e : k.exprs)
    if (int64_t stride = e.kind == KernelExpr::Kind::load ? stride_in(e.access.index, axis) : 0) return stride;
  return 0;
}

void order_axes(Kernel& k) {
  auto key = [&](const KernelAxis& a) { return std::pair(a.reduced, -first_stride(k, a)); };
  std::stable_sort(k.axes.begin(), k.axes.end(), [&](const KernelAxis& a, const KernelAxis& b) { return key(a) < key(b); });
}

bool joinable(Kernel& k, const KernelAxis& outer, const KernelAxis& inner) {
  if (outer.reduced != inner.reduced) return false;
  bool ok = true;
  for_each_index(k, [&](SymInt& i) {
    auto a = i.linear_in(outer.id), b = i.linear_in(inner.id);
    ok = ok && a && b && a->first == b->first * inner.extent;
  });
  return ok;
}

bool join_once(Kernel& k) {
  for (size_t i = 0; i + 1 < k.axes.size(); ++i) {
    KernelAxis inner = k.axes[i + 1];
    if (!joinable(k, k.axes[i], inner)) continue;
    SymbolId outer = k.axes[i].id;
    // outer * n + inner becomes one axis: its coefficient is inner's.
    for_each_index(
        k, [&](SymInt& e) { e = e.substitute([&](SymbolId id) { return id == outer ? std::optional(SymInt(0)) : std::nullopt; }); });
    k.axes[i].extent = k.axes[i].extent * inner.extent;
    k.axes[i].id = inner.id;
    k.axes.erase(k.axes.begin() + static_cast<int64_t>(i) + 1);
    return true;
  }
  return false;
}

void renumber_axes(Kernel& k) {
  std::vector<SymbolId> old;
  for (auto& a : k.axes) old.push_back(a.id);
  auto renamed = [&](SymbolId id) -> std::optional<SymInt> {
    auto it = std::find(old.begin(), old.end(), id);
    if (it == old.end()) return std::nullopt;
    return SymInt::symbol(kFirstAxis + static_cast<SymbolId>(it - old.begin()));
  };
  for_each_index(k, [&](SymInt& i) { i = i.substitute(renamed); });
  for (size_t i = 0; i < k.axes.size(); ++i) k.axes[i].id = kFirstAxis + static_cast<SymbolId>(i);
}

}  // namespace

Kernel normalize_axes(Kernel k) {
  drop_unit_axes(k);
  simplify_indices(k);
  drop_idle_axes(k);
  for (int i = 0; i < 8 && split_once(k); ++i) drop_unit_axes(k);
  order_axes(k);
  while (join_once(k)) {}
  renumber_axes(k);
  return k;
}

}  // namespace broach
