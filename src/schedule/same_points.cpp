#include "schedule/same_points.h"

#include <algorithm>
#include <map>

namespace broach {

namespace {

struct Digit {
  SymbolId id;  // of an axis
  int64_t extent, stride;
};

// The axes along which a linear address moves, the largest strides first.
std::optional<std::vector<Digit>> digits_of(const Kernel& k, const SymInt& address) {
  std::vector<Digit> out;
  for (const KernelAxis& a : k.axes) {
    const auto parts = address.linear_in(a.id);
    const auto extent = a.extent.maybe_constant();
    const auto stride = parts ? parts->first.maybe_constant() : std::nullopt;
    if (!extent || !stride || *stride <= 0) return std::nullopt;
    out.push_back({a.id, *extent, *stride});
  }
  std::ranges::sort(out, std::ranges::greater{}, &Digit::stride);
  return out;
}

SymInt first_address(const Kernel& k, SymInt address) {
  return address.substitute([&](SymbolId id) -> std::optional<SymInt> {
    const bool is_axis = std::ranges::find(k.axes, id, &KernelAxis::id) != k.axes.end();
    return is_axis ? std::optional<SymInt>(0) : std::nullopt;
  });
}

}  // namespace

std::optional<Kernel> over_points_of(const Kernel& elementwise, const SymInt& store, const Kernel& other, const SymInt& load) {
  const auto coarse = digits_of(elementwise, store), fine = digits_of(other, load);
  if (!coarse || !fine || first_address(elementwise, store) != first_address(other, load)) return std::nullopt;
  // Each axis is a number whose digits are axes of the other.
  std::map<SymbolId, SymInt> position;
  size_t next = 0;
  for (const Digit& axis : *coarse) {
    SymInt& p = position.emplace(axis.id, 0).first->second;
    for (int64_t left = axis.extent; left > 1; ++next) {
      if (next == fine->size()) return std::nullopt;
      const Digit& d = (*fine)[next];
      if (left % d.extent != 0) return std::nullopt;
      left /= d.extent;
      if (d.stride != axis.stride * left) return std::nullopt;
      p = p + SymInt::symbol(d.id) * left;
    }
  }
  if (next != fine->size()) return std::nullopt;
  Kernel out = elementwise;
  const auto place = [&](SymInt& n) {
    n = n.substitute([&](SymbolId id) -> std::optional<SymInt> {
      const auto at = position.find(id);
      return at == position.end() ? std::nullopt : std::optional<SymInt>(at->second);
    });
  };
  const auto place_access = [&](Access& a) {
    place(a.index);
    for (auto& [e, stride] : a.dynamic) place(stride);
  };
  for (KernelExpr& e : out.exprs) place_access(e.access), place(e.limit);
  for (KernelStore& s : out.stores) place_access(s.access);
  out.axes = other.axes;
  return out;
}

}  // namespace broach
