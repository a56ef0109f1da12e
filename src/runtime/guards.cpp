#include "runtime/guards.h"

#include <algorithm>
#include <bit>

#include "support/error.h"

namespace broach {

SizeGuards::SizeGuards(std::vector<Shape> sizes, std::vector<Shape> strides, std::vector<SymInt> ints,
                       std::vector<std::optional<double>> floats, const Symbols& symbols)
    : floats_(std::move(floats)), host_(symbols.floats), infos_(symbols.infos()) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    ranks_.push_back(sizes[i].size());
    for (const SymInt& e : sizes[i]) numbers_.push_back(number(e));
    for (const SymInt& e : strides[i]) numbers_.push_back(number(e));
  }
  for (const SymInt& e : ints) numbers_.push_back(number(e));
  auto late = [&](const SymInt& e) {
    std::vector<SymbolId> all, run_time;
    e.collect_symbols(all);
    for (SymbolId id : all)
      if (auto root = symbols.known_with(SymInt::symbol(id)); root && std::find(run_time.begin(), run_time.end(), *root) == run_time.end())
        run_time.push_back(*root);
    return run_time;
  };
  for (SymbolId id = 0; id < infos_.size(); ++id) {
    is_late_.push_back(symbols.is_late(SymInt::symbol(id)));
    if (is_late_.back() && infos_[id].source == SymbolInfo::Source::quotient) late_.push_back({late(SymInt::symbol(id)), id, {}});
  }
  for (const Guard& g : symbols.guards()) {
    auto needs = late(max(g.lhs, g.rhs));
    if (needs.empty()) guards_.push_back(g);
    else late_.push_back({std::move(needs), {}, g});
  }
}

bool SizeGuards::fits_late(SymbolId id, std::vector<int64_t>& symbols) const {
  const SymbolInfo& s = infos_[id];
  if (s.source == SymbolInfo::Source::quotient) symbols[id] = symbols[static_cast<size_t>(s.input)] / s.dim;
  return symbols[id] >= s.min;
}

bool SizeGuards::match_late(std::span<const SymbolId> fresh, std::vector<bool>& known, std::vector<int64_t>& symbols) const {
  known.resize(infos_.size());
  for (SymbolId id : fresh) {
    if (!fits_late(id, symbols)) return false;
    known[id] = true;
  }
  auto is_fresh = [&](SymbolId id) { return std::find(fresh.begin(), fresh.end(), id) != fresh.end(); };
  auto now = [&](const Late& l) {
    return std::any_of(l.symbols.begin(), l.symbols.end(), is_fresh) &&
           std::all_of(l.symbols.begin(), l.symbols.end(), [&](SymbolId id) { return known[id]; });
  };
  for (const Late& l : late_) {
    if (!now(l)) continue;
    if (l.quotient && !fits_late(*l.quotient, symbols)) return false;
    if (l.guard && !holds(l.guard->lhs.eval(symbols), l.guard->relation, l.guard->rhs.eval(symbols))) return false;
  }
  return true;
}

SizeGuards::Number SizeGuards::number(const SymInt& e) {
  if (auto c = e.maybe_constant()) return {*c};
  expressions_.push_back(e);
  return {0, static_cast<int>(expressions_.size()) - 1};
}

std::vector<int64_t> SizeGuards::hints() const {
  std::vector<int64_t> out;
  for (const SymbolInfo& s : infos_) out.push_back(s.hint);
  return out;
}

std::vector<std::string> SizeGuards::text() const {
  std::vector<std::string> out;
  for (size_t i = 0; i < infos_.size(); ++i)
    out.push_back(cat(SymInt::symbol(static_cast<SymbolId>(i)), " >= ", infos_[i].min, is_late_[i] ? ", known as it runs" : ""));
  for (const Guard& g : guards_) out.push_back(g.str());
  for (const Late& l : late_)
    if (l.guard) out.push_back(cat(l.guard->str(), ", asked as it runs"));
  for (std::string& g : host_.text()) out.push_back(std::move(g));
  return out;
}

std::string SizeGuards::shown(const Number& n) const {
  return n.expression < 0 ? cat(n.constant) : expressions_[static_cast<size_t>(n.expression)].str();
}

bool SizeGuards::differs(std::string* why, const Number& expected, int64_t value, const char* what, size_t input, size_t dim) const {
  if (why) *why = cat("input ", input, ": ", what, " ", dim, " was ", shown(expected), ", is ", value);
  return false;
}

bool SizeGuards::bind(std::span<const GivenTensor> inputs, std::span<const int64_t> ints, std::vector<int64_t>& symbols,
                      std::string* why) const {
  symbols.resize(infos_.size());
  for (size_t i = 0; i < infos_.size(); ++i) {
    const SymbolInfo& s = infos_[i];
    auto input = static_cast<size_t>(s.input), dim = static_cast<size_t>(s.dim);
    using From = SymbolInfo::Source;
    if (is_late_[i]) continue;
    symbols[i] = s.source == From::quotient  ? symbols[input] / s.dim
                 : s.source == From::integer ? ints[dim]
                 : s.source == From::size    ? inputs[input].sizes[dim]
                                             : inputs[input].strides[dim];
    if (symbols[i] >= s.min) continue;
    if (why) *why = cat("a size that was ", s.hint, " is ", symbols[i], ", compiled for ", s.min, " and more");
    return false;
  }
  return true;
}

bool SizeGuards::match(std::span<const GivenTensor> inputs, std::span<const int64_t> ints, std::span<const double> floats,
                       SymbolValues& values, std::string* why) const {
  std::vector<int64_t>& symbols = values.sizes;
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (inputs[i].rank != ranks_[i]) {
      if (why) *why = cat("input ", i, ": the number of dimensions was ", ranks_[i], ", is ", inputs[i].rank);
      return false;
    }
  if (!infos_.empty() && !bind(inputs, ints, symbols, why)) return false;
  const Number* n = numbers_.data();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    for (size_t d = 0; d < ranks_[i]; ++d, ++n)
      if (!fits(*n, inputs[i].sizes[d], symbols)) return differs(why, *n, inputs[i].sizes[d], "size", i, d);
    for (size_t d = 0; d < ranks_[i]; ++d, ++n)
      if (!fits(*n, inputs[i].strides[d], symbols)) return differs(why, *n, inputs[i].strides[d], "stride", i, d);
  }
  for (size_t k = 0; k < ints.size(); ++k, ++n)
    if (!fits(*n, ints[k], symbols)) {
      if (why) *why = cat("integer ", k, " was ", shown(*n), ", is ", ints[k]);
      return false;
    }
  for (size_t k = 0; k < floats_.size(); ++k)
    if (floats_[k] && std::bit_cast<uint64_t>(*floats_[k]) != std::bit_cast<uint64_t>(floats[k])) {
      if (why) *why = cat("number ", k, " was ", str(Scalar(*floats_[k])), ", is ", str(Scalar(floats[k])));
      return false;
    }
  for (const Guard& g : guards_)
    if (!holds(g.lhs.eval(symbols), g.relation, g.rhs.eval(symbols))) {
      if (why) *why = cat("the program found ", g.str(), ", which does not hold");
      return false;
    }
  return host_.empty() || host_.evaluate(floats, symbols, values.floats, why);
}

}  // namespace broach
