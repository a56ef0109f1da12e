// The text form of a graph, printed and parsed. One line a symbol, guard or node, then the outputs:
//
//   symbol s0(hint=5, min=2, input=0, dim=1)
//   guard s0 != 4
//   %0 = input(index=0) : f32[2, s0]
//   %1 = reduce_sum(%0, dims=[1]) : f32[2]  # model.py:12
//   %2 = extern_call(%0, call="aten::sort.stable"($0, true, 1, false) strides [[s0, 1], [s0, 1]]) : (f32[2, s0], i64[2, s0])
//   %3 = dot(%0, %0, batch=0) : f32[2, s0]
//   %4 = relu(%3) : f32[2, s0] within %3 strides [1, 2]
//   return %1, %4 strides [1, 2], %2.1 into 0
//
// Behind a type stands where the node is placed: `within %3`, `in %0`, `in %0 early`, and strides that are not contiguous, of several
// results in parentheses; behind an output what is asked of it: strides, or the input that it is written into. A comment is the source line of its node. Arguments of an extern call: none, $0 (tensor operand 0), {$0, none} (a list of
// tensors; {...}? if its elements are optional), s0 + 1, int 3 / 3.0 / true / (1.0, 2.0) (numbers of the program), "text",
// [1, s0], doubles [1.0], bools [true], and <opaque 0>, an object of the host that is known by its number.
#include "ir/text.h"

#include <bit>
#include <cmath>
#include <limits>

#include "ir/parse.h"

namespace broach {

// ---- printing ----

namespace {

std::string joined(size_t count, const std::function<std::string(size_t)>& item) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += (i ? ", " : "") + item(i);
  return out;
}

std::string number_text(double d) {
  const auto bits = std::bit_cast<uint64_t>(d);
  if (!std::isnan(d) || bits == std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN())) return str(Scalar(d));
  char digits[16];
  return "nan0x" + std::string(digits, std::to_chars(digits, std::end(digits), bits, 16).ptr);
}

std::string ref(const Value& v) { return v.node->results.size() == 1 ? cat("%", v.node->id) : cat("%", v.node->id, ".", v.index); }

struct ArgPrinter {
  OpaqueNumbers& opaque;
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(ExternArg::Input i) const { return cat("$", i.index); }
  std::string operator()(ExternArg::InputNumber i) const { return cat("number $", i.index); }
  std::string operator()(const ExternArg::Inputs& in) const {
    auto item = [&](size_t i) { return in.indices[i] < 0 ? std::string("none") : cat("$", in.indices[i]); };
    return cat("{", joined(in.indices.size(), item), in.optional_elements ? "}?" : "}");
  }
  std::string operator()(const SymInt& e) const { return e.str(); }
  std::string operator()(const Scalar& s) const { return (std::holds_alternative<int64_t>(s) ? "int " : "") + exact_text(s); }
  std::string operator()(const std::string& s) const { return cat('"', escaped(s), '"'); }
  std::string operator()(const Shape& s) const { return list_text(s); }
  std::string operator()(const std::vector<double>& d) const {
    return cat("doubles [", joined(d.size(), [&](size_t i) { return number_text(d[i]); }), "]");
  }
  std::string operator()(const ExternArg::Bools& b) const {
    return cat("bools [", joined(b.size(), [&](size_t i) { return std::string(b[i] ? "true" : "false"); }), "]");
  }
  std::string operator()(const ExternArg::Opaque& o) const {
    return cat("<opaque ", opaque.emplace(o.object.get(), opaque.size()).first->second, ">");
  }
};

struct AttrPrinter {
  OpaqueNumbers& opaque;
  std::string operator()(int64_t i) const { return std::to_string(i); }
  std::string operator()(const Scalar& s) const { return exact_text(s); }
  std::string operator()(DType t) const { return name_of(t); }
  std::string operator()(const SymInt& e) const { return e.str(); }
  std::string operator()(const Shape& s) const { return list_text(s); }
  std::string operator()(const std::vector<int64_t>& v) const {
    return cat("[", joined(v.size(), [&](size_t i) { return std::to_string(v[i]); }), "]");
  }
  std::string operator()(const std::shared_ptr<const ExternCall>& c) const {
    std::string out =
        cat('"', escaped(c->schema), "\"(", joined(c->args.size(), [&](size_t i) { return text_of(c->args[i], opaque); }), ")");
    const auto& strides = c->result_strides;
    if (!strides.empty()) out += cat(" strides [", joined(strides.size(), [&](size_t i) { return list_text(strides[i]); }), "]");
    out += c->effect ? " effect" : "";
    if (!c->mutated.empty()) out += " mutates " + (*this)(c->mutated);
    if (!c->contiguous.empty()) out += " contiguous " + (*this)(c->contiguous);
    return out + text_of(c->binds);
  }
};

}  // namespace

std::string text_of(const Attrs& attrs, OpaqueNumbers& opaque) {
  std::string out;
  for (const auto& [attr, value] : attrs) out += cat(out.empty() ? "" : ", ", name_of(attr), "=", std::visit(AttrPrinter{opaque}, value));
  return out;
}

namespace {

// One thing a result.
std::string of_results(const Node& n, const std::function<std::string(size_t)>& item) {
  const std::string all = joined(n.results.size(), item);
  return n.results.size() == 1 ? all : cat("(", all, ")");
}

std::string node_text(const Node& n, OpaqueNumbers& opaque) {
  std::string out = cat("%", n.id, " = ", name_of(n.op), "(", joined(n.inputs.size(), [&](size_t i) { return ref(n.inputs[i]); }));
  out += cat(n.inputs.empty() || n.attrs.empty() ? "" : ", ", text_of(n.attrs, opaque));
  return cat(out, ") : ", of_results(n, [&](size_t i) { return n.results[i].str(); }));
}

std::string placement_text(const Node& n, const Graph& graph) {
  const Placement& p = graph.placement(n);
  std::string out = p.within < 0 ? "" : cat(" within %", p.within);
  if (p.in >= 0) out += cat(" in %", p.in, p.early ? " early" : "");
  bool contiguous = true;
  for (size_t i = 0; i < p.strides.size(); ++i) contiguous = contiguous && p.strides[i] == contiguous_strides(n.results[i].shape);
  return contiguous ? out : cat(out, " strides ", of_results(n, [&](size_t i) { return list_text(p.strides[i]); }));
}

std::string output_text(const Value& v, const OutputRequest& r) {
  if (r.into_input >= 0) return cat(ref(v), " into ", r.into_input);
  if (r.free) return ref(v) + " free";
  return r.strides == contiguous_strides(v.shape()) ? ref(v) : cat(ref(v), " strides ", list_text(r.strides));
}

}  // namespace

std::string escaped(std::string_view s) {
  std::string out;
  for (char c : s) {
    if (c == '"' || c == '\\') out += {'\\', c};
    else if (c == '\n') out += "\\n";
    else if (static_cast<unsigned char>(c) < 32 || c == 127) out += {'\\', 'x', "0123456789abcdef"[c >> 4], "0123456789abcdef"[c & 15]};
    else out += c;
  }
  return out;
}

std::string exact_text(const Scalar& s) {
  if (auto d = std::get_if<double>(&s)) return number_text(*d);
  auto c = std::get_if<std::complex<double>>(&s);
  return c ? cat("(", number_text(c->real()), ", ", number_text(c->imag()), ")") : str(s);
}

std::string list_text(const Shape& shape) {
  return cat("[", joined(shape.size(), [&](size_t i) { return shape[i].str(); }), "]");
}

std::string text_of(const ExternArg& argument, OpaqueNumbers& opaque) { return std::visit(ArgPrinter{opaque}, argument.value); }

std::string text_of(const std::vector<ExternCall::Bind>& binds) {
  auto item = [&](size_t i) { return list_text({SymInt::symbol(binds[i].symbol), binds[i].result, binds[i].dim}); };
  return binds.empty() ? "" : cat(" binds [", joined(binds.size(), item), "]");
}

namespace {

std::string text_of(const HostFloats& floats, HostFloats::Id id) {
  using Op = HostFloats::Op;
  const HostFloats::Step s = floats.step(id);
  std::string out = s.op == Op::function ? HostFloats::functions()[s.function].name : HostFloats::name_of(s.op);
  out += "(";
  if (s.op == Op::size) out += s.size.str();
  else if (s.op == Op::given || s.op == Op::element) out += std::to_string(s.function);
  else if (s.op != Op::constant) out += cat("f", s.a, s.b < 0 ? "" : cat(", f", s.b));
  out += cat(s.op == Op::constant ? "" : ", ", "hint=", number_text(floats.hint(id)));
  return out + (s.op == Op::size && floats.is_deferred(id) ? ", late)" : ")");
}

std::string text_of(const HostFloats& floats) {
  std::string out;
  for (HostFloats::Id id = 0; id < floats.count(); ++id) out += cat("float f", id, " = ", text_of(floats, id), "\n");
  for (const HostFloats::Decision& d : floats.decisions())
    out += d.b < 0 ? cat("fixed f", d.a, "\n") : cat(d.answer ? "holds f" : "fails f", d.a, " ", name_of(d.relation), " f", d.b, "\n");
  return out;
}

}  // namespace

std::string text_of(const Symbols& symbols) {
  std::string out;
  for (size_t i = 0; i < symbols.infos().size(); ++i) {
    const SymbolInfo& s = symbols.infos()[i];
    out += cat("symbol s", i, "(hint=", s.hint, ", min=", s.min);
    using From = SymbolInfo::Source;
    if (s.source == From::size) out += cat(", input=", s.input, ", dim=", s.dim);
    if (s.source == From::stride) out += cat(", stride=", s.input, ", dim=", s.dim);
    if (s.source == From::integer) out += cat(", integer=", s.dim);
    if (s.source == From::quotient) out += cat(", quotient=", s.input, ", dim=", s.dim);
    out += ")\n";
  }
  for (const Guard& g : symbols.guards()) out += cat("guard ", g.str(), "\n");
  return out + text_of(symbols.floats);
}

std::string comment_text(const std::vector<std::string>& lines, int32_t line) {
  return line < 0 ? "" : "  # " + escaped(lines.at(static_cast<size_t>(line)));
}

std::string Graph::str() const {
  std::string out = text_of(*symbols_);
  OpaqueNumbers opaque;
  for (const Node& n : nodes()) out += cat(node_text(n, opaque), placement_text(n, *this), comment_text(*lines_, n.line), "\n");
  auto output = [&](size_t i) { return output_text(outputs_[i], requests_[i]); };
  return cat(out, "return", outputs_.empty() ? "" : " ", joined(outputs_.size(), output), "\n");
}

// ---- parsing ----

namespace {

class GraphParser : TextParser {
 public:
  explicit GraphParser(std::string_view text) : TextParser(text, std::make_shared<Symbols>()), builder_(symbols_) {}

  Graph parse() {
    bool returns = false;
    for_each_line([&] {
      if (returns) c_.fail_at(c_.at, "text after the return");
      if (declaration()) return;
      returns = c_.accept("return");
      if (!returns) node();
      else if (!c_.ends()) outputs();
    });
    if (!returns) fail_at_end("the graph ends without a return");
    Graph graph = builder_.finish(std::move(outputs_), std::move(requests_));
    placements_.resize(graph.nodes().size());
    return graph.with(std::move(placements_));
  }

 private:
  Value value() {
    c_.expect("%");
    size_t start = c_.at - 1;
    auto it = values_.find(c_.digits());
    if (it == values_.end()) c_.fail_at(start, "a value that is not defined above");
    const std::vector<Value>& results = it->second;
    size_t index = c_.accept(".") ? static_cast<size_t>(c_.digits()) : 0;
    if (index >= results.size()) c_.fail_at(start, "a node with ", results.size(), " results has no result ", index);
    return results[index];
  }
  void outputs() {
    do {
      outputs_.push_back(value());
      OutputRequest& r = requests_.emplace_back();
      if (c_.accept("into")) r.into_input = static_cast<int>(c_.integer());
      else if (c_.accept("strides")) r.strides = shape();
      else r.free = c_.accept("free");
    } while (c_.accept(","));
  }

  // One thing a result.
  template <class F>
  auto of_results(const F& item) {
    return c_.peek() == '(' ? c_.list("(", ")", item) : std::vector<decltype(item())>{item()};
  }

  void operands_and_attributes(Op op, std::vector<Value>& inputs, Attrs& attrs) {
    c_.expect("(");
    if (c_.accept(")")) return;
    do
      if (c_.peek() == '%') inputs.push_back(value());
      else attribute(op, attrs);
    while (c_.accept(","));
    c_.expect(")");
  }

  void node() {
    size_t start = (c_.skip(), c_.at);
    c_.expect("%");
    int64_t id = c_.digits();
    if (values_.contains(id)) c_.fail_at(start, "%", id, " is defined twice");
    c_.expect("=");
    size_t op_start = (c_.skip(), c_.at);
    const Op op = this->op();
    std::vector<Value> inputs;
    Attrs attrs;
    call_ = nullptr;
    operands_and_attributes(op, inputs, attrs);
    c_.expect(":");
    size_t type_start = (c_.skip(), c_.at);
    std::vector<Type> types = of_results([&] { return type(); });
    if (call_) call_->results = types;
    Placement placed = placement();
    builder_.set_line_index(line_index([&](const std::string& line) { builder_.set_line(line); }));
    std::vector<Value>& results = values_[id];
    results = c_.placed(op_start,
                        [&] { return op == Op::input ? input(types, attrs) : builder_.emit_all(op, std::move(inputs), std::move(attrs)); });
    placements_.resize(builder_.graph().nodes().size());
    if (!(placed == Placement{})) placements_[results.at(0).node->id] = std::move(placed);
    if (results.size() != types.size()) c_.fail_at(type_start, name_of(op), " has ", results.size(), " results, not ", types.size());
    for (size_t i = 0; i < types.size(); ++i)
      if (results[i].type() != types[i]) c_.fail_at(type_start, name_of(op), " gives ", results[i].type().str(), ", not ", types[i].str());
  }

  Placement placement() {
    auto node = [&] { return static_cast<int>(value().node->id); };
    Placement p;
    if (c_.accept("within")) p.within = node();
    if (c_.accept("in")) p.in = node(), p.early = c_.accept("early");
    if (c_.accept("strides")) p.strides = of_results([&] { return shape(); });
    return p;
  }

  std::vector<Value> input(const std::vector<Type>& types, const Attrs& attrs) {
    auto expected = static_cast<int64_t>(builder_.graph().inputs().size());
    auto index = attrs.find(Attr::index);
    check(types.size() == 1 && index != attrs.end() && std::get<int64_t>(index->second) == expected, "expected input(index=", expected,
          ") with one type");
    return {builder_.input(types[0])};
  }

  GraphBuilder builder_;
  std::unordered_map<int64_t, std::vector<Value>> values_;
  std::vector<Placement> placements_;
  std::vector<Value> outputs_;
  std::vector<OutputRequest> requests_;
};

}  // namespace

Graph Graph::parse(std::string_view text) { return GraphParser(text).parse(); }

}  // namespace broach
