#include "trace/pieces.h"

#include <iterator>

namespace broach {

// Lets a piece begin at `at`, if that is not the end.
void Pieces::split(int64_t at) {
  auto it = std::prev(pieces_.upper_bound(at));
  const int64_t before = at - it->first;
  Piece& p = it->second;
  if (before == 0 || before >= p.length) return;
  const Piece rest{p.source, p.offset + before, p.length - before};
  p.length = before;
  pieces_.emplace(at, rest);
}

void Pieces::replace(int64_t start, Value y) {
  const int64_t length = y.shape()[static_cast<size_t>(dim_)].constant();
  if (length == 0) return;
  split(start);
  split(start + length);
  pieces_.erase(pieces_.lower_bound(start), pieces_.lower_bound(start + length));
  pieces_.emplace(start, Piece{y, 0, length});
}

Value Pieces::cut(GraphBuilder& b, const Piece& p) const {
  const auto d = static_cast<size_t>(dim_);
  Shape starts(p.source.shape().size(), SymInt(0)), shape = p.source.shape();
  starts[d] = p.offset;
  shape[d] = p.length;
  return b.slice(p.source, std::move(starts), std::vector<int64_t>(shape.size(), 1), shape);
}

std::optional<Value> Pieces::window(GraphBuilder& b, int64_t start, int64_t length) const {
  auto it = std::prev(pieces_.upper_bound(start));
  const Piece& p = it->second;
  const int64_t before = start - it->first;
  if (before + length > p.length) return std::nullopt;
  return cut(b, {p.source, p.offset + before, length});
}

Value Pieces::joined(GraphBuilder& b) const {
  std::vector<Value> parts;
  for (const auto& [start, p] : pieces_) parts.push_back(cut(b, p));
  return parts.size() == 1 ? parts[0] : b.emit(Op::cat, std::move(parts), {{Attr::dim, dim_}});
}

}  // namespace broach
