#include "trace/functionalize.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>

#include "support/error.h"
#include "trace/calls.h"
#include "trace/memory.h"
#include "trace/mutations.h"
#include "trace/selections.h"
#include "trace/separate_inputs.h"

namespace broach {

namespace {

bool is_empty(const TraceOp& op) { return op.schema.starts_with("aten::empty") || op.schema.starts_with("aten::new_empty"); }
bool reads_elements(const TraceOp& op) {
  std::string_view name = std::string_view(op.schema).substr(0, op.schema.find('.'));
  return !name.ends_with("_like") && !name.starts_with("aten::new_");
}

// What is scaled by a beta of 0 is not looked at.
bool ignores_first(const TraceOp& op) {
  static const std::set<std::string_view> names = {"aten::addmm", "aten::addmv", "aten::addbmm", "aten::baddbmm", "aten::addr"};
  if (!names.contains(op.schema)) return false;
  const auto& beta = op.args.at(3).value;
  if (const auto* integer = std::get_if<SymInt>(&beta)) return *integer == SymInt(0);
  const auto* number = std::get_if<Scalar>(&beta);
  return number && !is_complex(*number) && as_double(*number) == 0;
}

class Functionalizer {
 public:
  Functionalizer(const Trace& trace, const FunctionalizeOptions& options)
      : t_(trace),
        memory_(trace, b_),
        regions_(trace),
        calls_(trace, options, b_, memory_, regions_),
        lowers_(options.lower),
        tangents_(options.tangents) {
    *b_.graph().symbols() = *trace.symbols;
  }

  Program run() {
    for (size_t i = 0; i < t_.inputs.size(); ++i) memory_.add_input(static_cast<int>(i), t_.inputs[i]);
    for (const TraceOp& op : t_.ops) {
      if (regions_.moves(op)) continue;
      if (op.line >= 0) b_.set_line(t_.lines[static_cast<size_t>(op.line)]);
      process(op);
      regions_.note(op);
    }
    return finish();
  }

 private:
  const TraceTensor& info(TensorId id) const { return memory_.info(id); }

  void process(const TraceOp& op) {
    // A tensor list argument or result of the very tensor itself: nothing happened.
    if (!op.mutated.empty()) return process_mutation(op);
    bool shares = false;
    for (TensorId r : op.results) shares |= r != kNoTensor && memory_.storage(r).root != kNoTensor;
    if (shares) return process_view(op);
    for (size_t i = ignores_first(op) ? 1 : 0; reads_elements(op) && i < op.args.size(); ++i)
      for_each_tensor({op.args[i]}, [&](TensorId id) { memory_.must_be_written(id); });
    define(op, calls_.compute(op));
    if (is_empty(op))
      for (TensorId r : op.results) memory_.mark_unwritten(r);
  }

  void define(const TraceOp& op, const std::vector<Value>& values) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      TensorId r = op.results[i];
      if (r == kNoTensor || !values[i]) continue;
      if (memory_.storage(r).root != kNoTensor) unsupported(op.schema, ": results share memory");
      memory_.define(r, values[i]);
    }
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
    for (TensorId r : op.results) all_known &= r == kNoTensor || memory_.state(r).version >= 0;
    if (all_known) return;  // the operand itself came back
    TensorId base = first_tensor(op);
    for (TensorId r : op.results)
      if (r != kNoTensor && info(r).storage != info(base).storage)
        unsupported(op.schema, ": a result shares memory with something else than the first operand");
    auto chains = view_steps(op, base);
    for (size_t i = 0; i < op.results.size(); ++i) {
      TensorId r = op.results[i];
      if (r == kNoTensor || memory_.state(r).version >= 0) continue;
      if (chains) {
        memory_.state(r).parent = base;
        memory_.state(r).steps = std::move((*chains)[i]);
      } else {
        memory_.state(r).parent = memory_.storage(r).root;
        memory_.state(r).steps = {window_of_root(op, r)};
      }
      memory_.value(r);
    }
  }

  // Whatever made it, a tensor is a window of its storage.
  ViewStep window_of_root(const TraceOp& op, TensorId id) {
    const TraceTensor &t = info(id), &root = info(memory_.storage(id).root);
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
    const Value known = memory_.state(base).value;  // at whatever version: only its type counts
    Value stand_in = scratch.input((known ? known : memory_.value(base)).type());
    // Of others (`expand_as`) only the type counts.
    auto [own, tensors] = with_values(op.args, [&](TensorId id) { return id == base ? stand_in : scratch.input(info(id).type); });
    OpCall call(scratch, op.schema, std::move(own), std::move(tensors), result_types(memory_, op));
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
  void process_mutation(const TraceOp& op) {
    for (TensorId r : op.results)
      if (r != kNoTensor && std::find(op.mutated.begin(), op.mutated.end(), r) == op.mutated.end() &&
          memory_.storage(r).root != kNoTensor && memory_.state(r).version < 0)
        unsupported(op.schema, ": a result is a new view of a mutated operand");
    if (reads_its_own_writes(t_, op)) unsupported(op.schema, " in place, of which an operand lies in what it writes");
    bool is_out = false;
    for (const std::string& name : functional_names(op.schema, &is_out)) {
      if (op.mutated.size() != 1 || (op.effect && !calls_.draws(name, op.mutated[0]))) break;
      std::vector<Arg> args = op.args;
      if (is_out) args.pop_back();
      TensorId target = op.mutated[0];
      if (auto v = calls_.lower_as(name, args, target, is_out)) {
        memory_.write(target, *v);
        return;
      }
    }
    auto values = functional_results(op).value_or(std::vector<Value>());
    if (values.empty() && writes_meet(t_, op))
      unsupported(op.schema, ": it writes several tensors, one of which lies in another that it uses");
    if (values.empty()) values = calls_.call_extern(op, op.mutated);
    size_t fresh = op.results.size();
    for (size_t i = 0; i < op.mutated.size(); ++i) memory_.write(op.mutated[i], values[fresh + i]);
    TraceOp rest = op;
    for (TensorId& r : rest.results)
      if (r != kNoTensor && std::find(op.mutated.begin(), op.mutated.end(), r) != op.mutated.end()) r = kNoTensor;
    define(rest, values);
  }

  // The operation's results and then the new elements of what it wrote.
  std::optional<std::vector<Value>> functional_results(const TraceOp& op) {
    const std::string form = form_with_results(t_, op);
    if (form.empty() || !lowers_) return std::nullopt;
    TraceOp with_results = op;
    with_results.effect = false;
    with_results.results.insert(with_results.results.end(), op.mutated.begin(), op.mutated.end());
    return calls_.lower(with_results, form);
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
    program_.decides_first = may_decide_first(outputs);
    const bool commits = program_.speculative && !program_.decides_first;
    for (size_t i = 0; i < t_.inputs.size(); ++i) {
      TensorId id = t_.inputs[i];
      StorageState& s = memory_.storage(id);
      if (s.root != id || s.version == 0) continue;
      program_.mutated_inputs.push_back(static_cast<int>(i));
      if (commits) program_.commits.push_back({static_cast<int>(i), static_cast<int>(outputs.size())});
      requests_.push_back(commits ? OutputRequest{info(id).strides, -1} : OutputRequest{{}, static_cast<int>(i)});
      outputs.push_back(memory_.value(id));
    }
    keep_what_may_fail(b_, outputs, t_.inputs.size() - tangents_, [&](const Value& v) { return calls_.is_refused(v); });
    program_.graph = std::make_shared<const Graph>(b_.finish(std::move(outputs), std::move(requests_)));
    return std::move(program_);
  }

  // Whether the values that the program read are outputs, and what they are computed of has no effects, nor finds out sizes. Gradients are
  // computed beside the whole.
  bool may_decide_first(const std::vector<Value>& outputs) const {
    auto binds = [](const TraceOp& op) { return !op.binds.empty(); };
    if (program_.reads == 0 || tangents_ > 0 || std::ranges::any_of(t_.ops, binds)) return false;
    std::vector<bool> is_read(b_.graph().nodes().size());
    for (auto r = program_.results.end() - static_cast<std::ptrdiff_t>(program_.reads); r != program_.results.end(); ++r) {
      if (r->kind != ResultSpec::Kind::fresh) return false;
      is_read[outputs[static_cast<size_t>(r->index)].node->id] = true;
    }
    for (const Node& n : std::views::reverse(b_.graph().nodes())) {
      if (!is_read[n.id]) continue;
      if (n.has_effect()) return false;
      for (const Value& v : n.inputs) is_read[v.node->id] = true;
    }
    return true;
  }

  ResultSpec result(TensorId id, std::vector<Value>& outputs) {
    ResultSpec r;
    if (id == kNoTensor) return r;
    StorageState& s = memory_.storage(id);
    const TraceTensor& t = info(id);
    if (t.type.dtype == DType::opaque) unsupported("a result of an element type that the graph does not have");
    memory_.must_be_written(id);
    r.type = t.type;
    r.strides = t.strides;
    r.conj = t.conj != info(s.root).conj;
    r.neg = t.neg != info(s.root).neg;
    // In the result's own elements, which may be smaller or larger than the root's.
    SymInt offset = t.type.dtype == info(s.root).type.dtype
                        ? t.offset - info(s.root).offset
                        : t.offset - floordiv(info(s.root).offset * SymInt(size_of(info(s.root).type.dtype)), size_of(t.type.dtype));
    if (const int position = memory_.position_of_input(id); position >= 0) {
      r.kind = ResultSpec::Kind::input;
      r.index = position;
    } else if (s.input >= 0) {
      if (memory_.is_aliased(id)) unsupported("a returned view of inputs that share memory");
      r.kind = ResultSpec::Kind::view_of_input;
      r.index = s.input;
      r.offset = offset;
    } else {
      auto [it, fresh] = output_of_.emplace(t.storage, static_cast<int>(outputs.size()));
      if (fresh) {
        outputs.push_back(regions_.given_back(b_, s.root, memory_.value(s.root)));
        requests_.push_back({info(s.root).strides, -1});
      }
      r.kind = id == s.root ? ResultSpec::Kind::fresh : ResultSpec::Kind::view_of_fresh;
      r.index = it->second;
      r.offset = offset;
    }
    return r;
  }

  const Trace& t_;
  GraphBuilder b_;
  StorageValues memory_;
  Regions regions_;
  Calls calls_;
  bool lowers_;
  size_t tangents_;  // the last inputs
  std::map<int32_t, int> output_of_;
  std::vector<OutputRequest> requests_;  // by output of the graph
  Program program_;
};

}  // namespace

Program functionalize(const Trace& trace, const FunctionalizeOptions& options) {
  const std::optional<Trace> separate = with_separate_inputs(trace);
  return Functionalizer(separate ? *separate : trace, options).run();
}

}  // namespace broach
