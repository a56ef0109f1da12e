#include "ir/graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "ir/parse.h"
#include "support/error.h"

namespace broach {

namespace {

constexpr std::string_view kNames[] = {
#define OP(name, ...) #name,
#include "ir/ops.def"
#undef OP
};

constexpr std::optional<Op> find(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<Op>(i);
  return std::nullopt;
}

// A word that there is not ends the compilation.
consteval OpFacts facts(std::string_view words) {
  OpFacts f;
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    const std::string_view word = words.substr(0, end);
    if (word == "function") f.function = f.costly = true;
    else if (word == "costly") f.costly = true;
    else if (word == "activation") f.activation = true;
    else if (word == "carries") f.carries = true;
    else if (word == "moves") f.moves = true;
    else if (word == "position") f.position = true;
    else if (word == "writes") f.writes = true;
    else if (word == "checks") f.checks = true;
    else if (word.starts_with("folds:")) f.folds = find(word.substr(6)).value();
    else throw "ops.def: no such fact";
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return f;
}

constexpr OpRow kRows[] = {
#define OP(name, kind, inputs, attrs, words) {#name, OpKind::kind, inputs, attrs, facts(words)},
#include "ir/ops.def"
#undef OP
};

}  // namespace

const OpRow& row(Op op) { return kRows[static_cast<size_t>(op)]; }

std::optional<Op> find_op(std::string_view name) { return find(name); }

namespace {

struct AttrRow {
  const char* name;
  AttrValue empty;
};

const AttrRow& row(Attr a) {
  using Ints = std::vector<int64_t>;
  static const AttrRow rows[] = {
      {"index", int64_t{}},        {"value", Scalar{}},   {"dtype", DType{}},         {"shape", Shape{}},
      {"dim", int64_t{}},          {"dims", Ints{}},      {"expr", SymInt{}},         {"starts", Shape{}},
      {"steps", Ints{}},           {"low", Shape{}},      {"high", Shape{}},          {"batch", int64_t{}},
      {"stride", Ints{}},          {"padding", Shape{}},  {"dilation", Ints{}},       {"transposed", int64_t{}},
      {"output_padding", Shape{}}, {"groups", int64_t{}}, {"descending", int64_t{}},  {"stable", int64_t{}},
      {"sorted", int64_t{}},       {"k", SymInt{}},       {"skip_nan", int64_t{}},    {"right", int64_t{}},
      {"scale", Scalar{}},         {"causal", int64_t{}}, {"device_kind", int64_t{}}, {"call", std::shared_ptr<const ExternCall>{}},
  };
  static_assert(std::size(rows) == static_cast<size_t>(Attr::call) + 1);
  return rows[static_cast<size_t>(a)];
}

}  // namespace

const char* name_of(Attr a) { return row(a).name; }
AttrValue empty_value(Attr a) { return row(a).empty; }

std::optional<Attr> find_attr(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Attr::call); ++i)
    if (row(static_cast<Attr>(i)).name == name) return static_cast<Attr>(i);
  return std::nullopt;
}

bool has_attr(Op op, Attr a) {
  std::string_view names = row(op).attrs, name = name_of(a);
  for (size_t end; !names.empty(); names.remove_prefix(std::min(end + 1, names.size()))) {
    end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
  }
  return false;
}

namespace {

struct AttrHash {
  size_t h = 0;
  void mix(size_t v) { h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2); }
  void operator()(int64_t v) { mix(std::hash<int64_t>()(v)); }
  void operator()(const Scalar& s) {
    mix(s.index());
    if (auto d = std::get_if<double>(&s)) mix(std::isnan(*d) ? 1 : std::bit_cast<uint64_t>(*d));
    else if (is_complex(s)) mix(std::hash<std::string>()(str(s)));
    else (*this)(as_int(s));
  }
  void operator()(DType t) { mix(static_cast<size_t>(t)); }
  void operator()(const SymInt& s) { mix(s.hash()); }
  void operator()(const Shape& s) {
    for (const auto& d : s) mix(d.hash());
    mix(s.size());
  }
  void operator()(const std::vector<int64_t>& v) {
    for (int64_t i : v) (*this)(i);
    mix(v.size());
  }
  void operator()(const std::shared_ptr<const ExternCall>& c) {
    mix(std::hash<std::string>()(c->schema));
    mix(c->args.size());
  }
};

size_t hash_node(Op op, std::span<const Value> inputs, const Attrs& attrs) {
  AttrHash h;
  h.mix(static_cast<size_t>(op));
  for (const Value& v : inputs) {
    h.mix(v.node->id);
    h.mix(v.index);
  }
  for (const auto& [key, value] : attrs) {
    h.mix(static_cast<size_t>(key));
    std::visit(h, value);
  }
  return h.h;
}

// -0.0 and 0.0 are different constants, NaN equals NaN.
bool same_scalar(const Scalar& a, const Scalar& b) {
  if (a.index() != b.index()) return false;
  if (is_complex(a)) return str(a) == str(b);
  auto x = std::get_if<double>(&a), y = std::get_if<double>(&b);
  return x ? std::signbit(*x) == std::signbit(*y) && (*x == *y || (std::isnan(*x) && std::isnan(*y))) : a == b;
}

bool same_value(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (auto c = std::get_if<std::shared_ptr<const ExternCall>>(&a)) return **c == **std::get_if<std::shared_ptr<const ExternCall>>(&b);
  if (auto s = std::get_if<Scalar>(&a)) return same_scalar(*s, std::get<Scalar>(b));
  return a == b;
}

bool same_attrs(const Attrs& a, const Attrs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same_value(x.second, y.second); });
}

}  // namespace

bool operator==(const ExternArg& a, const ExternArg& b) {
  if (a.value.index() != b.value.index()) return false;
  if (auto s = std::get_if<Scalar>(&a.value)) return same_scalar(*s, std::get<Scalar>(b.value));
  if (auto d = std::get_if<std::vector<double>>(&a.value)) {
    const auto& e = std::get<std::vector<double>>(b.value);
    return std::equal(d->begin(), d->end(), e.begin(), e.end(), [](double x, double y) { return same_scalar(x, y); });
  }
  return a.value == b.value;
}

// ---- graph and builder ----

std::vector<int> Graph::use_counts() const {
  std::vector<int> uses(nodes().size());
  for (const Node& n : nodes())
    for (const Value& v : n.inputs) ++uses[v.node->id];
  for (const Value& v : outputs_) ++uses[v.node->id];
  return uses;
}

const Placement& Graph::placement(const Node& n) const {
  static const Placement none;
  return n.id < placements_.size() ? placements_[n.id] : none;
}

Shape Graph::strides(const Value& v) const {
  const Placement& p = placement(*v.node);
  return p.strides.empty() ? contiguous_strides(v.shape()) : p.strides[v.index];
}

std::vector<Placement> Graph::placements() const {
  std::vector<Placement> out = placements_;
  out.resize(nodes().size());
  return out;
}

Graph Graph::with(std::vector<Placement> placements, std::vector<OutputRequest> requests) const {
  Graph out = *this;
  out.placements_ = std::move(placements);
  if (!requests.empty()) out.requests_ = std::move(requests);
  return out;
}

GraphBuilder::GraphBuilder(const Graph& graph) {
  graph_.symbols_ = graph.symbols_;
  graph_.lines_ = graph.lines_;
}

namespace {

Node& add_node(std::deque<Node>& nodes, Op op, Attrs attrs, int32_t line) {
  const auto id = static_cast<uint32_t>(nodes.size());
  Node& n = nodes.emplace_back();
  n.op = op, n.id = id, n.line = line, n.attrs = std::move(attrs);
  return n;
}

}  // namespace

Value GraphBuilder::input(Type type, Shape strides) {
  auto index = static_cast<int64_t>(graph_.inputs_.size());
  const bool contiguous = strides == contiguous_strides(type.shape);
  Node& n = add_node(*graph_.nodes_, Op::input, {{Attr::index, index}}, line_);
  n.results = {std::move(type)};
  graph_.inputs_.push_back({&n, 0});
  if (contiguous) return {&n, 0};
  graph_.placements_.resize(n.id + 1);
  graph_.placements_[n.id].strides = {std::move(strides)};
  return {&n, 0};
}

std::vector<Value> GraphBuilder::emit_all(Op op, std::vector<Value> inputs, Attrs attrs) {
  bool effect = op == Op::extern_call && std::get<std::shared_ptr<const ExternCall>>(attrs.at(Attr::call))->effect;
  size_t h = effect ? 0 : hash_node(op, inputs, attrs);
  const Node* found = nullptr;
  if (!effect)
    for (auto [it, end] = shared_.equal_range(h); it != end && !found; ++it)
      if (it->second->op == op && it->second->inputs == inputs && same_attrs(it->second->attrs, attrs)) found = it->second;
  if (!found) {
    std::vector<Type> types = infer_types(op, inputs, attrs);
    Node& n = add_node(*graph_.nodes_, op, std::move(attrs), line_);
    n.inputs = std::move(inputs), n.results = std::move(types);
    found = &n;
    if (!effect) shared_.emplace(h, found);
  }
  std::vector<Value> values;
  for (uint32_t i = 0; i < found->results.size(); ++i) values.push_back({found, i});
  return values;
}

Value GraphBuilder::emit(Op op, std::vector<Value> inputs, Attrs attrs) { return emit_all(op, std::move(inputs), std::move(attrs)).at(0); }

void GraphBuilder::set_line(std::string line) {
  auto& lines = *graph_.lines_;
  if (lines.empty() || lines.back() != line) lines.push_back(std::move(line));
  line_ = static_cast<int32_t>(lines.size()) - 1;
}

Graph GraphBuilder::finish(std::vector<Value> outputs, std::vector<OutputRequest> requests) {
  graph_.outputs_ = std::move(outputs);
  graph_.requests_ = std::move(requests);
  graph_.requests_.resize(graph_.outputs_.size());
  for (size_t i = 0; i < graph_.outputs_.size(); ++i)
    if (OutputRequest& r = graph_.requests_[i]; r.strides.empty()) r.strides = contiguous_strides(graph_.outputs_[i].shape());
  shared_.clear();
  return std::exchange(graph_, Graph());
}

Value GraphBuilder::constant(Scalar value, DType dtype, Device) {
  // One spelling a constant: what the element type holds.
  if (is_floating(dtype)) value = as_double(value);
  else if (is_integral(dtype)) value = as_int(value);
  else if (is_complex(dtype) && !is_complex(value)) value = std::complex<double>(as_double(value));
  else if (dtype == DType::b1) value = is_complex(value) || as_double(value) != 0;
  return emit(Op::scalar, {}, {{Attr::value, value}, {Attr::dtype, dtype}});
}

namespace {

// Whether an element of the type is a scalar's value without rounding or wrapping.
bool holds_exactly(DType t, const Scalar& s) {
  if (is_complex(s)) return false;
  if (t == DType::f64 || t == DType::b1) return true;
  if (t == DType::f32) return static_cast<float>(as_double(s)) == as_double(s);
  if (is_low_precision(t)) return std::abs(as_double(s)) <= (2 << row(t).digits) && as_double(s) == std::trunc(as_double(s));
  return is_integral(t) && std::abs(as_double(s)) <= 127 && (!is_unsigned(t) || as_double(s) >= 0);
}

}  // namespace

Value GraphBuilder::cast(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (x.node->op == Op::scalar) {
    const Scalar& value = x.node->get<Scalar>(Attr::value);
    bool exact = x.dtype() == DType::i64 ? std::holds_alternative<int64_t>(value) : holds_exactly(x.dtype(), value);
    if (exact && (dtype == DType::i64 || holds_exactly(dtype, value))) return constant(value, dtype);
  }
  return emit(Op::cast, {x}, {{Attr::dtype, dtype}});
}

Value GraphBuilder::reshape(Value x, Shape shape) {
  while (x.node->op == Op::reshape) x = x.node->inputs[0];
  if (x.shape() == shape) return x;
  return emit(Op::reshape, {x}, {{Attr::shape, std::move(shape)}});
}

Value GraphBuilder::permute(Value x, std::vector<int64_t> dims) {
  if (x.node->op == Op::permute) {
    const auto& inner = x.node->ints(Attr::dims);
    for (auto& d : dims) d = inner[static_cast<size_t>(d)];
    x = x.node->inputs[0];
  }
  bool identity = true;
  for (size_t i = 0; i < dims.size(); ++i) identity &= dims[i] == static_cast<int64_t>(i);
  return identity ? x : emit(Op::permute, {x}, {{Attr::dims, std::move(dims)}});
}

Value GraphBuilder::expand(Value x, const Shape& shape) {
  check(x.shape().size() <= shape.size(), "expand: ", x.type().str(), " has more dimensions than the result");
  if (x.shape().size() < shape.size()) {
    Shape padded(shape.size() - x.shape().size(), SymInt(1));
    padded.insert(padded.end(), x.shape().begin(), x.shape().end());
    x = reshape(x, std::move(padded));
  }
  if (x.shape() == shape) return x;
  // A size that a guard makes equal is spelled otherwise: a slice of everything gives it the result's spelling.
  auto spell = [&] {
    Shape spelled = x.shape();
    for (size_t i = 0; i < shape.size(); ++i) {
      if (spelled[i] == shape[i] || spelled[i] == SymInt(1)) continue;
      check(symbols().equal(spelled[i], shape[i]) || symbols().equal(spelled[i], 1), "expand: ", x.type().str(), " cannot become ",
            Type{x.dtype(), shape, x.type().device}.str());
      spelled[i] = symbols().equal(spelled[i], shape[i]) ? shape[i] : SymInt(1);
    }
    return spelled;
  };
  Shape spelled = spell();
  if (x.node->op == Op::expand) x = x.node->inputs[0], spelled = spell();
  x = slice(x, Shape(shape.size(), 0), std::vector<int64_t>(shape.size(), 1), spelled);
  return x.shape() == shape ? x : emit(Op::expand, {x}, {{Attr::shape, shape}});
}

Value GraphBuilder::slice(Value x, Shape starts, std::vector<int64_t> steps, Shape shape) {
  bool whole = x.shape() == shape;
  for (size_t i = 0; i < starts.size(); ++i) whole &= starts[i] == SymInt(0) && steps[i] == 1;
  if (whole) return x;
  return emit(Op::slice, {x}, {{Attr::starts, std::move(starts)}, {Attr::steps, std::move(steps)}, {Attr::shape, std::move(shape)}});
}

Value GraphBuilder::reduce(Op op, Value x, std::vector<int64_t> dims, bool keep_dims) {
  std::sort(dims.begin(), dims.end());
  Shape kept = x.shape();
  for (int64_t d : dims) {
    check(d >= 0 && d < x.rank(), name_of(op), ": ", x.type().str(), " has no dimension ", d);
    kept[static_cast<size_t>(d)] = 1;
  }
  // Nothing to combine: the reduction of no dimension is the operand itself, but for the index reductions.
  Value r = dims.empty() && !is_index_reduction(op) ? x : emit(op, {x}, {{Attr::dims, dims}});
  return keep_dims ? reshape(r, kept) : r;
}

Shape GraphBuilder::broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const SymInt x = i < a.size() ? a[a.size() - 1 - i] : SymInt(1), y = i < b.size() ? b[b.size() - 1 - i] : SymInt(1);
    SymInt& o = out[out.size() - 1 - i];
    if (x == y || y == SymInt(1)) o = x;
    else if (x == SymInt(1)) o = y;
    else if (symbols().equal(x, y)) o = x.is_constant() ? x : y;
    else if (symbols().equal(x, 1)) o = y;
    else if (symbols().equal(y, 1)) o = x;
    else fail("shapes do not broadcast: ", Type{DType::f32, a, {}}.str(), " and ", Type{DType::f32, b, {}}.str());
  }
  return out;
}

Value GraphBuilder::binary(Op op, Value a, Value b) {
  if (a.shape() != b.shape()) {
    Shape shape = broadcast(a.shape(), b.shape());
    a = expand(a, shape);
    b = expand(b, shape);
  }
  return emit(op, {a, b});
}

Value GraphBuilder::where(Value condition, Value a, Value b) {
  Shape shape = broadcast(condition.shape(), broadcast(a.shape(), b.shape()));
  return emit(Op::where, {expand(condition, shape), expand(a, shape), expand(b, shape)});
}

namespace {

std::vector<bool> live_nodes(const Graph& graph) {
  std::vector<bool> live(graph.nodes().size());
  for (const Value& v : graph.outputs()) live[v.node->id] = true;
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& n = graph.nodes()[i];
    if (n.op == Op::input || n.has_effect()) live[i] = true;
    if (live[i])
      for (const Value& v : n.inputs) live[v.node->id] = true;
  }
  return live;
}

Graph rewrite_once(const Graph& graph, const Rule& rule) {
  std::vector<bool> live = live_nodes(graph);
  GraphBuilder b(graph);
  std::vector<std::vector<Value>> now(graph.nodes().size());
  for (const Node& n : graph.nodes()) {
    if (!live[n.id]) continue;
    b.set_line_index(n.line);
    if (n.op == Op::input) {
      now[n.id] = {b.input(n.results[0], graph.strides({&n, 0}))};
      continue;
    }
    std::vector<Value> inputs;
    for (const Value& v : n.inputs) inputs.push_back(now[v.node->id].at(v.index));
    auto replaced = rule(b, n, inputs);
    now[n.id] = replaced ? std::move(*replaced) : b.emit_all(n.op, std::move(inputs), n.attrs);
    check(now[n.id].size() == n.results.size(), "rewrite: ", now[n.id].size(), " values replace the ", n.results.size(), " results of %",
          n.id, " (", name_of(n.op), ")");
  }
  std::vector<Value> outputs;
  for (const Value& v : graph.outputs()) outputs.push_back(now[v.node->id].at(v.index));
  return b.finish(std::move(outputs), graph.requests());
}

}  // namespace

Graph rewrite(const Graph& graph, const Rule& rule) {
  Graph result = rewrite_once(graph, rule);
  std::vector<bool> live = live_nodes(result);
  if (std::find(live.begin(), live.end(), false) == live.end()) return result;
  return rewrite_once(result, [](GraphBuilder&, const Node&, std::span<const Value>) { return std::nullopt; });
}

namespace {

void verify_symbols(const SymInt& e, size_t count) {
  std::vector<SymbolId> symbols;
  e.collect_symbols(symbols);
  for (SymbolId id : symbols) check(id < count, "symbol ", SymInt::symbol(id), " is not one of the graph");
}

void verify_attributes(const Node& n) {
  for (const auto& [attr, value] : n.attrs)
    check(has_attr(n.op, attr) && value.index() == empty_value(attr).index(), "attribute ", name_of(attr), " does not belong here");
}

void verify_node(const Node& n, const Graph& graph) {
  for (const Value& v : n.inputs)
    check(v.node && v.node->id < n.id && &graph.nodes()[v.node->id] == v.node && v.index < v.node->results.size(),
          "reads a value that is not before it in the graph");
  for (const Type& t : n.results)
    for (const SymInt& size : t.shape) verify_symbols(size, graph.symbols()->infos().size());
  verify_attributes(n);
  if (n.op == Op::input) {
    auto index = static_cast<size_t>(n.integer(Attr::index));
    check(index < graph.inputs().size() && graph.inputs()[index].node == &n && n.results.size() == 1, "is not input ", index,
          " of the graph");
    return;
  }
  auto types = infer_types(n.op, n.inputs, n.attrs);
  check(types.size() == n.results.size(), "has ", n.results.size(), " results, expected ", types.size());
  for (size_t i = 0; i < types.size(); ++i)
    check(types[i] == n.results[i], "is typed ", n.results[i].str(), ", its operands give ", types[i].str());
}

void verify_strides(const Shape& strides, const Type& type, const Graph& graph) {
  check(strides.size() == type.shape.size(), strides.size(), " strides of ", type.str());
  for (const SymInt& s : strides) verify_symbols(s, graph.symbols()->infos().size());
}

bool is_node(const Graph& g, int id) { return id >= 0 && static_cast<size_t>(id) < g.nodes().size(); }

// Who is computed within a contraction follows it, or what else is computed there, and nobody else reads that.
void verify_within(const Node& n, int within, const Graph& g, const std::vector<int>& uses) {
  check(is_node(g, within) && kind_of(g.nodes()[static_cast<size_t>(within)].op) == OpKind::heavy, "is computed within %", within,
        ", which is no contraction");
  auto is_before = [&](const Value& v) {
    return (static_cast<int>(v.node->id) == within || g.placement(*v.node).within == within) && uses[v.node->id] == 1;
  };
  check(std::any_of(n.inputs.begin(), n.inputs.end(), is_before), "is computed within %", within, " and follows nothing there");
}

void verify_placement(const Node& n, const Graph& g, const std::vector<int>& uses) {
  const Placement& p = g.placement(n);
  if (p.within >= 0) verify_within(n, p.within, g, uses);
  if (p.in >= 0) {
    check(is_node(g, p.in) && static_cast<uint32_t>(p.in) < n.id, "lies in %", p.in, ", which is not before it");
    const Node& at = g.nodes()[static_cast<size_t>(p.in)];
    check(at.op == Op::input ? writes_elements(n.op) : n.inputs.size() == 1 && n.inputs[0].node == &at, "cannot lie in %", p.in);
  }
  check(p.strides.empty() || p.strides.size() == n.results.size(), "has strides of ", p.strides.size(), " results");
  for (size_t i = 0; i < p.strides.size(); ++i) verify_strides(p.strides[i], n.results[i], g);
}

void verify_output(const Value& v, const OutputRequest& r, const Graph& g) {
  check(v.node && v.node->id < g.nodes().size() && &g.nodes()[v.node->id] == v.node && v.index < v.node->results.size(),
        "an output is not a value of the graph");
  verify_strides(r.strides, v.type(), g);
  check(r.into_input < static_cast<int>(g.inputs().size()), "an output is written into input ", r.into_input, ", which there is not");
}

}  // namespace

void Graph::verify() const {
  const std::vector<int> uses = placements_.empty() ? std::vector<int>() : use_counts();
  for (size_t i = 0; i < nodes().size(); ++i) {
    const Node& n = nodes()[i];
    check(n.id == i, "node ", n.id, " (", name_of(n.op), ") is not where its id says");
    verify_part(cat("node %", i, " (", name_of(n.op), ")"), [&] {
      verify_node(n, *this);
      verify_placement(n, *this, uses);
    });
  }
  check(requests_.size() == outputs_.size(), "of ", outputs_.size(), " outputs, ", requests_.size(), " are asked for");
  for (size_t i = 0; i < outputs_.size(); ++i) verify_output(outputs_[i], requests_[i], *this);
}

std::pair<size_t, size_t> dims_of_positions(const Node& n) {
  const size_t first = n.op == Op::pick ? 0 : static_cast<size_t>(n.integer(Attr::dim));
  return {first, first + n.inputs[1].shape().size()};
}

bool picks_by_order(Op op) { return op == Op::neg || op == Op::abs || op == Op::relu || op == Op::min || op == Op::max; }

bool hands_on(const Node& n) {
  if (n.op == Op::cast) return is_floating(n.results[0].dtype);
  return picks_by_order(n.op) || carries(n.op);
}

namespace {

// By node: pointwise values that such a node reads, themselves or as what only hands them on.
std::vector<bool> read_by(const Graph& graph, bool (*reads)(const Node&)) {
  std::vector<bool> asked(graph.nodes().size()), out(graph.nodes().size());
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& n = graph.nodes()[i];
    const bool rounds = n.op == Op::cast && size_of(n.results[0].dtype) < size_of(n.inputs[0].dtype());
    const bool hands = hands_on(n) && !rounds;
    out[i] = asked[i] && !hands && is_elementwise(n.op);
    if (!reads(n) && !(asked[i] && hands)) continue;
    for (const Value& v : n.inputs) asked[v.node->id] = true;
  }
  return out;
}

bool tests_equality(const Node& n) { return n.op == Op::eq || n.op == Op::ne; }
bool finds_extreme(const Node& n) { return n.op == Op::reduce_max || n.op == Op::reduce_min || is_index_reduction(n.op); }

}  // namespace

std::vector<bool> tested_for_equality(const Graph& graph) { return read_by(graph, tests_equality); }

std::vector<bool> needed_as_rounded(const Graph& graph) {
  std::vector<bool> out = read_by(graph, [](const Node& n) { return tests_equality(n) || finds_extreme(n); });
  for (const Node& n : graph.nodes()) out[n.id] = out[n.id] && is_low_precision(n.results[0].dtype);
  return out;
}

}  // namespace broach
