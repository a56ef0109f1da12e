#include "trace/trace.h"

#include <utility>

namespace broach {

TraceTensor Trace::resolved(TraceTensor t) const {
  for (Shape* s : {&t.type.shape, &t.strides})
    for (SymInt& e : *s) e = symbols->resolved(e);
  t.offset = symbols->resolved(t.offset);
  return t;
}

TraceOp Trace::resolved(TraceOp op) const {
  for (Arg& a : op.args) {
    if (auto e = std::get_if<SymInt>(&a.value)) *e = symbols->resolved(*e);
    if (auto n = std::get_if<Arg::Number>(&a.value); n && n->symbol) *n->symbol = symbols->resolved(*n->symbol);
    if (auto s = std::get_if<Shape>(&a.value))
      for (SymInt& e : *s) e = symbols->resolved(e);
  }
  return op;
}

void Trace::resolve() {
  for (TraceTensor& t : tensors) t = resolved(std::move(t));
  for (TraceOp& op : ops) op = resolved(std::move(op));
}

}  // namespace broach
