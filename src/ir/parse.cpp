#include "ir/parse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

namespace broach {

double Cursor::floating() {
  constexpr std::string_view kBits = "nan0x";
  std::string_view t = number_text();
  if (!t.starts_with(kBits)) return number_as<double>("a number");
  uint64_t bits = 0;
  auto [end, error] = std::from_chars(t.data() + kBits.size(), t.data() + t.size(), bits, 16);
  if (error != std::errc() || end != t.data() + t.size() || !std::isnan(std::bit_cast<double>(bits)))
    fail_at(at, "expected the bits of a NaN, found '", t, "'");
  at += t.size();
  return std::bit_cast<double>(bits);
}

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

namespace {

bool is_escape(std::string_view s) {
  auto hex = [&](size_t i) { return std::isxdigit(static_cast<unsigned char>(s[i])); };
  return !s.empty() && (s[0] == 'x' ? s.size() > 2 && hex(1) && hex(2) : std::string_view("\\\"n").find(s[0]) != s.npos);
}
// A comment written by hand may hold plain quotes and a backslash at its end.
std::string unescaped_quotes(std::string_view body) {
  std::string out = "\"";
  for (size_t i = 0; i < body.size(); ++i) {
    bool pair = body[i] == '\\' && is_escape(body.substr(i + 1));
    if (body[i] == '"' || (body[i] == '\\' && !pair)) out += '\\';
    out += body[i];
    if (pair) out += body[++i];
  }
  return out + '"';
}

}  // namespace

// Cuts the comment off the line.
std::optional<std::string> TextParser::take_comment() {
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

void TextParser::next_line() {
  size_t end = std::min(text_.find('\n', next_), text_.size());
  c_ = Cursor{text_.substr(next_, end - next_), ++number_};
  comment_ = take_comment();
  next_ = end + 1;
}

std::pair<std::string_view, size_t> TextParser::block(std::string_view first) {
  const size_t start = std::min(next_, text_.size()), lines = number_;
  auto belongs = [&] { return text_.substr(next_).starts_with(next_ == start ? first : "  "); };
  while (next_ < text_.size() && belongs()) {
    next_ = std::min(text_.find('\n', next_), text_.size() - 1) + 1;
    ++number_;
  }
  return {text_.substr(start, next_ - start), lines};
}

void TextParser::for_each_line(const std::function<void()>& line) {
  while (next_ < text_.size()) {
    next_line();
    if (c_.ends()) continue;
    line();
    if (!c_.ends()) c_.fail_at(c_.at, "unexpected '", c_.line.substr(c_.at, 12), "'");
  }
}

int32_t TextParser::line_index(const std::function<void(const std::string&)>& add) {
  if (!comment_) return -1;
  auto [it, is_new] = lines_.emplace(*comment_, static_cast<int32_t>(lines_.size()));
  if (is_new) add(*comment_);
  return it->second;
}

// ---- symbols, numbers of the host, and guards ----

bool TextParser::declaration() {
  if (c_.accept("symbol")) symbol();
  else if (c_.accept("guard")) guard();
  else if (c_.accept("float")) host_float();
  else if (c_.accept("holds")) decision(true);
  else if (c_.accept("fails")) decision(false);
  else if (c_.accept("fixed")) symbols_->floats.restore({float_id(), -1, Relation::eq, true});
  else return false;
  return true;
}

void TextParser::symbol() {
  size_t start = (c_.skip(), c_.at);
  SymbolInfo info;
  std::string name(c_.word());
  if (name != cat("s", symbols_->infos().size())) c_.fail_at(start, "expected symbol s", symbols_->infos().size(), ", found '", name, "'");
  for (const auto& [field, value] : c_.list("(", ")", [&] { return field_of_symbol(); })) {
    if (field == "hint") info.hint = value;
    else if (field == "min") info.min = value;
    else if (field == "dim") info.dim = static_cast<int>(value);
    else {
      using From = SymbolInfo::Source;
      info.source = field == "input" ? From::size : field == "stride" ? From::stride : field == "quotient" ? From::quotient : From::integer;
      (field == "integer" ? info.dim : info.input) = static_cast<int>(value);
    }
  }
  symbols_->fresh(info);
}

std::pair<std::string, int64_t> TextParser::field_of_symbol() {
  size_t start = (c_.skip(), c_.at);
  std::string field(c_.word());
  static const std::set<std::string> fields{"hint", "min", "input", "dim", "stride", "integer", "quotient"};
  if (!fields.contains(field)) c_.fail_at(start, "a symbol has no '", field, "'");
  c_.expect("=");
  return {field, c_.integer()};
}

Relation TextParser::relation() {
  for (Relation r : {Relation::eq, Relation::ne, Relation::le, Relation::lt})
    if (c_.accept(name_of(r))) return r;
  c_.fail_at(c_.at, "expected ==, !=, < or <=");
}

void TextParser::guard() {
  SymInt lhs = expression();
  Relation r = relation();
  symbols_->add_guard({lhs, r, expression()});
}

HostFloats::Id TextParser::float_id() {
  size_t start = (c_.skip(), c_.at);
  std::string_view name = c_.word();
  HostFloats::Id id = -1;
  auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), id);
  if (name[0] != 'f' || error != std::errc() || end != name.data() + name.size() || id < 0 || id >= symbols_->floats.count())
    c_.fail_at(start, "expected a float that is declared above, found '", name, "'");
  return id;
}

void TextParser::decision(bool answer) {
  HostFloats::Id a = float_id();
  Relation r = relation();
  symbols_->floats.restore({a, float_id(), r, answer});
}

HostFloats::Step TextParser::float_step() {
  using Op = HostFloats::Op;
  size_t start = (c_.skip(), c_.at);
  std::string name(c_.word());
  c_.expect("(");
  auto op = HostFloats::find_op(name);
  if (op == Op::size) return {*op, -1, -1, expression(), 0};
  if (op == Op::given || op == Op::element) return {*op, -1, -1, {}, static_cast<size_t>(c_.integer())};
  if (op == Op::constant) return {*op, -1, -1, {}, 0};
  if (op == Op::neg) return {*op, float_id(), -1, {}, 0};
  if (op) {
    HostFloats::Id a = float_id();
    c_.expect(",");
    return {*op, a, float_id(), {}, 0};
  }
  auto functions = HostFloats::functions();
  for (size_t f = 0; f < functions.size(); ++f)
    if (functions[f].name == name) return {Op::function, float_id(), -1, {}, f};
  c_.fail_at(start, "unknown computation '", name, "'");
}

void TextParser::host_float() {
  size_t start = (c_.skip(), c_.at);
  const std::string expected = cat("f", symbols_->floats.count());
  if (c_.word() != expected) c_.fail_at(start, "expected float ", expected);
  c_.expect("=");
  HostFloats::Step step = float_step();
  if (step.op != HostFloats::Op::constant) c_.expect(",");
  c_.expect("hint");
  c_.expect("=");
  double hint = c_.floating();
  bool late = c_.accept(",");
  if (late) c_.expect("late");
  c_.expect(")");
  symbols_->floats.restore(step, hint, late);
}

// ---- expressions, types and arguments ----

// Where an expression ends: before a word that follows an operand, or what cannot be part of one.
static size_t end_of_expression(std::string_view line, size_t at) {
  char before = '+';  // the last character that is no space
  for (int depth = 0; at < line.size(); ++at) {
    const char ch = line[at];
    if (depth == 0 && std::string_view(",])}:=<>!").find(ch) != std::string_view::npos) break;
    const bool word = std::isalpha(static_cast<unsigned char>(ch)) && line[at - 1] == ' ';
    if (depth == 0 && word && std::string_view("+-*").find(before) == std::string_view::npos) break;
    depth += ch == '(' ? 1 : ch == ')' ? -1 : 0;
    if (ch != ' ') before = ch;
  }
  return at;
}

SymInt TextParser::expression() {
  c_.skip();
  size_t start = c_.at;
  c_.at = end_of_expression(c_.line, start);
  return c_.placed(start, [&] {
    SymInt e = SymInt::parse(c_.line.substr(start, c_.at - start));
    std::vector<SymbolId> symbols;
    e.collect_symbols(symbols);
    for (SymbolId id : symbols) check(declares_(id), id < kFirstAxis ? "symbol " : "axis ", SymInt::symbol(id), " is not declared");
    return e;
  });
}

Op TextParser::op() {
  size_t start = (c_.skip(), c_.at);
  std::string_view name = c_.word();
  auto op = find_op(name);
  if (!op) c_.fail_at(start, "unknown operation '", name, "'");
  return *op;
}

Type TextParser::type() {
  Type t;
  t.dtype = c_.dtype();
  t.shape = shape();
  if (c_.accept("@")) t.device = device();
  return t;
}

Device TextParser::device() {
  size_t start = (c_.skip(), c_.at);
  std::string_view name = c_.word();
  Device d = c_.placed(start, [&] { return Device{parse_device_kind(name), -1}; });
  if (c_.accept(":")) d.index = static_cast<int8_t>(c_.integer());
  return d;
}

Scalar TextParser::scalar() {
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

ExternArg TextParser::argument() {
  auto tensor = [&] { return c_.accept("none") ? int64_t{-1} : (c_.expect("$"), c_.integer()); };
  if (c_.accept("none")) return {};
  if (c_.accept("$")) return {ExternArg::Input{static_cast<uint32_t>(c_.integer())}};
  if (c_.accept("number")) return c_.expect("$"), ExternArg{ExternArg::InputNumber{static_cast<uint32_t>(c_.integer())}};
  if (c_.accept("int")) return {Scalar(c_.integer())};
  if (c_.accept("doubles")) return {c_.list("[", "]", [&] { return c_.floating(); })};
  if (c_.accept("bools")) return {c_.list("[", "]", [&] { return c_.boolean(); })};
  if (c_.accept("<opaque")) return opaque();
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

// A stand-in for an object that has no text form: whoever loads a text knows it by its number.
ExternArg TextParser::opaque() {
  size_t start = (c_.skip(), c_.at);
  int64_t number = c_.integer();
  c_.expect(">");
  if (number < 0 || number > static_cast<int64_t>(opaque_.size())) c_.fail_at(start, "expected an opaque object up to ", opaque_.size());
  if (number == static_cast<int64_t>(opaque_.size())) opaque_.push_back(std::make_shared<const int64_t>(number));
  return {ExternArg::Opaque{opaque_[static_cast<size_t>(number)]}};
}

std::vector<ExternCall::Bind> TextParser::binds() {
  std::vector<ExternCall::Bind> out;
  if (!c_.accept("binds")) return out;
  for (const Shape& b : c_.list("[", "]", [&] { return shape(); })) {
    if (b.size() != 3 || !b[0].as_symbol() || !b[1].is_constant() || !b[2].is_constant())
      c_.fail_at(c_.at, "expected [symbol, result, dimension]");
    out.push_back({*b[0].as_symbol(), static_cast<int32_t>(b[1].constant()), static_cast<int32_t>(b[2].constant())});
  }
  return out;
}

std::shared_ptr<ExternCall> TextParser::call() {
  auto out = std::make_shared<ExternCall>();
  out->schema = c_.quoted();
  out->args = c_.list("(", ")", [&] { return argument(); });
  if (c_.accept("strides")) out->result_strides = c_.list("[", "]", [&] { return shape(); });
  out->effect = c_.accept("effect");
  auto positions = [&] { return c_.list("[", "]", [&] { return c_.integer(); }); };
  if (c_.accept("mutates")) out->mutated = positions();
  if (c_.accept("contiguous")) out->contiguous = positions();
  out->binds = binds();
  return out;
}

AttrValue TextParser::attribute_value(Attr a) {
  const AttrValue kind = empty_value(a);
  if (std::holds_alternative<int64_t>(kind)) return c_.integer();
  if (std::holds_alternative<Scalar>(kind)) return scalar();
  if (std::holds_alternative<SymInt>(kind)) return expression();
  if (std::holds_alternative<Shape>(kind)) return shape();
  if (std::holds_alternative<std::vector<int64_t>>(kind)) return c_.list("[", "]", [&] { return c_.integer(); });
  if (std::holds_alternative<DType>(kind)) return c_.dtype();
  call_ = call();
  return std::shared_ptr<const ExternCall>(call_);
}

void TextParser::attribute(Op op, Attrs& attrs) {
  size_t start = (c_.skip(), c_.at);
  std::string name(c_.word());
  auto attr = find_attr(name);
  if (!attr || !has_attr(op, *attr)) c_.fail_at(start, name_of(op), " has no attribute '", name, "'");
  if (attrs.contains(*attr)) c_.fail_at(start, "attribute ", name, " is given twice");
  c_.expect("=");
  attrs[*attr] = attribute_value(*attr);
}

}  // namespace broach
