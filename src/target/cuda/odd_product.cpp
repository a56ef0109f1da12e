#include "target/cuda/odd_product.h"

#include <algorithm>
#include <utility>

namespace broach::cuda {

namespace {

constexpr int64_t kPiece = 8;  // elements of 16 bytes

bool is_odd(int64_t n) { return n % kPiece != 0; }

bool pad(ColumnMajor& m) {
  if (!is_odd(m.leading)) return false;
  m.leading = (m.rows + kPiece - 1) / kPiece * kPiece;
  return true;
}

// The sizes of result[n, m] = weight[n, k] x[k, m], in columns.
struct Extents {
  int64_t n, m, k;
};
Extents extents(const LibraryProduct& p) {
  return {p.result.rows, p.result.columns, p.weight.transposed ? p.weight.rows : p.weight.columns};
}

// Elements from the first along a dimension.
int64_t along_rows(const ColumnMajor& m, int64_t n) { return m.transposed ? n * m.leading : n; }
int64_t along_columns(const ColumnMajor& m, int64_t n) { return m.transposed ? n : n * m.leading; }
int64_t& rows(ColumnMajor& m) { return m.transposed ? m.columns : m.rows; }
int64_t& columns(ColumnMajor& m) { return m.transposed ? m.rows : m.columns; }

void cut_n(OddProduct::Part& part, int64_t first, int64_t n) {
  LibraryProduct& p = part.product;
  rows(p.weight) = p.result.rows = p.added.rows = n;
  p.starts[0].weight += along_rows(p.weight, first), p.starts[0].result += first, p.starts[0].added += first;
  part.bias_start += first;
}

void cut_m(OddProduct::Part& part, int64_t first, int64_t n) {
  LibraryProduct& p = part.product;
  columns(p.x) = p.result.columns = p.added.columns = n;
  p.starts[0].x += along_columns(p.x, first), p.starts[0].result += first * p.result.leading, p.starts[0].added += first * p.added.leading;
}

void cut_k(OddProduct::Part& part, int64_t first, int64_t n) {
  LibraryProduct& p = part.product;
  columns(p.weight) = rows(p.x) = n;
  p.starts[0].weight += along_columns(p.weight, first), p.starts[0].x += along_rows(p.x, first);
  part.accumulates = part.accumulates || first > 0;
}

using Cut = void (*)(OddProduct::Part&, int64_t first, int64_t n);

// Into whole pieces and what is left.
void divide(std::vector<OddProduct::Part>& parts, int64_t n, Cut cut) {
  std::vector<OddProduct::Part> out;
  const int64_t whole = n - n % kPiece;
  for (const auto& p : parts)
    for (const auto& [first, size] : {std::pair(int64_t{0}, whole), std::pair(whole, n - whole)}) {
      out.push_back(p);
      cut(out.back(), first, size);
    }
  parts = std::move(out);
}

// Of a result that is copied so many rows are made and copied at a time that the copy finds them in the device's cache.
int64_t rows_at_once(const Extents& e) {
  constexpr int64_t kBytes = int64_t{24} << 20, kTile = 256;
  const int64_t times = std::max(int64_t{1}, (2 * e.n * e.m + kBytes / 2) / kBytes);
  return ((e.n + times - 1) / times + kTile - 1) / kTile * kTile;
}

// The part's result is the first in memory.
void begin_anew(OddProduct::Part& part, int64_t first) {
  part.product.starts[0].result -= first;
  if (!part.product.adds) part.product.starts[0].added -= first;
}

// Copies move these bytes twice, slow kernels run at a fifth of the rate.
bool pays(const Extents& e, int64_t copied) {
  constexpr int64_t kWorthIt = int64_t{1} << 30, kPerByte = 100;  // operations
  const int64_t operations = 2 * e.n * e.m * e.k;
  return operations >= kWorthIt && operations > kPerByte * copied;
}

}  // namespace

std::optional<OddProduct> odd_product(const LibraryProduct& product, DType dtype, bool whole_sums) {
  if ((dtype != DType::bf16 && dtype != DType::f16) || product.starts.size() != 1 || product.batches != 1) return std::nullopt;
  const Extents e = extents(product);
  const bool odd_n = is_odd(e.n), odd_m = is_odd(e.m) && product.x.transposed;
  const bool odd_k = is_odd(e.k) && (product.weight.transposed || !product.x.transposed);
  OddProduct out{product.weight, product.x, product.result, false, false, false, {}, {}};
  out.copies_weight = pad(out.weight), out.copies_x = pad(out.x), out.copies_result = pad(out.result);
  if (!(odd_n || odd_m || odd_k || out.copies()) || (odd_k && whole_sums) || std::min({e.n, e.m, e.k}) < kPiece) return std::nullopt;
  auto bytes = [](const ColumnMajor& m, bool copied) { return copied ? 2 * m.leading * m.columns : 0; };
  if (!pays(e, bytes(out.weight, out.copies_weight) + bytes(out.x, out.copies_x) + bytes(out.result, out.copies_result)))
    return std::nullopt;
  OddProduct::Part whole{product, false, 0};
  whole.product.weight = out.weight, whole.product.x = out.x;
  const int64_t step = out.copies_result ? rows_at_once(e) : e.n;
  if (out.copies_result) out.result.rows = std::min(step, e.n), out.result.leading = (out.result.rows + kPiece - 1) / kPiece * kPiece;
  whole.product.result = out.result;
  if (!product.adds) whole.product.added = out.result;
  for (int64_t first = 0; first < e.n; first += step) {
    std::vector<OddProduct::Part> parts{whole};
    const int64_t n = std::min(step, e.n - first);
    cut_n(parts[0], first, n);
    if (out.copies_result) begin_anew(parts[0], first);
    if (is_odd(n)) divide(parts, n, cut_n);
    if (odd_m) divide(parts, e.m, cut_m);
    if (odd_k) divide(parts, e.k, cut_k);
    out.parts.insert(out.parts.end(), parts.begin(), parts.end());
    out.chunks.push_back({first, n, out.parts.size()});
  }
  return out;
}

}  // namespace broach::cuda
