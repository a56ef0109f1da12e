#include "trace/trace.h"

#include <algorithm>

namespace broach {

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

}  // namespace broach
