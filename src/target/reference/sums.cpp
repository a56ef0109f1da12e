#include "target/reference/sums.h"

#include "target/reference/scalar.h"

namespace broach::reference {

namespace {

// The type in which sums of T are taken.
template <class T>
struct Wide {
  using type = uint64_t;
};
template <>
struct Wide<bool> {
  using type = bool;
};
template <>
struct Wide<float> {
  using type = double;
};
template <>
struct Wide<double> {
  using type = long double;
};
template <>
struct Wide<std::complex<float>> {
  using type = std::complex<double>;
};
template <>
struct Wide<std::complex<double>> {
  using type = std::complex<long double>;
};

// One reduction of elements that come in row-major order.
template <class T>
class Reduction {
 public:
  explicit Reduction(Op op) : op_(op) {}

  void add(T x, int64_t position) {
    if (op_ == Op::reduce_sum) sum_ = plus(sum_, wide(x));
    else if (op_ == Op::reduce_prod) product_ = times(product_, wide(x));
    else if (count_ == 0 || replaces(x)) best_ = x, where_ = position;
    ++count_;
  }
  T value() const {
    if (op_ == Op::reduce_sum) return static_cast<T>(sum_);
    if (op_ == Op::reduce_prod) return static_cast<T>(product_);
    if (is_bool_v<T> && count_ == 0) return static_cast<T>(op_ == Op::reduce_min);
    check(count_ > 0, "not defined for no elements");
    return best_;
  }
  int64_t position() const {
    check(count_ > 0, "not defined for no elements");
    return where_;
  }

 private:
  using W = typename Wide<T>::type;
  static W wide(T x) { return static_cast<W>(x); }
  static W plus(W a, W b) {
    if constexpr (is_bool_v<T>) return a || b;
    else return a + b;
  }
  static W times(W a, W b) {
    if constexpr (is_bool_v<T>) return a && b;
    else return a * b;
  }
  // Whether x takes the place of the best so far: the first NaN stays, and so does the first of equals.
  bool replaces(T x) const {
    if constexpr (is_complex_v<T>) undefined(op_, "complex numbers");
    else if (is_nan(best_) || is_nan(x)) return !is_nan(best_);
    else return op_ == Op::reduce_min || op_ == Op::reduce_argmin ? x < best_ : x > best_;
  }

  Op op_;
  W sum_{0}, product_{1};
  T best_{};
  int64_t where_ = 0, count_ = 0;
};

// The position in x that kernel element k meets in output element o, along one dimension; -1 where there is none.
struct Window {
  int64_t stride, padding, dilation, size;
  bool transposed;
  int64_t at(int64_t o, int64_t k) const {
    int64_t i = transposed ? o + padding - k * dilation : o * stride - padding + k * dilation;
    if (transposed && i % stride != 0) return -1;
    if (transposed) i /= stride;
    return i >= 0 && i < size ? i : -1;
  }
};

}  // namespace

void reduce(const Node& n, const HostTensor& x, HostTensor& out) {
  const Sizes from = x.sizes(), kept = out.sizes();
  // Strides of each dimension of x in the result and in the row-major order of the reduced dimensions.
  Sizes reduced;
  std::vector<bool> is_reduced(from.size());
  for (int64_t d : n.ints(Attr::dims)) is_reduced[static_cast<size_t>(d)] = true;
  for (size_t d = 0; d < from.size(); ++d)
    if (is_reduced[d]) reduced.push_back(from[d]);
  Sizes out_strides(from.size()), position_strides(from.size()), a = strides_of(kept), b = strides_of(reduced);
  for (size_t d = 0, i = 0, j = 0; d < from.size(); ++d)
    (is_reduced[d] ? position_strides[d] : out_strides[d]) = is_reduced[d] ? b[j++] : a[i++];
  with_element(x.type.dtype, [&](auto element) {
    using E = decltype(element);
    std::vector<Reduction<typename E::Computed>> parts(static_cast<size_t>(out.numel()), Reduction<typename E::Computed>(n.op));
    for_each_index(from, [&](const Sizes& index, int64_t i) {
      parts[static_cast<size_t>(dot_product(index, out_strides))].add(load<E>(x.bytes.data(), i), dot_product(index, position_strides));
    });
    for (int64_t i = 0; i < out.numel(); ++i) {
      const auto& part = parts[static_cast<size_t>(i)];
      if (is_index_reduction(n.op)) store<Plain<int64_t>>(out.bytes.data(), i, part.position());
      else store<E>(out.bytes.data(), i, part.value());
    }
  });
}

void multiply(const Node& n, const HostTensor& a, const HostTensor& b, HostTensor& out) {
  const auto batch = static_cast<size_t>(n.integer(Attr::batch));
  const Sizes a_sizes = a.sizes(), b_sizes = b.sizes(), a_strides = strides_of(a_sizes), b_strides = strides_of(b_sizes);
  const int64_t depth = a_sizes.back();
  with_element(a.type.dtype, [&](auto element) {
    using E = decltype(element);
    using W = typename Wide<typename E::Computed>::type;
    if constexpr (is_bool_v<W>) undefined(n.op, "b1");
    else
      for_each_index(out.sizes(), [&](const Sizes& index, int64_t i) {
        std::span at(index);
        const int64_t row = dot_product(at.first(index.size() - 1), a_strides);
        const int64_t column = dot_product(at.first(batch), b_strides) + index.back();
        W sum{};
        for (int64_t k = 0; k < depth; ++k)
          sum += static_cast<W>(load<E>(a.bytes.data(), row + k)) * static_cast<W>(load<E>(b.bytes.data(), column + k * b_strides[batch]));
        store<E>(out.bytes.data(), i, static_cast<typename E::Computed>(sum));
      });
  });
}

void convolve(const Node& n, const HostTensor& x, const HostTensor& w, const HostTensor* bias, const Sizes& padding, HostTensor& out) {
  const bool transposed = n.integer(Attr::transposed) != 0;
  const int64_t groups = n.integer(Attr::groups);
  const Sizes x_sizes = x.sizes(), w_sizes = w.sizes(), x_strides = strides_of(x_sizes), w_strides = strides_of(w_sizes);
  const Sizes kernel(w_sizes.begin() + 2, w_sizes.end());
  const int64_t in_per_group = x_sizes[1] / groups, out_per_group = out.sizes()[1] / groups;
  std::vector<Window> windows;
  for (size_t d = 0; d < kernel.size(); ++d)
    windows.push_back({n.ints(Attr::stride)[d], padding[d], n.ints(Attr::dilation)[d], x_sizes[d + 2], transposed});
  with_element(x.type.dtype, [&](auto element) {
    using E = decltype(element);
    using W = typename Wide<typename E::Computed>::type;
    if constexpr (is_bool_v<W>) undefined(n.op, "b1");
    else
      for_each_index(out.sizes(), [&](const Sizes& o, int64_t i) {
        const int64_t group = o[1] / out_per_group;
        W sum = bias ? static_cast<W>(load<E>(bias->bytes.data(), o[1])) : W{};
        for_each_index(kernel, [&](const Sizes& k, int64_t kernel_position) {
          int64_t at = o[0] * x_strides[0];
          for (size_t d = 0; d < k.size(); ++d) {
            const int64_t position = windows[d].at(o[d + 2], k[d]);
            if (position < 0) return;
            at += position * x_strides[d + 2];
          }
          for (int64_t c = 0; c < in_per_group; ++c) {
            const int64_t channel = group * in_per_group + c;
            const int64_t weight =
                transposed ? channel * w_strides[0] + o[1] % out_per_group * w_strides[1] : o[1] * w_strides[0] + c * w_strides[1];
            sum += static_cast<W>(load<E>(x.bytes.data(), at + channel * x_strides[1])) *
                   static_cast<W>(load<E>(w.bytes.data(), weight + kernel_position));
          }
        });
        store<E>(out.bytes.data(), i, static_cast<typename E::Computed>(sum));
      });
  });
}

void convolve_to_weight(const Node& n, const HostTensor& x, const HostTensor& y, const Sizes& padding, HostTensor& out) {
  const int64_t groups = n.integer(Attr::groups);
  const Sizes x_sizes = x.sizes(), y_sizes = y.sizes(), x_strides = strides_of(x_sizes), y_strides = strides_of(y_sizes);
  Sizes points(y_sizes.begin() + 2, y_sizes.end());
  points.insert(points.begin(), y_sizes[0]);
  const int64_t in_per_group = x_sizes[1] / groups, out_per_group = y_sizes[1] / groups;
  std::vector<Window> windows;
  for (size_t d = 0; d + 2 < x_sizes.size(); ++d)
    windows.push_back({n.ints(Attr::stride)[d], padding[d], n.ints(Attr::dilation)[d], x_sizes[d + 2], false});
  with_element(x.type.dtype, [&](auto element) {
    using E = decltype(element);
    using W = typename Wide<typename E::Computed>::type;
    if constexpr (is_bool_v<W>) undefined(n.op, "b1");
    else
      for_each_index(out.sizes(), [&](const Sizes& w, int64_t i) {
        const int64_t channel = w[0] / out_per_group * in_per_group + w[1];
        W sum{};
        for_each_index(points, [&](const Sizes& at, int64_t) {
          int64_t from = at[0] * x_strides[0] + channel * x_strides[1], to = at[0] * y_strides[0] + w[0] * y_strides[1];
          for (size_t d = 0; d < windows.size(); ++d) {
            const int64_t position = windows[d].at(at[d + 1], w[d + 2]);
            if (position < 0) return;
            from += position * x_strides[d + 2];
            to += at[d + 1] * y_strides[d + 2];
          }
          sum += static_cast<W>(load<E>(x.bytes.data(), from)) * static_cast<W>(load<E>(y.bytes.data(), to));
        });
        store<E>(out.bytes.data(), i, static_cast<typename E::Computed>(sum));
      });
  });
}

}  // namespace broach::reference
