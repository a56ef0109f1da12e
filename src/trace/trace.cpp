#include "trace/trace.h"

#include <algorithm>

#include "ir/text.h"
#include "support/error.h"

namespace broach {

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
  return cat(name_of(id), ": ", t.type.str(), " strides ", list_text(t.strides), " offset ", t.offset, " storage ", t.storage);
}

struct ArgText {
  std::string operator()(const Arg::Tensor& t) const { return name_of(t.id); }
  std::string operator()(const Arg::Number& n) const {
    return "number " + (n.tensor != kNoTensor ? name_of(n.tensor) : n.symbol ? n.symbol->str() : broach::str(n.value));
  }
  std::string operator()(const Arg::Tensors& t) const { return cat("{", names_of(t.ids), t.optional_elements ? "}?" : "}"); }
  template <class T>
  std::string operator()(const T& value) const {
    return text_of(ExternArg{value});
  }
};

std::string op_text(const Trace& trace, const TraceOp& op) {
  std::string out;
  for (TensorId id : op.results) out += (out.empty() ? "" : ", ") + described(trace, id);
  out += cat(out.empty() ? "" : " = ", op.schema, "(");
  for (size_t i = 0; i < op.args.size(); ++i) out += (i ? ", " : "") + std::visit(ArgText(), op.args[i].value);
  out += ")";
  if (!op.mutated.empty()) out += " mutates " + names_of(op.mutated);
  for (const auto& b : op.binds)
    out += cat(" binds ", SymInt::symbol(b.symbol), b.result < 0 ? "" : cat(" to size ", b.dim, " of result ", b.result));
  return cat(out, op.is_view ? " view" : "", op.effect ? " effect" : "", comment_text(trace.lines, op.line));
}

}  // namespace

void Trace::resolve() {
  auto size = [&](SymInt& e) { e = symbols->resolved(e); };
  for (TraceTensor& t : tensors) {
    for (Shape* s : {&t.type.shape, &t.strides}) std::for_each(s->begin(), s->end(), size);
    size(t.offset);
  }
  for (TraceOp& op : ops)
    for (Arg& a : op.args) {
      if (auto e = std::get_if<SymInt>(&a.value)) size(*e);
      if (auto n = std::get_if<Arg::Number>(&a.value); n && n->symbol) size(*n->symbol);
      if (auto s = std::get_if<Shape>(&a.value)) std::for_each(s->begin(), s->end(), size);
    }
}

std::string Trace::str() const {
  std::string out = text_of(*symbols);
  for (TensorId id : inputs) out += cat("input ", described(*this, id), "\n");
  for (const TraceOp& op : ops) out += op_text(*this, op) + "\n";
  return cat(out, "return", outputs.empty() ? "" : " ", names_of(outputs), "\n");
}

}  // namespace broach
