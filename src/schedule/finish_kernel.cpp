// What makes a kernel that was built one that any launch can use: its symbols and the places where buffers begin are told with
// each launch.
#include <algorithm>

#include "schedule/exprs.h"

namespace broach {

namespace {

using Kind = KernelExpr::Kind;

// Calls f with each expression of sizes and axes.
template <class F>
void for_each_integer(Kernel& k, const F& f) {
  for (auto& a : k.axes) f(a.extent);
  for (auto& e : k.exprs) {
    f(e.access.index);
    f(e.limit);
    for (auto& d : e.access.dynamic) f(d.second);
  }
  for (auto& s : k.stores) f(s.access.index);
}

// The program's symbols become 0, 1, ..; by their new numbers, what they were.
std::vector<SymbolId> number_symbols(Kernel& k) {
  std::vector<SymbolId> symbols;
  for_each_integer(k, [&](const SymInt& s) { s.collect_symbols(symbols); });
  std::erase_if(symbols, [](SymbolId id) { return id >= kFirstAxis; });
  std::sort(symbols.begin(), symbols.end());
  symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
  auto renamed = [&](SymbolId id) -> std::optional<SymInt> {
    auto it = std::find(symbols.begin(), symbols.end(), id);
    return it == symbols.end() ? std::nullopt : std::optional(SymInt::symbol(static_cast<SymbolId>(it - symbols.begin())));
  };
  for_each_integer(k, [&](SymInt& s) { s = s.substitute(renamed); });
  k.symbols = static_cast<int>(symbols.size());
  return symbols;
}

// Where in a buffer the kernel begins is told with each launch: the rows of a tensor, taken one by one, are one kernel then.
std::vector<int64_t> take_starts(Kernel& k) {
  std::vector<std::optional<int64_t>> first(k.buffers.size());
  auto each = [&](const auto& f) {
    for (auto& e : k.exprs)
      if (e.kind == Kind::load) f(e.access);
    for (auto& s : k.stores) f(s.access);
  };
  each([&](const Access& a) {
    auto& known = first[static_cast<size_t>(a.buffer)];
    known = std::min(known.value_or(a.index.constant_part()), a.index.constant_part());
  });
  std::vector<int64_t> starts;
  for (const auto& f : first) starts.push_back(f.value_or(0));
  if (std::all_of(starts.begin(), starts.end(), [](int64_t s) { return s == 0; })) return {};
  each([&](Access& a) { a.index = a.index - starts[static_cast<size_t>(a.buffer)]; });
  return starts;
}

// Of expressions that are equal, once changed, one stays.
template <class F>
Kernel with_one_of_equals(const Kernel& k, const F& change) {
  Kernel out = k;
  out.exprs.clear();
  ExprList exprs(out);
  std::vector<int> place;
  const auto now = [&](int e) { return place[static_cast<size_t>(e)]; };
  for (const KernelExpr& e : k.exprs) place.push_back(exprs.add(moved(change(e), now)));
  for (KernelStore& s : out.stores) s = {moved(std::move(s.access), now), now(s.expr), s.adds};
  return out;
}

// A load that is made in any case as well needs no condition: where that does not hold, any value will do. What is computed of the two is
// then one expression, as a norm's weights are under all windows of a pooling.
Kernel without_idle_conditions(const Kernel& k) {
  auto is_certain = [](const KernelExpr& e) { return e.kind == Kind::load && e.predicate < 0; };
  auto is_made_anyway = [&](const KernelExpr& e) {
    return e.kind == Kind::load && e.predicate >= 0 &&
           std::ranges::any_of(k.exprs, [&](const KernelExpr& o) { return is_certain(o) && o.dtype == e.dtype && o.access == e.access; });
  };
  return with_one_of_equals(k, [&](KernelExpr e) {
    if (is_made_anyway(e)) e.predicate = -1;
    return e;
  });
}

}  // namespace

KernelStep without_idle_buffers(KernelStep step) {
  Kernel k = *step.kernel;
  std::vector<bool> is_touched(k.buffers.size());
  for (const KernelStore& s : k.stores) is_touched[static_cast<size_t>(s.access.buffer)] = true;
  for (const KernelExpr& e : k.exprs)
    if (e.kind == Kind::load) is_touched[static_cast<size_t>(e.access.buffer)] = true;
  std::vector<int> place, buffers;
  std::vector<int64_t> starts;
  std::vector<DType> types;
  for (size_t b = 0; b < k.buffers.size(); ++b) {
    place.push_back(static_cast<int>(buffers.size()));
    if (!is_touched[b]) continue;
    buffers.push_back(step.buffers[b]), types.push_back(k.buffers[b]);
    if (!step.starts.empty()) starts.push_back(step.starts[b]);
  }
  for (KernelStore& s : k.stores) s.access.buffer = place[static_cast<size_t>(s.access.buffer)];
  for (KernelExpr& e : k.exprs)
    if (e.kind == Kind::load) e.access.buffer = place[static_cast<size_t>(e.access.buffer)];
  k.buffers = std::move(types);
  if (std::ranges::all_of(starts, [](int64_t start) { return start == 0; })) starts.clear();
  step.kernel = std::make_shared<const Kernel>(std::move(k)), step.buffers = std::move(buffers), step.starts = std::move(starts);
  return step;
}

KernelStep finish_kernel(Kernel k, std::vector<int> buffers) {
  // Addresses that were written in two ways may have become one.
  k = with_one_of_equals(normalize_axes(without_idle_conditions(k)), [](KernelExpr e) { return e; });
  std::vector<SymbolId> symbols = number_symbols(k);
  std::vector<int64_t> starts = take_starts(k);
  return {std::make_shared<const Kernel>(std::move(k)), std::move(buffers), std::move(symbols), std::move(starts), {}};
}

}  // namespace broach
