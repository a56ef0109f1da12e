#include "target/reference/interpreter.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "support/error.h"
#include "target/reference/indices.h"
#include "target/reference/routines.h"
#include "target/reference/scalar.h"
#include "target/reference/sums.h"

namespace broach {

namespace reference {
namespace {

// Of three of one floating type.
HostTensor fma(const HostTensor& a, const HostTensor& b, const HostTensor& c) {
  HostTensor out = a;
  with_element(a.type.dtype, [&](auto element) {
    using E = decltype(element);
    auto at = [](const HostTensor& x, int64_t i) { return load<E>(x.bytes.data(), i); };
    if constexpr (std::is_floating_point_v<typename E::Computed>)
      for (int64_t i = 0; i < out.numel(); ++i) store<E>(out.bytes.data(), i, std::fma(at(a, i), at(b, i), at(c, i)));
  });
  return out;
}

// Runs one graph: the values of its symbols and nodes so far.
class Run {
 public:
  Run(const Graph& graph, std::span<const HostTensor> inputs, std::span<const int64_t> symbols, const ExternHandler& handler)
      : graph_(graph), inputs_(inputs), handler_(handler), values_(graph.nodes().size()) {
    take_inputs(symbols);
  }

  std::vector<HostTensor> outputs() {
    for (const Node& n : graph_.nodes()) {
      try {
        values_[n.id] = evaluate(n);
      } catch (const Error& e) {
        fail("%", n.id, " (", name_of(n.op), "): ", e.what());
      }
    }
    std::vector<HostTensor> out;
    for (const Value& v : graph_.outputs()) out.push_back(value(v));
    return out;
  }

 private:
  void take_inputs(std::span<const int64_t> symbols) {
    check(inputs_.size() == graph_.inputs().size(), "the graph has ", graph_.inputs().size(), " inputs, ", inputs_.size(), " are given");
    const auto& infos = graph_.symbols()->infos();
    for (size_t i = 0; i < infos.size(); ++i) {
      auto& s = symbols_.emplace_back();
      if (i < symbols.size()) s = symbols[i];
      else if (infos[i].input >= 0) s = inputs_[static_cast<size_t>(infos[i].input)].sizes().at(static_cast<size_t>(infos[i].dim));
    }
  }

  // ---- access ----

  int64_t eval(const SymInt& e) const {
    return e.eval([&](SymbolId id) {
      check(id < symbols_.size() && symbols_[id].has_value(), "symbol ", SymInt::symbol(id), " has no value");
      return *symbols_[id];
    });
  }
  Sizes eval(const Shape& shape) const {
    Sizes out;
    for (const SymInt& s : shape) out.push_back(eval(s));
    return out;
  }
  Sizes sizes_of(const Type& t) const {
    Sizes sizes = eval(t.shape);
    for (int64_t s : sizes) check(s >= 0, "a size of ", t.str(), " is ", s);
    return sizes;
  }
  HostTensor result_of(const Node& n) const { return zeros(n.results[0].dtype, sizes_of(n.results[0]), n.results[0].device); }
  const HostTensor& value(const Value& v) const { return values_[v.node->id][v.index]; }
  const HostTensor& operand(const Node& n, size_t i) const { return value(n.inputs[i]); }

  std::vector<HostTensor> evaluate(const Node& n) {
    switch (kind_of(n.op)) {
      case OpKind::source: return {source(n)};
      case OpKind::unary: return {map_unary(n)};
      case OpKind::binary: return {map_binary(n)};
      case OpKind::compare: return {map_compare(n)};
      case OpKind::ternary: return {n.op == Op::where ? where(n) : fma(operand(n, 0), operand(n, 1), operand(n, 2))};
      case OpKind::cast: return {n.op == Op::cast ? cast(n) : same_bytes(n)};
      case OpKind::view: return {view(n)};
      case OpKind::heavy_view: return {take(n)};
      case OpKind::reduce: return {sum(n)};
      case OpKind::heavy: return {sum(n)};
      case OpKind::routine: return routine(n);
      default: return call(n);
    }
  }

  // ---- sources ----

  HostTensor source(const Node& n) const {
    HostTensor out = n.op == Op::input ? input(n) : result_of(n);
    if (n.op == Op::scalar) out.set(0, n.get<Scalar>(Attr::value));
    if (n.op == Op::size) out.set(0, eval(n.get<SymInt>(Attr::expr)));
    if (n.op == Op::iota) {
      auto dim = static_cast<size_t>(n.integer(Attr::dim));
      for_each_index(out.sizes(), [&](const Sizes& index, int64_t i) { out.set(i, index[dim]); });
    }
    return out;
  }
  HostTensor input(const Node& n) const {
    const HostTensor& x = inputs_[static_cast<size_t>(n.integer(Attr::index))];
    check(x.type.dtype == n.results[0].dtype && x.sizes() == sizes_of(n.results[0]), "is ", x.type.str(), ", expected ",
          n.results[0].str());
    return x;
  }

  // ---- elementwise ----

  HostTensor map_unary(const Node& n) const {
    const HostTensor& x = operand(n, 0);
    HostTensor out = result_of(n);
    with_element(x.type.dtype, [&](auto element) {
      using E = decltype(element);
      for (int64_t i = 0; i < out.numel(); ++i) store<E>(out.bytes.data(), i, unary(n.op, load<E>(x.bytes.data(), i)));
    });
    return out;
  }
  HostTensor map_binary(const Node& n) const {
    const HostTensor &a = operand(n, 0), &b = operand(n, 1);
    HostTensor out = result_of(n);
    with_element(a.type.dtype, [&](auto element) {
      using E = decltype(element);
      for (int64_t i = 0; i < out.numel(); ++i)
        store<E>(out.bytes.data(), i, binary_of<E>(n.op, load<E>(a.bytes.data(), i), load<E>(b.bytes.data(), i)));
    });
    return out;
  }
  HostTensor map_compare(const Node& n) const {
    const HostTensor &a = operand(n, 0), &b = operand(n, n.inputs.size() - 1);
    HostTensor out = result_of(n);
    with_element(a.type.dtype, [&](auto element) {
      using E = decltype(element);
      for (int64_t i = 0; i < out.numel(); ++i) {
        auto x = load<E>(a.bytes.data(), i), y = load<E>(b.bytes.data(), i);
        store<Bool>(out.bytes.data(), i, n.op == Op::is_nan ? is_nan(x) : compare(n.op, x, y));
      }
    });
    return out;
  }
  HostTensor where(const Node& n) const {
    const HostTensor& condition = operand(n, 0);
    HostTensor out = result_of(n);
    for (int64_t i = 0; i < out.numel(); ++i) move(operand(n, load<Bool>(condition.bytes.data(), i) ? 1 : 2), i, out, i);
    return out;
  }
  HostTensor cast(const Node& n) const {
    const HostTensor& x = operand(n, 0);
    HostTensor out = result_of(n);
    with_element(x.type.dtype, [&](auto from) {
      with_element(out.type.dtype, [&](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        for (int64_t i = 0; i < out.numel(); ++i)
          store<To>(out.bytes.data(), i, convert<typename To::Computed>(load<From>(x.bytes.data(), i)));
      });
    });
    return out;
  }

  // ---- movement: element by element, whatever the element is ----

  static void move(const HostTensor& from, int64_t i, HostTensor& to, int64_t j) {
    auto size = static_cast<size_t>(size_of(to.type.dtype));
    std::copy_n(&from.bytes[static_cast<size_t>(i) * size], size, &to.bytes[static_cast<size_t>(j) * size]);
  }
  // Element `index` of the result is element source(index) of x; where that is negative the result stays as it is.
  template <class F>
  static void gather(const HostTensor& x, HostTensor& out, const F& source) {
    for_each_index(out.sizes(), [&](const Sizes& index, int64_t i) {
      if (int64_t from = source(index); from >= 0) move(x, from, out, i);
    });
  }
  HostTensor same_bytes(const Node& n) const {
    HostTensor out = result_of(n);
    check(operand(n, 0).bytes.size() == out.bytes.size(), operand(n, 0).type.str(), " has not the elements of ", out.type.str());
    out.bytes = operand(n, 0).bytes;
    return out;
  }

  HostTensor view(const Node& n) const {
    switch (n.op) {
      case Op::reshape: return same_bytes(n);
      case Op::permute: return permute(n);
      case Op::expand: return expand(n);
      case Op::slice: return slice(n);
      case Op::pad: return pad(n);
      default: return concatenate(n);
    }
  }
  HostTensor permute(const Node& n) const {
    HostTensor out = result_of(n);
    Sizes strides = strides_of(operand(n, 0).sizes()), permuted;
    for (int64_t d : n.ints(Attr::dims)) permuted.push_back(strides[static_cast<size_t>(d)]);
    gather(operand(n, 0), out, [&](const Sizes& index) { return dot_product(index, permuted); });
    return out;
  }
  HostTensor expand(const Node& n) const {
    HostTensor out = result_of(n);
    const Sizes from = operand(n, 0).sizes(), to = out.sizes();
    Sizes strides = strides_of(from);
    for (size_t d = 0; d < to.size(); ++d) {
      check(from[d] == to[d] || from[d] == 1, operand(n, 0).type.str(), " cannot become ", out.type.str());
      if (from[d] == 1) strides[d] = 0;
    }
    gather(operand(n, 0), out, [&](const Sizes& index) { return dot_product(index, strides); });
    return out;
  }
  HostTensor slice(const Node& n) const {
    HostTensor out = result_of(n);
    const Sizes starts = eval(n.sizes(Attr::starts)), from = operand(n, 0).sizes(), to = out.sizes(), strides = strides_of(from);
    const auto& steps = n.ints(Attr::steps);
    for (size_t d = 0; d < to.size(); ++d) {
      const int64_t last = starts[d] + (to[d] - 1) * steps[d];
      check(to[d] == 0 || (starts[d] >= 0 && starts[d] < from[d] && last >= 0 && last < from[d]), "elements ", starts[d], " to ", last,
            " of dimension ", d, ", whose size is ", from[d]);
    }
    gather(operand(n, 0), out, [&](const Sizes& index) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) at += (starts[d] + index[d] * steps[d]) * strides[d];
      return at;
    });
    return out;
  }
  // A negative border cuts elements off.
  HostTensor pad(const Node& n) const {
    HostTensor out = result_of(n);
    const Sizes low = eval(n.sizes(Attr::low)), from = operand(n, 0).sizes(), strides = strides_of(from);
    for (int64_t i = 0; i < out.numel(); ++i) out.set(i, n.get<Scalar>(Attr::value));
    gather(operand(n, 0), out, [&](const Sizes& index) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) {
        const int64_t i = index[d] - low[d];
        if (i < 0 || i >= from[d]) return int64_t{-1};
        at += i * strides[d];
      }
      return at;
    });
    return out;
  }
  HostTensor concatenate(const Node& n) const {
    HostTensor out = result_of(n);
    const auto dim = static_cast<size_t>(n.integer(Attr::dim));
    int64_t begin = 0;
    for (size_t k = 0; k < n.inputs.size(); begin += operand(n, k++).sizes()[dim]) {
      const Sizes from = operand(n, k).sizes(), strides = strides_of(from);
      gather(operand(n, k), out, [&](const Sizes& index) {
        bool inside = index[dim] >= begin && index[dim] < begin + from[dim];
        return inside ? dot_product(index, strides) - begin * strides[dim] : -1;
      });
    }
    return out;
  }
  HostTensor take(const Node& n) const {
    HostTensor out = result_of(n);
    const HostTensor &x = operand(n, 0), &indices = operand(n, 1);
    const auto dim = static_cast<size_t>(n.integer(Attr::dim));
    const auto [first, last] = dims_of_positions(n);
    const Sizes from = x.sizes(), strides = strides_of(from), index_strides = strides_of(indices.sizes());
    gather(x, out, [&](const Sizes& index) {
      std::span at(index);
      const int64_t i = as_int(indices.at(dot_product(at.subspan(first, last - first), index_strides)));
      check(i >= 0 && i < from[dim], "index ", i, " is outside dimension ", dim, ", whose size is ", from[dim]);
      return dot_product(at.first(dim), strides) + i * strides[dim] + dot_product(at.subspan(last), std::span(strides).subspan(dim + 1));
    });
    return out;
  }

  // ---- whole tensors ----

  HostTensor sum(const Node& n) const {
    HostTensor out = result_of(n);
    if (is_reduce(n.op)) reduce(n, operand(n, 0), out);
    else if (n.op == Op::dot) multiply(n, operand(n, 0), operand(n, 1), out);
    else if (n.op == Op::conv_weight_gradient) convolve_to_weight(n, operand(n, 0), operand(n, 1), eval(n.sizes(Attr::padding)), out);
    else convolve(n, operand(n, 0), operand(n, 1), n.inputs.size() > 2 ? &operand(n, 2) : nullptr, eval(n.sizes(Attr::padding)), out);
    return out;
  }

  std::vector<HostTensor> routine(const Node& n) const {
    std::vector<const HostTensor*> operands;
    for (const Value& v : n.inputs) operands.push_back(&value(v));
    std::vector<HostTensor> results;
    for (const Type& t : n.results) results.push_back(zeros(t.dtype, sizes_of(t), t.device));
    std::vector<int64_t> starts;
    if (n.attrs.contains(Attr::starts))
      for (const SymInt& s : n.sizes(Attr::starts)) starts.push_back(eval(s));
    run_routine(n, operands, n.attrs.contains(Attr::k) ? eval(n.get<SymInt>(Attr::k)) : 0, starts, results);
    return results;
  }

  // ---- extern calls ----

  std::vector<HostTensor> call(const Node& n) {
    check(handler_ != nullptr, "no handler for ", n.call().schema);
    std::vector<HostTensor> inputs;
    for (const Value& v : n.inputs) inputs.push_back(value(v));
    std::vector<HostTensor> results = handler_(n, inputs);
    check(results.size() == n.results.size(), n.call().schema, " gave ", results.size(), " results, expected ", n.results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      bind_symbols(n.results[i], results[i].sizes());
      check(results[i].type.dtype == n.results[i].dtype && results[i].sizes() == sizes_of(n.results[i]), n.call().schema, " gave ",
            results[i].type.str(), ", expected ", n.results[i].str());
    }
    return results;
  }
  // Sizes that only this call knows.
  void bind_symbols(const Type& type, const Sizes& sizes) {
    for (size_t d = 0; d < std::min(sizes.size(), type.shape.size()); ++d)
      if (auto id = type.shape[d].as_symbol(); id && graph_.symbols()->infos()[*id].input < 0) symbols_[*id] = sizes[d];
  }

  const Graph& graph_;
  std::span<const HostTensor> inputs_;
  const ExternHandler& handler_;
  std::vector<std::optional<int64_t>> symbols_;
  std::vector<std::vector<HostTensor>> values_;
};

}  // namespace
}  // namespace reference

std::vector<int64_t> HostTensor::sizes() const {
  std::vector<int64_t> out;
  for (const SymInt& s : type.shape) out.push_back(s.constant());
  return out;
}

int64_t HostTensor::numel() const { return reference::count(sizes()); }

Scalar HostTensor::at(int64_t i) const {
  return with_element(type.dtype, [&](auto element) -> Scalar {
    using T = typename decltype(element)::Computed;
    T x = reference::load<decltype(element)>(bytes.data(), i);
    if constexpr (reference::is_complex_v<T>) return std::complex<double>(x);
    else if constexpr (reference::is_bool_v<T>) return x;
    else if constexpr (std::is_integral_v<T>) return int64_t{x};
    else return double{x};
  });
}

void HostTensor::set(int64_t i, const Scalar& value) {
  with_element(type.dtype, [&](auto element) {
    using E = decltype(element);
    reference::store<E>(bytes.data(), i, reference::convert<typename E::Computed>(value));
  });
}

HostTensor zeros(DType dtype, std::span<const int64_t> sizes, Device device) {
  auto bytes = static_cast<size_t>(reference::count(sizes) * size_of(dtype));
  return {Type{dtype, Shape(sizes.begin(), sizes.end()), device}, std::vector<std::byte>(bytes)};
}

std::vector<HostTensor> interpret(const Graph& graph, std::span<const HostTensor> inputs, std::span<const int64_t> symbol_values,
                                  const ExternHandler& extern_handler) {
  return reference::Run(graph, inputs, symbol_values, extern_handler).outputs();
}

}  // namespace broach
