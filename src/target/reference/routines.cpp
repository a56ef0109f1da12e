#include "target/reference/routines.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "support/error.h"
#include "target/reference/scalar.h"

namespace broach::reference {

namespace {

using Positions = std::vector<int64_t>;

// The lines of a contiguous tensor along one dimension: element i of line l is at start(l) + i * step.
struct Lines {
  int64_t count, length, step;
  int64_t start(int64_t line) const { return line / step * step * length + line % step; }
};

Lines lines_of(const HostTensor& t, int64_t dim) {
  const auto sizes = t.sizes();
  auto product = [](auto first, auto last) { return std::accumulate(first, last, int64_t{1}, std::multiplies<>()); };
  const int64_t step = product(sizes.begin() + dim + 1, sizes.end());
  return {product(sizes.begin(), sizes.begin() + dim) * step, sizes[static_cast<size_t>(dim)], step};
}

template <class E>
std::vector<typename E::Computed> line_of(const HostTensor& t, const Lines& lines, int64_t line) {
  std::vector<typename E::Computed> out;
  for (int64_t i = 0; i < lines.length; ++i) out.push_back(load<E>(t.bytes.data(), lines.start(line) + i * lines.step));
  return out;
}

void set_position(HostTensor& t, int64_t i, int64_t position) { store<Plain<int64_t>>(t.bytes.data(), i, position); }

// f(element type) for types that have an order.
template <class F>
void with_ordered(const Node& n, DType t, const F& f) {
  with_element(t, [&](auto element) {
    using T = typename decltype(element)::Computed;
    if constexpr (is_complex_v<T>) undefined(n.op, "complex numbers");
    else f(element);
  });
}

// NaN is the largest.
template <class T>
bool less(T a, T b) {
  return is_nan(b) ? !is_nan(a) : a < b;
}

// ---- scans ----

template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<float> {
  using type = double;
};
template <>
struct Wide<std::complex<float>> {
  using type = std::complex<double>;
};

template <class T>
T log_add_exp(T a, T b) {
  const T low = std::isnan(b) ? b : std::min(a, b), high = std::isnan(b) ? b : std::max(a, b);
  return low != high || std::isfinite(low) ? std::log1p(std::exp(low - high)) + high : a;
}

template <class W>
W accumulated(Op op, W total, W x) {
  if constexpr (is_bool_v<W>) undefined(op, "b1");
  else if constexpr (is_integer_v<W>)
    return op == Op::scan_logsumexp ? (undefined(op, "integers"), x) : integer_binary(op == Op::scan_sum ? Op::add : Op::mul, total, x);
  else if constexpr (is_complex_v<W>)
    return op == Op::scan_logsumexp ? (undefined(op, "complex numbers"), x)
                                    : complex_binary(op == Op::scan_sum ? Op::add : Op::mul, total, x);
  else return op == Op::scan_sum ? total + x : op == Op::scan_prod ? total * x : log_add_exp(x, total);
}

void scan(const Node& n, const HostTensor& x, HostTensor& out) {
  const Lines lines = lines_of(x, n.integer(Attr::dim));
  with_element(x.type.dtype, [&](auto element) {
    using E = decltype(element);
    using W = typename Wide<typename E::Computed>::type;
    for (int64_t l = 0; l < lines.count; ++l) {
      W total{};  // with which a sum begins
      if constexpr (std::is_floating_point_v<W>)
        if (n.op == Op::scan_logsumexp) total = -std::numeric_limits<W>::infinity();
      for (int64_t i = 0; i < lines.length; ++i) {
        const int64_t at = lines.start(l) + i * lines.step;
        const W next = static_cast<W>(load<E>(x.bytes.data(), at));
        total = i || n.op != Op::scan_prod ? accumulated(n.op, total, next) : next;
        store<E>(out.bytes.data(), at, static_cast<typename E::Computed>(total));
      }
    }
  });
}

void scan_extremum(const Node& n, const HostTensor& x, HostTensor& out, HostTensor& positions) {
  const Lines lines = lines_of(x, n.integer(Attr::dim));
  with_ordered(n, x.type.dtype, [&](auto element) {
    using E = decltype(element);
    for (int64_t l = 0; l < lines.count; ++l) {
      int64_t best = 0;
      const auto line = line_of<E>(x, lines, l);
      for (int64_t i = 0; i < lines.length; ++i) {
        const auto now = line[static_cast<size_t>(i)], before = line[static_cast<size_t>(best)];
        if (is_nan(now) || (!is_nan(before) && (n.op == Op::scan_max ? now >= before : now <= before))) best = i;
        store<E>(out.bytes.data(), lines.start(l) + i * lines.step, line[static_cast<size_t>(best)]);
        set_position(positions, lines.start(l) + i * lines.step, best);
      }
    }
  });
}

// ---- order ----

// Stores the elements of x's line at `chosen` as line `l` of the results, which may be shorter.
template <class E>
void store_chosen(const std::vector<typename E::Computed>& line, const Positions& chosen, const Lines& to, int64_t l,
                  std::vector<HostTensor>& out) {
  for (size_t i = 0; i < chosen.size(); ++i) {
    const int64_t at = to.start(l) + static_cast<int64_t>(i) * to.step;
    store<E>(out[0].bytes.data(), at, line[static_cast<size_t>(chosen[i])]);
    set_position(out[1], at, chosen[i]);
  }
}

// f(line, positions 0, 1, .. to be replaced by those of the elements chosen) for every line.
template <class F>
void choose(const Node& n, const HostTensor& x, std::vector<HostTensor>& out, int64_t kept, const F& f) {
  const Lines from = lines_of(x, n.integer(Attr::dim)), to{from.count, kept, from.step};
  with_ordered(n, x.type.dtype, [&](auto element) {
    using E = decltype(element);
    for (int64_t l = 0; l < from.count; ++l) {
      const auto line = line_of<E>(x, from, l);
      Positions chosen(line.size());
      std::iota(chosen.begin(), chosen.end(), 0);
      f(line, chosen);
      store_chosen<E>(line, chosen, to, l, out);
    }
  });
}

// Compares positions by the elements there.
template <class T>
auto order_of(const std::vector<T>& line, bool descending) {
  return [&line, descending](int64_t i, int64_t j) {
    const T a = line[static_cast<size_t>(i)], b = line[static_cast<size_t>(j)];
    return descending ? less<T>(b, a) : less<T>(a, b);
  };
}

void sort(const Node& n, const HostTensor& x, std::vector<HostTensor>& out) {
  const bool descending = n.integer(Attr::descending) != 0, stable = n.integer(Attr::stable) != 0;
  choose(n, x, out, lines_of(x, n.integer(Attr::dim)).length, [&](const auto& line, Positions& p) {
    if (stable) std::stable_sort(p.begin(), p.end(), order_of(line, descending));
    else std::sort(p.begin(), p.end(), order_of(line, descending));
  });
}

// As eager chooses the algorithm.
void topk(const Node& n, const HostTensor& x, int64_t k, std::vector<HostTensor>& out) {
  const bool descending = n.integer(Attr::descending) != 0, sorted = n.integer(Attr::sorted) != 0;
  const int64_t length = lines_of(x, n.integer(Attr::dim)).length;
  check(k >= 0 && k <= length, "k = ", k, " of ", length, " elements");
  choose(n, x, out, k, [&](const auto& line, Positions& p) {
    const auto order = order_of(line, descending);
    if (k * 64 <= length) {
      std::partial_sort(p.begin(), p.begin() + k, p.end(), order);
    } else if (k > 0) {
      std::nth_element(p.begin(), p.begin() + k - 1, p.end(), order);
      if (sorted) std::sort(p.begin(), p.begin() + k - 1, order);
    }
    p.resize(static_cast<size_t>(k));
  });
}

// Quickselect with the median of three as pivot, the one that eager moves elements with: it decides which of equals is found.
template <class T>
void quickselect(const std::vector<T>& line, Positions& p, int64_t k) {
  auto greater = [&](int64_t i, int64_t j) { return order_of(line, true)(p[static_cast<size_t>(i)], p[static_cast<size_t>(j)]); };
  auto swap = [&](int64_t i, int64_t j) { std::swap(p[static_cast<size_t>(i)], p[static_cast<size_t>(j)]); };
  auto order = [&](int64_t i, int64_t j) {
    if (greater(i, j)) swap(i, j);
  };
  int64_t first = 0, last = static_cast<int64_t>(p.size()) - 1;
  while (last > first + 1) {
    swap((first + last) / 2, first + 1);
    order(first + 1, last);
    order(first, last);
    order(first + 1, first);
    int64_t up = first + 1, down = last;
    for (;;) {
      do ++up;
      while (greater(first, up));
      do --down;
      while (greater(down, first));
      if (down < up) break;
      swap(up, down);
    }
    swap(first, down);
    if (down <= k) first = up;
    if (down >= k) last = down - 1;
  }
  if (last == first + 1) order(first, last);
}

void kth(const Node& n, const HostTensor& x, int64_t k, std::vector<HostTensor>& out) {
  const int64_t length = lines_of(x, n.integer(Attr::dim)).length;
  check(k >= 0 && k < length, "k = ", k, " of ", length, " elements");
  choose(n, x, out, 1, [&](const auto& line, Positions& p) {
    quickselect(line, p, k);
    p = {p[static_cast<size_t>(k)]};
  });
}

void median(const Node& n, const HostTensor& x, std::vector<HostTensor>& out) {
  choose(n, x, out, 1, [&](const auto& line, Positions& p) {
    check(!line.empty(), "not defined for no elements");
    const auto nan = std::find_if(line.begin(), line.end(), [](auto v) { return is_nan(v); });
    const auto nans = std::count_if(line.begin(), line.end(), [](auto v) { return is_nan(v); });
    std::stable_sort(p.begin(), p.end(), order_of(line, false));
    const auto numbers = static_cast<int64_t>(line.size()) - nans;
    if (nans > 0 && !n.integer(Attr::skip_nan)) p = {nan - line.begin()};
    else p = {p[static_cast<size_t>(std::max<int64_t>(numbers - 1, 0) / 2)]};
  });
}

// NaN equals nothing here, and has no place in the order: what a sort makes of it is as in eager.
void mode(const Node& n, const HostTensor& x, std::vector<HostTensor>& out) {
  choose(n, x, out, 1, [&](const auto& line, Positions& p) {
    check(!line.empty(), "not defined for no elements");
    auto at = [&](size_t i) { return line[static_cast<size_t>(p[i])]; };
    std::sort(p.begin(), p.end(), [&](int64_t i, int64_t j) { return line[static_cast<size_t>(i)] < line[static_cast<size_t>(j)]; });
    int64_t most = 0, best = 0, run = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      ++run;
      if (i + 1 < p.size() && at(i) == at(i + 1)) continue;
      if (run > most) most = run, best = p[i];
      run = 0;
    }
    p = {best};
  });
}

// Found by halving, as in eager: what comes out where x is not sorted is the same too.
void search(const Node& n, const HostTensor& x, const HostTensor& values, HostTensor& out) {
  const bool right = n.integer(Attr::right) != 0;
  const int64_t length = x.sizes().back(),
                per_line = values.numel() && x.type.rank() > 1 ? values.sizes().back() : std::max<int64_t>(values.numel(), 1);
  with_ordered(n, x.type.dtype, [&](auto element) {
    using E = decltype(element);
    for (int64_t i = 0; i < values.numel(); ++i) {
      const auto v = load<E>(values.bytes.data(), i);
      const int64_t start = i / per_line * length;
      int64_t low = 0, high = length;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const auto m = load<E>(x.bytes.data(), start + middle);
        if (right ? !(m > v) : !(m >= v)) low = middle + 1;
        else high = middle;
      }
      set_position(out, i, low);
    }
  });
}

// ---- writes ----

template <class E>
typename E::Computed changed(Op op, typename E::Computed old, typename E::Computed by) {
  return op == Op::scatter ? by : binary(fold_of(op).value(), old, by);
}

void scatter(const Node& n, const HostTensor& x, const HostTensor& index, const HostTensor& source, HostTensor& out) {
  out.bytes = x.bytes;
  const auto sizes = x.sizes(), from = index.sizes();
  const auto dim = static_cast<size_t>(n.integer(Attr::dim));
  for (size_t d = 0; d < sizes.size(); ++d)
    check(d == dim || from[d] <= sizes[d] || index.numel() == 0, source.type.str(), " is larger than ", x.type.str());
  with_element(x.type.dtype, [&](auto element) {
    using E = decltype(element);
    for (int64_t p = 0; p < index.numel(); ++p) {
      // p's coordinates, the last first, with that along dim replaced.
      int64_t at = 0, rest = p, stride = 1;
      const int64_t target = as_int(index.at(p));
      check(target >= 0 && target < sizes[dim], "index ", target, " is outside dimension ", dim, ", whose size is ", sizes[dim]);
      for (size_t d = sizes.size(); d-- > 0;) {
        at += (d == dim ? target : rest % from[d]) * stride;
        rest /= from[d];
        stride *= sizes[d];
      }
      store<E>(out.bytes.data(), at, changed<E>(n.op, load<E>(out.bytes.data(), at), load<E>(source.bytes.data(), p)));
    }
  });
}

void sum_rows(const HostTensor& source, const HostTensor& index, HostTensor& out) {
  const int64_t width = out.sizes()[1], rows = out.sizes()[0];
  with_element(out.type.dtype, [&](auto element) {
    using E = decltype(element);
    using T = typename E::Computed;
    std::vector<T> sums(static_cast<size_t>(rows * width));
    for (int64_t p = 0; p < index.numel(); ++p) {
      const int64_t row = as_int(index.at(p));
      check(row >= -1 && row < rows, "index ", row, " is outside ", rows, " rows");
      for (int64_t j = 0; row >= 0 && j < width; ++j) {
        const auto at = static_cast<size_t>(row * width + j);
        sums[at] = binary<T>(Op::add, sums[at], load<E>(source.bytes.data(), p * width + j));
      }
    }
    for (int64_t i = 0; i < rows * width; ++i) store<E>(out.bytes.data(), i, sums[static_cast<size_t>(i)]);
  });
}

void add_rows(const HostTensor& x, const HostTensor& index, const HostTensor& source, HostTensor& out) {
  sum_rows(source, index, out);
  auto add = [&](auto element, auto started) {
    using E = decltype(element);
    using T = typename E::Computed;
    using X = decltype(started);
    if constexpr (std::is_floating_point_v<T> && std::is_floating_point_v<typename X::Computed>)
      for (int64_t i = 0; i < out.numel(); ++i) {
        const T start = static_cast<T>(load<X>(x.bytes.data(), i));
        store<E>(out.bytes.data(), i, binary<T>(Op::add, start, load<E>(out.bytes.data(), i)));
      }
  };
  with_element(out.type.dtype, [&](auto element) { with_element(x.type.dtype, [&](auto started) { add(element, started); }); });
}

void update(const HostTensor& x, const HostTensor& source, const std::vector<int64_t>& starts, HostTensor& out) {
  out.bytes = x.bytes;
  const auto sizes = x.sizes(), part = source.sizes();
  const auto bytes = static_cast<size_t>(size_of(x.type.dtype));
  for (int64_t p = 0; p < source.numel(); ++p) {
    int64_t at = 0, rest = p, stride = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      check(starts[d] >= 0 && starts[d] + part[d] <= sizes[d], source.type.str(), " is written outside ", x.type.str());
      at += (starts[d] + rest % part[d]) * stride;
      rest /= part[d];
      stride *= sizes[d];
    }
    std::copy_n(source.bytes.begin() + p * static_cast<int64_t>(bytes), bytes, out.bytes.begin() + at * static_cast<int64_t>(bytes));
  }
}

// ---- attention ----

void attention(const Node& n, const std::vector<const HostTensor*>& in, HostTensor& out, HostTensor& lse) {
  const auto q = in[0]->sizes(), v = in[2]->sizes();
  const int64_t rows = q[2], depth = q[3], keys = v[2], values = v[3];
  const double scale = as_double(n.get<Scalar>(Attr::scale));
  for (int64_t i = 0; i < q[0] * q[1] * rows; ++i) {
    const int64_t head = i / rows, row = i % rows, seen = n.integer(Attr::causal) ? std::min(row + 1, keys) : keys;
    std::vector<double> scores(static_cast<size_t>(seen));
    double top = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < seen; ++j) {
      double& s = scores[static_cast<size_t>(j)];
      for (int64_t d = 0; d < depth; ++d) s += as_double(in[0]->at(i * depth + d)) * as_double(in[1]->at((head * keys + j) * depth + d));
      s *= scale;
      if (in.size() > 3) s += as_double(in[3]->at(i * keys + j));
      if (s > top) top = s;
    }
    for (double& s : scores) sum += s = top == -HUGE_VAL && !std::isnan(s) ? 0 : std::exp(s - top);
    for (int64_t e = 0; e < values; ++e) {
      double x = 0;
      for (int64_t j = 0; j < seen; ++j) x += scores[static_cast<size_t>(j)] * as_double(in[2]->at((head * keys + j) * values + e));
      out.set(i * values + e, sum == 0 ? 0.0 : x / sum);
    }
    lse.set(i, sum == 0 ? 0.0 : top + std::log(sum));
  }
}

void attention_gradient(const Node& n, const std::vector<const HostTensor*>& in, std::vector<HostTensor>& out) {
  const auto q = in[0]->sizes(), v = in[2]->sizes();
  const int64_t rows = q[2], depth = q[3], keys = v[2], values = v[3];
  const double scale = as_double(n.get<Scalar>(Attr::scale));
  std::vector<std::vector<double>> sums;
  for (const HostTensor& t : out) sums.emplace_back(static_cast<size_t>(t.numel()));
  auto at = [&](size_t operand, int64_t line, int64_t width, int64_t column) { return as_double(in[operand]->at(line * width + column)); };
  for (int64_t i = 0; i < q[0] * q[1] * rows; ++i) {
    const int64_t head = i / rows, row = i % rows, seen = n.integer(Attr::causal) ? std::min(row + 1, keys) : keys;
    double common = 0;
    for (int64_t e = 0; e < values; ++e) common += at(3, i, values, e) * at(4, i, values, e);
    for (int64_t j = head * keys; j < head * keys + seen; ++j) {
      double score = 0, given = 0;
      for (int64_t d = 0; d < depth; ++d) score += at(0, i, depth, d) * at(1, j, depth, d);
      for (int64_t e = 0; e < values; ++e) given += at(3, i, values, e) * at(2, j, values, e);
      const double mask = in.size() > 6 ? at(6, i, keys, j - head * keys) : 0;
      const double p = std::exp(score * scale + mask - as_double(in[5]->at(i))), ds = p * (given - common) * scale;
      for (int64_t d = 0; d < depth; ++d) {
        sums[0][static_cast<size_t>(i * depth + d)] += ds * at(1, j, depth, d);
        sums[1][static_cast<size_t>(j * depth + d)] += ds * at(0, i, depth, d);
      }
      for (int64_t e = 0; e < values; ++e) sums[2][static_cast<size_t>(j * values + e)] += p * at(3, i, values, e);
    }
  }
  for (size_t r = 0; r < out.size(); ++r)
    for (size_t i = 0; i < sums[r].size(); ++i) out[r].set(static_cast<int64_t>(i), sums[r][i]);
}

}  // namespace

void run_routine(const Node& n, const std::vector<const HostTensor*>& in, int64_t k, const std::vector<int64_t>& starts,
                 std::vector<HostTensor>& out) {
  const HostTensor& x = *in[0];
  switch (n.op) {
    case Op::scan_sum:
    case Op::scan_prod:
    case Op::scan_logsumexp: return scan(n, x, out[0]);
    case Op::scan_max:
    case Op::scan_min: return scan_extremum(n, x, out[0], out[1]);
    case Op::sort: return sort(n, x, out);
    case Op::topk: return topk(n, x, k, out);
    case Op::kth: return kth(n, x, k, out);
    case Op::median: return median(n, x, out);
    case Op::mode: return mode(n, x, out);
    case Op::update: return update(x, *in[1], starts, out[0]);
    case Op::sum_rows: return sum_rows(x, *in[1], out[0]);
    case Op::add_rows: return add_rows(x, *in[1], *in[2], out[0]);
    case Op::attention: return attention(n, in, out[0], out[1]);
    case Op::attention_gradient: return attention_gradient(n, in, out);
    case Op::search: return search(n, x, *in[1], out[0]);
    default: return scatter(n, x, *in[1], *in[2], out[0]);
  }
}

}  // namespace broach::reference
