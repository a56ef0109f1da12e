#include "trace/generalize.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <map>
#include <numeric>

namespace broach {

bool CallSizes::has_form_of(const CallSizes& other) const {
  if (ints.size() != other.ints.size() || floats.size() != other.floats.size() || sizes.size() != other.sizes.size()) return false;
  // Dimensions of one element, and repeated ones, have no place in the order.
  auto counts = [](const CallSizes& c, size_t i, size_t d) { return c.sizes[i][d] > 1 && c.strides[i][d] != 0; };
  auto same_order = [&](size_t i, size_t a, size_t b) {
    for (size_t d : {a, b})
      if (!counts(*this, i, d) || !counts(other, i, d)) return true;
    return (strides[i][a] <=> strides[i][b]) == (other.strides[i][a] <=> other.strides[i][b]);
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].size() != other.sizes[i].size()) return false;
    for (size_t a = 0; a < sizes[i].size(); ++a)
      for (size_t b = 0; b < a; ++b)
        if (!same_order(i, a, b)) return false;
  }
  return true;
}

bool CallSizes::has_numbers_of(const CallSizes& other) const {
  auto same_bits = [](double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); };
  return ints == other.ints && std::equal(floats.begin(), floats.end(), other.floats.begin(), other.floats.end(), same_bits);
}

bool SymbolicSizes::empty() const { return symbols->infos().empty() && std::find(floats.begin(), floats.end(), true) == floats.end(); }

namespace {

class Generalizer {
 public:
  Generalizer(const std::vector<CallSizes>& calls, const std::vector<uint64_t>& symbolic)
      : calls_(calls), symbolic_(symbolic), now_(calls.back()) {}

  SymbolicSizes run() {
    using From = SymbolInfo::Source;
    for (size_t i = 0; i < now_.sizes.size(); ++i) {
      Shape sizes;
      for (size_t d = 0; d < now_.sizes[i].size(); ++d)
        sizes.push_back(number([&](const CallSizes& c) { return c.sizes[i][d]; }, asked(i, d), From::size, i, d));
      out_.sizes.push_back(std::move(sizes));
    }
    for (size_t k = 0; k < now_.ints.size(); ++k)
      out_.ints.push_back(number([&](const CallSizes& c) { return c.ints[k]; }, asked(now_.sizes.size(), k), From::integer, 0, k));
    for (size_t i = 0; i < now_.strides.size(); ++i) out_.strides.push_back(strides(i));
    for (size_t k = 0; k < now_.floats.size(); ++k) {
      auto bits = [&](const CallSizes& c) { return std::bit_cast<uint64_t>(c.floats[k]); };
      out_.floats.push_back(std::any_of(calls_.begin(), calls_.end(), [&](const CallSizes& c) { return bits(c) != bits(now_); }));
    }
    return std::move(out_);
  }

 private:
  bool asked(size_t i, size_t d) const { return i < symbolic_.size() && d < 64 && (symbolic_[i] >> d & 1); }

  template <class Get>
  SymInt number(const Get& get, bool always, SymbolInfo::Source source, size_t input, size_t dim) {
    std::vector<int64_t> column;
    for (const CallSizes& c : calls_) column.push_back(get(c));
    int64_t value = column.back();
    bool varies = std::any_of(column.begin(), column.end(), [&](int64_t v) { return v != value; });
    if (value < 2 || !(varies || always)) return value;
    auto it = symbol_of_.find(column);
    if (it != symbol_of_.end()) return it->second;
    SymInt s = out_.symbols->fresh(
        {value, 2, source == SymbolInfo::Source::integer ? -1 : static_cast<int>(input), static_cast<int>(dim), source});
    symbol_of_.emplace(std::move(column), s);
    return s;
  }

  // Dimensions from the innermost outwards, as the last call has them in memory.
  std::vector<size_t> order(size_t i) const {
    std::vector<size_t> dims(now_.strides[i].size());
    std::iota(dims.rbegin(), dims.rend(), size_t{0});
    std::stable_sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return now_.strides[i][a] < now_.strides[i][b]; });
    return dims;
  }

  Shape strides(size_t i) {
    Shape out(now_.strides[i].size());
    SymInt dense(1), inner(1);
    for (size_t d : order(i)) {
      auto fits = [&](const CallSizes& c, const SymInt& e) { return value_in(c, e) == c.strides[i][d]; };
      auto everywhere = [&](const SymInt& e) {
        return std::all_of(calls_.begin(), calls_.end(), [&](const CallSizes& c) { return fits(c, e); });
      };
      bool is_dense = everywhere(dense);
      out[d] = is_dense ? dense : number([&](const CallSizes& c) { return c.strides[i][d]; }, false, SymbolInfo::Source::stride, i, d);
      // Results are laid out in the order of their operands' dimensions: where sizes do not say it, a guard does.
      if (now_.sizes[i][d] > 1 && now_.strides[i][d] != 0) {
        if (!is_dense) out_.symbols->ask(inner, out_.symbols->hint(inner) < now_.strides[i][d] ? Relation::lt : Relation::eq, out[d]);
        inner = out[d];
      }
      // What lies further out is measured from here, whether the memory is dense or has gaps.
      dense = out[d] * out_.sizes[i][d];
    }
    return out;
  }

  int64_t value_in(const CallSizes& c, const SymInt& e) const {
    return e.eval([&](SymbolId id) {
      const SymbolInfo& info = out_.symbols->infos()[id];
      auto input = static_cast<size_t>(std::max(info.input, 0)), dim = static_cast<size_t>(info.dim);
      if (info.source == SymbolInfo::Source::integer) return c.ints[dim];
      return (info.source == SymbolInfo::Source::size ? c.sizes : c.strides)[input][dim];
    });
  }

  const std::vector<CallSizes>& calls_;
  const std::vector<uint64_t>& symbolic_;
  const CallSizes& now_;
  SymbolicSizes out_;
  std::map<std::vector<int64_t>, SymInt> symbol_of_;
};

}  // namespace

SymbolicSizes generalize(const std::vector<CallSizes>& calls, const std::vector<uint64_t>& symbolic) {
  return Generalizer(calls, symbolic).run();
}

}  // namespace broach
