#include "ir/strides.h"

namespace broach {

Shape strides_in_order(const Shape& shape, const std::vector<size_t>& order) {
  Shape strides(shape.size());
  SymInt step(1);
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step = step * (shape[order[i]] == SymInt(0) ? SymInt(1) : shape[order[i]]);
  }
  return strides;
}

Shape channels_last_strides(const Shape& shape) {
  std::vector<size_t> order{0};
  for (size_t d = 2; d < shape.size(); ++d) order.push_back(d);
  order.push_back(1);
  return strides_in_order(shape, order);
}

bool is_channels_last(const Shape& shape, const Shape& strides) { return shape.size() >= 3 && strides == channels_last_strides(shape); }

SymInt extent_of(const Shape& shape, const Shape& strides) {
  SymInt n(1);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == SymInt(0)) return 0;
    n = n + (shape[d] - 1) * strides[d];
  }
  return n;
}

std::optional<Shape> reshaped_strides(const Shape& from, const Shape& strides, const Shape& to) {
  Shape out(to.size(), SymInt(1));
  auto view_d = static_cast<int64_t>(to.size()) - 1;
  SymInt base = strides.empty() ? SymInt(1) : strides.back(), tensor_numel(1), view_numel(1);
  for (auto d = static_cast<int64_t>(from.size()) - 1; d >= 0; --d) {
    auto i = static_cast<size_t>(d);
    tensor_numel = tensor_numel * from[i];
    bool ends_chunk = d == 0 || (!(from[i - 1] == SymInt(1)) && !(strides[i - 1] == tensor_numel * base));
    if (!ends_chunk) continue;
    while (view_d >= 0 && (!(view_numel == tensor_numel) || to[static_cast<size_t>(view_d)] == SymInt(1))) {
      out[static_cast<size_t>(view_d)] = view_numel * base;
      view_numel = view_numel * to[static_cast<size_t>(view_d)];
      --view_d;
    }
    if (!(view_numel == tensor_numel)) return std::nullopt;
    if (d > 0) {
      base = strides[i - 1];
      tensor_numel = view_numel = SymInt(1);
    }
  }
  if (view_d >= 0 && !from.empty()) return std::nullopt;
  return out;
}

std::optional<MemoryWindow> window_of_view(const Node& n, const MemoryWindow& p) {
  MemoryWindow out{p.base, p.offset, {}};
  const Shape& from = n.inputs[0].shape();
  const Shape& to = n.results[0].shape;
  switch (n.op) {
    case Op::permute:
      for (int64_t d : n.ints(Attr::dims)) out.strides.push_back(p.strides[static_cast<size_t>(d)]);
      return out;
    case Op::expand:
      for (size_t d = 0; d < to.size(); ++d) out.strides.push_back(from[d] == to[d] ? p.strides[d] : SymInt(0));
      return out;
    case Op::slice:
      for (size_t d = 0; d < to.size(); ++d) {
        out.offset = out.offset + n.sizes(Attr::starts)[d] * p.strides[d];
        out.strides.push_back(p.strides[d] * SymInt(n.ints(Attr::steps)[d]));
      }
      return out;
    case Op::reshape: {
      auto strides = reshaped_strides(from, p.strides, to);
      if (!strides) return std::nullopt;
      out.strides = std::move(*strides);
      return out;
    }
    default: return std::nullopt;
  }
}

SymInt address_of(const MemoryWindow& w, std::span<const SymInt> index) {
  SymInt a = w.offset;
  for (size_t d = 0; d < index.size(); ++d) a = a + index[d] * w.strides[d];
  return a;
}

}  // namespace broach
