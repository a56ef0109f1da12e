// Operations on complex tensors that act on real and imaginary parts alike: movement by positions, sums, and writes. Each is the
// lowering for real tensors, twice.
#include <algorithm>
#include <sstream>

#include "ops/complex.h"

namespace broach {

namespace {

// A number that is multiplied with or written would need its own parts.
bool has_complex_number(const OpCall& c) {
  for (size_t i = 0; i < c.size(); ++i)
    if (c.is_complex_number(i)) return true;
  return false;
}

// The call with the real or imaginary parts of its tensors; those of other types, masks and positions, stay.
Results of_parts(const OpCall& c, const Lowering& lowering, bool imaginary) {
  auto part = [&](Value v) {
    if (v.dtype() == DType::c64) return (imaginary ? parts(c.b, v).im : parts(c.b, v).re).value();
    return imaginary && is_floating(v.dtype()) ? c.b.full(v.shape(), 0.0, v.dtype()) : v;
  };
  OpCall real = c.mapped(part);
  return lowering(real);
}

// Whole numbers among what these take are summands, not positions.
bool has_real_summands(const OpCall& c) {
  bool found = false;
  c.mapped([&](Value v) { return found |= v.dtype() != DType::c64, v; });
  return found;
}

Lowering by_parts(Lowering lowering) {
  return [lowering = std::move(lowering)](OpCall& c) -> Results {
    auto single = [](const Type& t) { return t.dtype == DType::c64; };
    if (!std::all_of(c.results().begin(), c.results().end(), single) || has_complex_number(c)) return std::nullopt;
    auto re = of_parts(c, lowering, false), im = of_parts(c, lowering, true);
    if (!re || !im) return std::nullopt;
    std::vector<Value> out;
    for (size_t i = 0; i < re->size(); ++i) out.push_back(packed({{c.b, re->at(i)}, {c.b, im->at(i)}}));
    return out;
  };
}

}  // namespace

void add_partwise_ops(OpTable& t) {
  std::istringstream names(
      "scatter.src scatter_add index_add index_put _index_put_impl index_copy put masked_scatter _unsafe_index_put "
      "_unsafe_masked_index_put_accumulate");
  for (std::string name; names >> name;)
    if (const OpEntry* real = t.find("aten::" + name)) t.add_complex(name, by_parts(real->lower));
  for (const char* name : {"cumsum", "block_diag"})
    if (const OpEntry* real = t.find(std::string("aten::") + name))
      t.add_complex(name, [by = by_parts(real->lower)](OpCall& c) { return has_real_summands(c) ? std::nullopt : by(c); });
  if (const OpEntry* real = t.find("aten::index_fill.int_Tensor"))  // of whose whole numbers one is an element
    t.add_complex("index_fill.int_Tensor", [by = by_parts(real->lower)](OpCall& c) {
      const DType value = c.tensor(3).dtype();
      return value == DType::c64 || is_floating(value) ? by(c) : std::nullopt;
    });
  if (const OpEntry* real = t.find("aten::scatter.reduce"))
    t.add_complex("scatter.reduce", [by = by_parts(real->lower)](OpCall& c) { return c.text(4) == "add" ? by(c) : std::nullopt; });
}

}  // namespace broach
