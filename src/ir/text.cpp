// The text form of a graph, printed and parsed. One line a symbol, guard or node, then the outputs:
//
//   symbol s0(hint=5, min=2, input=0, dim=1)
//   guard s0 != 4
//   %0 = input(index=0) : f32[2, s0]
//   %1 = reduce_sum(%0, dims=[1]) : f32[2]  # model.py:12
//   %2 = extern_call(%0, call="aten::sort.stable"($0, true, 1, false) strides [[s0, 1], [s0, 1]]) : (f32[2, s0], i64[2, s0])
//   return %1, %2.1
//
// A comment is the source line of its node. Arguments of an extern call: none, $0 (tensor operand 0), {$0, none} (a list of
// tensors; {...}? if its elements are optional), s0 + 1, int 3 / 3.0 / true / (1.0, 2.0) (numbers of the program), "text",
// [1, s0], doubles [1.0], bools [true], and <opaque>, which cannot be parsed.
#include "ir/text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <set>

#include "support/error.h"

namespace broach {

// ---- printing ----

namespace {

std::string joined(size_t count, const std::function<std::string(size_t)>& item) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += (i ? ", " : "") + item(i);
  return out;
}

std::string ref(const Value& v) { return v.node->results.size() == 1 ? cat("%", v.node->id) : cat("%", v.node->id, ".", v.index); }

struct ArgPrinter {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(ExternArg::Input i) const { return cat("$", i.index); }
  std::string operator()(ExternArg::InputNumber i) const { return cat("number $", i.index); }
  std::string operator()(const ExternArg::Inputs& in) const {
    auto item = [&](size_t i) { return in.indices[i] < 0 ? std::string("none") : cat("$", in.indices[i]); };
    return cat("{", joined(in.indices.size(), item), in.optional_elements ? "}?" : "}");
  }
  std::string operator()(const SymInt& e) const { return e.str(); }
  std::string operator()(const Scalar& s) const { return (std::holds_alternative<int64_t>(s) ? "int " : "") + str(s); }
  std::string operator()(const std::string& s) const { return cat('"', escaped(s), '"'); }
  std::string operator()(const Shape& s) const { return list_text(s); }
  std::string operator()(const std::vector<double>& d) const {
    return cat("doubles [", joined(d.size(), [&](size_t i) { return str(Scalar(d[i])); }), "]");
  }
  std::string operator()(const ExternArg::Bools& b) const {
    return cat("bools [", joined(b.size(), [&](size_t i) { return std::string(b[i] ? "true" : "false"); }), "]");
  }
  std::string operator()(const ExternArg::Opaque&) const { return "<opaque>"; }
};

struct AttrPrinter {
  std::string operator()(int64_t i) const { return std::to_string(i); }
  std::string operator()(const Scalar& s) const { return str(s); }
  std::string operator()(DType t) const { return name_of(t); }
  std::string operator()(const SymInt& e) const { return e.str(); }
  std::string operator()(const Shape& s) const { return list_text(s); }
  std::string operator()(const std::vector<int64_t>& v) const {
    return cat("[", joined(v.size(), [&](size_t i) { return std::to_string(v[i]); }), "]");
  }
  std::string operator()(const std::shared_ptr<const ExternCall>& c) const {
    std::string out = cat('"', escaped(c->schema), "\"(", joined(c->args.size(), [&](size_t i) { return text_of(c->args[i]); }), ")");
    const auto& strides = c->result_strides;
    if (!strides.empty()) out += cat(" strides [", joined(strides.size(), [&](size_t i) { return list_text(strides[i]); }), "]");
    out += c->effect ? " effect" : "";
    if (c->binds.empty()) return out;
    return cat(out, " binds [",
               joined(c->binds.size(),
                      [&](size_t i) { return list_text({SymInt::symbol(c->binds[i].symbol), c->binds[i].result, c->binds[i].dim}); }),
               "]");
  }
};

std::string node_text(const Node& n) {
  std::string out = cat("%", n.id, " = ", name_of(n.op), "(", joined(n.inputs.size(), [&](size_t i) { return ref(n.inputs[i]); }));
  bool first = n.inputs.empty();
  for (const auto& [attr, value] : n.attrs) {
    out += cat(first ? "" : ", ", name_of(attr), "=", std::visit(AttrPrinter(), value));
    first = false;
  }
  std::string types = joined(n.results.size(), [&](size_t i) { return n.results[i].str(); });
  return cat(out, ") : ", n.results.size() == 1 ? types : cat("(", types, ")"));
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

std::string list_text(const Shape& shape) {
  return cat("[", joined(shape.size(), [&](size_t i) { return shape[i].str(); }), "]");
}

std::string text_of(const ExternArg& argument) { return std::visit(ArgPrinter(), argument.value); }

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
  return out;
}

std::string comment_text(const std::vector<std::string>& lines, int32_t line) {
  return line < 0 ? "" : "  # " + escaped(lines.at(static_cast<size_t>(line)));
}

std::string Graph::str() const {
  std::string out = text_of(*symbols_);
  for (const Node& n : nodes_) out += cat(node_text(n), comment_text(*lines_, n.line), "\n");
  return cat(out, "return", outputs_.empty() ? "" : " ", joined(outputs_.size(), [&](size_t i) { return ref(outputs_[i]); }), "\n");
}

// ---- parsing ----

namespace {

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// A position in one line of the text.
struct Cursor {
  std::string_view line;
  size_t number;  // of the line, from 1
  size_t at = 0;

  template <class... Args>
  [[noreturn]] void fail_at(size_t position, const Args&... args) const {
    fail("line ", number, ", column ", position + 1, ": ", args...);
  }
  // Gives what `f` gives; an error of it gets this position.
  template <class F>
  auto placed(size_t position, const F& f) const {
    try {
      return f();
    } catch (const Error& e) {
      fail_at(position, e.what());
    }
  }
  void skip() {
    while (at < line.size() && line[at] == ' ') ++at;
  }
  bool ends() {
    skip();
    return at == line.size();
  }
  char peek() {
    skip();
    return at < line.size() ? line[at] : '\0';
  }
  bool accept(std::string_view s) {
    skip();
    // A word is not the beginning of a longer word.
    bool longer = is_word_char(s.back()) && at + s.size() < line.size() && is_word_char(line[at + s.size()]);
    if (line.substr(at, s.size()) != s || longer) return false;
    at += s.size();
    return true;
  }
  void expect(std::string_view s) {
    if (accept(s)) return;
    fail_at(at, "expected '", s, "', found ", at < line.size() ? cat("'", line.substr(at, 12), "'") : "the end of the line");
  }
  std::string_view word() {
    skip();
    size_t start = at;
    while (at < line.size() && is_word_char(line[at])) ++at;
    if (at == start) fail_at(at, "expected a name");
    return line.substr(start, at - start);
  }
  // What a number is made of: digits, a sign before them or after an exponent, and the words inf and nan.
  std::string_view number_text() {
    skip();
    size_t end = at;
    while (end < line.size() &&
           (is_word_char(line[end]) || line[end] == '.' || ((line[end] == '-' || line[end] == '+') && (end == at || line[end - 1] == 'e'))))
      ++end;
    return line.substr(at, end - at);
  }
  bool at_double() {
    std::string_view t = number_text();
    if (t == "nan" || t == "inf" || t == "-inf") return true;
    size_t digit = t.starts_with('-') ? 1 : 0;
    return digit < t.size() && std::isdigit(static_cast<unsigned char>(t[digit])) && t.find_first_of(".e") != t.npos;
  }
  template <class T>
  T number_as(const char* what) {
    std::string_view t = number_text();
    T value{};
    auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), value);
    if (error != std::errc() || end != t.data() + t.size()) fail_at(at, "expected ", what, ", found '", t, "'");
    at += t.size();
    return value;
  }
  int64_t digits() {
    size_t end = at;
    while (end < line.size() && std::isdigit(static_cast<unsigned char>(line[end]))) ++end;
    int64_t value = 0;
    if (std::from_chars(line.data() + at, line.data() + end, value).ec != std::errc()) fail_at(at, "expected a number");
    at = end;
    return value;
  }
  int64_t integer() { return number_as<int64_t>("an integer"); }
  double floating() { return number_as<double>("a number"); }
  bool boolean() {
    if (accept("true")) return true;
    expect("false");
    return false;
  }
  std::string quoted();
  template <class F>
  auto list(std::string_view open, std::string_view close, const F& item) {
    std::vector<decltype(item())> out;
    expect(open);
    if (accept(close)) return out;
    do out.push_back(item());
    while (accept(","));
    expect(close);
    return out;
  }
};

std::string Cursor::quoted() {
  skip();
  size_t start = at;
  expect("\"");
  size_t end = at;
  while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
  if (end >= line.size()) fail_at(start, "a string without an end");
  std::string_view body = line.substr(at, end - at);
  at = end + 1;
  return placed(start, [&] {
    std::string out;
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i] != '\\') {
        out += body[i];
        continue;
      }
      char c = body[++i];
      if (c == 'n') out += '\n';
      else if (c == 'x') {
        out += static_cast<char>(std::stoi(std::string(body.substr(i + 1, 2)), nullptr, 16));
        i += 2;
      } else out += c;
    }
    return out;
  });
}

class GraphParser {
 public:
  explicit GraphParser(std::string_view text) : text_(text) {}

  Graph parse() {
    std::optional<std::vector<Value>> outputs;
    size_t number = 0;
    for (size_t start = 0; start < text_.size();) {
      size_t end = std::min(text_.find('\n', start), text_.size());
      c_ = Cursor{text_.substr(start, end - start), ++number};
      std::optional<std::string> comment = take_comment();
      start = end + 1;
      if (c_.ends()) continue;
      if (outputs) c_.fail_at(c_.at, "text after the return");
      if (c_.accept("symbol")) symbol();
      else if (c_.accept("guard")) guard();
      else if (c_.accept("return")) outputs = c_.ends() ? std::vector<Value>() : values();
      else node(comment);
      if (!c_.ends()) c_.fail_at(c_.at, "unexpected '", c_.line.substr(c_.at, 12), "'");
    }
    check(outputs.has_value(), "line ", number + 1, ", column 1: the graph ends without a return");
    return builder_.finish(std::move(*outputs));
  }

 private:
  // Cuts the comment off the line.
  std::optional<std::string> take_comment() {
    bool quoted = false;
    for (size_t i = 0; i < c_.line.size(); ++i) {
      if (c_.line[i] == '"') quoted = !quoted;
      else if (quoted && c_.line[i] == '\\') ++i;
      else if (!quoted && c_.line[i] == '#') {
        std::string_view body = c_.line.substr(i + 1);
        body.remove_prefix(body.starts_with(' ') ? 1 : 0);
        std::string in_quotes = unescaped_quotes(body);
        c_.line = c_.line.substr(0, i);
        return Cursor{in_quotes, c_.number}.quoted();
      }
    }
    return std::nullopt;
  }
  static bool is_escape(std::string_view s) {
    auto hex = [&](size_t i) { return std::isxdigit(static_cast<unsigned char>(s[i])); };
    return !s.empty() && (s[0] == 'x' ? s.size() > 2 && hex(1) && hex(2) : std::string_view("\\\"n").find(s[0]) != s.npos);
  }
  // A comment written by hand may hold plain quotes and a backslash at its end.
  static std::string unescaped_quotes(std::string_view body) {
    std::string out = "\"";
    for (size_t i = 0; i < body.size(); ++i) {
      bool pair = body[i] == '\\' && is_escape(body.substr(i + 1));
      if (body[i] == '"' || (body[i] == '\\' && !pair)) out += '\\';
      out += body[i];
      if (pair) out += body[++i];
    }
    return out + '"';
  }

  void symbol() {
    size_t start = (c_.skip(), c_.at);
    SymbolInfo info;
    std::string name(c_.word());
    if (name != cat("s", builder_.symbols().infos().size()))
      c_.fail_at(start, "expected symbol s", builder_.symbols().infos().size(), ", found '", name, "'");
    for (const auto& [field, value] : c_.list("(", ")", [&] { return field_of_symbol(); })) {
      if (field == "hint") info.hint = value;
      else if (field == "min") info.min = value;
      else if (field == "dim") info.dim = static_cast<int>(value);
      else {
        using From = SymbolInfo::Source;
        info.source = field == "input"      ? From::size
                      : field == "stride"   ? From::stride
                      : field == "quotient" ? From::quotient
                                            : From::integer;
        (field == "integer" ? info.dim : info.input) = static_cast<int>(value);
      }
    }
    builder_.symbols().fresh(info);
  }
  std::pair<std::string, int64_t> field_of_symbol() {
    size_t start = (c_.skip(), c_.at);
    std::string field(c_.word());
    static const std::set<std::string> fields{"hint", "min", "input", "dim", "stride", "integer", "quotient"};
    if (!fields.contains(field)) c_.fail_at(start, "a symbol has no '", field, "'");
    c_.expect("=");
    return {field, c_.integer()};
  }

  void guard() {
    SymInt lhs = expression();
    for (Relation r : {Relation::eq, Relation::ne, Relation::le, Relation::lt}) {
      if (!c_.accept(name_of(r))) continue;
      builder_.symbols().add_guard({lhs, r, expression()});
      return;
    }
    c_.fail_at(c_.at, "expected ==, !=, < or <=");
  }

  SymInt expression() {
    c_.skip();
    size_t start = c_.at, end = start;
    for (int depth = 0; end < c_.line.size(); ++end) {
      char ch = c_.line[end];
      if (depth == 0 && std::string_view(",])}:=<>!").find(ch) != std::string_view::npos) break;
      depth += ch == '(' ? 1 : ch == ')' ? -1 : 0;
    }
    c_.at = end;
    return c_.placed(start, [&] {
      SymInt e = SymInt::parse(c_.line.substr(start, end - start));
      std::vector<SymbolId> symbols;
      e.collect_symbols(symbols);
      for (SymbolId id : symbols) check(id < builder_.symbols().infos().size(), "symbol ", SymInt::symbol(id), " is not declared");
      return e;
    });
  }
  Shape shape() {
    return c_.list("[", "]", [&] { return expression(); });
  }

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
  std::vector<Value> values() {
    std::vector<Value> out;
    do out.push_back(value());
    while (c_.accept(","));
    return out;
  }

  Type type() {
    c_.skip();
    size_t start = c_.at;
    std::string_view name = c_.word();
    Type t;
    t.dtype = c_.placed(start, [&] { return parse_dtype(name); });
    t.shape = shape();
    if (c_.accept("@")) t.device = device();
    return t;
  }
  Device device() {
    size_t start = (c_.skip(), c_.at);
    std::string_view name = c_.word();
    Device d = c_.placed(start, [&] { return Device{parse_device_kind(name), -1}; });
    if (c_.accept(":")) d.index = static_cast<int8_t>(c_.integer());
    return d;
  }

  Scalar scalar() {
    if (c_.accept("true")) return true;
    if (c_.accept("false")) return false;
    if (c_.peek() == '(') {
      auto parts = c_.list("(", ")", [&] { return c_.floating(); });
      if (parts.size() != 2) c_.fail_at(c_.at, "a complex number has two parts");
      return std::complex<double>(parts[0], parts[1]);
    }
    if (c_.at_double()) return c_.floating();
    return c_.integer();
  }

  ExternArg argument() {
    auto tensor = [&] { return c_.accept("none") ? int64_t{-1} : (c_.expect("$"), c_.integer()); };
    if (c_.accept("none")) return {};
    if (c_.accept("$")) return {ExternArg::Input{static_cast<uint32_t>(c_.integer())}};
    if (c_.accept("number")) return c_.expect("$"), ExternArg{ExternArg::InputNumber{static_cast<uint32_t>(c_.integer())}};
    if (c_.accept("int")) return {Scalar(c_.integer())};
    if (c_.accept("doubles")) return {c_.list("[", "]", [&] { return c_.floating(); })};
    if (c_.accept("bools")) return {c_.list("[", "]", [&] { return c_.boolean(); })};
    if (c_.accept("<opaque>")) c_.fail_at(c_.at - 8, "an opaque object of an extern call has no text form and cannot be parsed");
    if (c_.peek() == '"') return {c_.quoted()};
    if (c_.peek() == '[') return {shape()};
    if (c_.peek() == '{') {
      ExternArg::Inputs in{c_.list("{", "}", tensor), false};
      in.optional_elements = c_.accept("?");
      return {in};
    }
    if (c_.peek() == '(' || c_.at_double() || c_.number_text() == "true" || c_.number_text() == "false") return {scalar()};
    return {expression()};
  }

  std::shared_ptr<ExternCall> call() {
    auto out = std::make_shared<ExternCall>();
    out->schema = c_.quoted();
    out->args = c_.list("(", ")", [&] { return argument(); });
    if (c_.accept("strides")) out->result_strides = c_.list("[", "]", [&] { return shape(); });
    out->effect = c_.accept("effect");
    if (!c_.accept("binds")) return out;
    for (const Shape& b : c_.list("[", "]", [&] { return shape(); }))
      out->binds.push_back(
          {b.at(0).as_symbol().value(), static_cast<int32_t>(b.at(1).constant()), static_cast<int32_t>(b.at(2).constant())});
    return out;
  }

  AttrValue attribute(Attr a, std::shared_ptr<ExternCall>& call_of_node) {
    const AttrValue kind = empty_value(a);
    if (std::holds_alternative<int64_t>(kind)) return c_.integer();
    if (std::holds_alternative<Scalar>(kind)) return scalar();
    if (std::holds_alternative<SymInt>(kind)) return expression();
    if (std::holds_alternative<Shape>(kind)) return shape();
    if (std::holds_alternative<std::vector<int64_t>>(kind)) return c_.list("[", "]", [&] { return c_.integer(); });
    if (std::holds_alternative<DType>(kind)) {
      size_t start = (c_.skip(), c_.at);
      std::string_view name = c_.word();
      return c_.placed(start, [&] { return parse_dtype(name); });
    }
    call_of_node = call();
    return std::shared_ptr<const ExternCall>(call_of_node);
  }

  void operands_and_attributes(Op op, std::vector<Value>& inputs, Attrs& attrs, std::shared_ptr<ExternCall>& call_of_node) {
    c_.expect("(");
    if (c_.accept(")")) return;
    do {
      if (c_.peek() == '%') {
        inputs.push_back(value());
        continue;
      }
      size_t start = c_.at;
      std::string name(c_.word());
      auto attr = find_attr(name);
      if (!attr || !has_attr(op, *attr)) c_.fail_at(start, name_of(op), " has no attribute '", name, "'");
      if (attrs.contains(*attr)) c_.fail_at(start, "attribute ", name, " is given twice");
      c_.expect("=");
      attrs[*attr] = attribute(*attr, call_of_node);
    } while (c_.accept(","));
    c_.expect(")");
  }

  void node(const std::optional<std::string>& comment) {
    size_t start = (c_.skip(), c_.at);
    c_.expect("%");
    int64_t id = c_.digits();
    if (values_.contains(id)) c_.fail_at(start, "%", id, " is defined twice");
    c_.expect("=");
    size_t op_start = (c_.skip(), c_.at);
    std::string_view name = c_.word();
    auto op = find_op(name);
    if (!op) c_.fail_at(op_start, "unknown operation '", name, "'");
    std::vector<Value> inputs;
    Attrs attrs;
    std::shared_ptr<ExternCall> call_of_node;
    operands_and_attributes(*op, inputs, attrs, call_of_node);
    c_.expect(":");
    size_t type_start = (c_.skip(), c_.at);
    std::vector<Type> types = c_.peek() == '(' ? c_.list("(", ")", [&] { return type(); }) : std::vector<Type>{type()};
    if (call_of_node) call_of_node->results = types;
    set_line(comment);
    std::vector<Value>& results = values_[id];
    results = c_.placed(
        op_start, [&] { return *op == Op::input ? input(types, attrs) : builder_.emit_all(*op, std::move(inputs), std::move(attrs)); });
    if (results.size() != types.size()) c_.fail_at(type_start, name, " has ", results.size(), " results, not ", types.size());
    for (size_t i = 0; i < types.size(); ++i)
      if (results[i].type() != types[i]) c_.fail_at(type_start, name, " gives ", results[i].type().str(), ", not ", types[i].str());
  }
  std::vector<Value> input(const std::vector<Type>& types, const Attrs& attrs) {
    auto expected = static_cast<int64_t>(builder_.graph().inputs().size());
    auto index = attrs.find(Attr::index);
    check(types.size() == 1 && index != attrs.end() && std::get<int64_t>(index->second) == expected, "expected input(index=", expected,
          ") with one type");
    return {builder_.input(types[0])};
  }

  void set_line(const std::optional<std::string>& comment) {
    if (!comment) return builder_.set_line_index(-1);
    auto [it, is_new] = lines_.emplace(*comment, static_cast<int32_t>(lines_.size()));
    if (is_new) builder_.set_line(*comment);
    builder_.set_line_index(it->second);
  }

  std::string_view text_;
  Cursor c_{};
  GraphBuilder builder_;
  std::unordered_map<int64_t, std::vector<Value>> values_;
  std::unordered_map<std::string, int32_t> lines_;
};

}  // namespace

Graph Graph::parse(std::string_view text) { return GraphParser(text).parse(); }

}  // namespace broach
