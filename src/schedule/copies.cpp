#include "schedule/copies.h"

#include <algorithm>
#include <map>

namespace broach {

double Copies::elements(const Node& n) const { return std::max(1.0, static_cast<double>(symbols_.hint(n.results[0].numel()))); }

std::vector<Copies::Copy> Copies::read(const Node& n) const {
  constexpr size_t kMost = 64;  // beyond, what more there is changes no decision
  const double all = elements(n);
  std::vector<Copy> out;
  for (const Node* u : users_[n.id])
    for (Copy c : of_[u->id]) {
      // All that is taken by one index finds it at the same points.
      const bool is_index = kind_of(u->op) == OpKind::heavy_view && u->inputs[0].node != &n;
      if (is_reduce(u->op)) c.way = 0, c.elements = all;
      else if (!is_elementwise(u->op) && !is_index) c.way = (c.way ^ (u->id + 1)) * 0x9E3779B97F4A7C15u;
      if (is_view(u->op) || is_index) c.elements = std::min(c.elements, all);
      const auto same = std::ranges::find_if(out, [&](const Copy& o) { return o.kernel == c.kernel && o.way == c.way; });
      if (same != out.end()) same->elements = std::max(same->elements, c.elements);
      else if (out.size() < kMost) out.push_back(c);
    }
  return out;
}

double Copies::times(const Node& n) const {
  std::map<int, double> by_kernel;
  for (const Copy& c : read(n)) by_kernel[c.kernel] += c.elements;
  double most = 0;
  for (const auto& [kernel, sum] : by_kernel) most = std::max(most, sum);
  return most / elements(n);
}

}  // namespace broach
