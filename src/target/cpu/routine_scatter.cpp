// Scattered writes. Lines along the written dimension are independent of each other and run in parallel; within a line the
// writes happen in order, so that results do not depend on the number of threads.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "target/cpu/routine.h"
#include "target/cpu/routine_elements.h"

namespace broach::cpu {

namespace {

// ---- what a write does ----

template <class T>
struct Replace {
  static T apply(T, T by) { return by; }
};
template <class T>
struct Add {
  static T apply(T old, T by) {
    if constexpr (std::is_same_v<T, bool>) return old || by;
    else if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(by));
    else return old + by;
  }
};
template <class T>
struct Mul {
  static T apply(T old, T by) {
    if constexpr (std::is_same_v<T, bool>) return old && by;
    else if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(old) * static_cast<uint64_t>(by));
    else return old * by;
  }
};
template <class T>
struct Min {
  static T apply(T old, T by) { return is_nan(old) ? old : is_nan(by) || by < old ? by : old; }
};
template <class T>
struct Max {
  static T apply(T old, T by) { return is_nan(old) ? old : is_nan(by) || by > old ? by : old; }
};

template <class E, class Change>
void write(typename E::Stored& old, typename E::Stored by) {
  old = E::narrow(Change::apply(E::widen(old), E::widen(by)));
}

// ---- one run of lines: out, index, source ----

struct Tensors {
  const RoutineTensor &out, &index, &source;
  size_t dim;
};

// A whole row at one index: the index does not move from line to line.
template <class E, class Change>
void write_row(typename E::Stored* to, const typename E::Stored* by, const LineRun& r) {
  if (r.across[0] == 1 && r.across[2] == 1)
    for (int64_t j = 0; j < r.lines; ++j) write<E, Change>(to[j], by[j]);
  else
    for (int64_t j = 0; j < r.lines; ++j) write<E, Change>(to[j * r.across[0]], by[j * r.across[2]]);
}

// One line by itself; steps of one are by far the most frequent.
template <class E, class Change, class I>
bool write_line(typename E::Stored* to, const I* index, const typename E::Stored* by, int64_t length, int64_t limit, const LineRun& r) {
  auto walk = [&](int64_t to_step, int64_t index_step, int64_t by_step) {
    for (int64_t i = 0; i < length; ++i) {
      const auto at = static_cast<int64_t>(index[i * index_step]);
      if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(limit)) return false;
      write<E, Change>(to[at * to_step], by[i * by_step]);
    }
    return true;
  };
  if (r.along[0] == 1 && r.along[1] == 1 && r.along[2] == 1) return walk(1, 1, 1);
  return walk(r.along[0], r.along[1], r.along[2]);
}

template <class E, class Change, class I>
bool write_run(const Tensors& t, const LineRun& r) {
  auto* out = static_cast<typename E::Stored*>(t.out.data) + r.offset[0];
  const auto* index = static_cast<const I*>(t.index.data) + r.offset[1];
  const auto* source = static_cast<const typename E::Stored*>(t.source.data) + r.offset[2];
  const int64_t length = t.index.sizes[t.dim], limit = t.out.sizes[t.dim];
  auto inside = [&](int64_t at) { return at >= 0 && at < limit; };
  if (r.across[1] == 0 && r.lines > 1) {
    for (int64_t i = 0; i < length; ++i) {
      const auto at = static_cast<int64_t>(index[i * r.along[1]]);
      if (!inside(at)) return false;
      write_row<E, Change>(out + at * r.along[0], source + i * r.along[2], r);
    }
    return true;
  }
  auto write_at = [&](int64_t i, int64_t j) {
    const auto at = static_cast<int64_t>(index[i * r.along[1] + j * r.across[1]]);
    if (!inside(at)) return false;
    write<E, Change>(out[at * r.along[0] + j * r.across[0]], source[i * r.along[2] + j * r.across[2]]);
    return true;
  };
  if (r.along[1] <= r.across[1] || r.lines == 1) {
    for (int64_t j = 0; j < r.lines; ++j) {
      const bool whole = write_line<E, Change>(out + j * r.across[0], index + j * r.across[1], source + j * r.across[2], length, limit, r);
      if (!whole) return false;
    }
  } else {
    for (int64_t i = 0; i < length; ++i)
      for (int64_t j = 0; j < r.lines; ++j)
        if (!write_at(i, j)) return false;
  }
  return true;
}

// ---- the tensor that is written into starts as a copy ----

bool is_dense(const RoutineTensor& t) {
  int64_t elements = 1, reach = 1;
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    elements *= t.sizes[d];
    reach += (t.sizes[d] - 1) * t.strides[d];
  }
  return elements == reach;
}
// Whether its strides are those of another tensor; none: all zero.
bool has_strides(const RoutineTensor& t, const RoutineTensor* other) {
  for (size_t d = 0; d < t.sizes.size(); ++d)
    if (t.sizes[d] != 1 && t.strides[d] != (other ? other->strides[d] : 0)) return false;
  return true;
}

template <class S>
void copy_elements(const RoutineTensor& from, const RoutineTensor& to, const Threads& threads) {
  int64_t n = 1;
  for (int64_t s : from.sizes) n *= s;
  if (n == 0 || from.data == to.data) return;
  const bool one = has_strides(from, nullptr);  // element for all
  if (is_dense(to) && (one || has_strides(from, &to))) {
    S* const t = static_cast<S*>(to.data);
    const S* const f = static_cast<const S*>(from.data);
    constexpr int64_t kOperations = 6;  // as long as copying an element from memory
    threads.parallel_for(n, grain_for(n, kOperations, threads.count()), [&](int64_t b, int64_t e) {
      if (one) std::fill(t + b, t + e, *f);
      else std::memcpy(t + b, f + b, static_cast<size_t>(e - b) * sizeof(S));
    });
    return;
  }
  const RoutineTensor* both[] = {&to, &from};
  const size_t dim = from.sizes.size() - 1;
  for_each_run(both, dim, from.sizes[dim], threads, [&](const LineRun& r) {
    for (int64_t j = 0; j < r.lines; ++j) {
      auto* t = static_cast<S*>(to.data) + r.offset[0] + j * r.across[0];
      const auto* f = static_cast<const S*>(from.data) + r.offset[1] + j * r.across[1];
      for (int64_t i = 0; i < from.sizes[dim]; ++i) t[i * r.along[0]] = f[i * r.along[1]];
    }
  });
}

template <class E, class Change>
RoutineFunction scatter(size_t dim, bool wide_index) {
  return [=](const RoutineArgs& args, const Threads& threads) {
    const RoutineTensor &x = args.operands[0], &index = args.operands[1], &source = args.operands[2], &out = args.results[0];
    if (!out.data) return true;
    copy_elements<typename E::Stored>(x, out, threads);
    for (int64_t s : index.sizes)
      if (s == 0) return true;
    for (size_t d = 0; d < x.sizes.size(); ++d)
      if (d != dim && index.sizes[d] > x.sizes[d]) return false;
    // Walked by the sizes of the index, which may be smaller than what is written into.
    RoutineTensor written = out;
    written.sizes = index.sizes;
    const RoutineTensor* tensors[] = {&written, &index, &source};
    const Tensors all{out, index, source, dim};
    std::atomic<bool> valid{true};
    for_each_run(tensors, dim, 4 * index.sizes[dim], threads, [&](const LineRun& r) {
      if (!(wide_index ? write_run<E, Change, int64_t>(all, r) : write_run<E, Change, int32_t>(all, r))) valid = false;
    });
    return valid.load();
  };
}

// Replacing moves bits, whatever they mean.
RoutineFunction make_replacement(DType t, size_t dim, bool wide_index) {
  switch (size_of(t)) {
    case 1: return scatter<Plain<uint8_t>, Replace<uint8_t>>(dim, wide_index);
    case 2: return scatter<Plain<uint16_t>, Replace<uint16_t>>(dim, wide_index);
    case 4: return scatter<Plain<uint32_t>, Replace<uint32_t>>(dim, wide_index);
    case 8: return scatter<Plain<uint64_t>, Replace<uint64_t>>(dim, wide_index);
    default: return {};
  }
}

template <class S>
bool update(const RoutineArgs& args, const Threads& threads) {
  const RoutineTensor &x = args.operands[0], &source = args.operands[1], &out = args.results[0];
  if (!out.data) return true;
  copy_elements<S>(x, out, threads);
  RoutineTensor window = out;
  window.sizes = source.sizes;
  int64_t offset = 0;
  for (size_t d = 0; d < out.sizes.size(); ++d) offset += args.starts[d] * out.strides[d];
  window.data = static_cast<S*>(out.data) + offset;
  copy_elements<S>(source, window, threads);
  return true;
}

}  // namespace

RoutineFunction make_update(const Operation& operation) {
  if (operation.operands[0].rank() == 0) return {};
  switch (size_of(operation.operands[0].dtype)) {
    case 1: return update<uint8_t>;
    case 2: return update<uint16_t>;
    case 4: return update<uint32_t>;
    case 8: return update<uint64_t>;
    default: return {};
  }
}

RoutineFunction make_scatter(const Operation& operation) {
  const auto dim = static_cast<size_t>(operation.integer(Attr::dim));
  const DType type = operation.operands[0].dtype, index = operation.operands[1].dtype;
  if ((index != DType::i64 && index != DType::i32) || type == DType::opaque) return {};
  const bool wide = index == DType::i64;
  if (operation.op == Op::scatter) return make_replacement(type, dim, wide);
  return with_real_element(type, [&](auto element) -> RoutineFunction {
    using E = decltype(element);
    using T = typename E::Computed;
    switch (operation.op) {
      case Op::scatter_add: return scatter<E, Add<T>>(dim, wide);
      case Op::scatter_mul: return scatter<E, Mul<T>>(dim, wide);
      case Op::scatter_min: return scatter<E, Min<T>>(dim, wide);
      default: return scatter<E, Max<T>>(dim, wide);
    }
  });
}

}  // namespace broach::cpu
