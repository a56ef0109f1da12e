// The text form of a kernel, printed, parsed and verified. A header, then one line an axis, buffer, expression or store:
//
//   kernel strict symbols 1 parameters 1
//     axis i0 < s0
//     reduce i1 < 64
//     buffer b0 : f32
//     buffer b1 : i64
//     e0 = load b1[i0] : i64
//     e1 = bounds e0 < s0 : i64
//     e2 = load b0[i1, e1*(64)] : f32
//     e3 = parameter 0 : f32
//     e4 = mul(e2, e3) : f32
//     e5 = reduce_argmax(e4, position=i1) : i64
//     b1[i0] = e5
//
// Others are `constant 0.1` and `position 2*i0 + 1`; a load and a check of bounds may end with `if e7`, their predicate, and an op of a
// low-precision type with `rounded`. A store of sums of 16 rows is `b2[64*floordiv(i0, 16) + i1] += e4`.
#include "ir/parse.h"
#include "ir/text.h"
#include "schedule/kernel.h"
#include "schedule/kernel_facts.h"

namespace broach {

using Kind = KernelExpr::Kind;

// ---- printing ----

namespace {

std::string text_of(const Access& a) {
  std::string out = cat("b", a.buffer, "[", a.index);
  for (const auto& [expr, stride] : a.dynamic) out += cat(", e", expr, "*(", stride, ")");
  return out + "]";
}

bool gives_position(const KernelExpr& e) { return is_index_reduction(e.op); }

std::string call_text(const KernelExpr& e) {
  std::string out = cat(name_of(e.op), "(");
  for (size_t i = 0; i < e.args.size(); ++i) out += cat(i ? ", e" : "e", e.args[i]);
  return out + (gives_position(e) ? cat(", position=", e.access.index, ")") : ")");
}

std::string text_of(const KernelExpr& e) {
  std::string out;
  switch (e.kind) {
    case Kind::constant: out = "constant " + exact_text(e.value); break;
    case Kind::parameter: out = cat("parameter ", as_int(e.value)); break;
    case Kind::position: out = cat("position ", e.access.index); break;
    case Kind::load: out = cat("load ", text_of(e.access)); break;
    case Kind::bounds: out = cat("bounds e", e.args.at(0), " < ", e.limit); break;
    default: out = call_text(e);
  }
  if (e.predicate >= 0) out += cat(" if e", e.predicate);
  return cat(out, " : ", name_of(e.dtype));
}

}  // namespace

bool operator==(const KernelExpr& a, const KernelExpr& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.args == b.args && a.access == b.access && a.limit == b.limit &&
         a.predicate == b.predicate && a.value.index() == b.value.index() && exact_text(a.value) == exact_text(b.value);
}

std::string Kernel::str() const {
  std::string out = cat("kernel", strict ? " strict" : "", " symbols ", symbols, parameters ? cat(" parameters ", parameters) : "", "\n");
  for (const auto& a : axes) out += cat("  ", a.reduced ? "reduce " : "axis ", SymInt::symbol(a.id), " < ", a.extent, "\n");
  for (size_t i = 0; i < buffers.size(); ++i) out += cat("  buffer b", i, " : ", name_of(buffers[i]), "\n");
  for (size_t i = 0; i < exprs.size(); ++i) out += cat("  e", i, " = ", text_of(exprs[i]), "\n");
  for (const auto& s : stores) out += cat("  ", text_of(s.access), s.adds ? " += e" : " = e", s.expr, "\n");
  return out;
}

// ---- parsing ----

namespace {

class KernelParser : TextParser {
 public:
  KernelParser(std::string_view text, size_t lines) : TextParser(text, nullptr, lines) {
    declares_ = [this](SymbolId id) {
      return id < kFirstAxis ? id < static_cast<SymbolId>(k_.symbols)
                             : std::any_of(k_.axes.begin(), k_.axes.end(), [&](const KernelAxis& a) { return a.id == id; });
    };
  }

  Kernel parse() {
    for_each_line([&] {
      if (c_.accept("kernel")) header();
      else if (!has_header_) c_.fail_at(c_.at, "expected 'kernel'");
      else if (c_.accept("axis")) axis(false);
      else if (c_.accept("reduce")) axis(true);
      else if (c_.accept("buffer")) buffer();
      else if (c_.peek() == 'e') expr();
      else store();
    });
    if (!has_header_) fail_at_end("expected 'kernel'");
    return std::move(k_);
  }

 private:
  void header() {
    if (has_header_) c_.fail_at(0, "a second kernel");
    has_header_ = true;
    k_.strict = c_.accept("strict");
    c_.expect("symbols");
    k_.symbols = count();
    if (c_.accept("parameters")) k_.parameters = count();
  }
  int count() {
    int64_t n = c_.integer();
    if (n < 0 || n >= kFirstAxis) c_.fail_at(c_.at, "a number out of range");
    return static_cast<int>(n);
  }

  void axis(bool reduced) {
    size_t start = (c_.skip(), c_.at);
    std::string name(c_.word());
    std::optional<SymbolId> id;
    if (name[0] == 'i') id = c_.placed(start, [&] { return SymInt::parse(name).as_symbol(); });
    if (!id || declares_(*id)) c_.fail_at(start, "expected an axis that is not there yet, found '", name, "'");
    c_.expect("<");
    SymInt extent = expression();
    k_.axes.push_back({*id, std::move(extent), reduced});
  }

  // What stands behind the letter in e7 or b0: less than `limit`, which is also what must come next where something is declared.
  int numbered(char letter, size_t limit) {
    size_t start = (c_.skip(), c_.at);
    c_.expect_char(letter);
    int64_t n = c_.digits();
    if (n >= static_cast<int64_t>(limit)) c_.fail_at(start, letter, n, " is not defined above");
    return static_cast<int>(n);
  }
  int operand() { return numbered('e', k_.exprs.size()); }
  void expect_next(char letter, size_t next) {
    size_t start = (c_.skip(), c_.at);
    if (numbered(letter, next + 1) != static_cast<int>(next)) c_.fail_at(start, "expected ", letter, next);
  }

  void buffer() {
    expect_next('b', k_.buffers.size());
    c_.expect(":");
    k_.buffers.push_back(c_.dtype());
  }

  Access access() {
    Access a{numbered('b', k_.buffers.size()), {}, {}};
    c_.expect("[");
    a.index = expression();
    while (c_.accept(",")) {
      int e = operand();
      c_.expect("*");
      a.dynamic.emplace_back(e, expression());
    }
    c_.expect("]");
    return a;
  }

  void expr() {
    expect_next('e', k_.exprs.size());
    c_.expect("=");
    KernelExpr e = expression_without_type();
    if (c_.accept("if")) e.predicate = operand();
    c_.expect(":");
    e.dtype = c_.dtype();
    k_.exprs.push_back(std::move(e));
  }

  KernelExpr expression_without_type() {
    KernelExpr e{};
    e.op = Op::scalar;
    if (c_.accept("constant")) e.kind = Kind::constant, e.value = scalar();
    else if (c_.accept("parameter")) e.kind = Kind::parameter, e.value = c_.integer();
    else if (c_.accept("position")) e.kind = Kind::position, e.access.index = expression();
    else if (c_.accept("load")) e.kind = Kind::load, e.access = access();
    else if (c_.accept("bounds")) {
      e.kind = Kind::bounds;
      e.args = {operand()};
      c_.expect("<");
      e.limit = expression();
    } else call(e);
    return e;
  }

  void call(KernelExpr& e) {
    size_t start = (c_.skip(), c_.at);
    std::string_view name = c_.word();
    auto op = find_op(name);
    if (!op || !(is_elementwise(*op) || is_reduce(*op))) c_.fail_at(start, "no expression of a kernel is called '", name, "'");
    e.op = *op;
    e.kind = is_reduce(*op) ? Kind::reduction : Kind::op;
    c_.expect("(");
    do e.args.push_back(operand());
    while (c_.accept(",") && c_.peek() == 'e');
    if (gives_position(e)) {
      c_.expect("position");
      c_.expect("=");
      e.access.index = expression();
    }
    c_.expect(")");
  }

  void store() {
    Access a = access();
    const bool adds = c_.accept("+");
    c_.expect("=");
    k_.stores.push_back({std::move(a), operand(), adds});
  }

  bool has_header_ = false;
  Kernel k_;
};

}  // namespace

Kernel Kernel::parse(std::string_view text, size_t lines) { return KernelParser(text, lines).parse(); }

// ---- verifying ----

namespace {

class KernelVerifier {
 public:
  explicit KernelVerifier(const Kernel& k) : k_(k) {}

  void run() const {
    for (size_t i = 0; i < k_.axes.size(); ++i) verify_part(cat("kernel, axis ", i), [&] { axis(i); });
    for (size_t i = 0; i < k_.exprs.size(); ++i) verify_part(cat("kernel, e", i), [&] { expr(i); });
    for (size_t i = 0; i < k_.stores.size(); ++i) verify_part(cat("kernel, store ", i), [&] { store(k_.stores[i]); });
  }

 private:
  void axis(size_t at) const {
    const KernelAxis& a = k_.axes[at];
    check(a.id >= kFirstAxis, "its symbol is none of an axis");
    for (size_t i = 0; i < at; ++i) check(k_.axes[i].id != a.id, SymInt::symbol(a.id), " is axis ", i, " as well");
    known(a.extent, false);
  }

  // Axes may be mentioned by addresses and positions, but by no size.
  void known(const SymInt& e, bool axes = true) const {
    std::vector<SymbolId> symbols;
    e.collect_symbols(symbols);
    for (SymbolId id : symbols) {
      bool is_axis = axes && std::any_of(k_.axes.begin(), k_.axes.end(), [&](const KernelAxis& a) { return a.id == id; });
      check(id < static_cast<SymbolId>(k_.symbols) || is_axis, SymInt::symbol(id), " is not declared");
    }
  }

  const KernelExpr& before(int e, size_t at) const {
    check(e >= 0 && static_cast<size_t>(e) < at, "e", e, " is not computed before it");
    return k_.exprs[static_cast<size_t>(e)];
  }

  void access(const Access& a, DType dtype, size_t at) const {
    check(a.buffer >= 0 && static_cast<size_t>(a.buffer) < k_.buffers.size(), "there is no buffer b", a.buffer);
    check(k_.buffers[static_cast<size_t>(a.buffer)] == dtype, "is ", name_of(dtype), ", b", a.buffer, " is ",
          name_of(k_.buffers[static_cast<size_t>(a.buffer)]));
    known(a.index);
    for (const auto& [e, stride] : a.dynamic) {
      check(before(e, at).dtype == DType::i64, "e", e, " is added to an address and not i64");
      known(stride, false);
    }
  }

  void expr(size_t at) const {
    const KernelExpr& e = k_.exprs[at];
    if (e.predicate >= 0) {
      check(e.kind == Kind::load || e.kind == Kind::bounds, "has a predicate");
      check(before(e.predicate, at).dtype == DType::b1, "its predicate is not b1");
    }
    for (int a : e.args) before(a, at);
    switch (e.kind) {
      case Kind::constant: return;
      case Kind::parameter: return check(as_int(e.value) >= 0 && as_int(e.value) < k_.parameters, "is none of the parameters");
      case Kind::position: return known(e.access.index), check(e.dtype == DType::i64, "is a position and not i64");
      case Kind::load: return access(e.access, e.dtype, at);
      case Kind::bounds: return bounds(e);
      case Kind::op: return op(e);
      case Kind::reduction: return reduction(e);
    }
  }

  void bounds(const KernelExpr& e) const {
    known(e.limit, false);
    check(e.args.size() == 1 && e.dtype == DType::i64 && dtype_of(e, 0) == DType::i64, "is not a check of one i64");
  }

  DType dtype_of(const KernelExpr& e, size_t arg) const { return k_.exprs[static_cast<size_t>(e.args[arg])].dtype; }

  void op(const KernelExpr& e) const {
    const OpKind kind = kind_of(e.op);
    check(is_elementwise(e.op), name_of(e.op), " is not elementwise");
    check(static_cast<int>(e.args.size()) == row(e.op).inputs, name_of(e.op), " has ", e.args.size(), " operands");
    if (kind == OpKind::cast) return;
    if (e.op == Op::where) check(dtype_of(e, 0) == DType::b1, "its condition is not b1");
    if (kind == OpKind::compare) check(e.dtype == DType::b1, "compares and is not b1");
    const DType operand = kind == OpKind::compare ? dtype_of(e, 0) : e.dtype;
    for (size_t i = e.op == Op::where ? 1 : 0; i < e.args.size(); ++i)
      check(dtype_of(e, i) == operand, "operand ", i, " is ", name_of(dtype_of(e, i)), ", not ", name_of(operand));
  }

  void reduction(const KernelExpr& e) const {
    check(is_reduce(e.op) && e.args.size() == 1, name_of(e.op), " is no reduction of one operand");
    check(e.dtype == (gives_position(e) ? DType::i64 : dtype_of(e, 0)), "is ", name_of(e.dtype), ", its operand ", name_of(dtype_of(e, 0)));
    known(e.access.index);
  }

  void store(const KernelStore& s) const {
    check(s.access.dynamic.empty(), "its address is not known before the kernel runs");
    check(!s.adds || rows_added(k_) > 0, "adds up, but no number of rows");
    access(s.access, before(s.expr, k_.exprs.size()).dtype, k_.exprs.size());
  }

  const Kernel& k_;
};

}  // namespace

void Kernel::verify() const { KernelVerifier(*this).run(); }

}  // namespace broach
