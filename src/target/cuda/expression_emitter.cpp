#include "target/cuda/expression_emitter.h"

#include <cmath>
#include <complex>
#include <cstdio>
#include <cstring>

namespace broach::cuda {

using Kind = KernelExpr::Kind;

// ---- element types ----

std::string stored_type(DType t) {
  if (t == DType::f16 || t == DType::bf16) return "unsigned short";
  return t == DType::b1 ? "unsigned char" : computed_type(t);
}

std::string computed_type(DType t) {
  switch (t) {
    case DType::b1: return "bool";
    case DType::u8: return "unsigned char";
    case DType::i8: return "signed char";
    case DType::i16: return "short";
    case DType::u16: return "unsigned short";
    case DType::i32: return "int";
    case DType::i64: return "i64";
    case DType::f16:
    case DType::bf16:
    case DType::f32: return "float";
    case DType::f64: return "double";
    // Carried as they are: arithmetic on complex numbers is taken apart before.
    case DType::c32: return "unsigned";
    case DType::c64: return "u64";
    case DType::c128: return "Bits16";
    default: unsupported("cuda: no code for elements of type ", name_of(t));
  }
}

std::string from_memory(const std::string& x, DType t) {
  if (t == DType::b1) return cat("(", x, " != 0)");
  if (t == DType::f16 || t == DType::bf16) return cat("from_", name_of(t), "(", x, ")");
  return x;
}

std::string to_memory(const std::string& x, DType t) {
  return t == DType::f16 || t == DType::bf16 ? cat("to_", name_of(t), "(", x, ")") : x;
}

std::string as_stored(const std::string& x, DType t) { return from_memory(to_memory(x, t), t); }

namespace {

std::string real_text(double x, bool is_double) {
  if (std::isnan(x)) return is_double ? "__longlong_as_double(0x7ff8000000000000ll)" : "__int_as_float(0x7fc00000)";
  const char* sign = std::signbit(x) ? "-" : "";
  if (std::isinf(x)) return cat("(", sign, is_double ? "__longlong_as_double(0x7ff0000000000000ll)" : "__int_as_float(0x7f800000)", ")");
  char text[64];
  std::snprintf(text, sizeof text, "%a", std::fabs(x));
  return cat("(", sign, text, is_double ? "" : "f", ")");
}

template <class Part>
uint64_t bits_of(Part x) {
  uint64_t out = 0;
  std::memcpy(&out, &x, sizeof x);
  return out;
}

std::string complex_text(const Scalar& s, DType t) {
  const auto z = is_complex(s) ? std::get<std::complex<double>>(s) : std::complex<double>(as_double(s));
  if (t == DType::c128) return cat("Bits16{", bits_of(z.real()), "ull, ", bits_of(z.imag()), "ull}");
  if (t == DType::c64) return cat(bits_of(static_cast<float>(z.real())) | bits_of(static_cast<float>(z.imag())) << 32, "ull");
  if (z == 0.0) return "0u";
  unsupported("cuda: no code for a constant of type ", name_of(t));
}

}  // namespace

std::string constant_text(const Scalar& s, DType t) {
  if (t == DType::b1) return as_double(s) != 0 ? "true" : "false";
  if (is_integral(t)) return cat("static_cast<", computed_type(t), ">(", static_cast<uint64_t>(as_int(s)), "ull)");
  if (is_complex(t)) return complex_text(s, t);
  return real_text(rounded(as_double(s), t), t == DType::f64);
}

// ---- indices ----

std::string ExpressionEmitter::index(const SymInt& n, int64_t lane) const {
  std::string out;
  for (const Term& t : n.terms()) {
    std::string product;
    if (t.coefficient != 1) product = cat("(", t.coefficient, p_.variant.wide ? "ll" : "", ")");
    for (const Atom& a : t.factors) product += (product.empty() ? "" : " * ") + atom(a, lane);
    out += (out.empty() ? "" : " + ") + product;
  }
  if (n.constant_part() != 0 || out.empty()) out += (out.empty() ? "" : " + ") + cat("(", n.constant_part(), p_.variant.wide ? "ll)" : ")");
  return out;
}

std::string ExpressionEmitter::atom(const Atom& a, int64_t lane) const {
  if (a.kind == AtomKind::symbol) {
    if (a.symbol < kFirstAxis) return cat("s", a.symbol);
    const std::string axis = cat("i", a.symbol - kFirstAxis);
    return lane > 0 && a.symbol == p_.axis_id() ? cat("(", axis, " + ", lane, ")") : axis;
  }
  const std::string x = index(a.args->first, lane), y = index(a.args->second, lane);
  // Rounded down. A position of which whole multiples of a symbol were left out may be negative.
  const bool division = a.kind == AtomKind::floordiv || a.kind == AtomKind::mod;
  const bool negative = division && !proven_non_negative(a.args->first, ranges_);
  const std::string rest = negative ? cat("((((", x, ") % (", y, ")) + (", y, ")) % (", y, "))") : cat("((", x, ") % (", y, "))");
  switch (a.kind) {
    case AtomKind::floordiv: return negative ? cat("(((", x, ") - ", rest, ") / (", y, "))") : cat("((", x, ") / (", y, "))");
    case AtomKind::mod: return rest;
    case AtomKind::min: return cat("min(static_cast<", index_type(), ">(", x, "), static_cast<", index_type(), ">(", y, "))");
    default: return cat("max(static_cast<", index_type(), ">(", x, "), static_cast<", index_type(), ">(", y, "))");
  }
}

std::string ExpressionEmitter::address(const Access& a, int64_t lane) {
  std::string at = index(a.index, lane);
  for (const auto& [e, stride] : a.dynamic) at += cat(" + ", value(e, lane), " * static_cast<i64>(", index(stride, lane), ")");
  return cat("b", a.buffer, " + (", at, ")");
}

std::string ExpressionEmitter::head() const {
  // All blocks that add up rows work at a time, so that none begins when others end.
  const std::string beside = p_.added > 0 ? cat(", ", std::max<int64_t>(1, kThreadsAddingRows / p_.block_threads())) : "";
  std::string out = cat("extern \"C\" __global__ void __launch_bounds__(", p_.block_threads(), beside, ") ", name_, "(");
  for (size_t b = 0; b < k_.buffers.size(); ++b) out += cat(b ? ", " : "", stored_type(k_.buffers[b]), "* b", b);
  for (int s = 0; s < k_.symbols; ++s) out += cat(k_.buffers.empty() && s == 0 ? "" : ", ", "i64 S", s);
  for (int p = 0; p < k_.parameters; ++p) out += cat(", double p", p);
  return out + ")";
}

std::string ExpressionEmitter::around(const std::function<void()>& body) {
  depth_ = 0;
  open(head());
  body();
  close();
  return std::move(out_);
}

void ExpressionEmitter::name_symbols() {
  for (int s = 0; s < k_.symbols; ++s) line("const ", index_type(), " s", s, " = static_cast<", index_type(), ">(S", s, ");");
}

void ExpressionEmitter::stand(const std::vector<size_t>& axes, const std::string& count, int64_t lanes) {
  std::string rest = count;
  for (size_t i = axes.size(); i-- > 0;) {
    const KernelAxis& axis = k_.axes[axes[i]];
    const bool last = i + 1 == axes.size();
    const SymInt extent = last && lanes > 1 ? floordiv(axis.extent, lanes) : axis.extent;
    const std::string at = i == 0 ? rest : cat("(", rest, ") % (", index(extent, 0), ")");
    line("const ", index_type(), " i", axis.id - kFirstAxis, " = ", last && lanes > 1 ? cat("(", at, ") * ", lanes) : at, ";");
    if (i > 0) {
      const std::string next = cat(count, "_", i);
      line("const ", index_type(), " ", next, " = (", rest, ") / (", index(extent, 0), ");");
      rest = next;
    }
  }
}

// ---- values ----

std::string ExpressionEmitter::value(int e, int64_t lane) {
  if (!p_.varies(e)) lane = 0;
  if (auto known = values_.find({e, lane}); known != values_.end()) return known->second;
  const bool is_cached = p_.cached.contains(e) && !cache_step_.empty();
  const std::string slot = is_cached ? cat("c", e, "[", cache_step_, " * ", p_.lanes, " + ", lane, "]") : "";
  if (is_cached && filled_.contains(e)) return values_[{e, lane}] = slot;
  const DType t = p_.expr(e).dtype;
  const std::string name = cat("v", e, p_.varies(e) ? cat("_", lane) : "");
  const bool rounds = p_.rounds[static_cast<size_t>(e)], is_half = t == DType::bf16 || t == DType::f16;
  if (rounds && is_half && p_.varies(e) && p_.lanes > 1 && !is_cached) return round_two(e, lane);
  const std::string text = compute(e, lane);
  line("const ", computed_type(t), " ", name, " = ", rounds ? as_stored(text, t) : text, ";");
  if (is_cached) line(slot, " = ", name, ";");
  return values_[{e, lane}] = name;
}

// Of the lane and the one beside it, which take one instruction.
std::string ExpressionEmitter::round_two(int e, int64_t lane) {
  const int64_t low = lane / 2 * 2;
  const std::string both = cat("w", e, "_", low), x = compute(e, low), y = compute(e, low + 1);
  line("const Both ", both, " = round_to_", name_of(p_.expr(e).dtype), "(", x, ", ", y, ");");
  values_[{e, low}] = both + ".low", values_[{e, low + 1}] = both + ".high";
  return values_[{e, lane}];
}

std::string ExpressionEmitter::compute(int at, int64_t lane) {
  const KernelExpr& e = p_.expr(at);
  switch (e.kind) {
    case Kind::constant: return constant_text(e.value, e.dtype);
    case Kind::parameter: return cat("static_cast<", computed_type(e.dtype), ">(p", as_int(e.value), ")");
    case Kind::position: return cat("static_cast<i64>(", index(e.access.index, lane), ")");
    case Kind::load: return load(at, lane);
    case Kind::bounds: {
      const std::string asked = e.predicate < 0 ? "true" : value(e.predicate, lane), i = value(e.args[0], lane);
      return cat("checked(", i, ", ", index(e.limit, lane), ", ", asked, ", \"", name_, "\")");
    }
    case Kind::reduction: fail("cuda: a reduction is used before it is computed");
    default: return operation(at, lane);
  }
}

std::string ExpressionEmitter::load(int at, int64_t lane) {
  const KernelExpr& e = p_.expr(at);
  const DType stored = k_.buffers[static_cast<size_t>(e.access.buffer)];
  const bool is_asked = e.predicate >= 0, is_one_answer = is_asked && !p_.varies(e.predicate);
  if (is_asked && !(is_one_answer && p_.is_packed(e.access))) {
    const std::string condition = value(e.predicate, lane), from = address(e.access, lane), name = cat("m", at, "_", lane);
    line(stored_type(stored), " ", name, "{};");
    line("if (", condition, ") ", name, " = *(", from, ");");
    return from_memory(name, stored);
  }
  if (p_.turned.contains(at)) return from_memory(cat("turned", at, "[threadIdx.x][k]"), stored);
  if (p_.ahead.contains(at)) return from_memory(cat("here.r", at, is_inner(at) ? cat("[", cache_step_, "].x[", lane, "]") : ""), stored);
  if (!p_.is_packed(e.access)) return from_memory(cat("*(", address(e.access, lane), ")"), stored);
  const std::string row = cat("r", at);
  bool is_known = false;
  for (int64_t l = 0; l < p_.lanes; ++l) is_known = is_known || values_.contains({at, l});
  if (!is_known && is_asked) {
    const std::string condition = value(e.predicate, lane), from = address(e.access, 0);
    line("Row<", stored_type(stored), ", ", p_.lanes, "> ", row, "{};");
    line("if (", condition, ") ", row, " = load_row<", p_.lanes, ">(", from, ");");
  } else if (!is_known) {
    line("const auto ", row, " = load_row<", p_.lanes, ">(", address(e.access, 0), ");");
  }
  return from_memory(cat(row, ".x[", lane, "]"), stored);
}

std::string ExpressionEmitter::cast(const std::string& x, DType from, DType to) const {
  if (from == to) return x;
  // Rounded behind, or when stored.
  if (is_floating(from) && is_floating(to) && computed_type(from) == computed_type(to)) return x;
  return cat("Cast<", computed_type(to), ", ", computed_type(from), ">::of(", x, ")");
}

// Of a division by a constant, as the mean of many elements is one.
std::optional<Scalar> ExpressionEmitter::inverse_of_divisor(const KernelExpr& e) const {
  if (e.op != Op::div || e.dtype != DType::f32 || p_.expr(e.args[1]).kind != Kind::constant) return std::nullopt;
  const double divisor = rounded(as_double(p_.expr(e.args[1]).value), e.dtype);
  // Both it and its inverse far from where numbers lose digits.
  if (!(std::abs(divisor) > 1e-18 && std::abs(divisor) < 1e18)) return std::nullopt;
  return Scalar(1 / divisor);
}

namespace {

bool has_quick(Op op) {
  switch (op) {
    case Op::exp:
    case Op::sigmoid:
    case Op::silu:
    case Op::tanh:
    case Op::gelu_tanh:
    case Op::gelu_erf:
    case Op::gelu_tanh_derivative:
    case Op::gelu_erf_derivative: return true;
    default: return false;
  }
}

}  // namespace

std::string ExpressionEmitter::operation(int at, int64_t lane) {
  const KernelExpr& e = p_.expr(at);
  std::string args;
  for (int a : e.args) args += (args.empty() ? "" : ", ") + value(a, lane);
  const DType from = e.args.empty() ? e.dtype : p_.expr(e.args.back()).dtype;
  std::string out;
  if (e.op == Op::cast) out = cast(args, from, e.dtype);
  else if (e.op == Op::bitcast)
    out =
        from_memory(cat("bits_as<", stored_type(e.dtype), ">(static_cast<", stored_type(from), ">(", to_memory(args, from), "))"), e.dtype);
  else if (e.op == Op::nextafter && is_low_precision(e.dtype)) unsupported("cuda: no code for nextafter on ", name_of(e.dtype));
  else if (const auto inverse = inverse_of_divisor(e)) out = cat("divided(", args, ", ", constant_text(*inverse, e.dtype), ")");
  else out = cat(has_quick(e.op) && p_.bf16_suffices[static_cast<size_t>(at)] ? "quick_" : "op_", name_of(e.op), "(", args, ")");
  return out;
}

void ExpressionEmitter::store(const KernelStore& s, const std::function<std::string(int64_t lane)>& value) {
  const DType stored = k_.buffers[static_cast<size_t>(s.access.buffer)];
  const bool along = p_.shape != KernelPlan::Shape::rows || p_.is_inside(s);
  if (along && p_.is_packed(s.access)) {
    std::string row;
    for (int64_t l = 0; l < p_.lanes; ++l)
      row += (l ? ", " : "") + cat("static_cast<", stored_type(stored), ">(", to_memory(value(l), stored), ")");
    line("store_row<", p_.lanes, ">(", address(s.access, 0), ", Row<", stored_type(stored), ", ", p_.lanes, ">{{", row, "}});");
    return;
  }
  for (int64_t l = 0; l < (along ? p_.lanes : 1); ++l) line("*(", address(s.access, l), ") = ", to_memory(value(l), stored), ";");
}

}  // namespace broach::cuda
