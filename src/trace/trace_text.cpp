// The text form of a trace, printed, parsed and verified. Symbols, numbers of the host and guards as in a graph, then one line an
// input, op or value read:
//
//   symbol s0(hint=5, min=2, input=0, dim=0)
//   float f0 = given(0, hint=0.1)
//   input t0: f32[s0, 2] strides [2, 1] offset 0 storage 0
//   input t3: f64[] strides [] offset 0 storage -2
//   numbers f0
//   t1: f32[s0] strides [2] offset 1 storage 0 = aten::select.int(t0, 1, 1) view  # model.py:3
//   t2: f32[s0] strides [1] offset 0 storage 1 = aten::mul.Tensor(t1, number 0.1 of t3)
//   read t2 is 0.5
//   return t1, none
//
// `tensor` declares one that is neither an input nor a result. Arguments are those of a graph's extern call, but that tensors are
// t0, {t0, none} or `undefined`, and numbers of the program `number 3`, `number 3 = s0 + 1` or `number 0.1 of t3`.
#include <algorithm>
#include <set>

#include "ir/parse.h"
#include "ir/text.h"
#include "trace/trace.h"

namespace broach {

// ---- printing ----

namespace {

std::string name_of(TensorId id) { return id == kNoTensor ? "none" : cat("t", id); }

std::string names_of(const std::vector<TensorId>& ids) {
  std::string out;
  for (TensorId id : ids) out += (out.empty() ? "" : ", ") + name_of(id);
  return out;
}

// t3: f32[2, s0] strides [s0, 1] offset 0 storage 1
std::string described(const Trace& trace, TensorId id) {
  if (id == kNoTensor) return "none";
  const TraceTensor& t = trace.tensors.at(static_cast<size_t>(id));
  return cat(name_of(id), ": ", t.type.str(), " strides ", list_text(t.strides), " offset ", t.offset, " storage ", t.storage,
             t.conj ? " conj" : "", t.neg ? " neg" : "");
}

struct ArgText {
  OpaqueNumbers& opaque;
  std::string operator()(const Arg::Tensor& t) const { return t.id == kNoTensor ? "undefined" : name_of(t.id); }
  std::string operator()(const Arg::Number& n) const {
    return cat("number ", exact_text(n.value), n.symbol ? cat(" = ", *n.symbol) : "",
               n.tensor == kNoTensor ? "" : " of " + name_of(n.tensor));
  }
  std::string operator()(const Arg::Tensors& t) const { return cat("{", names_of(t.ids), t.optional_elements ? "}?" : "}"); }
  template <class T>
  std::string operator()(const T& value) const {
    return text_of(ExternArg{value}, opaque);
  }
};

// Others stand between quotes, so that no line of an op looks like another one.
bool is_plain(std::string_view schema) {
  return schema.starts_with("aten::") &&
         std::all_of(schema.begin(), schema.end(), [](char c) { return is_word_char(c) || c == ':' || c == '.'; });
}

std::string op_text(const Trace& trace, const TraceOp& op, OpaqueNumbers& opaque) {
  std::string out;
  for (TensorId id : op.results) out += (out.empty() ? "" : ", ") + described(trace, id);
  out += cat(out.empty() ? "" : " = ", is_plain(op.schema) ? op.schema : cat('"', escaped(op.schema), '"'), "(");
  for (size_t i = 0; i < op.args.size(); ++i) out += (i ? ", " : "") + std::visit(ArgText{opaque}, op.args[i].value);
  out += ")";
  if (!op.mutated.empty()) out += " mutates " + names_of(op.mutated);
  return cat(out, text_of(op.binds), op.is_view ? " view" : "", op.effect ? " effect" : "", comment_text(trace.lines, op.line));
}

// Tensors that no input or op describes.
std::vector<TensorId> declared_alone(const Trace& trace) {
  std::vector<bool> seen(trace.tensors.size());
  auto see = [&](TensorId id) {
    if (id != kNoTensor) seen.at(static_cast<size_t>(id)) = true;
  };
  for (TensorId id : trace.inputs) see(id);
  for (const TraceOp& op : trace.ops)
    for (TensorId id : op.results) see(id);
  std::vector<TensorId> out;
  for (size_t i = 0; i < seen.size(); ++i)
    if (!seen[i]) out.push_back(static_cast<TensorId>(i));
  return out;
}

}  // namespace

std::string Trace::str() const {
  std::string out = text_of(*symbols);
  for (TensorId id : inputs) out += cat("input ", described(*this, id), "\n");
  for (TensorId id : declared_alone(*this)) out += cat("tensor ", described(*this, id), "\n");
  for (size_t i = 0; i < numbers.size(); ++i) out += cat(i ? ", f" : "numbers f", numbers[i], i + 1 == numbers.size() ? "\n" : "");
  OpaqueNumbers opaque;
  for (const TraceOp& op : ops) out += op_text(*this, op, opaque) + "\n";
  for (const ValueRead& r : reads)
    out += cat("read ", r.input >= 0 ? cat("input ", r.input) : name_of(r.tensor), " is ", exact_text(r.value), comment_text(lines, r.line),
               "\n");
  return cat(out, "return", outputs.empty() ? "" : " ", names_of(outputs), "\n");
}

// ---- parsing ----

namespace {

class TraceParser : TextParser {
 public:
  explicit TraceParser(std::string_view text) : TextParser(text, std::make_shared<Symbols>()) { t_.symbols = symbols_; }

  Trace parse() {
    bool ended = false;
    for_each_line([&] {
      if (ended) c_.fail_at(c_.at, "text after the return");
      if (declaration()) return;
      if (c_.accept("input")) t_.inputs.push_back(declare(id()));
      else if (c_.accept("tensor")) declare(id());
      else if (c_.accept("numbers")) numbers();
      else if (c_.accept("read")) read();
      else if (c_.accept("return")) ended = true, t_.outputs = c_.ends() ? std::vector<TensorId>() : ids();
      else op();
    });
    if (!ended) fail_at_end("the trace ends without a return");
    if (declared_.size() != t_.tensors.size()) fail_at_end("t", first_undeclared(), " is not declared");
    return std::move(t_);
  }

 private:
  TensorId id() {
    size_t start = (c_.skip(), c_.at);
    if (c_.accept("none")) return kNoTensor;
    c_.expect_char('t');
    int64_t n = c_.digits();
    if (n >= kMostTensors) c_.fail_at(start, "a number out of range");
    return static_cast<TensorId>(n);
  }
  std::vector<TensorId> ids() {
    std::vector<TensorId> out;
    do out.push_back(id());
    while (c_.accept(","));
    return out;
  }

  // What follows the name of a tensor where it is described.
  TensorId declare(TensorId id) {
    if (id == kNoTensor) return id;
    size_t start = c_.at;
    c_.expect(":");
    TraceTensor t;
    t.type = type();
    c_.expect("strides");
    t.strides = shape();
    c_.expect("offset");
    t.offset = expression();
    c_.expect("storage");
    t.storage = static_cast<int32_t>(c_.integer());
    t.conj = c_.accept("conj");
    t.neg = c_.accept("neg");
    if (static_cast<size_t>(id) >= t_.tensors.size()) t_.tensors.resize(static_cast<size_t>(id) + 1);
    TraceTensor& known = t_.tensors[static_cast<size_t>(id)];
    if (declared_.insert(id).second) known = std::move(t);
    else if (!(known == t)) c_.fail_at(start, "t", id, " is described otherwise above");
    return id;
  }

  TensorId first_undeclared() const {
    TensorId id = 0;
    while (declared_.contains(id)) ++id;
    return id;
  }

  void numbers() {
    do t_.numbers.push_back(float_id());
    while (c_.accept(","));
  }

  void read() {
    ValueRead r;
    if (c_.accept("input")) r.input = static_cast<int>(c_.integer());
    else r.tensor = id();
    c_.expect("is");
    r.value = scalar();
    r.line = line();
    t_.reads.push_back(std::move(r));
  }

  int32_t line() {
    return line_index([&](const std::string& text) { t_.lines.push_back(text); });
  }

  void op() {
    TraceOp op;
    const char first = c_.peek();
    if (first == 't' || first == 'n') {
      do op.results.push_back(declare(id()));
      while (c_.accept(","));
      c_.expect("=");
    }
    op.schema = c_.peek() == '"' ? c_.quoted() : plain_schema();
    op.args = c_.list("(", ")", [&] { return arg(); });
    if (c_.accept("mutates")) op.mutated = ids();
    op.binds = binds();
    op.is_view = c_.accept("view");
    op.effect = c_.accept("effect");
    op.line = line();
    t_.ops.push_back(std::move(op));
  }

  std::string plain_schema() {
    size_t end = std::min(c_.line.find('(', c_.at), c_.line.size());
    std::string out(c_.line.substr(c_.at, end - c_.at));
    if (!is_plain(out)) c_.fail_at(c_.at, "expected an op, found '", out, "'");
    c_.at = end;
    return out;
  }

  Arg arg() {
    if (c_.accept("undefined")) return {Arg::Tensor{kNoTensor}};
    if (c_.peek() == 't' && c_.number_text() != "true") return {Arg::Tensor{id()}};
    if (c_.peek() == '{') {
      Arg::Tensors many{c_.list("{", "}", [&] { return id(); })};
      many.optional_elements = c_.accept("?");
      return {many};
    }
    if (c_.accept("number")) return {number()};
    return std::visit([&](auto&& value) { return as_arg(std::move(value)); }, argument().value);
  }
  Arg::Number number() {
    Arg::Number n{scalar()};
    if (c_.accept("=")) n.symbol = expression();
    if (c_.accept("of")) n.tensor = id();
    return n;
  }
  template <class T>
  Arg as_arg(T value) {
    if constexpr (requires { Arg{value}; }) return {std::move(value)};
    else c_.fail_at(c_.at, "an argument of a graph's call, not of a trace's");
  }

  static constexpr int64_t kMostTensors = 1 << 24;
  Trace t_;
  std::set<TensorId> declared_;
};

}  // namespace

Trace Trace::parse(std::string_view text) { return TraceParser(text).parse(); }

// ---- verifying ----

namespace {

class TraceVerifier {
 public:
  explicit TraceVerifier(const Trace& trace) : t_(trace), known_(trace.tensors.size()) {}

  void run() {
    for (size_t i = 0; i < t_.tensors.size(); ++i) verify_part(cat("trace, t", i), [&] { tensor(t_.tensors[i]); });
    for (TensorId id : t_.inputs) verify_part("trace, the inputs", [&] { define(id); });
    check(t_.numbers.size() <= t_.inputs.size(), "trace: there are more numbers than inputs");
    for (const TraceOp& op : t_.ops) verify_part("trace, " + op.schema, [&] { this->op(op); });
    for (const ValueRead& r : t_.reads) verify_part("trace, a value read", [&] { read(r); });
    for (TensorId id : t_.outputs) verify_part("trace, the outputs", [&] { known(id); });
  }

 private:
  void sizes(const Shape& shape) const {
    for (const SymInt& e : shape) check(t_.symbols->declares(e), e, " has a symbol that is not declared");
  }
  void tensor(const TraceTensor& t) const {
    sizes(t.type.shape), sizes(t.strides), sizes({t.offset});
    check(t.strides.size() == t.type.shape.size(), t.strides.size(), " strides of ", t.type.str());
  }

  void define(TensorId id) {
    if (id == kNoTensor) return;
    check(id >= 0 && static_cast<size_t>(id) < known_.size(), "there is no t", id);
    known_[static_cast<size_t>(id)] = true;
  }
  void known(TensorId id) const {
    check(id == kNoTensor || (id >= 0 && static_cast<size_t>(id) < known_.size() && known_[static_cast<size_t>(id)]), "t", id,
          " is no input and no result before it");
  }
  void line(int32_t at) const { check(at < static_cast<int32_t>(t_.lines.size()), "its line is none of the trace"); }

  void op(const TraceOp& op) {
    for_each_tensor(op.args, [&](TensorId id) { known(id); });
    for (TensorId id : op.mutated) known(id);
    for (TensorId id : op.results) define(id);
    for (const auto& b : op.binds) {
      check(b.symbol < t_.symbols->infos().size(), "binds a symbol that is not declared");
      check(b.result < static_cast<int32_t>(op.results.size()), "binds to a result that it has not");
    }
    line(op.line);
  }

  void read(const ValueRead& r) const {
    check(r.input >= 0 ? static_cast<size_t>(r.input) < t_.inputs.size() : r.tensor != kNoTensor, "is of no input and no tensor");
    known(r.tensor);
    line(r.line);
  }

  const Trace& t_;
  std::vector<bool> known_;
};

}  // namespace

void Trace::verify() const { TraceVerifier(*this).run(); }

}  // namespace broach
