#include "trace/functionalize.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/lower.h"
#include "support/error.h"
#include "trace/pieces.h"

namespace broach {

namespace {

// One primitive view, from the type it was applied to, or a view that no primitive expresses.
struct ViewStep {
  Op op;
  Attrs attrs;
  std::optional<View> view = {};
};

struct TensorState {
  TensorId parent = kNoTensor;  // none: the root of its storage
  std::vector<ViewStep> steps;  // from the parent
  Value value;                  // at `version` of the storage
  int version = -1;
};

struct StorageState {
  TensorId root = kNoTensor;
  int version = 0;
  int input = -1;
  std::optional<Pieces> pieces = {};  // the root's elements, while its value is out of date
};

class Functionalizer {
 public:
  Functionalizer(const Trace& trace, const FunctionalizeOptions& options) : t_(trace), options_(options), tensors_(trace.tensors.size()) {
    *b_.graph().symbols() = *trace.symbols;
  }

  Program run() {
    for (size_t i = 0; i < t_.inputs.size(); ++i) add_input(static_cast<int>(i), t_.inputs[i]);
    for (const TraceOp& op : t_.ops) {
      if (op.line >= 0) b_.set_line(t_.lines[static_cast<size_t>(op.line)]);
      process(op);
    }
    return finish();
  }

 private:
  const TraceTensor& info(TensorId id) const { return t_.tensors[static_cast<size_t>(id)]; }
  TensorState& state(TensorId id) { return tensors_[static_cast<size_t>(id)]; }
  StorageState& storage(TensorId id) { return storages_[info(id).storage]; }

  void add_input(int index, TensorId id) {
    StorageState& s = storage(id);
    position_of_input_.emplace(id, index);
    state(id).value = b_.input(info(id).type);
    program_.input_strides.push_back(info(id).strides);
    if (s.root != kNoTensor) {
      aliased_.insert(info(id).storage);
      state(id).version = 0;
      return;
    }
    s.root = id;
    s.input = index;
    state(id).version = 0;
  }

  // ---- reading ----
  Value value(TensorId id) {
    TensorState& s = state(id);
    int now = storage(id).version;
    check(storage(id).root != kNoTensor, "functionalise: tensor ", id, " is read before it exists");
    if (s.version == now) return s.value;
    s.value = s.parent == kNoTensor ? joined(id) : shown(id);
    s.version = now;
    return s.value;
  }

  Value joined(TensorId root) {
    auto& pieces = storage(root).pieces;
    check(pieces.has_value(), "functionalise: a root is out of date");
    Value whole = pieces->joined(b_);
    pieces.reset();
    return whole;
  }

  Value shown(TensorId id) {
    const TensorState& s = state(id);
    const auto& pieces = storage(id).pieces;
    auto slab = pieces ? slab_of(id) : std::nullopt;
    auto window = slab && slab->dim == pieces->dim() ? pieces->window(b_, slab->start, slab->length) : std::nullopt;
    Value v = window ? *window : value(s.parent);
    for (size_t i = window ? 1 : 0; i < s.steps.size(); ++i) v = show(s.steps[i], v);
    return v;
  }

  // The elements of its root that a tensor shows, if these are some of one dimension, perhaps in another shape.
  std::optional<Slab> slab_of(TensorId id) const {
    const TensorState& s = tensors_[static_cast<size_t>(id)];
    if (s.parent == kNoTensor || tensors_[static_cast<size_t>(s.parent)].parent != kNoTensor || s.steps.empty()) return std::nullopt;
    auto is_reshape = [](const ViewStep& step) { return !step.view && step.op == Op::reshape; };
    if (s.steps[0].view || s.steps[0].op != Op::slice || !std::all_of(s.steps.begin() + 1, s.steps.end(), is_reshape)) return std::nullopt;
    const auto &starts = std::get<Shape>(s.steps[0].attrs.at(Attr::starts)), &shape = std::get<Shape>(s.steps[0].attrs.at(Attr::shape)),
               &whole = info(s.parent).type.shape;
    std::optional<Slab> slab;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (std::get<std::vector<int64_t>>(s.steps[0].attrs.at(Attr::steps))[d] != 1) return std::nullopt;
      if (shape[d] == whole[d] && starts[d] == SymInt(0)) continue;
      if (slab || !shape[d].is_constant() || !starts[d].is_constant() || !whole[d].is_constant()) return std::nullopt;
      slab = {static_cast<int64_t>(d), starts[d].constant(), shape[d].constant()};
    }
    return slab;
  }

  Value show(const ViewStep& step, Value x) { return step.view ? step.view->get(b_, x) : b_.emit(step.op, {x}, step.attrs); }

  // ---- writing ----
  void write(TensorId id, Value v) {
    if (aliased_.contains(info(id).storage)) unsupported("an input that shares its memory with another is written");
    TensorState& s = state(id);
    if (auto slab = storage(id).input < 0 ? slab_of(id) : std::nullopt) {
      write_slab(id, *slab, v);
    } else if (s.parent != kNoTensor) {
      std::vector<Value> along{value(s.parent)};
      for (const ViewStep& step : s.steps) along.push_back(show(step, along.back()));
      Value carried = v;
      for (size_t i = s.steps.size(); i-- > 0;) carried = inverse(s.steps[i], along[i], carried);
      write(s.parent, carried);
    } else {
      storage(id).pieces.reset();
      ++storage(id).version;
    }
    s.value = v;
    s.version = storage(id).version;
  }

  void write_slab(TensorId id, const Slab& slab, Value v) {
    StorageState& memory = storage(id);
    if (!memory.pieces || memory.pieces->dim() != slab.dim) memory.pieces.emplace(value(memory.root), slab.dim);
    memory.pieces->replace(slab.start, b_.reshape(v, std::get<Shape>(state(id).steps[0].attrs.at(Attr::shape))));
    ++memory.version;
  }

  // The operand of a view after what the view shows was replaced by y.
  Value inverse(const ViewStep& step, Value x, Value y) {
    if (step.view && !step.view->put) unsupported("a write through a view that shows elements twice");
    if (step.view) return step.view->put(b_, x, y);
    switch (step.op) {
      case Op::reshape: return b_.reshape(y, x.shape());
      case Op::permute: {
        const auto& dims = std::get<std::vector<int64_t>>(step.attrs.at(Attr::dims));
        std::vector<int64_t> back(dims.size());
        for (size_t d = 0; d < dims.size(); ++d) back[static_cast<size_t>(dims[d])] = static_cast<int64_t>(d);
        return b_.permute(y, back);
      }
      case Op::slice: return replace_slice(step, x, y);
      default: unsupported("a write through ", name_of(step.op));
    }
  }

  Value replace_slice(const ViewStep& step, Value x, Value y) {
    const auto& starts = std::get<Shape>(step.attrs.at(Attr::starts));
    const auto& steps = std::get<std::vector<int64_t>>(step.attrs.at(Attr::steps));
    // One dimension at a time, the last first: then x is cut to what the earlier dimensions leave of it.
    Shape begin(starts.size(), SymInt(0)), shape = x.shape();
    std::vector<int64_t> ones(starts.size(), 1);
    std::vector<Value> cuts{x};
    for (size_t d = 0; d < starts.size(); ++d) {
      Shape from(starts.size(), SymInt(0));
      std::vector<int64_t> by(starts.size(), 1);
      from[d] = starts[d];
      by[d] = steps[d];
      shape[d] = y.shape()[d];
      cuts.push_back(b_.slice(cuts.back(), from, by, shape));
    }
    for (size_t d = starts.size(); d-- > 0;) y = replace_along(static_cast<int64_t>(d), starts[d], steps[d], cuts[d], y);
    return y;
  }

  Value replace_along(int64_t dim, const SymInt& start, int64_t step, Value x, Value y) {
    auto d = static_cast<size_t>(dim);
    if (x.shape() == y.shape()) return y;
    SymInt n = y.shape()[d], size = x.shape()[d];
    if (step == 1) {
      std::vector<Value> parts;
      auto part = [&](const SymInt& from, const SymInt& length) {
        if (length == SymInt(0)) return;
        Shape starts(x.shape().size(), SymInt(0)), shape = x.shape();
        starts[d] = from;
        shape[d] = length;
        parts.push_back(b_.slice(x, starts, std::vector<int64_t>(shape.size(), 1), shape));
      };
      part(0, start);
      parts.push_back(y);
      part(start + n, size - start - n);
      return parts.size() == 1 ? parts[0] : b_.emit(Op::cat, parts, {{Attr::dim, dim}});
    }
    if (step < 0) unsupported("a write through a reversed slice");
    // Element i shows y[(i - start) / step] where that is whole and in range.
    Value i = b_.emit(Op::iota, {}, {{Attr::shape, Shape{size}}, {Attr::dim, int64_t{0}}, {Attr::dtype, DType::i64}});
    auto number = [&](const SymInt& s) { return b_.expand(b_.emit(Op::size, {}, {{Attr::expr, s}}), {size}); };
    Value off = b_.emit(Op::sub, {i, number(start)}), by = number(step);
    Value at = b_.emit(Op::floor_div, {off, by});
    Value hit = b_.emit(Op::eq, {b_.emit(Op::mod, {off, by}), number(0)});
    hit = b_.emit(Op::bit_and, {hit, b_.emit(Op::ge, {off, number(0)})});
    hit = b_.emit(Op::bit_and, {hit, b_.emit(Op::lt, {at, number(n)})});
    at = b_.where(hit, at, number(0));
    Value spread = b_.emit(Op::take, {y, at}, {{Attr::dim, dim}});
    Shape along(x.shape().size(), SymInt(1));
    along[d] = size;
    return b_.where(b_.expand(b_.reshape(hit, along), x.shape()), spread, x);
  }

  // ---- operations ----
  void process(const TraceOp& op) {
    // A tensor list argument or result of the very tensor itself: nothing happened.
    if (!op.mutated.empty()) return process_mutation(op);
    bool shares = false;
    for (TensorId r : op.results) shares |= r != kNoTensor && storage(r).root != kNoTensor;
    if (shares) return process_view(op);
    for_each_tensor(op.args, [&](TensorId id) {
      if (reads_elements(op)) must_be_written(id);
    });
    define(op, compute(op, op.schema, op.args));
    if (is_empty(op))
      for (TensorId r : op.results) unwritten_.insert(info(r).storage);
  }

  // ---- memory that nothing has written ----
  // A kernel of the host's library may make an empty tensor and write it through a raw pointer, which a trace does not show.
  // Reading what seems unwritten is the sign of it.
  static bool is_empty(const TraceOp& op) { return op.schema.starts_with("aten::empty") || op.schema.starts_with("aten::new_empty"); }
  static bool reads_elements(const TraceOp& op) {
    std::string_view name = std::string_view(op.schema).substr(0, op.schema.find('.'));
    return !name.ends_with("_like") && !name.starts_with("aten::new_");
  }
  void must_be_written(TensorId id) {
    bool none = std::any_of(info(id).type.shape.begin(), info(id).type.shape.end(), [](const SymInt& n) { return n == SymInt(0); });
    if (!none && storage(id).version == 0 && unwritten_.contains(info(id).storage))
      unsupported("memory is read that no recorded operation has written");
  }

  void define(const TraceOp& op, const std::vector<Value>& values) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      TensorId r = op.results[i];
      if (r == kNoTensor || !values[i]) continue;
      StorageState& s = storage(r);
      if (s.root != kNoTensor) unsupported(op.schema, ": results share memory");
      s.root = r;
      state(r).value = values[i];
      state(r).version = s.version;
    }
  }

  std::vector<Type> result_types(const TraceOp& op) const {
    std::vector<Type> types;
    for (TensorId r : op.results) types.push_back(r == kNoTensor ? Type{DType::opaque, {SymInt(0)}, {}} : info(r).type);
    return types;
  }

  // Arguments that name tensors by their place in a list of this call's own.
  struct CallArgs {
    std::vector<Arg> args;
    std::vector<Value> tensors;
  };
  static CallArgs with_values(std::vector<Arg> args, const std::function<Value(TensorId)>& value_of) {
    CallArgs out{std::move(args), {}};
    auto place = [&](TensorId& id) {
      if (id == kNoTensor) return;
      out.tensors.push_back(value_of(id));
      id = static_cast<TensorId>(out.tensors.size()) - 1;
    };
    for (Arg& a : out.args) {
      if (auto one = std::get_if<Arg::Tensor>(&a.value)) place(one->id);
      if (auto number = std::get_if<Arg::Number>(&a.value)) place(number->tensor);
      if (auto many = std::get_if<Arg::Tensors>(&a.value)) std::for_each(many->ids.begin(), many->ids.end(), place);
    }
    return out;
  }
  CallArgs with_values(const std::vector<Arg>& args) {
    return with_values(args, [this](TensorId id) { return value(id); });
  }

  // The results of an operation as if it had no effect on its operands.
  std::vector<Value> compute(const TraceOp& op, const std::string& schema, const std::vector<Arg>& args) {
    if (options_.lower && schema.starts_with("aten::as_strided_"))
      if (auto v = strided_copy(op)) return {*v};
    if (!op.effect && op.binds.empty() && options_.lower)
      if (auto values = lower(op, schema, args)) return std::move(*values);
    return call_extern(op, schema, args, {});
  }

  // as_strided_copy (self, sizes, strides, offset) reads a window of the storage, as_strided_scatter (self, source, sizes, ..)
  // gives self with it replaced.
  std::optional<Value> strided_copy(const TraceOp& op) {
    bool scatter = op.schema == "aten::as_strided_scatter";
    if (!scatter && op.schema != "aten::as_strided_copy") return std::nullopt;
    size_t first = scatter ? 2 : 1;
    TensorId self = std::get<Arg::Tensor>(op.args[0].value).id;
    const TraceTensor& t = info(self);
    auto sizes = std::get_if<Shape>(&op.args[first].value), strides = std::get_if<Shape>(&op.args[first + 1].value);
    if (!sizes || !strides || t.storage < 0) return std::nullopt;
    auto offset = std::get_if<SymInt>(&op.args[first + 2].value);
    auto view = strided_view(b_.symbols(), {t.type.shape, t.strides, 0}, {*sizes, *strides, offset ? *offset - t.offset : SymInt(0)});
    if (!view || (scatter && !view->put)) return std::nullopt;
    Value x = value(self);
    return scatter ? view->put(b_, x, value(std::get<Arg::Tensor>(op.args[1].value).id)) : view->get(b_, x);
  }

  std::optional<std::vector<Value>> lower(const TraceOp& op, const std::string& schema, const std::vector<Arg>& args) {
    const OpEntry* entry = OpTable::get().find(schema);
    if (!entry) return std::nullopt;
    std::vector<Type> expected = result_types(op);
    for (const Type& t : expected)
      if (t.dtype == DType::opaque && !t.shape.empty() && !(t.shape[0] == SymInt(0))) return std::nullopt;
    size_t before = b_.graph().nodes().size();
    auto [own, tensors] = with_values(args);
    auto out = where_handled(schema, [&, own = std::move(own), tensors = std::move(tensors)]() mutable {
      OpCall call(b_, schema, std::move(own), std::move(tensors), expected);
      return entry->lower(call);
    });
    if (!out || out->size() < op.results.size()) return std::nullopt;
    for (size_t i = 0; i < op.results.size(); ++i)
      if (op.results[i] != kNoTensor &&
          (!(*out)[i] || !((*out)[i].dtype() == expected[i].dtype) || !((*out)[i].shape() == expected[i].shape)))
        return std::nullopt;
    return supported_since(before) ? out : std::nullopt;
  }

  bool supported_since(size_t before) const {
    const auto& nodes = b_.graph().nodes();
    for (size_t i = before; i < nodes.size(); ++i) {
      if (!options_.capabilities.has(nodes[i])) return false;
      if (is_complex(nodes[i].results[0].dtype) && !carries(nodes[i].op)) return false;
    }
    return true;
  }

  // Primitives that take elements as they are, complex ones too.
  static bool carries(Op op) {
    return is_view(op) || op == Op::take || op == Op::where || op == Op::scalar || op == Op::bitcast || op == Op::copy || op == Op::input ||
           op == Op::extern_call;
  }

  std::vector<Value> call_extern(const TraceOp& op, const std::string& schema, const std::vector<Arg>& args,
                                 const std::vector<TensorId>& mutated) {
    auto call = std::make_shared<ExternCall>();
    call->schema = schema;
    // A call that is not torch's own, or draws random numbers in the order of memory, may tell how its operands lie.
    const bool exact = op.effect || !schema.starts_with("aten::");
    std::vector<Shape> operand_strides;
    std::vector<Value> inputs;
    std::map<TensorId, uint32_t> positions;
    auto position = [&](TensorId id) {
      auto [it, fresh] = positions.emplace(id, static_cast<uint32_t>(inputs.size()));
      if (!fresh) return it->second;
      inputs.push_back(value(id));
      if (exact) operand_strides.push_back(info(id).strides);
      else if (is_contiguous(info(id)) && may_be_strided(inputs.back())) call->contiguous.push_back(it->second);
      return it->second;
    };
    for (const Arg& a : args) call->args.push_back(extern_arg(a, position));
    for (TensorId r : op.results) {
      call->results.push_back(r == kNoTensor ? Type{DType::opaque, {SymInt(0)}, {}} : info(r).type);
      call->result_strides.push_back(r == kNoTensor ? Shape{SymInt(1)} : info(r).strides);
    }
    for (TensorId m : mutated) {
      call->mutated.push_back(position(m));
      call->results.push_back(info(m).type);
      call->result_strides.push_back(contiguous_strides(info(m).type.shape));
    }
    call->effect = op.effect || !mutated.empty() || !op.binds.empty();
    call->binds = op.binds;
    if (call->results.empty()) {  // an op without results is there for its effect
      call->effect = true;
      call->results.push_back({DType::opaque, {SymInt(0)}, {}});
      call->result_strides.push_back({SymInt(1)});
    }
    call->result_strides.insert(call->result_strides.end(), operand_strides.begin(), operand_strides.end());
    return b_.emit_all(Op::extern_call, std::move(inputs), {{Attr::call, std::shared_ptr<const ExternCall>(std::move(call))}});
  }

  static bool is_contiguous(const TraceTensor& t) { return t.strides == contiguous_strides(t.type.shape); }
  // Whether a value is a view of another, or of an input that is not contiguous.
  bool may_be_strided(const Value& v) const {
    if (v.node->op != Op::input) return is_view(v.node->op);
    return !is_contiguous(info(t_.inputs[static_cast<size_t>(v.node->integer(Attr::index))]));
  }

  static ExternArg extern_arg(const Arg& a, const std::function<uint32_t(TensorId)>& position) {
    if (auto one = std::get_if<Arg::Tensor>(&a.value)) return {ExternArg::Input{position(one->id)}};
    if (auto many = std::get_if<Arg::Tensors>(&a.value)) {
      ExternArg::Inputs list;
      list.optional_elements = many->optional_elements;
      for (TensorId id : many->ids) list.indices.push_back(id == kNoTensor ? -1 : static_cast<int64_t>(position(id)));
      return {list};
    }
    if (auto n = std::get_if<Arg::Number>(&a.value); n && n->tensor != kNoTensor) return {ExternArg::InputNumber{position(n->tensor)}};
    if (auto n = std::get_if<Arg::Number>(&a.value)) return n->symbol ? ExternArg{*n->symbol} : ExternArg{n->value};
    ExternArg out;
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (!std::is_same_v<T, Arg::Tensor> && !std::is_same_v<T, Arg::Number> && !std::is_same_v<T, Arg::Tensors>)
            out.value = v;
        },
        a.value);
    return out;
  }

  // ---- views ----
  static TensorId first_tensor(const TraceOp& op) {
    TensorId first = kNoTensor;
    for_each_tensor(op.args, [&](TensorId id) {
      if (first == kNoTensor) first = id;
    });
    return first;
  }

  void process_view(const TraceOp& op) {
    bool all_known = true;
    for (TensorId r : op.results) all_known &= r == kNoTensor || tensors_[static_cast<size_t>(r)].version >= 0;
    if (all_known) return;  // the operand itself came back
    TensorId base = first_tensor(op);
    for (TensorId r : op.results)
      if (r != kNoTensor && info(r).storage != info(base).storage)
        unsupported(op.schema, ": a result shares memory with something else than the first operand");
    auto chains = view_steps(op, base);
    for (size_t i = 0; i < op.results.size(); ++i) {
      TensorId r = op.results[i];
      if (r == kNoTensor || state(r).version >= 0) continue;
      if (chains) {
        state(r).parent = base;
        state(r).steps = std::move((*chains)[i]);
      } else {
        state(r).parent = storage(r).root;
        state(r).steps = {window_of_root(op, r)};
      }
      value(r);
    }
  }

  // Whatever made it, a tensor is a window of its storage.
  ViewStep window_of_root(const TraceOp& op, TensorId id) {
    const TraceTensor &t = info(id), &root = info(storage(id).root);
    if (t.type.dtype != root.type.dtype || t.conj != root.conj || t.neg != root.neg) unsupported("view ", op.schema);
    if (!lies_within(t, root)) unsupported("view ", op.schema, " of memory outside of the tensor that was given");
    auto view = strided_view(b_.symbols(), {root.type.shape, root.strides, 0}, {t.type.shape, t.strides, t.offset - root.offset});
    if (!view) unsupported("view ", op.schema, " of memory with gaps");
    return {Op::take, {}, std::move(view)};
  }

  bool lies_within(const TraceTensor& t, const TraceTensor& root) {
    SymInt first = t.offset - root.offset, last = first, end(1);
    for (size_t d = 0; d < t.type.shape.size(); ++d) {
      if (b_.symbols().hint(t.type.shape[d]) == 0) return true;
      last = last + (t.type.shape[d] - 1) * t.strides[d];
    }
    for (size_t d = 0; d < root.type.shape.size(); ++d) end = end + (root.type.shape[d] - 1) * root.strides[d];
    return b_.symbols().ask(0, Relation::le, first) && b_.symbols().ask(last, Relation::lt, end);
  }

  using Chains = std::vector<std::vector<ViewStep>>;

  // The steps that make each result of the base, found by lowering the op on a stand-in for it; nothing if that gives no views.
  std::optional<Chains> view_steps(const TraceOp& op, TensorId base) {
    GraphBuilder scratch(b_.graph());
    const Value known = state(base).value;  // at whatever version: only its type counts
    Value stand_in = scratch.input((known ? known : value(base)).type());
    auto [own, tensors] = with_values(op.args, [&](TensorId id) { return id == base ? stand_in : Value(); });
    OpCall call(scratch, op.schema, std::move(own), std::move(tensors), result_types(op));
    return where_handled(op.schema, [&]() -> std::optional<Chains> {
      if (const OpEntry* entry = OpTable::get().find(op.schema))
        if (auto out = entry->lower(call))
          if (auto chains = primitive_steps(call, *out, stand_in)) return chains;
      if (const ViewLowering* lowering = OpTable::get().find_view(op.schema))
        if (auto view = (*lowering)(call)) return Chains{{{Op::copy, {}, std::move(view)}}};
      return std::nullopt;
    });
  }

  static std::optional<Chains> primitive_steps(const OpCall& call, const std::vector<Value>& out, Value stand_in) {
    if (out.size() < call.results().size()) return std::nullopt;
    Chains chains;
    for (size_t i = 0; i < call.results().size(); ++i) {
      std::vector<ViewStep> steps;
      Value v = out[i];
      if (!v || v.dtype() != call.result(i).dtype || v.shape() != call.result(i).shape) return std::nullopt;
      for (; v.node != stand_in.node; v = v.node->inputs[0]) {
        if (v.node->op == Op::input || v.node->inputs.size() != 1 || !(is_view(v.node->op) || v.node->op == Op::bitcast))
          return std::nullopt;
        steps.push_back({v.node->op, v.node->attrs});
      }
      std::reverse(steps.begin(), steps.end());
      chains.push_back(std::move(steps));
    }
    return chains;
  }

  // ---- mutation ----
  // "aten::add_.Tensor" -> "aten::add.Tensor"; "aten::add.out" -> the overloads it may be the out= variant of.
  static std::vector<std::string> functional_names(const std::string& schema, bool* is_out) {
    size_t dot = schema.find('.');
    std::string base = schema.substr(0, dot), overload = dot == std::string::npos ? "" : schema.substr(dot + 1);
    *is_out = overload == "out" || overload.ends_with("_out");
    if (*is_out) {
      if (overload == "out") return {base, base + ".Tensor", base + ".default"};
      return {base + "." + overload.substr(0, overload.size() - 4)};
    }
    if (!base.ends_with('_') || base.ends_with("__")) return {};
    return {base.substr(0, base.size() - 1) + (overload.empty() ? "" : "." + overload)};
  }

  void process_mutation(const TraceOp& op) {
    for (TensorId r : op.results)
      if (r != kNoTensor && std::find(op.mutated.begin(), op.mutated.end(), r) == op.mutated.end() && storage(r).root != kNoTensor &&
          state(r).version < 0)
        unsupported(op.schema, ": a result is a new view of a mutated operand");
    bool is_out = false;
    for (const std::string& name : functional_names(op.schema, &is_out)) {
      if (op.effect || op.mutated.size() != 1) break;
      std::vector<Arg> args = op.args;
      if (is_out) args.pop_back();
      TensorId target = op.mutated[0];
      if (auto v = lower_as(name, args, target)) {
        write(target, *v);
        return;
      }
    }
    auto values = functional_results(op).value_or(std::vector<Value>());
    if (values.empty() && writes_meet(op)) unsupported(op.schema, ": it writes several tensors, one of which lies in another that it uses");
    if (values.empty()) values = call_extern(op, op.schema, op.args, op.mutated);
    size_t fresh = op.results.size();
    for (size_t i = 0; i < op.mutated.size(); ++i) write(op.mutated[i], values[fresh + i]);
    TraceOp rest = op;
    for (TensorId& r : rest.results)
      if (r != kNoTensor && std::find(op.mutated.begin(), op.mutated.end(), r) != op.mutated.end()) r = kNoTensor;
    define(rest, values);
  }

  // Each operand of a call of the host's library has memory of its own: one that is written would not be seen in another.
  bool writes_meet(const TraceOp& op) const {
    if (op.mutated.size() < 2) return false;
    std::map<int32_t, TensorId> written;
    bool meet = false;
    for (TensorId id : op.mutated) meet |= !written.emplace(info(id).storage, id).second;
    for_each_tensor(op.args, [&](TensorId id) {
      auto it = written.find(info(id).storage);
      meet |= it != written.end() && it->second != id;
    });
    return meet;
  }

  // Operations whose arguments are those of another that gives the operands' new elements as its last results.
  static std::string form_with_results(const std::string& schema) {
    static const std::pair<const char*, const char*> forms[] = {
        {"aten::native_batch_norm", "aten::_native_batch_norm_legit_functional"},
        {"aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional"},
        {"aten::_batch_norm_with_update", "aten::_batch_norm_with_update_functional"},
        {"aten::rrelu_with_noise", "aten::rrelu_with_noise_functional"},
    };
    for (auto [name, form] : forms)
      if (schema == name) return form;
    return "";
  }

  // An operation on lists that writes the first one's tensors, each by what is at its own position in the others: the one that gives
  // them as results. Empty if one of them might see what was written to another.
  std::string form_of_list(const TraceOp& op) const {
    bool is_out = false;
    const auto names = functional_names(op.schema, &is_out);
    if (is_out || names.empty() || !op.results.empty() || op.args.empty() || !std::holds_alternative<Arg::Tensors>(op.args[0].value))
      return "";
    std::map<int32_t, size_t> written;  // storages with the position in the list
    for (size_t i = 0; i < op.mutated.size(); ++i)
      if (!written.emplace(info(op.mutated[i]).storage, i).second) return "";
    for (const Arg& a : op.args) {
      const auto* many = std::get_if<Arg::Tensors>(&a.value);
      bool apart = true;
      size_t position = 0;
      for_each_tensor({a}, [&](TensorId id) {
        auto it = written.find(info(id).storage);
        apart = apart && (it == written.end() || (many && it->second == position && id == op.mutated[position]));
        ++position;
      });
      if (!apart) return "";
    }
    return names[0];
  }

  // The operation's results and then the new elements of what it wrote.
  std::optional<std::vector<Value>> functional_results(const TraceOp& op) {
    const std::string form = op.schema.starts_with("aten::_foreach_") ? form_of_list(op) : form_with_results(op.schema);
    if (form.empty() || !options_.lower) return std::nullopt;
    TraceOp with_results = op;
    with_results.effect = false;
    with_results.results.insert(with_results.results.end(), op.mutated.begin(), op.mutated.end());
    return lower(with_results, form, op.args);
  }

  // The new elements of `target`: the functional operation's result, in the target's own type.
  std::optional<Value> lower_as(const std::string& schema, const std::vector<Arg>& args, TensorId target) {
    const OpEntry* entry = OpTable::get().find(schema);
    if (!entry || !options_.lower) return std::nullopt;
    size_t before = b_.graph().nodes().size();
    auto [own, tensors] = with_values(args);
    return where_handled(schema, [&, own = std::move(own), tensors = std::move(tensors)]() mutable -> std::optional<Value> {
      OpCall call(b_, schema, std::move(own), std::move(tensors), {info(target).type});
      auto out = entry->lower(call);
      if (!out || out->size() != 1 || !(*out)[0] || !((*out)[0].shape() == info(target).type.shape)) return std::nullopt;
      Value v = b_.cast((*out)[0], info(target).type.dtype);
      return supported_since(before) ? std::optional(v) : std::nullopt;
    });
  }

  // ---- results ----
  Program finish() {
    std::vector<Value> outputs;
    for (TensorId id : t_.outputs) program_.results.push_back(result(id, outputs));
    for (const ValueRead& r : t_.reads) {
      if (r.tensor == kNoTensor) continue;
      program_.results.push_back(result(r.tensor, outputs));
      ++program_.reads;
    }
    program_.speculative =
        program_.reads > 0 || std::any_of(t_.ops.begin(), t_.ops.end(), [](const TraceOp& op) { return !op.binds.empty(); });
    for (size_t i = 0; i < t_.inputs.size(); ++i) {
      TensorId id = t_.inputs[i];
      StorageState& s = storage(id);
      if (s.root != id || s.version == 0) continue;
      program_.mutated_inputs.push_back(static_cast<int>(i));
      if (program_.speculative) program_.commits.push_back({static_cast<int>(i), static_cast<int>(outputs.size())});
      program_.requests.push_back(program_.speculative ? OutputRequest{info(id).strides, -1} : OutputRequest{{}, static_cast<int>(i)});
      outputs.push_back(value(id));
    }
    program_.graph = std::make_shared<const Graph>(b_.finish(std::move(outputs)));
    return std::move(program_);
  }

  ResultSpec result(TensorId id, std::vector<Value>& outputs) {
    ResultSpec r;
    if (id == kNoTensor) return r;
    StorageState& s = storage(id);
    const TraceTensor& t = info(id);
    if (t.type.dtype == DType::opaque) unsupported("a result of an element type that the graph does not have");
    must_be_written(id);
    r.type = t.type;
    r.strides = t.strides;
    r.conj = t.conj != info(s.root).conj;
    r.neg = t.neg != info(s.root).neg;
    // In the result's own elements, which may be smaller or larger than the root's.
    SymInt offset = t.type.dtype == info(s.root).type.dtype
                        ? t.offset - info(s.root).offset
                        : t.offset - floordiv(info(s.root).offset * SymInt(size_of(info(s.root).type.dtype)), size_of(t.type.dtype));
    if (auto as_input = position_of_input_.find(id); as_input != position_of_input_.end()) {
      r.kind = ResultSpec::Kind::input;
      r.index = as_input->second;
    } else if (s.input >= 0) {
      if (aliased_.contains(t.storage)) unsupported("a returned view of inputs that share memory");
      r.kind = ResultSpec::Kind::view_of_input;
      r.index = s.input;
      r.offset = offset;
    } else {
      auto [it, fresh] = output_of_.emplace(t.storage, static_cast<int>(outputs.size()));
      if (fresh) {
        outputs.push_back(value(s.root));
        program_.requests.push_back({info(s.root).strides, -1});
      }
      r.kind = id == s.root ? ResultSpec::Kind::fresh : ResultSpec::Kind::view_of_fresh;
      r.index = it->second;
      r.offset = offset;
    }
    return r;
  }

  const Trace& t_;
  const FunctionalizeOptions& options_;
  GraphBuilder b_;
  std::vector<TensorState> tensors_;
  std::map<int32_t, StorageState> storages_;
  std::set<int32_t> unwritten_;  // storages made by `empty`
  std::set<int32_t> aliased_;    // storages of which several inputs are windows
  std::map<int32_t, int> output_of_;
  std::map<TensorId, int> position_of_input_;  // the first of each
  Program program_;
};

}  // namespace

Program functionalize(const Trace& trace, const FunctionalizeOptions& options) { return Functionalizer(trace, options).run(); }

}  // namespace broach
