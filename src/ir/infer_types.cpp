// What types the results of an operation have, and whether its operands and attributes fit.
#include <algorithm>

#include "ir/graph.h"
#include "support/error.h"

namespace broach {

namespace {

Shape without(const Shape& shape, const std::vector<int64_t>& dims) {
  Shape out;
  for (size_t i = 0; i < shape.size(); ++i)
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) == dims.end()) out.push_back(shape[i]);
  return out;
}

// A type that is spelled only if the check it is given to fails.
struct Shown {
  const Type& type;
  friend std::ostream& operator<<(std::ostream& out, const Shown& s) { return out << s.type.str(); }
};

struct Inference {
  Op op;
  std::span<const Value> in;
  const Attrs& attrs;

  template <class T>
  const T& get(Attr a) const {
    auto it = attrs.find(a);
    check(it != attrs.end() && std::holds_alternative<T>(it->second), name_of(op), ": attribute ", name_of(a),
          " is missing or of another type");
    return std::get<T>(it->second);
  }
  // Constants live on the CPU: an operand elsewhere decides.
  Device device() const {
    for (const Value& v : in)
      if (v.type().device.kind != DeviceKind::cpu) return v.type().device;
    return in[0].type().device;
  }
  Type like(const Value& v, Shape shape) const { return {v.dtype(), std::move(shape), device()}; }

  void same(const Value& a, const Value& b, bool dtypes) const {
    check(a.shape() == b.shape(), name_of(op), ": shapes differ: ", Shown{a.type()}, " and ", Shown{b.type()});
    check(!dtypes || a.dtype() == b.dtype(), name_of(op), ": element types differ: ", Shown{a.type()}, " and ", Shown{b.type()});
  }

  void distinct(const std::vector<int64_t>& dims, const Value& x) const {
    for (size_t i = 0; i < dims.size(); ++i) {
      check(dims[i] >= 0 && dims[i] < x.rank(), name_of(op), ": ", Shown{x.type()}, " has no dimension ", dims[i]);
      check(std::find(dims.begin(), dims.begin() + static_cast<int64_t>(i), dims[i]) == dims.begin() + static_cast<int64_t>(i), name_of(op),
            ": dimension ", dims[i], " is named twice");
    }
  }

  Device named_device() const {
    return {static_cast<DeviceKind>(get<int64_t>(Attr::device_kind)), static_cast<int8_t>(get<int64_t>(Attr::index))};
  }

  Type elementwise() const {
    OpKind k = kind_of(op);
    if (op == Op::where) {
      check(in[0].dtype() == DType::b1, "where: the condition is ", Shown{in[0].type()}, ", not b1");
      same(in[0], in[1], false);
      same(in[1], in[2], true);
      return like(in[1], in[1].shape());
    }
    for (const auto& v : in) same(in[0], v, true);
    check(op != Op::fma || is_floating(in[0].dtype()), "fma: of ", Shown{in[0].type()}, ", not of floating numbers");
    Type t = like(in[0], in[0].shape());
    if (op == Op::place) t.device = named_device();
    if (k == OpKind::compare) t.dtype = DType::b1;
    if (k == OpKind::cast) t.dtype = get<DType>(Attr::dtype);
    check(op != Op::bitcast || size_of(t.dtype) == size_of(in[0].dtype()), "bitcast: ", Shown{in[0].type()}, " and ", name_of(t.dtype),
          " differ in size");
    return t;
  }

  Type view() const {
    const Shape& x = in[0].shape();
    switch (op) {
      case Op::reshape: {
        const auto& shape = get<Shape>(Attr::shape);
        check(product(shape) == product(x), "reshape: ", Shown{in[0].type()}, " has not the elements of ", Shown{like(in[0], shape)});
        return like(in[0], shape);
      }
      case Op::permute: {
        Shape out;
        const auto& dims = get<std::vector<int64_t>>(Attr::dims);
        check(dims.size() == x.size(), "permute: ", dims.size(), " dimensions given for ", Shown{in[0].type()});
        distinct(dims, in[0]);
        for (int64_t d : dims) out.push_back(x[static_cast<size_t>(d)]);
        return like(in[0], out);
      }
      case Op::expand: {
        const auto& shape = get<Shape>(Attr::shape);
        check(shape.size() == x.size(), "expand: rank of ", Shown{in[0].type()}, " differs from the result's");
        for (size_t i = 0; i < x.size(); ++i)
          check(x[i] == shape[i] || x[i] == SymInt(1), "expand: ", Shown{in[0].type()}, " cannot become ", Shown{like(in[0], shape)});
        return like(in[0], shape);
      }
      case Op::slice: {
        const auto& shape = get<Shape>(Attr::shape);
        check(shape.size() == x.size() && get<Shape>(Attr::starts).size() == x.size() &&
                  get<std::vector<int64_t>>(Attr::steps).size() == x.size(),
              "slice: the ranks of the attributes differ from ", Shown{in[0].type()});
        return like(in[0], shape);
      }
      case Op::pad: {
        Shape out = x;
        const auto &low = get<Shape>(Attr::low), &high = get<Shape>(Attr::high);
        (void)get<Scalar>(Attr::value);
        check(low.size() == x.size() && high.size() == x.size(), "pad: the ranks of the attributes differ from ", Shown{in[0].type()});
        for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] + low[i] + high[i];
        return like(in[0], out);
      }
      default: return cat_type();
    }
  }

  Type cat_type() const {
    size_t dim = static_cast<size_t>(get<int64_t>(Attr::dim));
    check(!in.empty() && dim < in[0].shape().size(), "cat: no operand, or no such dimension");
    Shape out = in[0].shape();
    for (size_t i = 1; i < in.size(); ++i) {
      check(in[i].dtype() == in[0].dtype() && in[i].rank() == in[0].rank(), "cat: ", Shown{in[i].type()}, " does not fit ",
            Shown{in[0].type()});
      for (size_t d = 0; d < out.size(); ++d)
        check(d == dim || in[i].shape()[d] == out[d], "cat: ", Shown{in[i].type()}, " does not fit ", Shown{in[0].type()});
      out[dim] = out[dim] + in[i].shape()[dim];
    }
    return like(in[0], out);
  }

  Type take() const {
    size_t dim = static_cast<size_t>(get<int64_t>(Attr::dim));
    const Shape& x = in[0].shape();
    check(dim < x.size() && is_integral(in[1].dtype()), name_of(op), ": bad dimension or index type ", Shown{in[1].type()});
    const Shape& at = in[1].shape();
    Shape out(x.begin(), x.begin() + static_cast<int64_t>(dim));
    if (op == Op::pick) {
      check(dim <= at.size() && std::equal(out.begin(), out.end(), at.begin()), "pick: ", Shown{in[1].type()}, " does not fit ",
            Shown{in[0].type()});
      out.clear();
    }
    out.insert(out.end(), at.begin(), at.end());
    out.insert(out.end(), x.begin() + static_cast<int64_t>(dim) + 1, x.end());
    return like(in[0], out);
  }

  Type reduction() const {
    distinct(get<std::vector<int64_t>>(Attr::dims), in[0]);
    Type t = like(in[0], without(in[0].shape(), get<std::vector<int64_t>>(Attr::dims)));
    if (is_index_reduction(op)) t.dtype = DType::i64;
    return t;
  }

  Type dot() const {
    const Shape &a = in[0].shape(), &b = in[1].shape();
    size_t batch = static_cast<size_t>(get<int64_t>(Attr::batch));
    check(b.size() == batch + 2 && a.size() >= batch + 1 && a.back() == b[batch] && in[0].dtype() == in[1].dtype(),
          "dot: ", Shown{in[0].type()}, " and ", Shown{in[1].type()}, " do not fit with ", batch, " batch dimensions");
    for (size_t i = 0; i < batch; ++i) check(a[i] == b[i], "dot: batch sizes differ: ", Shown{in[0].type()}, " and ", Shown{in[1].type()});
    Shape out(a.begin(), a.end() - 1);
    out.push_back(b.back());
    return like(in[0], out);
  }

  // Sizes as in the PyTorch documentation of conv and conv_transpose.
  Shape convolved(const Shape& x, const Shape& w, bool transposed) const {
    const auto &stride = get<std::vector<int64_t>>(Attr::stride), &dilation = get<std::vector<int64_t>>(Attr::dilation);
    const Shape& padding = get<Shape>(Attr::padding);
    const Shape extra = transposed ? get<Shape>(Attr::output_padding) : Shape(stride.size());
    const SymInt groups(get<int64_t>(Attr::groups));
    const size_t spatial = stride.size();
    check(x.size() >= 3 && w.size() == x.size() && spatial == x.size() - 2, name_of(op), ": ranks of ", Shown{in[0].type()}, " and ",
          Shown{in[1].type()});
    check(dilation.size() == spatial && padding.size() == spatial && extra.size() == spatial, name_of(op),
          ": the ranks of the attributes differ");
    check(in[0].dtype() == in[1].dtype() && x[1] == (transposed ? w[0] : w[1] * groups), name_of(op), ": ", Shown{in[0].type()}, " and ",
          Shown{in[1].type()}, " do not fit with ", groups, " groups");
    Shape out{x[0], transposed ? w[1] * groups : w[0]};
    for (size_t i = 0; i < spatial; ++i) {
      SymInt kernel = SymInt(dilation[i]) * (w[i + 2] - 1) + 1;
      out.push_back(transposed ? (x[i + 2] - 1) * SymInt(stride[i]) - padding[i] * SymInt(2) + kernel + extra[i]
                               : floordiv(x[i + 2] + padding[i] * SymInt(2) - kernel, stride[i]) + 1);
    }
    return out;
  }

  Type conv() const {
    check(in.size() == 2 || in.size() == 3, "conv: ", in.size(), " operands, expected 2 or 3");
    const Shape out = convolved(in[0].shape(), in[1].shape(), get<int64_t>(Attr::transposed) != 0);
    check(in.size() < 3 || (in[2].dtype() == in[0].dtype() && in[2].shape() == Shape{out[1]}), "conv: the bias is ",
          Shown{in.back().type()});
    return like(in[0], out);
  }

  Type conv_weight_gradient() const {
    const Shape& w = get<Shape>(Attr::shape);
    check(in[1].shape() == convolved(in[0].shape(), w, false), name_of(op), ": ", Shown{in[1].type()}, " is no result of ",
          Shown{in[0].type()});
    return like(in[0], w);
  }

  // ---- routines ----

  Shape search_shape() const {
    const Shape &x = in[0].shape(), &values = in[1].shape();
    bool fits = in[0].dtype() == in[1].dtype() && !x.empty() && (x.size() == 1 || x.size() == values.size());
    for (size_t d = 0; fits && x.size() > 1 && d + 1 < x.size(); ++d) fits = x[d] == values[d];
    check(fits, "search: ", Shown{in[1].type()}, " in ", Shown{in[0].type()});
    return values;
  }

  Type scatter() const {
    check(is_integral(in[1].dtype()) && in[1].shape() == in[2].shape() && in[1].rank() == in[0].rank() && in[0].dtype() == in[2].dtype(),
          name_of(op), ": ", Shown{in[2].type()}, " at ", Shown{in[1].type()}, " does not fit ", Shown{in[0].type()});
    return like(in[0], in[0].shape());
  }

  Type sum_rows() const {
    const Shape& shape = get<Shape>(Attr::shape);
    check(in[0].rank() == 2 && shape.size() == 2 && shape[1] == in[0].shape()[1] && is_floating(in[0].dtype()) &&
              is_integral(in[1].dtype()) && in[1].shape() == Shape{in[0].shape()[0]},
          "sum_rows: ", Shown{in[0].type()}, " at ", Shown{in[1].type()});
    return like(in[0], shape);
  }

  Type add_rows() const {
    const Shape &x = in[0].shape(), &source = in[2].shape();
    check(x.size() == 2 && source.size() == 2 && x[1] == source[1] && is_floating(in[0].dtype()) && is_floating(in[2].dtype()) &&
              is_integral(in[1].dtype()) && in[1].shape() == Shape{source[0]},
          "add_rows: ", Shown{in[2].type()}, " at ", Shown{in[1].type()}, " to ", Shown{in[0].type()});
    return like(in[2], x);
  }

  std::vector<Type> attention() const {
    const size_t needed = op == Op::attention ? 3 : 6;
    check(in.size() == needed || in.size() == needed + 1, name_of(op), ": ", in.size(), " operands");
    const Shape &q = in[0].shape(), &k = in[1].shape(), &v = in[2].shape();
    check(q.size() == 4 && k.size() == 4 && v.size() == 4 && is_floating(in[0].dtype()) && in[0].dtype() == in[1].dtype() &&
              in[0].dtype() == in[2].dtype(),
          "attention of ", Shown{in[0].type()}, ", ", Shown{in[1].type()}, " and ", Shown{in[2].type()});
    bool fits = q[3] == k[3] && k[2] == v[2];
    for (size_t d = 0; d < 2; ++d) fits = fits && q[d] == k[d] && q[d] == v[d];
    check(fits, "attention: ", Shown{in[0].type()}, ", ", Shown{in[1].type()}, " and ", Shown{in[2].type()}, " do not fit");
    check(in.size() == needed || in.back().type() == Type({DType::f32, {q[0], q[1], q[2], k[2]}, device()}), "attention: the mask is ",
          Shown{in.back().type()});
    (void)get<Scalar>(Attr::scale), (void)get<int64_t>(Attr::causal);
    const Type result = like(in[0], {q[0], q[1], q[2], v[3]}), logs{DType::f32, {q[0], q[1], q[2]}, device()};
    if (op == Op::attention) return {result, logs};
    check(in[3].type() == result && in[4].type() == result && in[5].type() == logs, name_of(op), ": of ", Shown{in[3].type()});
    return {in[0].type(), in[1].type(), in[2].type()};
  }

  std::vector<Type> routine() const {
    if (op == Op::attention || op == Op::attention_gradient) return attention();
    if (op == Op::sum_rows) return {sum_rows()};
    if (op == Op::add_rows) return {add_rows()};
    if (op == Op::update) {
      check(in[0].dtype() == in[1].dtype() && in[0].rank() == in[1].rank() && get<Shape>(Attr::starts).size() == in[0].shape().size(),
            "update: ", Shown{in[1].type()}, " does not fit ", Shown{in[0].type()});
      return {like(in[0], in[0].shape())};
    }
    if (op == Op::search) return (void)get<int64_t>(Attr::right), std::vector<Type>{{DType::i64, search_shape(), device()}};
    const int64_t dim = get<int64_t>(Attr::dim);
    distinct({dim}, in[0]);
    for (Attr flag : {Attr::descending, Attr::stable, Attr::sorted, Attr::skip_nan})
      if (has_attr(op, flag)) (void)get<int64_t>(flag);
    Shape shape = in[0].shape();
    switch (op) {
      case Op::scan_sum:
      case Op::scan_prod:
      case Op::scan_logsumexp: return {like(in[0], shape)};
      case Op::scan_max:
      case Op::scan_min:
      case Op::sort: break;
      case Op::topk: shape[static_cast<size_t>(dim)] = get<SymInt>(Attr::k); break;
      case Op::kth: (void)get<SymInt>(Attr::k); [[fallthrough]];
      case Op::median:
      case Op::mode: shape = without(shape, {dim}); break;
      default: return {scatter()};
    }
    return {like(in[0], shape), {DType::i64, shape, device()}};
  }

  std::vector<Type> infer() const {
    const OpRow& r = row(op);
    check(r.inputs < 0 || in.size() == static_cast<size_t>(r.inputs), name_of(op), ": ", in.size(), " operands, expected ", r.inputs);
    switch (r.kind) {
      case OpKind::source: break;
      case OpKind::view: return {view()};
      case OpKind::heavy_view: return {take()};
      case OpKind::reduce: return {reduction()};
      case OpKind::heavy: return {op == Op::dot ? dot() : op == Op::conv ? conv() : conv_weight_gradient()};
      case OpKind::routine: return routine();
      case OpKind::external: return get<std::shared_ptr<const ExternCall>>(Attr::call)->results;
      default: return {elementwise()};
    }
    if (op == Op::scalar) return (void)get<Scalar>(Attr::value), std::vector<Type>{{get<DType>(Attr::dtype), {}, {}}};
    if (op == Op::zero) return {{get<DType>(Attr::dtype), {}, named_device()}};
    if (op == Op::iota) {
      const auto& shape = get<Shape>(Attr::shape);
      check(static_cast<size_t>(get<int64_t>(Attr::dim)) < shape.size(), "iota: no dimension ", get<int64_t>(Attr::dim));
      return {{get<DType>(Attr::dtype), shape, {}}};
    }
    if (op == Op::size) return (void)get<SymInt>(Attr::expr), std::vector<Type>{{DType::i64, {}, {}}};
    fail("the type of an input is given, not inferred");
  }
};

}  // namespace

std::vector<Type> infer_types(Op op, std::span<const Value> inputs, const Attrs& attrs) { return Inference{op, inputs, attrs}.infer(); }

}  // namespace broach
