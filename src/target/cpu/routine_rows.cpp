// Sums of rows by an index: the gradient of an embedding, perhaps added to what the same weight has from elsewhere. Positions are sorted by their row, so that each row is made by one thread, in the
// order of its positions, and rounded once, without a copy of all rows in a wider type.
#include <algorithm>
#include <numeric>

#include "target/cpu/routine.h"
#include "target/cpu/routine_elements.h"

namespace broach::cpu {

namespace {

// Positions by row; those of row v are order[begin[v]] to order[begin[v + 1] - 1]. False if an index is outside.
struct Positions {
  std::vector<int64_t> begin, order;
};
template <class I>
bool sort_positions(const RoutineTensor& index, int64_t rows, Positions& out) {
  const I* const at = static_cast<const I*>(index.data);
  const int64_t n = index.sizes[0], step = index.strides[0];
  out.begin.assign(static_cast<size_t>(rows) + 1, 0);
  for (int64_t p = 0; p < n; ++p) {
    const auto row = static_cast<int64_t>(at[p * step]);
    if (row < -1 || row >= rows) return false;
    if (row >= 0) ++out.begin[static_cast<size_t>(row) + 1];
  }
  std::partial_sum(out.begin.begin(), out.begin.end(), out.begin.begin());
  out.order.resize(static_cast<size_t>(out.begin.back()));
  std::vector<int64_t> next = out.begin;
  for (int64_t p = 0; p < n; ++p)
    if (const auto row = static_cast<int64_t>(at[p * step]); row >= 0) out.order[static_cast<size_t>(next[static_cast<size_t>(row)]++)] = p;
  return true;
}

// The sum of some rows' elements [first, first + count).
template <class E>
void add_rows(const RoutineTensor& source, std::span<const int64_t> positions, int64_t first, int64_t count, typename E::Computed* sums) {
  std::fill_n(sums, count, typename E::Computed(0));
  for (int64_t p : positions) {
    const auto* row = static_cast<const typename E::Stored*>(source.data) + p * source.strides[0] + first * source.strides[1];
    if (source.strides[1] == 1)
      for (int64_t j = 0; j < count; ++j) sums[j] += E::widen(row[j]);
    else
      for (int64_t j = 0; j < count; ++j) sums[j] += E::widen(row[j * source.strides[1]]);
  }
}

// What sums are added to: elements of row `row` from column `first` on, as they are computed with.
template <class T>
using StartFunction = void (*)(const RoutineTensor& x, int64_t row, int64_t first, int64_t count, T* out);

template <class T, class E>
void read_start(const RoutineTensor& x, int64_t row, int64_t first, int64_t count, T* out) {
  const auto* from = static_cast<const typename E::Stored*>(x.data) + row * x.strides[0] + first * x.strides[1];
  if (x.strides[1] == 1)
    for (int64_t j = 0; j < count; ++j) out[j] = static_cast<T>(E::widen(from[j]));
  else
    for (int64_t j = 0; j < count; ++j) out[j] = static_cast<T>(E::widen(from[j * x.strides[1]]));
}

struct Rows {
  const RoutineTensor &index, &source, &out;
  const RoutineTensor* start;  // null: nothing
};

// Elements [first, first + count) of one row; `sums` and `starts` have room for them.
template <class E>
void make_row(const Rows& rows, StartFunction<typename E::Computed> start, std::span<const int64_t> positions, int64_t row, int64_t first,
              int64_t count, typename E::Computed* sums, typename E::Computed* starts) {
  const RoutineTensor& out = rows.out;
  if (positions.empty() && start && rows.start->data == out.data) return;
  auto* to = static_cast<typename E::Stored*>(out.data) + row * out.strides[0] + first * out.strides[1];
  if (positions.empty() && !start && out.strides[1] == 1) return void(std::fill_n(to, count, typename E::Stored{}));
  if (!positions.empty() || !start) add_rows<E>(rows.source, positions, first, count, sums);
  if (start) {
    start(*rows.start, row, first, count, starts);
    for (int64_t j = 0; j < count && !positions.empty(); ++j) starts[j] += E::widen(E::narrow(sums[j]));
    sums = starts;
  }
  if (out.strides[1] == 1)
    for (int64_t j = 0; j < count; ++j) to[j] = E::narrow(sums[j]);
  else
    for (int64_t j = 0; j < count; ++j) to[j * out.strides[1]] = E::narrow(sums[j]);
}

template <class E, class I>
bool sum_rows(const Rows& r, StartFunction<typename E::Computed> start, const Threads& threads) {
  constexpr int64_t kBlock = 1024;  // elements of a row, whose sums stay in the first cache
  if (!r.out.data) return true;
  const int64_t rows = r.out.sizes[0], width = r.out.sizes[1], blocks = (width + kBlock - 1) / kBlock;
  Positions at;
  if (!sort_positions<I>(r.index, rows, at)) return false;
  const int64_t work = rows > 0 ? std::min(width, kBlock) * (1 + static_cast<int64_t>(at.order.size()) / rows) : 0;
  threads.parallel_for(
      rows * blocks, grain_for(rows * blocks, std::max<int64_t>(1, work), threads.count()), [&](int64_t begin, int64_t end) {
        std::vector<typename E::Computed> sums(static_cast<size_t>(2 * std::min(width, kBlock)));
        for (int64_t i = begin; i < end; ++i) {
          const auto row = static_cast<size_t>(i / blocks);
          const int64_t first = i % blocks * kBlock, count = std::min(kBlock, width - first);
          const std::span positions(at.order.data() + at.begin[row], static_cast<size_t>(at.begin[row + 1] - at.begin[row]));
          make_row<E>(r, start, positions, static_cast<int64_t>(row), first, count, sums.data(), sums.data() + sums.size() / 2);
        }
      });
  return true;
}

}  // namespace

RoutineFunction make_sum_rows(const Operation& operation) {
  const bool has_start = operation.op == Op::add_rows;
  const DType index = operation.operands[1].dtype, type = operation.results[0].dtype;
  if (index != DType::i64 && index != DType::i32) return {};
  return with_real_element(type, [&](auto element) -> RoutineFunction {
    using E = decltype(element);
    using T = typename E::Computed;
    if constexpr (!std::is_floating_point_v<T>) return {};
    else {
      StartFunction<T> start = nullptr;
      if (has_start) {
        start = with_real_element(operation.operands[0].dtype, [](auto x) -> StartFunction<T> { return read_start<T, decltype(x)>; });
        if (!start) return {};
      }
      return [=](const RoutineArgs& args, const Threads& threads) {
        const Rows rows{args.operands[1], args.operands[has_start ? 2 : 0], args.results[0], has_start ? &args.operands[0] : nullptr};
        return index == DType::i64 ? sum_rows<E, int64_t>(rows, start, threads) : sum_rows<E, int32_t>(rows, start, threads);
      };
    }
  });
}

}  // namespace broach::cpu
