#include "schedule/schedule.h"

#include <algorithm>
#include <set>

#include "support/bug.h"

namespace broach {

namespace {

// Strides of a dense tensor whose dimensions are stored in this order, outermost first.
Shape strides_in_order(const Shape& shape, const std::vector<size_t>& order) {
  Shape strides(shape.size());
  SymInt step(1);
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step = step * (shape[order[i]] == SymInt(0) ? SymInt(1) : shape[order[i]]);
  }
  return strides;
}

Shape channels_last_strides(const Shape& shape) {
  std::vector<size_t> order{0};
  for (size_t d = 2; d < shape.size(); ++d) order.push_back(d);
  order.push_back(1);
  return strides_in_order(shape, order);
}

bool is_channels_last(const Shape& shape, const Shape& strides) { return shape.size() >= 3 && strides == channels_last_strides(shape); }

SymInt extent_of(const Shape& shape, const Shape& strides) {
  SymInt n(1);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == SymInt(0)) return 0;
    n = n + (shape[d] - 1) * strides[d];
  }
  return n;
}

// PyTorch's rule for a view with other sizes: dimensions that are contiguous with each other may be regrouped.
std::optional<Shape> reshaped_strides(const Shape& from, const Shape& strides, const Shape& to) {
  Shape out(to.size(), SymInt(1));
  auto view_d = static_cast<int64_t>(to.size()) - 1;
  SymInt base = strides.empty() ? SymInt(1) : strides.back(), tensor_numel(1), view_numel(1);
  for (auto d = static_cast<int64_t>(from.size()) - 1; d >= 0; --d) {
    auto i = static_cast<size_t>(d);
    tensor_numel = tensor_numel * from[i];
    bool ends_chunk = d == 0 || (!(from[i - 1] == SymInt(1)) && !(strides[i - 1] == tensor_numel * base));
    if (!ends_chunk) continue;
    while (view_d >= 0 && (!(view_numel == tensor_numel) || to[static_cast<size_t>(view_d)] == SymInt(1))) {
      out[static_cast<size_t>(view_d)] = view_numel * base;
      view_numel = view_numel * to[static_cast<size_t>(view_d)];
      --view_d;
    }
    if (!(view_numel == tensor_numel)) return std::nullopt;
    if (d > 0) {
      base = strides[i - 1];
      tensor_numel = view_numel = SymInt(1);
    }
  }
  if (view_d >= 0 && !from.empty()) return std::nullopt;
  return out;
}

}  // namespace

Operation operation_of(const Node& node) {
  Operation out{node.op, node.attrs, {}, node.results};
  for (const Value& v : node.inputs) out.operands.push_back(v.type());
  return out;
}

std::optional<Place> place_of_view(const Node& n, const Place& p) {
  Place out{p.buffer, p.offset, {}};
  const Shape& from = n.inputs[0].shape();
  const Shape& to = n.results[0].shape;
  switch (n.op) {
    case Op::permute:
      for (int64_t d : n.ints(Attr::dims)) out.strides.push_back(p.strides[static_cast<size_t>(d)]);
      return out;
    case Op::expand:
      for (size_t d = 0; d < to.size(); ++d) out.strides.push_back(from[d] == to[d] ? p.strides[d] : SymInt(0));
      return out;
    case Op::slice:
      for (size_t d = 0; d < to.size(); ++d) {
        out.offset = out.offset + n.sizes(Attr::starts)[d] * p.strides[d];
        out.strides.push_back(p.strides[d] * SymInt(n.ints(Attr::steps)[d]));
      }
      return out;
    case Op::reshape: {
      auto strides = reshaped_strides(from, p.strides, to);
      if (!strides) return std::nullopt;
      out.strides = std::move(*strides);
      return out;
    }
    default: return std::nullopt;
  }
}

namespace {

// Gives outputs that need memory of their own a `copy`: inputs and values that are returned twice, or written into an input.
Graph separate_outputs(const Graph& graph, const std::vector<OutputRequest>& requests) {
  GraphBuilder b(graph);
  std::vector<std::vector<Value>> now(graph.nodes().size());
  for (const Node& n : graph.nodes()) {
    b.set_line_index(n.line);
    std::vector<Value> inputs;
    for (const Value& v : n.inputs) inputs.push_back(now[v.node->id].at(v.index));
    now[n.id] = n.op == Op::input ? std::vector{b.input(n.results[0])} : b.emit_all(n.op, std::move(inputs), n.attrs);
  }
  std::vector<Value> outputs;
  std::set<std::pair<const Node*, uint32_t>> taken;
  // What may be written in place lies in its input; who else wants it gets a copy.
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Node& n = *graph.outputs()[i].node;
    if (requests[i].into_input >= 0 && (kind_of(n.op) == OpKind::routine || n.op == Op::cat))
      taken.insert({now[n.id][graph.outputs()[i].index].node, graph.outputs()[i].index});
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    Value v = now[graph.outputs()[i].node->id][graph.outputs()[i].index];
    OpKind k = kind_of(v.node->op);
    // An extern's result can be handed out as it is if it lies as the caller expects.
    bool fits = k != OpKind::external ||
                (v.index < v.node->call().result_strides.size() && v.node->call().result_strides[v.index] == requests[i].strides);
    if (requests[i].into_input >= 0 && v.node->op == Op::input) v = b.emit(Op::copy, {v}, {{Attr::index, -1 - static_cast<int64_t>(i)}});
    bool own = k != OpKind::source && fits && requests[i].into_input < 0 && taken.insert({v.node, v.index}).second;
    outputs.push_back(own ? v : b.emit(Op::copy, {v}, {{Attr::index, static_cast<int64_t>(i)}}));
  }
  return b.finish(std::move(outputs));
}

class Scheduler {
 public:
  Scheduler(std::shared_ptr<const Graph> graph, const std::vector<Shape>& input_strides, const std::vector<OutputRequest>& requests,
            const ScheduleOptions& options)
      : g_(*graph), input_strides_(input_strides), requests_(requests), options_(options) {
    s_.graph = std::move(graph);
    size_t n = g_.nodes().size();
    layouts_.resize(n);
    places_.resize(n);
    unit_of_.assign(n, -1);
    must_store_.assign(n, false);
    must_split_.assign(n, false);
    absorbed_.assign(n, false);
  }

  Schedule run() {
    request_outputs();
    in_place_ = updates_in_place(g_, requests_);
    match_contractions();
    share_outputs();
    find_channels_last();
    for (const Node& n : g_.nodes()) choose_layouts(n);
    for (const Node& n : g_.nodes()) store_operands(n);
    // Each round stores or splits at least one node more.
    for (size_t rounds = 0; !try_groups(); ++rounds) {
      check(rounds <= 2 * g_.nodes().size(), "schedule: the kernels do not settle");
      s_.buffers.clear(), s_.steps.clear();
    }
    share_kernels(s_.steps);
    pass_numbers(s_, options_.numbers);
    return std::move(s_);
  }

 private:
  // ---- what is asked of us ----
  void request_outputs() {
    for (size_t i = 0; i < g_.outputs().size(); ++i) {
      const Node& n = *g_.outputs()[i].node;
      if (n.op == Op::extern_call) continue;
      output_of_[{n.id, g_.outputs()[i].index}] = static_cast<int>(i);
      must_store_[n.id] = true;
      if (requests_[i].into_input >= 0) must_split_[n.id] = true;
    }
  }

  // An output that is a product with its dimensions regrouped: the product is written where the output lies.
  void share_outputs() {
    for (size_t i = 0; i < g_.outputs().size(); ++i) {
      const Node& n = *g_.outputs()[i].node;
      auto own = output_of_.find({n.id, 0});
      if (n.op != Op::reshape || own == output_of_.end() || requests_[i].into_input >= 0) continue;
      const Node& base = *n.inputs[0].node;
      auto product = stored_as_.find(base.id);
      if (product == stored_as_.end() || product->second->op != Op::dot || output_of_.contains({base.id, 0})) continue;
      const Shape& strides = requests_[i].strides;
      if (!strides.empty() && !(strides == contiguous_strides(n.results[0].shape))) continue;
      output_of_.erase(own);
      output_of_[{base.id, 0}] = static_cast<int>(i);
      must_store_[n.id] = false, must_store_[base.id] = true;
      shared_outputs_[n.id] = &base;
    }
  }

  // The value that lies where this output does.
  Value stored_output(const Value& v) const {
    auto it = shared_outputs_.find(v.node->id);
    return it == shared_outputs_.end() ? v : Value{it->second, 0};
  }

  // ---- contractions and their epilogues ----
  struct Contraction {
    const Node* node;
    const Node* last;  // the node whose value is stored
    Value bias;
    std::vector<std::pair<Op, Value>> epilogue;
  };

  const Node* only_user(const Node& n) const {
    const auto& u = users_[n.id];
    return u.size() == 1 && !output_of_.contains({n.id, 0}) ? u[0] : nullptr;
  }

  // A value with one element for each entry of dimension `dim` of the shape, repeated along the others.
  static std::optional<Value> vector_along(const Value& v, size_t dim, const Shape& shape) {
    if (v.node->op != Op::expand || !(v.shape() == shape)) return std::nullopt;
    const Value& x = v.node->inputs[0];
    for (size_t d = 0; d < shape.size(); ++d)
      if (!(x.shape()[d] == (d == dim ? shape[d] : SymInt(1)))) return std::nullopt;
    return x;
  }

  void match_contractions() {
    users_.resize(g_.nodes().size());
    for (const Node& n : g_.nodes())
      for (const Value& v : n.inputs) users_[v.node->id].push_back(&n);
    for (const Node& n : g_.nodes())
      if (kind_of(n.op) == OpKind::heavy) match_epilogue(n);
  }

  void match_epilogue(const Node& n) {
    Contraction c{&n, &n, {}, {}}, longer = c;
    if (n.op == Op::conv && n.inputs.size() > 2) longer.bias = c.bias = n.inputs[2];
    // Between a cast to fp32 and the cast back the epilogue could not be stored; it ends where it was last as wide as the result.
    while (options_.fuse && longer.epilogue.size() < 6 && extend(longer))
      if (longer.last->results[0] == n.results[0]) c = longer;
    for (const Node* m = &n; m != c.last; m = only_user(*m)) absorbed_[only_user(*m)->id] = true;
    contractions_[n.id] = c;
    stored_as_[c.last->id] = &n;
  }

  // Takes the next operation along. Everything behind the contraction itself is computed in fp32, whatever is stored.
  bool extend(Contraction& c) const {
    const Node& n = *c.node;
    const Node* last = c.last;
    const Node* u = only_user(*last);
    if (!u || absorbed_[u->id] || !(u->results[0].shape == n.results[0].shape)) return false;
    const DType own = n.results[0].dtype, now = last->results[0].dtype, next = u->results[0].dtype;
    c.last = u;
    if (u->op == Op::cast)
      return !options_.strict && own == DType::bf16 && ((now == own && next == DType::f32) || (now == DType::f32 && next == own));
    if (next != now) return false;
    if (is_activation(u->op)) {
      if (options_.strict && u->op == Op::relu) return false;  // the library's makes 0 of NaN
      c.epilogue.push_back({u->op, {}});
      return true;
    }
    if ((u->op != Op::add && u->op != Op::mul) || u->inputs[0] == u->inputs[1]) return false;
    Value other = u->inputs[0].node == last ? u->inputs[1] : u->inputs[0];
    auto vector = vector_along(other, n.op == Op::conv ? 1 : n.results[0].shape.size() - 1, n.results[0].shape);
    if (u->op == Op::add && !c.bias && c.epilogue.empty() && vector) {
      c.bias = *vector;
      return true;
    }
    // What was widened for this alone is read as it was.
    if (next != own && other.node->op == Op::cast && other.node->inputs[0].dtype() == own) other = other.node->inputs[0];
    if (!vector && (!is_large(other) || other.dtype() != own)) return false;
    c.epilogue.push_back({u->op, other});
    return true;
  }

  // An operand worth reading within the epilogue: it exists in memory anyway, or will have to.
  bool is_large(const Value& v) const {
    const Node* n = v.node;
    if (n->op == Op::expand) return false;
    return kind_of(n->op) >= OpKind::heavy || n->op == Op::input || users_[n->id].size() > 1 || is_elementwise(n->op);
  }

  // ---- layouts: the strides of each value, if it is stored ----
  void choose_layouts(const Node& n) {
    auto& out = layouts_[n.id];
    for (size_t i = 0; i < n.results.size(); ++i) {
      out.push_back(layout(n, i));
      auto it = output_of_.find({n.id, static_cast<uint32_t>(i)});
      if (it == output_of_.end()) continue;
      const OutputRequest& r = requests_[static_cast<size_t>(it->second)];
      if (g_.outputs()[static_cast<size_t>(it->second)].node != &n) out[i] = contiguous_strides(n.results[i].shape);
      else if (r.into_input >= 0) out[i] = input_strides_[static_cast<size_t>(r.into_input)];
      else if (!r.strides.empty()) out[i] = r.strides;
    }
  }

  // What a convolution reads and adds should lie as it does itself: channels last.
  void find_channels_last() {
    channels_last_.assign(g_.nodes().size(), false);
    auto wish = [&](const Value& v) { channels_last_[v.node->id] = channels_last_[v.node->id] || v.rank() >= 3; };
    for (size_t i = g_.nodes().size(); i-- > 0;) {
      const Node& n = g_.nodes()[i];
      if (n.op == Op::conv) wish(n.inputs[0]);
      if (auto it = stored_as_.find(n.id); it != stored_as_.end() && it->second->op == Op::conv) channels_last_[i] = true;
      if (channels_last_[i] && (is_elementwise(n.op) || n.op == Op::cat || n.op == Op::pad))
        for (const Value& v : n.inputs) wish(v);
    }
  }

  Shape layout(const Node& n, size_t i) {
    const Shape& shape = n.results[i].shape;
    if (n.op == Op::input) return input_strides_[static_cast<size_t>(n.integer(Attr::index))];
    if (in_place_[n.id] >= 0) return input_strides_[static_cast<size_t>(in_place_[n.id])];
    if (n.op == Op::extern_call) {
      const auto& strides = n.call().result_strides;
      return i < strides.size() && strides[i].size() == shape.size() ? strides[i] : contiguous_strides(shape);
    }
    // Heads beside each other, as the projection that follows reads them.
    if (n.op == Op::attention && i == 0) return strides_in_order(shape, {0, 2, 1, 3});
    if (n.op == Op::conv || (channels_last_[n.id] && n.op != Op::dot && shape.size() >= 3)) return channels_last_strides(shape);
    if (auto it = stored_as_.find(n.id); it != stored_as_.end() && it->second != &n) return layouts_[it->second->id][0];
    if (is_elementwise(n.op))
      for (const Value& v : n.inputs)
        if (v.shape() == shape && is_channels_last(shape, layouts_[v.node->id][v.index])) return channels_last_strides(shape);
    if (is_view(n.op) && n.op != Op::cat && n.op != Op::pad) {
      // As a window this keeps the operand's order; stored, it is contiguous, which the users of the layout must not confuse.
      auto p = place_of_view(n, {0, 0, layouts_[n.inputs[0].node->id][n.inputs[0].index]});
      if (p && is_channels_last(shape, p->strides)) return p->strides;
    }
    if ((n.op == Op::cat || n.op == Op::pad) && is_channels_last(n.inputs[0].shape(), layouts_[n.inputs[0].node->id][n.inputs[0].index]))
      return channels_last_strides(shape);
    return contiguous_strides(shape);
  }

  // ---- who must be in memory ----
  void store_operands(const Node& n) {
    OpKind k = kind_of(n.op);
    if (k == OpKind::external || k == OpKind::routine) {
      for (const Value& v : n.inputs) store_window(v);
    } else if (k == OpKind::heavy) {
      Contraction& c = contractions_.at(n.id);
      for (const Value& v : n.inputs) store_for_contraction(v);
      if (c.bias) store_window(c.bias);
      for (auto& [op, v] : c.epilogue)
        if (v) store_window(v);
    } else if (n.op == Op::take) {
      store_window(n.inputs[0]);
    }
  }

  // The strides a view would have on its operand's layout, if it needs no copy.
  std::optional<Place> window_layout(const Value& v) const {
    const Node& n = *v.node;
    if (!is_view(n.op)) return Place{static_cast<int>(n.id), 0, layouts_[n.id][v.index]};
    if (must_store_[n.id] || n.op == Op::cat || n.op == Op::pad) return Place{static_cast<int>(n.id), 0, layouts_[n.id][v.index]};
    auto inner = window_layout(n.inputs[0]);
    return inner ? place_of_view(n, *inner) : std::nullopt;
  }

  void store_window(const Value& v) {
    const Node* n = v.node;
    if (window_layout(v))
      while (is_view(n->op) && !must_store_[n->id] && n->op != Op::cat && n->op != Op::pad) n = n->inputs[0].node;
    if (kind_of(n->op) == OpKind::source && n->op != Op::input) n = v.node;  // a constant: fill the whole value
    if (n->op != Op::input) must_store_[n->id] = true;
  }

  // Libraries want a dimension with stride 1.
  void store_for_contraction(const Value& v) {
    auto w = window_layout(v);
    bool unit =
        w && (w->strides.empty() || std::any_of(w->strides.begin(), w->strides.end(), [](const SymInt& s) { return s == SymInt(1); }));
    bool broadcast = w && std::any_of(w->strides.begin(), w->strides.end(), [](const SymInt& s) { return s == SymInt(0); });
    if (unit && !broadcast) store_window(v);
    else must_store_[v.node->id] = true;
  }

  // ---- groups, buffers and steps ----
  bool try_groups() {
    auto absorbed = absorbed_, must_store = must_store_;
    for (auto& [id, c] : contractions_) absorbed[c.last->id] = must_store[c.last->id] = true;
    groups_ = group_nodes({g_, options_, std::move(must_store), must_split_, std::move(absorbed)});
    s_.contractions = 0;
    for (auto& [id, c] : contractions_) {
      groups_.in_memory[id] = c.last == c.node;
      groups_.in_memory[c.last->id] = true;
    }
    for (auto& p : places_) p.clear();
    input_buffers_.clear();
    std::fill(unit_of_.begin(), unit_of_.end(), -1);
    for (const Node& n : g_.nodes()) make_buffers(n);
    units_.clear();
    for (size_t k = 0; k < groups_.roots.size(); ++k) add_unit({static_cast<int>(k), nullptr, -1}, groups_.roots[k]);
    for (const Node& n : g_.nodes()) {
      if (kind_of(n.op) == OpKind::heavy) add_unit({-1, &n, -1}, {contractions_.at(n.id).last});
      if (kind_of(n.op) == OpKind::routine || kind_of(n.op) == OpKind::external) add_unit({-1, &n, -1}, {&n});
    }
    return build_units() && order_units();
  }

  struct Unit {
    int group;         // a kernel, or
    const Node* node;  // a heavy node
    int mark;          // for ordering: -1 not visited, 0 being visited, 1 done
    Step step{};
    bool empty = false;  // nothing to do
  };

  void add_unit(Unit u, const std::vector<const Node*>& values) {
    for (const Node* n : values) unit_of_[n->id] = static_cast<int>(units_.size());
    units_.push_back(std::move(u));
  }

  void make_buffers(const Node& n) {
    if (!groups_.in_memory[n.id]) return;
    bool fresh_kind = n.op != Op::input;
    for (size_t i = 0; i < n.results.size(); ++i) {
      const Shape& strides = layouts_[n.id][i];
      Buffer b{Buffer::Kind::arena, -1, n.results[i], strides, extent_of(n.results[i].shape, strides)};
      if (!fresh_kind) b.kind = Buffer::Kind::input, b.index = static_cast<int>(n.integer(Attr::index));
      else if (in_place_[n.id] >= 0) b.kind = Buffer::Kind::input, b.index = in_place_[n.id], b.version = version_of(n);
      else if (n.op == Op::extern_call) b.kind = Buffer::Kind::external;
      else if (auto it = output_of_.find({n.id, static_cast<uint32_t>(i)}); it != output_of_.end()) {
        int into = requests_[static_cast<size_t>(it->second)].into_input;
        b.kind = into >= 0 ? Buffer::Kind::input : Buffer::Kind::output;
        b.index = into >= 0 ? into : it->second;
        const Value& out = g_.outputs()[static_cast<size_t>(it->second)];
        if (out.node != &n) b.type = out.type(), b.strides = contiguous_strides(out.shape());  // see share_outputs
      }
      places_[n.id].push_back({buffer_id(b), 0, strides});
    }
  }

  // How many writes in place lie between the input and this value.
  int version_of(const Node& n) const { return in_place_[n.id] >= 0 ? 1 + version_of(*n.inputs[0].node) : 0; }

  // Whether a value that is to be copied into an input is there already.
  bool is_there(const Node& copy) const {
    auto it = output_of_.find({copy.id, 0});
    return copy.op == Op::copy && it != output_of_.end() && requests_[static_cast<size_t>(it->second)].into_input >= 0 &&
           in_place_[copy.inputs[0].node->id] >= 0;
  }

  // Inputs have one buffer however many values lie in them, one after the other if they are written in place.
  int buffer_id(const Buffer& b) {
    const auto next = static_cast<int>(s_.buffers.size());
    if (b.kind == Buffer::Kind::input) {
      auto [it, fresh] = input_buffers_.emplace(std::pair(b.index, b.version), next);
      if (!fresh) return it->second;
    }
    s_.buffers.push_back(b);
    return next;
  }

  std::optional<Place> window(const Value& v) const {
    const Node& n = *v.node;
    if (groups_.in_memory[n.id]) return places_[n.id][v.index];
    if (!is_view(n.op)) return std::nullopt;
    auto inner = n.op == Op::cat || n.op == Op::pad ? std::nullopt : window(n.inputs[0]);
    return inner ? place_of_view(n, *inner) : std::nullopt;
  }

  Operand operand(const Value& v) const {
    auto p = window(v);
    check(p.has_value(), "schedule: value %", v.node->id, " (", name_of(v.node->op), ") is not in memory");
    return {v.type(), *p};
  }

  bool build_units() {
    bool ok = true;
    for (Unit& u : units_) {
      if (u.group >= 0) ok = build_group(u) && ok;
      else if (kind_of(u.node->op) == OpKind::heavy) u.step = contraction_step(*u.node);
      else if (kind_of(u.node->op) == OpKind::routine) u.step = routine_step(*u.node);
      else u.step = extern_step(*u.node);
      u.step.line = u.node ? u.node->line : groups_.roots[static_cast<size_t>(u.group)][0]->line;
    }
    return ok;
  }

  bool build_group(Unit& u) {
    const auto& roots = groups_.roots[static_cast<size_t>(u.group)];
    u.empty = roots.size() == 1 && is_there(*roots[0]);
    if (u.empty) return true;
    std::map<std::pair<const Node*, uint32_t>, Place> windows;
    auto place = [&](const Value& v) -> const Place* {
      // What this kernel computes itself, or a window of it, is not in memory yet.
      const Node* base = v.node;
      while (!groups_.in_memory[base->id] && is_view(base->op) && base->op != Op::cat && base->op != Op::pad) base = base->inputs[0].node;
      if (std::find(roots.begin(), roots.end(), base) != roots.end()) return nullptr;
      auto key = std::pair(v.node, v.index);
      if (auto it = windows.find(key); it != windows.end()) return &it->second;
      auto p = window(v);
      return p ? &windows.emplace(key, *p).first->second : nullptr;
    };
    const Node* misfit = nullptr;
    auto step = build_kernel(roots, place, [&](const Node* n) { return places_[n->id][0]; }, options_, &misfit);
    if (!step) return resolve_misfit(*misfit, roots);
    for (const auto& s : step->kernel->stores)
      if (!overwrites_safely(*step, s)) {
        // The kernel would read elements that it has overwritten: compute the value elsewhere first.
        must_store_[roots[0]->inputs[0].node->id] = true;
        must_split_[roots[0]->inputs[0].node->id] = true;
        return false;
      }
    for (const auto& s : step->kernel->stores) u.step.writes.push_back(step->buffers[static_cast<size_t>(s.access.buffer)]);
    for (const auto& e : step->kernel->exprs)
      if (e.kind == KernelExpr::Kind::load) u.step.reads.push_back(step->buffers[static_cast<size_t>(e.access.buffer)]);
    u.step.work = std::move(*step);
    return true;
  }

  bool resolve_misfit(const Node& n, const std::vector<const Node*>& roots) {
    bool is_root = std::find(roots.begin(), roots.end(), &n) != roots.end();
    if (is_root && (roots.size() == 1 || must_split_[n.id])) {
      for (const Node* r : roots) check(!must_split_[r->id], "schedule: %", n.id, " (", name_of(n.op), ") fits no kernel");
      for (const Node* r : roots) must_split_[r->id] = true;
      return false;
    }
    must_store_[n.id] = true;
    if (is_root) must_split_[n.id] = true;
    return false;
  }

  bool overwrites_safely(const KernelStep& step, const KernelStore& store) const {
    int target = step.buffers[static_cast<size_t>(store.access.buffer)];
    if (s_.buffers[static_cast<size_t>(target)].kind != Buffer::Kind::input) return true;
    for (const auto& e : step.kernel->exprs)
      if (e.kind == KernelExpr::Kind::load && step.buffers[static_cast<size_t>(e.access.buffer)] == target && !(e.access == store.access))
        return false;
    return true;
  }

  Step contraction_step(const Node& n) {
    const Contraction& c = contractions_.at(n.id);
    ContractionStep k{operation_of(n), {}, {}, {}, {}, operand({c.last, 0}), {}};
    Step step;
    for (size_t i = 0; i < 2; ++i) {
      k.operands.push_back(operand(n.inputs[i]));
      const Buffer& b = s_.buffers[static_cast<size_t>(k.operands[i].place.buffer)];
      k.weight_inputs.push_back(b.kind == Buffer::Kind::input ? b.index : -1);
    }
    if (c.bias) k.bias = operand(c.bias);
    for (const auto& [op, v] : c.epilogue) k.epilogue.push_back({op, v ? std::optional(operand(v)) : std::nullopt});
    for (const auto& o : k.operands) step.reads.push_back(o.place.buffer);
    if (k.bias) step.reads.push_back(k.bias->place.buffer);
    for (const auto& e : k.epilogue)
      if (e.operand) step.reads.push_back(e.operand->place.buffer);
    step.writes.push_back(k.result.place.buffer);
    step.work = std::move(k);
    ++s_.contractions;
    return step;
  }

  Step routine_step(const Node& n) {
    RoutineStep r{operation_of(n), {}, {}};
    Step step;
    for (const Value& v : n.inputs) {
      r.operands.push_back(operand(v));
      step.reads.push_back(r.operands.back().place.buffer);
    }
    for (uint32_t i = 0; i < n.results.size(); ++i) {
      r.results.push_back({n.results[i], is_read({&n, i}) ? places_[n.id][i] : Place{-1, 0, layouts_[n.id][i]}});
      if (r.results.back().place.buffer >= 0) step.writes.push_back(r.results.back().place.buffer);
    }
    step.work = std::move(r);
    return step;
  }

  bool is_read(const Value& v) const {
    if (output_of_.contains({v.node->id, v.index})) return true;
    const auto& users = users_[v.node->id];
    return std::any_of(users.begin(), users.end(),
                       [&](const Node* u) { return std::find(u->inputs.begin(), u->inputs.end(), v) != u->inputs.end(); });
  }

  Step extern_step(const Node& n) {
    ExternStep e{operation_of(n), {}, {}};
    Step step;
    for (const Value& v : n.inputs) {
      e.operands.push_back(operand(v));
      step.reads.push_back(e.operands.back().place.buffer);
    }
    for (uint32_t i = 0; i < n.results.size(); ++i) {
      e.results.push_back(places_[n.id][i].buffer);
      step.writes.push_back(places_[n.id][i].buffer);
    }
    step.work = std::move(e);
    return step;
  }

  // Dependencies first; what writes into an input runs after all that read it; effects keep their order.
  bool order_units() {
    std::map<int, std::vector<int>> readers, writers;
    for (size_t i = 0; i < units_.size(); ++i) {
      for (int b : units_[i].step.reads) readers[b].push_back(static_cast<int>(i));
      for (int b : units_[i].step.writes) writers[b].push_back(static_cast<int>(i));
    }
    std::vector<std::vector<int>> before(units_.size());
    int last_effect = -1;
    for (size_t i = 0; i < units_.size(); ++i) {
      auto me = static_cast<int>(i);
      for (int b : units_[i].step.reads)
        if (s_.buffers[static_cast<size_t>(b)].kind != Buffer::Kind::input || s_.buffers[static_cast<size_t>(b)].version > 0)
          before[i].insert(before[i].end(), writers[b].begin(), writers[b].end());
      for (int b : units_[i].step.writes)
        for (int older : overwritten(b))
          for (int r : readers[older])
            if (r != me) before[i].push_back(r);
      if (units_[i].node && units_[i].node->has_effect()) {
        if (last_effect >= 0) before[i].push_back(last_effect);
        last_effect = me;
      }
    }
    for (const Node& n : g_.nodes())
      if (unit_of_[n.id] >= 0 && !visit(unit_of_[n.id], before)) return untangle();
    for (const Value& v : g_.outputs()) {
      const Value at = stored_output(v);
      s_.output_buffers.push_back(places_[at.node->id].at(at.index).buffer);
    }
    for (auto& step : s_.steps) {
      s_.kernels += std::holds_alternative<KernelStep>(step.work);
      s_.routines += std::holds_alternative<RoutineStep>(step.work);
      s_.externs += std::holds_alternative<ExternStep>(step.work);
    }
    return true;
  }

  // Buffers whose elements are gone once this one is written: of an input, those of earlier versions.
  std::vector<int> overwritten(int buffer) const {
    const Buffer& b = s_.buffers[static_cast<size_t>(buffer)];
    std::vector<int> out;
    if (b.kind != Buffer::Kind::input) return out;
    for (auto it = input_buffers_.lower_bound({b.index, 0}); it != input_buffers_.end() && it->first.first == b.index; ++it)
      if (it->first.second < b.version || b.version == 0) out.push_back(it->second);
    return out;
  }

  // Somebody needs old elements after new ones: give writes a memory of their own.
  bool stop_writing_in_place() {
    in_place_.assign(in_place_.size(), -1);
    for (const Node& n : g_.nodes())
      if (kind_of(n.op) == OpKind::routine) layouts_[n.id][0] = layout(n, 0);
    return false;
  }

  // Inputs that are written from each other's old elements: compute all new elements elsewhere first.
  bool untangle() {
    if (std::any_of(in_place_.begin(), in_place_.end(), [](int m) { return m >= 0; })) return stop_writing_in_place();
    check(!untangled_, "schedule: steps depend on each other in a circle");
    untangled_ = true;
    for (size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i].into_input >= 0) {
        const Node* source = g_.outputs()[i].node->inputs[0].node;
        must_store_[source->id] = must_split_[source->id] = true;
      }
    return false;
  }

  // False if steps depend on each other in a circle.
  bool visit(int unit, const std::vector<std::vector<int>>& before) {
    Unit& u = units_[static_cast<size_t>(unit)];
    if (u.mark == 1) return true;
    if (u.mark == 0) return false;
    u.mark = 0;
    for (int b : before[static_cast<size_t>(unit)])
      if (b != unit && !visit(b, before)) return false;
    u.mark = 1;
    if (!u.empty) s_.steps.push_back(std::move(u.step));
    return true;
  }

  const Graph& g_;
  const std::vector<Shape>& input_strides_;
  const std::vector<OutputRequest>& requests_;
  ScheduleOptions options_;
  Schedule s_;
  std::map<std::pair<uint32_t, uint32_t>, int> output_of_;  // by node id and result: the output that is this value
  std::map<uint32_t, const Node*> shared_outputs_;          // by node id of an output: the product written there
  std::vector<std::vector<const Node*>> users_;
  std::map<uint32_t, Contraction> contractions_;
  std::map<uint32_t, const Node*> stored_as_;  // the last node of an epilogue: the contraction
  std::vector<std::vector<Shape>> layouts_;
  std::vector<std::vector<Place>> places_;
  std::vector<bool> must_store_, must_split_, absorbed_;
  std::vector<int> in_place_;        // by node id: the input whose memory it is written into, or -1
  std::vector<bool> channels_last_;  // by node id: wanted in that layout
  std::vector<int> unit_of_;
  std::vector<Unit> units_;
  Groups groups_;
  std::map<std::pair<int, int>, int> input_buffers_;  // by input and version
  bool untangled_ = false;
};

}  // namespace

Schedule make_schedule(std::shared_ptr<const Graph> graph, const std::vector<Shape>& input_strides,
                       const std::vector<OutputRequest>& outputs, const ScheduleOptions& options) {
  auto separated = std::make_shared<const Graph>(find_updates(separate_outputs(*graph, outputs), outputs));
  if (verifies()) separated->verify();
  return Scheduler(std::move(separated), input_strides, outputs, options).run();
}

}  // namespace broach
