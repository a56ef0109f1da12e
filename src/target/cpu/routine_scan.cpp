// Scans: one pass along each line. Lines that lie next to each other are scanned together, a row of them at a time.
#include <algorithm>
#include <limits>

#include "target/cpu/routine.h"
#include "target/cpu/routine_elements.h"

namespace broach::cpu {

namespace {

constexpr int64_t kTogether = 64;

// The type in which running sums and products are taken.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, float>, double, T>;

// Integers wrap.
template <class W>
W sum_of(W a, W b) {
  if constexpr (std::is_integral_v<W>) return static_cast<W>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else return a + b;
}
template <class W>
W product_of(W a, W b) {
  if constexpr (std::is_integral_v<W>) return static_cast<W>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return a * b;
}
template <class W>
W log_of_sum(W total, W x) {
  const W low = std::isnan(total) ? total : std::min(x, total), high = std::isnan(total) ? total : std::max(x, total);
  return low != high || std::isfinite(low) ? std::log1p(std::exp(low - high)) + high : x;
}

// One line: the total stays in a register.
template <class E, class Combine>
void scan_line(const typename E::Stored* from, typename E::Stored* to, int64_t length, int64_t from_step, int64_t to_step,
               Wide<typename E::Computed> total, const Combine& combine) {
  using W = Wide<typename E::Computed>;
  for (int64_t i = 0; i < length; ++i) {
    total = combine(total, static_cast<W>(E::widen(from[i * from_step])));
    to[i * to_step] = E::narrow(static_cast<typename E::Computed>(total));
  }
}

// out[i] = combine of `first`, as a sum begins with a zero, and x[0 .. i], for the lines of a run.
template <class E, class Combine>
void scan_run(const typename E::Stored* x, typename E::Stored* out, int64_t length, const LineRun& r, Wide<typename E::Computed> first,
              const Combine& combine) {
  using W = Wide<typename E::Computed>;
  if (r.along[0] <= r.across[0] || r.lines == 1) {
    for (int64_t j = 0; j < r.lines; ++j)
      scan_line<E>(x + r.offset[0] + j * r.across[0], out + r.offset[1] + j * r.across[1], length, r.along[0], r.along[1], first, combine);
    return;
  }
  for (int64_t begin = 0; begin < r.lines; begin += kTogether) {
    const int64_t n = std::min(kTogether, r.lines - begin);
    const auto* from = x + r.offset[0] + begin * r.across[0];
    auto* to = out + r.offset[1] + begin * r.across[1];
    W totals[kTogether];
    std::fill_n(totals, n, first);
    for (int64_t i = 0; i < length; ++i, from += r.along[0], to += r.along[1])
      for (int64_t j = 0; j < n; ++j) {
        totals[j] = combine(totals[j], static_cast<W>(E::widen(from[j * r.across[0]])));
        to[j * r.across[1]] = E::narrow(static_cast<typename E::Computed>(totals[j]));
      }
  }
}

template <class E, class Combine>
RoutineFunction scan(size_t dim, int64_t work, Wide<typename E::Computed> first, const Combine& combine) {
  return [=](const RoutineArgs& args, const Threads& threads) {
    const RoutineTensor &x = args.operands[0], &out = args.results[0];
    const RoutineTensor* tensors[] = {&x, &out};
    const int64_t length = x.sizes[dim];
    if (!out.data || length == 0) return true;
    for_each_run(tensors, dim, length * work, threads, [&](const LineRun& r) {
      scan_run<E>(static_cast<const typename E::Stored*>(x.data), static_cast<typename E::Stored*>(out.data), length, r, first, combine);
    });
    return true;
  };
}

template <class E>
RoutineFunction arithmetic_scan(Op op, size_t dim) {
  using T = typename E::Computed;
  using W = Wide<T>;
  if constexpr (std::is_same_v<T, bool>) {
    return {};
  } else {
    if (op == Op::scan_sum) return scan<E>(dim, 1, W(0), [](W a, W b) { return sum_of(a, b); });
    if (op == Op::scan_prod) return scan<E>(dim, 1, W(1), [](W a, W b) { return product_of(a, b); });
    if constexpr (is_floating_v<T>) return scan<E>(dim, 32, -std::numeric_limits<W>::infinity(), [](W a, W b) { return log_of_sum(a, b); });
    else return {};
  }
}

// The best so far and where it is; a NaN is better than everything, and the later of equals than the earlier.
template <class E, bool largest>
RoutineFunction extremum_scan(size_t dim) {
  return [=](const RoutineArgs& args, const Threads& threads) {
    using Stored = typename E::Stored;
    const RoutineTensor &x = args.operands[0], &values = args.results[0], &positions = args.results[1];
    const RoutineTensor* tensors[] = {&x, values.data ? &values : nullptr, positions.data ? &positions : nullptr};
    const int64_t length = x.sizes[dim];
    for_each_run(tensors, dim, length, threads, [&](const LineRun& r) {
      for (int64_t j = 0; j < r.lines; ++j) {
        const auto* from = static_cast<const Stored*>(x.data) + r.offset[0] + j * r.across[0];
        auto* to = static_cast<Stored*>(values.data) + (values.data ? r.offset[1] + j * r.across[1] : 0);
        auto* at = static_cast<int64_t*>(positions.data) + (positions.data ? r.offset[2] + j * r.across[2] : 0);
        int64_t best = 0;
        for (int64_t i = 0; i < length; ++i) {
          const auto now = E::widen(from[i * r.along[0]]), before = E::widen(from[best * r.along[0]]);
          if (is_nan(now) || (!is_nan(before) && (largest ? now >= before : now <= before))) best = i;
          if (values.data) to[i * r.along[1]] = from[best * r.along[0]];
          if (positions.data) at[i * r.along[2]] = best;
        }
      }
    });
    return true;
  };
}

}  // namespace

RoutineFunction make_scan(const Operation& operation) {
  const auto dim = static_cast<size_t>(operation.integer(Attr::dim));
  return with_real_element(operation.operands[0].dtype, [&](auto element) -> RoutineFunction {
    using E = decltype(element);
    if (operation.op == Op::scan_max) return extremum_scan<E, true>(dim);
    if (operation.op == Op::scan_min) return extremum_scan<E, false>(dim);
    return arithmetic_scan<E>(operation.op, dim);
  });
}

}  // namespace broach::cpu
