#include "passes/constancy.h"

#include <algorithm>

namespace broach {

namespace {

bool is_known(const Shape& s) {
  return std::all_of(s.begin(), s.end(), [](const SymInt& e) { return e.is_constant(); });
}

// What is computed once must be the same at all sizes.
bool has_known_sizes(const Node& n) {
  for (const Type& t : n.results)
    if (!is_known(t.shape)) return false;
  if (n.op == Op::extern_call) {
    if (!std::ranges::all_of(n.call().result_strides, is_known)) return false;
    for (const ExternArg& a : n.call().args) {
      if (auto i = std::get_if<SymInt>(&a.value); i && !i->is_constant()) return false;
      if (auto s = std::get_if<Shape>(&a.value); s && !is_known(*s)) return false;
    }
  }
  return std::all_of(n.attrs.begin(), n.attrs.end(), [](const auto& a) {
    auto s = std::get_if<Shape>(&a.second);
    return !s || is_known(*s);
  });
}

}  // namespace

bool Constancy::operator()(const Node& n) {
  if (n.op == Op::input) {
    const auto i = static_cast<size_t>(n.integer(Attr::index));
    return i < constant_.size() && constant_[i];
  }
  if (auto it = known_.find(&n); it != known_.end()) return it->second;
  bool yes = !n.has_effect() && n.op != Op::size && has_known_sizes(n);
  for (const Value& v : n.inputs) yes = yes && (*this)(*v.node);
  return known_[&n] = yes;
}

}  // namespace broach
