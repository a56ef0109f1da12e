#include "trace/layout.h"

#include <algorithm>
#include <numeric>

#include "ops/lower.h"
#include "support/error.h"
#include "trace/mutations.h"

namespace broach {

// ---- strides ----

std::optional<Shape> dense_strides(const Shape& shape, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  std::vector<size_t> order(shape.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  // Of equal strides that of size 1 is the inner one: what lies further out begins with it.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] != strides[b] ? strides[a] < strides[b] : sizes[a] == 1 && sizes[b] != 1; });
  Shape out(shape.size());
  SymInt next(1);
  int64_t number = 1;
  for (size_t d : order) {
    if (sizes[d] > 1 && strides[d] != number) return std::nullopt;
    out[d] = next;
    next = next * shape[d];
    number *= sizes[d];
  }
  return out;
}

namespace {

// The strides of a reshape that is a view: each run of new dimensions lies in a run of old ones without gaps.
std::optional<Shape> reshaped_strides(Symbols& symbols, const Shape& shape, const Shape& strides, const Shape& to) {
  if (strides == contiguous_strides(shape)) return contiguous_strides(to);
  Shape out(to.size(), SymInt(1));
  auto at = static_cast<int64_t>(to.size()) - 1;
  SymInt base = strides.empty() ? SymInt(1) : strides.back(), old_run(1), new_run(1);
  for (auto d = static_cast<int64_t>(shape.size()) - 1; d >= 0; --d) {
    old_run = old_run * shape[static_cast<size_t>(d)];
    bool ends = d == 0;
    if (!ends) {
      auto outer = static_cast<size_t>(d - 1);
      ends = !symbols.equal(shape[outer], 1) && !symbols.equal(strides[outer], old_run * base);
    }
    if (!ends) continue;
    while (at >= 0 && (symbols.ask(new_run, Relation::lt, old_run) || symbols.equal(to[static_cast<size_t>(at)], 1))) {
      out[static_cast<size_t>(at)] = new_run * base;
      new_run = new_run * to[static_cast<size_t>(at)];
      --at;
    }
    if (!symbols.equal(new_run, old_run)) return std::nullopt;
    if (d > 0) {
      base = strides[static_cast<size_t>(d - 1)];
      old_run = new_run = SymInt(1);
    }
  }
  return at < 0 ? std::optional(out) : std::nullopt;
}

// A window after one primitive view.
bool apply(Symbols& symbols, const Node& step, TraceTensor& t) {
  const Shape& to = step.results[0].shape;
  switch (step.op) {
    case Op::permute: {
      Shape strides;
      for (int64_t d : step.ints(Attr::dims)) strides.push_back(t.strides[static_cast<size_t>(d)]);
      t.strides = std::move(strides);
      break;
    }
    case Op::slice: {
      const Shape& starts = step.sizes(Attr::starts);
      for (size_t d = 0; d < starts.size(); ++d) {
        t.offset = t.offset + starts[d] * t.strides[d];
        t.strides[d] = t.strides[d] * step.ints(Attr::steps)[d];
      }
      break;
    }
    case Op::expand:
      for (size_t d = 0; d < to.size(); ++d)
        if (t.type.shape[d] == SymInt(1) && !(to[d] == SymInt(1))) t.strides[d] = 0;
      break;
    case Op::reshape: {
      auto strides = reshaped_strides(symbols, t.type.shape, t.strides, to);
      if (!strides) return false;
      t.strides = std::move(*strides);
      break;
    }
    case Op::bitcast: break;
    default: return false;
  }
  t.type = step.results[0];
  return true;
}

// ---- results ----

// Of most of these torch says what sizes they give by Python code that imports Dynamo, which takes seconds.
constexpr std::string_view kDrawn[] = {"aten::randn_like",
                                       "aten::rand_like",
                                       "aten::randint_like",
                                       "aten::randint_like.low_dtype",
                                       "aten::normal.Tensor_float",
                                       "aten::normal.float_Tensor",
                                       "aten::bernoulli",
                                       "aten::native_dropout",
                                       "aten::randn",
                                       "aten::rand",
                                       "aten::randint",
                                       "aten::randint.low",
                                       "aten::normal.float_float"};

class Results {
 public:
  Results(const Trace& trace, const TraceOp& op, std::vector<TraceTensor> seen)
      : t_(trace), op_(trace.resolved(op)), seen_(std::move(seen)), scratch_(trace.symbols) {}

  std::optional<std::vector<TraceTensor>> run() {
    if (op_.schema == "aten::as_strided") return as_strided();
    if (op_.schema == "aten::unfold") return windows();
    if (std::ranges::find(kDrawn, op_.schema) != std::end(kDrawn)) return drawn();
    if (op_.schema == "aten::grid_sampler_2d") return sampled();
    if (op_.args.size() == 9 && op_.schema.ends_with(".input")) return recurrent();
    if (op_.schema.starts_with("aten::_embedding_bag")) return bags();
    if (op_.schema.starts_with("aten::_scaled_dot_product_") && !OpTable::get().find(op_.schema)) return attention();
    if (op_.schema == "aten::_ctc_loss_backward.Tensor")  // for which torch has no kernel without elements
      return like(tensor(std::get<Arg::Tensor>(op_.args[1].value).id).type);
    const std::string form = op_.mutated.empty() ? "" : form_with_results(t_, op_);
    const std::string& schema = form.empty() ? op_.schema : form;
    const OpEntry* entry = OpTable::get().find(schema);
    if (!entry) return std::nullopt;
    std::vector<Value> operands(t_.tensors.size());
    for_each_tensor(op_.args, [&](TensorId id) {
      Value& v = operands[static_cast<size_t>(id)];
      if (!v) v = scratch_.input(tensor(id).type);
    });
    std::vector<Type> expected;
    for (const TraceTensor& s : seen_) expected.push_back(placeholder(s.type));
    if (!form.empty())
      for (TensorId id : op_.mutated) expected.push_back(tensor(id).type);
    auto values = where_handled(schema, [&] {
      OpCall call(scratch_, schema, op_.args, operands, expected);
      return entry->lower(call);
    });
    if (!values || values->size() < seen_.size()) return std::nullopt;
    std::vector<TraceTensor> out;
    for (size_t i = 0; i < seen_.size(); ++i) {
      auto r = result(seen_[i], (*values)[i]);
      if (!r) return std::nullopt;
      out.push_back(std::move(*r));
    }
    return out;
  }

 private:
  TraceTensor tensor(TensorId id) const { return t_.resolved(t_.tensors[static_cast<size_t>(id)]); }
  Symbols& symbols() { return *t_.symbols; }
  std::vector<int64_t> hints(const Shape& s) {
    std::vector<int64_t> out;
    for (const SymInt& e : s) out.push_back(symbols().hint(e));
    return out;
  }

  std::optional<std::vector<TraceTensor>> like(const Type& type) {
    auto only = result(seen_[0], scratch_.input(type));
    return only ? std::optional(std::vector{std::move(*only)}) : std::nullopt;
  }

  // A lowering may ask for the sizes of its results, which are only known in numbers: what it makes of these must not pass for
  // something that follows from the operands.
  Type placeholder(Type t) {
    for (SymInt& e : t.shape)
      if (e.constant() > 1) e = SymInt::symbol(kPlaceholder + static_cast<SymbolId>(e.constant()));
    return t;
  }
  static bool has_placeholder(const Shape& s) {
    std::vector<SymbolId> symbols;
    for (const SymInt& e : s) e.collect_symbols(symbols);
    return std::any_of(symbols.begin(), symbols.end(), [](SymbolId id) { return id >= kPlaceholder; });
  }

  std::optional<TraceTensor> result(const TraceTensor& seen, Value v) {
    if (!v) return seen.type.dtype == DType::opaque ? std::optional(seen) : std::nullopt;
    if (has_placeholder(v.shape()) || v.rank() != seen.type.rank()) return std::nullopt;
    TraceTensor out = seen;
    out.type.shape.clear();
    for (const SymInt& e : v.shape()) out.type.shape.push_back(symbols().resolved(e));
    std::vector<int64_t> sizes = hints(seen.type.shape);
    if (hints(out.type.shape) != sizes) return std::nullopt;
    TensorId base = base_of(seen);
    if (base != kNoTensor) return view(seen, base, v, out);
    auto strides = dense_strides(out.type.shape, sizes, hints(seen.strides));
    if (!strides || !(seen.offset == SymInt(0))) return std::nullopt;
    out.strides = std::move(*strides);
    return out;
  }

  TensorId base_of(const TraceTensor& seen) const {
    TensorId base = kNoTensor;
    for_each_tensor(op_.args, [&](TensorId id) {
      if (base == kNoTensor && t_.tensors[static_cast<size_t>(id)].storage == seen.storage) base = id;
    });
    return base;
  }

  std::optional<TraceTensor> view(const TraceTensor& seen, TensorId base, Value v, TraceTensor out) {
    std::vector<const Node*> steps;
    for (; v.node->op != Op::input; v = v.node->inputs[0]) {
      if (v.node->inputs.size() != 1) return std::nullopt;
      steps.push_back(v.node);
    }
    TraceTensor t = tensor(base);
    for (size_t i = steps.size(); i-- > 0;)
      if (!apply(symbols(), *steps[i], t)) return std::nullopt;
    out.strides = t.strides;
    out.offset = t.offset;
    for (size_t d = 0; d < out.strides.size(); ++d) {
      if (symbols().hint(out.strides[d]) == seen.strides[d].constant()) continue;
      if (seen.type.shape[d].constant() > 1) return std::nullopt;
      out.strides[d] = seen.strides[d];  // of one element or none: any number does
    }
    return symbols().hint(out.offset) == seen.offset.constant() ? std::optional(out) : std::nullopt;
  }

  std::optional<std::vector<TraceTensor>> as_strided() {
    auto ints = [&](size_t i) { return i < op_.args.size() ? std::get_if<Shape>(&op_.args[i].value) : nullptr; };
    if (!ints(1) || !ints(2)) return std::nullopt;
    TraceTensor out = seen_[0];
    out.type.shape = *ints(1);
    out.strides = *ints(2);
    auto offset = op_.args.size() > 3 ? std::get_if<SymInt>(&op_.args[3].value) : nullptr;
    out.offset = offset ? *offset : tensor(std::get<Arg::Tensor>(op_.args.at(0).value).id).offset;
    return std::vector{out};
  }

  // Windows of a dimension, whose positions become one more.
  std::optional<std::vector<TraceTensor>> windows() {
    const TraceTensor t = tensor(std::get<Arg::Tensor>(op_.args.at(0).value).id);
    auto integer = [&](size_t i) { return std::get<SymInt>(op_.args.at(i).value); };
    if (t.type.shape.empty() || !integer(1).is_constant() || !integer(3).is_constant()) return std::nullopt;
    int64_t dim = integer(1).constant(), step = integer(3).constant();
    auto d = static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(t.type.shape.size()) : dim);
    TraceTensor out = seen_[0];
    out.type.shape = t.type.shape;
    out.strides = t.strides;
    SymInt count = floordiv(t.type.shape.at(d) - integer(2), step) + 1;
    if (symbols().hint(count) < 2) return std::nullopt;
    symbols().ask(2, Relation::le, count);
    out.type.shape[d] = count;
    out.type.shape.push_back(integer(2));
    out.strides.push_back(t.strides[d]);
    out.strides[d] = t.strides[d] * step;
    out.offset = t.offset;
    return hints(out.type.shape) == hints(seen_[0].type.shape) && hints(out.strides) == hints(seen_[0].strides)
               ? std::optional(std::vector{out})
               : std::nullopt;
  }

  // As large as its first operand, or as it is told to be.
  std::optional<std::vector<TraceTensor>> drawn() {
    std::optional<Shape> shape;
    for (size_t i = 0; !shape && i < op_.args.size(); ++i) {
      if (auto like = std::get_if<Arg::Tensor>(&op_.args[i].value)) shape = tensor(like->id).type.shape;
      else if (auto sizes = std::get_if<Shape>(&op_.args[i].value)) shape = *sizes;
    }
    std::vector<TraceTensor> out = seen_;
    for (TraceTensor& t : out)
      if (!shape || !set_shape(t, *shape)) return std::nullopt;
    return out;
  }

  // Of x [n, channels, ...] at the positions of a grid [n, rows, columns, 2].
  std::optional<std::vector<TraceTensor>> sampled() {
    const Shape x = tensor(std::get<Arg::Tensor>(op_.args[0].value).id).type.shape,
                grid = tensor(std::get<Arg::Tensor>(op_.args[1].value).id).type.shape;
    std::vector<TraceTensor> out = seen_;
    return set_shape(out[0], {x[0], x[1], grid[1], grid[2]}) ? std::optional(std::move(out)) : std::nullopt;
  }

  // Bags of embeddings [bags, width], the bag of each index, and what is kept of each bag, or of each of its sums, or nothing; or the
  // gradient of the weights.
  std::optional<std::vector<TraceTensor>> bags() {
    auto shape_of = [&](size_t i) { return tensor(std::get<Arg::Tensor>(op_.args.at(i).value).id).type.shape; };
    std::vector<TraceTensor> out = seen_;
    if (op_.schema == "aten::_embedding_bag_backward") {
      const auto* rows = std::get_if<SymInt>(&op_.args.at(6).value);
      return rows && set_shape(out[0], {*rows, shape_of(0).at(1)}) ? std::optional(std::move(out)) : std::nullopt;
    }
    if (out.size() != 4 || op_.schema.ends_with("_backward")) return std::nullopt;
    const auto* ends = std::get_if<Scalar>(&op_.args.at(7).value);  // whether the offsets end with one behind the last bag
    const SymInt width = shape_of(0).at(1), indices = shape_of(1).at(0),
                 count = shape_of(2).at(0) - (ends && *ends == Scalar(true) ? 1 : 0);
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i].type.shape.at(0) == SymInt(0)) continue;
      if (!set_shape(out[i], i == 1 ? Shape{indices} : out[i].type.rank() == 2 ? Shape{count, width} : Shape{count})) return std::nullopt;
    }
    return out;
  }

  // A recurrent layer: what it gives for each step, then its states as they were given.
  std::optional<std::vector<TraceTensor>> recurrent() {
    auto one = std::get_if<Arg::Tensor>(&op_.args[1].value);
    auto many = std::get_if<Arg::Tensors>(&op_.args[1].value);
    std::vector<TensorId> states = one ? std::vector{one->id} : many ? many->ids : std::vector<TensorId>();
    const Shape in = tensor(std::get<Arg::Tensor>(op_.args[0].value).id).type.shape;
    if (in.size() != 3 || seen_.size() != states.size() + 1 || seen_[0].type.rank() != 3) return std::nullopt;
    std::vector<TraceTensor> out = seen_;
    for (size_t i = 0; i < out.size(); ++i)
      if (!set_shape(out[i], i ? tensor(states[i - 1]).type.shape : Shape{in[0], in[1], seen_[0].type.shape[2]})) return std::nullopt;
    return out;
  }

  // Attention by torch's kernels for GPUs, and its gradients: `out` [batch, heads, rows, width], the logarithms of the scores' sums
  // [batch, heads, rows], which one of them pads to 32 and another gives a dimension of size 1, and what has constant sizes.
  std::optional<std::vector<TraceTensor>> attention() {
    constexpr int64_t kRows = 32;
    auto shape_of = [&](size_t i) {
      auto given = i < op_.args.size() ? std::get_if<Arg::Tensor>(&op_.args[i].value) : nullptr;
      return given && given->id != kNoTensor ? tensor(given->id).type.shape : Shape();
    };
    const bool is_backward = op_.schema.ends_with("_backward");
    const Shape q = shape_of(is_backward), k = shape_of(is_backward + size_t{1}), v = shape_of(is_backward + size_t{2});
    if (q.size() != 4 || k.size() != 4 || v.size() != 4) return std::nullopt;
    // Which of them eager chooses depends on lengths only where they are 0 or 1.
    for (const SymInt& n : {q[2], k[2]})
      if (!n.is_constant() && !symbols().ask(2, Relation::le, n)) return std::nullopt;
    std::vector<Shape> shapes{q, k, v, shape_of(4)};
    if (!is_backward) {
      const bool pads = op_.schema.find("efficient") != std::string::npos;
      shapes = {{q[0], q[1], q[2], v[3]}, {q[0], q[1], pads ? floordiv(q[2] + (kRows - 1), kRows) * kRows : q[2]}};
    }
    std::vector<TraceTensor> out = seen_;
    for (size_t i = 0; i < out.size(); ++i) {
      const Shape& seen = seen_[i].type.shape;
      auto size = [](int64_t n, const SymInt& e) { return n * e.constant(); };
      if (seen_[i].type.dtype == DType::opaque) continue;
      if (is_backward ? i >= 3 && shapes.back().empty() : i >= 2) {
        if (std::accumulate(seen.begin(), seen.end(), int64_t{1}, size) > 2) return std::nullopt;
        continue;
      }
      Shape& shape = shapes.at(i);
      if (!is_backward && i == 1 && seen.size() == shape.size() && seen.back() == SymInt(0)) shape.back() = 0;  // not asked for
      if (seen.size() == shape.size() + 1 && seen.back() == SymInt(1)) shape.push_back(1);
      if (!set_shape(out[i], shape)) return std::nullopt;
    }
    return out;
  }

  // Without gaps, in the order of dimensions in which it was seen. False if it was of other sizes.
  bool set_shape(TraceTensor& t, const Shape& shape) {
    const std::vector<int64_t> sizes = hints(t.type.shape);
    const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
    auto strides = shape.size() != sizes.size() ? std::nullopt
                   : is_empty                   ? std::optional(contiguous_strides(shape))
                                                : dense_strides(shape, sizes, hints(t.strides));
    if (!strides || hints(shape) != sizes || !(t.offset == SymInt(0))) return false;
    t.type.shape = shape;
    t.strides = std::move(*strides);
    return true;
  }

  static constexpr SymbolId kPlaceholder = 1u << 21;
  const Trace& t_;
  const TraceOp op_;
  std::vector<TraceTensor> seen_;
  GraphBuilder scratch_;
};

}  // namespace

namespace {

std::vector<SymInt> sizes_mentioned(const Trace& trace, const TraceOp& op) {
  std::vector<SymInt> out;
  auto add = [&](const SymInt& e) {
    if (!e.is_constant() && std::find(out.begin(), out.end(), e) == out.end()) out.push_back(e);
  };
  for_each_tensor(op.args, [&](TensorId id) {
    const Shape& s = trace.tensors[static_cast<size_t>(id)].type.shape;
    std::for_each(s.begin(), s.end(), add);
  });
  for (const Arg& a : op.args) {
    if (auto i = std::get_if<SymInt>(&a.value)) add(*i);
    if (auto s = std::get_if<Shape>(&a.value)) std::for_each(s->begin(), s->end(), add);
  }
  return out;
}

}  // namespace

std::optional<std::vector<TraceTensor>> probed_results(const Trace& trace, const TraceOp& op, std::vector<TraceTensor> seen,
                                                       const SizeOracle& ask) {
  const Symbols& symbols = *trace.symbols;
  // Multiples of the recorded sizes, so that what had to be divisible stays so; each symbol has its own factor.
  static constexpr int64_t kFactors[][6] = {{1, 1, 1, 1, 1, 1}, {2, 3, 5, 7, 11, 13}, {3, 2, 7, 5, 13, 11}};
  std::vector<std::vector<int64_t>> points;
  std::vector<std::vector<std::vector<int64_t>>> answers;
  for (const auto& factors : kFactors) {
    std::vector<int64_t> raw, values;
    for (size_t i = 0; i < symbols.infos().size(); ++i) raw.push_back(symbols.infos()[i].hint * factors[i % std::size(factors)]);
    for (size_t i = 0; i < raw.size(); ++i) values.push_back(symbols.resolved(SymInt::symbol(static_cast<SymbolId>(i))).eval(raw));
    auto answer = ask(values);
    if (!answer || answer->size() != seen.size()) return std::nullopt;
    points.push_back(std::move(values));
    answers.push_back(std::move(*answer));
  }
  auto candidates = sizes_mentioned(trace, op);
  std::vector<TraceTensor> out = seen;
  for (size_t r = 0; r < seen.size(); ++r) {
    if (seen[r].type.dtype == DType::opaque) continue;
    std::vector<int64_t> sizes, strides;
    for (size_t d = 0; d < seen[r].type.shape.size(); ++d) {
      sizes.push_back(seen[r].type.shape[d].constant());
      strides.push_back(seen[r].strides[d].constant());
      auto agrees = [&](const SymInt& e) {
        for (size_t p = 0; p < points.size(); ++p)
          if (answers[p][r].size() <= d || answers[p][r][d] != e.eval(points[p])) return false;
        return true;
      };
      SymInt& size = out[r].type.shape[d];
      if (agrees(size)) continue;
      auto it = std::find_if(candidates.begin(), candidates.end(), agrees);
      if (it == candidates.end()) return std::nullopt;
      size = *it;
    }
    auto dense = dense_strides(out[r].type.shape, sizes, strides);
    if (!dense || !(seen[r].offset == SymInt(0))) return std::nullopt;
    out[r].strides = std::move(*dense);
  }
  return out;
}

std::vector<SymbolId> symbols_of(const Trace& trace, const TraceOp& op) {
  std::vector<SymbolId> out;
  auto collect = [&](const Shape& s) {
    for (const SymInt& e : s) e.collect_symbols(out);
  };
  for_each_tensor(op.args, [&](TensorId id) {
    const TraceTensor& t = trace.tensors[static_cast<size_t>(id)];
    collect(t.type.shape);
    collect(t.strides);
    t.offset.collect_symbols(out);
  });
  for (const Arg& a : op.args) {
    if (auto i = std::get_if<SymInt>(&a.value)) i->collect_symbols(out);
    if (auto n = std::get_if<Arg::Number>(&a.value); n && n->symbol) n->symbol->collect_symbols(out);
    if (auto s = std::get_if<Shape>(&a.value)) collect(*s);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::optional<std::vector<TraceTensor>> symbolic_results(const Trace& trace, const TraceOp& op, std::vector<TraceTensor> seen) {
  return Results(trace, op, std::move(seen)).run();
}

}  // namespace broach
